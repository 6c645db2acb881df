"""Weights of folded networks: the network that they belong to is made from the one that was folded."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from interbasin.networks.checkpoints import Checkpoint
from interbasin.networks.folding.marks import is_folded, read_folding
from interbasin.networks.folding.replacing import rebuild

__all__ = ["is_folded", "rebuild_as_folded", "version_folded_with"]


def rebuild_as_folded(model: nn.Module, checkpoint: Checkpoint, what: str) -> None:
    """Fold ``model``, which was just made, as the network was whose weights are in ``checkpoint``, if that was folded.

    Raises:
        CheckpointError: if the mark of the folding is damaged, or the model is of another architecture.
    """
    if checkpoint.folder is not None and is_folded(checkpoint):
        rebuild(model, read_folding(checkpoint.folder)[0], what)


def version_folded_with(folder: Path) -> str | None:
    """The version of transformers that a folded network was saved with."""
    return read_folding(folder)[1]
