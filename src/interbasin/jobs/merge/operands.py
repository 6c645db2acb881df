"""One tensor as every network has it: what a method of merging is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from interbasin.jobs.merge.numbers import Array, Numbers, stretches, widened, working_precision

__all__ = ["Combine", "Operands", "Parts", "WeightedSum"]


@dataclass(frozen=True, eq=False)
class Parts:
    """A stretch of a tensor: of every model and, if there is one, of the base; in one precision, not to be changed."""

    models: Sequence[Array]
    base: Array | None = None


# What a method makes of a stretch. They come in order, each once, without those that are the same in all networks.
Combine: TypeAlias = Callable[[Parts], Array]


@dataclass(eq=False)
class Operands:
    """A tensor of every model, and of the base.

    Attributes:
        models: In the order in which the networks were given.
        base: Of the network that they were all made from; None for methods without one.
        remarks: What a method met in this tensor that a user of the result should know; ends a sentence that begins
            with the names of such tensors.
        changed: Whether anything in it differs between the networks, as far as it was merged.
    """

    models: Sequence[Numbers]
    base: Numbers | None = None
    remarks: list[str] = field(default_factory=list)
    changed: bool = False

    @property
    def precision(self) -> type[np.floating[Any]]:
        """The precision to calculate in."""
        given = [*self.models, *([] if self.base is None else [self.base])]
        return working_precision(*(one.kind for one in given))

    def __len__(self) -> int:
        return self.models[0].length

    def parts(self) -> Iterator[Array | Parts]:
        """The tensor, stretch by stretch: as it is stored where it is the same in all networks, else all of them."""
        given = [*self.models, *([] if self.base is None else [self.base])]
        kinds, precision = {one.kind for one in given}, self.precision
        for part in stretches(len(self)):
            stored = [one.take(part) for one in given]
            if len(kinds) == 1 and _all_the_same(stored):
                yield stored[0]
                continue
            wide = [widened(one, numbers.kind, precision) for one, numbers in zip(stored, given, strict=True)]
            yield Parts(wide) if self.base is None else Parts(wide[:-1], wide[-1])


class WeightedSum:
    """The sum of weight times array; in memory that the next sum is written over, as asking for new is what would cost.

    Args:
        weights: One an array.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights
        self.total = self.term = np.empty(0)

    def __call__(self, arrays: Sequence[Array]) -> Array:
        length, dtype = len(arrays[0]), arrays[0].dtype
        if len(self.total) < length:
            self.total, self.term = np.empty(length, dtype), np.empty(length, dtype)
        total, term = self.total[:length], self.term[:length]
        np.multiply(arrays[0], self.weights[0], out=total)
        for array, weight in zip(arrays[1:], self.weights[1:], strict=True):
            np.multiply(array, weight, out=term)
            total += term
        return total


def _all_the_same(stored: Sequence[Array]) -> bool:
    """Whether these are the same bit by bit, so that NaN is the same as itself."""
    first, *others = (one.view(f"u{one.itemsize}") for one in stored)
    # Most differ in their first numbers, and need not be compared whole.
    return all(np.array_equal(one[:16], first[:16]) and np.array_equal(one, first) for one in others)
