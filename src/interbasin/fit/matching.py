r"""Two sets of tensors whose axes lie in the same spaces, and the maps of these spaces that bring them closest.

Let ``B`` be the target's entries along one space and ``A`` the source's, other axes flattened. Axes that *write* move
as :math:`M A`, axes that *read* as :math:`M^{-\top} A`, gains by :math:`|M|`. The best :math:`M` makes the sum of
squared differences least. For isometries that is the largest correlation: an assignment, a polar factor, an angle. An
invertible map also changes lengths; multiplied through by :math:`M^\top`, its read side is linear as well, and the
normal equations are Sylvester's:

.. math:: (B_r B_r^\top) M + M (A_w A_w^\top) = B_w A_w^\top + B_r A_r^\top .

That is exact where the two sets differ by a map only, and a good guess elsewhere; the guess is kept only if the true
sum of squares agrees.

`Problem` holds the tensors and the maps so far, `Problem.correlations` says what they show of one space, and `solve`
finds the best map of that space while the others stay. The caller decides in which order spaces are visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interbasin.fit.polar import polar
from interbasin.maps import Map
from interbasin.maps.base import Group, Role
from interbasin.maps.batched import (
    BatchedLinear,
    BatchedMap,
    BatchedPermutation,
    Divided,
    batched_identity,
    block_numbers,
    block_order,
    block_places,
    choose_blocks,
)

_PERMUTING = (Group.PERMUTATION, Group.SIGNED)
# Groups whose maps change lengths, and their isometries.
_ISOMETRIES = {Group.INVERTIBLE: Group.ORTHOGONAL, Group.SIMILARITY: Group.ROTATION}
# Directions that nothing was seen of, relative to the most that was seen of any, keep to the identity.
_UNSEEN = 1e-10


# ---------------------------------------------------------------------- the problem as data


@dataclass(frozen=True)
class FreeSpace:
    """A space whose map is to be found."""

    name: str
    size: int  # how many units its map mixes
    within: tuple[str, ...]  # the spaces whose blocks have a map each, outermost first
    blocks: int  # how many blocks that makes
    group: Group  # where its maps are sought

    def isometric(self) -> FreeSpace:
        """The same space with maps that keep lengths, which is all that activations can tell."""
        return replace(self, group=_ISOMETRIES.get(self.group, self.group))


@dataclass(frozen=True)
class Dim:
    """One axis of a piece: its space and role, and which axis of the whole tensor it is a part of."""

    space: str | None
    role: Role
    home: int


@dataclass(eq=False)
class Piece:
    """The same part of a tensor in source and target, cut so that each axis lies in one space or in none."""

    name: str  # of the tensor
    source: Tensor  # a `Problem` replaces it as it moves it
    target: Tensor
    dims: tuple[Dim, ...]  # one per axis

    def places(self, space: str) -> list[int]:
        """The axes that lie in ``space``."""
        return [place for place, dim in enumerate(self.dims) if dim.space == space]

    def beside(self, place: int, space: str) -> int:
        """The axis with the blocks of ``space`` that divide the axis at ``place``: one of the same home comes first."""
        places = self.places(space)
        return next((other for other in places if self.dims[other].home == self.dims[place].home), places[0])


# Whether a piece, seen along one of its axes, has a say.
Admit = Callable[[Piece, int], bool]


@dataclass
class Correlations:
    """What pieces show of one space: sums of products of its blocks, ``(blocks, size, size)``, by the role of the axis.

    Roles that no piece has are absent. The Gram matrices are only there for groups whose maps change lengths.
    """

    cross: dict[Role, Tensor] = field(default_factory=dict)  # target times source
    source_gram: dict[Role, Tensor] = field(default_factory=dict)
    target_gram: dict[Role, Tensor] = field(default_factory=dict)

    @property
    def without_gains(self) -> Tensor | None:
        """The correlation of written and read axes together, or None where no piece has such."""
        crosses = [self.cross[role] for role in (Role.WRITE, Role.READ) if role in self.cross]
        return sum(crosses[1:], crosses[0]) if crosses else None


class Problem:
    """Pieces of source and target, and for each free space the map so far, which brings the source near the target.

    The source's pieces are kept in the coordinates reached so far, so that every step asks the same question (which map
    brings the source nearer from here?) and steps compose. Maps inside blocks stand in the order of the blocks as they
    are now; `maps` puts them into the source's order, in which alignments hold them.

    Args:
        pieces: They are moved in place.
        free: The spaces whose maps are to be found.
        spaces: All spaces that blocks may come from, by name.
    """

    def __init__(self, pieces: Sequence[Piece], free: Iterable[FreeSpace], spaces: Mapping[str, Divided]) -> None:
        self.free = {space.name: space for space in free}
        self.spaces = spaces
        # Gains follow dense maps only approximately: they have no say in them.
        dense = {name for name, space in self.free.items() if space.group not in _PERMUTING}
        self.pieces = [
            piece for piece in pieces if not any(dim.role is Role.SCALE and dim.space in dense for dim in piece.dims)
        ]
        self.touching: dict[str, list[tuple[Piece, int]]] = {name: [] for name in self.free}
        for piece in self.pieces:
            for place, dim in enumerate(piece.dims):
                if dim.space in self.touching:
                    self.touching[dim.space].append((piece, place))
        # The free spaces that have a map for each block of a space, and those that lie in no blocks of another one.
        items = self.free.items()
        self.inside = {name: [child for child, space in items if name in space.within] for name in self.free}
        self.roots = [name for name, space in items if self.free.keys().isdisjoint(space.within)]
        self.current: dict[str, BatchedMap] = {
            name: batched_identity(space.group, space.blocks, space.size) for name, space in items
        }
        self._crosses: dict[Piece, dict[int, Tensor]] = {}  # by axis, as long as they are true

    # ------------------------------------------------------------------ what it shows

    def distance(self, pieces: Iterable[Piece] | None = None) -> float:
        """Squared distance of the source, where it stands, to the target, over all pieces or some."""
        total = 0.0
        for piece in self.pieces if pieces is None else pieces:
            # The sum of a row loses next to nothing in the tensor's own precision, and to widen every entry takes long.
            squares = (piece.source - piece.target).square()
            rows = squares.flatten(1).sum(1) if squares.ndim > 1 else squares
            total += float(rows.sum(dtype=torch.float64))
        return total

    def correlations(self, name: str, admit: Admit | None = None) -> Correlations:
        """What the pieces show of a space; ``admit`` chooses among them."""
        space = self.free[name]
        sums = Correlations()
        for piece, place in self.touching[name]:
            if admit is not None and not admit(piece, place):
                continue
            role = piece.dims[place].role
            crosses = self._crosses.setdefault(piece, {})
            if place not in crosses or space.group in _ISOMETRIES:
                source, target = (self._front(piece, side, place, space) for side in (piece.source, piece.target))
                crosses[place] = target @ source.mT
            products = [(sums.cross, crosses[place])]
            if space.group in _ISOMETRIES:
                products += [(sums.source_gram, source @ source.mT), (sums.target_gram, target @ target.mT)]
            for by_role, product in products:
                by_role[role] = by_role[role] + product if role in by_role else product
        return sums

    def _front(self, piece: Piece, tensor: Tensor, place: int, space: FreeSpace) -> Tensor:
        """The tensor as columns of one space, ``(blocks, size, rest)``."""
        order = [*(piece.beside(place, name) for name in space.within), place]
        return tensor.movedim(order, list(range(len(order)))).reshape(space.blocks, space.size, -1)

    # ------------------------------------------------------------------ moving it

    def apply(self, name: str, step: BatchedMap) -> None:
        """Move the source by one more map of a space."""
        space = self.free[name]
        if step.is_identity:
            return
        self.current[name] = step @ self.current[name]  # type: ignore[operator]
        for piece, place in self.touching[name]:
            side = step.side(piece.dims[place].role)
            if isinstance(side, BatchedPermutation) and side.signs is None and space.blocks == 1:
                piece.source = piece.source.index_select(place, side.index[0])
            else:
                order = [*(piece.beside(place, other) for other in space.within), place]
                front = piece.source.movedim(order, list(range(len(order))))
                moved = side(front.reshape(space.blocks, space.size, -1))
                piece.source = moved.reshape(front.shape).movedim(list(range(len(order))), order)
            cross = self._crosses.pop(piece, {}).get(place)
            # To turn a correlation takes as long as to make it anew from as many vectors as it has units.
            pays = isinstance(side, BatchedPermutation) or piece.source.numel() > space.blocks * space.size**2
            if cross is not None and pays and len(piece.places(name)) == 1:
                self._crosses[piece] = {place: side(cross.mT).mT}
        for child in self.inside[name]:  # when blocks change places, the maps inside them go along
            assert isinstance(step, BatchedPermutation)
            order_inside = block_order(self.spaces, self.free[child].within, {name: step})
            self.current[child] = self.current[child].take(order_inside)

    def restore(self, name: str, current: BatchedMap, sources: Mapping[Piece, Tensor]) -> None:
        """Take a step back: the map of a space and the pieces that touch it, as they were before."""
        self.current[name] = current
        for piece, source in sources.items():
            piece.source = source
            self._crosses.pop(piece, None)

    # ------------------------------------------------------------------ blocks, and the result

    def against_block(self, name: str, target: int | None, admit: Admit | None) -> Problem:
        """The problem of matching every block of the source to one block of the target: what is inside is free.

        Without a ``target``, every block is matched to the one in its own place.
        """
        pieces = []
        for piece, place in self.touching[name]:
            if len(piece.places(name)) == 1 and (admit is None or admit(piece, place)):
                goal = piece.target if target is None else piece.target.narrow(place, target, 1).expand_as(piece.source)
                pieces.append(Piece(piece.name, piece.source, goal, piece.dims))
        return Problem(pieces, [self.free[child] for child in self.inside[name]], self.spaces)

    def distance_per_block(self, blocks: FreeSpace) -> Tensor:
        """Squared distance that remains in each block of a space, ``(blocks outside, blocks)``."""
        total = torch.zeros(blocks.blocks, blocks.size, dtype=torch.float64)
        for piece in self.pieces:
            place = piece.places(blocks.name)[0]
            squares = (piece.source - piece.target).square()
            total += self._front(piece, squares, place, blocks).sum(2, dtype=total.dtype)
        return total

    def block_positions(self, name: str, outer: str) -> tuple[Tensor, Tensor]:
        """For each block of a space, which of the blocks outside ``outer`` it lies in, and which block of ``outer``."""
        places = block_places(self.spaces, self.free[name].within)
        within = self.free[outer].within
        outside = block_numbers(self.spaces, within, places) if within else torch.zeros_like(places[outer])
        return outside, places[outer]

    def maps(self) -> dict[str, Map]:
        """The map of every free space, with what is inside blocks in the source's order."""
        moves: dict[str, BatchedPermutation] = {}
        maps = {}
        for name, space in sorted(self.free.items(), key=lambda item: len(item[1].within)):
            batch = self.current[name]
            if space.within:
                batch = batch.take(block_order(self.spaces, space.within, moves).argsort())
            if isinstance(batch, BatchedPermutation):
                moves[name] = batch
            maps[name] = batch.to_map()
        return {name: maps[name] for name in self.free}


