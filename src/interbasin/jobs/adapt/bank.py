"""A sample of what the body takes for inputs of the proxy, with labels; for methods that go on using the source's."""

from __future__ import annotations

import torch
from torch import Tensor

from interbasin.randomness import generator_of

MOST = 256  # inputs
MOST_NUMBERS = 2**25  # of all of them together


class TokenBank:
    """A random sample of what was added, every input as likely as every other: a proxy may be sorted by class.

    Text comes in batches of several lengths, and a tensor has one: inputs of the first batch's length count.

    Args:
        seed: Of the sample.

    Example:
        >>> bank = TokenBank(seed=0)
        >>> bank.add(torch.randn(300, 5, 8), torch.arange(300) % 3)
        >>> bank.taken.shape, bank.labels.shape
        (torch.Size([256, 5, 8]), torch.Size([256]))
    """

    def __init__(self, seed: int) -> None:
        self.taken, self.labels, self._ranks = torch.empty(0), torch.empty(0, dtype=torch.long), torch.empty(0)
        self._generator = generator_of(seed)

    def add(self, taken: Tensor, labels: Tensor) -> None:
        """One more batch."""
        if len(self.taken) and taken.shape[1:] != self.taken.shape[1:]:
            return
        ranks = torch.rand(len(taken), generator=self._generator)
        labels = labels.long().to(taken.device)
        held = len(self._ranks)
        size = max(2, min(MOST, MOST_NUMBERS // max(1, taken.shape[1:].numel())))
        # Those with the lowest of random ranks: a later batch has the chance that an earlier one had.
        kept = torch.cat([self._ranks, ranks]).argsort()[:size].sort().values
        new, slots = kept[kept >= held] - held, torch.arange(held)
        slots = slots[~torch.isin(slots, kept)]  # whose inputs give way
        self._put(slots, new[: len(slots)], taken, labels, ranks)
        more = new[len(slots) :]
        if not len(more):
            return
        more_here = more.to(taken.device)
        self.taken = torch.cat([self.taken, taken[more_here]]) if held else taken[more_here].clone()
        self.labels = torch.cat([self.labels, labels[more_here]]) if held else labels[more_here]
        self._ranks = torch.cat([self._ranks, ranks[more]])

    def _put(self, slots: Tensor, rows: Tensor, taken: Tensor, labels: Tensor, ranks: Tensor) -> None:
        if len(slots):
            self._ranks[slots] = ranks[rows]
            here, rows = slots.to(taken.device), rows.to(taken.device)
            self.taken[here], self.labels[here] = taken[rows], labels[rows]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Some of them, with their labels; the same ones again where there are too few."""
        chosen = torch.randperm(max(count, len(self.taken)), generator=generator)[:count] % len(self.taken)
        chosen = chosen.to(self.taken.device)
        return self.taken[chosen], self.labels[chosen]
