"""Where an update comes from: a tuned network, an adapter of PEFT in memory or on disk, updates by name, or a file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.checkpoints import Checkpoint, Entry, LazyTensors, open_checkpoint
from interbasin.checkpoints.checkpoint import ARITHMETIC
from interbasin.checkpoints.delta import LoraUpdate, add, difference, equal_as_stored
from interbasin.checkpoints.in_memory import HeldTensors, tensors_of
from interbasin.checkpoints.lora import (
    CONFIGURATION,
    Adapter,
    Factors,
    factor_of,
    is_adapter_name,
    parse_adapter,
    plain_name,
)
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.extras import import_extra
from interbasin.jobs.transport.networks import refuse_lora, refuse_quantised
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.settings import refuse_other_settings
from interbasin.models.loading import load_model
from interbasin.text import list_names

FILE, FOLDER = "update.safetensors", "adapter"
MARK = "interbasin_update"  # the note in the header of such a file
# An update this parallel to the weights themselves is no update.
PARALLEL = 0.7
# Of some of the tensors that is only said where there are so many numbers that chance does not make them parallel, and
# where they are about as large as the weights: an update may well shrink or enlarge a tensor.
MANY, LARGER = 32, 2.0


@dataclass(frozen=True, eq=False)
class Parts:
    """What an `Update` is made of; see there."""

    dense: Mapping[str, Tensor]
    label: str
    factors: Mapping[str, Factors] = field(default_factory=dict)
    transposed: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def read_update(tuned: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str], source: nn.Module) -> Parts:
    """What makes ``source`` into ``tuned``; see `Update.of`."""
    if not isinstance(source, nn.Module):
        raise WiringError(f"An update is of a torch.nn.Module, found a {type(source).__name__}; give the base as one.")
    refuse_quantised(source)
    refuse_lora(source)
    if isinstance(tuned, nn.Module):
        return _of_module(tuned, source)
    if isinstance(tuned, Mapping):
        return _of_checkpoint(tuned, source) if isinstance(tuned, Checkpoint) else _of_updates(tuned, source)
    if isinstance(tuned, str | os.PathLike):
        return _of_path(tuned, source)
    raise DataError(
        f"A fine-tune is a module, an adapter's folder or a mapping of updates, found a {type(tuned).__name__}."
    )


def _of_module(tuned: nn.Module, source: nn.Module) -> Parts:
    if hasattr(tuned, "peft_config"):
        return _of_adapted(tuned, source)
    factor = next((name for name in tuned.state_dict() if factor_of(name)), None)
    if factor is not None:
        raise DataError(
            f"The tuned network holds a LoRA ({factor}), and does not say its scale; give the peft.PeftModel, the "
            "adapter's folder, or the network with the LoRA merged into it."
        )
    label = f"the fine-tuned {type(tuned).__name__}"
    parts = _of_weights(tuned, source, label)
    refuse_other_settings(tuned, source, label)
    return parts


def _of_weights(tuned: nn.Module | LazyTensors, source: nn.Module, label: str) -> Parts:
    held, base = tensors_of(tuned, "the tuned network"), HeldTensors(source, "the base")
    for name in (name for name in base if name in held and held.shape(name) != base.shape(name)):
        raise ShapeError(
            f"{name} has shape {held.shape(name)} in {label} and {base.shape(name)} in the base; a fine-tune has the "
            "shapes of the network that it began with: give that one as the source."
        )
    delta = difference(held, base)
    if isinstance(tuned, nn.Module):
        for name in delta.entries:
            delta[name]  # refuses what is not finite now, and not half-way through the job
    once = _names_once({*delta.entries}, delta, base)
    # Networks may write their buffers when they run: their updates are computed now, and not when they are asked for.
    held_now = {name: delta[once.pop(name)] for name, _ in source.named_buffers() if name in once}
    return Parts(Picked(delta, once, held_now), label)


def _of_path(path: str | os.PathLike[str], source: nn.Module) -> Parts:
    place = Path(path).expanduser()
    if place.is_dir():
        for folder in (place, place / FOLDER):
            if (folder / CONFIGURATION).is_file():
                return _of_checkpoint(open_checkpoint(folder), source)
        if (place / FILE).is_file():
            place = place / FILE
    if place.is_file():
        return _of_checkpoint(open_checkpoint(place), source)
    if place.is_dir():
        checkpoint = open_checkpoint(place)
        if {*source.state_dict()} <= {*checkpoint.names} | {*HeldTensors(source, "the base").ties}:
            return _of_checkpoint(checkpoint, source)
    # transformers stores some networks under other names, and the other forms have to be built.
    tuned = load_model(path).model
    parts = _of_weights(tuned, source, os.fspath(path))
    refuse_other_settings(tuned, source, os.fspath(path))
    return parts


def _of_checkpoint(checkpoint: Checkpoint, source: nn.Module) -> Parts:
    if checkpoint.adapter is not None:
        return _of_lora(checkpoint, checkpoint.adapter, source, checkpoint.label)
    if MARK in checkpoint.metadata:
        return _of_updates(checkpoint, source, label=checkpoint.label)
    parts = _of_weights(checkpoint, source, checkpoint.label)
    if checkpoint.folder is not None:
        refuse_other_settings(checkpoint.folder, source, checkpoint.label)
    return parts


# ---------------------------------------------------------------------- updates by name


def _of_updates(updates: Mapping[str, Tensor], source: nn.Module, label: str = "the given updates") -> Parts:
    tensors = tensors_of(updates, label)
    factor = next((name for name in tensors if isinstance(name, str) and is_adapter_name(name)), None)
    if factor is not None and factor not in source.state_dict():
        raise DataError(
            f"The mapping holds the state dict of an adapter ({factor}), which does not say its scale; give the "
            "peft.PeftModel or the adapter's folder, or updates by the names of the network's own tensors."
        )
    base = HeldTensors(source, "the base")
    require_fitting(tensors, base)
    for name in tensors.entries:
        if not bool(torch.isfinite(tensors[name]).all()):
            raise DataError(f"The update of {name} in {label} holds NaN or infinity; repair it first.")
    if not isinstance(updates, Checkpoint):  # which says that it holds updates
        _refuse_weights(tensors, base, label)
    return Parts(Picked(tensors, _names_once({*tensors}, tensors, base)), label)


def require_fitting(updates: LazyTensors, base: HeldTensors) -> None:
    """Refuse updates that are of no tensor of a network, or not of its shape; names one."""
    ties = {base.stored_name(name) for name in updates if name in base}
    apart = {name: base.tensors[stored].clone() for name, stored in base.ties.items() if stored in ties}
    add({**base.tensors, **apart}, updates)  # with tied tensors apart, for their names may have different updates


def _refuse_weights(updates: LazyTensors, base: HeldTensors, label: str) -> None:
    """Refuse a tuned network's own tensors in place of updates: added, they would double the base."""
    numbers = [name for name, entry in base.entries.items() if entry.kind in ARITHMETIC]
    names = [name for name in numbers if name in updates]
    of_updates = of_weights = of_both = 0.0
    for name in names:
        update, weight = (held[name].double().flatten() for held in (updates, base))
        of_updates, of_weights = of_updates + float(update @ update), of_weights + float(weight @ weight)
        of_both += float(update @ weight)
    if len(names) < len(numbers):
        size = math.sqrt(of_updates / of_weights) if of_weights else math.inf
        if sum(math.prod(base.shape(name)) for name in names) < MANY or not 1 / LARGER < size < LARGER:
            return
    if of_both > PARALLEL * math.sqrt(of_updates * of_weights) > 0:
        raise DataError(
            f"{label.capitalize()} are all but parallel to the weights of the base, as those of a tuned network are; a "
            "mapping holds updates. Give the tuned network as a module, or what "
            "interbasin.checkpoints.delta.difference(tuned, base) gives."
        )


