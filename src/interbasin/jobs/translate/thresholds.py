"""Scores on a new scale: old scores mapped to new ones, and a threshold that goes on deciding as it did.

These are two questions. Isotonic regression tells which new score to expect for an old one. As a threshold that is
wrong: the expectation lies nearer to the mean, so far more pairs would pass. The new threshold is instead where as many
of all pairs pass as passed the old one; there precision and recall, by the old decisions, are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.checks import require_choice
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.retrieval import METRICS, blocks_of, nearest, prepared, rows_of, similarity

FEWEST = 20  # pairs of scores, and pairs on either side of a threshold that place it well
NEAR, RANDOM = 20, 20  # documents that a query is scored with: its nearest, and others
MOST_DOCUMENTS = 50_000  # of the index, for scores
MOST_PAIRS = 2**24  # of queries with documents, whose scores are held at once


@dataclass(frozen=True, eq=False)
class Recalibration:
    """From old scores to new ones: never falling, a straight line between its points, and level beyond them.

    Attributes:
        old, new: The points.
        pairs: How many pairs of scores it was fitted on.
        rank_correlation: Of these (Spearman): 1 if the new scores have the order of the old ones.
    """

    old: NDArray[np.float64]
    new: NDArray[np.float64]
    pairs: int
    rank_correlation: float

    def __call__(self, scores: Any) -> Any:
        """The new scores to expect for these old ones."""
        expected = np.interp(np.asarray(scores, dtype=np.float64), self.old, self.new)
        return float(expected) if np.ndim(scores) == 0 else expected


def recalibrate(old: Any, new: Any) -> Recalibration:
    """Fit new scores to old ones of the same pairs of query and document, by isotonic regression.

    Args:
        old: The old scores.
        new: The new scores of the same pairs.

    Raises:
        ShapeError: if they are not as many.
        DataError: if they are too few, not finite, or the old ones all the same.

    Example:
        >>> old = np.linspace(0, 1, 50)
        >>> float(np.round(recalibrate(old, 0.5 * old + 0.3)(0.6), 3))
        0.6
    """
    from scipy.stats import spearmanr
    from sklearn.isotonic import IsotonicRegression

    x, y = _paired_scores(old, new)
    if x.ndim != 1:
        raise ShapeError(f"Scores are two lists of numbers, old and new, found shapes {x.shape} and {y.shape}.")
    if len(x) < FEWEST:
        raise DataError(f"{len(x)} pairs of scores are too few to tell one scale from another; give {FEWEST} at least.")
    _require_finite(x, y)
    if x.min() == x.max() or y.min() == y.max():
        raise DataError("All old scores, or all new ones, are the same: there is no scale to fit.")
    fitted = IsotonicRegression(out_of_bounds="clip").fit(x, y)
    correlation = float(spearmanr(x, y).statistic)
    return Recalibration(np.asarray(fitted.X_thresholds_), np.asarray(fitted.y_thresholds_), len(x), correlation)


@dataclass(frozen=True)
class Decisions:
    """What a threshold of new scores decides, beside what the old one decided of the same pairs.

    Attributes:
        threshold: Of new scores.
        passing: How many pairs reach it.
        agreement: The share of pairs that both decide alike.
        precision: The share of those that pass that passed before; None if none pass.
        recall: The share of those that passed before that still do.
    """

    threshold: float
    passing: int
    agreement: float
    precision: float | None
    recall: float

    @classmethod
    def of(cls, threshold: float, scores: NDArray[Any], passed_before: NDArray[np.bool_]) -> Decisions:
        passes = scores >= threshold
        passing, before = int(np.count_nonzero(passes)), int(np.count_nonzero(passed_before))
        both = int(np.count_nonzero(passes & passed_before))
        alike = passes.size - passing - before + 2 * both
        return cls(threshold, passing, alike / passes.size, both / passing if passing else None, both / before)

    def figures(self) -> dict[str, float]:
        """By name, those that there are."""
        return {name: float(value) for name, value in vars(self).items() if name != "threshold" and value is not None}


@dataclass(frozen=True)
class MatchedThreshold:
    """A threshold of old scores and the one of new scores that takes its place.

    Attributes:
        old: The old threshold.
        matched: The new one, which as many pairs reach, and what it decides.
        unchanged: What the old one would decide of new scores.
        pairs: How many pairs of a query and a document there were.
        passing: How many reached the old threshold by their old scores.
    """

    old: float
    matched: Decisions
    unchanged: Decisions
    pairs: int
    passing: int

    @property
    def new(self) -> float:
        return self.matched.threshold

    def metrics(self) -> dict[str, float]:
        """All figures by name, as an outcome has them."""
        document = self.to_json()
        unchanged = {f"unchanged_{name}": value for name, value in document.pop("unchanged").items()}
        return {f"threshold_{name}": float(value) for name, value in (document | unchanged).items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "old": self.old,
            "new": self.new,
            "pairs": self.pairs,
            "passing_before": self.passing,
            **self.matched.figures(),
            "unchanged": self.unchanged.figures(),
        }

    def notes(self) -> list[str]:
        """What a reader of the threshold should know."""
        if FEWEST <= self.passing <= self.pairs - FEWEST:
            return []
        return [
            f"{self.passing:,} of {self.pairs:,} pairs reach the old threshold, too few on one side of it to place the "
            "new one well; give more queries, or documents that are nearer to them."
        ]


def match_threshold(old: Any, new: Any, threshold: float) -> MatchedThreshold:
    """The threshold of new scores that as many pairs reach as reached the old one.

    Args:
        old: Old scores of pairs of a query and a document. All pairs, or some drawn at random: where near ones are
            drawn more often, the threshold is theirs.
        new: New scores of the same pairs; of the same shape.
        threshold: Of the old scores; what reaches it passes.

    Raises:
        ShapeError: if there is not one new score for every old one.
        DataError: if they hold NaN or infinity, or all pairs or none reach the old threshold.

    Example:
        >>> old = np.linspace(0, 1, 101)
        >>> found = match_threshold(old, 0.5 * old + 0.3, 0.8)
        >>> round(found.new, 3), found.passing, found.matched.passing, found.unchanged.passing
        (0.698, 21, 21, 1)
    """
    before, after = _paired_scores(old, new)
    _require_finite(before)
    return _match(before >= threshold, after, float(threshold), (float(before.min()), float(before.max())))


class VectorScores:
    """Scores of queries with documents, from their vectors.

    Args:
        old_queries, old_documents: The vectors of old scores.
        new_queries, new_documents: The same items in new scores, one of them or both translated.
        metric: How they are compared; for ``"l2"`` scores are minus the distance.
    """

    def __init__(
        self, old_queries: Any, old_documents: Any, new_queries: Any, new_documents: Any, metric: str = "cosine"
    ) -> None:
        self.metric = require_choice("metric", metric, METRICS)
        self.old = np.asarray(old_queries), np.asarray(old_documents)
        self.new = np.asarray(new_queries), np.asarray(new_documents)
        (old_queries, old_documents), (new_queries, new_documents) = map(len, self.old), map(len, self.new)
        if old_queries != new_queries or old_documents != new_documents:
            raise ShapeError(
                f"There are {old_queries} old and {new_queries} new queries, {old_documents} old and "
                f"{new_documents} new documents; give the same of each."
            )

    def draw(self, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Old and new scores of every query with its nearest old documents and with random ones, for `recalibrate`."""
        queries, documents = self.old
        close = nearest(queries, documents, min(NEAR, len(documents)), self.metric).rows
        others = np.random.default_rng(seed).integers(len(documents), size=(len(queries), RANDOM))
        columns = np.concatenate([close, others], 1)
        rows = np.repeat(np.arange(len(queries)), columns.shape[1])
        old, new = (
            similarity(queries[rows], documents[columns.ravel()], self.metric)
            for queries, documents in (self.old, self.new)
        )
        return old, new

    def match_threshold(self, threshold: float) -> MatchedThreshold:
        """`match_threshold` by scores of every query with every document."""
        before = self._score_all(*self.old)
        passed, ends = before >= threshold, (float(before.min()), float(before.max()))
        del before  # before the new ones are made: these are the largest arrays here
        return _match(passed, self._score_all(*self.new), float(threshold), ends)

    def _score_all(self, queries: NDArray[Any], documents: NDArray[Any]) -> NDArray[np.float64]:
        """Every query with every document, (queries, documents), as `similarity` scores single pairs."""
        query_rows = prepared(rows_of(queries, "The queries").double(), self.metric)
        scores = np.empty((len(queries), len(documents)))
        for place, block in blocks_of(documents):
            rows = prepared(rows_of(block, "The documents", first=place).double(), self.metric)
            if rows.shape[1] != query_rows.shape[1]:
                widths = f"{query_rows.shape[1]} numbers each and the documents {rows.shape[1]}"
                raise ShapeError(f"The queries have {widths}; translate one of them to the space of the other.")
            products = query_rows @ rows.mT
            if self.metric == "l2":
                squares = query_rows.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * products
                products = -squares.clamp(min=0).sqrt()
            scores[:, place : place + len(rows)] = products.numpy()
        return scores


