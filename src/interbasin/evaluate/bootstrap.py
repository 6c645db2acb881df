"""How far a mean over queries can be trusted: the queries are drawn again, with replacement, many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.checks import require_finite, require_whole
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
        DataError: if there is no query or no draw, or the confidence is not between 0 and 1.

    Example:
        >>> values = np.random.default_rng(0).normal(2.0, 1.0, 400)
        >>> interval = Bootstrap(400).interval(values)
        >>> interval.low < 2 < interval.high and interval.high - interval.low < 0.25
        True
    """

    def __init__(self, count: int, draws: int = 1000, confidence: float = 0.95, seed: int = 0) -> None:
        self.count = require_whole("The query count", count, least=1)
        self.draws = require_whole("draws", draws, least=1, most=10**9)
        self.seed = require_whole("seed", seed, least=0)
        confidence = require_finite("confidence", confidence, above=0, below=1)
        self.ends = (50 * (1 - confidence), 50 * (1 + confidence))

    def intervals(self, values: NDArray[Any]) -> list[Interval]:
        """The interval of the mean of each column of ``(queries, columns)``.

        Raises:
            DataError: if a value is not finite: such queries are to be left out before.
        """
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 2 or len(values) != self.count or not np.isfinite(values).all():
            raise DataError(
                f"Intervals are of finite numbers, one row for each of {self.count} queries; got shape {values.shape}."
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
        return [Interval(*map(float, ends)) for ends in zip(values.mean(0), low, high, strict=True)]

    def interval(self, values: NDArray[Any]) -> Interval:
        """The interval of one mean."""
        return self.intervals(np.asarray(values, dtype=np.float64)[:, None])[0]
