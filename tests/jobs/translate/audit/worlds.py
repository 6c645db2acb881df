"""Small worlds in which it is known what an audit should say: documents and queries with a meaning, and two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class World:
    old: np.ndarray  # documents as the old model sees them
    new: np.ndarray
    old_queries: np.ndarray
    new_queries: np.ndarray
    labels: np.ndarray  # query -> document
    pairs: np.ndarray  # rows

    def arguments(self, **changes):
        given = {
            "pairs": (self.old[self.pairs], self.new[self.pairs]),
            "queries": (self.old_queries, self.new_queries),
            "documents": self.old,
            "new_documents": self.new,
            "labels": self.labels,
            "methods": ["ridge", "procrustes"],
            "draws": 200,
            "curve": False,
        }
        return given | changes


def world(kind: str, documents: int = 700, queries: int = 250, pairs: int = 200, seed: int = 0) -> World:
    """
    Kinds: ``turned``: the new model is the old one, turned. ``better queries``: the same, but the old model sees
    queries badly. ``apart``: each model sees other sides of the meaning, and the new one more of them.
    ``worse``: the same, the other way round. ``between``: the old model sees half of what the new one does, and sees
    queries badly.
    """
    draws = np.random.default_rng(seed)
    meaning = draws.normal(size=(documents, 32))
    labels = draws.choice(documents, queries, replace=False)
    asked = meaning[labels] + 0.9 * draws.normal(size=(queries, 32))
    turn = np.linalg.qr(draws.normal(size=(32, 32)))[0]

    def seen(rows: np.ndarray, first: int, last: int, noise: float = 0.0) -> np.ndarray:
        found = np.zeros_like(rows)
        found[:, first:last] = rows[:, first:last]
        return (found @ turn + noise * draws.normal(size=rows.shape)).astype(np.float32)

    other = np.linalg.qr(draws.normal(size=(32, 32)))[0].astype(np.float32)
    if kind in ("turned", "better queries"):
        old = seen(meaning, 0, 20)
        old_queries = seen(asked, 0, 20, 0.0 if kind == "turned" else 1.5)
        new, new_queries = old @ other, seen(asked, 0, 20) @ other
    elif kind == "between":
        old, old_queries = seen(meaning, 0, 18), seen(asked, 0, 18, 2.0)
        new, new_queries = seen(meaning, 0, 32) @ other, seen(asked, 0, 32) @ other
    else:
        one, two = (0, 14), (8, 32)
        if kind == "worse":
            one, two = (8, 32), (0, 14)
        old, old_queries = seen(meaning, *one), seen(asked, *one)
        new, new_queries = seen(meaning, *two) @ other, seen(asked, *two) @ other
    return World(old, new, old_queries, new_queries, labels, draws.choice(documents, pairs, replace=False))
