"""The fine-tune as an update: read from a network, a LoRA of PEFT or a file, merged with others, written for PEFT."""

from interbasin.jobs.transport.updates.fine_tunes import read_fine_tune
from interbasin.jobs.transport.updates.update import Update

__all__ = ["Update", "read_fine_tune"]