def draw_rows(queries: int, documents: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which queries and documents to score with each other: all, or where these are too many, some at random.

    Example:
        >>> [len(rows) for rows in draw_rows(1000, 2000)], [len(rows) for rows in draw_rows(1000, 2_000_000)]
        ([1000, 2000], [1000, 16777])
    """
    draws = np.random.default_rng(seed)

    def draw(count: int, every: int) -> NDArray[np.int64]:
        return np.sort(draws.choice(every, count, replace=False)) if count < every else np.arange(every)

    some = min(queries, int(MOST_PAIRS**0.5))
    kept = min(documents, MOST_DOCUMENTS, max(1, MOST_PAIRS // max(1, some)))
    some = min(queries, max(some, MOST_PAIRS // max(1, kept)))  # few documents leave room for more queries
    return draw(some, queries), draw(kept, documents)


def _paired_scores(old: Any, new: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    try:
        before, after = np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"Scores are numbers ({error}); give one for every pair.") from error
    if before.shape != after.shape or before.size == 0:
        raise ShapeError(f"Give one new score for every old one, found shapes {after.shape} and {before.shape}.")
    return before, after


def _require_finite(*scores: NDArray[np.float64]) -> None:
    if not all(np.isfinite(values).all() for values in scores):
        raise DataError("Scores hold NaN or infinity; leave those pairs out.")


def _match(
    passed: NDArray[np.bool_], after: NDArray[np.float64], threshold: float, ends: tuple[float, float]
) -> MatchedThreshold:
    _require_finite(after)
    passing = int(np.count_nonzero(passed))
    if passing in (0, passed.size):
        raise DataError(
            f"{'All' if passing else 'None'} of {passed.size:,} pairs reach the old threshold of {threshold:g} (old "
            f"scores are from {ends[0]:.4g} to {ends[1]:.4g}); check the threshold and the metric (metric=)."
        )
    # Half-way between the last that shall pass and the first that shall not.
    below = passed.size - passing
    around = np.partition(after, (below - 1, below), axis=None)[below - 1 : below + 1]
    matched = Decisions.of(float(around.mean()), after, passed)
    return MatchedThreshold(threshold, matched, Decisions.of(threshold, after, passed), passed.size, passing)
