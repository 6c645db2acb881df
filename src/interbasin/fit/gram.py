r"""The orthogonal factor from the Gram matrix: half the work of an SVD, with the lost digits put back.

For a wide :math:`A` the factor is :math:`(A A^\top)^{-1/2} A`, but squaring halves the digits of the small singular
values. What survives is the basis: with :math:`A A^\top = U \Lambda U^\top` computed, the rows of
:math:`B = U^\top A` are accurate, and orthogonal up to a relative error of about :math:`\epsilon\,\mathrm{cond}^2`.
That error is measured again from :math:`B`, where it is small and graded, and removed by Newton steps that cost no
eigendecomposition. Every answer is guarded by the measured error; what cannot be repaired is handed back.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

__all__ = ["factor", "polish"]

# Relative singular value down to which one basis serves all rows: there eps * cond**2 is still below the guard.
_FLOOR = 2.5e-7
# Where smaller values exist, rows above this one keep the basis and the rest are solved apart. The rotation between
# the two groups is then about eps / _SPLIT**2 = 2e-8, whose square is below rounding.
_SPLIT = 1e-4
# Largest departure from orthogonality, in the Frobenius norm, that the Newton steps are trusted with.
_GUARD = 5e-2
# Departures below which the first-order step alone, single-precision products, and third-order terms are enough.
_ONE_STEP = 3e-7
_SINGLE_PRODUCTS = 3e-4
_TWO_STEPS = 1e-2
# What may be rounded away, relative to the whole matrix, when a block of rows is said to be empty.
_EMPTY = {torch.float64: 1e-13, torch.float32: 1e-6}
# Products of smaller entries are subnormal in float32, and subnormal arithmetic is tens of times slower.
_TINY = 1e-18
# Devices that have no float64.
_WITHOUT_DOUBLE = {"mps"}
# Width from which the symmetric product is worth assembling by blocks.
_BLOCK_WIDTH = 512


def factor(wide: Tensor, tolerance: float, drop: bool, *, gated: bool) -> tuple[Tensor, int] | None:
    """Orthogonal factor and numerical rank of one wide matrix, or nothing if the SVD has to do it.

    Args:
        wide: ``(short, long)``, entries scaled to around one. Single precision is worked in float64.
        tolerance: singular values at most this fraction of the largest do not count towards the rank.
        drop: leave the directions that do not count out of the factor.
        gated: look at a part of the matrix first, and give up early where the eigenbasis would be wasted.
    """
    matrix = wide.double()
    product = _outer(matrix)
    if gated and not _promising(matrix, product):
        return None
    levels, basis = torch.linalg.eigh(product)
    top = float(levels[-1])
    if not top > 0:
        return None
    rows = basis.mT @ matrix
    if float(levels[0]) > _FLOOR**2 * top:
        repaired = _repair(rows)
        if repaired is None:
            return None
        mixing, sizes = repaired
        rank = _count(sizes, tolerance)
        if drop and rank < len(sizes):
            return None
        weights = torch.addmm(basis, basis, mixing).div_(sizes)
        return (weights @ rows).to(wide.dtype), rank
    small = int((levels < _SPLIT**2 * top).sum())
    return _split(wide, basis, rows, small, tolerance, drop)


def polish(factor: Tensor) -> Tensor:
    """One Newton-Schulz step: an error ``e`` in orthogonality becomes ``e**2``, plus rounding.

    The error is measured in float64, because float32 sums over hundreds of columns are rougher than what they measure.
    """
    error = _outer(factor if factor.device.type in _WITHOUT_DOUBLE else factor.double())
    error.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.baddbmm(factor, error.to(factor.dtype), factor, alpha=-0.5)


def _outer(matrix: Tensor) -> Tensor:
    """``matrix @ matrix.mT``, without computing both halves where that saves time."""
    size = matrix.shape[-2]
    if size < _BLOCK_WIDTH:
        return matrix @ matrix.mT
    out = matrix.new_empty(*matrix.shape[:-1], size)
    step = -(-size // 4)
    for start in range(0, size, step):
        stop = min(start + step, size)
        out[..., start:stop, :stop] = matrix[..., start:stop, :] @ matrix[..., :stop, :].mT
        out[..., :start, start:stop] = out[..., start:stop, :start].mT
    return out


def _promising(matrix: Tensor, product: Tensor) -> bool:
    """Whether the spectrum seems to end above the floor, or to end in nothing, judged from three quarters of the rows.

    Smallest singular values only shrink as rows join, so a part that is too close to singular speaks for the whole.
    """
    part = 3 * len(product) // 4
    corner = product[:part, :part]
    lower, failed = torch.linalg.cholesky_ex(corner)
    if int(failed):
        return _ends_in_nothing(matrix, lower, int(failed) - 1)
    low = high = matrix.new_ones(part, 1)
    for _ in range(3):
        low = torch.cholesky_solve(low / torch.linalg.vector_norm(low), lower)
        high = corner @ (high / torch.linalg.vector_norm(high))
    squared_condition = torch.linalg.vector_norm(low) * torch.linalg.vector_norm(high)
    return float(squared_condition) * _FLOOR**2 < 1


def _ends_in_nothing(matrix: Tensor, lower: Tensor, leading: int) -> bool:
    """Whether the last rows lie in the span of the leading ones to rounding: a gap, not a slope, stopped Cholesky."""
    pivots = lower.diagonal()[:leading]
    rank = int((pivots > 1e-6 * pivots[:1]).sum())
    if not rank:
        return False
    span, corner = matrix[:rank], lower[:rank, :rank]
    probe = matrix[-8:]
    rest = probe
    for _ in range(2):
        rest = rest - torch.cholesky_solve(span @ rest.mT, corner).mT @ span
    return bool(torch.linalg.vector_norm(rest) <= 1e-10 * torch.linalg.vector_norm(probe))


def _repair(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    r"""Mixing :math:`K` and sizes :math:`d` such that :math:`(I + K) D^{-1} B` is the orthogonal factor of ``rows``.

    Write :math:`B B^\top = D (I + F) D` with :math:`F` hollow. To first order the factor is
    :math:`(I + K_1) D^{-1} B` with :math:`K_1 = -F_{ij} d_j / (d_i + d_j)`: its symmetric part makes the rows
    orthonormal, its skew part makes :math:`B Q^\top` symmetric. Putting that in and solving again gives
    :math:`K_2 = -P - R_{ij} d_i / (d_i + d_j)` with :math:`P = K_1 F` and :math:`R = (K_1 + P) K_1^\top`, in which all
    first-order terms have cancelled on paper, so they leave no rounding behind.
    """
    error = _outer(rows)
    sizes = error.diagonal().sqrt()
    error.div_(sizes[:, None]).div_(sizes)
    error.fill_diagonal_(0)
    departure = float(torch.linalg.vector_norm(error))
    if not departure <= _GUARD:
        return None
    share = sizes / (sizes[:, None] + sizes)
    mixing = (error * share).neg_()
    if departure > _ONE_STEP:
        dtype = torch.float32 if departure < _SINGLE_PRODUCTS else torch.float64
        first = _lower_precision(mixing, dtype)
        across = first @ _lower_precision(error, dtype)
        around = _lower_precision(first + across, dtype) @ first.mT
        second = around.mul_(share.mT).add_(across).neg_()
        mixing += second
        mixing += _lower_precision(second, torch.float32) @ _lower_precision(mixing, torch.float32)
    if departure > _TWO_STEPS:
        mixing = _newton(mixing, error, sizes)
    return mixing, sizes


def _newton(mixing: Tensor, error: Tensor, sizes: Tensor) -> Tensor:
    """One more step from wherever ``mixing`` stands, all in full precision."""
    identity = torch.eye(len(sizes), dtype=error.dtype, device=error.device)
    change = mixing + identity
    moved = change.mT + error @ change.mT
    excess = change @ moved - identity
    turned = sizes[:, None] * moved
    skew = turned - turned.mT - (sizes[:, None] - sizes) * excess / 2
    step = skew / (sizes[:, None] + sizes) - excess / 2
    return mixing + step @ change


def _lower_precision(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    return hardshrink(matrix.to(dtype), _TINY) if dtype == torch.float32 else matrix


def _split(
    wide: Tensor, basis: Tensor, rows: Tensor, small: int, tolerance: float, drop: bool
) -> tuple[Tensor, int] | None:
    """The factor when some rows are too small for the basis: they are solved in the complement of the others."""
    repaired = _repair(rows[small:])
    if repaired is None:
        return None
    mixing, sizes = repaired
    large = (rows[small:] / sizes[:, None]).addmm_(mixing / sizes, rows[small:])
    complement = torch.linalg.qr(large.mT, mode="complete").Q[:, len(large) :]
    rest = rows[:small] @ complement
    size = float(torch.linalg.vector_norm(rest))
    rank = _count(sizes, tolerance)
    if size <= tolerance * float(sizes.max()) and size <= _EMPTY[wide.dtype] * float(torch.linalg.vector_norm(sizes)):
        tiny = complement.mT[:small]
        if drop:
            return None if rank < len(sizes) else ((basis[:, small:] @ large).to(wide.dtype), rank)
    else:
        left, values, right = torch.linalg.svd(rest, full_matrices=False)
        tiny = left @ (right @ complement.mT)
        rank += int((values > tolerance * sizes.max()).sum())
        if drop and rank < len(basis):
            return None
    # The small rows still lean on the large ones by rounding errors of the eigenbasis; turn the two groups apart.
    lean = rows[:small] @ large.mT
    lean /= sizes + torch.linalg.vector_norm(rows[:small], dim=1, keepdim=True)
    turned = torch.cat([basis[:, :small] - basis[:, small:] @ lean.mT, basis[:, small:] + basis[:, :small] @ lean], 1)
    return (turned @ torch.cat([tiny, large])).to(wide.dtype), rank


def _count(sizes: Tensor, tolerance: float) -> int:
    return int((sizes > tolerance * sizes.max()).sum())
