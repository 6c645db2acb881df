"""An update as a folder that PEFT loads: which weights can have factors there, and what becomes of all the others.

PEFT has three places for an update:

- factors, beside a linear layer, a ``Conv1D``, a table of embeddings or a plain convolution;
- a bias, which it loads into the network itself (``bias="lora_only"`` and ``"all"``);
- a module that is stored whole and takes the other's place (``modules_to_save``).

A tensor that is tied and changed by factors is stored whole in each module that holds it: PEFT changes the module that
it is told to and no other, and merging two LoRAs into one tensor would add both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import Tensor, nn

from interbasin.checkpoints.checkpoint import ARITHMETIC
from interbasin.checkpoints.delta import add
from interbasin.checkpoints.in_memory import HeldTensors
from interbasin.checkpoints.lora import PREFIX, write_adapter
from interbasin.errors import DataError
from interbasin.text import list_names, plural

if TYPE_CHECKING:
    from interbasin.jobs.transport.update import Update

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
    found: dict[str, Kind] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        kind = _kind(module)
        weight = f"{name}.weight"
        if name and kind is not None and weight in names and not name.startswith(tuple(attention)):
            found[weight] = kind
    return found


def _kind(module: nn.Module) -> Kind | None:
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "table"
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        plain = module.groups == 1 and {*module.dilation} == {1} and module.padding_mode == "zeros"
        return "convolution" if plain else None
    return "conv1d" if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else None


def write_as_adapter(
    update: Update,
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None,
    model: nn.Module,
    force: bool,
) -> tuple[str, ...]:
    """Write an update with factors as PEFT's folder; see `Update.write`."""
    plan = _Plan(update, model)
    layers = {name.removesuffix(".weight"): update.factors[name] for name in plan.factored}
    if not layers:
        raise DataError(
            f"Nothing of {update.label} can be stored as factors beside {list_names(plan.whole)}, which have to be "
            "stored whole; write it as a dense update (as_dense()), or add it to the network (added_to)."
        )
    write_adapter(
        path,
        layers,
        base=base,
        tables=[name.removesuffix(".weight") for name in plan.factored if plan.kinds[name] == "table"],
        whole=plan.tensors(),
        modules=[name for name, _ in model.named_modules(remove_duplicate=False) if name],
        settings={
            "bias": plan.bias,
            "modules_to_save": plan.modules_to_save,
            "fan_in_fan_out": any(plan.kinds[name] == "conv1d" for name in plan.factored),
        },
        force=force,
    )
    return plan.notes


@dataclass
class _Plan:
    """Which updates go where.

    Attributes:
        factored: Weights whose update is stored as factors.
        whole: Modules that are stored whole, none inside another.
        biases: Biases that are stored beside the factors.
    """

    update: Update
    model: nn.Module
    factored: list[str] = field(init=False)
    whole: list[str] = field(init=False)
    biases: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.held = HeldTensors(self.model, "the network")
        self.kinds = kinds_of(self.model)
        self.modules = dict(self.model.named_modules(remove_duplicate=False))
        factored = [name for name in self.update.factors if self._may_have_factors(name)]
        rest = [name for name in self.update if name not in factored and self._changes(name)]
        biases = [name for name in rest if self._is_bias(name)]
        owners = {self._owner(other) for name in rest if name not in biases for other in self._held_as(name)}
        self.whole = sorted(owner for owner in owners if not any(owner.startswith(f"{other}.") for other in owners))
        self.factored = [name for name in factored if not self._is_whole(name)]
        self.biases = [name for name in biases if not self._is_whole(name)]

    # Which place an update has

    def _may_have_factors(self, name: str) -> bool:
        turned = self.kinds.get(name) in ("conv1d", "table")
        return name in self.kinds and turned == (name in self.update.transposed) and len(self._held_as(name)) == 1

    def _changes(self, name: str) -> bool:
        return name in self.update.factors or bool(self.update.dense[name].any())

    def _held_as(self, name: str) -> list[str]:
        """The names of a tensor that an update is for: all that are tied, unless they have updates of their own."""
        stored = self.held.stored_name(name)
        group = [stored, *(other for other, first in self.held.ties.items() if first == stored)]
        return [name] if sum(other in self.update for other in group) > 1 else group

    def _is_bias(self, name: str) -> bool:
        # Only what PEFT calls a bias: its own save_pretrained has to find it again.
        return name.endswith(".bias") and isinstance(self.model.state_dict(keep_vars=True)[name], nn.Parameter)

    def _is_whole(self, name: str) -> bool:
        return any(name.startswith(f"{module}.") for module in self.whole)

    def _owner(self, name: str) -> str:
        """The module that is stored whole to change a tensor."""
        owner = name.rpartition(".")[0]
        above = owner.rpartition(".")[0]
        if isinstance(self.modules.get(above), nn.MultiheadAttention):  # which reads the weights of what is in it
            owner = above
        while owner and isinstance(self.modules.get(owner), _CONTAINERS):
            owner = owner.rpartition(".")[0]
        if not owner:
            raise DataError(
                f"{name} belongs to the network itself and to none of its modules, so that PEFT has no place for its "
                "update; write a dense update (as_dense()), or add it to the network (added_to)."
            )
        return owner

    # What the folder says

    @property
    def bias(self) -> str:
        if not self.biases:
            return "none"
        return "lora_only" if all(self._beside_factors(name) for name in self.biases) else "all"

    def _beside_factors(self, name: str) -> bool:
        return f"{name.removesuffix('.bias')}.weight" in self.factored

    @cached_property
    def modules_to_save(self) -> list[str] | None:
        """Names that mean the modules to be stored whole and no others: PEFT takes all whose names end so."""
        meant = {name for name in self.modules for owner in self.whole if (PREFIX + name).endswith(owner)}
        return [owner if meant <= {*self.whole} else PREFIX + owner for owner in self.whole] or None

    def tensors(self) -> Mapping[str, Tensor]:
        """What is stored beside the factors, as PEFT names it."""
        stored = {name: self._value(name) for name in self.held if self._is_whole(name)}
        for name in self.biases:
            inside = name.removesuffix("bias") + "base_layer.bias" if self._beside_factors(name) else name
            stored[inside] = self._value(name)
        return stored

    def _value(self, name: str) -> Tensor:
        """A tensor of the network with its update."""
        tensor = self.held[name]
        stored = self.held.stored_name(name)
        group = [stored, *(other for other, first in self.held.ties.items() if first == stored)]
        named = name if name in self.update else next((other for other in group if other in self.update), None)
        if named is None or self.held.entry(name).kind not in ARITHMETIC:
            return tensor
        return add({name: tensor}, {name: self.update.tensor(named)})[name]

    @property
    def notes(self) -> tuple[str, ...]:
        swallowed = [name for name in self.update.factors if name not in self.factored]
        notes = []
        if swallowed:
            size = sum(self.held.entry(name).numel for name in self.held.entries if self._is_whole(name))
            notes.append(
                f"{list_names(swallowed)} of low rank {'is' if len(swallowed) == 1 else 'are'} stored whole, in "
                f"{list_names(self.whole)} ({plural(size, 'number')}): PEFT cannot keep factors there."
            )
        return tuple(notes)
