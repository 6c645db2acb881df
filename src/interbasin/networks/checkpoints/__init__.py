"""Checkpoints in and out: one reader that looks before it reads, one writer that leaves all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interbasin.networks.checkpoints.adapters import Adapter
from interbasin.networks.checkpoints.base import Checkpoint, Entry
from interbasin.networks.checkpoints.opening import open_checkpoint

if TYPE_CHECKING:
    from interbasin.networks.checkpoints.writing import write_checkpoint, write_into

__all__ = ["Adapter", "Checkpoint", "Entry", "open_checkpoint", "write_checkpoint", "write_into"]


def __getattr__(name: str) -> Any:
    # Writing tensors takes torch; opening a checkpoint does not, and torch takes a second to import.
    if name in ("write_checkpoint", "write_into"):
        from interbasin.networks.checkpoints import writing

        return getattr(writing, name)
    raise AttributeError(f"module 'interbasin.networks.checkpoints' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
