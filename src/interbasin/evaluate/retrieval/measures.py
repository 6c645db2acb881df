"""A number a query: how much of what it should find it found, by labels or by the word of another search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Labels:
    """Which documents are right for which query.

    Attributes:
        relevant: For every query the rows of its documents, each once and in order; none where nobody said.
        documents: How many documents there are.
    """

    relevant: tuple[NDArray[np.int64], ...]
    documents: int

    @classmethod
    def of(cls, given: Any, queries: int, documents: int) -> Labels:
        """Labels from what a user gave.

        Args:
            given: For every query a row, or several; or a mapping from the number of a query to such.
            queries: How many queries there are.
            documents: How many documents there are.

        Raises:
            DataError: if they name a query or a document that is not there, or nothing at all.
        """
        if isinstance(given, Labels):
            return given
        if isinstance(given, Mapping):
            stray = [key for key in given if not isinstance(key, int | np.integer) or not 0 <= key < queries]
            if stray:
                raise DataError(
                    f"Labels name the query {stray[0]!r}, and there are queries 0 to {queries - 1}; number them as "
                    "they stand among the queries."
                )
            given = [given.get(place, ()) for place in range(queries)]
        entries: Sequence[Any] = list(given)
        if len(entries) != queries:
            raise DataError(
                f"There are {queries} queries and {len(entries)} entries of labels; give one a query, or a mapping of "
                "the queries that have some."
            )
        relevant = tuple(_rows(entry, place, documents) for place, entry in enumerate(entries))
        if not any(map(len, relevant)):
            raise DataError("No query has a label; give the documents that are right for at least some of them.")
        return cls(relevant, documents)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which queries have labels."""
        return np.array([len(one) > 0 for one in self.relevant])

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.array([len(one) for one in self.relevant])

    def hits(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For every place of a ranking, whether a right document stands there."""
        if len(rows) != len(self.relevant):
            raise ShapeError(f"There are labels for {len(self.relevant)} queries and a ranking of {len(rows)}.")
        # A query and a row are one number, so that all are looked up at once.
        wanted = np.concatenate([one + place * (self.documents + 1) for place, one in enumerate(self.relevant)])
        found = rows + np.arange(len(rows))[:, None] * (self.documents + 1)
        return np.isin(np.where(rows < 0, -1, found), wanted)


def _rows(entry: Any, query: int, documents: int) -> NDArray[np.int64]:
    rows = list(entry) if isinstance(entry, Iterable) else [entry]
    for row in rows:
        if not isinstance(row, int | np.integer) or isinstance(row, bool) or not 0 <= row < documents:
            raise DataError(
                f"The labels of query {query} name the document {row!r}, and there are documents 0 to {documents - 1}; "
                "number them as they stand in the index."
            )
    return np.unique(np.asarray(rows, dtype=np.int64))


def recall(rows: NDArray[np.int64], labels: Labels, k: int) -> Numbers:
    """Of the right documents of each query, the share among its first k; NaN without labels.

    Example:
        >>> recall(np.array([[4, 2, 0]]), Labels.of([[0, 4]], 1, 5), k=2).tolist()
        [0.5]
    """
    return _divided(labels.hits(rows[:, :k]).sum(1), labels.counts)


def reciprocal_rank(rows: NDArray[np.int64], labels: Labels, k: int) -> Numbers:
    """One over the place of the first right document, 0 if it is not among the first k; NaN without labels."""
    hits = labels.hits(rows[:, :k])
    found = np.where(hits.any(1), 1 / (1 + hits.argmax(1)), 0.0)
    return np.where(labels.known, found, np.nan)


def ndcg(rows: NDArray[np.int64], labels: Labels, k: int) -> Numbers:
    """Gains of right documents discounted by the logarithm of their places, over the most there could be."""
    gains = 1 / np.log2(np.arange(2, k + 2))
    most = np.concatenate(([0.0], np.cumsum(gains)))[np.minimum(labels.counts, k)]
    hits = labels.hits(rows[:, :k])
    return _divided(hits @ gains[: hits.shape[1]], most)


def overlap(rows: NDArray[np.int64], reference: NDArray[np.int64], k: int) -> Numbers:
    """Of the first k of another search, the share among the first k of this one.

    Example:
        >>> overlap(np.array([[4, 2, 0]]), np.array([[2, 4, 1]]), k=3).round(2).tolist()
        [0.67]
    """
    if len(rows) != len(reference):
        raise ShapeError(f"Rankings of {len(rows)} and of {len(reference)} queries cannot be compared.")
    found, wanted = rows[:, :k], reference[:, :k]
    shared = (found[:, :, None] == wanted[:, None, :]) & (wanted[:, None, :] >= 0)
    return _divided(shared.any(1).sum(1), (wanted >= 0).sum(1))


def _divided(above: NDArray[Any], below: NDArray[Any]) -> Numbers:
    shares: Numbers = np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)
    return shares
