"""Scores on a new scale: a threshold that an application has for old scores, carried over to new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.retrieval import nearest, similarity

__all__ = ["Recalibration", "recalibrate", "recalibrated"]

FEWEST = 20  # pairs of scores


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

    def agreement(self, old: Any, new: Any, threshold: float) -> float:
        """The share of pairs of scores on which the old threshold and the new one decide alike."""
        decided, anew = np.asarray(old) >= threshold, np.asarray(new) >= self(threshold)
        return float(np.mean(decided == anew))

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

    x, y = (np.asarray(one, dtype=np.float64) for one in (old, new))
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
    old_queries, old_documents, new_queries, new_documents = (
        np.asarray(one) for one in (old_queries, old_documents, new_queries, new_documents)
    )
    if len(old_queries) != len(new_queries) or len(old_documents) != len(new_documents):
        raise ShapeError(
            f"There are {len(old_queries)} old and {len(new_queries)} new queries, {len(old_documents)} old and "
            f"{len(new_documents)} new documents; give the same of each."
        )
    found = nearest(old_queries, old_documents, min(near, len(old_documents)), metric).rows
    draws = np.random.default_rng(seed)
    others = draws.integers(len(old_documents), size=(len(old_queries), far))
    documents = np.concatenate([found, others], 1)
    queries = np.repeat(np.arange(len(old_queries)), documents.shape[1])
    old = similarity(old_queries[queries], old_documents[documents.ravel()], metric)
    new = similarity(new_queries[queries], new_documents[documents.ravel()], metric)
    return recalibrate(old, new), old, new