def _names_once(names: set[str], tensors: LazyTensors, base: HeldTensors) -> dict[str, str]:
    """Name of the update -> name in ``tensors``: a tied tensor once, unless its names were trained apart."""
    once: dict[str, str] = {}
    for name in (name for name in base if name in names):
        stored = base.stored_name(name)
        if stored != name and stored in once and torch.equal(tensors[name], tensors[once[stored]]):
            continue
        once[stored if stored not in once else name] = name
    return once


# ---------------------------------------------------------------------- adapters


def _of_lora(tensors: Checkpoint | Mapping[str, Tensor], adapter: Adapter, source: nn.Module, label: str) -> Parts:
    adapter.require_plain_lora(label)
    base = HeldTensors(source, "the base")
    _refuse_another_base(tensors, base, label)
    _refuse_own_convolutions(tensors, source)
    update = LoraUpdate(tensors, source, adapter)
    names = [name for name in update if base.entry(name).kind in ARITHMETIC]
    dense: dict[str, Tensor | None] = {}
    factors: dict[str, Factors] = {}
    for name in names:
        pair = update.factors(name)
        if pair is None:
            dense[name] = None
        else:
            factors[name] = pair
    zeros, notes = _zeros_beside(update, base, names)
    once = {name: name for name in dense if name not in zeros.dropped}
    return Parts(
        Picked(update, once, zeros.tensors),
        label,
        {name: pair for name, pair in factors.items() if name not in zeros.dropped},
        frozenset(name for name in factors if update.is_transposed(name)),
        frozenset(name for name in factors if update.is_table(name)),
        (*notes, *update.notes),
    )


