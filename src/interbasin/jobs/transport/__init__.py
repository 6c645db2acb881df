"""Transport: the fine-tune or LoRA of one network, given to another without training."""

from interbasin.jobs.transport.job import transport
from interbasin.jobs.transport.result import Transport
from interbasin.jobs.transport.update import Update

__all__ = ["Transport", "Update", "transport"]
