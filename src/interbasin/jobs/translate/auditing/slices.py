"""Where it is worst: groups of queries, and what each way finds for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.evaluate.retrieval import Bootstrap, Interval, nearest
from interbasin.jobs.translate.auditing.figures import Numbers, Yardstick
from interbasin.jobs.translate.auditing.material import Material

__all__ = ["LESS_THAN", "Slice", "slices"]

FEWEST = 10  # queries that a group must have for its mean to mean anything
FAR = 0.1  # of the queries are called far from the pairs
OUTLIER = 3.5  # of a robust deviation
VARIES = 1e-3  # of the median: norms that differ by less were made equal
LESS_THAN = {"reembed": "less than re-embedding", "keep": "less than the old model"}  # by what a loss is counted from


@dataclass(frozen=True)
class Slice:
    """A group of queries.

    Attributes:
        name: Which.
        queries: How many.
        figures: By way, what it finds for them.
        loss: What translated vectors lack here of what ``reference`` finds.
        reference: ``reembed``, or ``keep`` where it is not known what re-embedding finds.
    """

    name: str
    queries: int
    figures: Mapping[str, Interval]
    loss: Interval
    reference: str = "keep"

    @property
    def less_than(self) -> str:
        """What the loss is, in words."""
        return LESS_THAN[self.reference]


def slices(
    yardstick: Yardstick, values: Mapping[str, Numbers], draws: int, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """The groups, the one with the largest loss first.

    Args:
        yardstick: What is measured by.
        values: By way, a number a query; the way ``translate`` among them.
        draws, confidence, seed: Of the intervals.
    """
    reference = "reembed" if "reembed" in values else "keep"
    if "translate" not in values or reference not in values:
        return ()
    columns = [*values.values(), values[reference] - values["translate"]]
    matrix = np.stack(columns, 1)
    found = []
    for name, chosen in _groups(yardstick.material).items():
        inside = chosen[yardstick.asked]
        count = int(inside.sum())
        if FEWEST <= count < len(inside):
            *figures, loss = Bootstrap(count, draws, confidence, seed).intervals(matrix[inside])
            found.append(Slice(name, count, dict(zip(values, figures, strict=True)), loss, reference))
    return tuple(sorted(found, key=lambda one: -one.loss.value))


def _groups(material: Material) -> dict[str, NDArray[np.bool_]]:
    groups: dict[str, NDArray[np.bool_]] = {}
    if material.lengths is not None:
        short, long = np.quantile(material.lengths, (0.25, 0.75))
        words = "word" if short == 1 else "words"
        groups[f"short queries (up to {short:.0f} {words})"] = material.lengths <= short
        groups[f"long queries ({long:.0f} words and more)"] = material.lengths >= long
    groups["queries of unusual norm (old model)"] = _unusual(_norms(material.old_queries))
    groups["queries of unusual norm (new model)"] = _unusual(_norms(material.new_queries))
    similar = nearest(material.new_queries, material.new_pairs, 1, "cosine").scores[:, 0]
    groups["queries far from every pair"] = similar <= np.quantile(similar, FAR)
    if material.labels is not None:
        wanted = material.labels.relevant
        first = np.array([one[0] if len(one) else 0 for one in wanted])
        norms = _norms(np.asarray(material.documents[np.unique(first)]))
        unusual = np.unique(first)[_unusual(norms)]
        groups["right document of unusual norm"] = np.isin(first, unusual) & material.labels.known
        if material.places:
            seen = np.array([any(row in material.places for row in one.tolist()) for one in wanted])
            # Of those that are, nothing can be told: they have new vectors already, and need no translation.
            groups["right document not among the pairs"] = ~seen & material.labels.known
    return groups


def _norms(rows: Any) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.linalg.norm(np.asarray(rows, dtype=np.float64), axis=1)
    return norms


def _unusual(norms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Far from the median, measured by the median of such distances."""
    away = np.abs(norms - np.median(norms))
    spread = 1.4826 * float(np.median(away))
    return away > max(OUTLIER * spread, VARIES * float(np.median(norms)))
