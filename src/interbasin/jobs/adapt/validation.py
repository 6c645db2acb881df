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

from interbasin.errors import DataError, DivergedError, FitError
from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.jobs.adapt.fitting import Fitted, Trial
from interbasin.jobs.adapt.methods import METHODS, FitMethod, trials_of
from interbasin.jobs.adapt.network import CHUNK, in_chunks
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.task import Fold, TargetTask
from interbasin.methods import Method

DRAWS = 2000
RATE_FOLDS = 2  # by which rates are chosen


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What one trial of a method answers to samples that it was not trained on.

    Attributes:
        trial: The trial.
        outputs: For all samples that were held out, fold after fold.
        features: Of the same, where the method has features.
        loss, error: Over all of these.
        tempered: The loss at the temperature that suits the outputs best, by which trials are chosen.
        errors: Of each fold, by the task's metric; NaN where a fold does not have it.
        scores: One error per sample.
        seconds: Of one fit, by stage, the mean over folds.
        steps: Of gradients that one fit takes, the most over folds.
    """

    trial: Trial
    outputs: Tensor
    features: Tensor | None
    loss: float
    tempered: float
    error: float
    errors: tuple[float, ...]
    scores: Tensor
    seconds: Mapping[str, float]
    steps: int


@dataclass(frozen=True, eq=False)
class MethodRun:
    """A method on held-out samples.

    Attributes:
        method: Its name.
        group: What it stands for in the verdict: ``"simple"``, ``"scratch"``, ``"transfer"`` or ``"align"``; one that
            found nothing to align stands for a transfer.
        tried: Its trials.
        chosen: The one with the lowest held-out loss, each at its best temperature.
    """

    method: str
    group: str
    tried: tuple[HeldOut, ...]
    chosen: HeldOut


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
        FitError: if no trial comes to a finite loss.
    """
    method = METHODS[name]

    def run(trial: Trial, number: int) -> Answer:
        fold = folds[number]
        if report is not None:
            report(f"{name}, {trial.name}, part {number + 1} of {len(folds)}")

        def compute() -> Answer:
            return answer(fit(setup, name, fold.train, trial), setup.samples.inputs[fold.held])

        key = (name, trial.name, fold.train.tolist(), fold.held.tolist())
        try:
            return compute() if recall is None else recall(key, compute)
        except DivergedError as error:
            raise FitError(f"{name}, {trial.name}: {error}") from error

    trials = trials_of(name, setup)
    # Two folds tell rates apart as well as five do; the better one alone is tried on the rest.
    first = RATE_FOLDS if len(trials) > 1 and all("factor" in trial.options for trial in trials) else len(folds)
    answers: dict[str, list[Answer]] = {}
    tried: list[HeldOut] = []
    failures: list[FitError] = []
    for trial in trials:
        try:
            answers[trial.name] = [run(trial, number) for number in range(min(first, len(folds)))]
        except FitError as error:  # a rate that is too large for one trial leaves the others
            failures.append(error)
            continue
        is_whole = first >= len(folds)
        tried.append(_gather(setup, folds[:first], trial, answers[trial.name], is_whole=is_whole))
    usable = [held for held in tried if math.isfinite(held.loss)]
    if not usable:
        if failures and not any(isinstance(error.__cause__, DivergedError) for error in failures):
            raise failures[-1]  # no rate would have mended that
        why = f" ({failures[-1]})" if failures else ""
        raise FitError(
            f"{name} came to no finite loss in any trial{why}; lower rate= and body_rate=, or look at the scale of the "
            "data."
        )
    chosen = min(usable, key=lambda held: held.tempered)
    if first < len(folds):
        rest = [run(chosen.trial, number) for number in range(first, len(folds))]
        whole = _gather(setup, folds, chosen.trial, [*answers[chosen.trial.name], *rest])
        tried = [whole if held is chosen else held for held in tried]
        chosen = whole
    return MethodRun(name, _group_of(setup, method, chosen), tuple(tried), chosen)


def _group_of(setup: Setup, method: Method[FitMethod], chosen: HeldOut) -> str:
    """What a method stands for: one that aligns, where there was nothing to align, for a plain transfer."""
    group: str = method.traits["group"]
    is_carried = chosen.trial.options.get("predictor") == "transport"
    supervised = 0 if is_carried else setup.settings.steps_for(len(setup.samples))
    can_skip = method.name in ("fa", "recraft")
    return "transfer" if can_skip and chosen.steps == supervised else group


def fit(setup: Setup, name: str, rows: Tensor, trial: Trial) -> Fitted:
    """A method on samples of these numbers; what it draws depends on the seed, and not on what was fitted before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        return METHODS[name].function(setup, rows, trial)


def answer(fitted: Fitted, inputs: Tensor) -> Answer:
    """Outputs and features of a fitted model, in the memory of the CPU, as those of a journal are."""
    read: Any = getattr(fitted.model, "with_features", None)
    if read is None:
        return Answer(in_chunks(fitted.model, inputs).cpu(), None, fitted.seconds, fitted.steps)
    with torch.no_grad():
        pairs = [read(part) for part in torch.split(inputs, CHUNK)]
    outputs, features = (torch.cat(parts).cpu() for parts in zip(*pairs, strict=True))
    return Answer(outputs, features, fitted.seconds, fitted.steps)


def held_labels(setup: Setup, folds: tuple[Fold, ...]) -> Tensor:
    """Labels of all samples that are held out, fold after fold."""
    return torch.cat([setup.labels[fold.held] for fold in folds]).cpu()


def constant_scores(setup: Setup, folds: tuple[Fold, ...]) -> Tensor:
    """Errors per sample that is held out, fold after fold, of one answer to all inputs: the best for each fold."""
    parts = []
    for fold in folds:
        row, labels = setup.task.constant_answer(setup.labels[fold.train]), setup.labels[fold.held]
        parts.append(setup.task.scores(row.expand(len(labels), *row.shape), labels))
    return torch.cat(parts).cpu()


def _error_if_any(task: TargetTask, outputs: Tensor, labels: Tensor) -> float:
    """The error, or NaN: some folds may lack what a metric such as AUROC needs."""
    try:
        return task.error(outputs, labels.cpu())
    except DataError:
        return math.nan


def _gather(
    setup: Setup, folds: tuple[Fold, ...], trial: Trial, runs: list[Answer], *, is_whole: bool = True
) -> HeldOut:
    task = setup.task
    outputs = torch.cat([run.outputs for run in runs])
    labels = held_labels(setup, folds)
    features = [run.features for run in runs if run.features is not None]
    errors = [_error_if_any(task, run.outputs, setup.labels[fold.held]) for run, fold in zip(runs, folds, strict=True)]
    stages = {stage for run in runs for stage in run.seconds}
    return HeldOut(
        trial,
        outputs,
        torch.cat(features) if len(features) == len(runs) else None,
        float(task.loss(outputs.double(), labels)),
        task.tempered_loss(outputs.double(), labels),
        task.error(outputs, labels) if is_whole else _error_if_any(task, outputs, labels),
        tuple(errors),
        task.scores(outputs, labels),
        {stage: float(np.mean([run.seconds.get(stage, 0.0) for run in runs])) for stage in sorted(stages)},
        max(run.steps for run in runs),
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
