r"""Whether two models share one table.

Vectors of one model vary along directions of its own. The covariances :math:`C` of two parts of a table are compared,
without the part that all directions share (:math:`C - \operatorname{tr}(C)/d\, I`), by their correlation, divided by
that of random halves of one part. This likeness is about 1 for random parts of one model, .3 to .6 for halves about
other subjects, .1 to .2 for chapters of a dictionary that is sorted by subject, and 0 to .05 for most models that were
trained apart.

Parts are segments of consecutive rows, as in an index that was filled by one model and then by another; and two
clusters of a sample, for rows that are mixed throughout. The latter is found only where both models hold about half and
lie far apart, and is never more than possible: clusters are chosen to be unlike.

`benchmarks/mixed_tables.py` counts how often that is wrong. It misses models of one family, and two whose dimensions
are both sorted by variance. The limits were chosen on other pieces of the same dictionary and on most of the same
models, so elsewhere both rates may be worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 128  # directions that are looked at; wider vectors are projected at random
MOST, SHORTEST = 64, 128  # segments, and rows in one to begin with
SAMPLE = 4096  # rows that are kept for clusters
SURE, POSSIBLE = 0.08, 0.2  # likeness below which parts are of two models, or may be
TELLING = 0.2  # what random halves must have in common for a likeness to mean anything
FEWEST = 1000  # rows of the smaller part: fewer are often about one subject, and that is a direction too

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """Two models in one table.

    Attributes:
        how: ``"segments"`` or ``"clusters"``.
        likeness: Of the two parts; about 1 for parts of one model.
        segments: First and last row of each segment of the smaller part.
        share: Of the rows, that are in the smaller part.
    """

    how: str
    likeness: float
    segments: tuple[tuple[int, int], ...]
    share: float

    @property
    def sure(self) -> bool:
        """Whether subjects alone do not explain it."""
        return self.how == "segments" and self.likeness < SURE


@dataclass(eq=False)
class _Moments:
    """Of the even rows of a part, and of the odd ones."""

    count: NDArray[np.int64]
    total: Matrix
    square: Matrix

    @classmethod
    def empty(cls, width: int) -> _Moments:
        return cls(np.zeros(2, np.int64), np.zeros((2, width)), np.zeros((2, width, width)))

    def update(self, rows: Matrix) -> None:
        for half in (0, 1):
            own = rows[half::2]
            self.count[half] += len(own)
            self.total[half] += own.sum(0)
            self.square[half] += own.T @ own

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(self.count + other.count, self.total + other.total, self.square + other.square)

    @property
    def rows(self) -> int:
        return int(self.count.sum())

    def shapes(self) -> Matrix:
        """The covariance of each half without what all directions share, of length 1."""
        shapes = np.zeros_like(self.square)
        for half in (0, 1):
            if self.count[half] > 1:
                mean = self.total[half] / self.count[half]
                covariance = self.square[half] / self.count[half] - np.outer(mean, mean)
                shapes[half] = covariance - np.trace(covariance) / len(mean) * np.eye(len(mean))
        lengths = np.linalg.norm(shapes, axis=(1, 2), keepdims=True)
        return np.asarray(shapes / np.maximum(lengths, 1e-300))


def _likeness(parts: list[_Moments]) -> float | None:
    """How alike two parts are, 1 for one model; None if they may well be of one, or too little is known of them."""
    a, b = (part.shapes() for part in parts)
    within = np.sqrt(max(float((a[0] * a[1]).sum()), 0.0) * max(float((b[0] * b[1]).sum()), 0.0))
    between = float(np.mean([(x * y).sum() for x in a for y in b]))
    likeness = float(between / within) if within > 0 else 1.0
    if likeness >= POSSIBLE or within < TELLING or min(part.rows for part in parts) < FEWEST:
        return None
    return likeness


class MixtureDetector:
    """Takes rows as they come, and says at the end whether they are of two models."""

    def __init__(self, width: int, seed: int = 0) -> None:
        self._draws = np.random.default_rng(seed)
        self._turn: Matrix | None = None
        if width > WIDTH:
            self._turn = np.linalg.qr(self._draws.normal(size=(width, WIDTH)))[0]
        self.width = min(width, WIDTH)
        self._size = SHORTEST
        self._parts: list[_Moments] = []
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
        self._add_to_sample(units)
        place = 0
        while place < len(units):
            if not self._parts or self._parts[-1].rows >= self._size:
                self._begin_segment(int(numbers[place]))
            taken = min(len(units) - place, self._size - self._parts[-1].rows)
            self._parts[-1].update(units[place : place + taken])
            place += taken

    def _begin_segment(self, first: int) -> None:
        if len(self._parts) == MOST:
            self._parts = [a + b for a, b in zip(self._parts[::2], self._parts[1::2], strict=True)]
            self._firsts = self._firsts[::2]
            self._size *= 2
        self._parts.append(_Moments.empty(self.width))
        self._firsts.append(first)

    def _add_to_sample(self, units: Matrix) -> None:
        """Every row is kept with the same probability, however many come."""
        places = np.arange(self._seen, self._seen + len(units))
        at = np.where(places < SAMPLE, places, self._draws.integers(0, places + 1))
        kept = at < SAMPLE
        self._sample[at[kept]] = units[kept]
        self._seen += len(units)

    def find(self, rows: int) -> Mixture | None:
        """The two models, if there are; ``rows`` is how many the table has."""
        return self._find_segments(rows) or self._find_clusters()

    def _find_segments(self, rows: int) -> Mixture | None:
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        parts, firsts = list(self._parts), list(self._firsts)
        if len(parts) > 1 and parts[-1].rows < self._size:  # what is left over is too short to judge by itself
            parts[-2:] = [parts[-2] + parts[-1]]
            del firsts[-1]
        if len(parts) < 2:
            return None
        shapes = np.stack([part.shapes().reshape(2, -1) for part in parts], 1)  # (halves, segments, numbers)
        within = np.sqrt(np.maximum((shapes[0] * shapes[1]).sum(1), 1e-12))
        whole = shapes.sum(0)
        distances = np.maximum(0.0, 1 - (whole @ whole.T / 4) / np.outer(within, within))
        np.fill_diagonal(distances, 0)
        groups = fcluster(linkage(squareform(distances), "average"), 2, "maxclust")
        if len(np.unique(groups)) < 2:
            return None
        sides = [reduce(add, (part for part, of in zip(parts, groups, strict=True) if of == side)) for side in (1, 2)]
        likeness = _likeness(sides)
        if likeness is None:
            return None
        smaller = 1 if sides[0].rows <= sides[1].rows else 2
        segments: list[tuple[int, int]] = []
        for first, end, group in zip(firsts, [*firsts[1:], rows], groups, strict=True):
            if group == smaller:
                if segments and segments[-1][1] == first - 1:
                    segments[-1] = (segments[-1][0], end - 1)
                else:
                    segments.append((first, end - 1))
        share = sides[smaller - 1].rows / sum(side.rows for side in sides)
        return Mixture("segments", likeness, tuple(segments), share)

    def _find_clusters(self) -> Mixture | None:
        from sklearn.cluster import KMeans

        sample = self._sample[: min(self._seen, SAMPLE)]
        if len(sample) < 2 * FEWEST:
            return None
        groups = KMeans(2, n_init=3, random_state=0).fit_predict(sample)
        sides = [_Moments.empty(self.width), _Moments.empty(self.width)]
        for group, side in enumerate(sides):
            side.update(sample[groups == group])
        likeness = _likeness(sides)
        if likeness is None:
            return None
        return Mixture("clusters", likeness, (), min(side.rows for side in sides) / len(sample))
