r"""The control with gradients and without labels: tuned A distilled into B [hinton:15].

:math:`\mathrm{KL}(A_{\mathrm{tuned}} \| B)` of the logits on the task inputs (the squared distance of outputs that are
no logits), and where generic inputs are given, :math:`\mathrm{KL}(B_{\mathrm{base}} \| B)` on those, so that B keeps
what it could do. AdamW, one cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, mse_loss

from interbasin.activations.pairing import masks_of
from interbasin.batches import WithoutLabels, device_of, outputs_of
from interbasin.checks import require_choice, require_finite, require_whole
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.jobs.transport.methods import as_update, theseus
from interbasin.jobs.transport.task import Task, Transported
from interbasin.randomness import generator_of
from interbasin.training import train
from interbasin.wiring.trace.calls import output_tensors
from interbasin.wiring.trace.copying import copied

STARTS = ("cold", "transported")


def distil(
    task: Task, variant: str = "cold", *, steps: int = 400, rate: float = 1e-3, batch_size: int = 256
) -> Transported:
    """Tuned A distilled into the target: ``"cold"`` from the base, ``"transported"`` from what theseus makes of it.

    The network is in evaluation mode throughout, so that dropout does not add noise and running statistics stay.

    Args:
        task: With outputs that the networks share. Generic inputs aim at the base target (or at tuned A:
            ``generic_target``), with ``generic_weight``.
        variant: Where it begins.
        steps: Of gradient descent.
        rate: The highest learning rate of the cycle.
        batch_size: Inputs in each step, half of them generic where there are any; no more than there are.

    Raises:
        WiringError: If outputs are not shared.
        ShapeError: If they have different shapes.
    """
    require_choice("start of a distillation", variant, STARTS)
    require_whole("steps", steps, least=1)
    require_whole("batch_size", batch_size, least=1)
    require_finite("rate", rate)
    if not task.bases.shares_outputs:
        raise WiringError(
            "Tuned A can only be distilled where its outputs mean the same in the target, and the networks' outputs "
            "are their own; leave distil out, or say outputs='shared'."
        )
    base, options = task.bases.target, task.options
    student = theseus(task, "spaces").update.added_to(base) if variant == "transported" else copied(base)
    student = student.eval().requires_grad_(True)
    feeds = [_Feed.of(task, task.data, task.tuned, 1.0)]
    if task.generic is not None:
        teacher = base if options.generic_target == "keep" else task.tuned
        feeds.append(_Feed.of(task, task.generic, teacher, options.generic_weight))
    generator = generator_of(options.seed)
    size = max(1, batch_size // len(feeds))

    def loss(step: Any, index: int) -> Tensor:
        total = torch.zeros((), device=device_of(student))
        for feed in feeds:
            total = total + feed.weight * feed.distance(student, size, generator)
        return total

    training = train(
        student.parameters(),
        range(steps),
        loss,
        epochs=1,
        rate=rate,
        one_cycle=steps,
        what="distillation",
        report=task.report,
    )
    note = f"Distilled in {steps} steps from {'the transported update' if variant == 'transported' else 'the base'}"
    return Transported(
        as_update(student.requires_grad_(False), base), notes=(f"{note}; mean loss {training.losses[-1]:.3g}.",)
    )


@dataclass(frozen=True, eq=False)
class _Feed:
    """Inputs of one kind, and what the teacher answers to them.

    Attributes:
        task: How outputs are read.
        pools: The inputs: one pool of all where they can be stacked, else one per batch.
        goals: The teacher's answers to each pool.
        weight: Of this kind in the loss.
    """

    task: Task
    pools: Sequence[Any]
    goals: Sequence[Tensor]
    weight: float

    @classmethod
    def of(cls, task: Task, data: Any, teacher: nn.Module, weight: float) -> _Feed:
        batches = list(WithoutLabels(data))
        if not batches:
            raise DataError("The data of distillation hold no batch at all; give some.")
        modes = {id(module): module.training for module in teacher.modules()}
        try:
            with torch.no_grad():
                teacher.eval()
                goals = [answer(outputs_of(teacher, each, n), task)[0] for n, each in enumerate(batches)]
        finally:
            for module in teacher.modules():
                module.training = modes[id(module)]
        joined = _stack_batches(batches)
        if joined is None or len({goal.shape[1:] for goal in goals}) > 1:
            return cls(task, batches, goals, weight)
        return cls(task, [joined], [torch.cat(goals)], weight)

    def distance(self, student: nn.Module, size: int, generator: torch.Generator) -> Tensor:
        """The divergence of the student from the teacher on inputs drawn at random."""
        number = int(torch.randint(len(self.pools), (1,), generator=generator))
        goal = self.goals[number]
        rows = torch.randint(len(goal), (min(size, len(goal)),), generator=generator)
        inputs = _take_rows(self.pools[number], rows, len(goal))
        outputs, are_logits = answer(outputs_of(student, inputs, number), self.task)
        goal = goal[rows.to(goal.device)].to(outputs)
        if outputs.shape != goal.shape:
            raise ShapeError(
                f"Outputs were taken as shared, and the networks put out {tuple(goal.shape)} and "
                f"{tuple(outputs.shape)}; say outputs='own', or give readout=."
            )
        masks = masks_of(inputs, self.task.options.mask, outputs.device)
        counts = None if masks is None or outputs.ndim < 3 else masks.fitting("", outputs.shape[:-1])
        if counts is not None:
            outputs, goal = outputs[counts], goal[counts]
        if not are_logits:
            return mse_loss(outputs, goal, reduction="sum") / max(outputs[..., 0].numel(), 1)
        outputs, goal = (log_softmax(each.flatten(0, -2), -1) for each in (outputs, goal))
        return kl_div(outputs, goal, log_target=True, reduction="batchmean")


def answer(outputs: Any, task: Task) -> tuple[Tensor, bool]:
    """A network's answer as one tensor, and whether it is logits: as the read-out makes it, or as it is."""
    if task.readout is not None:
        return task.readout(outputs), True
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(named, Tensor):
        return named, True
    tensors = output_tensors(outputs)
    if not tensors:
        raise DataError("The networks put out no tensor that could be compared; give readout=.")
    return tensors[0], False


def _stack_batches(batches: Sequence[Any]) -> Any:
    """All inputs as one batch, or None where they cannot be put together."""
    first = batches[0]
    if any(type(each) is not type(first) for each in batches):
        return None
    if isinstance(first, Tensor):
        alike = all(each.ndim and each.shape[1:] == first.shape[1:] for each in batches)
        return torch.cat(list(batches)) if alike else None
    if isinstance(first, Mapping):
        if any(each.keys() != first.keys() for each in batches):
            return None
        parts = {name: _stack_batches([each[name] for each in batches]) for name in first}
        return None if any(part is None for part in parts.values()) else parts
    if isinstance(first, list | tuple):
        if len({len(each) for each in batches}) > 1:
            return None
        places = [_stack_batches([each[place] for each in batches]) for place in range(len(first))]
        return None if any(part is None for part in places) else tuple(places)
    return None


def _take_rows(inputs: Any, rows: Tensor, count: int) -> Any:
    """Some rows of whatever has one row per input."""
    if isinstance(inputs, Tensor):
        return inputs[rows.to(inputs.device)] if inputs.ndim and len(inputs) == count else inputs
    if isinstance(inputs, Mapping):
        return {name: _take_rows(part, rows, count) for name, part in inputs.items()}
    if isinstance(inputs, list | tuple):
        return tuple(_take_rows(part, rows, count) for part in inputs)
    return inputs
