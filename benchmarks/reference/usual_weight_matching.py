"""Weight matching as Git Re-Basin published it (arXiv:2209.04836, algorithm 1), written anew and plainly.

Every permutation starts at the identity. They are visited in random order; each is set to the best assignment for all
tensors that it touches, the others as they stand, until no visit gains anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


@dataclass(frozen=True)
class Pair:
    """The same tensor of both networks, and the space that each axis lies in, or none."""

    source: Tensor
    target: Tensor
    spaces: Sequence[str | None]


def weight_matching(
    pairs: Sequence[Pair], sizes: Mapping[str, int], seed: int, most: int = 100
) -> tuple[dict[str, Tensor], int]:
    """Which unit of the source stands at each place of the target, by space; and how many sweeps that took."""
    found = {name: torch.arange(size) for name, size in sizes.items()}
    generator = torch.Generator().manual_seed(seed)
    names = list(sizes)
    for sweep in range(most):
        progress = False
        for position in torch.randperm(len(names), generator=generator).tolist():
            name = names[position]
            score = torch.zeros(sizes[name], sizes[name])
            for pair in pairs:
                for axis, space in enumerate(pair.spaces):
                    if space == name:
                        source = permuted(pair, found, but=axis).movedim(axis, 0).reshape(sizes[name], -1)
                        target = pair.target.movedim(axis, 0).reshape(sizes[name], -1)
                        score += target @ source.mT
            index = torch.from_numpy(linear_sum_assignment(score.numpy(), maximize=True)[1])
            rows = torch.arange(sizes[name])
            progress |= bool(score[rows, index].sum() > score[rows, found[name]].sum() + 1e-12)
            found[name] = index
        if not progress:
            return found, sweep + 1
    return found, most


def permuted(pair: Pair, found: Mapping[str, Tensor], but: int | None = None) -> Tensor:
    tensor = pair.source
    for axis, space in enumerate(pair.spaces):
        if axis != but and space in found:
            tensor = tensor.index_select(axis, found[space])
    return tensor
