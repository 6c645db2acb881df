"""Floats that are not what an encoder gave: numbers that were rounded to few levels before they were stored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_LEVELS = 300.0  # steps from zero to the largest number, of eight bits with or without a sign
NEAR = 0.02  # of a step
FEWEST_NUMBERS = 16  # in a row, so that chance does not put all of them on a grid
MOST_ROWS = 0.95


def storage_of(rows: NDArray[np.float64]) -> str | None:
    """What rows were stored as before, by their looks: binary, int8, float16, bfloat16; None if there is no sign of it.

    Args:
        rows: Some finite rows, none of them zero, in double precision.
    """
    if len(rows) == 0 or rows.shape[1] < FEWEST_NUMBERS:
        return None
    levels = np.unique(rows[: min(len(rows), 64)])
    if len(levels) <= 2 and len(np.unique(rows)) <= 2:
        return "binary"
    if np.mean([_step(row) is not None for row in rows]) >= MOST_ROWS:
        return "int8"
    with np.errstate(over="ignore"):
        if np.array_equal(rows.astype(np.float16).astype(np.float64), rows):
            return "float16"
    single = rows.astype(np.float32)
    if np.array_equal(single.astype(np.float64), rows) and not (single.view(np.uint32) & np.uint32(0xFFFF)).any():
        return "bfloat16"
    return None


def largest_step(rows: NDArray[np.float64]) -> float:
    """The largest step of which the numbers of a row are multiples; 0 if there is none."""
    return max((step for row in rows if (step := _step(row)) is not None), default=0.0)


def _step(row: NDArray[np.float64]) -> float | None:
    """The step of which all numbers of a row are multiples, with few steps to the largest."""
    largest = float(np.abs(row).max())
    sizes = np.unique(np.abs(row))
    gaps = np.diff(sizes)
    gaps = gaps[gaps > 1e-5 * largest]  # of what is only rounded
    if len(gaps) == 0:
        return None
    step = float(gaps.min())
    if largest / step > MOST_LEVELS:
        return None
    # The smallest gap carries two roundings; over all levels the step is known better.
    step = largest / max(1.0, round(largest / step))
    places = row / step
    return step if np.abs(places - np.round(places)).max() < NEAR else None
