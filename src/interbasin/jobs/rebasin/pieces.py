"""Two networks cut into pieces whose every axis lies in one space.

A tensor's axis may be a row of stretches or a grid of heads by channels. Cut at the stretches and unfolded at the
grids, each piece is a plain array: one space an axis, or none. Weight matching is a sum over pieces, and knows nothing
else about a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Role, Row
from interbasin.wiring.mover import narrowed
from interbasin.wiring.wiring import Wiring

__all__ = ["Dim", "Piece", "cut"]


@dataclass(frozen=True)
class Dim:
    """One axis of a piece: its space and role, and which axis of the whole tensor it is a part of."""

    space: str | None
    role: Role
    home: int


@dataclass(eq=False)
class Piece:
    """The same part of both networks.

    Attributes:
        name: Of the tensor it was cut from.
        source: The source's numbers; matching replaces them as it moves them.
        target: The target's, which stay.
        dims: One for each axis.
    """

    name: str
    source: Tensor
    target: Tensor
    dims: tuple[Dim, ...]

    def places(self, space: str) -> list[int]:
        """The axes that lie in ``space``."""
        return [place for place, dim in enumerate(self.dims) if dim.space == space]

    def beside(self, place: int, space: str) -> int:
        """Where the blocks of ``space`` stand that the axis at ``place`` is divided by: its own axis comes first."""
        places = self.places(space)
        return next((one for one in places if self.dims[one].home == self.dims[place].home), places[0])

    @property
    def spaces(self) -> set[str]:
        return {dim.space for dim in self.dims if dim.space is not None}


def cut(
    wiring: Wiring,
    source: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    names: Iterable[str],
    movable: set[str],
    dtype: torch.dtype,
) -> list[Piece]:
    """The pieces of the tensors ``names`` that touch a ``movable`` space."""
    made: list[Piece] = []
    for name in names:
        axes = list(enumerate(wiring.tensors[name].axes))
        ours = source[name].detach().to(dtype)
        theirs = target[name].detach().to(dtype)
        for one, other, dims in _cut(ours, theirs, axes):
            if any(dim.space in movable for dim in dims):
                made.append(Piece(name, one, other, dims))
    return made


def _cut(
    source: Tensor, target: Tensor, axes: Sequence[tuple[int, Axis]]
) -> Iterable[tuple[Tensor, Tensor, tuple[Dim, ...]]]:
    for place, (home, axis) in enumerate(axes):
        if isinstance(axis, Grid):
            sizes = [part.size for part in axis.parts]
            unfolded = [one.unflatten(place, sizes) for one in (source, target)]  # type: ignore[no-untyped-call]
            parts = [(home, part) for part in axis.parts]
            yield from _cut(unfolded[0], unfolded[1], [*axes[:place], *parts, *axes[place + 1 :]])
            return
    for place, (home, axis) in enumerate(axes):
        if isinstance(axis, Row):
            sizes = [part.size for part in axis.parts]
            stretches = zip(torch.split(source, sizes, place), torch.split(target, sizes, place), strict=True)
            for position, (one, other) in enumerate(stretches):
                rest = [(its_home, narrowed(its, axis.key, position)) for its_home, its in axes]
                rest[place] = (home, axis.parts[position])
                yield from _cut(one, other, rest)
            return
    yield source, target, tuple(_dim(home, axis) for home, axis in axes)


def _dim(home: int, axis: Axis) -> Dim:
    if isinstance(axis, In):
        return Dim(axis.space, axis.role, home)
    assert not isinstance(axis, Each | Row | Grid)
    return Dim(None, Role.WRITE, home)
