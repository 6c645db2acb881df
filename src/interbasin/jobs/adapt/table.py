"""What a run has to show: the row of each method, the bound of those that have features, and what to know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Bootstrap
from interbasin.evaluate.prediction import NO_SIZE
from interbasin.evaluate.transfer import TransferBound, measure_bound
from interbasin.jobs.adapt.fitting import Fitted
from interbasin.jobs.adapt.methods import METHODS
from interbasin.jobs.adapt.result import AdaptedRow
from interbasin.jobs.adapt.samples import Samples
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.task import Fold, TargetTask
from interbasin.jobs.adapt.validation import Answer, HeldOut, MethodRun, held_labels
from interbasin.randomness import generator_of

FOR_ALIGNING = (
    "unlabelled",
    "predictor",
    "align_steps",
    "align_rate",
    "align_batch",
    "schedule",
    "distortion_steps",
    "solver",
    "features",
    "start",
)
MOST_FOR_BOUND = 1000  # samples that the bound is measured on
LEAST_FOR_BOUND = 10
SMALL = 1e-2  # of the usual size: fields whose errors may decide the mean of relative ones
MOST_OF_IT = 0.5  # of an error, beyond which a note names the samples that make it
NO_BETTER = 0.9  # of the errors of always giving the most frequent label


def labels_of(samples: Samples) -> Tensor:
    assert samples.labels is not None
    return samples.labels


# ---------------------------------------------------------------------- the bound


def measure_bounds(
    setup: Setup,
    folds: tuple[Fold, ...],
    runs: Sequence[MethodRun],
    tested: Samples | None,
    answers: Mapping[tuple[str, str], Answer],
    chosen: MethodRun,
    is_compared: bool,
) -> dict[tuple[str, str], TransferBound]:
    """The bound by method and trial, on test data where there are some, else on held-out samples."""
    bounds: dict[tuple[str, str], TransferBound] = {}
    for run in runs if is_compared else [chosen]:
        for held in reported_trials(run) if is_compared else [run.chosen]:
            key = (run.method, held.trial.name)
            if tested is not None and key in answers:
                outputs, features, labels = answers[key].outputs, answers[key].features, labels_of(tested)
            else:
                outputs, features, labels = held.outputs, held.features, held_labels(setup, folds)
            if features is not None and len(features) >= LEAST_FOR_BOUND:
                bounds[key] = bound_of(setup, outputs, features, labels)
    return bounds


def bound_of(setup: Setup, outputs: Tensor, features: Tensor, labels: Tensor) -> TransferBound:
    """The bound of any predictor on features in the source's space."""
    drawn = torch.randperm(len(outputs), generator=generator_of(setup.seed))[:MOST_FOR_BOUND]
    outputs, features, labels = (part[drawn].to(setup.features.device) for part in (outputs, features, labels))
    classes = setup.task.classes_of(labels)
    sources = torch.randperm(len(setup.features), generator=generator_of(setup.seed))[:MOST_FOR_BOUND]
    return measure_bound(
        target_features=features,
        target_labels=classes,
        target_answers=_class_answers(setup.task, outputs, classes),
        source_answers=setup.head.probabilities(features),
        source_features=setup.features[sources],
        error_source=setup.head.loss,
        omega=setup.head.omega,
        seed=setup.seed,
    )


def _class_answers(task: TargetTask, outputs: Tensor, classes: Tensor) -> Tensor:
    """What outputs say of the classes: numbers and fields count for near centres, as far as they usually miss them."""
    if task.codebook is None:
        return outputs.double().softmax(1)
    squares = task.distances(outputs.sigmoid() if task.kind == "multilabel" else outputs).square()
    usual = squares[torch.arange(len(squares)), classes].mean().clamp(min=1e-12)
    return (-squares / (2 * usual)).softmax(1)


# ---------------------------------------------------------------------- rows and notes


def reported_trials(run: MethodRun) -> list[HeldOut]:
    """The chosen trial, and of methods with two kinds of predictor both, which have rows of their own."""
    return [run.chosen, *(held for held in _fixed_predictors(run) if held is not run.chosen)]


def _fixed_predictors(run: MethodRun) -> list[HeldOut]:
    return [held for held in run.tried if held.trial.name in ("transport", "head")]


def row_name(method: str, trial: str) -> str:
    return f"{method}-{trial}" if trial in ("transport", "head") else method


def table_rows(
    setup: Setup,
    folds: tuple[Fold, ...],
    run: MethodRun,
    is_compared: bool,
    answers: Mapping[tuple[str, str], Answer],
    tested: Samples | None,
    bounds: Mapping[tuple[str, str], TransferBound],
) -> list[AdaptedRow]:
    """The row of a method and, where it has two kinds of predictor, a row for each of them."""
    rows = [_row(setup, folds, run, run.chosen, run.method, answers, tested, bounds)]
    fixed = _fixed_predictors(run)
    if is_compared and len(fixed) > 1:
        rows += [
            _row(setup, folds, run, held, row_name(run.method, held.trial.name), answers, tested, bounds)
            for held in fixed
        ]
    return rows


