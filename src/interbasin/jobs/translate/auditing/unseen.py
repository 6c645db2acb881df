"""Translating an index as if no document of it had been among the pairs.

A map does better on what it was fitted on. In an index of millions that is nobody's concern; in an audit, where pairs
may be a third of the documents, it would make translated vectors look better than they will be, most of all for methods
that follow their pairs closely. So documents that are pairs are translated by a map that was fitted without them. Such
maps have fewer pairs, and several share one index: if anything, the figures are a little low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from interbasin.errors import FitError
from interbasin.jobs.translate.translator import Translator

__all__ = ["Unseen"]

FOLDS = 4


class Unseen:
    """A method, fitted on all pairs for documents that are none of them, and on the other pairs for those that are.

    Args:
        method: What to fit.
        x, y: The pairs.
        places: Number of a document -> number of the pair that it is.
        seed: Of how pairs are parted.
        whole: The method fitted on all pairs, where that was done already.

    Attributes:
        parts: Which part each pair is of.
        others: For each part, what was fitted on the others; empty if no pair is a document.

    Raises:
        FitError: if pairs are too few.
    """

    def __init__(
        self,
        method: Translator,
        x: NDArray[Any],
        y: NDArray[Any],
        places: Mapping[int, int],
        seed: int,
        whole: Translator | None = None,
    ) -> None:
        self.whole = clone(method).fit(x, y) if whole is None else whole
        self.rows = np.array(sorted(places), dtype=np.int64)
        self.others: list[Translator] = []
        self.parts = np.random.default_rng(seed).permutation(len(x)) % FOLDS
        if not places:
            return
        if len(x) < 2 * FOLDS:
            raise FitError(f"{len(x)} pairs are too few to judge documents among them by other pairs.")
        self.fold = self.parts[[places[row] for row in self.rows.tolist()]]
        for one in range(FOLDS):
            kept = self.parts != one
            self.others.append(clone(method).fit(x[kept], y[kept]))

    @property
    def carries_norms(self) -> bool:
        return self.whole.carries_norms

    def of(self, block: NDArray[Any], first: int) -> NDArray[Any]:
        """The documents from number ``first`` on, translated."""
        made: NDArray[Any] = self.whole.transform(block)
        low, high = np.searchsorted(self.rows, (first, first + len(block)))
        inside, fold = self.rows[low:high] - first, self.fold[low:high] if len(self.rows) else None
        for one, translator in enumerate(self.others):
            own = inside[fold == one]
            if len(own):
                made[own] = translator.transform(block[own])
        return made
