"""What was asked for, worked out: which readings of which network, and which of them are paired."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import nn

from interbasin.errors import DataError, UnknownNameError, WiringError
from interbasin.networks.recording.choosing import At, choose, stands
from interbasin.networks.recording.places import QKV, Place, is_place, module_at
from interbasin.networks.recording.projections import Affine, Derivation, Projection, projected_spaces, projection_at
from interbasin.networks.recording.readings import ModuleReading, Reading
from interbasin.networks.wiring.wiring import Wiring
from interbasin.statistics.accumulation import Image

__all__ = ["Key", "Plan", "Spaces", "make_plan"]

# Names; pairs of names; names or pairs -> place or pair of places; for all pairs of layers also two lists of names.
Spaces: TypeAlias = "Sequence[Any] | Mapping[Any, Any]"
Key = tuple[int, Reading | Projection]
Observe = Callable[[int, Sequence[Projection]], Mapping[Projection, Derivation]]
_Wish = tuple[str, str | None]


@dataclass(frozen=True)
class Plan:
    """What was asked for, and what has to be recorded for it. A key is the number of a network and a reading of it.

    Attributes:
        asked: ``(source, target)`` -> the keys of the two.
        derived: Of these keys, those that are derived: the key that is recorded for it, and the weight and bias.
        layers: For statistics of all pairs of layers, what is recorded of the source and of the target, by name.
    """

    asked: Mapping[tuple[str, str], tuple[Key, Key]]
    derived: Mapping[Key, tuple[Key, Affine]] = field(default_factory=dict)
    layers: tuple[Mapping[str, Key], Mapping[str, Key]] | None = None

    def recorded(self, key: Key) -> Key:
        """What is recorded for a key: itself, or what it is derived from."""
        return self.derived[key][0] if key in self.derived else key

    def pairs(self) -> dict[tuple[Key, Key], bool]:
        """The distinct pairs that are recorded, and whether anything is derived from them."""
        found: dict[tuple[Key, Key], bool] = {}
        for x, y in () if self.layers is not None else self.asked.values():
            pair = (self.recorded(x), self.recorded(y))
            found[pair] = found.get(pair, False) or x in self.derived or y in self.derived
        return found

    def readings(self, network: int) -> list[Reading]:
        """What has to be heard of one network, each once."""
        keys = (self.recorded(key) for pair in self.asked.values() for key in pair)
        found = dict.fromkeys(reading for one, reading in keys if one == network)
        return [reading for reading in found if not isinstance(reading, Projection)]

    def places(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Where each pair of names is recorded."""
        return {names: (str(x.place), str(y.place)) for names, ((_, x), (_, y)) in self.asked.items()}

    def describe(self) -> list[list[str]]:
        """The plan as text, to tell whether a saved state belongs to it."""
        return [[*names, *map(repr, (*pair, *map(self.recorded, pair)))] for names, pair in self.asked.items()]

    def image(self, layer: str, key: Key) -> Image:
        """A key as an image of the layer that is recorded for it."""
        return layer, *(self.derived[key][1] if key in self.derived else (None, None))

    def layer(self, name: str, key: Key) -> str:
        """The name of the layer that is recorded for one of a name."""
        return f"what {self.derived[key][0][1].place} is made from" if key in self.derived else name


def make_plan(
    models: Sequence[nn.Module],
    spaces: Spaces,
    wiring_of: Callable[[int], Wiring | None],
    observe: Observe,
    *,
    at: At,
    all_pairs: bool,
) -> Plan:
    """The plan for a request.

    Args:
        models: One or two.
        spaces: As `record` takes them.
        wiring_of: The wiring of a network by its number, or None if names mean modules.
        observe: What projections of a network, by its number, are derived from; see `observe_attention`.
        at: Where spaces are taken.
        all_pairs: Every source layer with every target layer, in one.
    """
    resolve = _Resolver(models, wiring_of, at)
    last = len(models) - 1
    if all_pairs:
        sources, targets = (
            {wish[0]: resolve.key(network, wish) for wish in wishes}
            for network, wishes in zip((0, last), _layers(spaces), strict=True)
        )
        asked = {(x, y): (sources[x], targets[y]) for x in sources for y in targets}
    else:
        asked = {(x[0], y[0]): (resolve.key(0, x), resolve.key(last, y)) for x, y in _pairs(spaces)}
    derived: dict[Key, tuple[Key, Affine]] = {}
    for network in range(len(models)):
        keys = dict.fromkeys(key for pair in asked.values() for key in pair if key[0] == network)
        projections = [reading for _, reading in keys if isinstance(reading, Projection)]
        if projections:
            for projection, (reading, affine) in observe(network, projections).items():
                derived[network, projection] = ((network, reading), affine)
    plan = Plan(asked, derived)
    if not all_pairs:
        return plan
    first, second = (
        {plan.layer(name, key): plan.recorded(key) for name, key in side.items()} for side in (sources, targets)
    )
    return replace(plan, layers=(first, second))


