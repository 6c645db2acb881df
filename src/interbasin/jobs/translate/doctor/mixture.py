r"""Whether two models share one table.

Vectors of one model vary along directions of its own. Of two parts of a table the covariances :math:`C` are compared,
without the part that all directions share (:math:`C - \operatorname{tr}(C)/d\, I`), by their correlation; what random
halves of one part have in common says how much of that is noise and is divided out. It is about 1 for parts of one
model at random, .3 to .6 for halves about other subjects, .1 to .2 for chapters of a dictionary that is sorted by
subject, and 0 to .05 for most models that were trained apart. (Models of one family, or whose dimensions are sorted by
variance, are alike by this measure and are not told apart.)

Parts are stretches of consecutive rows, as an index has them that was filled by one model and then by another; and two
clusters of a sample of rows, for rows that are mixed throughout. The latter is found only where both models hold about
half and lie far apart, and is never more than possible: clusters are chosen to be unlike.

How often that is wrong, `benchmarks/mixed_tables.py` counts. What it misses are models of one family, and two whose
dimensions are both sorted by variance. The limits were chosen on other pieces of the same dictionary and on most of the
same models, so elsewhere both rates may be worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 128  # directions that are looked at; wider vectors are projected at random
MOST, SHORTEST = 64, 128  # stretches, and rows in one to begin with
SAMPLE = 4096  # rows that are kept for clusters
SURE, POSSIBLE = 0.08, 0.2  # likeness below which parts are of two models, or may be
TELLING = 0.2  # what random halves must have in common for a likeness to mean anything
FEWEST = 1000  # rows of the smaller part: fewer are often about one subject, and that is a direction too

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """Two models in one table.

    Attributes:
        how: ``"stretches"`` or ``"clusters"``.
        likeness: Of the two parts; about 1 for parts of one model.
        stretches: First and last row of each stretch of the smaller part.
        share: Of the rows, that are in the smaller part.
    """

    how: str
    likeness: float
    stretches: tuple[tuple[int, int], ...]
    share: float

    @property
    def sure(self) -> bool:
        """Whether subjects alone do not explain it."""
        return self.how == "stretches" and self.likeness < SURE


@dataclass(eq=False)
class _Sums:
    """Moments of every other row of a stretch, and of those between."""

    count: NDArray[np.int64]
    total: Matrix
    square: Matrix

    @classmethod
    def empty(cls, width: int) -> _Sums:
        return cls(np.zeros(2, np.int64), np.zeros((2, width)), np.zeros((2, width, width)))

    def add(self, rows: Matrix) -> None:
        for half in (0, 1):
            own = rows[half::2]
            self.count[half] += len(own)
            self.total[half] += own.sum(0)
            self.square[half] += own.T @ own

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.count + other.count, self.total + other.total, self.square + other.square)

    @property
    def rows(self) -> int:
        return int(self.count.sum())

    def shapes(self) -> Matrix:
        """The covariance of each half without what all directions share, of length 1."""
        found = np.zeros_like(self.square)
        for half in (0, 1):
            if self.count[half] > 1:
                mean = self.total[half] / self.count[half]
                covariance = self.square[half] / self.count[half] - np.outer(mean, mean)
                found[half] = covariance - np.trace(covariance) / len(mean) * np.eye(len(mean))
        lengths = np.linalg.norm(found, axis=(1, 2), keepdims=True)
        return np.asarray(found / np.maximum(lengths, 1e-300))


def likeness(one: _Sums, other: _Sums) -> tuple[float, float]:
    """How alike two parts are, 1 for one model; and what random halves of a part have in common, which it rests on."""
    a, b = one.shapes(), other.shapes()
    within = np.sqrt(max(float((a[0] * a[1]).sum()), 0.0) * max(float((b[0] * b[1]).sum()), 0.0))
    between = float(np.mean([(x * y).sum() for x in a for y in b]))
    return (between / within if within > 0 else 1.0), float(within)


class Stretches:
    """Takes rows as they come, and says at the end whether they are of two models.

    Args:
        width: Of the rows.
        seed: Of the directions and the sample.
    """

    def __init__(self, width: int, seed: int = 0) -> None:
        self._draws = np.random.default_rng(seed)
        self._turn: Matrix | None = None
        if width > WIDTH:
            self._turn = np.linalg.qr(self._draws.normal(size=(width, WIDTH)))[0]
        self.width = min(width, WIDTH)
        self._size = SHORTEST
        self._parts: list[_Sums] = []
        self._firsts: list[int] = []
        self._sample = np.empty((SAMPLE, self.width))
        self._seen = 0

    def update(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        """The rows that come next, finite and not zero, and where they stand in the table."""
        # In float64: squares of float32 vanish below 1e-19 and overflow from 1e19 on.
        lengths = np.linalg.norm(rows.astype(np.float64, copy=False), axis=1, keepdims=True)
        units = (rows / lengths).astype(rows.dtype, copy=False)
        if self._turn is not None:
            units = units @ self._turn
        units = units.astype(np.float64)
        self._keep_some(units)
        place = 0
        while place < len(units):
            if not self._parts or self._parts[-1].rows >= self._size:
                self._begin(int(numbers[place]))
            taken = min(len(units) - place, self._size - self._parts[-1].rows)
            self._parts[-1].add(units[place : place + taken])
            place += taken

    def _begin(self, first: int) -> None:
        if len(self._parts) == MOST:
            self._parts = [a + b for a, b in zip(self._parts[::2], self._parts[1::2], strict=True)]
            self._firsts = self._firsts[::2]
            self._size *= 2
        self._parts.append(_Sums.empty(self.width))
        self._firsts.append(first)

    def _keep_some(self, units: Matrix) -> None:
        """Every row is kept with the same probability, however many come."""
        places = np.arange(self._seen, self._seen + len(units))
        at = np.where(places < SAMPLE, places, self._draws.integers(0, places + 1))
        kept = at < SAMPLE
        self._sample[at[kept]] = units[kept]
        self._seen += len(units)

    def found(self, rows: int) -> Mixture | None:
        """The two models, if there are; ``rows`` is how many the table has."""
        return self._by_stretches(rows) or self._by_clusters()

    def _by_stretches(self, rows: int) -> Mixture | None:
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        parts, firsts = list(self._parts), list(self._firsts)
        if len(parts) > 1 and parts[-1].rows < self._size:  # what is left over is too short to judge by itself
            parts[-2:] = [parts[-2] + parts[-1]]
            del firsts[-1]
        if len(parts) < 2:
            return None
        shapes = np.stack([part.shapes().reshape(2, -1) for part in parts], 1)  # (halves, stretches, numbers)
        within = np.sqrt(np.maximum((shapes[0] * shapes[1]).sum(1), 1e-12))
        whole = shapes.sum(0)
        distances = np.maximum(0.0, 1 - (whole @ whole.T / 4) / np.outer(within, within))
        np.fill_diagonal(distances, 0)
        groups = fcluster(linkage(squareform(distances), "average"), 2, "maxclust")
        if len(np.unique(groups)) < 2:
            return None
        sides = [_together([part for part, of in zip(parts, groups, strict=True) if of == group]) for group in (1, 2)]
        alike, telling = likeness(*sides)
        if alike >= POSSIBLE or telling < TELLING or min(side.rows for side in sides) < FEWEST:
            return None
        smaller = 1 if sides[0].rows <= sides[1].rows else 2
        ends = [*firsts[1:], rows]
        runs: list[tuple[int, int]] = []
        for first, end, group in zip(firsts, ends, groups, strict=True):
            if group == smaller:
                if runs and runs[-1][1] == first - 1:
                    runs[-1] = (runs[-1][0], end - 1)
                else:
                    runs.append((first, end - 1))
        share = sides[smaller - 1].rows / sum(side.rows for side in sides)
        return Mixture("stretches", float(alike), tuple(runs), share)

    def _by_clusters(self) -> Mixture | None:
        from sklearn.cluster import KMeans

        sample = self._sample[: min(self._seen, SAMPLE)]
        if len(sample) < 2 * FEWEST:
            return None
        groups = KMeans(2, n_init=3, random_state=0).fit_predict(sample)
        sides = []
        for group in (0, 1):
            side = _Sums.empty(self.width)
            side.add(sample[groups == group])
            sides.append(side)
        smaller = min(side.rows for side in sides)
        alike, telling = likeness(*sides)
        if smaller < FEWEST or alike >= POSSIBLE or telling < TELLING:
            return None
        return Mixture("clusters", float(alike), (), smaller / len(sample))


def _together(parts: list[_Sums]) -> _Sums:
    found = parts[0]
    for one in parts[1:]:
        found = found + one
    return found
