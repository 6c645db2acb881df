r"""TIES: trim every update, elect a sign for each number, and average those updates that have it.

The paper [yadav:23] trims an update as a whole and knows no weights. Here each tensor is trimmed by itself, so that a
network need not be in memory, and an update counts with its weight, in the election and in the mean; with equal weights
that is the paper's rule. Of entries that are equally large at the border of the trim the first ones are kept, so that
exactly the asked share is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from interbasin.jobs.merge.kernel import Array, Chunk, Combine, Operand, Operands, Precision, WeightedSum, slices

FEW = 1 << 20  # numbers that are collected without a thought
BLOCKS, BLOCK = 512, 256  # a sample is so many runs of so many numbers
EVERYTHING = (-1.0, math.inf)
KEEP_ALL = (-1.0, 0)


def ties(tensor: Operands, *, weights: Sequence[float], density: float, scale: float) -> Combine:
    r""":math:`b + \lambda \tau`, where :math:`\tau` is the mean of the trimmed updates that have the elected sign.

    The sign of a number is that of the sum of the trimmed updates there, plus if it is zero.
    """
    assert tensor.base is not None
    trims = [Trim.of(model, tensor.base, density, tensor.precision) for model in tensor.models]

    def combine(chunk: Chunk) -> Array:
        updates = [trim(update) for trim, update in zip(trims, chunk.updates(), strict=True)]
        merged = disjoint_mean(updates, weights)
        merged *= scale
        merged += chunk.base
        return merged

    return combine


def disjoint_mean(updates: Sequence[Array], weights: Sequence[float]) -> Array:
    """The weighted mean of the updates that have the sign of the weighted sum; zero where there are none."""
    total = WeightedSum(weights)(updates)
    elected = np.where(total >= 0, total.dtype.type(1), total.dtype.type(-1))
    total[:] = 0
    share = np.zeros_like(total)
    for update, weight in zip(updates, weights, strict=True):
        agreeing = np.maximum(update * elected, 0)
        share += (agreeing > 0) * total.dtype.type(weight)
        agreeing *= weight
        total += agreeing
    # Where nothing was kept, or all that was has no weight, the total is zero as well.
    share[share == 0] = 1
    total /= share
    total *= elected
    return total


def nth_largest(sizes: Callable[[slice], Array], length: int, count: int) -> tuple[float, int]:
    """The ``count``-th largest of many sizes (the first, if that is zero), and how many as large are among so many.

    A sample tells between which two sizes it must lie; then those between are collected, which are few, and the others
    counted. Should the sample have been misleading, all are collected.

    Args:
        sizes: A slice of them, none negative.
        length: How many there are.
        count: How many are wanted.

    Example:
        >>> nth_largest(np.float32([3, 1, 2, 2, 2, 0]).__getitem__, 6, 3)
        (2.0, 2)
    """
    wanted = max(1, count)
    for low, high in (_bracket(sizes, length, wanted), EVERYTHING):
        border = _within(sizes, length, wanted, low, high)
        if border is not None:
            return border
    return KEEP_ALL  # there is NaN among them, which will be found in the result


def _bracket(sizes: Callable[[slice], Array], length: int, wanted: int) -> tuple[float, float]:
    """Two sizes between which the wanted one lies, very likely."""
    if length <= FEW:
        return EVERYTHING
    starts = range(0, length - BLOCK, length // BLOCKS)
    sample = np.sort(np.concatenate([sizes(slice(start, start + BLOCK)) for start in starts]))[::-1]
    share = wanted / length
    # Eight times the error of a random sample: neighbours in a tensor are somewhat alike.
    slack = 8 * math.sqrt(len(sample) * share * (1 - share)) + 64
    above, below = int(share * len(sample) - slack), int(share * len(sample) + slack)
    return (
        float(sample[below]) if below < len(sample) else EVERYTHING[0],
        float(sample[above]) if above >= 0 else EVERYTHING[1],
    )


def _within(
    sizes: Callable[[slice], Array], length: int, wanted: int, low: float, high: float
) -> tuple[float, int] | None:
    """The same, if it lies from ``low`` to ``high``."""
    above = 0
    inside: list[Array] = []
    for part in slices(length):
        values = sizes(part)
        larger = values > high
        above += int(np.count_nonzero(larger))
        larger ^= values > low
        inside.append(values[np.flatnonzero(larger)])
    between = np.concatenate(inside)
    wanted -= above
    if wanted <= 0:
        return None
    place = len(between) - wanted
    if place >= 0:
        between.partition(place)
        border = between[place]
        return float(border), wanted - int(np.count_nonzero(between[place:] > border))
    # All that are larger than low are wanted; of those as large as it, which may be most of them (zero), some.
    wanted -= len(between)
    as_large = sum(int(np.count_nonzero(sizes(part) == low)) for part in slices(length))
    return (low, wanted) if wanted <= as_large else None


def _sizes(model: Operand, base: Operand, part: slice, precision: Precision) -> Array:
    update: Array = model.wide(part, precision) - base.wide(part, precision)
    np.abs(update, out=update)
    return update


@dataclass
class Trim:
    """Keeps the largest entries of an update, chunk by chunk.

    Attributes:
        border: The size of the smallest entry that is kept.
        spare: How many of exactly that size may still be kept.
    """

    border: float
    spare: int

    @classmethod
    def of(cls, model: Operand, base: Operand, density: float, precision: Precision) -> Trim:
        """The trim that keeps this share of the entries, one at least."""
        length = model.length
        if density >= 1 or not length:
            return cls(*KEEP_ALL)
        return cls(*nth_largest(lambda part: _sizes(model, base, part, precision), length, int(density * length)))

    def __call__(self, update: Array) -> Array:
        """The next chunk of the update, with zeros for what is trimmed; written over what is given."""
        sizes = np.abs(update)
        update *= sizes >= self.border
        at_border = np.flatnonzero(sizes == self.border)
        update[at_border[self.spare :]] = 0
        self.spare -= min(self.spare, len(at_border))
        return update
