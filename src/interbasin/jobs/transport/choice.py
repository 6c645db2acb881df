"""Which method and which alpha: by inputs that nothing was fitted on, without labels or with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.errors import FileError, InterbasinError
from interbasin.evaluate.bootstrap import Interval
from interbasin.evaluate.performance import Loss, performance
from interbasin.jobs.transport.judge import Judge, relative_gain
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.theseus.carrier import Moved
from interbasin.jobs.transport.updates.update import Update
from interbasin.methods import Method

# What an update is multiplied with, where that is to be found out. 0 is an answer.
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
AS_GOOD = 0.02  # of what the best method gains
FEW_HELD_OUT = 30  # inputs, below which intervals are too narrow to be trusted
# Methods whose update is a direction; the others aim at tuned A itself, and 1 is what they mean.
SCALED = ("theseus", "direct")


@dataclass(frozen=True, eq=False)
class Candidate:
    """One method with one alpha, and how it does on held-out inputs."""

    method: str
    variant: str
    alpha: float
    transported: Transported
    effect: Interval
    losses: np.ndarray[Any, Any]
    score: float  # lower is better: the mean measure, or the loss on labelled data
    sweep: tuple[tuple[float, float], ...] = ()  # alpha and score


class ReadOut(nn.Module):
    """A network whose outputs are the logits that ``readout`` makes of them."""

    def __init__(self, network: nn.Module, readout: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.network, self.readout = network, readout
        self.training = network.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs = self.network(*args, **kwargs)
        # What a readout keeps for later calls must not be made in inference mode: gradients may meet it there.
        with torch.inference_mode(False), torch.no_grad():
            return self.readout(outputs)


@dataclass(frozen=True, eq=False)
class Referee:
    """Scores networks: by labels where there are some for it, else by tuned A's answers.

    Where the target is to keep its own answers to generic inputs, how far it comes from them counts as well: else the
    method that forgets most could win.
    """

    judge: Judge
    validate: Any = None
    loss: Loss | None = None
    keeping: Judge | None = None  # by the target's own answers, on generic inputs

    def score(self, model: nn.Module, losses: np.ndarray[Any, Any] | None = None) -> float:
        if self.validate is not None:
            readout = self.judge.task.readout
            network = model if self.loss is not None or readout is None else ReadOut(model, readout)
            return performance(network, self.validate, self.loss).loss
        score = float((self.judge.losses(model) if losses is None else losses).mean())
        if self.keeping is not None:
            score += self.judge.task.options.generic_weight * float(self.keeping.losses(model).mean())
        return score


def try_method(
    task: Task, referee: Referee, name: str, variant: str, alphas: Sequence[float] | None, variants: Callable[..., Any]
) -> Candidate:
    """A method fitted on the task's data, with the alpha that scores best on others."""
    transported = variants(task, variant)
    target = task.bases.target
    sweep = []
    for alpha in alphas or (1.0,):
        model = transported.update.added_to(target, alpha) if alpha else target
        sweep.append((referee.score(model), alpha))
    score, alpha = min(sweep)
    model = transported.update.added_to(target, alpha) if alpha else target
    losses = referee.judge.losses(model)
    effect = relative_gain(referee.judge.before, losses, task.options.seed)
    curve = tuple((alpha, score) for score, alpha in sweep)
    return Candidate(name, variant, alpha, transported, effect, losses, score, curve)


def choose(task: Task, referee: Referee, alpha: float | str | None) -> tuple[Candidate, list[Candidate], list[str]]:
    """The best of several methods, all of them, and notes on those that could not be tried."""
    candidates, notes = [], []
    failure: InterbasinError | None = None
    for name, method in METHODS.items():
        if name == "direct" and not _same_shapes(task):
            continue
        try:
            candidates.append(
                try_method(task, referee, name, method.variant(None), alphas_for(method, alpha, True), method.function)
            )
        except FileError:  # a full disk is no fault of the method
            raise
        except InterbasinError as error:
            failure = error
            notes.append(f"{name} could not be tried: {error}")
    if not candidates:
        assert failure is not None
        raise failure
    best = min(candidates, key=lambda candidate: candidate.score)
    usual = next((each for each in candidates if each.method == "regression"), None)
    # A handful of held-out inputs does not tell methods apart; the one that is usually best then stays.
    if usual is not None and best.alpha and task.bases.shares_outputs and referee.validate is None:
        is_shown = relative_gain(usual.losses, best.losses, task.options.seed).low > 0
        best = best if len(best.losses) >= FEW_HELD_OUT or is_shown else usual
    copied = next((each for each in candidates if each.method == "direct"), None)
    # A copy changes least, and needs nothing: where it is as good, it is better.
    if copied is not None and copied.alpha:
        gain = referee.score(task.bases.target, referee.judge.before) - best.score
        best = copied if copied.score <= best.score + AS_GOOD * max(gain, 0.0) else best
    return best, candidates, notes


def leave_as_it_is(task: Task, referee: Referee, name: str) -> Candidate:
    """What becomes of an update of zeros: no method is fitted, and the target stays as it is."""
    moved = tuple(Moved(tensor, None, "skipped", "its update is zero", 0.0) for tensor in task.update)
    losses = referee.judge.before
    effect = relative_gain(losses, losses, task.options.seed)
    score = referee.score(task.bases.target, losses)
    return Candidate(name, METHODS[name].variant(None), 0.0, Transported(Update(), moved), effect, losses, score)


def alphas_for(method: Method[Any], alpha: float | str | None, searched: bool) -> Sequence[float]:
    """The values of alpha to try: the one that was given, those of the search, or 1."""
    if isinstance(alpha, int | float):
        return (float(alpha),)
    search = alpha == "auto" or (alpha is None and searched)
    return ALPHAS if search and method.name in SCALED else (1.0,)


def _same_shapes(task: Task) -> bool:
    shapes = {name: tuple(tensor.shape) for name, tensor in task.bases.target.state_dict().items()}
    return all(shapes.get(name) == tuple(task.update.shape(name)) for name in task.update)
