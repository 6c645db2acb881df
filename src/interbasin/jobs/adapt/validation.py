"""Methods on held-out samples: trials are chosen by held-out loss, and methods compared sample by sample.

With five folds every labelled sample is held out once, so that errors of two methods can be paired over all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.jobs.adapt.methods import METHODS, Fitted, Trial, trials_of
from interbasin.jobs.adapt.network import in_chunks
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.task import Fold

DRAWS = 2000


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What one trial of a method answers to samples that it was not trained on.

    Attributes:
        trial: The trial.
        outputs: For all samples that were held out, fold after fold.
        features: Of the same, where the method has features.
        loss: The mean over these.
        errors: Of each fold, by the task's metric; NaN where a fold does not have it.
        scores: One error per sample.
        seconds: Of one fit, by stage, the mean over folds.
        steps: Of gradients that one fit takes.
    """

    trial: Trial
    outputs: Tensor
    features: Tensor | None
    loss: float
    errors: tuple[float, ...]
    scores: Tensor
    seconds: Mapping[str, float]
    steps: int


@dataclass(frozen=True, eq=False)
class MethodRun:
    """A method on held-out samples.

    Attributes:
        method: Its name.
        group: What it stands for in the verdict: ``"simple"``, ``"scratch"``, ``"transfer"`` or ``"align"``.
        tried: Its trials.
        chosen: The one with the lowest held-out loss.
        error: Of that, by the task's metric, over all held-out samples.
    """

    method: str
    group: str
    tried: tuple[HeldOut, ...]
    chosen: HeldOut
    error: float


@dataclass(frozen=True, eq=False)
class Answer:
    """What a fitted model puts out for some inputs, with its features where it has some."""

    outputs: Tensor
    features: Tensor | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0


class Budget:
    """How much time there is, and whether more can be begun.

    Args:
        minutes: None for as much as it takes.
    """

    def __init__(self, minutes: float | None) -> None:
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return time.monotonic() + seconds <= self._end


def hold_out(
    setup: Setup,
    folds: tuple[Fold, ...],
    name: str,
    *,
    recall: Callable[[object, Callable[[], Answer]], Answer] | None = None,
    report: Callable[[str], object] | None = None,
) -> MethodRun:
    """All trials of a method on all folds, and the best of them.

    Raises:
        DataError: if no trial comes to a finite loss.
    """
    method = METHODS[name]
    tried = []
    for trial in trials_of(name, setup):
        runs = []
        for number, fold in enumerate(folds, 1):
            if report is not None:
                report(f"{name}, {trial.name}, part {number} of {len(folds)}")

            def compute(trial: Trial = trial, fold: Fold = fold) -> Answer:
                return answer(method.function(setup, fold.train, trial), setup.samples.inputs[fold.held])

            key = (name, trial.name, fold.train.tolist(), fold.held.tolist())
            runs.append(compute() if recall is None else recall(key, compute))
        tried.append(_gather(setup, folds, trial, runs))
    usable = [run for run in tried if math.isfinite(run.loss)]
    if not usable:
        raise DataError(
            f"{name} came to no finite loss in any trial; lower rate= and body_rate=, or look at the scale of the data."
        )
    chosen = min(usable, key=lambda run: run.loss)
    labels = held_labels(setup, folds)
    return MethodRun(name, method.traits["group"], tuple(tried), chosen, setup.task.error(chosen.outputs, labels))


def answer(fitted: Fitted, inputs: Tensor) -> Answer:
    """Outputs and features of a fitted model."""
    outputs = in_chunks(fitted.model, inputs)
    read: Any = getattr(fitted.model, "features", None)
    features = None
    if read is not None:
        with torch.no_grad():
            features = torch.cat([read(part) for part in torch.split(inputs, 256)])
    return Answer(outputs, features, fitted.seconds, fitted.steps)


def held_labels(setup: Setup, folds: tuple[Fold, ...]) -> Tensor:
    """Labels of all samples that are held out, fold after fold."""
    return torch.cat([setup.labels[fold.held] for fold in folds])


def _gather(setup: Setup, folds: tuple[Fold, ...], trial: Trial, runs: list[Answer]) -> HeldOut:
    task = setup.task
    outputs = torch.cat([run.outputs for run in runs])
    labels = held_labels(setup, folds)
    features = [run.features for run in runs if run.features is not None]
    errors = []
    for run, fold in zip(runs, folds, strict=True):
        try:
            errors.append(task.error(run.outputs, setup.labels[fold.held]))
        except DataError:  # a fold may lack what a metric such as AUROC needs
            errors.append(math.nan)
    stages = {stage for run in runs for stage in run.seconds}
    return HeldOut(
        trial,
        outputs,
        torch.cat(features) if len(features) == len(runs) else None,
        float(task.loss(outputs.double(), labels)),
        tuple(errors),
        task.scores(outputs, labels),
        {stage: float(np.mean([run.seconds.get(stage, 0.0) for run in runs])) for stage in sorted(stages)},
        runs[0].steps,
    )


def difference(worse: Tensor, better: Tensor, seed: int = 0) -> Interval:
    """By how much the first has the larger error per sample, with its 95 % interval over samples; paired."""
    values = (worse - better).double().cpu().numpy()
    return Bootstrap(len(values), draws=DRAWS, seed=seed).interval(values)


def standard_error(run: HeldOut, other: HeldOut, folds: tuple[Fold, ...]) -> tuple[float, float]:
    """The mean difference of error per sample (first minus second) and its standard error, over paired folds.

    With one fold it is the standard error over its samples.
    """
    values = (run.scores - other.scores).double()
    if len(folds) == 1:
        return float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.inf
    parts = torch.split(values, [len(fold.held) for fold in folds])
    means = torch.stack([part.mean() for part in parts])
    return float(values.mean()), float(means.std() / math.sqrt(len(means)))
