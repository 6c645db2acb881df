"""Searching in two steps: what a first search brought, put in order by other vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interbasin.errors import ShapeError
from interbasin.evaluate.retrieval.search import Ranking, prepared, rows_of

__all__ = ["reranked"]

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