# ---------------------------------------------------------------------- the best map of one space


def solve(group: Group, correlations: Correlations) -> BatchedMap | None:
    """The best maps of ``group`` for what was seen of a space, or None where nothing was.

    Example:
        >>> swap = torch.tensor([[[0.0, 2.0], [1.0, 0.0]]])
        >>> solve(Group.PERMUTATION, Correlations({Role.WRITE: swap})).to_map().index
        tensor([1, 0])
    """
    cross = correlations.without_gains
    if group in _PERMUTING:
        return _best_permutation(cross, correlations.cross.get(Role.SCALE), signed=group is Group.SIGNED)
    if cross is None or group is Group.FIXED:
        return None
    cross = cross.double()
    if group in _ISOMETRIES:
        return _best_linear(group, cross, correlations)
    return BatchedLinear(polar(cross).factor if group is Group.ORTHOGONAL else _best_rotation(cross))


def assign(scores: Tensor) -> Tensor:
    """For each matrix ``(target, source)`` of a batch, the assignment with the largest sum, as an index of columns."""
    indices = [linear_sum_assignment(matrix, maximize=True)[1] for matrix in scores.double().numpy()]
    return torch.stack([torch.from_numpy(index).long() for index in indices])


def _best_permutation(cross: Tensor | None, gains: Tensor | None, *, signed: bool) -> BatchedPermutation | None:
    scores = [part for part in (cross.abs() if signed and cross is not None else cross, gains) if part is not None]
    if not scores:
        return None
    index = assign(sum(scores[1:], scores[0]))
    if not signed:
        return BatchedPermutation(index)
    signs = torch.ones(index.shape, dtype=torch.int8)
    if cross is not None:
        signs[cross.gather(2, index[:, :, None])[:, :, 0] < 0] = -1
    return BatchedPermutation(index, signs)


