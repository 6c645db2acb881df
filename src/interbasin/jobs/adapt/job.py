"""The job: methods on held-out samples, the verdict, the method that is taken, fitted to all samples, and its bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations.forward import without_autocast
from interbasin.batches import call_users, reporter_of
from interbasin.checks import require_finite
from interbasin.errors import DataError, FitError, ShapeError
from interbasin.extras import import_extra
from interbasin.jobs.adapt.files import describe_model, name_classes
from interbasin.jobs.adapt.fitting import Fitted, Trial
from interbasin.jobs.adapt.journal import Journal, find_place, open_journal
from interbasin.jobs.adapt.methods import METHODS
from interbasin.jobs.adapt.result import Adaptation
from interbasin.jobs.adapt.samples import Samples, in_single_precision, read_samples
from interbasin.jobs.adapt.settings import make_settings
from interbasin.jobs.adapt.setup import EarlyStop, Setup, TrainingPlaces, prepare_setup, require_features
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.table import (
    labels_of,
    measure_bounds,
    note_on_fields,
    notes_on,
    notes_on_options,
    reported_trials,
    row_name,
    table_rows,
)
from interbasin.jobs.adapt.task import Fold, TargetTask, divide
from interbasin.jobs.adapt.validation import (
    Answer,
    Budget,
    MethodRun,
    answer,
    constant_scores,
    fit,
    held_labels,
    hold_out,
    standard_error,
)
from interbasin.jobs.adapt.verdict import judge_runs
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.storage import as_path
from interbasin.text import plural

AUTO = "auto"
EVIDENCE = ("raw-linear", "nearest", "scratch", "naive")  # without which there is no verdict
CANDIDATES = ("raw-linear", "nearest", "random-body", "linear-probe", "scratch", "naive", "recraft")
PLAIN = "naive"  # what auto takes unless another method is better by a standard error


@torch.inference_mode(False)
@without_autocast()  # precision= says what trainings are cast to; distances and probes take float32
@torch.random.fork_rng(devices=[])  # layers draw weights when they are made
@in_single_precision()
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
    compare: bool | str | Collection[str] | None = False,
    seed: int = 0,
    *,
    embedder: nn.Module | None = None,
    metric: str | None = None,
    classes: Sequence[str] | None = None,
    minutes: float | None = None,
    preset: str | None = None,
    state: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    progress: Callable[[str], object] | bool | None = None,
    on_step: Callable[[int, int | None, float], object] | None = None,
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
        seed: Of all that is drawn: folds, new weights, batches, samples of the proxy, intervals. The same seed gives
            the same result. Only the third of the proxy on which the source's head is judged is the same for all seeds.
        embedder: For the target's inputs; by default one is made.
        metric: What errors are measured by; by default ``"error"``, ``"map"`` or ``"nrmse"``, by the kind of task.
        classes: Names of the classes, label 0 first, which are kept with the model as ``model.classes``.
        minutes: Begin no more methods after this time; notes say which were left out.
        preset: Settings of the paper's tables 8 and 9, by name: ``"ecg"``, ``"pde-burgers"``.
        state: A folder that keeps what is done: a run that was killed goes on from there.
        tensorboard: A folder for TensorBoard's files, one folder for each training and each stage 1; needs the extra
            ``adapt``.
        progress: Called with a line of text as the work goes on; True for lines on stderr, and a bar for each training.
        on_step: Called after each step of a training or of stage 1, with its number, the number of all steps of it and
            the loss; in place of bars.
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
    report_step = _step_reporter(on_step)
    watch = Stopwatch()
    if method != AUTO:
        method = METHODS[method].name
    if not isinstance(compare, bool | str | list | tuple | set | frozenset | None):
        raise DataError(f"compare= is True, False or names of methods, found {compare!r}.")
    compare = [compare] if isinstance(compare, str) else compare or False
    names = _names(method, compare)
    if minutes is not None:
        require_finite("minutes", minutes, above=0)
    budget = Budget(minutes)
    generator_of(seed)
    seed = int(seed)
    place = find_place(state)
    parts = source if isinstance(source, Source) else Source.of(source)
    samples = read_samples(train, "the training data")
    count = len(samples)
    settings = make_settings({**options, "predictor": predictor}, preset=preset, samples=count)
    task_of = TargetTask.of(task, labels_of(samples), metric=metric, discretise=settings.discretise, seed=seed)
    if settings.predictor == "transport" and task_of.kind != "classification":
        raise DataError(
            f'predictor="transport" carries classes over, and the task is {task_of.kind}; use '
            'predictor="head" or predictor="auto".'
        )
    names_of_classes = None if classes is None else _require_names(classes, task_of)
    if settings.patience is not None and valid is None:
        raise DataError(
            "patience= ends the final training by its loss on validation data, and there are none; give valid=, or "
            "leave patience= out."
        )
    samples = _join_valid(samples, valid, task_of)
    valid_count = len(samples) - count
    tested = None if test is None else _read_more(test, "the test data", task_of, samples)
    folds = divide(task_of.classes_of(labels_of(samples)), seed=seed, valid=valid_count)
    more = None if unlabelled is None else _read_unlabelled(unlabelled, samples)
    require_packages(method, is_compared=bool(compare), body=settings.body)
    report("looking at the proxy")
    setup = prepare_setup(
        parts, proxy, task_of, samples, unlabelled=more, settings=settings, embedder=embedder, seed=seed, watch=watch
    )
    if tested is not None:
        require_features(setup, tested.inputs, "the test data")
    notes = [
        *setup.notes,
        *notes_on_options({**options, "predictor": predictor, "unlabelled": unlabelled}, settings, names),
    ]
    journal = open_journal(place, setup, None if tested is None else tested.inputs)
    if journal.count_done():
        report(f"going on from an earlier run, which had done {plural(journal.count_done(), 'fit')}")
    log = None if tensorboard is None else as_path(tensorboard, "The folder for TensorBoard")
    setup = replace(setup, places=TrainingPlaces(journal.folder, log, report_step or progress is True))
    with watch("held-out"):
        runs, missing = _run_methods(setup, folds, names, method, journal, budget, report)
    notes += missing
    constant = constant_scores(setup, folds)
    verdict = judge_runs(runs, seed, constant=constant, compared_by=task_of.metric.compared_by)
    chosen = _choose(runs, folds) if method == AUTO else next(run for run in runs if run.method == method)
    rows = torch.arange(count)
    report(f"fitting {chosen.method} to all samples")
    stop = None if settings.patience is None else EarlyStop(settings.patience, torch.arange(count, len(samples)))
    with watch("fit"):
        fitted = fit(replace(setup, stop=stop), chosen.method, rows, chosen.chosen.trial)
    name_classes(fitted.model, names_of_classes)
    answers: dict[tuple[str, str], Answer] = {}
    if tested is not None:
        with watch("test"):
            answers = _answer_test(setup, runs, rows, tested, journal, chosen, fitted, bool(compare), report)
    with watch("bound"):
        bounds = measure_bounds(setup, folds, runs, tested, answers, chosen, bool(compare))
    bound = bounds.get((chosen.method, chosen.chosen.trial.name))
    notes += notes_on(setup, bound, chosen, fitted)
    if fitted.stopped_at is not None:
        notes.append(
            f"The final training ended after {plural(fitted.stopped_at, 'step')}: the loss on validation data fell no "
            "more. The model is that of its lowest; the table's figures are of all steps."
        )
    if method == AUTO and verdict.choice == "simple-model" and chosen.group != "simple":
        notes.append(
            f"The model is that of {chosen.method}, which auto takes unless another is better by a standard error; the "
            f'verdict says what is shown. For the simple model take method="{verdict.methods["simple"]}".'
        )
    notes += note_on_fields(task_of, chosen.chosen.scores, held_labels(setup, folds), "the held-out samples")
    table = tuple(row for run in runs for row in table_rows(setup, folds, run, bool(compare), answers, tested, bounds))
    metrics: dict[str, float] = {"error_valid": chosen.chosen.error}
    scores_test = {}
    if tested is not None:
        key = (chosen.method, chosen.chosen.trial.name)
        metrics["error_test"] = task_of.error(answers[key].outputs, labels_of(tested))
        scores_test = {
            row_name(*names): task_of.scores(reply.outputs, labels_of(tested)) for names, reply in answers.items()
        }
        notes += note_on_fields(task_of, scores_test[row_name(*key)], labels_of(tested), "the test data")
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
        blueprint=describe_model(fitted.model, setup, names_of_classes),
        metrics={name: value for name, value in metrics.items() if value is not None},
        notes=tuple(notes),
        timings=watch.timings,
        request={
            "task": task_of.kind,
            "method": method,
            "metric": task_of.metric.name,
            "classes": None if names_of_classes is None else list(names_of_classes),
            "compare": compare if isinstance(compare, bool) else sorted(compare),
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


def _step_reporter(
    on_step: Callable[[int, int | None, float], object] | None,
) -> Callable[[int, int | None, float], object] | None:
    if on_step is None:
        return None
    takes = "a step's number, the number of all steps and the loss"
    if not callable(on_step):
        raise DataError(f"on_step is a function of {takes}, found {type(on_step).__name__}.")
    return lambda step, steps, loss: call_users(on_step, "on_step", takes, step, steps, loss)


# ---------------------------------------------------------------------- data


def _require_names(classes: Sequence[str], task: TargetTask) -> tuple[str, ...]:
    """A name for each class of the task; those of classes behind the last that has samples are left out."""
    if task.kind != "classification":
        raise DataError(f"classes= are names of classes, and the task is {task.kind}, which has none; leave them out.")
    names = tuple(classes) if isinstance(classes, Iterable) and not isinstance(classes, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise DataError(f"classes= are names, a list of strings, found {classes!r}; give one for each class.")
    count = task.shape[0]
    if len(names) < count:
        raise DataError(f"{len(names)} names of classes were given and labels go up to {count - 1}; give {count}.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"Two classes are called {twice!r} in classes=; give each a name of its own.")
    return names[:count]


def _join_valid(samples: Samples, valid: Any, task: TargetTask) -> Samples:
    """All labelled samples, those of validation data last."""
    labels = task.require(labels_of(samples), "the training data")
    if valid is None:
        return Samples(samples.inputs, labels)
    held = _read_more(valid, "the validation data", task, samples)
    return Samples(torch.cat([samples.inputs, held.inputs]), torch.cat([labels, labels_of(held)]))


def _read_more(data: Any, name: str, task: TargetTask, samples: Samples) -> Samples:
    """Labelled samples like those of the training data."""
    more = read_samples(data, name)
    _require_shape(more, samples, name)
    labels = task.require(labels_of(more), name)
    task.error(torch.zeros(len(labels), *task.shape), labels)  # a metric that these labels do not have is refused now
    return Samples(more.inputs, labels)


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


# ---------------------------------------------------------------------- methods


def _names(method: str, compare: bool | Collection[str]) -> tuple[str, ...]:
    """The methods to run, in the order of the table."""
    wanted = set(CANDIDATES if method == AUTO else (*EVIDENCE, method))
    if compare is True:
        wanted = set(METHODS)
    elif compare:
        wanted |= {METHODS[name].name for name in compare}
    return tuple(name for name in METHODS if name in wanted)


def _run_methods(
    setup: Setup,
    folds: tuple[Fold, ...],
    names: Sequence[str],
    asked: str,
    journal: Journal,
    budget: Budget,
    report: Callable[[str], object],
) -> tuple[list[MethodRun], list[str]]:
    """Methods on held-out samples, and sentences about those that are missing.

    What is needed is run whatever the time, and first; the first method that trains everything tells how long others
    will take. A method that comes to no finite loss is missing, unless it is the one that was asked for.
    """
    needed = {*EVIDENCE, asked}
    order = sorted(names, key=lambda name: (name not in needed, name not in CANDIDATES))
    runs: dict[str, MethodRun] = {}
    left_out: list[str] = []
    failed: list[str] = []
    expected = 0.0

    def report_method(text: str) -> None:
        report(f"method {order.index(name) + 1} of {len(order)}: {text}")

    for name in order:
        trials = 2 if METHODS[name].traits["trials"] in ("rate", "predictor") else 0
        if name not in needed and not budget.allows(expected * trials * len(folds)):
            left_out.append(name)
            continue
        try:
            runs[name] = hold_out(setup, folds, name, recall=journal.recall, report=report_method)
        except FitError as error:
            if name == asked:
                raise
            failed.append(str(error))
            continue
        expected = max(expected, sum(runs[name].chosen.seconds.values()))
    if not runs:
        raise FitError(failed[0])
    missing = [f"The time was up before these were run: {', '.join(left_out)}."] if left_out else []
    return [runs[name] for name in names if name in runs], [*missing, *failed]


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
    """Answers to the test data by method and trial: of the method that was taken and of simple models, or of all."""
    inputs = tested.inputs.to(setup.samples.inputs.device)
    answers = {(chosen.method, chosen.chosen.trial.name): answer(fitted, inputs)}
    shown = runs if is_compared else [run for run in runs if run.group == "simple"]  # these take no time
    for run in shown:
        for trial in (held.trial for held in reported_trials(run)):
            if (run.method, trial.name) in answers:
                continue
            report(f"fitting {run.method} to all samples, for the table")

            def compute(name: str = run.method, trial: Trial = trial) -> Answer:
                return answer(fit(setup, name, rows, trial), inputs)

            key = ("test", run.method, trial.name, len(rows))
            answers[run.method, trial.name] = journal.recall(key, compute)
    return answers
