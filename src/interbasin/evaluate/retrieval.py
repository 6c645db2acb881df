"""How well vectors find what they should: exact search, and the share of right documents that it brings.

Documents arrive in blocks, so that memory stays flat. Scores are such that more is nearer: the cosine, the dot product,
or minus half the squared distance (without the part of the query itself, which is the same for all documents).
`reranked` puts what a first search brought in order by other vectors. The measures give one number per query, by labels
or by comparison with another search; `interbasin.evaluate.bootstrap` says how far their means can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.arrays import as_tensor, working_dtype
from interbasin.checks import require_choice, require_whole
from interbasin.errors import DataError, ShapeError

Numbers = NDArray[np.float64]

METRICS = ("cosine", "dot", "l2")
BLOCK_BYTES = 16 * 2**20  # of documents that are looked at together
SCORES = 2**23  # of queries with documents that are in memory together
RERANKED_AT_ONCE = 2**15  # documents that are in memory together


@dataclass(frozen=True, eq=False)
class Ranking:
    """The nearest documents of every query, the nearest first.

    Attributes:
        rows: ``(queries, k)``, the documents by their number; -1 where there are fewer than k.
        scores: The same shape; more is nearer.
    """

    rows: NDArray[np.int64]
    scores: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)


class Nearest:
    """Finds the k nearest documents of every query. Documents are shown in order, block by block.

    Of documents with the same score the earlier comes first.

    Args:
        queries: ``(queries, width)``.
        k: How many to find.
        metric: ``"cosine"``, ``"dot"`` or ``"l2"``.

    Raises:
        ShapeError: if the queries are no rows, or k is no count.
        DataError: if they hold NaN or infinity; names the rows.

    Example:
        >>> search = Nearest([[1.0, 0.0]], k=2)
        >>> search.update([[0.0, 1.0], [2.0, 1.0]])
        >>> search.update([[3.0, 0.0]])
        >>> search.ranking().rows.tolist()
        [[2, 1]]
    """

    def __init__(self, queries: Any, k: int = 10, metric: str = "cosine") -> None:
        self.metric, self.seen = require_choice("metric", metric, METRICS), 0
        self.k = require_whole("k", k, least=1, most=2**31 - 1, error=ShapeError)
        self._queries = prepared(rows_of(queries, "The queries"), metric)
        count = len(self._queries)
        if not count:
            raise ShapeError("There is no query to search for; give at least one row.")
        self._rows = torch.full((count, 0), -1, dtype=torch.int64)
        self._scores = torch.empty((count, 0), dtype=self._queries.dtype)

    @property
    def width(self) -> int:
        return self._queries.shape[1]

    def update(self, documents: Any) -> None:
        """Look at the documents that come next, ``(rows, width)``.

        Raises:
            ShapeError: if they are of another width than the queries.
            DataError: if they hold NaN or infinity; names the rows, counted from the first document of all.
        """
        block = rows_of(documents, "The documents", first=self.seen)
        if block.shape[1] != self.width:
            raise ShapeError(
                f"The queries are {self.width} wide and the documents {block.shape[1]}; both must be of one space."
            )
        block = prepared(block.to(self._queries.dtype), self.metric)
        half = block.square().sum(1) / 2 if self.metric == "l2" else None
        scores, rows = [], []
        at_once = max(1, SCORES // max(1, len(block)))
        for place in range(0, len(self._queries), at_once):
            part = slice(place, place + at_once)
            products = self._queries[part] @ block.mT
            if half is not None:
                products -= half
            best, index = _best(products, self.k)
            best = torch.cat((self._scores[part], best), 1)
            index = torch.cat((self._rows[part], index + self.seen), 1)
            # Earlier documents stand first, so a stable sort keeps the earlier of two with the same score.
            order = torch.sort(best, dim=1, descending=True, stable=True).indices[:, : self.k]
            scores.append(best.gather(1, order))
            rows.append(index.gather(1, order))
        self._scores, self._rows = torch.cat(scores), torch.cat(rows)
        self.seen += len(block)

    def ranking(self) -> Ranking:
        """The nearest of the documents so far."""
        return _pad_ranking(self._rows, self._scores, self.k)


def _pad_ranking(rows: Tensor, scores: Tensor, k: int) -> Ranking:
    missing = max(0, k - rows.shape[1])
    rows = torch.nn.functional.pad(rows, (0, missing), value=-1)
    return Ranking(rows.numpy(), torch.nn.functional.pad(scores, (0, missing), value=-torch.inf).numpy())


def nearest(queries: Any, documents: Any, k: int = 10, metric: str = "cosine") -> Ranking:
    """The k nearest documents of every query, exactly.

    Args:
        queries: ``(queries, width)``.
        documents: ``(documents, width)``; may be a memory-mapped array, of which a block is read at a time.
        k: How many to find.
        metric: ``"cosine"``, ``"dot"`` or ``"l2"``.

    Example:
        >>> nearest([[1.0, 0.1]], [[0.0, 1.0], [1.0, 0.0]], k=1).rows.tolist()
        [[1]]
    """
    search = Nearest(queries, k, metric)
    for _, block in blocks_of(documents):
        search.update(block)
    return search.ranking()


def blocks_of(documents: Any, rows: int | None = None) -> Iterator[tuple[int, Any]]:
    """Consecutive rows with the number of the first, ``rows`` at a time; by default some 16 MiB of float32."""
    documents = documents if hasattr(documents, "shape") else np.asarray(documents)
    if len(documents.shape) != 2:
        raise ShapeError(f"Documents must be rows, (documents, width), got shape {tuple(documents.shape)}.")
    size = rows or max(64, BLOCK_BYTES // (4 * max(1, documents.shape[1])))
    for place in range(0, len(documents), size):
        yield place, documents[place : place + size]


def similarity(queries: Any, documents: Any, metric: str = "cosine") -> NDArray[Any]:
    """The score of row i of the one with row i of the other: cosine, dot product, or minus the distance for l2."""
    metric = require_choice("metric", metric, METRICS)
    x, y = rows_of(queries, "The queries").double(), rows_of(documents, "The documents").double()
    if x.shape != y.shape:
        raise ShapeError(f"Scores are of pairs of rows, got shapes {tuple(x.shape)} and {tuple(y.shape)}.")
    if metric == "l2":
        scores: Tensor = -torch.linalg.vector_norm(x - y, dim=1)
    else:
        scores = (prepared(x, metric) * prepared(y, metric)).sum(1)
    return scores.numpy()


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row and where they stand; of equal ones those that stand first."""
    if scores.shape[1] <= k:
        return scores, torch.arange(scores.shape[1]).expand(scores.shape)
    best, index = scores.topk(k + 1, dim=1)
    # Of scores that equal the last one, topk takes any: where the next is equal too, look again.
    tied = (best[:, k] == best[:, k - 1]).nonzero().flatten().tolist()
    best, index = best[:, :k].contiguous(), index[:, :k].contiguous()
    for row in tied:
        place = (scores[row] >= best[row, -1]).nonzero().flatten()
        order = torch.sort(scores[row][place], descending=True, stable=True).indices[:k]
        index[row], best[row] = place[order], scores[row][place[order]]
    # Equal ones inside, in the order of their rows.
    order = index.argsort(dim=1)
    return best.gather(1, order), index.gather(1, order)


