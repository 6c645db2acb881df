"""What was asked for, worked out: which readings of which network, and which of them are paired."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from interbasin.errors import DataError, UnknownNameError, WiringError
from interbasin.networks.recording.choosing import At, choose
from interbasin.networks.recording.places import Place, is_place, module_at
from interbasin.networks.recording.readings import ModuleReading, Reading, SpaceReading
from interbasin.networks.wiring.wiring import Wiring

__all__ = ["Key", "Plan", "Spaces", "make_plan"]

# Names; pairs of names; names or pairs -> place or pair of places; for all pairs of layers also two lists of names.
Spaces: TypeAlias = "Sequence[Any] | Mapping[Any, Any]"
Key = tuple[int, Reading]
_Wish = tuple[str, str | None]


@dataclass(frozen=True)
class Plan:
    """Pairs of readings, each once, and the names they were asked for under.

    Attributes:
        pairs: Distinct ones; a key is the number of the network and the reading.
        names: ``(source, target)`` -> the position of its pair.
        layers: For statistics of all pairs of layers: name -> key, of the source and of the target.
    """

    pairs: tuple[tuple[Key, Key], ...]
    names: Mapping[tuple[str, str], int]
    layers: tuple[Mapping[str, Key], Mapping[str, Key]] | None = None

    def readings(self, network: int) -> list[Reading]:
        """What has to be heard of one network, each once."""
        keys: Iterable[Key] = (key for pair in self.pairs for key in pair)
        if self.layers is not None:
            keys = (key for side in self.layers for key in side.values())
        return list(dict.fromkeys(reading for one, reading in keys if one == network))

    def places(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Where each pair of names is recorded."""
        found = {}
        for names, position in self.names.items():
            (_, x), (_, y) = self.pairs[position]
            found[names] = (str(x.place), str(y.place))
        if self.layers is not None:
            for source, (_, x) in self.layers[0].items():
                for target, (_, y) in self.layers[1].items():
                    found[source, target] = (str(x.place), str(y.place))
        return found

    def describe(self) -> list[list[str]]:
        """The plan as text, to tell whether a saved state belongs to it."""
        rows = [[*names, *(repr(key) for key in self.pairs[at])] for names, at in self.names.items()]
        for side in self.layers or ():
            rows += [[name, repr(key)] for name, key in side.items()]
        return rows


def make_plan(
    models: Sequence[nn.Module],
    spaces: Spaces,
    wiring_of: Callable[[int], Wiring | None],
    *,
    at: At,
    all_pairs: bool,
) -> Plan:
    """The plan for a request.

    Args:
        models: One or two.
        spaces: As `record` takes them.
        wiring_of: The wiring of a network by its number, or None if names mean modules.
        at: Where spaces are taken.
        all_pairs: Every source layer with every target layer, in one.
    """
    resolve = _Resolver(models, wiring_of, at)
    last = len(models) - 1
    if all_pairs:
        sources, targets = _layers(spaces)
        return Plan(
            (),
            {},
            (
                {name: resolve.key(0, (name, place)) for name, place in sources},
                {name: resolve.key(last, (name, place)) for name, place in targets},
            ),
        )
    positions: dict[tuple[Key, Key], int] = {}
    names: dict[tuple[str, str], int] = {}
    for source, target in _pairs(spaces):
        pair = (resolve.key(0, source), resolve.key(last, target))
        names[source[0], target[0]] = positions.setdefault(pair, len(positions))
    return Plan(tuple(positions), names)


@dataclass
class _Resolver:
    models: Sequence[nn.Module]
    wiring_of: Callable[[int], Wiring | None]
    at: At

    def key(self, network: int, wish: _Wish) -> Key:
        return network, self._reading(network, *wish)

    def _reading(self, network: int, name: str, place: str | None) -> Reading:
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
        reading: SpaceReading = choose(wiring, name, self.at, place)
        return reading

    def _module(self, model: nn.Module, text: str) -> ModuleReading:
        place = Place.of(text)
        module_at(model, place)
        return ModuleReading(place)


def _taken_at_word(model: nn.Module, wiring: Wiring, name: str, place: Place) -> ModuleReading | None:
    """A space at a place that the wiring does not follow, such as behind an activation function, if it may be there.

    Modules that hold tensors are followed: what moves is known not to stand there. Heads and other parts of spaces that
    lie in several axes cannot be told by a width.
    """
    space = wiring.spaces[name]
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
