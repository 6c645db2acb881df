"""The job: methods on held-out samples, the verdict, the method that is taken, fitted to all samples, and its bound."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.batches import reporter_of
from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.bootstrap import Bootstrap
from interbasin.evaluate.transfer import TransferBound, measure_bound
from interbasin.extras import import_extra
from interbasin.jobs.adapt.files import describe_model
from interbasin.jobs.adapt.journal import Journal, open_journal
from interbasin.jobs.adapt.methods import METHODS, Fitted, Trial
from interbasin.jobs.adapt.result import Adaptation, AdaptedRow
from interbasin.jobs.adapt.settings import make_settings
from interbasin.jobs.adapt.setup import Setup, prepare_setup
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.task import Fold, Samples, TargetTask, divide, read_samples
from interbasin.jobs.adapt.validation import (
    Answer,
    Budget,
    HeldOut,
    MethodRun,
    answer,
    held_labels,
    hold_out,
    standard_error,
)
from interbasin.jobs.adapt.verdict import judge_runs
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of

AUTO = "auto"
EVIDENCE = ("raw-linear", "nearest", "scratch", "naive")  # without which there is no verdict
CANDIDATES = ("raw-linear", "nearest", "random-body", "linear-probe", "scratch", "naive", "recraft")
PLAIN = "naive"  # what auto takes unless another method is better by a standard error
MOST_FOR_BOUND = 1000  # samples that the bound is measured on


@torch.inference_mode(False)
@torch.random.fork_rng(devices=[])  # torch's layers begin with numbers of the global generator, which is left alone
def adapt(
    source: Source | nn.Module,
    proxy: Any,
    train: Any,
    valid: Any = None,
    test: Any = None,
    unlabelled: Any = None,
    task: str = "classification",
    method: str = AUTO,
    predictor: str | None = None,
    compare: bool | Sequence[str] = False,
    seed: int = 0,
    *,
    embedder: nn.Module | None = None,
    metric: str | None = None,
    minutes: float | None = None,
    preset: str | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: Callable[[str], object] | bool | None = None,
    **options: Any,
) -> Adaptation:
    """A pre-trained model, adapted to a modality that it has never seen, and whether pre-training helps there at all.

    Methods are compared on samples that they were not trained on: below 500 labelled samples in five folds, else on one
    fifth. The method that is taken is then fitted to all samples; test data are looked at once, at the end.

    Args:
        source: The pre-trained model, in parts; a module of a common family is divided by `Source.of`. It stays as it
            is.
        proxy: Labelled data of the source's own modality: a pair (inputs, labels), or batches of such pairs.
        train: Labelled data of the target: a pair (inputs, labels), a Dataset of such pairs, or batches. One input is
            ``(features,)``, ``(channels, length)`` or ``(channels, height, width)``.
        valid: Labelled data to hold out instead of a part of ``train``.
        test: Labelled data to report on.
        unlabelled: More inputs of the target, for the alignment.
        task: ``"classification"``, ``"multilabel"``, ``"regression"`` or ``"dense"`` (fields).
        method: A name in `METHODS`, or ``"auto"``: naive fine-tuning, unless another method is better by a standard
            error.
        predictor: Of methods that align: ``"transport"``, ``"head"`` or ``"auto"``.
        compare: Run all methods, or these.
        seed: Of all that is drawn; the same seed gives the same result.
        embedder: For the target's inputs; by default one is made.
        metric: What errors are measured by; by default ``"error"``, ``"map"`` or ``"nrmse"``, by the kind of task.
        minutes: Begin no more methods after this time; notes say which were left out.
        preset: Settings of the paper's tables 8 and 9, by name: ``"ecg"``, ``"pde-burgers"``.
        state: A folder that keeps what is done: a run that was killed goes on from there.
        progress: Called with a line of text as the work goes on; True for lines on stderr.
        **options: The other `Settings`: ``steps=``, ``batch_size=``, ``body="lora"``, ``regularise=`` and so on.

    Raises:
        DataError, ShapeError: if data or options cannot be used; the message names the row.
        WiringError: if the source cannot be divided; says what to give.
        FileError: if ``state`` holds another run.

    Example:
        >>> model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> proxy = torch.randn(60, 6), torch.arange(60) % 3
        >>> train = torch.randn(40, 1, 8), torch.arange(40) % 2
        >>> result = adapt(model, proxy, train, method="linear-probe", steps=2)
        >>> result.model(train[0]).shape, result.method
        (torch.Size([40, 2]), 'linear-probe')
    """
    report = reporter_of(progress)
    watch = Stopwatch()
    if method != AUTO:
        method = METHODS[method].name
    names = _names(method, compare)
    if minutes is not None:
        require_finite("minutes", minutes, above=0)
    budget = Budget(minutes)
    generator_of(seed)
    parts = source if isinstance(source, Source) else Source.of(source)
    samples, task_of, valid_count = _read_target(train, valid, task, metric, options, seed)
    count = len(samples) - valid_count
    settings = make_settings({**options, "predictor": predictor}, preset=preset, samples=count)
    tested = _read_test(test, task_of, samples)
    more = None if unlabelled is None else _read_unlabelled(unlabelled, samples)
    require_packages(method, is_compared=bool(compare), body=settings.body)
    report("looking at the proxy")
    setup = prepare_setup(
        parts, proxy, task_of, samples, unlabelled=more, settings=settings, embedder=embedder, seed=seed, watch=watch
    )
    notes = list(setup.notes)
    journal = open_journal(state, setup, None if tested is None else tested.inputs)
    folds = divide(setup.classes, seed=seed, valid=valid_count)
    with watch("held-out"):
        runs, left_out = _run_methods(setup, folds, names, journal, budget, report)
    if left_out:
        notes.append(f"The time was up before these were run: {', '.join(left_out)}.")
    verdict = judge_runs(runs, seed)
    chosen = _choose(runs, folds) if method == AUTO else next(run for run in runs if run.method == method)
    rows = torch.arange(count)
    report(f"fitting {chosen.method} to all samples")
    with watch("fit"):
        fitted = METHODS[chosen.method].function(setup, rows, chosen.chosen.trial)
    answers: dict[tuple[str, str], Answer] = {}
    if tested is not None:
        with watch("test"):
            answers = _answer_test(setup, runs, rows, tested, journal, chosen, fitted, bool(compare), report)
    with watch("bound"):
        bounds = _measure_bounds(setup, folds, runs, tested, answers, chosen, bool(compare))
    bound = bounds.get(chosen.method)
    notes += _notes_on(setup, bound, chosen, settings.steps_for(len(setup.samples)))
    table = tuple(row for run in runs for row in _table_rows(setup, folds, run, bool(compare), answers, tested, bounds))
    metrics: dict[str, float] = {"error_valid": chosen.error}
    scores_test = {}
    if tested is not None:
        key = (chosen.method, chosen.chosen.trial.name)
        metrics["error_test"] = task_of.error(answers[key].outputs, _labels(tested))
        scores_test = {
            _row_name(*names): task_of.scores(found.outputs, _labels(tested)) for names, found in answers.items()
        }
    if bound is not None:
        metrics |= {"omega": bound.omega, **bound.metrics()}
    return Adaptation(
        model=fitted.model,
        method=chosen.method,
        trial=chosen.chosen.trial.name,
        verdict=verdict,
        table=table,
        bound=bound,
        looks=fitted.looks,
        scores_test=scores_test,
        blueprint=describe_model(fitted.model, setup),
        metrics={name: value for name, value in metrics.items() if value is not None},
        notes=tuple(notes),
        timings=watch.timings,
        request={
            "task": task_of.kind,
            "method": method,
            "metric": task_of.metric.name,
            "compare": compare if isinstance(compare, bool) else list(compare),
            "seed": seed,
            "minutes": minutes,
            "preset": preset,
            "samples": count,
            **asdict(settings),
            "steps": settings.steps_for(len(setup.samples)),
        },
    )


def require_packages(method: str, *, is_compared: bool = False, body: str | None = None) -> None:
    """See that optional packages are there, before long work begins.

    Raises:
        MissingExtraError: if one is not; names the extra that brings it.
    """
    is_simple = method != AUTO and METHODS[method].traits["group"] == "simple"
    if is_compared or not is_simple:
        import_extra("ot", "Aligning features with those of the source", "ot")
    if body == "lora":
        import_extra("peft", "A LoRA on the body", "hf")


# ---------------------------------------------------------------------- data


def _read_target(
    train: Any, valid: Any, kind: str, metric: str | None, options: Mapping[str, Any], seed: int
) -> tuple[Samples, TargetTask, int]:
    """All labelled samples, those of validation data last, the task, and how many are of validation data."""
    samples = read_samples(train, "the training data")
    assert samples.labels is not None
    task = TargetTask.of(kind, samples.labels, metric=metric, discretise=options.get("discretise") or 10, seed=seed)
    labels = task.require(samples.labels, "the training data")
    if valid is None:
        return Samples(samples.inputs, labels), task, 0
    held = read_samples(valid, "the validation data")
    _require_shape(held, samples, "the validation data")
    more = task.require(_labels(held), "the validation data")
    return Samples(torch.cat([samples.inputs, held.inputs]), torch.cat([labels, more])), task, len(held)


def _read_test(test: Any, task: TargetTask, samples: Samples) -> Samples | None:
    if test is None:
        return None
    tested = read_samples(test, "the test data")
    _require_shape(tested, samples, "the test data")
    return Samples(tested.inputs, task.require(_labels(tested), "the test data"))


def _read_unlabelled(data: Any, samples: Samples) -> Tensor:
    unlabelled = read_samples(data, "the unlabelled data", labelled=False)
    _require_shape(unlabelled, samples, "the unlabelled data")
    return unlabelled.inputs


def _require_shape(other: Samples, samples: Samples, name: str) -> None:
    if other.inputs.shape[1:] != samples.inputs.shape[1:]:
        raise ShapeError(
            f"Inputs of {name} have shape {tuple(other.inputs.shape[1:])} and those of the training data "
            f"{tuple(samples.inputs.shape[1:])}; give both in one shape."
        )


def _labels(samples: Samples) -> Tensor:
    assert samples.labels is not None
    return samples.labels


# ---------------------------------------------------------------------- methods


def _names(method: str, compare: bool | Sequence[str]) -> tuple[str, ...]:
    """The methods to run, in the order of the table."""
    wanted = set(CANDIDATES if method == AUTO else (*EVIDENCE, method))
    if compare is True:
        wanted = set(METHODS)
    elif compare:
        wanted |= {METHODS[require_choice("method of adapt", name, METHODS)].name for name in compare}
    return tuple(name for name in METHODS if name in wanted)


def _run_methods(
    setup: Setup,
    folds: tuple[Fold, ...],
    names: Sequence[str],
    journal: Journal,
    budget: Budget,
    report: Callable[[str], object],
) -> tuple[list[MethodRun], list[str]]:
    """Methods on held-out samples, and the names of those that there was no time for.

    What the verdict rests on is run first; the first method that trains everything tells how long others will take.
    """
    order = sorted(names, key=lambda name: (name not in EVIDENCE, name not in CANDIDATES))
    runs: dict[str, MethodRun] = {}
    left_out: list[str] = []
    expected = 0.0
    for name in order:
        trials = 2 if METHODS[name].traits["trials"] in ("rate", "predictor") else 0
        if name not in EVIDENCE and not budget.allows(expected * trials * len(folds)):
            left_out.append(name)
            continue
        runs[name] = hold_out(setup, folds, name, recall=journal.recall, report=report)
        expected = max(expected, sum(runs[name].chosen.seconds.values()))
    return [runs[name] for name in names if name in runs], left_out


def _choose(runs: Sequence[MethodRun], folds: tuple[Fold, ...]) -> MethodRun:
    """Naive fine-tuning, unless another method is better by a standard error of the paired folds; then the best."""
    plain = next((run for run in runs if run.method == PLAIN), runs[0])
    better = []
    for run in runs:
        gain, error = standard_error(plain.chosen, run.chosen, folds)
        if run is not plain and gain > error:
            better.append((gain, run))
    return max(better, key=lambda pair: pair[0])[1] if better else plain


def _answer_test(
    setup: Setup,
    runs: Sequence[MethodRun],
    rows: Tensor,
    tested: Samples,
    journal: Journal,
    chosen: MethodRun,
    fitted: Fitted,
    is_compared: bool,
    report: Callable[[str], object],
) -> dict[tuple[str, str], Answer]:
    """Answers to the test data of the method that was taken and, in a comparison, of all; by method and trial."""
    inputs = tested.inputs.to(setup.samples.inputs.device)
    answers = {(chosen.method, chosen.chosen.trial.name): answer(fitted, inputs)}
    for run in runs if is_compared else ():
        for trial in _reported_trials(run):
            if (run.method, trial.name) in answers:
                continue
            report(f"fitting {run.method} to all samples, for the table")

            def compute(name: str = run.method, trial: Trial = trial) -> Answer:
                return answer(METHODS[name].function(setup, rows, trial), inputs)

            key = ("test", run.method, trial.name)
            answers[run.method, trial.name] = journal.recall(key, compute)
    return answers


def _reported_trials(run: MethodRun) -> list[Trial]:
    """The chosen trial, and of methods with two kinds of predictor both, which have rows of their own."""
    fixed = [held.trial for held in run.tried if held.trial.name in ("transport", "head")]
    return [run.chosen.trial, *(trial for trial in fixed if trial is not run.chosen.trial)]


# ---------------------------------------------------------------------- the bound


def _measure_bounds(
    setup: Setup,
    folds: tuple[Fold, ...],
    runs: Sequence[MethodRun],
    tested: Samples | None,
    answers: Mapping[tuple[str, str], Answer],
    chosen: MethodRun,
    is_compared: bool,
) -> dict[str, TransferBound]:
    """The bound by method, on test data where there are some, else on held-out samples."""
    bounds: dict[str, TransferBound] = {}
    for run in runs if is_compared else [chosen]:
        key = (run.method, run.chosen.trial.name)
        if tested is not None and key in answers:
            outputs, features, labels = answers[key].outputs, answers[key].features, _labels(tested)
        else:
            outputs, features, labels = run.chosen.outputs, run.chosen.features, held_labels(setup, folds)
        if features is None:
            continue
        bounds[run.method] = bound_of(setup, outputs, features, labels.to(outputs.device))
    return bounds


def bound_of(setup: Setup, outputs: Tensor, features: Tensor, labels: Tensor) -> TransferBound:
    """The bound of any predictor on features in the source's space."""
    drawn = torch.randperm(len(outputs), generator=generator_of(setup.seed))[:MOST_FOR_BOUND]
    outputs, features, labels = outputs[drawn], features[drawn], labels[drawn]
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
    values = outputs.double().flatten(1)
    if task.kind == "multilabel":
        values = values.sigmoid()
    squares = torch.cdist(values if task.axes is None else values @ task.axes, task.codebook).square()
    usual = squares[torch.arange(len(squares)), classes].mean().clamp(min=1e-12)
    return (-squares / (2 * usual)).softmax(1)


