"""What the target learns and what it forgets, over several weights of generic inputs: the front of a regression."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from interbasin.checks import require_finite
from interbasin.errors import DataError
from interbasin.evaluate.performance import Loss
from interbasin.jobs.transport.bases import Bases
from interbasin.jobs.transport.choice import Candidate, Referee
from interbasin.jobs.transport.figures import distance_from_target, labelled_metrics
from interbasin.jobs.transport.judge import relative_gain
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.result import FrontRow
from interbasin.jobs.transport.task import MOST_WEIGHT, Task
from interbasin.jobs.transport.updates.update import Update

WEIGHTS = (0.05, 0.2, 0.5, 1.0, 3.0, 10.0)


def weights_of_front(front: bool | Sequence[float] | None, generic: Any, generic_target: str) -> tuple[float, ...]:
    """The weights of generic inputs that a front is drawn over; empty if none was asked for.

    Raises:
        DataError: if there are no generic inputs, they are not to be kept, or a weight is no number above zero.
    """
    if front is None or front is False:
        return ()
    if generic is None:
        raise DataError(
            "A front shows what the target learns and what it forgets of generic inputs, and there are none; give "
            "generic=, or leave out front=."
        )
    if generic_target != "keep":
        raise DataError(
            f"A front shows how much of its answers to generic inputs the target keeps, and generic_target is "
            f"{generic_target!r}; leave that out, or front=."
        )
    if front is True:
        return WEIGHTS
    if not isinstance(front, list | tuple) or not front:
        raise DataError(f"front= is True or weights of generic inputs, such as [0.1, 1, 10], found {front!r}.")
    checked = {require_finite("a weight of the front", weight, above=0, most=MOST_WEIGHT) for weight in front}
    return tuple(sorted(checked))


def require_answers(bases: Bases) -> None:
    """Refuse a front of networks with outputs of their own: nothing says what is forgotten there."""
    if not bases.shares_outputs:
        raise DataError(
            "A front shows how far the target's answers move, and each network has outputs of its own; leave out "
            "front=, or say outputs='shared'."
        )


def measure_front(
    trial: Task,
    referee: Referee,
    weights: Sequence[float],
    candidates: Sequence[Candidate],
    chosen: tuple[str, nn.Module],
    generic: Any,
    validate: Any = None,
    loss: Loss | None = None,
) -> tuple[FrontRow, ...]:
    """A regression with each weight, and beside them the target as it was, the tuned source and what was chosen.

    Args:
        trial: The task without the held-out inputs.
        referee: Who holds them.
        weights: Of the generic inputs.
        candidates: What was tried already; a regression among them is not fitted again.
        chosen: What was chosen, its name and the network without the held-out inputs.
        generic: All generic inputs; those that are held out are looked at.
        validate: Labelled data for loss and accuracy, or None.
        loss: Of outputs and labels.
    """
    fitted = next((each for each in candidates if each.method == "regression"), None)
    known = {} if fitted is None else {trial.options.generic_weight: fitted.transported.update}
    variant = METHODS["regression"].variant(None if fitted is None else fitted.variant)

    def row(point: str, model: nn.Module, weight: float | None = None, seconds: float = 0.0) -> FrontRow:
        effect = relative_gain(referee.judge.before, referee.judge.losses(model), trial.options.seed)
        forgotten = distance_from_target(trial, generic, model).value
        figures = labelled_metrics(validate, loss, trial.readout, {"": model})
        return FrontRow(point, weight, effect.value, effect.low, effect.high, forgotten, seconds=seconds, **figures)

    rows = [row("target", trial.bases.target), row("tuned source", trial.tuned)]
    for weight in weights:
        trial.report(f"front: regression with generic weight {weight:g}")
        began = time.perf_counter()
        update = _fit_with(trial, weight, variant, known)
        rows.append(row("regression", update.added_to(trial.bases.target), weight, time.perf_counter() - began))
    return (*rows, row(*chosen))


def _fit_with(trial: Task, weight: float, variant: str, known: Mapping[float, Update]) -> Update:
    if weight in known:
        update = known[weight]
    else:
        update = METHODS["regression"].function(trial.with_generic_weight(weight), variant).update
    rank = trial.options.rank
    return update if rank is None else update.truncated(rank, trial.bases.target)[0]
