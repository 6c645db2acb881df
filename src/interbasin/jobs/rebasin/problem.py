"""Weight matching as data: pieces, the spaces to be matched, and where the source stands by now.

The source's pieces are kept in the coordinates reached so far, so that every step asks the same question (which
element brings the source nearer to the target from here?) and steps compose. Maps inside blocks stand in the order of
the blocks as they are now; `Problem.maps` puts them into the source's order, in which alignments hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from interbasin.jobs.rebasin.elements import Element, Evidence, Moves, Turns
from interbasin.jobs.rebasin.pieces import Piece
from interbasin.maps import Map
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Role

__all__ = ["Problem", "Unknown", "distance_of"]

_MOVES = (Group.PERMUTATION, Group.SIGNED)
_BENDS = (Group.INVERTIBLE, Group.SIMILARITY)


@dataclass(frozen=True)
class Unknown:
    """A space to be matched.

    Attributes:
        name: Of the space.
        size: How many units its map mixes.
        within: The spaces from block to block of which its map differs, outermost first.
        kind: The group its maps are sought in.
    """

    name: str
    size: int
    within: tuple[str, ...]
    kind: Group


class Problem:
    """Pieces of two networks, and an element for every unknown space, which brings the first near the second."""

    def __init__(self, pieces: Sequence[Piece], unknowns: Iterable[Unknown], sizes: Mapping[str, int]) -> None:
        self.unknowns = {unknown.name: unknown for unknown in unknowns}
        self.sizes = sizes
        # Gains follow dense maps only approximately: they have no say in them.
        dense = {name for name, unknown in self.unknowns.items() if unknown.kind not in _MOVES}
        self.pieces = [
            piece for piece in pieces if not any(dim.role is Role.SCALE and dim.space in dense for dim in piece.dims)
        ]
        self.touching: dict[str, list[tuple[Piece, int]]] = {name: [] for name in self.unknowns}
        for piece in self.pieces:
            for place, dim in enumerate(piece.dims):
                if dim.space in self.touching:
                    self.touching[dim.space].append((piece, place))
        self.elements: dict[str, Element] = {name: self._identity(unknown) for name, unknown in self.unknowns.items()}
        self._crosses: dict[tuple[int, int], Tensor] = {}

    # ------------------------------------------------------------------ the shape of the problem

    def blocks(self, unknown: Unknown) -> int:
        return prod(self.sizes[name] for name in unknown.within)

    def inside(self, name: str) -> list[str]:
        """The unknown spaces that have a map for each block of ``name``."""
        return [other for other, unknown in self.unknowns.items() if name in unknown.within]

    @property
    def roots(self) -> list[str]:
        """The unknown spaces that lie in no blocks of another unknown one."""
        return [
            name
            for name, unknown in self.unknowns.items()
            if not any(outer in self.unknowns for outer in unknown.within)
        ]

    def _identity(self, unknown: Unknown) -> Element:
        blocks = self.blocks(unknown)
        if unknown.kind in _MOVES:
            return Moves.identity(blocks, unknown.size, unknown.kind is Group.SIGNED)
        return Turns.identity(blocks, unknown.size)

    # ------------------------------------------------------------------ what it shows

    def objective(self) -> float:
        """Squared distance of the source, where it stands, to the target."""
        return distance_of(self.pieces)

    def energy(self) -> float:
        """Squared length of the target."""
        return sum((_sum_of_squares(piece.target) for piece in self.pieces), 0.0)

    def evidence(self, name: str, admit: Callable[[Piece, int], bool] = lambda piece, place: True) -> Evidence:
        """What the pieces show of a space; ``admit`` chooses among them."""
        unknown = self.unknowns[name]
        found = Evidence({}, {}, {})
        for piece, place in self.touching[name]:
            if not admit(piece, place):
                continue
            role = piece.dims[place].role
            _add(found.cross, role, self._cross(piece, place, unknown))
            if unknown.kind in _BENDS:
                source, target = (self._front(piece, one, place, unknown) for one in (piece.source, piece.target))
                _add(found.source_gram, role, source @ source.mT)
                _add(found.target_gram, role, target @ target.mT)
        return found

    def _cross(self, piece: Piece, place: int, unknown: Unknown) -> Tensor:
        key = (id(piece), place)
        if key not in self._crosses:
            source, target = (self._front(piece, one, place, unknown) for one in (piece.source, piece.target))
            self._crosses[key] = target @ source.mT
        return self._crosses[key]

    def _front(self, piece: Piece, tensor: Tensor, place: int, unknown: Unknown) -> Tensor:
        """``(blocks, size, rest)``."""
        outer = [piece.beside(place, name) for name in unknown.within]
        front = tensor.movedim([*outer, place], list(range(len(outer) + 1)))
        return front.reshape(self.blocks(unknown), unknown.size, -1)

    # ------------------------------------------------------------------ moving it

    def apply(self, name: str, step: Element) -> None:
        """Move the source by one more element of a space."""
        unknown = self.unknowns[name]
        if step.changes_nothing:
            return
        self.elements[name] = step.after(self.elements[name])  # type: ignore[arg-type]
        for piece, place in self.touching[name]:
            role = piece.dims[place].role
            if isinstance(step, Moves) and step.signs is None and len(step.index) == 1:
                piece.source = piece.source.index_select(place, step.index[0])
            else:
                outer = [piece.beside(place, other) for other in unknown.within]
                order = [*outer, place]
                front = piece.source.movedim(order, list(range(len(order))))
                moved = step.act(front.reshape(self.blocks(unknown), unknown.size, -1), role)
                piece.source = moved.reshape(front.shape).movedim(list(range(len(order))), order)
            self._revise(piece, place, name, step, role)
        self._reorder_inside(name, step)

    def _revise(self, piece: Piece, place: int, name: str, step: Element, role: Role) -> None:
        """Keep the correlations that are still true, and forget the others."""
        own = self._crosses.get((id(piece), place))
        self.forget([piece])
        # To turn a correlation takes as long as to make it anew from as many vectors as it has units.
        rest = piece.source.numel() // (self.blocks(self.unknowns[name]) * self.unknowns[name].size)
        worthwhile = isinstance(step, Moves) or rest > self.unknowns[name].size
        if own is not None and worthwhile and len(piece.places(name)) == 1:
            self._crosses[id(piece), place] = step.move_columns(own, role)

    def forget(self, pieces: Iterable[Piece]) -> None:
        """Drop what was computed from pieces whose source was set by hand."""
        for piece in pieces:
            for place in range(len(piece.dims)):
                self._crosses.pop((id(piece), place), None)

    def _reorder_inside(self, name: str, step: Element) -> None:
        """When blocks change places, the maps inside them go along."""
        children = self.inside(name)
        if not children:
            return
        assert isinstance(step, Moves)
        for child in children:
            order = self._sources(self.unknowns[child], {name: step})
            self.elements[child] = self.elements[child].taken(order)

    def _sources(self, unknown: Unknown, moves: Mapping[str, Moves]) -> Tensor:
        """For each block of a space, in the order after ``moves`` of the spaces it lies in, which block it was."""
        grid = torch.meshgrid(*(torch.arange(self.sizes[name]) for name in unknown.within), indexing="ij")
        now = {name: one.flatten() for name, one in zip(unknown.within, grid, strict=True)}
        before: dict[str, Tensor] = {}
        for name in unknown.within:  # outermost first: where an inner block came from depends on the outer ones
            if name not in moves:
                before[name] = now[name]
                continue
            index = moves[name].index
            if len(index) == 1:
                before[name] = index[0][now[name]]
            else:
                block = self._flat({outer: now[outer] for outer in self.unknowns[name].within}, self.unknowns[name])
                before[name] = index[block, now[name]]
        return self._flat(before, unknown)

    def _flat(self, places: Mapping[str, Tensor], unknown: Unknown) -> Tensor:
        flat = torch.zeros_like(next(iter(places.values())))
        for name in unknown.within:
            flat = flat * self.sizes[name] + places[name]
        return flat

    # ------------------------------------------------------------------ parts and results

    def against(self, name: str, target: int | None, admit: Callable[[Piece, int], bool]) -> Problem:
        """The problem of matching every block of the source to one block of the target: what is inside is unknown.

        Without a ``target``, every block is matched to the one in its own place.
        """
        pieces = []
        for piece, place in self.touching[name]:
            if len(piece.places(name)) == 1 and admit(piece, place):
                wanted = piece.target
                if target is not None:
                    wanted = wanted.narrow(place, target, 1).expand_as(piece.source)
                pieces.append(Piece(piece.name, piece.source, wanted, piece.dims))
        return Problem(pieces, [self.unknowns[child] for child in self.inside(name)], self.sizes)

    def remaining(self, blocks: Unknown) -> Tensor:
        """Squared distance that is left in each block of a space, ``(blocks outside, blocks)``."""
        left = torch.zeros(self.blocks(blocks), blocks.size, dtype=torch.float64)
        for piece in self.pieces:
            place = piece.places(blocks.name)[0]
            left += self._front(piece, (piece.source - piece.target).square(), place, blocks).sum(2, dtype=left.dtype)
        return left

    def whereabouts(self, name: str, outer: str) -> tuple[Tensor, Tensor]:
        """For each block of a space, which block of ``outer`` it lies in, and which of the blocks outside that."""
        unknown = self.unknowns[name]
        grid = torch.meshgrid(*(torch.arange(self.sizes[one]) for one in unknown.within), indexing="ij")
        places = {one: place.flatten() for one, place in zip(unknown.within, grid, strict=True)}
        return self._flat(places, self.unknowns[outer]), places[outer]

    def maps(self) -> dict[str, Map]:
        """The map of every space, with what is inside blocks in the source's order."""
        moves = {name: one for name, one in self.elements.items() if isinstance(one, Moves)}
        made = {}
        for name, unknown in self.unknowns.items():
            element = self.elements[name]
            if unknown.within:
                outer = {one: moves[one] for one in unknown.within if one in moves}
                order = self._sources(unknown, outer)
                back = torch.empty_like(order)
                back[order] = torch.arange(len(order))
                element = element.taken(back)
            made[name] = element.map()
        return made


def distance_of(pieces: Iterable[Piece]) -> float:
    """Squared distance of source and target over some pieces."""
    return sum((_sum_of_squares(piece.source - piece.target) for piece in pieces), 0.0)


def _sum_of_squares(tensor: Tensor) -> float:
    # The sum of a row loses next to nothing in the tensor's own precision, and to widen every entry takes long.
    squares = tensor.square()
    rows = squares.flatten(1).sum(1) if squares.ndim > 1 else squares
    return float(rows.sum(dtype=torch.float64))


def _add(sums: dict[Role, Tensor], role: Role, value: Tensor) -> None:
    sums[role] = sums[role] + value if role in sums else value
