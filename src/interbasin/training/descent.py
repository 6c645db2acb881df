"""Steps of an optimiser: groups of tensors with rates of their own, the schedule of the rates, gradients of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError
from interbasin.training.processes import Processes

Loss = Callable[[Any, int], Tensor]

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
SCHEDULES = ("constant", "one-cycle", "cosine")
MOMENTUM = 0.9  # of SGD
GROUP = ("params", "rate", "decay")


def group_parameters(
    parameters: Iterable[Tensor] | Iterable[Mapping[str, Any]], rate: float | None, decay: float | None
) -> list[dict[str, Any]]:
    """Tensors, or groups of them with rates of their own, as torch's optimisers take them.

    Raises:
        DataError: if there is no tensor, or a group has no rate or an entry that means nothing.
    """
    members: list[Any] = list(parameters)
    groups: list[dict[str, Any]] = []
    for member in members if members and isinstance(members[0], Mapping) else [{"params": members}]:
        unknown = [name for name in member if name not in GROUP]
        if unknown or "params" not in member:
            fault = f"{unknown[0]!r}" if unknown else "no 'params'"
            raise DataError(f"A group of parameters holds 'params', 'rate' and 'decay'; this one has {fault}.")
        own_rate, own_decay = member.get("rate", rate), member.get("decay", decay)
        if own_rate is None:
            raise DataError("A group of parameters has no learning rate; give it a 'rate', or all of them rate=.")
        group = {"params": list(member["params"]), "lr": require_finite("rate", own_rate, least=0)}
        if own_decay is not None:
            group["weight_decay"] = require_finite("decay", own_decay, least=0)
        if group["params"]:
            groups.append(group)
    if not groups:
        raise DataError("There is nothing to train: no tensor was given; is everything frozen?")
    return groups


class Descent:
    """An optimiser of groups of tensors, with its schedule.

    Args:
        groups: From `group_parameters`.
        optimiser: A name in `OPTIMISERS`.
        schedule: A name in `SCHEDULES`.
        steps: The number of all steps, which schedules that fall need to know.
        precision: See `train`.
        together: Whether processes that were started together train together.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        optimiser: str,
        schedule: str,
        steps: int | None,
        *,
        precision: str | None,
        together: bool,
    ) -> None:
        self.parameters: list[Tensor] = [tensor for group in groups for tensor in group["params"]]
        self.processes = Processes(self.parameters, precision, together=together)
        name = require_choice("optimiser", optimiser, OPTIMISERS)
        first_rate = groups[0]["lr"]
        is_fused = precision is None and _can_fuse(self.parameters)
        options = {"momentum": MOMENTUM} if name == "sgd" else {"fused": is_fused}
        self.optimiser = OPTIMISERS[name](groups, lr=first_rate, **options)
        self._schedule: torch.optim.lr_scheduler.LRScheduler | None = None
        schedule = require_choice("schedule", schedule, SCHEDULES)
        if schedule != "constant" and steps != 0:
            if steps is None:
                raise DataError(
                    f"schedule={schedule!r} needs the number of all steps, and the data do not tell how many batches "
                    "they hold; give steps= in place of epochs=."
                )
            self._schedule = (
                torch.optim.lr_scheduler.OneCycleLR(self.optimiser, [group["lr"] for group in groups], steps)
                if schedule == "one-cycle"
                else torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, steps)
            )

    @property
    def rates(self) -> list[float]:
        """The learning rate of each group, for the next step."""
        return [float(group["lr"]) for group in self.optimiser.param_groups]

    def step(
        self, batches: Sequence[Any], first: int, loss: Loss, fail: Callable[[float, int], Exception]
    ) -> list[float]:
        """Take one step along the mean gradient of some batches; the losses of the batches.

        Args:
            batches: At least one.
            first: The number of the first of them.
            loss: Of a batch and its number.
            fail: The error for a loss that is not finite and the number of its batch.
        """
        self.optimiser.zero_grad()
        values = []
        for index, batch in enumerate(batches, first):
            part, weight = self.processes.share(batch)
            if not weight:  # fewer rows than processes
                values.append(0.0)
                continue
            with self.processes.autocast():
                value = loss(part, index)
            values.append(float(value.detach()) * weight)
            if not math.isfinite(values[-1]) and self.processes.count == 1:
                raise fail(values[-1], index)
            scale = weight / len(batches)
            self.processes.backward(value if scale == 1 else value * scale)
        values = self.processes.average(self.parameters, values)
        for index, mean in enumerate(values, first):
            if not math.isfinite(mean):  # in all processes at once
                raise fail(mean, index)
        for parameter in self.parameters:
            if parameter.grad is not None and not parameter.grad.is_contiguous():  # see `_can_fuse`
                parameter.grad = parameter.grad.contiguous()
        if self.processes.step(self.optimiser) and self._schedule is not None:
            self._schedule.step()
        return values

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a checkpoint holds of optimiser and schedule: what JSON can say, and tensors."""
        document, tensors = pack_optimiser(self.optimiser)
        schedule = None if self._schedule is None else self._schedule.state_dict()
        return {**document, "schedule": schedule, "scale": self.processes.pack()}, tensors

    def restore(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `pack`."""
        restore_optimiser(self.optimiser, document, tensors)
        if self._schedule is not None:
            self._schedule.load_state_dict(document["schedule"])
        self.processes.restore(document["scale"])


def pack_optimiser(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a checkpoint holds of an optimiser: what JSON can say, and tensors."""
    state = optimiser.state_dict()
    tensors, plain = {}, {}
    for position, entries in state["state"].items():
        for name, entry in entries.items():
            if isinstance(entry, Tensor):
                tensors[f"optimiser.{position}.{name}"] = entry
            else:
                plain[f"optimiser.{position}.{name}"] = entry
    groups = [{name: entry for name, entry in group.items() if name != "params"} for group in state["param_groups"]]
    return {"groups": groups, "optimiser": plain}, tensors


def restore_optimiser(
    optimiser: torch.optim.Optimizer, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """The inverse of `pack_optimiser`."""
    state: dict[int, dict[str, Any]] = {}
    for key, entry in (*tensors.items(), *document["optimiser"].items()):
        kind, _, place = key.partition(".")
        if kind == "optimiser":
            position, _, name = place.partition(".")
            state.setdefault(int(position), {})[name] = entry
    groups = []
    for now, packed in zip(optimiser.state_dict()["param_groups"], document["groups"], strict=True):
        lists_as_tuples = {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in packed.items()}
        groups.append({**lists_as_tuples, "params": now["params"]})
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def _can_fuse(parameters: Sequence[Tensor]) -> bool:
    """Whether Adam may update all tensors in one pass over memory.

    That saves about a seventh of a step of a small transformer. Torch's kernel for the CPU reads memory in its order
    and does not look at strides, so that tensors and gradients which lie otherwise would get each other's updates.
    """
    return all(
        parameter.is_contiguous()
        and parameter.dtype in (torch.float32, torch.float64)
        and parameter.device.type in ("cpu", "cuda")
        for parameter in parameters
    )
