"""What was asked for, worked out: which readings of which network are recorded, and which of them are paired."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from interbasin.activations.choose import At, choose, readings_of
from interbasin.activations.forward import ROLES, Caller
from interbasin.activations.places import QKV, ModuleReading, Place, Reading, module_at
from interbasin.activations.projections import Projection, observe_attention, projected_spaces, projection_at
from interbasin.errors import DataError, UnknownNameError, WiringError
from interbasin.wiring.axes.spaces import Space
from interbasin.wiring.trace.preflight import named_tensors
from interbasin.wiring.wire import wire
from interbasin.wiring.wiring import Wiring

# Names; pairs of names; names or pairs -> place or pair of places; for all pairs of layers also two lists of names.
Spaces: TypeAlias = "Sequence[Any] | Mapping[Any, Any]"
# Of one network or of each; None: to be found; False: names are those of modules.
Wirings: TypeAlias = "Wiring | Sequence[Wiring] | Literal[False] | None"
# The number of a network, and a reading of it.
Key = tuple[int, Reading]
_Wish = tuple[str, str | None]  # a name, and a place if one was given
_OF_PLACES = re.compile(r"[:\[]")  # what only names of places hold, and no space or module has in its name


@dataclass(frozen=True)
class Item:
    """Something that was asked for: an activation that is recorded, or an affine image of it.

    Attributes:
        key: What is recorded.
        place: Where it stands, as text.
        weight, bias: Of the image.
    """

    key: Key
    place: str
    weight: Tensor | None = field(default=None, compare=False)
    bias: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Plan:
    """What was asked for, and what has to be recorded for it.

    Attributes:
        requested: ``(source, target)`` -> the two.
        keys: All that is recorded, each once.
        pairs: What is recorded together, each pair once, and whether anything is derived from it, which needs Gram
            matrices. Nothing for statistics of all pairs of layers.
        layers: For such statistics, what is recorded of the source and of the target: layer -> key.
    """

    requested: Mapping[tuple[str, str], tuple[Item, Item]]
    keys: Collection[Key]
    pairs: Mapping[tuple[Key, Key], bool] = field(default_factory=dict)
    layers: tuple[Mapping[str, Key], Mapping[str, Key]] | None = None

    def describe(self) -> list[list[str]]:
        """The plan as text, to tell whether a saved state belongs to it."""
        return [[*names, *(f"{item.place} {item.key!r}" for item in items)] for names, items in self.requested.items()]


def layer_name(name: str, item: Item) -> str:
    """The layer that is recorded for one that was asked for under a name: several may be images of one."""
    return name if item.weight is None else f"what {item.key[1].place} is made from"


def make_plan(caller: Caller, spaces: Spaces, wirings: Any, first: Any, *, at: At, all_pairs: bool) -> Plan:
    """The plan for a request.

    Args:
        caller: With one network or two.
        spaces: As `record` takes them.
        wirings: As `record` takes them.
        first: The first batch, which wirings are found with; None if there is none.
        at: Where spaces are taken.
        all_pairs: Every source layer with every target layer, in one.
    """
    last = len(caller.networks) - 1
    sources, targets = _layers(spaces) if all_pairs else _pairs(spaces)
    wishes = dict.fromkeys([*((0, wish) for wish in sources), *((last, wish) for wish in targets)])
    needed = {network for network, (name, place) in wishes if place is not None or not _OF_PLACES.search(name)}
    known = {} if wirings is False else _find_wirings(wirings, caller, first, needed)
    readings = {
        (network, wish): _resolve(caller.networks[network], known.get(network), *wish, at) for network, wish in wishes
    }
    projections = {key: reading for key, reading in readings.items() if isinstance(reading, Projection)}
    items = _derive(caller, projections, first) if projections else {}
    for key, reading in readings.items():
        if not isinstance(reading, Projection):
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


def _resolve(model: nn.Module, wiring: Wiring | None, name: str, place: str | None, at: At) -> Reading | Projection:
    """What a name, or a name at a place, means in a network."""
    if wiring is None or (place is None and _OF_PLACES.search(name)):
        named = Place.of(name if place is None else place)
        if named.side in QKV:
            return projection_at(model, named)
        module_at(model, named)
        return ModuleReading(named)
    if name not in wiring.spaces and name and name in dict(model.named_modules()):
        raise UnknownNameError(
            f"{type(model).__name__} has a module but no space named {name!r}; ask for {name + ':output'!r} (or "
            f"{name + ':input'!r}) to record the module. Spaces are: {', '.join(wiring.spaces)}."
        )
    space = wiring.spaces.get(name)
    if space is not None and place is not None:
        named = Place.of(place)
        if named.side in QKV:
            return projection_at(model, named, name, space.width)
        if _is_at_your_word(model, wiring, space, named):
            return ModuleReading(named, name, space.width)
    elif space is not None and any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
        inside = {} if readings_of(wiring, space, alone=True) else projected_spaces(model, wiring)
        if name in inside:
            return projection_at(model, inside[name], name)
    return choose(wiring, name, at, place)


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


def _derive(
    caller: Caller, projections: Mapping[tuple[int, _Wish], Projection], first: Any
) -> dict[tuple[int, _Wish], Item]:
    """The projections as images of what is recorded for them."""
    if first is None:
        raise no_batch_error()
    items = {}
    for network, (model, call) in enumerate(zip(caller.networks, caller.calls(first, 0), strict=True)):
        mine = {key: projection for key, projection in projections.items() if key[0] == network}
        derived = observe_attention(model, mine.values(), call, caller.names[network]) if mine else {}
        for key, projection in mine.items():
            reading, affine = derived[projection]
            items[key] = Item((network, reading), str(projection.place), *affine)
    return items


# ---------------------------------------------------------------------- wirings


def no_batch_error() -> DataError:
    return DataError("The data hold no batch at all, so there is nothing to record; give some.")


def _find_wirings(wirings: Any, caller: Caller, first: Any, needed: Collection[int]) -> dict[int, Wiring]:
    """The wirings of the networks whose numbers are needed, as they were given or by tracing the first batch.

    Raises:
        WiringError: if ``wirings`` are none, or not those of the networks.
    """
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
        raise WiringError(
            f"Wirings are those that interbasin.wire finds, found {kind}; give one for each network, None to have them "
            "found, or False to name modules instead of spaces."
        )
    if len(wirings) != len(networks):
        raise WiringError(
            f"Recording {len(networks)} network(s) needs as many wirings, found {len(wirings)}; give one each, or none "
            "to have them found."
        )
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
            f"The spaces to record are a list of names, a list of pairs (source, target) or a mapping from names to "
            f"places, found {spaces if isinstance(spaces, str) else type(spaces).__name__!r}; put a single name into a "
            "list."
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
