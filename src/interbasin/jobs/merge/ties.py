r"""TIES: trim every update, elect a sign for every number, and average those updates that have it.

The paper [yadav:23] trims an update as a whole and knows no weights. Here each tensor is trimmed by itself, so that a
network need not be in memory, and an update counts with its weight, in the election and in the mean; with equal weights
that is the paper's rule. Of entries that are equally large at the border of the trim the first ones are kept, so that
exactly the asked share is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interbasin.jobs.merge.numbers import Array, Numbers, stretches
from interbasin.jobs.merge.operands import Combine, Operands, Parts, WeightedSum
from interbasin.jobs.merge.recipe import Recipe

__all__ = ["nth_largest", "ties"]

DIGIT = 16  # bits that are counted at a time


def ties(tensor: Operands, recipe: Recipe) -> Combine:
    r""":math:`b + \lambda \tau`, where :math:`\tau` is the mean of the trimmed updates that have the elected sign.

    The sign of a number is that of the sum of the trimmed updates there, plus if it is zero.
    """
    assert tensor.base is not None
    trims = [Trim.of(model, tensor.base, recipe.density, tensor.precision) for model in tensor.models]

    def combine(parts: Parts) -> Array:
        assert parts.base is not None
        updates = [trim(model - parts.base) for trim, model in zip(trims, parts.models, strict=True)]
        found = disjoint_mean(updates, recipe.weights)
        found *= recipe.scale
        found += parts.base
        return found

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

    The bits of floats that are not negative sort as whole numbers do: they are counted sixteen at a time, from the top,
    so that neither a sorted copy is needed nor the sizes as a whole.

    Args:
        sizes: A stretch of them: not negative, and never minus zero.
        length: How many there are.
        count: How many are wanted.

    Example:
        >>> nth_largest(np.float32([3, 1, 2, 2, 2, 0]).__getitem__, 6, 3)
        (2.0, 2)
    """
    left, prefix = max(1, count), 0
    bits = 8 * sizes(slice(0, 1)).itemsize
    unsigned = f"u{bits // 8}"
    for shift in range(bits - DIGIT, -1, -DIGIT):
        counts = np.zeros(1 << DIGIT, np.int64)
        for part in stretches(length):
            found = sizes(part).view(unsigned)
            if shift < bits - DIGIT:
                found = found[found >> (shift + DIGIT) == prefix]
            digits = (found >> shift) & ((1 << DIGIT) - 1)
            counts += np.bincount(digits.astype(np.intp), minlength=1 << DIGIT)
        at_least = np.cumsum(counts[::-1])[::-1]
        digit = int(np.flatnonzero(at_least >= left)[-1])
        left -= int(at_least[digit] - counts[digit])
        prefix = prefix << DIGIT | digit
    return float(np.array(prefix, unsigned).view(f"f{bits // 8}")), left


def _sizes(model: Numbers, base: Numbers, part: slice, precision: type[np.floating[Any]]) -> Array:
    found: Array = model.wide(part, precision) - base.wide(part, precision)
    np.abs(found, out=found)
    return found


@dataclass
class Trim:
    """Keeps the largest entries of an update, stretch by stretch.

    Attributes:
        border: The size of the smallest entry that is kept.
        left: How many of exactly that size may still be kept.
    """

    border: float
    left: int

    @classmethod
    def of(cls, model: Numbers, base: Numbers, density: float, precision: type[np.floating[Any]]) -> Trim:
        """The trim that keeps this share of the entries, one at least."""
        length = model.length
        if density >= 1 or not length:
            return cls(-1.0, 0)  # all of them
        border, left = nth_largest(lambda part: _sizes(model, base, part, precision), length, int(density * length))
        return cls(border, left)

    def __call__(self, update: Array) -> Array:
        """The next stretch of the update, with zeros for what is trimmed; written over what is given."""
        sizes = np.abs(update)
        update *= sizes >= self.border
        at_border = np.flatnonzero(sizes == self.border)
        update[at_border[self.left :]] = 0
        self.left -= min(self.left, len(at_border))
        return update