def _row(
    setup: Setup,
    folds: tuple[Fold, ...],
    run: MethodRun,
    held: HeldOut,
    name: str,
    answers: Mapping[tuple[str, str], Answer],
    tested: Samples | None,
    bounds: Mapping[tuple[str, str], TransferBound],
) -> AdaptedRow:
    task = setup.task
    interval = Bootstrap(len(held.scores), seed=setup.seed).interval(held.scores.cpu().numpy())
    key = (run.method, held.trial.name)
    on_test = answers.get(key)
    return AdaptedRow(
        method=name,
        group=run.group,
        trial=held.trial.name,
        loss_valid=held.loss,
        error_valid=held.error,
        score_valid=interval.value,
        low=interval.low,
        high=interval.high,
        fold_errors=held.errors,
        error_test=None if on_test is None or tested is None else task.error(on_test.outputs, labels_of(tested)),
        steps=held.steps,
        seconds=dict(held.seconds),
        bound=bounds[key].metrics() if key in bounds else {},
        tried={
            each.trial.name: {
                "loss": each.loss,
                "tempered": each.tempered,
                "error": each.error,
                "folds": len(each.errors),
            }
            for each in run.tried
        },
    )


def note_on_fields(task: TargetTask, scores: Tensor, labels: Tensor, what: str) -> list[str]:
    """A sentence about fields with nearly no size, and one where small fields make most of the mean error."""
    sizes = task.metric.relative_sizes(labels)
    if sizes is None:
        return []
    notes = []
    zeros, small = sizes < NO_SIZE, (sizes >= NO_SIZE) & (sizes < SMALL)
    if bool(zeros.any()):
        notes.append(
            f"{int(zeros.sum())} of {len(sizes)} fields of {what} are zero or nearly so, or have such a channel; these "
            "errors are relative to the usual size of the training fields."
        )
    share = float(scores[small].sum() / scores.sum()) if bool(small.any()) else 0.0
    if share > MOST_OF_IT:
        notes.append(
            f"{int(small.sum())} of {len(sizes)} fields of {what} are smaller than {SMALL:g} of the usual size and "
            f"make {share:.0%} of the error, which is relative to each field's size; take them out, or use "
            'metric="mae".'
        )
    return notes


def notes_on_options(given: Mapping[str, object], settings: Settings, methods: Sequence[str]) -> list[str]:
    """A sentence about options that were given and have no effect on any of these methods."""
    idle = [name for name in FOR_ALIGNING if given.get(name) is not None]
    notes = []
    if idle and not settings.regularise and not any(METHODS[name].traits["group"] == "align" for name in methods):
        notes.append(
            f"{', '.join(f'{name}=' for name in idle)} had no effect: no method that aligns was run. Take "
            'method="recraft", or compare=True.'
        )
    elif given.get("distortion_steps") is not None and settings.schedule != "sequential":
        notes.append(
            f'distortion_steps= had no effect: both terms count in every step (schedule="{settings.schedule}"). Take '
            'schedule="sequential".'
        )
    if given.get("rank") is not None and settings.body != "lora":
        notes.append(f'rank= had no effect: the body has no LoRA (body="{settings.body}"). Take body="lora".')
    return notes


def notes_on(setup: Setup, bound: TransferBound | None, chosen: MethodRun, fitted: Fitted) -> list[str]:
    notes: list[str] = []
    if fitted.looks and fitted.looks[-1].step == 0:
        notes.append(
            "The target's features lie among the source's already, so that there was nothing to align: the embedder "
            "is the one that stage 1 began with."
        )
    usual = float(torch.bincount(setup.proxy_labels).max()) / len(setup.proxy_labels)
    if usual == 1:
        notes.append(
            "All samples of the proxy have one label, so that it cannot say what features mean; give others too."
        )
    elif 1 - setup.head.accuracy >= NO_BETTER * (1 - usual):
        notes.append(
            f"The source's head is right on {setup.head.accuracy:.3g} of the proxy, of which the most frequent label "
            f"makes {usual:.3g}: was the source trained, are its weights loaded, and are the proxy's labels its own?"
        )
    if bound is not None:
        notes += bound.notes
        entropy = bound.metrics()["label_entropy"]
        if min(bound.bound, bound.direct_bound) > entropy:
            notes.append(f"Both forms of the bound are beyond the labels' entropy ({entropy:.3g}) and tell nothing.")
        if bound.distortion.is_collapsed:
            notes.append(
                "To the source's head nearly all samples of the target look alike, so that its labels tell nothing "
                "about them."
            )
        if setup.task.codebook is not None:
            notes.append(
                f"The bound is stated for the labels made into {setup.task.class_count} classes, not for their values."
            )
    if setup.task.kind == "classification":
        counts = torch.bincount(setup.labels, minlength=setup.task.shape[0])
        rare = int((counts < 5).sum())
        if rare:
            notes.append(f"{rare} of {len(counts)} classes have fewer than five samples; their errors are rough.")
    if math.isnan(chosen.chosen.error):
        raise DataError("The error of the method that was taken is NaN; look at the data and the metric.")
    return notes
