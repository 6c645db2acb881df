"""Which method suits a pair of encoders: each is fitted on some of the pairs and judged on the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasin.errors import FitError, InterbasinError, UnknownNameError
from interbasin.jobs.translate.methods import METHODS, Options
from interbasin.jobs.translate.translation import Translation
from interbasin.randomness import generator_of

FOLDS = 3
# Rows that a held-out row is looked for among; more would only take longer.
_SEARCHED = 2048


@dataclass(frozen=True)
class Candidate:
    """A method with its options, by the name that reports give it."""

    method: str
    changes: Mapping[str, object]

    def options(self, given: Options) -> Options:
        return replace(given, **self.changes)  # type: ignore[arg-type]


CANDIDATES: Mapping[str, Candidate] = {
    "ridge": Candidate("ridge", {"strength": None}),
    "procrustes": Candidate("procrustes", {"standardise": False, "whitening": 0.0}),
    "procrustes, standardised": Candidate("procrustes", {"standardise": True, "whitening": 0.0}),
    "relative-projection": Candidate("relative-projection", {"variant": "regularised", "strength": None}),
    "affine": Candidate("affine", {}),
    "cca": Candidate("cca", {"strength": None}),
}


def cosine(found: Tensor, wanted: Tensor) -> float:
    """Mean cosine of rows with what they should be, about the mean of the latter."""
    mean = wanted.mean(0)
    # At no scale of the rows may the smallest length that is divided by be anything but nothing.
    return float(torch.nn.functional.cosine_similarity(found - mean, wanted - mean, dim=1, eps=1e-300).mean())


def retrieval(found: Tensor, wanted: Tensor) -> float:
    """Mean reciprocal rank of the right row among all held-out ones, by cosine."""
    found, wanted = found[:_SEARCHED], wanted[:_SEARCHED]
    unit = torch.nn.functional.normalize(wanted, dim=1)
    scores = torch.nn.functional.normalize(found, dim=1) @ unit.mT
    own = scores.diagonal()[:, None]
    return float((1 / (1 + (scores > own).sum(1)).double()).mean())


def error(found: Tensor, wanted: Tensor) -> float:
    """Minus the relative mean squared error."""
    return -float((found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum().clamp(min=1e-300))


CRITERIA: Mapping[str, Callable[[Tensor, Tensor], float]] = {"cosine": cosine, "retrieval": retrieval, "error": error}


def judged(x: Tensor, y: Tensor, options: Options, criterion: str) -> dict[str, float]:
    """Every candidate's mean over folds, the best first; one that cannot be fitted is not there."""
    if criterion not in CRITERIA:
        raise UnknownNameError.of("criterion", criterion, CRITERIA)
    if len(x) < 2 * FOLDS:
        raise FitError(
            f"To choose a method, pairs are held out, and {len(x)} are too few for that; give {2 * FOLDS} at least, or "
            "name a method."
        )
    order = torch.randperm(len(x), generator=generator_of(options.seed))
    folds = order.chunk(FOLDS)
    scores: dict[str, float] = {}
    for name, candidate in CANDIDATES.items():
        total = 0.0
        try:
            for held in folds:
                seen = torch.ones(len(x), dtype=torch.bool)
                seen[held] = False
                translation = _fitted(candidate, x[seen], y[seen], options)
                total += CRITERIA[criterion](translation(x[held].double()), y[held].double())
        except InterbasinError:
            continue
        scores[name] = total / FOLDS
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


def _fitted(candidate: Candidate, x: Tensor, y: Tensor, options: Options) -> Translation:
    return METHODS[candidate.method].function(x, y, candidate.options(options))[0]
