"""Every way of searching that does without new embeddings, over the whole index in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.evaluate.retrieval import Nearest, Ranking
from interbasin.jobs.translate.auditing.material import Material
from interbasin.jobs.translate.auditing.unseen import Unseen
from interbasin.jobs.translate.translator import Translator

__all__ = ["Searched", "searched", "translated_search"]

Progress = Callable[[float], object] | None


@dataclass(frozen=True, eq=False)
class Searched:
    """What was found without embedding anything anew.

    Attributes:
        keep: Old queries among old documents.
        translate: By method, new queries among translated documents.
        adapt: By method, new queries, mapped into the old space, among old documents.
        zeros: How many documents are rows of zeros.
    """

    keep: Ranking
    translate: Mapping[str, Ranking]
    adapt: Mapping[str, Ranking]
    zeros: int

    def pool(self, material: Material) -> NDArray[np.int64]:
        """The documents that some search brought up, and those that labels name."""
        found = [self.keep.rows, *(one.rows for one in self.translate.values())]
        found += [one.rows[:, : material.k] for one in self.adapt.values()]
        if material.labels is not None:
            found += list(material.labels.relevant)
        rows = np.unique(np.concatenate([one.ravel() for one in found]))
        return rows[rows >= 0]

    def pool_overlap(self) -> float:
        """Of what a translated search brings up, the share that the old one brings up too; mean over methods."""
        shares = []
        for one in self.translate.values():
            shared = [len(np.intersect1d(a, b)) for a, b in zip(one.rows, self.keep.rows, strict=True)]
            shares.append(float(np.mean(shared)) / self.keep.rows.shape[1])
        return float(np.mean(shares))


def searched(
    material: Material,
    forward: Mapping[str, Unseen],
    backward: Mapping[str, Translator],
    progress: Progress = None,
) -> Searched:
    """All of them, reading the index once.

    Args:
        material: What there is.
        forward: By method, from the old space to the new.
        backward: By method, from the new space to the old.
        progress: Told what share is done.
    """
    depth, metric = material.depth, material.metric
    keep = Nearest(material.old_queries, depth, metric)
    translate = {name: Nearest(material.new_queries, depth, metric) for name in forward}
    adapt = {
        name: Nearest(one.transform(_floating(material.new_queries)), depth, metric) for name, one in backward.items()
    }
    zeros = 0
    for place, given in material.blocks():
        block = _floating(given)
        keep.update(block)  # the first to look: it names rows that are not finite
        zeros += int((~np.any(block, axis=1)).sum())
        for name, translator in forward.items():
            translate[name].update(translator.of(block, place))
        for search in adapt.values():
            search.update(block)
        if progress is not None:
            progress((place + len(block)) / len(material.documents))
    return Searched(
        keep.ranking(),
        {name: one.ranking() for name, one in translate.items()},
        {name: one.ranking() for name, one in adapt.items()},
        zeros,
    )


def translated_search(
    material: Material, translators: Mapping[Any, Unseen], progress: Progress = None
) -> dict[Any, Ranking]:
    """New queries among documents that each of these translates; the first k."""
    searches = {name: Nearest(material.new_queries, material.k, material.metric) for name in translators}
    for place, given in material.blocks():
        block = _floating(given)
        for name, translator in translators.items():
            searches[name].update(translator.of(block, place))
        if progress is not None:
            progress((place + len(block)) / len(material.documents))
    return {name: one.ranking() for name, one in searches.items()}


def _floating(given: Any) -> NDArray[Any]:
    """A block as an array to calculate with; one that is mapped into memory, or quantised, is copied."""
    if hasattr(given, "detach"):
        return np.asarray(given.detach().float().cpu())
    block = np.asarray(given)
    return block if block.dtype in (np.float32, np.float64) else block.astype(np.float32)
