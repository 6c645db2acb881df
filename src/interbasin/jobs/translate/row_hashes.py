"""One number for a row, so that rows that are exactly alike are found without comparing all with all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["hashes", "places_of"]


def hashes(rows: Any) -> NDArray[np.uint64]:
    """A 64-bit hash of every row: the same for equal rows of one dtype, and hardly ever for others.

    Example:
        >>> found = hashes(np.array([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]]))
        >>> bool(found[0] == found[2]), bool(found[0] == found[1])
        (True, False)
    """
    with np.errstate(invalid="ignore"):  # NaN is welcome
        values = np.ascontiguousarray(rows)
        values = values + values.dtype.type(0)  # -0 and 0 are the same number
    words = values.view(f"u{values.dtype.itemsize}").astype(np.uint64, copy=False)
    generator = np.random.default_rng(np.random.SeedSequence(0x1B5))
    factors = generator.integers(2**63, size=words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        # The high bits of a product depend on all bits below, so they are folded down before the next step.
        mixed = words * factors
        mixed ^= mixed >> np.uint64(32)
        total: NDArray[np.uint64] = (mixed * factors[::-1]).sum(1, dtype=np.uint64)
        total ^= total >> np.uint64(29)
    return total


def places_of(rows: NDArray[Any], blocks: Iterable[tuple[int, Any]]) -> dict[int, int]:
    """Where some rows stand in a store: number in the store -> number among ``rows``, for exactly equal ones.

    Args:
        rows: What to look for.
        blocks: The store: consecutive rows, each block with the number of its first.
    """
    known = {int(value): place for place, value in enumerate(hashes(rows).tolist())}
    wanted = np.fromiter(known, dtype=np.uint64, count=len(known))
    found: dict[int, int] = {}
    for first, block in blocks:
        array = np.asarray(block)
        if array.dtype != rows.dtype:
            return {}
        here = hashes(array)
        for place in np.flatnonzero(np.isin(here, wanted)).tolist():
            candidate = known[int(here[place])]
            if np.array_equal(array[place], rows[candidate]):
                found[first + place] = candidate
    return found