@dataclass(frozen=True)
class _Tied:
    """What becomes of tied tensors: names without an update of their own, and names that say the same as another."""

    tensors: dict[str, Tensor]
    dropped: frozenset[str]


def _zeros_beside(update: LoraUpdate, base: HeldTensors, names: list[str]) -> tuple[_Tied, tuple[str, ...]]:
    """PEFT changes the modules that an adapter names, and not others that hold the same tensor."""
    zeros: dict[str, Tensor] = {}
    dropped: set[str] = set()
    notes: list[str] = []
    for stored in dict.fromkeys(base.ties.values()):
        group = [stored, *(name for name, other in base.ties.items() if other == stored)]
        updated = [name for name in group if name in names]
        if not updated:
            continue
        if updated == group and all(_close(update[name], update[stored]) for name in group[1:]):
            dropped.update(group[1:])
            continue
        still = [name for name in group if name not in names]
        zeros |= {name: torch.zeros(()).expand(base.shape(name)) for name in still}
        notes.append(
            f"{list_names(group)} are one tensor in the base, and the adapter changes "
            + (f"{list_names(updated)} alone" if still else "each in its own way")
            + "; they are taken as tensors of their own."
        )
    return _Tied(zeros, frozenset(dropped)), tuple(notes)


def _close(first: Tensor, second: Tensor) -> bool:
    return float((first - second).norm()) <= 1e-6 * float(first.norm())


def _refuse_another_base(tensors: Mapping[str, Tensor], base: HeldTensors, label: str) -> None:
    """Refuse an adapter of which nothing fits; where single tensors do not, they are named later."""
    updated = {}
    for name in tensors:
        factor = factor_of(name)
        updated[name] = plain_name(name if factor is None else factor.weight)
    layers = {name.rpartition(".")[0] for name in base}
    if updated and not any(name in base or name.rpartition(".")[0] in layers for name in updated.values()):
        raise DataError(
            f"{label} updates {list_names(dict.fromkeys(updated.values()))}, and the base has no such modules, so that "
            f"it would do nothing; it is the adapter of another network. The base has {list_names(sorted(layers))}."
        )


def _refuse_own_convolutions(tensors: Mapping[str, Tensor], source: nn.Module) -> None:
    """Refuse layers beside which PEFT puts something that is no update of their weight."""
    kinds, modules = kinds_of(source), dict(source.named_modules())
    for name in tensors:
        factor = factor_of(name)
        layer = None if factor is None else plain_name(f"{factor.layer}.").removesuffix(".")
        if isinstance(modules.get(layer or ""), nn.modules.conv._ConvNd) and f"{layer}.weight" not in kinds:
            raise DataError(
                f"{name} belongs to {layer}, a convolution with groups, dilation or padding that PEFT leaves out of "
                "its factors, so that they are no update of its weight; leave that layer out of the LoRA."
            )


