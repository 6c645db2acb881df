"""What the demonstration shows of adapt: the first network on images whose pixels were mixed, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasin.demo.networks import Pair
from interbasin.errors import MissingExtraError
from interbasin.jobs.adapt import Source, adapt
from interbasin.randomness import generator_of

LABELLED = 100
STEPS, ALIGN_STEPS = 60, 10


@dataclass(frozen=True)
class Tried:
    """One method, with its error on held-out samples."""

    method: str
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class NewModality:
    """An adaptation: what was tried, what was taken and why."""

    labelled: int
    unlabelled: int
    rows: tuple[Tried, ...]
    method: str  # what was taken
    error_test: float | None  # its error on test images
    choice: str  # the verdict in one word
    verdict: str


def count_adaptations() -> int:
    """How many adaptations `adapt_network` makes."""
    return 1


def adapt_network(pair: Pair, seed: int) -> NewModality:
    """Give the first network images in which every pixel is a mixture of all, with a hundred labels.

    No network has seen such images. A linear layer could undo the mixture; so could a model that needs no network.
    """
    drawn = torch.randn(64, 64, generator=generator_of(seed), dtype=torch.float64)
    mixture = torch.linalg.qr(drawn)[0].float()
    rows = torch.randperm(len(pair.train), generator=generator_of(seed))
    known, others = rows[:LABELLED], rows[LABELLED:]
    first, hidden, head = pair.source
    try:
        result = adapt(
            Source(first, hidden, head),
            (pair.train, pair.train_labels),
            (_mix(pair.train[known], mixture), pair.train_labels[known]),
            test=(_mix(pair.test, mixture), pair.test_labels),
            unlabelled=_mix(pair.train[others], mixture),
            steps=STEPS,
            align_steps=ALIGN_STEPS,
            seed=seed,
        )
    except MissingExtraError as error:
        return NewModality(LABELLED, len(others), (), "", None, "", str(error))
    return NewModality(
        labelled=LABELLED,
        unlabelled=len(others),
        rows=tuple(Tried(row.method, row.error_valid, row.low, row.high) for row in result.table),
        method=result.method,
        error_test=result.metrics["error_test"],
        choice=result.verdict.choice,
        verdict=str(result.verdict),
    )


def _mix(images: Tensor, mixture: Tensor) -> Tensor:
    return images @ mixture