def prepared(rows: Tensor, metric: str) -> Tensor:
    """The rows as products take them: of length one for the cosine."""
    if metric != "cosine":
        return rows
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    # A row of zeros has no direction: its cosine with everything is taken to be 0.
    return rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny)


def rows_of(values: Any, what: str, first: int = 0) -> Tensor:
    """Finite floating-point rows; ``first`` is the number of the first one, for messages."""
    rows = as_tensor(values, what)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ShapeError(f"{what} must be rows, (rows, width), got shape {tuple(rows.shape)}.")
    rows = rows.to(working_dtype(rows.dtype)) if rows.is_floating_point() else rows.float()
    # One sum tells whether there is anything to look for.
    if len(rows) and not bool(torch.isfinite(rows.sum())):
        bad = (~torch.isfinite(rows).all(1)).nonzero().flatten() + first
        if len(bad):
            shown = ", ".join(map(str, bad[:5].tolist())) + (" ..." if len(bad) > 5 else "")
            raise DataError(f"{what} hold NaN or infinity in {len(bad)} rows: {shown}; leave them out.")
    return rows


def reranked(
    queries: Any, found: Ranking, vectors: Callable[[NDArray[np.int64]], Any], metric: str = "cosine", k: int = 10
) -> Ranking:
    """The nearest k of what a search found for each query, by vectors of those documents alone.

    Args:
        queries: ``(queries, width)``, of the same space as ``vectors``.
        found: What the first search brought, for the same queries.
        vectors: Gives the vectors of the documents with these numbers, each asked for once per block of queries.
        metric: See `nearest`.
        k: How many to keep.

    Example:
        >>> documents = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.2]])
        >>> first = Ranking(np.array([[0, 2]]), np.zeros((1, 2)))
        >>> reranked([[1.0, 0.0]], first, documents.__getitem__, k=1).rows.tolist()
        [[2]]
    """
    rows = torch.from_numpy(np.sort(found.rows, axis=1))  # of two that are alike, the earlier document first
    asked = prepared(rows_of(queries, "The queries"), metric)
    chosen, scores = [], []
    step = max(1, RERANKED_AT_ONCE // max(1, rows.shape[1]))
    for place in range(0, len(asked), step):
        candidates = rows[place : place + step]
        known, where = torch.unique(candidates, return_inverse=True)
        absent = int(known[0] < 0) if len(known) else 0  # there is a -1 where a search found too little
        wanted = known[absent:]
        fetched = torch.zeros(len(known), asked.shape[1], dtype=asked.dtype)
        if len(wanted):
            documents = prepared(rows_of(vectors(wanted.numpy()), "The documents").to(asked.dtype), metric)
            if documents.shape != fetched[absent:].shape:
                expected = (len(wanted), asked.shape[1])
                raise ShapeError(f"The documents must come in shape {expected}, got {tuple(documents.shape)}.")
            fetched[absent:] = documents
        products = torch.bmm(fetched[where], asked[place : place + step, :, None])[..., 0]
        if metric == "l2":
            products -= fetched.square().sum(1)[where] / 2
        products[candidates < 0] = -torch.inf
        order = torch.sort(products, dim=1, descending=True, stable=True).indices[:, :k]
        chosen.append(candidates.gather(1, order))
        scores.append(products.gather(1, order))
    return _pad_ranking(torch.cat(chosen), torch.cat(scores), k)


# ---------------------------------------------------------------------- measures


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
        """Labels for so many queries and documents.

        Args:
            given: For every query a row, or several; or a mapping from the number of a query to its rows.
            queries, documents: How many there are.

        Raises:
            DataError: if they name a query or a document that is not there, or nothing at all.
        """
        if isinstance(given, Labels):
            return given
        if isinstance(given, Mapping):
            stray = [key for key in given if not isinstance(key, int | np.integer) or not 0 <= key < queries]
            if stray:
                raise DataError(f"Labels name the query {stray[0]!r}, but there are queries 0 to {queries - 1}.")
            given = [given.get(place, ()) for place in range(queries)]
        entries: Sequence[Any] = list(given)
        if len(entries) != queries:
            raise DataError(f"There are {queries} queries and {len(entries)} entries of labels; give one per query.")
        relevant = tuple(_rows(entry, place, documents) for place, entry in enumerate(entries))
        if not any(map(len, relevant)):
            raise DataError("No query has a label; give the documents that are right for at least some of them.")
        return cls(relevant, documents)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which queries have labels."""
        return self.counts > 0

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many right documents each query has."""
        return np.array([len(rows) for rows in self.relevant])

    def ceiling(self, k: int) -> float:
        """What recall without a cap could reach at most: k places cannot hold more than k right documents."""
        counts = self.counts[self.known]
        return float((np.minimum(counts, k) / counts).mean())

    def hits(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For every place of a ranking, whether a right document stands there."""
        if len(rows) != len(self.relevant):
            raise ShapeError(f"There are labels for {len(self.relevant)} queries and a ranking of {len(rows)}.")
        # A query and a row are one number, so that all are looked up at once.
        right = np.concatenate([own + place * (self.documents + 1) for place, own in enumerate(self.relevant)])
        ranked = rows + np.arange(len(rows))[:, None] * (self.documents + 1)
        return np.isin(np.where(rows < 0, -1, ranked), right)


def _rows(entry: Any, query: int, documents: int) -> NDArray[np.int64]:
    rows = list(entry) if isinstance(entry, Iterable) else [entry]
    for row in rows:
        if not isinstance(row, int | np.integer) or isinstance(row, bool) or not 0 <= row < documents:
            raise DataError(
                f"The labels of query {query} name the document {row!r}, but there are documents 0 to {documents - 1}."
            )
    return np.unique(np.asarray(rows, dtype=np.int64))


def recall(rows: NDArray[np.int64], labels: Labels, k: int) -> Numbers:
    """Of the right documents of each query, the share among its first k; NaN without labels.

    It is capped recall: of n right documents the first k can hold min(k, n), and that many count as all. So 1 can
    always be reached. Where no query has more than k right documents it is plain recall; `Labels.ceiling` says what
    plain recall could reach where one has.

    Example:
        >>> recall(np.array([[4, 2, 0]]), Labels.of([[0, 4]], 1, 5), k=2).tolist()
        [0.5]
        >>> recall(np.array([[4, 2, 0]]), Labels.of([[0, 2, 4]], 1, 5), k=2).tolist()
        [1.0]
    """
    return _divide(labels.hits(rows[:, :k]).sum(1), np.minimum(labels.counts, k))


def reciprocal_rank(rows: NDArray[np.int64], labels: Labels, k: int) -> Numbers:
    """One over the place of the first right document, 0 if it is not among the first k; NaN without labels."""
    hits = labels.hits(rows[:, :k])
    return np.where(labels.known, np.where(hits.any(1), 1 / (1 + hits.argmax(1)), 0.0), np.nan)


def ndcg(rows: NDArray[np.int64], labels: Labels, k: int) -> Numbers:
    """Gains of right documents discounted by the logarithm of their places, over the most there could be."""
    gains = 1 / np.log2(np.arange(2, k + 2))
    most = np.concatenate(([0.0], np.cumsum(gains)))[np.minimum(labels.counts, k)]
    hits = labels.hits(rows[:, :k])
    return _divide(hits @ gains[: hits.shape[1]], most)


def overlap(rows: NDArray[np.int64], reference: NDArray[np.int64], k: int) -> Numbers:
    """Of the first k of another search, the share among the first k of this one.

    Example:
        >>> overlap(np.array([[4, 2, 0]]), np.array([[2, 4, 1]]), k=3).round(2).tolist()
        [0.67]
    """
    if len(rows) != len(reference):
        raise ShapeError(f"Rankings of {len(rows)} and of {len(reference)} queries cannot be compared.")
    first, other = rows[:, :k], reference[:, :k]
    shared = (first[:, :, None] == other[:, None, :]) & (other[:, None, :] >= 0)
    return _divide(shared.any(1).sum(1), (other >= 0).sum(1))


def _divide(above: NDArray[Any], below: NDArray[Any]) -> Numbers:
    shares: Numbers = np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)
    return shares
