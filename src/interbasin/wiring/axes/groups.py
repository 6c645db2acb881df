"""The groups of maps that can leave a network's function unchanged, and how two demands on one space combine.

Ordered from the largest to the smallest::

    invertible                     between two linear maps
      orthogonal                   where lengths are read: a norm without a gain, a tensor used on both sides
        signed permutation         behind an odd elementwise function
          permutation              behind any other elementwise function
            fixed                  nothing moves
      rotation and scale           of two channels: what commutes with rotary positions
        rotation                   the same, where lengths are read
          fixed
"""

from __future__ import annotations

import math
from typing import TypeGuard

import torch
from torch import Tensor

from interbasin.maps import Blocks, Identity, Linear, Map, Orthogonal, Permutation, SignedPermutation
from interbasin.maps.base import Group

__all__ = ["Group", "belongs", "contains", "is_blockwise", "is_plane", "meet", "sample"]

# Random invertible maps have this condition at most: enough to tell a map from its dual, and few digits are lost.
CONDITION = 10.0


_CHAIN = (Group.INVERTIBLE, Group.ORTHOGONAL, Group.SIGNED, Group.PERMUTATION, Group.FIXED)
_PLANE = (Group.SIMILARITY, Group.ROTATION)


def meet(one: Group, other: Group) -> Group:
    """The largest group of the table that lies in both.

    Example:
        >>> meet(Group.SIMILARITY, Group.ORTHOGONAL)
        <Group.ROTATION: 'rotation'>
    """
    if one in _PLANE or other in _PLANE:
        pair = {one, other}
        if pair <= {Group.SIMILARITY, Group.INVERTIBLE}:
            return Group.SIMILARITY
        if pair <= {Group.SIMILARITY, Group.ROTATION, Group.INVERTIBLE, Group.ORTHOGONAL}:
            return Group.ROTATION
        return Group.FIXED
    return _CHAIN[max(_CHAIN.index(one), _CHAIN.index(other))]


def contains(larger: Group, smaller: Group) -> bool:
    """Whether every element of ``smaller`` is one of ``larger``."""
    return meet(larger, smaller) is smaller


def is_plane(group: Group) -> bool:
    """Whether its elements act on the two channels that rotary positions turn."""
    return group in _PLANE


def sample(group: Group, size: int, blocks: int, generator: torch.Generator) -> Map:
    """A random element: one map of ``size`` for each block, side by side where there are several."""
    if group is Group.FIXED:
        return Identity(size * blocks)
    maps = [_element(group, size, generator) for _ in range(blocks)]
    return maps[0] if blocks == 1 else Blocks(maps)


def _element(group: Group, size: int, generator: torch.Generator) -> Map:
    if group is Group.PERMUTATION:
        return Permutation(torch.randperm(size, generator=generator))
    if group is Group.SIGNED:
        signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
        return SignedPermutation(torch.randperm(size, generator=generator), signs)
    if group in _PLANE:
        angle = 2 * math.pi * _uniform(generator)
        scale = CONDITION ** (_uniform(generator) - 0.5) if group is Group.SIMILARITY else 1.0
        turn = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
        return Orthogonal(turn) if group is Group.ROTATION else Linear(scale * turn)
    if group is Group.ORTHOGONAL:
        return Orthogonal(_rotation(size, generator))
    spread = CONDITION ** (torch.rand(size, generator=generator, dtype=torch.float64) - 0.5)
    return Linear((_rotation(size, generator) * spread) @ _rotation(size, generator))


def _rotation(size: int, generator: torch.Generator) -> Tensor:
    # With the signs of R's diagonal the orthogonal factor of a Gaussian matrix is uniform over the group.
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0)
    turned: Tensor = q * signs
    return turned


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))


def is_blockwise(mapping: Map, blocks: int) -> TypeGuard[Blocks]:
    """Whether a map is one for each of ``blocks`` blocks, which keep their places."""
    return isinstance(mapping, Blocks) and mapping.order.index.tolist() == [*range(blocks)] == [
        *range(len(mapping.maps))
    ]


def belongs(mapping: Map, group: Group, blocks: int) -> bool:
    """Whether a map is by its kind an element of ``group`` in each of ``blocks`` blocks, which keep their places."""
    if isinstance(mapping, Identity):
        return True
    if blocks > 1:
        return is_blockwise(mapping, blocks) and all(belongs(block, group, 1) for block in mapping.maps)
    if mapping.source_width != mapping.target_width or not mapping.is_exact_inverse:
        return False
    if group in _PLANE:
        turn = mapping.matrix.double()
        commutes = bool(torch.allclose(turn[0], torch.stack([turn[1, 1], -turn[1, 0]]), rtol=1e-9, atol=1e-12))
        return mapping.source_width == 2 and commutes and (group is Group.SIMILARITY or mapping.is_isometric)
    smallest = (
        Group.PERMUTATION
        if isinstance(mapping, Permutation)
        else Group.SIGNED
        if isinstance(mapping, SignedPermutation)
        else Group.ORTHOGONAL
        if mapping.is_isometric
        else Group.INVERTIBLE
    )
    return contains(group, smallest)
