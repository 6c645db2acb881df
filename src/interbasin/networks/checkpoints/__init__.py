"""Checkpoints in and out: one reader that looks before it reads, one writer that leaves all or nothing."""

from interbasin.networks.checkpoints.adapters import Adapter
from interbasin.networks.checkpoints.base import Checkpoint, Entry
from interbasin.networks.checkpoints.opening import open_checkpoint
from interbasin.networks.checkpoints.writing import write_checkpoint, write_into

__all__ = ["Adapter", "Checkpoint", "Entry", "open_checkpoint", "write_checkpoint", "write_into"]
