"""Many square maps of one size at once: one per block of a space, as the heads of an attention layer have.

Solvers work with these, because one batched product is much faster than many small ones. A batch acts on columns:
``m(x)[b] == m.to_map().maps[b].matrix @ x[b]`` for ``x`` of shape ``(blocks, size, rest)``. Its `to_map` is the `Map`
that an alignment holds.

A space can lie within others, as the channels of a head lie within the heads. Blocks are numbered as the places in
those spaces run, the innermost fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from interbasin.maps.base import Group, Map, Role
from interbasin.maps.blocks import Blocks
from interbasin.maps.linear import Linear
from interbasin.maps.orthogonal import Orthogonal
from interbasin.maps.permutation import Permutation, SignedPermutation


@dataclass(frozen=True, eq=False)
class BatchedPermutation:
    """Units that change places, and perhaps signs: target unit ``i`` of block ``b`` is source unit ``index[b, i]``."""

    index: Tensor  # whole numbers, (blocks, size)
    signs: Tensor | None = None  # +1 or -1 for each target unit; None for no changes of sign

    @property
    def is_identity(self) -> bool:
        stays = bool((self.index == torch.arange(self.index.shape[1])).all())
        return stays and (self.signs is None or bool((self.signs == 1).all()))

    def side(self, role: Role) -> BatchedPermutation:
        """What an axis of that role follows: the map itself, which is its own dual; gains have no signs."""
        return BatchedPermutation(self.index) if role is Role.SCALE and self.signs is not None else self

    def __call__(self, columns: Tensor) -> Tensor:
        """The columns ``(blocks, size, rest)`` after the move."""
        if len(self.index) == 1:
            moved = columns[:, self.index[0]]
        else:
            moved = columns.gather(1, self.index[:, :, None].expand(-1, -1, columns.shape[2]))
        return moved if self.signs is None else moved * self.signs[:, :, None].to(columns.dtype)

    def __matmul__(self, first: Self) -> BatchedPermutation:
        """``g @ f``: first ``f``, then ``g``."""
        signs = self.signs
        if signs is not None and first.signs is not None:
            signs = signs * first.signs.gather(1, self.index)
        return BatchedPermutation(first.index.gather(1, self.index), signs)

    def take(self, order: Tensor) -> BatchedPermutation:
        """The maps of other blocks: block ``b`` gets the one of block ``order[b]``."""
        return BatchedPermutation(self.index[order], None if self.signs is None else self.signs[order])

    def to_map(self) -> Map:
        """The one map, or a `Blocks` of all."""
        maps: list[Map]
        if self.signs is None:
            maps = [Permutation(index) for index in self.index]
        else:
            maps = [SignedPermutation(*pair) for pair in zip(self.index, self.signs, strict=True)]
        return maps[0] if len(maps) == 1 else Blocks(maps)


@dataclass(frozen=True, eq=False)
class BatchedLinear:
    """Dense matrices."""

    matrix: Tensor  # (blocks, size, size)
    dual: Tensor | None = None  # their inverse transposes; None for isometries, which are their own duals
    is_identity: ClassVar[bool] = False  # to look would cost as much as to act

    def side(self, role: Role) -> BatchedLinear:
        """What an axis of that role follows: the map, its dual, or for gains their product entry by entry."""
        dual = self.matrix if self.dual is None else self.dual
        if role is Role.SCALE:
            return BatchedLinear(self.matrix * dual)
        return self if role is Role.WRITE or self.dual is None else BatchedLinear(dual, self.matrix)

    def __call__(self, columns: Tensor) -> Tensor:
        """The columns ``(blocks, size, rest)`` after the move, in their own dtype."""
        return self.matrix.to(columns.dtype) @ columns

    def __matmul__(self, first: Self) -> BatchedLinear:
        """``g @ f``: first ``f``, then ``g``."""
        if self.dual is None and first.dual is None:
            return BatchedLinear(self.matrix @ first.matrix)
        duals = [side.matrix if side.dual is None else side.dual for side in (self, first)]
        return BatchedLinear(self.matrix @ first.matrix, duals[0] @ duals[1])

    def take(self, order: Tensor) -> BatchedLinear:
        """The maps of other blocks: block ``b`` gets the one of block ``order[b]``."""
        return BatchedLinear(self.matrix[order], None if self.dual is None else self.dual[order])

    def to_map(self) -> Map:
        """The one map, or a `Blocks` of all: `Orthogonal` for isometries, else `Linear`."""
        maps: list[Map]
        if self.dual is None:
            # Products of many isometries drift; a step of Newton and Schulz squares what orthogonality they lost.
            settled = 1.5 * self.matrix - 0.5 * self.matrix @ (self.matrix.mT @ self.matrix)
            maps = [Orthogonal._trusted(matrix.clone(), len(matrix)) for matrix in settled]
        else:
            maps = [Linear(matrix) for matrix in self.matrix]
        return maps[0] if len(maps) == 1 else Blocks(maps)


BatchedMap = BatchedPermutation | BatchedLinear


def batched_identity(group: Group, blocks: int, size: int) -> BatchedMap:
    """The identity in every block, of the kind that elements of ``group`` have."""
    if group in (Group.PERMUTATION, Group.SIGNED):
        signs = torch.ones(blocks, size, dtype=torch.int8) if group is Group.SIGNED else None
        return BatchedPermutation(torch.arange(size).repeat(blocks, 1), signs)
    return BatchedLinear(torch.eye(size, dtype=torch.float64).repeat(blocks, 1, 1))


def choose_blocks(batches: Sequence[BatchedMap], choice: Tensor) -> BatchedMap:
    """Block ``b`` of the batch ``choice[b]``, for batches of one kind and shape."""
    numbers = torch.arange(len(choice))

    def choose(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts))[choice, numbers]

    permutations = [batch for batch in batches if isinstance(batch, BatchedPermutation)]
    if permutations:
        signs = [batch.signs for batch in permutations if batch.signs is not None]
        return BatchedPermutation(choose([batch.index for batch in permutations]), choose(signs) if signs else None)
    dense = [batch for batch in batches if isinstance(batch, BatchedLinear)]
    matrix = choose([batch.matrix for batch in dense])
    if all(batch.dual is None for batch in dense):
        return BatchedLinear(matrix)
    return BatchedLinear(matrix, choose([batch.matrix if batch.dual is None else batch.dual for batch in dense]))


# ---------------------------------------------------------------------- blocks of blocks


class Divided(Protocol):
    """A space as far as the order of blocks needs it: its size, and the spaces that it lies within."""

    @property
    def size(self) -> int: ...
    @property
    def within(self) -> tuple[str, ...]: ...


def block_places(spaces: Mapping[str, Divided], within: Sequence[str]) -> dict[str, Tensor]:
    """For every block of what lies ``within`` these spaces, its place in each of them."""
    grid = torch.meshgrid(*(torch.arange(spaces[name].size) for name in within), indexing="ij")
    return {name: places.flatten() for name, places in zip(within, grid, strict=True)}


def block_numbers(spaces: Mapping[str, Divided], within: Sequence[str], places: Mapping[str, Tensor]) -> Tensor:
    """The number of each block, given its place in each of the spaces that it lies ``within``."""
    numbers = torch.zeros_like(next(iter(places.values())))
    for name in within:
        numbers = numbers * spaces[name].size + places[name]
    return numbers


def block_order(
    spaces: Mapping[str, Divided], within: Sequence[str], moves: Mapping[str, BatchedPermutation]
) -> Tensor:
    """For every block after the spaces it lies ``within`` have moved, the number that it had before.

    Example:
        >>> from types import SimpleNamespace
        >>> heads = {"head": SimpleNamespace(size=3, within=())}
        >>> block_order(heads, ["head"], {"head": BatchedPermutation(torch.tensor([[2, 0, 1]]))})
        tensor([2, 0, 1])
    """
    now = block_places(spaces, within)
    before: dict[str, Tensor] = {}
    # Outermost first: which permutation moved an inner block depends on where the outer ones came from.
    for name in sorted(within, key=lambda name: len(spaces[name].within)):
        if name not in moves:
            before[name] = now[name]
            continue
        outer = spaces[name].within
        numbers = block_numbers(spaces, outer, before) if outer else torch.zeros_like(now[name])
        before[name] = moves[name].index[numbers, now[name]]
    return block_numbers(spaces, within, before)
