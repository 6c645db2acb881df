r"""Elements of the groups that spaces move by, many blocks at a time, and the best one for what two networks show.

Let ``B`` be the target's entries along one space and ``A`` the source's, other axes flattened. Axes that *write* move
as :math:`M A`, axes that *read* as :math:`M^{-\top} A`, gains by :math:`|M|`. The best :math:`M` makes the sum of
squared differences least. For isometries that is the largest correlation: an assignment, a polar factor, an angle. An
invertible map also changes lengths; multiplied through by :math:`M^\top`, its read side is linear as well, and the
normal equations are Sylvester's:

.. math:: (B_r B_r^\top) M + M (A_w A_w^\top) = B_w A_w^\top + B_r A_r^\top .

That is exact where the two networks differ by a map only, and a good guess elsewhere; the guess is kept only if the
true sum of squares agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interbasin.fit.polar import polar
from interbasin.maps import Blocks, Linear, Map, Orthogonal, Permutation, SignedPermutation
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Role

__all__ = ["Element", "Evidence", "Moves", "Turns", "best", "picked"]

# Directions that nothing was seen of, relative to the most that was seen of any, keep to the identity.
_UNSEEN = 1e-10


@dataclass(frozen=True)
class Moves:
    """Units that change places, and perhaps signs: target unit ``i`` of block ``b`` is source unit ``index[b, i]``."""

    index: Tensor
    signs: Tensor | None = None

    @classmethod
    def identity(cls, blocks: int, size: int, signed: bool) -> Self:
        index = torch.arange(size).repeat(blocks, 1)
        return cls(index, torch.ones(blocks, size, dtype=torch.int8) if signed else None)

    @property
    def changes_nothing(self) -> bool:
        still = bool((self.index == torch.arange(self.index.shape[1])).all())
        return still and (self.signs is None or bool((self.signs == 1).all()))

    def after(self, first: Moves) -> Moves:
        signs = self.signs
        if signs is not None and first.signs is not None:
            signs = signs * first.signs.gather(1, self.index)
        return Moves(first.index.gather(1, self.index), signs)

    def act(self, blocks: Tensor, role: Role) -> Tensor:
        """Move ``(blocks, size, rest)``."""
        if len(self.index) == 1:
            moved = blocks[:, self.index[0]]
        else:
            moved = blocks.gather(1, self.index[:, :, None].expand(-1, -1, blocks.shape[2]))
        if self.signs is None or role is Role.SCALE:
            return moved
        return moved * self.signs[:, :, None].to(blocks.dtype)

    def move_columns(self, cross: Tensor, role: Role) -> Tensor:
        """A correlation ``(blocks, target, source)`` after the source has moved."""
        return self.act(cross.mT, role).mT

    def taken(self, order: Tensor) -> Moves:
        """The blocks in another order."""
        return Moves(self.index[order], None if self.signs is None else self.signs[order])

    def map(self) -> Map:
        if self.signs is None:
            maps: list[Map] = [Permutation(one.clone()) for one in self.index]
        else:
            maps = [
                SignedPermutation(one.clone(), sign.clone()) for one, sign in zip(self.index, self.signs, strict=True)
            ]
        return maps[0] if len(maps) == 1 else Blocks(maps)


@dataclass(frozen=True)
class Turns:
    """Matrices, ``(blocks, size, size)``, and what read axes get: for isometries the same."""

    matrix: Tensor
    dual: Tensor

    @classmethod
    def identity(cls, blocks: int, size: int) -> Self:
        one = torch.eye(size, dtype=torch.float64).repeat(blocks, 1, 1)
        return cls(one, one)

    @classmethod
    def isometric(cls, matrix: Tensor) -> Self:
        return cls(matrix, matrix)

    @property
    def is_isometric(self) -> bool:
        return self.matrix is self.dual

    @property
    def changes_nothing(self) -> bool:
        return False

    def after(self, first: Turns) -> Turns:
        matrix = self.matrix @ first.matrix
        return Turns(matrix, matrix if self.is_isometric and first.is_isometric else self.dual @ first.dual)

    def act(self, blocks: Tensor, role: Role) -> Tensor:
        side = self._side(role).to(blocks.dtype)
        return side @ blocks

    def _side(self, role: Role) -> Tensor:
        if role is Role.SCALE:
            return self.matrix * self.dual
        return self.matrix if role is Role.WRITE else self.dual

    def move_columns(self, cross: Tensor, role: Role) -> Tensor:
        return cross @ self._side(role).mT.to(cross.dtype)

    def taken(self, order: Tensor) -> Turns:
        matrix = self.matrix[order]
        return Turns(matrix, matrix if self.is_isometric else self.dual[order])

    def map(self) -> Map:
        if self.is_isometric:
            # Many turns were multiplied; a step of Newton and Schulz squares what they have lost of orthogonality.
            settled = 1.5 * self.matrix - 0.5 * self.matrix @ (self.matrix.mT @ self.matrix)
            maps: list[Map] = [Orthogonal(one) for one in settled]
        else:
            maps = [Linear(one.clone()) for one in self.matrix]
        return maps[0] if len(maps) == 1 else Blocks(maps)


Element = Moves | Turns


def picked(elements: Sequence[Element], choice: Tensor) -> Element:
    """From elements of one space, all of one kind, a block each: block ``b`` of the element ``choice[b]``."""
    blocks = torch.arange(len(choice))

    def pick(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts))[choice, blocks]

    moves = [one for one in elements if isinstance(one, Moves)]
    if moves:
        signs = [one.signs for one in moves if one.signs is not None]
        return Moves(pick([one.index for one in moves]), pick(signs) if signs else None)
    turns = [one for one in elements if isinstance(one, Turns)]
    matrix = pick([one.matrix for one in turns])
    if all(one.is_isometric for one in turns):
        return Turns.isometric(matrix)
    return Turns(matrix, pick([one.dual for one in turns]))


@dataclass
class Evidence:
    """What two networks show of one space, summed over the pieces that touch it: products of blocks.

    Attributes:
        cross: Target times source, ``(blocks, size, size)``, by role; None where no piece has the role.
        source_gram: Source times source, by role (only gathered for maps that change lengths).
        target_gram: Target times target, likewise.
    """

    cross: dict[Role, Tensor]
    source_gram: dict[Role, Tensor]
    target_gram: dict[Role, Tensor]

    def along(self) -> Tensor | None:
        """The correlation that moves with signs: of written and read axes alike."""
        seen = [self.cross[role] for role in (Role.WRITE, Role.READ) if role in self.cross]
        return sum(seen[1:], seen[0]) if seen else None


def best(kind: Group, evidence: Evidence) -> Element | None:
    """The best element for the evidence, or nothing where there is none or the identity is as good."""
    along = evidence.along()
    if kind in (Group.PERMUTATION, Group.SIGNED):
        return _moves(along, evidence.cross.get(Role.SCALE), kind is Group.SIGNED)
    if along is None:
        return None
    if kind is Group.ORTHOGONAL:
        return Turns.isometric(polar(along.double()).factor)
    if kind is Group.ROTATION:
        return Turns.isometric(_rotation(along.double()))
    if kind in (Group.INVERTIBLE, Group.SIMILARITY):
        return _bending(kind, evidence)
    return None


def _moves(along: Tensor | None, size: Tensor | None, signed: bool) -> Moves | None:
    given = along if along is not None else size
    if given is None:
        return None
    score = along.abs() if signed and along is not None else along
    total = size if score is None else score if size is None else score + size
    assert total is not None
    indices = [torch.from_numpy(_assigned(one)) for one in total.double().numpy()]
    index = torch.stack(indices)
    if not signed:
        return Moves(index)
    signs = torch.ones(index.shape, dtype=torch.int8)
    if along is not None:
        signs[along.gather(2, index[:, :, None])[:, :, 0] < 0] = -1
    return Moves(index, signs)


def _assigned(score: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    columns: np.ndarray[Any, Any] = linear_sum_assignment(score, maximize=True)[1]
    return columns.astype(np.int64)


def _rotation(cross: Tensor) -> Tensor:
    even = cross[:, 0, 0] + cross[:, 1, 1]
    odd = cross[:, 1, 0] - cross[:, 0, 1]
    length = torch.hypot(even, odd)
    known = length > 0
    even = torch.where(known, even / length, 1.0)
    odd = torch.where(known, odd / length, 0.0)
    return _plane(even, odd)


def _plane(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([torch.stack([even, -odd], -1), torch.stack([odd, even], -1)], -2)


def _bending(kind: Group, evidence: Evidence) -> Turns:
    """Of the Sylvester solution, the best isometry and the identity, the one that is truly best, block by block."""
    cross = {role: one.double() for role, one in evidence.cross.items()}
    along = evidence.along()
    assert along is not None
    along = along.double()
    zero = torch.zeros_like(along)
    write = evidence.source_gram.get(Role.WRITE, zero).double()
    read = evidence.target_gram.get(Role.READ, zero).double()
    identity = Turns.identity(*along.shape[:2])
    if kind is Group.SIMILARITY:
        weight = _trace(write) + _trace(read)
        weight = torch.where(weight > 0, weight, 1.0)
        even, odd = _trace(along) / weight, (along[:, 1, 0] - along[:, 0, 1]) / weight
        guess = _plane(even, odd)
        isometry = _rotation(along)
    else:
        guess = _sylvester(read, write, along)
        isometry = polar(along).factor
    # A map that all but flattens some direction cannot be undone in the precision of a checkpoint.
    levels = torch.linalg.svdvals(guess)
    sound = levels[:, -1] > 1e-4 * levels[:, 0]
    guess = torch.where(sound[:, None, None], guess, identity.matrix)
    candidates = [identity, Turns.isometric(isometry), Turns(guess, torch.linalg.inv(guess).mT)]
    costs = torch.stack([_cost(one, cross, evidence, zero) for one in candidates])
    chosen = costs.argmin(0)
    blocks = torch.arange(len(chosen))
    matrix = torch.stack([one.matrix for one in candidates])[chosen, blocks]
    dual = torch.stack([one.dual for one in candidates])[chosen, blocks]
    return Turns(matrix, dual)


def _sylvester(left: Tensor, right: Tensor, value: Tensor) -> Tensor:
    """The symmetric Sylvester equation ``left M + M right = value``; unseen directions keep to the identity."""
    levels, basis = torch.linalg.eigh(left)
    other_levels, other_basis = torch.linalg.eigh(right)
    floor = _UNSEEN * (levels[:, -1] + other_levels[:, -1]).clamp(min=torch.finfo(torch.float64).tiny)[:, None, None]
    value = value + floor * torch.eye(value.shape[-1], dtype=value.dtype)
    inner = basis.mT @ value @ other_basis
    inner = inner / (levels.clamp(min=0)[:, :, None] + other_levels.clamp(min=0)[:, None, :] + floor)
    found: Tensor = basis @ inner @ other_basis.mT
    return found


def _cost(element: Turns, cross: dict[Role, Tensor], evidence: Evidence, zero: Tensor) -> Tensor:
    """The sum of squared differences a block, without what no map changes."""
    total = torch.zeros(len(zero), dtype=torch.float64)
    for role, side in ((Role.WRITE, element.matrix), (Role.READ, element.dual)):
        if role in cross:
            gram = evidence.source_gram[role].double()
            total += ((side @ gram) * side).sum((1, 2)) - 2 * (side * cross[role]).sum((1, 2))
    return total


def _trace(blocks: Tensor) -> Tensor:
    return blocks.diagonal(dim1=-2, dim2=-1).sum(-1)