def _of_adapted(tuned: Any, source: nn.Module) -> Parts:
    """The update of a network that PEFT put an adapter on."""
    peft = import_extra("peft", "Reading the adapter of a network", "hf")
    active = getattr(tuned, "active_adapters", None) or [*tuned.peft_config]  # prompts have no layers to be active in
    active = active() if callable(active) else active
    label = f"the adapter of the {type(tuned).__name__}"
    if len(active) != 1:
        raise DataError(
            f"An update is that of one active adapter, and {type(tuned).__name__} has {len(active)} "
            f"({list_names(active) or 'none'}); choose one with set_adapter(name), or merge them first "
            "(add_weighted_adapter)."
        )
    (name,) = active
    settings = tuned.peft_config[name].to_dict()
    adapter = parse_adapter(settings, label)
    adapter.require_plain_lora(label)
    _require_acting(tuned, name, adapter, label)
    tensors = peft.get_peft_model_state_dict(tuned, adapter_name=name, save_embedding_layers=False)
    # What it is trained to be now, whatever becomes of the network.
    parts = _of_lora({key: tensor.detach().clone() for key, tensor in tensors.items()}, adapter, source, label)
    _require_same_beneath(tuned, source, {*parts.dense, *parts.factors}, label)
    return parts


def _require_acting(tuned: nn.Module, adapter: str, settings: Adapter, label: str) -> None:
    """Refuse an adapter that is merged, switched off, or scaled otherwise than its configuration says."""
    for place, module in tuned.named_modules():
        if getattr(module, "merged_adapters", None):
            raise DataError(f"{label} is merged into its base ({place}); call unmerge_adapter() first.")
        if getattr(module, "disable_adapters", None) is True:
            raise DataError(f"{label} is switched off ({place}); call enable_adapter_layers() first.")
        scaling = getattr(module, "scaling", None)
        layer = plain_name(f"{place}.").removesuffix(".")
        if isinstance(scaling, dict) and adapter in scaling and scaling[adapter] != settings.scaling_of(layer):
            raise DataError(
                f"{layer} has its LoRA scaled by {scaling[adapter]:g} where the configuration of {label} says "
                f"{settings.scaling_of(layer):g}; set lora_alpha or alpha_pattern accordingly."
            )


def _require_same_beneath(tuned: nn.Module, source: nn.Module, updated: set[str], label: str) -> None:
    """Refuse an adapter on a network that is not the base: what lies between the two would be lost."""
    base = source.state_dict()
    for name, tensor in tuned.state_dict().items():
        plain = plain_name(name)
        if is_adapter_name(name.removeprefix("base_model.model.")) or ".modules_to_save." in name or plain in updated:
            continue
        other = base.get(plain)
        # A network that was quantised for training shows codes here.
        if not isinstance(tensor, Tensor) or not isinstance(other, Tensor) or not tensor.is_floating_point():
            continue
        if not equal_as_stored(tensor, other):
            raise DataError(
                f"{label} lies on a network whose {plain} is not that of the base; give the base that it was trained "
                "on or, if that was trained too, the network with the adapter merged into it (merge_and_unload())."
            )


class Picked(LazyTensors):
    """Some tensors of others, under names of their own, and some that are held."""

    def __init__(
        self, tensors: LazyTensors, names: Mapping[str, str], more: Mapping[str, Tensor] | None = None
    ) -> None:
        self._tensors, self._names, self._more, self.ties = tensors, names, more or {}, {}
        self.entries = {name: tensors.entry(other) for name, other in names.items()} | {
            name: Entry.of(tensor.dtype, tensor.shape) for name, tensor in self._more.items()
        }

    @property
    def label(self) -> str:
        return self._tensors.label

    def __getitem__(self, name: str) -> Tensor:
        name = self.stored_name(name)
        return self._more[name] if name in self._more else self._tensors[self._names[name]]
