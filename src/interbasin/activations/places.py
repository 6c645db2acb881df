"""Places, how the rows of a space are read there, and which place is taken when nobody named one.

A place is what goes into a module or comes out of it. ``"blocks.0.mlp.fc1"`` is what the module returns,
``"blocks.0.mlp.fc1:input"`` what it is given. Inside attention (`torch.nn.MultiheadAttention`) there are also
``"attn:q"``, ``"attn:k"`` and ``"attn:v"``. A third part counts the calls of a module that is used more than once in a
forward pass (``"act:output:1"`` is the second), and ``[1]`` at the end says which axis is the width where the module's
class does not tell.

There a space may fill an axis, one segment of an axis (fused projections), one factor of it (heads by channels,
channels by positions), or have its blocks on several axes. All other axes become rows.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.text import list_names
from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Role, Row, Space, spaces_in
from interbasin.wiring.wiring import Wiring

At = Literal["post", "pre"]
Side = Literal["input", "output", "q", "k", "v"]
QKV: tuple[Side, ...] = ("q", "k", "v")
SHOWN = 6  # names that a message lists
_PATTERN = re.compile(r"(?P<module>[^:\[\]]*)(:(?P<side>input|output|q|k|v))?(:(?P<call>\d+))?(\[(?P<axis>-?\d+)\])?")

# Classes whose channels stand on axis 1, whatever follows, and classes whose width stands on the last axis.
_CHANNELS_FIRST = (
    _ConvNd,
    _NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention)


@dataclass(frozen=True)
class Place:
    """One side of one call of one module; ``axis`` is the width, where it was said."""

    module: str
    side: Side
    call: int = 0
    axis: int | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """The place that ``text`` names.

        Example:
            >>> Place.of("encoder.act:output:1")
            Place(module='encoder.act', side='output', call=1, axis=None)
        """
        match = _PATTERN.fullmatch(text)
        if match is None or (match["call"] and not match["side"]) or (match["axis"] and match["side"] in QKV):
            raise WiringError(
                f"Asked to record at {text!r}, which names no place; write a module's path, then ':input' or "
                "':output' (of attention also ':q', ':k' or ':v'), then ':1' for its second call, then '[1]' for the "
                "axis of the width."
            )
        axis = None if match["axis"] is None else int(match["axis"])
        return cls(match["module"], cast(Side, match["side"] or "output"), int(match["call"] or 0), axis)

    def __str__(self) -> str:
        return f"{self.module}:{self.side}:{self.call}"


def module_at(model: nn.Module, place: Place) -> nn.Module:
    """The module of a place; an error names those that come nearest."""
    try:
        return model.get_submodule(place.module)
    except AttributeError as error:
        known = (name for name, _ in model.named_modules() if name)
        raise UnknownNameError.of(f"module of {type(model).__name__}", place.module, known) from error


def width_axis(module: nn.Module, ndim: int) -> int:
    """The axis of the width: the channels of convolutions and of what goes with them, else the last."""
    return 1 if isinstance(module, _CHANNELS_FIRST) and ndim > 2 else ndim - 1


# ---------------------------------------------------------------------- a module as it is


@dataclass(frozen=True)
class ModuleReading:
    """What a module takes or returns, whole."""

    place: Place
    space: str | None = None  # the space that was said to stand there, if one was
    width: int | None = None  # of that space, which the activation must have
    shared: tuple[str, ...] = ()  # other arguments of attention that are the same tensor, recorded with this one

    def rows(self, activation: Tensor, module: nn.Module) -> Tensor:
        """``(batch, positions..., width)``, a view."""
        if isinstance(module, nn.MultiheadAttention) and self.place.side in QKV:
            return activation if module.batch_first or activation.ndim == 2 else activation.transpose(0, 1)
        axis = self.place.axis
        if axis is None:
            axis = width_axis(module, activation.ndim) if self.width is None else self._fitting_axis(activation, module)
        if activation.ndim < 2 or not -activation.ndim <= axis < activation.ndim:
            raise ShapeError(
                f"Asked to record axis {axis} at {self.place}, found shape {tuple(activation.shape)}; name its axis."
            )
        if self.width is not None and activation.shape[axis] != self.width:
            raise self._misfit(activation)
        return activation.movedim(axis, -1)

    def _fitting_axis(self, activation: Tensor, module: nn.Module) -> int:
        """The only axis behind the batch that is as wide as the space; of several, the one that the class names."""
        fitting = [axis for axis in range(1, activation.ndim) if activation.shape[axis] == self.width]
        if len(fitting) > 1 and isinstance(module, (*_CHANNELS_FIRST, *_CHANNELS_LAST)):
            fitting = [axis for axis in fitting if axis == width_axis(module, activation.ndim)]
        if len(fitting) != 1:
            raise self._misfit(activation)
        return fitting[0]

    def _misfit(self, activation: Tensor) -> ShapeError:
        return ShapeError(
            f"Space {self.space!r} is {self.width} wide and was to be taken at {self.place}, where the activation has "
            f"shape {tuple(activation.shape)}; name another place, or the axis that it stands on: '{self.place}[1]'."
        )


# ---------------------------------------------------------------------- a space of the wiring


@dataclass(frozen=True)
class _Factor:
    """One factor of an axis: its size (None: whatever is left), and which unit axis it is (None: rows)."""

    size: int | None
    unit: int | None


@dataclass(frozen=True)
class _AxisPart:
    """What is taken of an axis (None: all of it), its factors, and the segments that are left out."""

    segment: tuple[int, int] | None
    factors: tuple[_Factor, ...]
    without: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SpaceReading:
    """A space at a place."""

    place: Place
    space: str
    width: int  # how many columns there will be, the blocks of the space side by side
    parts: tuple[_AxisPart, ...]
    beside: tuple[str, ...] = ()  # other spaces that stand there too and would become rows

    @property
    def row_axes(self) -> int:
        """How many axes the rows have, the batch among them."""
        return sum(factor.unit is None for part in self.parts for factor in part.factors)

    def rows(self, activation: Tensor, module: nn.Module) -> Tensor:
        """``(batch, positions..., width)``; a view where that is possible."""
        if activation.ndim != len(self.parts):
            raise ShapeError(
                f"Space {self.space!r} was found at {self.place} in an activation of {len(self.parts)} axes, and now "
                f"it has {activation.ndim}: {tuple(activation.shape)}; give batches like the example inputs."
            )
        shape: list[int] = []
        units: dict[int, int] = {}
        rows: list[int] = []
        for axis, part in enumerate(self.parts):
            if part.segment is not None:
                activation = activation.narrow(axis, *part.segment)
            if part.without:
                activation = _leave_out(activation, axis, part.without)
            known = math.prod(factor.size for factor in part.factors if factor.size is not None)
            for factor in part.factors:
                if factor.unit is None:
                    rows.append(len(shape))
                else:
                    units[factor.unit] = len(shape)
                shape.append(activation.shape[axis] // known if factor.size is None else factor.size)
        order = [*rows, *(units[unit] for unit in sorted(units))]
        return activation.reshape(shape).permute(order).flatten(len(rows))


Reading = SpaceReading | ModuleReading


def _leave_out(activation: Tensor, axis: int, segments: tuple[tuple[int, int], ...]) -> Tensor:
    kept = torch.ones(activation.shape[axis], dtype=torch.bool, device=activation.device)
    for start, size in segments:
        first = start % len(kept)
        kept[first : first + size] = False
    return activation.index_select(axis, kept.nonzero().flatten())


def find_reading(
    place: Place, axes: tuple[Axis, ...], space: Space, spaces: Mapping[str, Space]
) -> SpaceReading | None:
    """How ``space`` can be read where an activation is made of ``axes``, or None if it does not stand there whole."""
    wanted = {name: unit for unit, name in enumerate((*space.within, space.name))}
    for choice in itertools.product(*(list(_ways_to_see(axis, space.name)) for axis in axes)):
        reading = _reading(place, choice, space, wanted, spaces)
        if reading is not None:
            return reading
    return None


_Choice = tuple[tuple[int, int] | None, tuple[Axis, ...]]


def _ways_to_see(axis: Axis, name: str) -> Iterator[_Choice]:
    """The ways to look at an axis: whole, as factors, or one segment of it that the space stands in."""
    start, is_whole = 0, True
    for part in axis.parts if isinstance(axis, Row) else ():
        if name in spaces_in([part]):
            is_whole = False
            yield (start, part.size), axis_factors(part)
        start += part.size
    if is_whole:
        yield None, axis_factors(axis)


def axis_factors(axis: Axis) -> tuple[Axis, ...]:
    """The factors of an axis, outermost first; an axis of one factor is itself."""
    if isinstance(axis, Grid):
        return tuple(factor for part in axis.parts for factor in axis_factors(part))
    return (axis,)


def _reading(
    place: Place, choice: tuple[_Choice, ...], space: Space, wanted: Mapping[str, int], spaces: Mapping[str, Space]
) -> SpaceReading | None:
    sizes: dict[str, int] = {}
    beside: dict[str, None] = {}
    parts = []
    for segment, terms in choice:
        factors: list[_Factor] = []
        without: tuple[tuple[int, int], ...] = ()
        # The size of the first factor that becomes rows is left open: batches and images of other sizes come.
        size_is_open = False
        for term in terms:
            if isinstance(term, In) and term.space in wanted:
                if term.role is not Role.WRITE or term.space in sizes:
                    return None
                sizes[term.space] = term.size
                factors.append(_Factor(term.size, wanted[term.space]))
                continue
            if isinstance(term, Row | Each) and any(name in wanted for name in spaces_in([term])):
                return None
            if isinstance(term, Row) and len(terms) == 1:
                without = _movable_segments(term, spaces)
            if not without:
                beside.update(dict.fromkeys(name for name in spaces_in([term]) if not spaces[name].is_fixed))
            factors.append(_Factor(term.size if size_is_open else None, None))
            size_is_open = True
        parts.append(_AxisPart(segment, tuple(factors), without))
    if set(sizes) != set(wanted) or math.prod(sizes.values()) != space.width:
        return None
    return SpaceReading(place, space.name, space.width, tuple(parts), tuple(beside))


def _movable_segments(axis: Row[Axis, int], spaces: Mapping[str, Space]) -> tuple[tuple[int, int], ...]:
    """The segments of a row of tokens that could change places, where others cannot: registers are no paired rows.

    Behind the longest segment, which has another length for other inputs, positions are counted from the end.
    """
    moving = [any(not spaces[name].is_fixed for name in spaces_in([part])) for part in axis.parts]
    if all(moving):
        return ()
    longest = max(part.size for part, moves in zip(axis.parts, moving, strict=True) if not moves)
    segments = []
    start = 0
    for part, moves in zip(axis.parts, moving, strict=True):
        if moves:
            segments.append((start, part.size))
        start += part.size
        if not moves and part.size == longest and start >= 0:
            start -= axis.size
    return tuple(segments)


# ---------------------------------------------------------------------- the place that is taken


def standing(wiring: Wiring, at: At = "post") -> dict[str, str]:
    """Where each space that moves would be recorded: space -> place. Spaces that stand nowhere whole are left out."""
    if not isinstance(wiring, Wiring):
        raise WiringError(f"Spaces stand in a wiring, found a {type(wiring).__name__}; find one with interbasin.wire.")
    require_at(at)
    places = {}
    for name, space in wiring.spaces.items():
        if not space.is_fixed and (readings := find_readings(wiring, space, alone=True)):
            places[name] = str(_best(wiring, space, readings, at).place)
    return places


def require_at(at: object) -> None:
    """Refuse anything but behind (post) and before (pre) the non-linearity."""
    if at not in ("post", "pre"):
        raise WiringError(
            f"Spaces are recorded at='post' or at='pre', found {at!r}; give one of them, or the place itself."
        )


def choose_reading(wiring: Wiring, name: str, at: At = "post", place: str | None = None) -> Reading:
    """How to record the space ``name``, which has to stand whole somewhere, or at ``place`` where one is given.

    A space with one writer is taken where its first reader reads it (``at="post"``), or where it is written
    (``"pre"``). Of one with several writers, such as a residual stream, no single output shows the whole: it is taken
    where it enters the last normalisation that scales it, or else the last module that reads it. So is one that is
    the network's output as well. The network's input is taken where the first module reads it. At a place, other
    spaces that stand beside it may become rows.
    """
    if name not in wiring.spaces:
        raise UnknownNameError.of("space", name, wiring.spaces)
    require_at(at)
    space = wiring.spaces[name]
    if place is not None:
        return _at_place(wiring, space, Place.of(place))
    readings = find_readings(wiring, space, alone=True)
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


def find_readings(wiring: Wiring, space: Space, *, alone: bool) -> list[SpaceReading]:
    """Wherever the space stands whole, in the order of the forward pass; ``alone``: without others beside it."""
    readings = (
        find_reading(Place.of(text), wiring.activations[text], space, wiring.spaces)
        for text in wiring.places_of.get(space.name, ())
    )
    return [reading for reading in readings if reading is not None and not (alone and reading.beside)]


def _at_place(wiring: Wiring, space: Space, place: Place) -> SpaceReading:
    if str(place) not in wiring.activations:
        raise UnknownNameError.of("place that the wiring follows", str(place), wiring.activations)
    reading = find_reading(place, wiring.activations[str(place)], space, wiring.spaces)
    if reading is None:
        shown = list_names((str(reading.place) for reading in find_readings(wiring, space, alone=False)), SHOWN)
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
    shapes = {axis: wiring.tensors[axis.rpartition("[")[0]].shape for axis in space.writes}
    return _owners(axis for axis, shape in shapes.items() if sum(size > 1 for size in shape) > 1)


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


def _beside_its_tensors(space: Space) -> str:
    """Advice for a space that is not followed: the modules that read or write it."""
    read, written = (_owners(axes) for axes in ((*space.reads, *space.scales), space.writes))
    places = [f"{owner}:input" for owner in read if owner] + [f"{owner}:output" for owner in written if owner]
    if not places:
        return "record a place near what reads it instead."
    return f"record a place where it is read or written instead: {list_names(map(repr, places), SHOWN)}."


def _nearest(wiring: Wiring, space: Space) -> str:
    """Advice for a space that stands nowhere alone: the places that come nearest."""
    shared = [
        f"{reading.place} (beside {', '.join(reading.beside)})" for reading in find_readings(wiring, space, alone=False)
    ]
    if shared:
        return f"name a place to have the others as rows: {list_names(shared, SHOWN)}."
    touched = [place for place, axes in wiring.activations.items() if space.name in spaces_in(axes)]
    if touched:
        return f"record one of these places itself, where parts of it stand: {list_names(touched, SHOWN)}."
    return "no activation at the boundary of a module holds it; record a place near the modules that read it."