# ---------------------------------------------------------------------- rows and notes


def _row_name(method: str, trial: str) -> str:
    return f"{method}-{trial}" if trial in ("transport", "head") else method


def _table_rows(
    setup: Setup,
    folds: tuple[Fold, ...],
    run: MethodRun,
    is_compared: bool,
    answers: Mapping[tuple[str, str], Answer],
    tested: Samples | None,
    bounds: Mapping[str, TransferBound],
) -> list[AdaptedRow]:
    """The row of a method and, where it has two kinds of predictor, a row for each of them."""
    rows = [_row(setup, folds, run, run.chosen, run.method, answers, tested, bounds)]
    fixed = [held for held in run.tried if held.trial.name in ("transport", "head")]
    if is_compared and len(fixed) > 1:
        rows += [
            _row(setup, folds, run, held, _row_name(run.method, held.trial.name), answers, tested, {}) for held in fixed
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
    bounds: Mapping[str, TransferBound],
) -> AdaptedRow:
    task, labels = setup.task, held_labels(setup, folds)
    interval = Bootstrap(len(held.scores), seed=setup.seed).interval(held.scores.cpu().numpy())
    on_test = answers.get((run.method, held.trial.name))
    return AdaptedRow(
        method=name,
        group=run.group,
        trial=held.trial.name,
        loss_valid=held.loss,
        error_valid=task.error(held.outputs, labels),
        score_valid=interval.value,
        low=interval.low,
        high=interval.high,
        fold_errors=held.errors,
        error_test=None if on_test is None or tested is None else task.error(on_test.outputs, _labels(tested)),
        steps=held.steps,
        seconds=dict(held.seconds),
        bound=bounds[run.method].metrics() if run.method in bounds else {},
        tried={each.trial.name: {"loss": each.loss, "error": task.error(each.outputs, labels)} for each in run.tried},
    )


def _notes_on(setup: Setup, bound: TransferBound | None, chosen: MethodRun, steps: int) -> list[str]:
    notes: list[str] = []
    if bound is not None:
        notes += bound.notes
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
    if math.isnan(chosen.error):
        raise DataError("The error of the method that was taken is NaN; look at the data and the metric.")
    return notes
