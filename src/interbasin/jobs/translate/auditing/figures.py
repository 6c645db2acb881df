"""The numbers of a search, a query each, and how the best of several is judged without having chosen itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.evaluate.retrieval import Bootstrap, Interval, Ranking, ndcg, overlap, recall, reciprocal_rank
from interbasin.jobs.translate.auditing.material import Material

__all__ = ["Choice", "Yardstick", "chosen_elsewhere"]

Numbers = NDArray[np.float64]
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What rankings are measured against, and over which queries.

    Attributes:
        material: What there is.
        reference: What the new model itself finds, if that is known.
        asked: Which queries count: those with labels, where there are labels.
        bootstrap: Over these.
    """

    material: Material
    reference: Ranking | None
    asked: NDArray[np.bool_]
    bootstrap: Bootstrap | None

    @classmethod
    def of(cls, material: Material, reference: Ranking | None, draws: int, confidence: float, seed: int) -> Yardstick:
        labels = material.labels
        asked = np.ones(len(material.old_queries), dtype=bool) if labels is None else labels.known
        measurable = labels is not None or reference is not None
        bootstrap = Bootstrap(int(asked.sum()), draws, confidence, seed) if measurable else None
        return cls(material, reference, asked, bootstrap)

    @property
    def primary(self) -> str | None:
        """What the verdict is about: recall by labels, else the overlap with what the new model finds."""
        return "recall" if self.material.labels is not None else "overlap" if self.reference is not None else None

    def measures(self, found: Ranking) -> dict[str, Numbers]:
        """By measure, a number for each query that counts."""
        k, labels, values = self.material.k, self.material.labels, {}
        if labels is not None:
            values["recall"] = recall(found.rows, labels, k)
            values["reciprocal_rank"] = reciprocal_rank(found.rows, labels, k)
            values["ndcg"] = ndcg(found.rows, labels, k)
        if self.reference is not None:
            values["overlap"] = overlap(found.rows, self.reference.rows, k)
        return {name: one[self.asked] for name, one in values.items()}

    def intervals(self, values: Mapping[str, Numbers]) -> dict[str, Interval]:
        if self.bootstrap is None or not values:
            return {}
        return dict(zip(values, self.bootstrap.intervals(np.stack(list(values.values()), 1)), strict=True))


@dataclass(frozen=True, eq=False)
class Choice:
    """The best of some methods, and what it is worth.

    Attributes:
        method: The one that is best over all queries.
        best: What that one finds in the mean, as it stands in the table.
        numbers: For each query the number of the method that is best over others.
        unanimous: Whether that is the same method for every query.
    """

    method: str
    best: float
    numbers: Numbers
    unanimous: bool

    @property
    def note(self) -> str:
        """Why the mean of the numbers is another than the best of the table; empty where it is not."""
        if f"{self.numbers.mean():.3f}" == f"{self.best:.3f}":
            return ""
        return f"the method chosen on other queries; the best in the table is {self.method} with {self.best:.3f}"


def chosen_elsewhere(values: Mapping[str, Numbers], seed: int) -> Choice:
    """Choose a method without judging it by the queries that chose it.

    Who is picked as the best of many on the same queries looks better than he is. Here queries are parted, and each is
    judged by the method that the other parts would have picked.
    """
    names, matrix = list(values), np.stack(list(values.values()))
    count = matrix.shape[1]
    fold = np.random.default_rng(seed).permutation(count) % min(FOLDS, count)
    honest: Any = np.empty(count)
    picked = set()
    for one in range(fold.max() + 1):
        others = fold != one
        best = int(matrix[:, others].mean(1).argmax()) if others.any() else 0
        picked.add(best)
        honest[~others] = matrix[best, ~others]
    means = matrix.mean(1)
    chosen = int(means.argmax())
    return Choice(names[chosen], float(means[chosen]), honest, picked == {chosen})
