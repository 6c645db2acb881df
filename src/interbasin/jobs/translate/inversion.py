r"""From relative coordinates (cosines with anchors) back to a space.

Rows relative to anchors :math:`S` (unit rows about the mean) are :math:`X_{rel} = X S^\top` (eq. 1). Each way back is
one matrix :math:`D` with one row per anchor, :math:`Y = X_{rel} D`, and needs the anchors of that space alone:

- **pruned**, the paper's: the pseudo-inverse of few anchors that are far apart, averaged over subsets that begin at
  random ones (eq. 2, 4 and 5; each subset goes with its own columns of :math:`X_{rel}`, which eq. 5 does not say);
- **regularised**: :math:`D = S (S^\top S + \lambda m I)^{-1}`, :math:`m` the mean squared singular value, over all
  anchors.

Greedy farthest-point sampling finds anchors that are far apart. The distance of two anchors is :math:`1 - |\cos|`
(eq. 3 of the paper): opposite directions are as dependent as equal ones. From a start, the anchor farthest from all
that were taken is taken next, until the farthest is nearer than ``delta`` (eq. 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from interbasin.randomness import generator_of


def farthest_points(sides: Sequence[Tensor], delta: float, starts: Sequence[int]) -> list[Tensor]:
    """The anchors kept from each start, as indices in the order in which they were taken.

    No matrix of all pairs is formed: a step costs one product of the anchors with those taken last, one per start. At
    most as many are kept as the first space is wide: more could not point in directions of their own.

    Args:
        sides: The anchors in one or several spaces, ``(anchors, width)`` each, rows of length 1. With several, the
            smallest distance counts.
        delta: From 0 (keep all that are not parallel) to 1 (keep only what is at right angles).
        starts: The first anchor of each subset.
    """
    count, most = sides[0].shape
    kept: list[list[int]] = [[] for _ in starts]
    remaining = torch.full((count, len(starts)), torch.inf)
    points = torch.tensor(list(starts), dtype=torch.int64)
    growing = list(range(len(starts)))
    for _ in range(min(most, count)):
        for place, point in zip(growing, points.tolist(), strict=True):
            kept[place].append(point)
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
    return [torch.tensor(places, dtype=torch.int64) for places in kept]


STRENGTHS: tuple[float, ...] = tuple(10 ** (-6 + step / 4) for step in range(29))
_JUDGES = 512  # rows that are enough to tell one strength from another
_VIEWS = 4


@dataclass(frozen=True, eq=False)
class Inversion:
    """A way back.

    Attributes:
        weights: :math:`D`, ``(anchors, width)``.
        kept: How many anchors each subset kept; all of them where none is pruned.
        conditions: Of each subset, the largest singular value over the smallest.
        strength: Of the regularisation.
    """

    weights: Tensor
    kept: tuple[int, ...]
    conditions: tuple[float, ...]
    strength: float | None = None

    def details(self) -> dict[str, float]:
        """Its figures for the details of a translation."""
        figures = {
            "anchors": len(self.weights),
            "anchors_kept": sum(self.kept) / len(self.kept),
            "condition": sum(self.conditions) / len(self.conditions),
        }
        return figures if self.strength is None else {**figures, "strength": self.strength}


def invert_pruned(anchors: Tensor, delta: float, omega: int, seed: int, beside: Sequence[Tensor] = ()) -> Inversion:
    """The paper's way back to the space of ``anchors``, rows of length 1, averaged over ``omega`` subsets.

    Anchors nearer than ``delta`` are not kept; in the spaces of ``beside`` they must be far apart too.
    """
    count, width = anchors.shape
    order = torch.randperm(count, generator=generator_of(seed))
    starts = [int(order[place % count]) for place in range(omega)]
    weights = torch.zeros(count, width, dtype=torch.float64)
    kept, conditions = [], []
    single = [side.float() for side in (anchors, *beside)]
    for index in farthest_points(single, delta, starts):
        left, values, right = torch.linalg.svd(anchors[index], full_matrices=False)
        line = values[0] * max(anchors[index].shape) * torch.finfo(values.dtype).eps
        inverse = torch.where(values > line, 1 / values.clamp(min=1e-300), 0)
        weights[index] += (left * inverse) @ right / omega
        kept.append(len(index))
        conditions.append(float(values[0] / values[-1].clamp(min=1e-300)))
    return Inversion(weights, tuple(kept), tuple(conditions))


def invert_regularised(anchors: Tensor, strength: float) -> Inversion:
    """The way back by all anchors."""
    values, vectors = torch.linalg.eigh(anchors.mT @ anchors)
    kept = values > values[-1] * max(anchors.shape) * torch.finfo(values.dtype).eps
    lifted = torch.where(kept, values + strength * _mean_square(values, len(anchors)), 1)
    inverse = torch.where(kept, 1 / lifted, 0)
    condition = float((lifted[-1] / lifted[kept][0]).sqrt()) if bool(kept.any()) else 1.0
    weights = anchors @ ((vectors * inverse) @ vectors.mT)
    return Inversion(weights, (len(anchors),), (condition,), strength)


def choose_strength(anchors: Tensor, seed: int) -> float:
    """The strength that best gives rows of the space back from cosines in half of its dimensions.

    Another encoder sees the same items a little differently. Half of the dimensions, random ones after a random turn,
    stand in for it.
    """
    count, width = anchors.shape
    if width == 1:
        return STRENGTHS[0]
    generator = generator_of(seed)
    values, vectors = torch.linalg.eigh(anchors.mT @ anchors)
    values = values.clamp(min=0)
    mean = _mean_square(values, count)
    judges = anchors[torch.randperm(count, generator=generator)[:_JUDGES]]
    agreement = torch.zeros(len(STRENGTHS), dtype=torch.float64)
    for _ in range(_VIEWS):
        turn = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
        half = turn[:, : width // 2]
        seen, shown = (normalize(rows @ half, eps=1e-30) for rows in (judges, anchors))
        # The judges by their cosines in this view, along the directions that the strength then weighs.
        along = seen @ (shown.mT @ anchors) @ vectors
        for place, strength in enumerate(STRENGTHS):
            back = (along / (values + strength * mean).clamp(min=1e-300)) @ vectors.mT
            agreement[place] += (normalize(back, eps=1e-30) * judges).sum(1).mean()
    return STRENGTHS[int(agreement.argmax())]


def _mean_square(values: Tensor, count: int) -> float:
    return float(values.sum()) / max(1, min(len(values), count))
