"""Checkpoints in and out: one reader that looks before it reads, one writer that leaves all or nothing.

Tensors are `LazyTensors` throughout: on disk, as differences and sums (``delta``), or as those of a LoRA (``lora``).
"""

from interbasin._lazy import lazy_names
from interbasin.checkpoints.checkpoint import Checkpoint, Entry, LazyTensors
from interbasin.checkpoints.lora import Adapter
from interbasin.checkpoints.open import open_checkpoint
from interbasin.checkpoints.write import write_checkpoint, write_into

__all__ = ["Adapter", "Checkpoint", "Entry", "LazyTensors", "open_checkpoint", "write_checkpoint", "write_into"]

# Differences take torch, which takes a second to import; checkpoints are opened, merged and written without.
__getattr__, __dir__ = lazy_names(__name__, ("delta", "lora"), {})
