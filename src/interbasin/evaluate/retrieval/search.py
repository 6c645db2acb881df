"""Exact search: the nearest documents of every query, among documents that arrive in blocks, in memory that stays flat.

Scores are such that more is nearer: the cosine, the dot product, or minus half the squared distance (without the part
of the query itself, which is the same for all documents). `reranked` puts what a first
search brought in order by other vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.arrays import as_tensor, working_dtype
from interbasin.checks import require_whole
from interbasin.errors import DataError, ShapeError, UnknownNameError

METRICS = ("cosine", "dot", "l2")
BLOCK_BYTES = 16 * 2**20  # of documents that are looked at together
SCORES = 2**23  # of queries with documents that are in memory together


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

    def first(self, k: int) -> Ranking:
        """The nearest k of them."""
        return Ranking(self.rows[:, :k], self.scores[:, :k])


class Nearest:
    """Finds the k nearest documents of every query. Documents are shown in order, block by block.

    Of documents with the same score the earlier comes first.

    Args:
        queries: ``(queries, width)``.
        k: How many to find.
        metric: ``"cosine"``, ``"dot"`` or ``"l2"``.

    Raises:
        ShapeError: if the queries are no rows.
        DataError: if they hold NaN or infinity, naming the rows; if k is no count.

    Example:
        >>> search = Nearest([[1.0, 0.0]], k=2)
        >>> search.update([[0.0, 1.0], [2.0, 1.0]])
        >>> search.update([[3.0, 0.0]])
        >>> search.ranking().rows.tolist()
        [[2, 1]]
    """

    def __init__(self, queries: Any, k: int = 10, metric: str = "cosine") -> None:
        if metric not in METRICS:
            raise UnknownNameError.of("metric", metric, METRICS)
        self.metric, self.k, self.seen = metric, require_whole("k", k, least=1), 0
        self._queries = prepared(rows_of(queries, "The queries"), metric)
        count = len(self._queries)
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
                f"The queries have {self.width} numbers each and the documents {block.shape[1]}; both must come from "
                "one model, or be translated to its space."
            )
        block = prepared(block.to(self._queries.dtype), self.metric)
        half = block.square().sum(1) / 2 if self.metric == "l2" else None
        scores, rows = [], []
        at_once = max(1, SCORES // max(1, len(block)))
        for place in range(0, len(self._queries), at_once):
            part = slice(place, place + at_once)
            found = self._queries[part] @ block.mT
            if half is not None:
                found -= half
            best, index = _best(found, self.k)
            best = torch.cat((self._scores[part], best), 1)
            index = torch.cat((self._rows[part], index + self.seen), 1)
            # What was found before stands first, so a stable sort keeps the earlier of two that are alike.
            order = torch.sort(best, dim=1, descending=True, stable=True).indices[:, : self.k]
            scores.append(best.gather(1, order))
            rows.append(index.gather(1, order))
        self._scores, self._rows = torch.cat(scores), torch.cat(rows)
        self.seen += len(block)

    def ranking(self) -> Ranking:
        """What was found so far."""
        missing = self.k - self._rows.shape[1]
        rows = torch.nn.functional.pad(self._rows, (0, missing), value=-1)
        scores = torch.nn.functional.pad(self._scores, (0, missing), value=-torch.inf)
        return Ranking(rows.numpy(), scores.numpy())


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
        raise ShapeError(f"Documents are rows, (documents, width), found shape {tuple(documents.shape)}.")
    size = rows or max(64, BLOCK_BYTES // (4 * max(1, documents.shape[1])))
    for place in range(0, len(documents), size):
        yield place, documents[place : place + size]


def similarity(queries: Any, documents: Any, metric: str = "cosine") -> NDArray[Any]:
    """The score of row i of the one with row i of the other: cosine, dot product, or minus the distance for l2."""
    if metric not in METRICS:
        raise UnknownNameError.of("metric", metric, METRICS)
    one, other = rows_of(queries, "The queries").double(), rows_of(documents, "The documents").double()
    if one.shape != other.shape:
        raise ShapeError(f"Scores are of pairs of rows, found shapes {tuple(one.shape)} and {tuple(other.shape)}.")
    if metric == "l2":
        scores: Tensor = -torch.linalg.vector_norm(one - other, dim=1)
    else:
        scores = (prepared(one, metric) * prepared(other, metric)).sum(1)
    return scores.numpy()


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row and where they stand; of equal ones those that stand first."""
    if scores.shape[1] <= k:
        return scores, torch.arange(scores.shape[1]).expand(scores.shape)
    best, index = scores.topk(k + 1, dim=1)
    # topk takes any of those that are as large as the last: where the next is as large, it must be looked again.
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
    if metric != "cosine":
        return rows
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    # A row of zeros has no direction: its cosine with everything is taken to be 0.
    return rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny)


def rows_of(given: Any, what: str, first: int = 0) -> Tensor:
    rows = as_tensor(given, what)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ShapeError(f"{what} must be rows, (rows, width), found shape {tuple(rows.shape)}.")
    rows = rows.to(working_dtype(rows.dtype)) if rows.is_floating_point() else rows.float()
    # One sum tells whether there is anything to look for.
    if len(rows) and not bool(torch.isfinite(rows.sum())):
        bad = (~torch.isfinite(rows).all(1)).nonzero().flatten() + first
        if len(bad):
            shown = ", ".join(map(str, bad[:5].tolist())) + (" ..." if len(bad) > 5 else "")
            raise DataError(f"{what} hold NaN or infinity in {len(bad)} rows: {shown}; leave them out.")
    return rows


AT_ONCE = 2**15  # documents that are in memory together


def reranked(
    queries: Any, found: Ranking, vectors: Callable[[NDArray[np.int64]], Any], metric: str = "cosine", k: int = 10
) -> Ranking:
    """The nearest k of what a search found for each query, by vectors of those documents alone.

    Args:
        queries: ``(queries, width)``, of the same space as ``vectors``.
        found: What the first search brought, for the same queries.
        vectors: Gives the vectors of the documents with these numbers, each asked for once a block of queries.
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
    step = max(1, AT_ONCE // max(1, rows.shape[1]))
    for place in range(0, len(asked), step):
        candidates = rows[place : place + step]
        known, where = torch.unique(candidates, return_inverse=True)
        absent = int(known[0] < 0) if len(known) else 0  # there is a -1 where a search found too little
        wanted = known[absent:]
        fetched = torch.zeros(len(known), asked.shape[1], dtype=asked.dtype)
        if len(wanted):
            made = prepared(rows_of(vectors(wanted.numpy()), "The documents").to(asked.dtype), metric)
            if made.shape != fetched[absent:].shape:
                raise ShapeError(
                    f"Vectors of {len(wanted)} documents in the width {asked.shape[1]} of the queries were asked for, "
                    f"and shape {tuple(made.shape)} was given."
                )
            fetched[absent:] = made
        found_here = torch.bmm(fetched[where], asked[place : place + step, :, None])[..., 0]
        if metric == "l2":
            found_here -= fetched.square().sum(1)[where] / 2
        found_here[candidates < 0] = -torch.inf
        order = torch.sort(found_here, dim=1, descending=True, stable=True).indices[:, :k]
        chosen.append(candidates.gather(1, order))
        scores.append(found_here.gather(1, order))
    missing = max(0, k - rows.shape[1])
    best = torch.nn.functional.pad(torch.cat(chosen), (0, missing), value=-1)
    return Ranking(best.numpy(), torch.nn.functional.pad(torch.cat(scores), (0, missing), value=-torch.inf).numpy())