@dataclass
class _Resolver:
    models: Sequence[nn.Module]
    wiring_of: Callable[[int], Wiring | None]
    at: At

    def key(self, network: int, wish: _Wish) -> Key:
        """What a name, or a name at a place, means in a network."""
        return network, self._reading(network, *wish)

    def _reading(self, network: int, name: str, place: str | None) -> Reading | Projection:
        model = self.models[network]
        if place is None and is_place(name):
            return self._module(model, name)
        wiring = self.wiring_of(network)
        if wiring is None:
            return self._module(model, name if place is None else place)
        if name not in wiring.spaces and name and name in dict(model.named_modules()):
            raise UnknownNameError(
                f"{type(model).__name__} has a module but no space named {name!r}; ask for {name + ':output'!r} (or "
                f"{name + ':input'!r}) to record the module. Spaces are: {', '.join(wiring.spaces)}."
            )
        if place is not None and name in wiring.spaces:
            taken = _taken_at_word(model, wiring, name, Place.of(place))
            if taken is not None:
                return taken
        if place is None and name in wiring.spaces and not stands(wiring, wiring.spaces[name]):
            inside = projected_spaces(model, wiring)
            if name in inside:
                return projection_at(model, inside[name], name)
        return choose(wiring, name, self.at, place)

    def _module(self, model: nn.Module, text: str) -> ModuleReading | Projection:
        place = Place.of(text)
        if place.side in QKV:
            return projection_at(model, place)
        module_at(model, place)
        return ModuleReading(place)


def _taken_at_word(model: nn.Module, wiring: Wiring, name: str, place: Place) -> ModuleReading | Projection | None:
    """A space at a place that the wiring does not follow, such as behind an activation function, if it may be there.

    Modules that hold tensors are followed: what moves is known not to stand there. Heads and other parts of spaces that
    lie in several axes cannot be told by a width.
    """
    space = wiring.spaces[name]
    if place.side in QKV:
        return projection_at(model, place, name, space.width)
    if str(place) in wiring.activations or space.within:
        return None
    module = module_at(model, place)
    followed = any(True for _ in itertools.chain(module.parameters(False), module.buffers(False)))
    return None if followed and not space.is_fixed else ModuleReading(place, name, space.width)


def _pairs(spaces: Spaces) -> list[tuple[_Wish, _Wish]]:
    _refuse_text(spaces)
    wishes = spaces.items() if isinstance(spaces, Mapping) else ((one, None) for one in spaces)
    found = []
    for names, places in wishes:
        source, target = _two(names, "space")
        source_place, target_place = (None, None) if places is None else _two(places, "place")
        found.append(((source, source_place), (target, target_place)))
    if not found:
        raise DataError("Asked to record no spaces at all; name some.")
    return found


def _layers(spaces: Spaces) -> tuple[list[_Wish], list[_Wish]]:
    _refuse_text(spaces)
    if isinstance(spaces, Sequence) and len(spaces) == 2 and not any(isinstance(side, str) for side in spaces):
        sides: Sequence[Spaces] = spaces
    else:
        sides = (spaces, spaces)
    found = []
    for side in sides:
        _refuse_text(side)
        wishes = side.items() if isinstance(side, Mapping) else ((name, None) for name in side)
        found.append(
            [(_text(name, "space"), None if place is None else _text(place, "place")) for name, place in wishes]
        )
    if not all(found):
        raise DataError("Asked to record no layers at all; name some.")
    return found[0], found[1]


def _refuse_text(spaces: Any) -> None:
    if isinstance(spaces, str) or not isinstance(spaces, Sequence | Mapping):
        raise WiringError(
            f"The spaces to record are a list of names, a list of pairs (source, target) or a mapping from names to "
            f"places, found {spaces if isinstance(spaces, str) else type(spaces).__name__!r}; put a single name into a "
            "list."
        )


def _two(given: Any, what: str) -> tuple[str, str]:
    if isinstance(given, str):
        return given, given
    if isinstance(given, Sequence) and len(given) == 2:
        return _text(given[0], what), _text(given[1], what)
    raise WiringError(f"A {what} is a name or a pair of names (source, target), found {given!r}; give it like that.")


def _text(given: Any, what: str) -> str:
    if not isinstance(given, str):
        raise WiringError(f"The name of a {what} is text, found {given!r}; give the name.")
    return given
