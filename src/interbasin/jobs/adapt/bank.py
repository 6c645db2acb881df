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
        >>> bank.body_inputs.shape, bank.labels.shape
        (torch.Size([256, 5, 8]), torch.Size([256]))
    """

    def __init__(self, seed: int) -> None:
        self.body_inputs, self.labels, self._ranks = torch.empty(0), torch.empty(0, dtype=torch.long), torch.empty(0)
        self._generator = generator_of(seed)

    def add(self, body_inputs: Tensor, labels: Tensor) -> None:
        """One more batch."""
        if len(self.body_inputs) and body_inputs.shape[1:] != self.body_inputs.shape[1:]:
            return
        ranks = torch.rand(len(body_inputs), generator=self._generator)
        labels = labels.long().to(body_inputs.device)
        held = len(self._ranks)
        size = max(2, min(MOST, MOST_NUMBERS // max(1, body_inputs.shape[1:].numel())))
        # Those with the lowest of random ranks: a later batch has the chance that an earlier one had.
        kept = torch.cat([self._ranks, ranks]).argsort()[:size].sort().values
        new, slots = kept[kept >= held] - held, torch.arange(held)
        slots = slots[~torch.isin(slots, kept)]  # whose inputs give way
        self._put(slots, new[: len(slots)], body_inputs, labels, ranks)
        more = new[len(slots) :]
        if not len(more):
            return
        more_here = more.to(body_inputs.device)
        self.body_inputs = (
            torch.cat([self.body_inputs, body_inputs[more_here]]) if held else body_inputs[more_here].clone()
        )
        self.labels = torch.cat([self.labels, labels[more_here]]) if held else labels[more_here]
        self._ranks = torch.cat([self._ranks, ranks[more]])

    def _put(self, slots: Tensor, rows: Tensor, body_inputs: Tensor, labels: Tensor, ranks: Tensor) -> None:
        if len(slots):
            self._ranks[slots] = ranks[rows]
            here, rows = slots.to(body_inputs.device), rows.to(body_inputs.device)
            self.body_inputs[here], self.labels[here] = body_inputs[rows], labels[rows]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Some of them, with their labels; the same ones again where there are too few."""
        chosen = torch.randperm(max(count, len(self.body_inputs)), generator=generator)[:count] % len(self.body_inputs)
        chosen = chosen.to(self.body_inputs.device)
        return self.body_inputs[chosen], self.labels[chosen]
