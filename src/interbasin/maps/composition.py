"""The composition of two maps, as the most special kind that survives it.

identity      after anything            that thing
(signed) permutations                   a (signed) permutation
blocks        after blocks cut alike    blocks
partial isometries that keep lengths    orthogonal
anything affine                         affine
the rest                                linear
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.errors import ShapeError
from interbasin.maps.affine import Affine
from interbasin.maps.base import Map, require_map
from interbasin.maps.blocks import Blocks
from interbasin.maps.linear import Linear
from interbasin.maps.orthogonal import Orthogonal
from interbasin.maps.permutation import Identity, Permutation, SignedPermutation, compose_indices


def compose(later: Map, first: Map) -> Map:
    """``later @ first``: the map that does ``first`` and then ``later``.

    Raises:
        ShapeError: if ``first`` does not end where ``later`` begins.
    """
    require_map(later, "The left side of @")
    require_map(first, "The right side of @")
    if later.source_width != first.target_width:
        raise ShapeError(
            f"{later!r} reads width {later.source_width} and cannot follow {first!r}, which ends in width "
            f"{first.target_width}; g @ f does f first."
        )
    if isinstance(first, Identity):
        return later
    if isinstance(later, Identity):
        return first
    if isinstance(later, Permutation) and isinstance(first, Permutation):
        return Permutation(compose_indices(later.index, first.index), source_width=first.source_width)
    if isinstance(later, Permutation | SignedPermutation) and isinstance(first, Permutation | SignedPermutation):
        return _compose_signed(later, first)
    if isinstance(later, Blocks) and isinstance(first, Blocks) and later.source_blocks == first.target_blocks:
        return _compose_blocks(later, first)
    if isinstance(later, Affine) or isinstance(first, Affine):
        return _compose_affine(later, first)
    if later.is_isometric and first.is_isometric and (rank := _rank_of_isometry(later, first)) is not None:
        # By construction, to the precision of the coarser of the two: no check could tell more.
        return Orthogonal._trusted(_product(later, first).to(_coarser(later, first)), rank)
    return Linear(_product(later, first))


def _rank_of_isometry(later: Map, first: Map) -> int | None:
    # g f is a partial isometry if g is isometric on all of the middle space, or f fills the middle space:
    # (gf)(gf)^T(gf) = g f f^T (g^T g) f, and either g^T g = I or f f^T = I makes that g f. Otherwise, as for an
    # embedding followed by a projection onto other directions, the product has singular values between zero and one.
    middle = later.source_width
    if later.rank == middle:
        return first.rank
    return later.rank if first.rank == middle else None


def _coarser(later: Map, first: Map) -> torch.dtype:
    dtypes = [map.dtype for map in (later, first) if map.dtype is not None]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def _compose_signed(
    later: Permutation | SignedPermutation, first: Permutation | SignedPermutation
) -> SignedPermutation:
    signs, first_signs = (
        map.sign if isinstance(map, SignedPermutation) else torch.ones(map.target_width, dtype=torch.int8)
        for map in (later, first)
    )
    index = compose_indices(later.index, first.index)
    return SignedPermutation(index, signs * first_signs[later.index.clamp(min=0)], source_width=first.source_width)


def _compose_blocks(later: Blocks, first: Blocks) -> Blocks:
    taken = later.order.index.tolist()
    maps = [compose(block, first.maps[position]) for block, position in zip(later.maps, taken, strict=True)]
    return Blocks(maps, order=Permutation(compose_indices(later.order.index, first.order.index)))


def _compose_affine(later: Map, first: Map) -> Affine:
    linear = compose(*(map.linear if isinstance(map, Affine) else map for map in (later, first)))
    if not isinstance(first, Affine):
        assert isinstance(later, Affine)
        return Affine(linear, later.offset)
    dtype = linear.dtype or first.dtype
    return Affine(linear, later(first.offset.to(torch.promote_types(dtype, first.dtype))))


def _product(later: Map, first: Map) -> Tensor:
    """The matrix of the composition. A map that only moves entries is applied, never multiplied as a matrix."""
    if later.dtype is not None and isinstance(first, Permutation | SignedPermutation):
        # Columns of G P: the transposed permutation acts on the rows of G.
        return first.inverse()(later.matrix)
    # The identity has float64 entries, but what comes out is no more exact than what went in.
    dtypes = [map.dtype for map in (later, first) if map.dtype is not None]
    dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else torch.float64
    return later(first.matrix.to(working_dtype(dtype)).mT).mT.to(dtype)
