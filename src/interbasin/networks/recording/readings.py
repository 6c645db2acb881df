"""Readings: how the rows of a space are taken from the activation at a place.

A space may stand on an axis of its own, as one stretch of an axis (fused projections), as one factor of it (heads by
channels, channels by positions), or with its blocks on several axes. All other axes become rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from interbasin.errors import ShapeError
from interbasin.networks.recording.places import QKV, Place, tells_width, width_axis
from interbasin.networks.wiring.spaces import Axis, Each, Grid, In, Role, Row, Space, leaves

__all__ = ["ModuleReading", "Reading", "SpaceReading", "axis_factors", "readings_at"]


@dataclass(frozen=True)
class _Factor:
    """One factor of an axis: its size (None: whatever is left), and which unit axis it is (None: rows)."""

    size: int | None
    unit: int | None


@dataclass(frozen=True)
class _AxisPart:
    """The stretch of an axis that is taken (None: all of it), the factors it falls into, and stretches left out."""

    stretch: tuple[int, int] | None
    factors: tuple[_Factor, ...]
    without: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SpaceReading:
    """A space at a place.

    Attributes:
        place: Where.
        space: The space's name.
        width: How many columns there will be, the blocks of the space side by side.
        beside: Other spaces that stand there too and would become rows.
    """

    place: Place
    space: str
    width: int
    parts: tuple[_AxisPart, ...]
    beside: tuple[str, ...] = ()

    @property
    def row_axes(self) -> int:
        """How many axes the rows have, the batch among them."""
        return sum(factor.unit is None for part in self.parts for factor in part.factors)

    @property
    def is_cut(self) -> bool:
        return any(part.stretch is not None for part in self.parts)

    def rows(self, activation: Tensor, module: nn.Module) -> Tensor:
        """``(batch, positions..., width)``; a view where that is possible."""
        if activation.ndim != len(self.parts):
            raise ShapeError(
                f"Space {self.space!r} was found at {self.place} in an activation of {len(self.parts)} axes, and now "
                f"it has {activation.ndim}: {tuple(activation.shape)}; give batches of the same kind as the example "
                "inputs."
            )
        shape: list[int] = []
        units: dict[int, int] = {}
        rows: list[int] = []
        for axis, part in enumerate(self.parts):
            if part.stretch is not None:
                activation = activation.narrow(axis, *part.stretch)
            if part.without:
                activation = _left_out(activation, axis, part.without)
            known = math.prod(factor.size for factor in part.factors if factor.size is not None)
            for factor in part.factors:
                if factor.unit is None:
                    rows.append(len(shape))
                else:
                    units[factor.unit] = len(shape)
                shape.append(activation.shape[axis] // known if factor.size is None else factor.size)
        order = [*rows, *(units[unit] for unit in sorted(units))]
        return activation.reshape(shape).permute(order).flatten(len(rows))


def _left_out(activation: Tensor, axis: int, stretches: tuple[tuple[int, int], ...]) -> Tensor:
    kept = torch.ones(activation.shape[axis], dtype=torch.bool, device=activation.device)
    for start, size in stretches:
        first = start % len(kept)
        kept[first : first + size] = False
    return activation.index_select(axis, kept.nonzero().flatten())


@dataclass(frozen=True)
class ModuleReading:
    """What a module takes or gives back, whole.

    Attributes:
        place: Where.
        space: The space that was said to stand there, if one was.
        width: The width of that space, which what is seen has to have.
        shared: Of an argument of attention, the others that are the same tensor, and are not recorded apart.
    """

    place: Place
    space: str | None = None
    width: int | None = None
    shared: tuple[str, ...] = ()

    def rows(self, activation: Tensor, module: nn.Module) -> Tensor:
        """``(batch, positions..., width)``, a view."""
        if isinstance(module, nn.MultiheadAttention) and self.place.side in QKV:
            return activation if module.batch_first or activation.ndim == 2 else activation.transpose(0, 1)
        axis = self.place.axis
        if axis is None:
            axis = width_axis(module, activation.ndim) if self.width is None else self._fitting_axis(activation, module)
        if activation.ndim < 2 or not -activation.ndim <= axis < activation.ndim:
            raise ShapeError(
                f"Asked to record axis {axis} at {self.place}, found an activation of shape {tuple(activation.shape)}; "
                "name an axis that it has, or another place."
            )
        if self.width is not None and activation.shape[axis] != self.width:
            raise self._misfit(activation)
        return activation.movedim(axis, -1)

    def _fitting_axis(self, activation: Tensor, module: nn.Module) -> int:
        """The one axis behind the batch that is as wide as the space; of several, the one that the class speaks of."""
        fitting = [axis for axis in range(1, activation.ndim) if activation.shape[axis] == self.width]
        if len(fitting) > 1 and tells_width(module):
            fitting = [axis for axis in fitting if axis == width_axis(module, activation.ndim)]
        if len(fitting) != 1:
            raise self._misfit(activation)
        return fitting[0]

    def _misfit(self, activation: Tensor) -> ShapeError:
        return ShapeError(
            f"Space {self.space!r} is {self.width} wide and was to be taken at {self.place}, where the activation has "
            f"shape {tuple(activation.shape)}; name another place, or the axis that it stands on: '{self.place}[1]'."
        )


Reading = SpaceReading | ModuleReading


def readings_at(place: Place, axes: tuple[Axis, ...], space: Space, spaces: Mapping[str, Space]) -> SpaceReading | None:
    """How ``space`` can be read where an activation is made of ``axes``, or None if it does not stand there whole."""
    wanted = {name: unit for unit, name in enumerate((*space.within, space.name))}
    for chosen in itertools.product(*(list(_parts(axis, space.name)) for axis in axes)):
        found = _reading(place, chosen, space, wanted, spaces)
        if found is not None:
            return found
    return None


_Choice = tuple[tuple[int, int] | None, tuple[Axis, ...]]


def _parts(axis: Axis, name: str) -> Iterator[_Choice]:
    """The ways to look at an axis: whole, as factors, or one stretch of it that the space stands in."""
    if isinstance(axis, Row):
        start = 0
        holds = False
        for part in axis.parts:
            if any(isinstance(leaf, In) and leaf.space == name for leaf, _ in leaves(part)):
                holds = True
                yield (start, part.size), axis_factors(part)
            start += part.size
        if holds:
            return
    yield None, axis_factors(axis)


def axis_factors(axis: Axis) -> tuple[Axis, ...]:
    """The factors of an axis, outermost first; an axis of one factor is itself."""
    if isinstance(axis, Grid):
        return tuple(factor for part in axis.parts for factor in axis_factors(part))
    return (axis,)


def _reading(
    place: Place, chosen: tuple[_Choice, ...], space: Space, wanted: Mapping[str, int], spaces: Mapping[str, Space]
) -> SpaceReading | None:
    seen: dict[str, int] = {}
    beside: dict[str, None] = {}
    parts = []
    for stretch, terms in chosen:
        factors: list[_Factor] = []
        without: tuple[tuple[int, int], ...] = ()
        for term in terms:
            if isinstance(term, In) and term.space in wanted:
                if term.role is not Role.WRITE or term.space in seen:
                    return None
                seen[term.space] = term.size
                factors.append(_Factor(term.size, wanted[term.space]))
                continue
            if isinstance(term, Row | Each) and any(
                isinstance(leaf, In) and leaf.space in wanted for leaf, _ in leaves(term)
            ):
                return None
            without = _without(term, spaces) if len(terms) == 1 else ()
            if not without:
                beside.update(dict.fromkeys(_moving(term, spaces)))
            factors.append(_Factor(term.size, None))
        parts.append(_AxisPart(stretch, _open(factors), without))
    if set(seen) != set(wanted) or math.prod(seen.values()) != space.width:
        return None
    return SpaceReading(place, space.name, space.width, tuple(parts), tuple(beside))


def _moving(axis: Axis, spaces: Mapping[str, Space]) -> list[str]:
    return [leaf.space for leaf, _ in leaves(axis) if isinstance(leaf, In) and not spaces[leaf.space].is_fixed]


def _without(axis: Axis, spaces: Mapping[str, Space]) -> tuple[tuple[int, int], ...]:
    """The stretches of a row of tokens that could change places, where others cannot: registers are no paired rows.

    Behind the longest stretch, which has another length for other inputs, places are counted from the end.
    """
    if not isinstance(axis, Row) or all(_moving(part, spaces) for part in axis.parts):
        return ()
    longest = max(part.size for part in axis.parts if not _moving(part, spaces))
    found = []
    start = 0
    for part in axis.parts:
        if _moving(part, spaces):
            found.append((start, part.size))
        start += part.size
        if not _moving(part, spaces) and part.size == longest and start >= 0:
            start -= axis.size
    return tuple(found)


def _open(factors: list[_Factor]) -> tuple[_Factor, ...]:
    """The factors with the size of the first that becomes rows left open: batches and images of other sizes come."""
    for position, factor in enumerate(factors):
        if factor.unit is None:
            return (*factors[:position], _Factor(None, None), *factors[position + 1 :])
    return tuple(factors)
