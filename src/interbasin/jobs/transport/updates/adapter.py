"""An update as a folder that PEFT loads: which weights can have factors there, and what becomes of all the others.

PEFT has four places for an update, and each tensor goes to the first that it can:

- factors, beside a linear layer, a ``Conv1D``, a table of embeddings or a plain convolution;
- a bias, which it loads into the network itself (``bias="lora_only"`` and ``"all"``);
- a module that is stored whole and takes the other's place (``modules_to_save``);
- any other tensor, which it loads into the network by its name. It stays there when the adapter is switched off, and
  PEFT's own ``save_pretrained`` leaves it out. This is for parameters of the network itself, such as the positions of a
  vision transformer of timm.

A tensor that is tied and changed by factors is stored whole in each module that holds it: PEFT changes only the modules
that an adapter names, and merging two LoRAs into one tensor would add both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import Tensor, nn

from interbasin.checkpoints.checkpoint import ARITHMETIC
from interbasin.checkpoints.delta import add
from interbasin.checkpoints.in_memory import HeldTensors
from interbasin.checkpoints.lora import write_adapter
from interbasin.errors import DataError
from interbasin.text import list_names, plural

if TYPE_CHECKING:
    from interbasin.jobs.transport.updates.update import Update

Kind: TypeAlias = Literal["linear", "conv1d", "convolution", "table"]
# Modules that PEFT cannot wrap; what they hold is stored with the module around them.
_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList)


def kinds_of(model: nn.Module) -> dict[str, Kind]:
    """The weights of a network beside which PEFT can put factors whose product is an update, and what they are.

    ``"conv1d"`` is the layer of transformers whose weight is stored (in, out). Left out are convolutions with groups,
    dilation or another padding than zeros, which PEFT's factors do not have, and all inside ``nn.MultiheadAttention``,
    which reads weights without calling their layers.

    Example:
        >>> kinds_of(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3)))
        {'0.weight': 'table', '1.weight': 'linear'}
    """
    names = {*model.state_dict()}
    attention = [f"{name}." for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
    kinds: dict[str, Kind] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        kind = _kind(module)
        weight = f"{name}.weight"
        if name and kind is not None and weight in names and not name.startswith(tuple(attention)):
            kinds[weight] = kind
    return kinds


def _kind(module: nn.Module) -> Kind | None:
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "table"
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        plain = module.groups == 1 and {*module.dilation} == {1} and module.padding_mode == "zeros"
        return "convolution" if plain else None
    return "conv1d" if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else None


def _task_type(model: nn.Module) -> str | None:
    """PEFT's name of the task, from which it tells how to load the base; of classifiers it would want their heads."""
    name = type(model).__name__
    return (
        "CAUSAL_LM"
        if name.endswith("LMHeadModel") or "CausalLM" in name
        else ("SEQ_2_SEQ_LM" if name.endswith("ForConditionalGeneration") else None)
    )


def write_as_adapter(
    update: Update,
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None,
    model: nn.Module,
    force: bool,
) -> tuple[str, ...]:
    """Write an update with factors as PEFT's folder; see `Update.write`."""
    network = _Network(update, model)
    plan = _plan(network)
    if not plan.factored:
        raise DataError(
            f"Nothing of {update.label} can be stored as factors: {list_names(update.factors)} would have to be stored "
            "whole; write it as a dense update (as_dense()), or add it to the network (added_to)."
        )
    kinds = {name: network.kinds[name] for name in plan.factored}
    write_adapter(
        path,
        {name.removesuffix(".weight"): update.factors[name] for name in plan.factored},
        base=base,
        tables=[name.removesuffix(".weight") for name, kind in kinds.items() if kind == "table"],
        whole=plan.tensors(network),
        modules=[name for name in network.modules if name],
        settings={
            "bias": plan.bias,
            "modules_to_save": list(plan.whole) or None,
            "fan_in_fan_out": "conv1d" in kinds.values(),
            "task_type": _task_type(model),
        },
        force=force,
    )
    return plan.notes(network)


class _Network:
    """A network with an update, as the plan asks about them."""

    def __init__(self, update: Update, model: nn.Module) -> None:
        self.update, self.held, self.kinds = update, HeldTensors(model, "the network"), kinds_of(model)
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def may_have_factors(self, name: str) -> bool:
        turned = self.kinds.get(name) in ("conv1d", "table")
        return name in self.kinds and turned == (name in self.update.transposed) and len(self.held_as(name)) == 1

    def changes(self, name: str) -> bool:
        return name in self.update.factors or bool(self.update.dense[name].any())

    def tied_with(self, name: str) -> list[str]:
        stored = self.held.stored_name(name)
        return [stored, *(other for other, first in self.held.ties.items() if first == stored)]

    def held_as(self, name: str) -> list[str]:
        """The names of a tensor that an update is for: all that are tied, unless they have updates of their own."""
        group = self.tied_with(name)
        return [name] if sum(other in self.update for other in group) > 1 else group

    def owner(self, name: str) -> str:
        """The module that can be stored whole to change a tensor; empty if there is none but the network itself."""
        owner = name.rpartition(".")[0]
        above = owner.rpartition(".")[0]
        if isinstance(self.modules.get(above), nn.MultiheadAttention):  # which reads the weights of what is in it
            owner = above
        while owner and isinstance(self.modules.get(owner), _CONTAINERS):
            owner = owner.rpartition(".")[0]
        return owner

    def value(self, name: str) -> Tensor:
        """A tensor of the network with its update."""
        tensor = self.held[name]
        named = next((alias for alias in (name, *self.tied_with(name)) if alias in self.update), None)
        if named is None or self.held.entry(name).kind not in ARITHMETIC:
            return tensor
        return add({name: tensor}, {name: self.update.tensor(named)})[name]


