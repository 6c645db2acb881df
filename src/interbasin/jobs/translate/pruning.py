r"""Anchors that point in directions of their own: greedy farthest-point sampling.

The distance of two anchors is :math:`1 - |\cos|` (eq. 3 of the paper): opposite directions are as dependent as equal
ones. From a start, the anchor farthest from all that were taken is taken next, until the farthest is nearer than
``delta`` (eq. 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["farthest_points"]


def farthest_points(sides: Sequence[Tensor], delta: float, starts: Sequence[int]) -> list[Tensor]:
    """The anchors kept from each start, as indices in the order in which they were taken.

    No matrix of all pairs is formed: a step costs one product of the anchors with those taken last, one a start. As
    many are kept as the first side is wide, at most: more could not point in directions of their own.

    Args:
        sides: The anchors in one space or in several, ``(anchors, width)`` each, rows of length 1. With several, two
            anchors are as far apart as in the space in which they are nearer.
        delta: From 0 (keep all that are not parallel) to 1 (keep only what is at right angles).
        starts: The first anchor of each subset.
    """
    count, most = sides[0].shape
    taken = torch.empty(len(starts), min(most, count), dtype=torch.int64)
    sizes = [0] * len(starts)
    remaining = torch.full((count, len(starts)), torch.inf)
    points = torch.tensor(list(starts), dtype=torch.int64)
    growing = list(range(len(starts)))
    for step in range(taken.shape[1]):
        for place, point in zip(growing, points.tolist(), strict=True):
            taken[place, step] = point
            sizes[place] += 1
        for rows in sides:
            distance = 1 - (rows @ rows[points].mT).abs()
            remaining[:, growing] = torch.minimum(remaining[:, growing], distance.to(remaining))
        remaining[points, growing] = -torch.inf  # never twice, whatever rounding says
        farthest = remaining[:, growing].max(0)
        going = (farthest.values >= delta).tolist()
        points = farthest.indices[torch.tensor(going, dtype=torch.bool)]
        growing = [place for place, goes_on in zip(growing, going, strict=True) if goes_on]
        if not growing:
            break
    return [taken[place, :size] for place, size in enumerate(sizes)]
