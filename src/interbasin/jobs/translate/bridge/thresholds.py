"""Scores on a new scale: old ones brought to new ones, and a threshold that goes on deciding as it did.

These are two questions. What new score to expect where the old one was this, isotonic regression answers. As a
threshold that is wrong: what is expected lies nearer to the mean than what was, so that far more pairs would pass. A
threshold is instead put where as many pairs pass as passed the old one, among all pairs alike and not only near ones;
it is also where precision and recall, with the old decisions taken for right, are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.evaluate.retrieval import METRICS, blocks_of, nearest, prepared, rows_of, similarity

FEWEST = 20  # pairs of scores, and pairs on either side of a threshold that place it well
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
        """The new scores to expect where the old ones are these."""
        found = np.interp(np.asarray(scores, dtype=np.float64), self.old, self.new)
        return float(found) if np.ndim(scores) == 0 else found

    def to_json(self) -> dict[str, Any]:
        return {
            "old": self.old.tolist(),
            "new": self.new.tolist(),
            "pairs": self.pairs,
            "rank_correlation": self.rank_correlation,
        }


def recalibrate(old: Any, new: Any) -> Recalibration:
    """Fit new scores to old ones of the same pairs of query and document, by isotonic regression.

    Args:
        old: Scores as they were.
        new: Scores of the same pairs as they are now.

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

    x, y = _numbers(old), _numbers(new)
    if x.ndim != 1 or x.shape != y.shape:
        raise ShapeError(f"Scores are pairs of old and new, found shapes {x.shape} and {y.shape}; give one for one.")
    if len(x) < FEWEST:
        raise DataError(f"{len(x)} pairs of scores are too few to tell one scale from another; give {FEWEST} at least.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError("Scores hold NaN or infinity; leave those pairs out.")
    if x.min() == x.max() or y.min() == y.max():
        raise DataError("All old scores, or all new ones, are the same: there is no scale to fit.")
    fitted = IsotonicRegression(out_of_bounds="clip").fit(x, y)
    order = float(spearmanr(x, y).statistic)
    return Recalibration(np.asarray(fitted.X_thresholds_), np.asarray(fitted.y_thresholds_), len(x), order)


def _numbers(scores: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"Scores are numbers ({error}); give one for every pair.") from error


def recalibrated(
    old_queries: Any,
    old_documents: Any,
    new_queries: Any,
    new_documents: Any,
    *,
    metric: str = "cosine",
    near: int = 20,
    far: int = 20,
    seed: int = 0,
) -> tuple[Recalibration, NDArray[np.float64], NDArray[np.float64]]:
    """A recalibration from vectors: of every query with its nearest old documents and with some at random.

    Args:
        old_queries, old_documents: As scores were made until now.
        new_queries, new_documents: The same as they are made from now on, one of them or both translated.
        metric: How they are compared.
        near, far: How many documents of each kind a query.
        seed: Of those at random.

    Returns:
        The recalibration, and the old and the new scores it was fitted on.
    """
    old_queries, old_documents, new_queries, new_documents = _of_the_same(
        old_queries, old_documents, new_queries, new_documents
    )
    found = nearest(old_queries, old_documents, min(near, len(old_documents)), metric).rows
    draws = np.random.default_rng(seed)
    others = draws.integers(len(old_documents), size=(len(old_queries), far))
    documents = np.concatenate([found, others], 1)
    queries = np.repeat(np.arange(len(old_queries)), documents.shape[1])
    old = similarity(old_queries[queries], old_documents[documents.ravel()], metric)
    new = similarity(new_queries[queries], new_documents[documents.ravel()], metric)
    return recalibrate(old, new), old, new


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
    def of(cls, threshold: float, scores: NDArray[Any], decided: NDArray[np.bool_]) -> Decisions:
        anew = scores >= threshold
        passing, both = int(np.count_nonzero(anew)), int(np.count_nonzero(anew & decided))
        before = int(np.count_nonzero(decided))
        alike = decided.size - passing - before + 2 * both
        return cls(threshold, passing, alike / decided.size, both / passing if passing else None, both / before)

    def figures(self) -> dict[str, float]:
        """By name, those that there are."""
        found = {"passing": self.passing, "agreement": self.agreement, "precision": self.precision}
        return {name: float(one) for name, one in (found | {"recall": self.recall}).items() if one is not None}


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
        return {
            "threshold_old": self.old,
            "threshold_new": self.new,
            "threshold_pairs": float(self.pairs),
            "threshold_passing_before": float(self.passing),
            **{f"threshold_{name}": one for name, one in self.matched.figures().items()},
            **{f"threshold_unchanged_{name}": one for name, one in self.unchanged.figures().items()},
        }

    def to_json(self) -> dict[str, Any]:
        counts = {"pairs": self.pairs, "passing_before": self.passing}
        return {"old": self.old, "new": self.new, **counts, **self.matched.figures()} | {
            "unchanged": self.unchanged.figures()
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
        old: Scores of pairs of a query and a document as they were. All pairs, or some drawn at random: where near
            ones are drawn more often than they are met, the threshold is theirs.
        new: Scores of the same pairs as they are now; of the same shape.
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
    before, after = _numbers(old), _numbers(new)
    if before.shape != after.shape or before.size == 0:
        raise ShapeError(
            f"Scores are pairs of old and new, found shapes {before.shape} and {after.shape}; give one for one."
        )
    if not np.isfinite(before).all():
        raise DataError("Scores hold NaN or infinity; leave those pairs out.")
    return _matched(before >= threshold, after, float(threshold), (float(before.min()), float(before.max())))


def matched_threshold(
    old_queries: Any,
    old_documents: Any,
    new_queries: Any,
    new_documents: Any,
    threshold: float,
    *,
    metric: str = "cosine",
) -> MatchedThreshold:
    """The same from vectors: of every query with every document.

    Args:
        old_queries, old_documents: As scores were made until now.
        new_queries, new_documents: The same as they are made from now on, one of them or both translated.
        threshold: Of the old scores.
        metric: How they are compared; for ``"l2"`` scores are minus the distance.

    Raises:
        ShapeError: if there are not as many new ones as old ones.
        DataError: if all pairs or none reach the old threshold.
    """
    given = _of_the_same(old_queries, old_documents, new_queries, new_documents)
    before = _scores(given[0], given[1], metric)
    reached, ends = before >= threshold, (float(before.min()), float(before.max()))
    del before  # before the new ones are made: these are the largest arrays here
    return _matched(reached, _scores(given[2], given[3], metric), float(threshold), ends)


def drawn_rows(queries: int, documents: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which queries and documents to score with each other: all, or where these are too many, some at random.

    Example:
        >>> [len(one) for one in drawn_rows(1000, 2000)], [len(one) for one in drawn_rows(1000, 2_000_000)]
        ([1000, 2000], [1000, 16777])
    """
    draws = np.random.default_rng(seed)
    some = min(queries, int(MOST_PAIRS**0.5))
    kept = min(documents, MOST_DOCUMENTS, max(1, MOST_PAIRS // max(1, some)))
    some = min(queries, max(some, MOST_PAIRS // max(1, kept)))  # few documents leave room for more queries
    picked = (
        np.sort(draws.choice(every, count, replace=False)) if count < every else np.arange(every)
        for every, count in ((queries, some), (documents, kept))
    )
    one, other = picked
    return one, other


def _of_the_same(*given: Any) -> tuple[NDArray[Any], ...]:
    found = tuple(np.asarray(one) for one in given)
    old_queries, old_documents, new_queries, new_documents = map(len, found)
    if old_queries != new_queries or old_documents != new_documents:
        raise ShapeError(
            f"There are {old_queries} old and {new_queries} new queries, {old_documents} old and "
            f"{new_documents} new documents; give the same of each."
        )
    return found


def _scores(queries: NDArray[Any], documents: NDArray[Any], metric: str) -> NDArray[np.float64]:
    """Every query with every document, (queries, documents), as `similarity` scores single pairs."""
    if metric not in METRICS:
        raise UnknownNameError.of("metric", metric, METRICS)
    asked = prepared(rows_of(queries, "The queries").double(), metric)
    found = np.empty((len(queries), len(documents)))
    for place, block in blocks_of(documents):
        rows = prepared(rows_of(block, "The documents", first=place).double(), metric)
        if rows.shape[1] != asked.shape[1]:
            raise ShapeError(
                f"The queries have {asked.shape[1]} numbers each and the documents {rows.shape[1]}; both must come "
                "from one model, or be translated to its space."
            )
        made = asked @ rows.mT
        if metric == "l2":
            squares = asked.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * made
            made = -squares.clamp(min=0).sqrt()
        found[:, place : place + len(rows)] = made.numpy()
    return found


def _matched(
    reached: NDArray[np.bool_], after: NDArray[np.float64], threshold: float, ends: tuple[float, float]
) -> MatchedThreshold:
    if not np.isfinite(after).all():
        raise DataError("Scores hold NaN or infinity; leave those pairs out.")
    passing = int(np.count_nonzero(reached))
    if passing in (0, reached.size):
        raise DataError(
            f"{'All' if passing else 'None'} of {reached.size:,} pairs reach the old threshold of {threshold:g} (old "
            f"scores are from {ends[0]:.4g} to {ends[1]:.4g}), so nothing tells where the new one is; check the "
            "threshold and the metric (metric=), or give queries and documents of which some pass and some do not."
        )
    # Half-way between the last that shall pass and the first that shall not.
    below = reached.size - passing
    around = np.partition(after, (below - 1, below), axis=None)[below - 1 : below + 1]
    middle = float(around.mean())
    matched = Decisions.of(middle, after, reached)
    return MatchedThreshold(threshold, matched, Decisions.of(threshold, after, reached), reached.size, passing)
