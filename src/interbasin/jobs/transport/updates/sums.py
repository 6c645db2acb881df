"""Sums of updates that are dense, computed a tensor at a time when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.checkpoints import Entry, LazyTensors
from interbasin.jobs.merge import merge

if TYPE_CHECKING:
    from interbasin.jobs.transport.updates.update import Update


class SummedUpdates(LazyTensors):
    """What several updates of one network come to: task arithmetic, or TIES with a density.

    Args:
        updates: For each tensor those that have an update for it, with their weights.
        density: The share of every update that TIES keeps; None adds all of it.
    """

    def __init__(self, updates: Mapping[str, Sequence[tuple[Update, float]]], density: float | None = None) -> None:
        self._updates, self._density, self.ties = updates, density, {}
        self.entries = {}
        for name, pairs in updates.items():
            entries = [update.tensors.entry(name) for update, _ in pairs]
            self.entries[name] = Entry.of(working_dtype(*(entry.dtype for entry in entries)), entries[0].shape)

    def __getitem__(self, name: str) -> Tensor:
        name = self.stored_name(name)
        pairs = self._updates[name]
        if self._density is None:
            (first, scale), *others = pairs
            total = scale * first.tensor(name).to(self.dtype(name))  # each is asked for once: it may be dear
            for update, weight in others:
                total.add_(update.tensor(name).to(total), alpha=weight)
            return total
        total = torch.zeros(self.shape(name), dtype=self.dtype(name), device=pairs[0][0].tensor(name).device)
        # Updates are networks that were fine-tuned from zero.
        networks = [{name: update.tensor(name).to(total)} for update, _ in pairs]
        weights = [weight for _, weight in pairs]
        merged: dict[str, Tensor] = merge(networks, "ties", base={name: total}, weights=weights, density=self._density)
        return merged[name]
