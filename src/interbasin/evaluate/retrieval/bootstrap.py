"""How far a mean over queries can be trusted: the queries are drawn again, with replacement, many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError

AT_ONCE = 2**22  # draws that are in memory together


@dataclass(frozen=True)
class Interval:
    """A mean, and between which bounds it lies with the confidence that was asked for."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".3f"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self, "")


class Bootstrap:
    """Means over queries, with percentile intervals. The same draws serve every column, so differences are paired.

    Args:
        count: How many queries there are.
        draws: How often they are drawn again.
        confidence: How often the truth is to lie within.
        seed: Of the draws.

    Raises:
        DataError: if there is no query, or the confidence is no share.

    Example:
        >>> values = np.random.default_rng(0).normal(2.0, 1.0, 400)
        >>> found = Bootstrap(400).interval(values)
        >>> found.low < 2 < found.high and found.high - found.low < 0.25
        True
    """

    def __init__(self, count: int, draws: int = 1000, confidence: float = 0.95, seed: int = 0) -> None:
        if count < 1:
            raise DataError("There is no query to draw again; give at least one.")
        if draws < 1 or not 0 < confidence < 1:
            raise DataError(
                f"Intervals need at least one draw and a confidence between 0 and 1, found {draws} and {confidence}."
            )
        self.count, self.draws, self.seed = count, draws, seed
        self.ends = (50 * (1 - confidence), 50 * (1 + confidence))

    def intervals(self, values: NDArray[Any]) -> list[Interval]:
        """The interval of the mean of each column of ``(queries, columns)``.

        Raises:
            DataError: if a value is not finite: such queries are to be left out before.
        """
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 2 or len(values) != self.count or not np.isfinite(values).all():
            raise DataError(
                f"Intervals are of finite numbers, a row for each of {self.count} queries; found shape {values.shape}."
            )
        generator = np.random.default_rng(self.seed)
        means = np.empty((self.draws, values.shape[1]))
        at_once = max(1, AT_ONCE // self.count)
        for place in range(0, self.draws, at_once):
            size = min(at_once, self.draws - place)
            drawn = generator.integers(self.count, size=(size, self.count))
            drawn += np.arange(size)[:, None] * self.count
            often = np.bincount(drawn.ravel(), minlength=size * self.count).reshape(size, self.count)
            means[place : place + size] = often @ values / self.count
        low, high = np.percentile(means, self.ends, axis=0)
        return [Interval(*map(float, one)) for one in zip(values.mean(0), low, high, strict=True)]

    def interval(self, values: NDArray[Any]) -> Interval:
        """The interval of one mean."""
        return self.intervals(np.asarray(values, dtype=np.float64)[:, None])[0]
