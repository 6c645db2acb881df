"""The place where a space is recorded, when nobody named one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from interbasin.activations.places import ModuleReading, Place, SpaceReading, readings_at
from interbasin.errors import UnknownNameError, WiringError
from interbasin.wiring.axes.spaces import In, Space, leaves
from interbasin.wiring.wiring import Wiring

At = Literal["post", "pre"]
SHOWN = 6


def standing(wiring: Wiring, at: At = "post") -> dict[str, str]:
    """Where each space that moves would be recorded: space -> place. Spaces that stand nowhere whole are left out."""
    if not isinstance(wiring, Wiring):
        raise WiringError(f"Spaces stand in a wiring, found a {type(wiring).__name__}; find one with interbasin.wire.")
    require_at(at)
    places = {}
    for name, space in wiring.spaces.items():
        if not space.is_fixed and (readings := readings_of(wiring, space, alone=True)):
            places[name] = str(_best(wiring, space, readings, at).place)
    return places


def require_at(at: object) -> None:
    """Refuse anything but behind and before the non-linearity."""
    if at not in ("post", "pre"):
        raise WiringError(
            f"Spaces are recorded at='post' or at='pre', found {at!r}; give one of them, or the place itself."
        )


def choose(wiring: Wiring, name: str, at: At = "post", place: str | None = None) -> SpaceReading | ModuleReading:
    """How to record a space.

    A space with one writer is taken where its first reader reads it (``at="post"``), or where it is written
    (``"pre"``). Of one with several writers, such as a residual stream, no single output shows the whole: it is taken
    where it enters the last normalisation that scales it, or else the last module that reads it. So is one that is
    the network's output as well. The network's input is taken where the first module reads it.

    Args:
        wiring: Of the network.
        name: Of the space.
        at: As above.
        place: Take it there instead; other spaces that stand beside it may then become rows.

    Raises:
        UnknownNameError: if there is no such space, or no such place.
        WiringError: if the space does not stand there whole, or, without a place, anywhere.
    """
    if name not in wiring.spaces:
        raise UnknownNameError.of("space", name, wiring.spaces)
    require_at(at)
    space = wiring.spaces[name]
    if place is not None:
        return _at_place(wiring, space, Place.of(place))
    readings = readings_of(wiring, space, alone=True)
    if readings:
        return _best(wiring, space, readings, at)
    if space.because is not None and space.because.kind == "input" and _owners(space.reads):
        return ModuleReading(Place(_owners(space.reads)[0], "input"), name, space.width)
    if space.is_fixed:
        raise WiringError(
            f"Space {name!r} is fixed ({space.because or 'no reason was noted'}) and stands nowhere whole that the "
            f"wiring knows of; {_beside_its_tensors(space)}"
        )
    raise WiringError(
        f"Space {name!r} ({space.describe()}) stands nowhere alone and whole, so it has no rows of its own; "
        f"{_nearest(wiring, space)}"
    )


def readings_of(wiring: Wiring, space: Space, *, alone: bool) -> list[SpaceReading]:
    """Wherever the space stands whole, in the order of the forward pass; ``alone``: without others beside it."""
    readings = (readings_at(Place.of(text), axes, space, wiring.spaces) for text, axes in wiring.activations.items())
    return [reading for reading in readings if reading is not None and not (alone and reading.beside)]


def _at_place(wiring: Wiring, space: Space, place: Place) -> SpaceReading:
    if str(place) not in wiring.activations:
        raise UnknownNameError.of("place that the wiring follows", str(place), wiring.activations)
    reading = readings_at(place, wiring.activations[str(place)], space, wiring.spaces)
    if reading is None:
        shown = _join_names(str(reading.place) for reading in readings_of(wiring, space, alone=False))
        raise WiringError(
            f"Space {space.name!r} does not stand whole at {place}; it does at: {shown or 'no place'}. "
            f"Record {str(place)!r} itself to have all that stands there."
        )
    return reading


def _best(wiring: Wiring, space: Space, readings: Sequence[SpaceReading], at: At) -> SpaceReading:
    if len(_writers(wiring, space)) > 1:
        for owners in (_owners(space.scales), _owners(space.reads)):
            entering = [
                reading
                for reading in readings
                if reading.place.side == "input"
                and reading.place.module in owners
                and not _is_one_branch(wiring, space, reading.place)
            ]
            if entering:
                most = max(reading.row_axes for reading in entering)
                return [reading for reading in entering if reading.row_axes == most][-1]
    owners, side = (_owners(space.writes), "output") if at == "pre" else (_owners(space.reads), "input")
    for owner in owners:
        for reading in readings:
            if reading.place.module == owner and reading.place.side == side:
                return reading
    return readings[0] if at == "pre" else readings[-1]


def _writers(wiring: Wiring, space: Space) -> list[str]:
    """The modules whose matrices write the space; vectors (biases, gains) only go along."""
    matrices = [
        axis for axis in space.writes if sum(size > 1 for size in wiring.tensors[axis.rpartition("[")[0]].shape) > 1
    ]
    return _owners(matrices)


def _owners(axes: Iterable[str]) -> list[str]:
    """The modules that hold the tensors of some axes: ``"fc1.weight[0]"`` belongs to ``"fc1"``."""
    return list(dict.fromkeys(axis.rpartition("[")[0].rpartition(".")[0] for axis in axes))


def _is_one_branch(wiring: Wiring, space: Space, place: Place) -> bool:
    """Whether a place comes right behind the output of a writer beside it: a norm of a branch, and not of the sum."""
    places = list(wiring.activations)
    position = places.index(str(place))
    if position == 0:
        return False
    before = Place.of(places[position - 1])
    beside = before.module.rpartition(".")[0] == place.module.rpartition(".")[0]
    return beside and before.side == "output" and before.module in _writers(wiring, space)


# ---------------------------------------------------------------------- advice


def _beside_its_tensors(space: Space) -> str:
    """Where a space that is not followed can be recorded all the same: at the modules that read or write it."""
    read, written = (_owners(axes) for axes in ((*space.reads, *space.scales), space.writes))
    places = [f"{owner}:input" for owner in read if owner] + [f"{owner}:output" for owner in written if owner]
    if not places:
        return "record a place near what reads it instead."
    return f"record a place where it is read or written instead: {_join_names(map(repr, places))}."


def _nearest(wiring: Wiring, space: Space) -> str:
    shared = [
        f"{reading.place} (beside {', '.join(reading.beside)})" for reading in readings_of(wiring, space, alone=False)
    ]
    if shared:
        return f"name a place to have the others as rows: {_join_names(shared)}."
    touched = [
        place
        for place, axes in wiring.activations.items()
        if any(isinstance(leaf, In) and leaf.space == space.name for axis in axes for leaf, _ in leaves(axis))
    ]
    if touched:
        return f"record one of these places itself, where parts of it stand: {_join_names(touched)}."
    return "no activation at the boundary of a module holds it; record a place near the modules that read it."


def _join_names(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
