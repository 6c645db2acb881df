"""What was asked for, worked out: which readings of which network are recorded, and which of them are paired.

q, k and v inside `torch.nn.MultiheadAttention` stand at no boundary of a module, so no hook sees them. But each is an
affine image of an argument, ``q = W x + b``, and so are its moments: with C the sums of two arguments about their
origins, those of the images are ``W_B C W_A^T`` about the images of the origins. The arguments are recorded, each once,
with their Gram matrices, and all else is derived at the end, exactly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from interbasin.activations.forward import ROLES, Call, Caller, listen, memory_of
from interbasin.activations.places import (
    QKV,
    At,
    ModuleReading,
    Place,
    Reading,
    axis_factors,
    choose_reading,
    find_readings,
    module_at,
)
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.wiring.axes.spaces import Axis, In, Role, Row, Space
from interbasin.wiring.trace.preflight import named_tensors
from interbasin.wiring.wire import wire
from interbasin.wiring.wiring import Wiring

# Names; pairs of names; names or pairs -> place or pair of places; for all pairs of layers also two lists of names.
Spaces: TypeAlias = "Sequence[Any] | Mapping[Any, Any]"
# Of one network or of each; None: to be found; False: names are those of modules.
Wirings: TypeAlias = "Wiring | Sequence[Wiring] | Literal[False] | None"
# The number of a network, and a reading of it.
Key = tuple[int, Reading]
Affine = tuple[Tensor, Tensor | None]  # the weight and the bias of a projection
_Wish = tuple[str, str | None]  # a name, and a place if one was given
_OF_PLACES = re.compile(r"[:\[]")  # what only names of places hold, and no space or module has in its name


@dataclass(frozen=True)
class Item:
    """Something that was asked for: an activation that is recorded, or an affine image of it."""

    key: Key  # what is recorded
    place: str  # where it stands
    weight: Tensor | None = field(default=None, compare=False)  # of the image
    bias: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Plan:
    """What was asked for, and what has to be recorded for it."""

    requested: Mapping[tuple[str, str], tuple[Item, Item]]
    keys: Collection[Key]  # all that is recorded, each once
    # What is recorded together, each pair once, and whether anything is derived from it, which needs Gram matrices.
    pairs: Mapping[tuple[Key, Key], bool] = field(default_factory=dict)
    # For statistics of all pairs of layers, what is recorded of the source and of the target: layer -> key.
    layers: tuple[Mapping[str, Key], Mapping[str, Key]] | None = None

    def describe(self) -> list[list[str]]:
        """The plan as text, to tell whether a saved state belongs to it."""
        return [[*names, *(f"{item.place} {item.key!r}" for item in items)] for names, items in self.requested.items()]


def layer_name(name: str, item: Item) -> str:
    """The layer that is recorded for one that was asked for under a name: several may be images of one."""
    return name if item.weight is None else f"what {item.key[1].place} is made from"


def make_plan(caller: Caller, spaces: Spaces, wirings: Any, first: Any, *, at: At, all_pairs: bool) -> Plan:
    """The plan for a request to `record`, whose arguments these are.

    Wirings are found with ``first``, the first batch. ``all_pairs``: every source layer with every target layer.
    """
    last = len(caller.networks) - 1
    sources, targets = _layers(spaces) if all_pairs else _pairs(spaces)
    wishes = dict.fromkeys([*((0, wish) for wish in sources), *((last, wish) for wish in targets)])
    needed = {network for network, (name, place) in wishes if place is not None or not _OF_PLACES.search(name)}
    known = {} if wirings is False else _find_wirings(wirings, caller, first, needed)
    readings = {
        (network, wish): _resolve(caller.networks[network], known.get(network), *wish, at) for network, wish in wishes
    }
    projections = {key: reading for key, reading in readings.items() if isinstance(reading, Place)}
    items = _derive(caller, projections, first) if projections else {}
    for key, reading in readings.items():
        if not isinstance(reading, Place):
            items[key] = Item((key[0], reading), str(reading.place))
    keys = dict.fromkeys(item.key for item in items.values())
    if all_pairs:
        layers = [{wish[0]: items[0, wish] for wish in sources}, {wish[0]: items[last, wish] for wish in targets}]
        requested = {(x, y): (layers[0][x], layers[1][y]) for x, y in itertools.product(*layers)}
        source, target = ({layer_name(name, item): item.key for name, item in side.items()} for side in layers)
        return Plan(requested, keys, layers=(source, target))
    requested = {
        (source[0], target[0]): (items[0, source], items[last, target])
        for source, target in zip(sources, targets, strict=True)
    }
    pairs: dict[tuple[Key, Key], bool] = {}
    for x, y in requested.values():
        derives = x.weight is not None or y.weight is not None
        pairs[x.key, y.key] = pairs.get((x.key, y.key), False) or derives
    return Plan(requested, keys, pairs)


def _resolve(model: nn.Module, wiring: Wiring | None, name: str, place: str | None, at: At) -> Reading | Place:
    """What a name, or a name at a place, means in a network: a reading, or the place of q, k or v inside attention."""
    if wiring is None or (place is None and _OF_PLACES.search(name)):
        named = Place.of(name if place is None else place)
        module = module_at(model, named)
        return ModuleReading(named) if named.side not in QKV else _require_attention(module, named)
    if name not in wiring.spaces and name and name in dict(model.named_modules()):
        raise UnknownNameError(
            f"{type(model).__name__} has a module but no space named {name!r}; ask for {name + ':output'!r} (or "
            f"{name + ':input'!r}) to record the module. Spaces are: {', '.join(wiring.spaces)}."
        )
    space = wiring.spaces.get(name)
    if space is not None and place is not None:
        named = Place.of(place)
        if named.side in QKV:
            return _require_attention(module_at(model, named), named, space)
        if _is_at_your_word(model, wiring, space, named):
            return ModuleReading(named, name, space.width)
    elif space is not None and any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
        inside = {} if find_readings(wiring, space, alone=True) else _projected_spaces(model, wiring)
        if name in inside:
            return inside[name]
    return choose_reading(wiring, name, at, place)


def _is_at_your_word(model: nn.Module, wiring: Wiring, space: Space, place: Place) -> bool:
    """Whether a space may be at a place that the wiring does not follow, such as behind an activation function.

    Modules that hold tensors are followed: a space that moves is known not to stand there. Heads and other parts of
    spaces that lie in several axes cannot be told by a width.
    """
    if str(place) in wiring.activations or space.within:
        return False
    module = module_at(model, place)
    is_followed = any(True for _ in itertools.chain(module.parameters(False), module.buffers(False)))
    return space.is_fixed or not is_followed


# ---------------------------------------------------------------------- q, k and v inside attention


def _derive(
    caller: Caller, projections: Mapping[tuple[int, _Wish], Place], first: Any
) -> dict[tuple[int, _Wish], Item]:
    """The projections as images of what is recorded for them."""
    if first is None:
        raise no_batch_error()
    items = {}
    for network, (model, call) in enumerate(zip(caller.networks, caller.calls(first, 0), strict=True)):
        mine = {key: place for key, place in projections.items() if key[0] == network}
        derived = _observe_attention(model, mine.values(), call, caller.names[network]) if mine else {}
        for key, place in mine.items():
            reading, affine = derived[place]
            items[key] = Item((network, reading), str(place), *affine)
    return items


def _require_attention(module: nn.Module, place: Place, space: Space | None = None) -> Place:
    """``place``, if the module there is attention of torch's class, and as wide as the space."""
    if not isinstance(module, nn.MultiheadAttention):
        raise WiringError(
            f"Asked to record {place}, but q, k and v are known inside torch.nn.MultiheadAttention, and "
            f"{place.module!r} is a {type(module).__name__}; record the output of the module that projects them."
        )
    if space is not None and space.width != module.embed_dim:
        raise ShapeError(f"Space {space.name!r} is {space.width} wide, and {place} is {module.embed_dim} wide.")
    return place


