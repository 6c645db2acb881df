"""Merging in memory: modules, and mappings of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.errors import DataError, WiringError
from interbasin.jobs.merge.combining import combined, source_of_counts
from interbasin.jobs.merge.matching import check_alike, check_numbers
from interbasin.jobs.merge.numbers import STORED, Numbers
from interbasin.jobs.merge.operands import Operands
from interbasin.jobs.merge.recipe import Recipe
from interbasin.networks.checkpoints.checkpoint import Entry
from interbasin.networks.checkpoints.dtypes import kind_of_dtype
from interbasin.networks.checkpoints.in_memory import identity
from interbasin.networks.checkpoints.lora import refuse_factors
from interbasin.networks.wiring.copying import copied, forget_what_was_derived

__all__ = ["merge_modules", "merge_tensors"]

Model = TypeVar("Model", bound=nn.Module)


def merge_modules(models: Sequence[Model], recipe: Recipe, base: nn.Module | None) -> Model:
    """A new module of the first one's class; none of the given ones changes."""
    networks: list[nn.Module] = [*models, *([] if base is None else [base])]
    states = [dict(network.state_dict()) for network in networks]
    # What a module keeps beside its tensors has no arithmetic: the first one's stays.
    tensors = [{name: value for name, value in state.items() if isinstance(value, Tensor)} for state in states]
    for place, network in zip(_places(len(models), base), networks, strict=True):
        _refuse_codes(f"{place} ({type(network).__name__})", network)
    made = copied(models[0])
    made.load_state_dict(states[0] | merge_tensors(tensors[: len(models)], recipe, tensors[-1] if base else None))
    forget_what_was_derived(made)
    return made


def merge_tensors(
    models: Sequence[Mapping[str, Tensor]], recipe: Recipe, base: Mapping[str, Tensor] | None, kind: str | None = None
) -> dict[str, Tensor]:
    """New tensors, those that are tied in the first model tied again."""
    networks = _places(len(models), base)
    given = [*models, *([] if base is None else [base])]
    for network, tensors in zip(networks, given, strict=True):
        _check_mapping(network, tensors)
        refuse_factors(network, tensors)
    entries = [{name: _entry(tensor) for name, tensor in tensors.items()} for tensors in given]
    check_alike(list(zip(networks, entries, strict=True)))
    for network, found in zip(networks, entries, strict=True):
        check_numbers(network, found)
    made: dict[str, Tensor] = {}
    first: dict[object, str] = {}
    for name, start in models[0].items():
        stored = first.setdefault(identity(start), name)
        if stored != name:
            _check_tied(name, stored, networks, given)
            made[name] = made[stored]
            continue
        if _entry(start).kind not in STORED:
            made[name] = models[source_of_counts(recipe)][name].detach().to(start.dtype).clone()
            continue
        numbers = [_numbers(tensors[name]) for tensors in given]
        operands = Operands(numbers[: len(models)], numbers[-1] if base is not None else None)
        made[name] = _merged(name, operands, recipe, _kind_for(_entry(start).kind, kind), networks, start)
    return made


def _places(count: int, base: object) -> list[str]:
    return [f"model {number + 1}" for number in range(count)] + ([] if base is None else ["the base"])


def _kind_for(stored: str, asked: str | None) -> str:
    return stored if asked is None or stored.startswith("complex") else asked


def _check_mapping(network: str, tensors: Mapping[str, Any]) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise DataError(f"{name} of {network} is a {type(value).__name__}, expected a tensor; leave it out.")
        if value.is_quantized or value.layout != torch.strided or value.device.type == "meta":
            raise DataError(
                f"{name} of {network} has no numbers to add ({value.dtype}, {value.layout}, device "
                f"{value.device.type}); give the network as it was before it was quantised, or its tensors dense and "
                "loaded."
            )


def _refuse_codes(network: str, module: nn.Module) -> None:
    """Refuse parameters that are whole numbers: the codes of a quantised network."""
    for name, parameter in module.named_parameters():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise WiringError(
                f"{network} is quantised: its parameter {name} holds {parameter.dtype} codes, which cannot be added; "
                "give the network that it was made from."
            )


def _check_tied(name: str, stored: str, networks: Sequence[str], given: Sequence[Mapping[str, Tensor]]) -> None:
    for network, tensors in zip(networks[1:], given[1:], strict=True):
        if identity(tensors[name]) != identity(tensors[stored]) and not torch.equal(tensors[name], tensors[stored]):
            raise WiringError(
                f"{name} is tied to {stored} in {networks[0]}, and in {network} they differ; untie them in the first, "
                "or put the other one first."
            )


def _entry(tensor: Tensor) -> Entry:
    return Entry(kind_of_dtype(tensor.dtype), tuple(tensor.shape), tensor.element_size())


def _numbers(tensor: Tensor) -> Numbers:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    kind = kind_of_dtype(plain.dtype)
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    flat = plain.reshape(-1)
    if kind == "bfloat16":
        return Numbers.of_array(flat.view(torch.int16).numpy().view(np.uint16), kind)
    return Numbers.of_array(flat.numpy(), kind)


def _merged(name: str, operands: Operands, recipe: Recipe, kind: str, networks: Sequence[str], like: Tensor) -> Tensor:
    stored = np.empty(len(operands), STORED[kind])
    filled = 0
    for piece in combined(name, operands, recipe, kind, networks):
        stored[filled : filled + len(piece)] = piece
        filled += len(piece)
    if kind == "bfloat16":
        flat = torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    else:
        flat = torch.from_numpy(stored)
    if kind.startswith("complex"):
        flat = torch.view_as_complex(flat.reshape(-1, 2))
    return flat.reshape(like.shape).to(like.device)
