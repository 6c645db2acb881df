"""Tied tensors whose names have updates of their own: a LoRA on a head that is also the table of tokens, for example.

PEFT adds such a LoRA to what the head puts out, and the table stays as it was. So the fine-tune belongs to a network
in which the two are tensors of their own, and it can only be given to such a network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.batches import outputs_of
from interbasin.checkpoints.in_memory import HeldTensors
from interbasin.errors import WiringError
from interbasin.text import list_names
from interbasin.wiring.trace.calls import output_tensors
from interbasin.wiring.trace.copying import copied, forget_what_was_derived

if TYPE_CHECKING:
    from interbasin.jobs.transport.updates.update import Update

Model = TypeVar("Model", bound=nn.Module)


def names_apart(update: Update, model: nn.Module) -> list[str]:
    """Names of tied tensors of a network that an update changes otherwise than the tensor that they are tied to."""
    ties = HeldTensors(model, "the network").ties
    apart = []
    for name, stored in ties.items():
        group = [stored, *(other for other in ties if ties[other] == stored)]
        if name not in update or not any(other in update for other in group if other != name):
            continue  # an update under one of its names is that of the tied tensor
        if stored not in update or not torch.equal(update.tensor(name), update.tensor(stored)):
            apart.append(name)
    return apart


def refuse_names_apart(update: Update, model: nn.Module, remedy: str = "call interbasin.transport") -> None:
    """Refuse an update for which tied tensors would have to be taken apart, where the bases stay as they are.

    ``remedy`` says who takes them apart.

    Raises:
        WiringError: if a tensor that is tied in the network has different updates under its names.
    """
    apart = names_apart(update, model)
    if apart:
        raise WiringError(
            f"{list_names(apart)} is tied to another tensor of the source, and {update.label} changes the two in "
            f"different ways, while the bases are taken as they are here; {remedy}, which takes such tensors apart."
        )


def untie(model: nn.Module, names: Collection[str]) -> None:
    """Make tied parameters into tensors of their own, in place."""
    for name in names:
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        tensor = getattr(module, last)
        setattr(module, last, nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad))
    forget_what_was_derived(model)


def copy_untied(model: Model, names: Collection[str] | None = None) -> Model:
    """A copy in which some tied parameters, by default all, are tensors of their own; it computes the same."""
    copy = copied(model)
    parameters = {name for name, _ in copy.named_parameters(remove_duplicate=False)}
    chosen = HeldTensors(copy, "the network").ties if names is None else names
    untie(copy, [name for name in chosen if name in parameters])
    return copy


def spread(updates: Sequence[Update], model: nn.Module) -> list[Update]:
    """Updates of one network, of which some change tied names apart, so that all of them name these alike."""
    apart = list(dict.fromkeys(name for update in updates for name in names_apart(update, model)))
    ties = HeldTensors(model, "the network").ties
    named = []
    for update in updates:
        missing = {name: ties[name] for name in apart if name not in update and ties[name] in update}
        if missing:
            update = replace(
                update, dense={**update.dense, **{name: update.tensor(stored) for name, stored in missing.items()}}
            )
        named.append(update)
    return named


def with_zeros(update: Update, model: nn.Module) -> Update:
    """An update for a network whose tied names are apart: those that it does not change are named, with zeros."""
    held = HeldTensors(model, "the network")
    zeros: dict[str, Tensor] = {}
    for stored in dict.fromkeys(held.ties.values()):
        group = [stored, *(name for name, other in held.ties.items() if other == stored)]
        if any(name in update for name in group):
            zeros |= {name: torch.zeros(held.shape(name)) for name in group if name not in update}
    return replace(update, dense={**update.dense, **zeros}) if zeros else update


def can_be_stored(model: nn.Module, inputs: Any) -> bool:
    """Whether a network whose tied tensors were taken apart computes the same when its configuration says so.

    If it does, the configuration says so from now on. T5 multiplies what its decoder puts out by another number where
    the head is not tied: such a network has no configuration of its own.
    """
    config: Any = getattr(model, "config", None)
    if not getattr(config, "tie_word_embeddings", False):
        return True
    with torch.no_grad():
        before = output_tensors(outputs_of(model, inputs, 0))[0].clone()
        config.tie_word_embeddings = False
        after = output_tensors(outputs_of(model, inputs, 0))[0]
    is_same = torch.equal(before, after)
    config.tie_word_embeddings = not is_same
    return is_same