def _projected_spaces(model: nn.Module, wiring: Wiring) -> dict[str, Place]:
    """The spaces that q, k or v of some attention module fill, and where."""
    places: dict[str, Place] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            for side, axis in zip(QKV, _written_axes(wiring, name, module.embed_dim), strict=True):
                factors = axis_factors(axis) if axis is not None else ()
                parts = [factor for factor in factors if isinstance(factor, In) and factor.role is Role.WRITE]
                if parts and len(parts) == len(factors):
                    space = wiring.spaces[parts[-1].space]
                    if (*space.within, space.name) == tuple(part.space for part in parts):
                        places.setdefault(space.name, Place(name, side))
    return places


def _written_axes(wiring: Wiring, name: str, width: int) -> list[Axis | None]:
    """What q, k and v are made of, by the tensors that write them; None where that cannot be told."""
    fused = _first_axis(wiring, f"{name}.in_proj_weight")
    if fused is None:
        return [_first_axis(wiring, f"{name}.{side}_proj_weight") for side in QKV]
    thirds: list[list[Axis]] = [[], [], []]
    start = 0
    for part in fused.parts if isinstance(fused, Row) else (fused,):
        if start // width != (start + part.size - 1) // width:
            return [None] * 3
        thirds[start // width].append(part)
        start += part.size
    return [third[0] if len(third) == 1 else None for third in thirds]


def _first_axis(wiring: Wiring, name: str) -> Axis | None:
    tensor = wiring.tensors.get(wiring.tied.get(name, name))
    return None if tensor is None else tensor.axes[0]


def _observe_attention(
    model: nn.Module, places: Collection[Place], call: Call, name: str
) -> dict[Place, tuple[ModuleReading, Affine]]:
    """For the place of each projection what is recorded for it, and the weight and bias that make it of that.

    One forward pass on the first batch shows both. Arguments that are one tensor, as in self-attention, are recorded
    under the first of their names. Weights are taken while the module runs: adapters may put theirs in just then.
    """
    memory: dict[Place, object] = {}
    affine: dict[Place, Affine] = {}

    def take(reading: Reading, rows: Tensor) -> None:
        module, third = module_at(model, reading.place), QKV.index(reading.place.side)
        assert isinstance(module, nn.MultiheadAttention)
        fused = module._qkv_same_embed_dim
        weight = module.in_proj_weight.chunk(3)[third] if fused else getattr(module, f"{QKV[third]}_proj_weight")
        bias = None if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[third].detach().clone()
        memory[reading.place], affine[reading.place] = memory_of(rows), (weight.detach().clone(), bias)

    arguments = dict.fromkeys(replace(place, side=side) for place in places for side in QKV)
    with listen(model, map(ModuleReading, arguments), take, name) as listener:
        listener.forward(call)
    derived = {}
    for place in places:
        same = tuple(side for side in QKV if memory[replace(place, side=side)] == memory[place])
        derived[place] = (ModuleReading(replace(place, side=same[0]), shared=same[1:]), affine[place])
    return derived


# ---------------------------------------------------------------------- wirings


def no_batch_error() -> DataError:
    return DataError("The data hold no batch at all, so there is nothing to record; give some.")


def _find_wirings(wirings: Any, caller: Caller, first: Any, needed: Collection[int]) -> dict[int, Wiring]:
    """The wirings of the networks whose numbers are needed, as they were given or by tracing the first batch."""
    if wirings is not None:
        return _check_wirings(wirings, caller.networks)
    if needed and first is None:
        raise no_batch_error()
    traced = {}
    for network in sorted(needed):
        call = caller.calls(first, 0)[network]
        try:
            traced[network] = wire(caller.networks[network], call.args or call.kwargs)
        except WiringError as error:
            if not call.hint:
                raise
            raise WiringError(f"{error}{call.hint}") from error
    return traced


def _check_wirings(wirings: Any, networks: Sequence[nn.Module]) -> dict[int, Wiring]:
    kind = type(wirings).__name__
    wirings = [wirings] if isinstance(wirings, Wiring) else wirings
    if not isinstance(wirings, Sequence) or not all(isinstance(wiring, Wiring) for wiring in wirings):
        raise WiringError(f"wirings must be one Wiring per network, None or False, found {kind}.")
    if len(wirings) != len(networks):
        raise WiringError(f"Recording {len(networks)} network(s) needs as many wirings, found {len(wirings)}.")
    for network, wiring in enumerate(wirings):
        stranger = _stranger(networks[network], wiring)
        if stranger is not None:
            role = f" ({ROLES[network]})" if len(networks) == 2 else ""
            swapped = len(networks) == 2 and _stranger(networks[1 - network], wiring) is None
            advice = "it fits the other network: are the two swapped?" if swapped else "find it with interbasin.wire."
            raise WiringError(
                f"The wiring of network {network}{role} is not one of this {type(networks[network]).__name__}: "
                f"{stranger}; {advice}"
            )
    return dict(enumerate(wirings))


def _stranger(model: nn.Module, wiring: Wiring) -> str | None:
    """What a wiring says that is not so of a network, or None."""
    own = named_tensors(model)
    for name, tensor in wiring.tensors.items():
        if name not in own:
            return f"it knows a tensor {name!r}, which the network does not have"
        if tuple(own[name].shape) != tuple(tensor.shape):
            return f"it knows {name!r} in shape {tuple(tensor.shape)}, and the network has {tuple(own[name].shape)}"
    return None


# ---------------------------------------------------------------------- names


def _pairs(spaces: Spaces) -> tuple[list[_Wish], list[_Wish]]:
    """The two sides of every pair that is asked for."""
    sources, targets = [], []
    for names, places in _entries(spaces):
        source, target = _two_names(names, "space")
        source_place, target_place = (None, None) if places is None else _two_names(places, "place")
        sources.append((source, source_place))
        targets.append((target, target_place))
    if not sources:
        raise DataError("Asked to record no spaces at all; name some.")
    return sources, targets


def _layers(spaces: Spaces) -> tuple[list[_Wish], list[_Wish]]:
    """The layers that are asked for of the source and of the target."""
    sides: Sequence[Spaces] = (spaces, spaces)
    if isinstance(spaces, Sequence) and len(spaces) == 2 and not any(isinstance(side, str) for side in spaces):
        sides = spaces
    sources, targets = (
        [
            (_require_text(name, "space"), None if place is None else _require_text(place, "place"))
            for name, place in _entries(side)
        ]
        for side in sides
    )
    if not sources or not targets:
        raise DataError("Asked to record no layers at all; name some.")
    return sources, targets


def _entries(spaces: Any) -> Sequence[tuple[Any, Any]]:
    """What is named, each with its place or None."""
    if isinstance(spaces, str) or not isinstance(spaces, Sequence | Mapping):
        raise WiringError(
            f"spaces must be a list of names, a list of pairs or a mapping of names to places, found "
            f"{spaces if isinstance(spaces, str) else type(spaces).__name__!r}; put a single name into a list."
        )
    return list(spaces.items()) if isinstance(spaces, Mapping) else [(name, None) for name in spaces]


def _two_names(names: Any, what: str) -> tuple[str, str]:
    if isinstance(names, str):
        return names, names
    if isinstance(names, Sequence) and len(names) == 2:
        return _require_text(names[0], what), _require_text(names[1], what)
    raise WiringError(f"A {what} is a name or a pair of names (source, target), found {names!r}; give it like that.")


def _require_text(name: Any, what: str) -> str:
    if not isinstance(name, str):
        raise WiringError(f"The name of a {what} is text, found {name!r}; give the name.")
    return name