@dataclass(frozen=True)
class _Plan:
    """Which updates go where.

    Attributes:
        factored: Weights whose update is stored as factors.
        biases: Biases that are stored beside them.
        whole: Modules that are stored whole, none inside another.
        bare: Tensors that are stored by their names alone.
    """

    factored: tuple[str, ...]
    biases: tuple[str, ...]
    whole: tuple[str, ...]
    bare: tuple[str, ...]

    @property
    def bias(self) -> str:
        if not self.biases:
            return "none"
        return "lora_only" if all(self._beside_factors(name) for name in self.biases) else "all"

    def _beside_factors(self, name: str) -> bool:
        return f"{name.rpartition('.')[0]}.weight" in self.factored

    def tensors(self, network: _Network) -> dict[str, Tensor]:
        """What is stored beside the factors, as PEFT names it."""
        stored = {name: network.value(name) for name in network.held if _is_inside(name, self.whole)}
        for name in (*self.biases, *self.bare):
            layer, _, last = name.rpartition(".")
            stored[f"{layer}.base_layer.{last}" if self._beside_factors(name) else name] = network.value(name)
        return stored

    def notes(self, network: _Network) -> tuple[str, ...]:
        notes = []
        swallowed = [name for name in network.update.factors if name not in self.factored]
        if swallowed:
            held = network.held
            size = sum(held.entry(name).numel for name in held if _is_inside(name, self.whole) or name in self.bare)
            notes.append(
                f"{list_names(swallowed)} cannot be stored as factors, and {'is' if len(swallowed) == 1 else 'are'} "
                f"stored whole ({plural(size, 'number')} with what belongs to them)."
            )
        if self.bare:
            notes.append(
                f"PEFT loads {list_names(self.bare)} into the network itself: disabling the adapter does not take that "
                "back, and PEFT's own save_pretrained leaves it out."
            )
        above = {name: network.modules.get(name.rsplit(".", 2)[0]) for name in self.factored}
        fast = [name for name, module in above.items() if isinstance(module, nn.TransformerEncoderLayer)]
        if fast:
            notes.append(
                f"{list_names(fast)} lie in nn.TransformerEncoderLayer, whose fast path in evaluation reads weights "
                "and passes adapters by: merge the adapter (merge_and_unload()), or call "
                "torch.backends.mha.set_fastpath_enabled(False)."
            )
        return tuple(notes)


def _plan(network: _Network) -> _Plan:
    """Where each update goes."""
    update = network.update
    factored = [name for name in update.factors if network.may_have_factors(name)]
    rest = [name for name in update if name not in factored and network.changes(name)]
    # Only what PEFT calls a bias: its own save_pretrained has to find it again.
    biases = [name for name in rest if name.endswith(".bias") and name in network.parameters]
    owners = {name: {network.owner(alias) for alias in network.held_as(name)} for name in rest if name not in biases}
    bare = [name for name, modules in owners.items() if "" in modules or _holds_most(modules, factored)]
    while True:
        chosen = {module for name, modules in owners.items() if name not in bare for module in modules}
        alike = _with_namesakes(chosen, network, factored)
        whole = {module for module in alike if not _is_inside(module, alike)}
        # A module inside another whose name ends like that of one: PEFT would wrap both, and fail.
        torn = {
            outer
            for outer in whole
            for name in network.modules
            if _is_inside(name, [outer]) and any(name.endswith(module) for module in whole)
        }
        if not torn:
            break
        remaining = [name for name in owners if name not in bare]
        bare += [name for name in remaining if owners[name] & torn] or remaining
    apart = [name for name in bare if len(network.held_as(name)) < len(network.tied_with(name))]
    if apart:
        raise DataError(
            f"{apart[0]} is tied to another tensor that has an update of its own, and PEFT has no place for the two; "
            "write a dense update (as_dense()), or add it to the network (added_to)."
        )
    return _Plan(
        tuple(name for name in factored if not _is_inside(name, whole)),
        tuple(name for name in biases if not _is_inside(name, whole)),
        tuple(sorted(whole)),
        tuple(bare),
    )


def _with_namesakes(modules: set[str], network: _Network, factored: list[str]) -> set[str]:
    """Modules, and all others that PEFT takes for them: those whose names end alike."""
    while True:
        more = {name for name in network.modules for module in modules if name.endswith(module)}
        layers = [name.removesuffix(".weight") for name in factored]
        # Beside what its names, read as expressions, fit to, it puts no factors.
        more |= {
            layer
            for layer in layers
            for module in modules
            if not _is_inside(f"{layer}.", modules) and re.match(rf"(^|.*\.){module}($|\..*)", layer)
        }
        if more <= modules:
            return modules
        modules = modules | more


def _holds_most(modules: set[str], factored: list[str]) -> bool:
    """Whether more than half of the weights with factors would be stored whole with these modules."""
    return 2 * sum(_is_inside(name, modules) for name in factored) > len(factored)


def _is_inside(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
