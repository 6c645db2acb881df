"""Every method of re-basin on the two networks, and what a merge of the aligned one with the other is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from interbasin.demo.networks import BATCH, Pair, share_right
from interbasin.evaluate import barrier
from interbasin.jobs.merge import merge
from interbasin.jobs.rebasin import METHODS, rebasin

POINTS = 11


@dataclass(frozen=True)
class Aligned:
    """One method: the aligned network, and the way from it to the second network, on held-out images.

    Attributes:
        method: And its variant.
        exact: Whether the aligned network is the same function as the first.
        distance: Of its weights to the second network's.
        accuracy: Of the aligned network.
        barrier: Rise of the loss above the chord between the original networks.
        merged: Accuracy of the average of the aligned network and the second.
    """

    method: str
    variant: str
    exact: bool
    distance: float
    accuracy: float
    barrier: float
    merged: float


def count() -> int:
    """How many rows there will be."""
    return 1 + sum(len(method.variants) for method in METHODS.values())


def alignments(pair: Pair, seed: int, report: Callable[[int], object]) -> tuple[Aligned, ...]:
    """A row for no alignment, and one for each variant of each method."""
    train = list(zip(torch.split(pair.train, BATCH), torch.split(pair.train_labels, BATCH), strict=True))
    test = [(pair.test, pair.test_labels)]
    rows = [_row(pair, pair.source, "(none)", "", True, test)]
    for method in METHODS.values():
        for variant in method.variants:
            found = rebasin(
                pair.source, pair.target, method=method.name, variant=variant, data=train, seed=seed, epochs=1
            )
            rows.append(_row(pair, found.model, method.name, variant, found.alignment.is_exact, test))
            report(len(rows))
    return tuple(rows)


def _row(pair: Pair, aligned: torch.nn.Module, method: str, variant: str, exact: bool, test: Any) -> Aligned:
    way = barrier(aligned, pair.target, test, points=POINTS, ends=(pair.source, pair.target))
    apart = sum(
        float((one - other).square().sum())
        for one, other in zip(aligned.parameters(), pair.target.parameters(), strict=True)
    )
    with torch.no_grad():
        own = share_right(aligned(pair.test), pair.test_labels)
        merged = share_right(merge([aligned, pair.target], method="average")(pair.test), pair.test_labels)
    return Aligned(method, variant, exact, apart**0.5, own, way.metrics["barrier_original"], merged)
