"""Generators of maps and data. They take sizes and seeds rather than floats, so that shrinking stays meaningful."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

from interbasin import maps

SEEDS = st.integers(0, 2**32 - 1)
WIDTHS = st.integers(1, 8)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def orthonormal(seed: int, target: int, source: int) -> Tensor:
    """A matrix (target, source) with orthonormal columns or rows; reflections as often as rotations."""
    columns = torch.linalg.qr(gaussian(seed, max(target, source), min(target, source))).Q
    signs = torch.randint(0, 2, (min(target, source),), generator=generator(seed + 1), dtype=torch.float64) * 2 - 1
    columns = columns * signs
    return columns if target >= source else columns.mT.contiguous()


def well_conditioned(seed: int, target: int, source: int) -> Tensor:
    """A matrix whose singular values lie between a half and two."""
    rank = min(target, source)
    values = 0.5 + 1.5 * torch.rand(rank, generator=generator(seed + 2), dtype=torch.float64)
    return orthonormal(seed, target, rank) * values @ orthonormal(seed + 3, rank, source)


def matching(seed: int, target: int, source: int) -> Tensor:
    """A one-to-one index: each unit of the narrower side has a partner."""
    shuffled = torch.randperm(max(target, source), generator=generator(seed))
    if target <= source:
        return shuffled[:target]
    return torch.where(shuffled < source, shuffled, -1)


def signs(seed: int, width: int) -> Tensor:
    return torch.randint(0, 2, (width,), generator=generator(seed)) * 2 - 1


# ---------------------------------------------------------------------- one maker a kind: (seed, target, source) -> map


def permutation(seed: int, target: int, source: int) -> maps.Map:
    return maps.Permutation(matching(seed, target, source), source_width=source)


def signed_permutation(seed: int, target: int, source: int) -> maps.Map:
    return maps.SignedPermutation(matching(seed, target, source), signs(seed, target), source_width=source)


def orthogonal(seed: int, target: int, source: int) -> maps.Map:
    return maps.Orthogonal(orthonormal(seed, target, source))


def partial_isometry(seed: int, target: int, source: int) -> maps.Map:
    rank = seed % (min(target, source) + 1)
    if rank == 0:
        return maps.Orthogonal(torch.zeros(target, source, dtype=torch.float64))
    return maps.Orthogonal(orthonormal(seed, target, rank) @ orthonormal(seed + 5, rank, source))


def linear(seed: int, target: int, source: int) -> maps.Map:
    return maps.Linear(well_conditioned(seed, target, source))


def affine(seed: int, target: int, source: int) -> maps.Map:
    return maps.Affine(well_conditioned(seed, target, source), gaussian(seed + 7, target))


def blocks(seed: int, target: int, source: int) -> maps.Map:
    """As many blocks as fit, of different kinds and widths, in a random order."""
    count = 1 + seed % min(target, source)
    target_cuts, source_cuts = _cuts(seed, target, count), _cuts(seed + 1, source, count)
    order = torch.randperm(count, generator=generator(seed))
    makers = (orthogonal, permutation, linear, signed_permutation)
    made = [
        makers[(seed + position) % 4](seed + position, target_cuts[position], source_cuts[int(taken)])
        for position, taken in enumerate(order)
    ]
    return maps.Blocks(made, order=order)


def identity(seed: int, target: int, source: int) -> maps.Map:
    assert target == source
    return maps.Identity(source)


def _cuts(seed: int, width: int, count: int) -> list[int]:
    inner = torch.randperm(width - 1, generator=generator(seed))[: count - 1].sort().values + 1
    edges = [0, *inner.tolist(), width]
    return [later - earlier for earlier, later in itertools.pairwise(edges)]