def _best_rotation(cross: Tensor) -> Tensor:
    """The rotation of two channels with the largest correlation, for each block."""
    even = cross[:, 0, 0] + cross[:, 1, 1]
    odd = cross[:, 1, 0] - cross[:, 0, 1]
    length = torch.hypot(even, odd)
    known = length > 0
    return _plane(torch.where(known, even / length, 1.0), torch.where(known, odd / length, 0.0))


def _plane(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([torch.stack([even, -odd], -1), torch.stack([odd, even], -1)], -2)


def _best_linear(group: Group, cross: Tensor, correlations: Correlations) -> BatchedMap:
    """For each block the best of three: the Sylvester solution, the best isometry, the identity."""
    zero = torch.zeros_like(cross)
    write = correlations.source_gram.get(Role.WRITE, zero).double()
    read = correlations.target_gram.get(Role.READ, zero).double()
    identity = batched_identity(group, *cross.shape[:2])
    assert isinstance(identity, BatchedLinear)
    if group is Group.SIMILARITY:
        weight = _trace(write) + _trace(read)
        weight = torch.where(weight > 0, weight, 1.0)
        guess = _plane(_trace(cross) / weight, (cross[:, 1, 0] - cross[:, 0, 1]) / weight)
        isometry = _best_rotation(cross)
    else:
        guess = _solve_sylvester(read, write, cross)
        isometry = polar(cross).factor
    # A map that all but flattens some direction cannot be undone in the precision of a checkpoint.
    levels = torch.linalg.svdvals(guess)
    sound = levels[:, -1] > 1e-4 * levels[:, 0]
    guess = torch.where(sound[:, None, None], guess, identity.matrix)
    candidates = [identity, BatchedLinear(isometry), BatchedLinear(guess, torch.linalg.inv(guess).mT)]
    costs = torch.stack([_cost(candidate, correlations) for candidate in candidates])
    return choose_blocks(candidates, costs.argmin(0))


def _solve_sylvester(gram: Tensor, other_gram: Tensor, value: Tensor) -> Tensor:
    """The ``M`` with ``gram M + M other_gram = value``; directions that were not seen keep to the identity."""
    levels, basis = torch.linalg.eigh(gram)
    other_levels, other_basis = torch.linalg.eigh(other_gram)
    floor = _UNSEEN * (levels[:, -1] + other_levels[:, -1]).clamp(min=torch.finfo(torch.float64).tiny)[:, None, None]
    value = value + floor * torch.eye(value.shape[-1], dtype=value.dtype)
    inner = basis.mT @ value @ other_basis
    inner = inner / (levels.clamp(min=0)[:, :, None] + other_levels.clamp(min=0)[:, None, :] + floor)
    solution: Tensor = basis @ inner @ other_basis.mT
    return solution


def _cost(candidate: BatchedLinear, correlations: Correlations) -> Tensor:
    """The sum of squared differences in each block, without what no map changes."""
    total = torch.zeros(len(candidate.matrix), dtype=torch.float64)
    for role in (Role.WRITE, Role.READ):
        if role in correlations.cross:
            side = candidate.side(role).matrix
            gram, cross = correlations.source_gram[role].double(), correlations.cross[role].double()
            total += ((side @ gram) * side).sum((1, 2)) - 2 * (side * cross).sum((1, 2))
    return total


def _trace(blocks: Tensor) -> Tensor:
    return blocks.diagonal(dim1=-2, dim2=-1).sum(-1)
