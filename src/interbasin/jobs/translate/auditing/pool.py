"""The new model's vectors: of all documents, or of a pool of those that some search brought up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.retrieval import Nearest, Ranking, nearest
from interbasin.evaluate.retrieval.search import blocks_of
from interbasin.text import plural

__all__ = ["All", "IncompletePoolError", "Pool", "embedded_pool", "given_pool"]

Embed = Callable[[NDArray[np.int64]], Any]
AT_ONCE = 1024  # documents that are embedded together
NAMED = 5  # documents that a message lists


class IncompletePoolError(DataError):
    """Documents are missing from a pool; ``missing`` holds their numbers."""

    def __init__(self, message: str, missing: NDArray[np.int64]) -> None:
        super().__init__(message)
        self.missing = missing


class All:
    """The new model's vectors of all documents."""

    bound = False

    def __init__(self, vectors: Any, documents: int, width: int) -> None:
        vectors = vectors if hasattr(vectors, "shape") else np.asarray(vectors)
        if tuple(vectors.shape) != (documents, width):
            raise ShapeError(
                f"The new vectors of all documents are {documents} rows of {width} numbers, found shape "
                f"{tuple(vectors.shape)}; give one for every document of the index, in its order."
            )
        self.vectors = vectors

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self.vectors[rows])

    def search(self, queries: Any, depth: int, metric: str) -> Ranking:
        return nearest(queries, self.vectors, depth, metric)


class Pool:
    """The new model's vectors of some documents.

    What a search among them brings up is at least as good as a search among all: a bound from above.
    """

    bound = True

    def __init__(self, rows: NDArray[np.int64], vectors: NDArray[Any]) -> None:
        order = np.argsort(rows)
        self.rows, self.vectors = rows[order], vectors[order]

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.vectors[np.searchsorted(self.rows, rows)]

    def search(self, queries: Any, depth: int, metric: str) -> Ranking:
        search = Nearest(queries, depth, metric)
        for _, block in blocks_of(self.vectors):
            search.update(block)
        found = search.ranking()
        return Ranking(np.where(found.rows < 0, -1, self.rows[found.rows]), found.scores)


def embedded_pool(
    rows: NDArray[np.int64], embed: Embed, width: int, progress: Callable[[float], object] | None = None
) -> Pool:
    """The pool with the vectors that ``embed`` makes.

    Raises:
        ShapeError: if it gives others than were asked for.
    """
    made = np.empty((len(rows), width), dtype=np.float32)
    for place in range(0, len(rows), AT_ONCE):
        asked = rows[place : place + AT_ONCE]
        found = embed(asked)
        found = np.asarray(found.detach().float().cpu() if hasattr(found, "detach") else found)
        if found.shape != (len(asked), width):
            raise ShapeError(
                f"embed was asked for {len(asked)} documents in the new model's width {width}, and gave an array of "
                f"shape {found.shape}; give a row for every number."
            )
        made[place : place + AT_ONCE] = found
        if progress is not None:
            progress((place + len(asked)) / len(rows))
    return Pool(rows, made)


def given_pool(needed: NDArray[np.int64], given: tuple[Any, Any], width: int) -> Pool:
    """The pool that a user embedded.

    Raises:
        IncompletePoolError: if documents are missing from it.
        DataError: if it holds a document twice.
        ShapeError: if rows and vectors do not belong together.
    """
    rows, vectors = np.asarray(given[0], dtype=np.int64), np.asarray(given[1])
    if rows.ndim != 1 or vectors.shape != (len(rows), width):
        raise ShapeError(
            f"A pool is the numbers of documents, and a row of {width} numbers for each, found shapes {rows.shape} and "
            f"{vectors.shape}."
        )
    once, counts = np.unique(rows, return_counts=True)
    if len(once) < len(rows):
        raise DataError(
            f"The pool holds document {once[counts > 1][0]} more than once; give every document one row of numbers."
        )
    missing = np.setdiff1d(needed, rows)
    if len(missing):
        named = ", ".join(map(str, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
        raise IncompletePoolError(
            f"The pool lacks {plural(len(missing), 'document')} of the {len(needed):,} that these searches brought up "
            f"or labels name ({named}); embed them too, and give the same pairs, queries, labels and methods as when "
            "the pool was listed.",
            missing,
        )
    kept = np.isin(rows, needed)
    return Pool(rows[kept], vectors[kept])
