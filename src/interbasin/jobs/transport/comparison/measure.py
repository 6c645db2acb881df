"""The table of a comparison: what each baseline and control reaches on the same held-out inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from interbasin.activations.recording import digest_of
from interbasin.errors import DataError, FileError, InterbasinError
from interbasin.evaluate.performance import Loss, performance
from interbasin.jobs.transport.choice import ReadOut, Referee
from interbasin.jobs.transport.comparison.table import COMPARED
from interbasin.jobs.transport.journal import RowJournal
from interbasin.jobs.transport.judge import Judge, relative_gain
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.result import ComparedRow
from interbasin.jobs.transport.task import Task


def rows_to_compare(names: bool | Sequence[str]) -> list[tuple[str, str]]:
    """Methods and their variants: those that were named, or all, the methods of transport first.

    Raises:
        UnknownNameError: for a name that does not exist.
        DataError: for what is no list of names.
    """
    if not isinstance(names, bool | list | tuple | set | frozenset):
        raise DataError(f"compare is True or a list of methods, found a {type(names).__name__}; give one of the two.")
    known = [*METHODS.names, *COMPARED.names]
    chosen = known if isinstance(names, bool) else list(names)
    rows = []
    for name in chosen:
        method = METHODS[name] if name in METHODS else COMPARED[name]
        rows += [(method.name, variant) for variant in method.variants or ("",)]
    return rows


def compare_methods(
    trial: Task, referee: Referee, names: bool | Sequence[str], labelled: Any, loss: Loss | None, generic: Any
) -> tuple[ComparedRow, ...]:
    """One row per method and variant, with alpha 1. What a method needs and these data lack is said in its row.

    Args:
        trial: The task without the held-out inputs.
        referee: Who holds them.
        names: True for all, or some.
        labelled: Labelled data for loss and accuracy, or None.
        loss: Of outputs and labels.
        generic: Held-out generic inputs, for what is forgotten, or None.
    """
    rows = []
    row_journal = _journal(trial, referee, labelled, generic)
    for name, variant in rows_to_compare(names):
        row = None if row_journal is None else row_journal.restore(name, variant)
        if row is None:
            trial.report(f"comparing: {name} {variant}".rstrip())
            row = _row(trial, referee, name, variant, labelled, loss, generic)
            if row_journal is not None:
                row_journal.keep(name, variant, row)
        rows.append(row)
    return tuple(rows)


def _journal(trial: Task, referee: Referee, labelled: Any, generic: Any) -> RowJournal | None:
    """Where rows are kept that depend on the same networks, data, options and functions of the caller's."""
    if trial.journal is None:
        return None
    bases, judge = trial.bases, referee.judge
    pairs = bases.correspondence.tensors, bases.correspondence.spaces
    score = None if labelled is None else referee.score(bases.target)
    return trial.journal.rows(
        (bases.source, bases.target, trial.tuned),
        (trial.data, judge.held, trial.generic, generic, labelled),
        options=replace(trial.options, mask=None),
        mask=trial.options.mask,
        bases=(bases.heads, bases.shares_outputs, *pairs, bases.lengthening is None),
        update=sorted((name, name in trial.update.factors) for name in trial.update),
        # What readout and loss make of the target's answers stands for these functions.
        measured=(digest_of(torch.from_numpy(judge.before)), score),
    )


def _row(
    trial: Task, referee: Referee, name: str, variant: str, labelled: Any, loss: Loss | None, generic: Any
) -> ComparedRow:
    method = METHODS[name] if name in METHODS else COMPARED[name]
    title = f"{name}, {variant}" if variant and len(method.variants) > 1 else name
    needs, start = tuple(sorted(method.needs)), time.perf_counter()
    try:
        with torch.inference_mode(False):  # some rows take gradients, which callers may have switched off
            transported = method.function(trial, variant)
        model: nn.Module = (
            transported.model if transported.model is not None else transported.update.added_to(trial.bases.target)
        )
        seconds = time.perf_counter() - start
        effect = relative_gain(referee.judge.before, referee.judge.losses(model), trial.options.seed)
    except FileError:  # a full disk is no fault of the method
        raise
    except InterbasinError as error:
        nothing = math.nan
        return ComparedRow(title, needs, nothing, nothing, nothing, None, 0.0, note=" ".join(str(error).split()))
    before = trial.update.norm()
    ratio = transported.update.norm() / before if before and transported.model is None else None
    row = ComparedRow(title, needs, effect.value, effect.low, effect.high, ratio, seconds)
    extra: dict[str, float | None] = {}
    if labelled is not None:
        network = model if trial.readout is None or loss is not None else ReadOut(model, trial.readout)
        measured = performance(network, labelled, loss)
        extra |= {"loss": measured.loss, "accuracy": measured.accuracy}
    if generic is not None and trial.bases.shares_outputs:
        extra["forgotten"] = float(Judge(trial.against_target(), generic).losses(model).mean())
    return ComparedRow(**{**vars(row), **extra})
