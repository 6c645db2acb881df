"""Checkpoints in and out: one reader that looks before it reads, one writer that leaves all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin.checkpoints.checkpoint import Checkpoint, Entry, LazyTensors
from interbasin.checkpoints.lora import Adapter
from interbasin.checkpoints.open import open_checkpoint

if TYPE_CHECKING:
    from interbasin.checkpoints.write import write_checkpoint, write_into

__all__ = ["Adapter", "Checkpoint", "Entry", "LazyTensors", "open_checkpoint", "write_checkpoint", "write_into"]

# Writing tensors takes torch; opening a checkpoint does not, and torch takes a second to import.
__getattr__, __dir__ = lazy_names(
    __name__, ("delta", "lora"), dict.fromkeys(("write_checkpoint", "write_into"), f"{__name__}.write")
)
