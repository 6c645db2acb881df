r"""The orthogonal factor from the Gram matrix: half the work of an SVD, with the lost digits put back.

For a wide :math:`A` the factor is :math:`(A A^\top)^{-1/2} A`, but squaring halves the digits of the small singular
values. What survives is the basis: with :math:`A A^\top = U \Lambda U^\top` computed, the rows of :math:`B = U^\top A`
are accurate, and orthogonal up to a relative error of about :math:`\epsilon\,\mathrm{cond}^2`. That error is measured
again from :math:`B`, where it is small and graded, and removed by Newton steps that cost no eigendecomposition. Every
answer is guarded by a measured error; what cannot be repaired is handed back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

# Relative singular value down to which one basis serves all rows: there eps * cond**2 is still below the guard.
_FLOOR = 2.5e-7
# Where smaller values exist, rows above this one keep the basis and the rest are solved apart. The rotation between the
# two groups is then about eps / _SPLIT**2 = 2e-8, whose square is below rounding.
_SPLIT = 1e-4
# Largest departure from orthogonality, in the Frobenius norm, that the corrections are trusted with.
_GUARD = 5e-2
# Departures up to which the first-order step alone, and two steps, are enough in float64. Beyond the second, what is
# left is measured, because it depends on how the departure is spread over the rows, and more is done as needed.
_ONE_STEP = 3e-7
_TWO_STEPS = 3e-4
_LEFT = 2e-13
# What a float32 result can carry unnoticed, and the departure up to which a correction of two terms is enough for it.
_UNNOTICED = 1e-6
_TWO_TERMS = 2e-2
# What may be rounded away, relative to the whole matrix, when a block of rows is said to be empty.
_EMPTY = {torch.float64: 1e-13, torch.float32: 1e-6}
# Cholesky pivots below this fraction of the first are rounding; and the width from which a low rank is worth a look.
_PIVOT = 1e-6
_LOW_RANK_WIDTH = 192
# Products of smaller entries are subnormal in float32, and subnormal arithmetic is tens of times slower.
_TINY = 1e-18
# Width from which the symmetric product is worth assembling by blocks.
_BLOCK_WIDTH = 512
# Up to these widths float32 sums are good enough to measure orthogonality with; and devices that have nothing better.
_PLAIN_SUMS = 128
_SINGLE_SUMS = 768
_WITHOUT_DOUBLE = {"mps"}
_SEED = 1966


def factor(wide: Tensor, tolerance: float, drop: bool, floor: float | None = None) -> tuple[Tensor, int] | None:
    """Orthogonal factor and numerical rank of one wide matrix, or nothing if the SVD has to do it.

    Args:
        wide: ``(short, long)``, entries scaled to around one. Single precision is worked in float64.
        tolerance: singular values at most this fraction of the largest do not count towards the rank.
        drop: leave the directions that do not count out of the factor.
        floor: look at a third of the rows first, and give up at once if their spectrum reaches below this, unless it
            ends in a gap. The smallest singular value only shrinks as rows join, so a third that is close to singular
            speaks for the whole; one that is not promises nothing, and the guards decide later.
    """
    matrix = wide.double()
    if floor is not None:
        part = matrix[: len(wide) // 3 + 1]
        product = part @ part.mT
        lower, failed = torch.linalg.cholesky_ex(product)
        if int(failed):
            return _low_rank(wide, matrix, lower.diagonal()[: int(failed) - 1], tolerance, drop)
        if not float(lower.diagonal().min() / torch.linalg.vector_norm(product).sqrt()) > floor:
            return None
    levels, basis = torch.linalg.eigh(_outer(matrix))
    low, top = float(levels[0]), float(levels[-1])
    if not top > 0:
        return None
    if not low > _FLOOR**2 * top:
        return _split(wide, matrix, basis, levels, tolerance, drop)
    if wide.dtype == torch.float32:
        result, sizes = _inverse_root(matrix, basis, levels), levels.sqrt()
    else:
        result, sizes = _newton_factor(matrix, basis)
    rank = _count(sizes, tolerance)
    return None if result is None or (drop and rank < len(sizes)) else (result.to(wide.dtype), rank)


def polish(factor: Tensor) -> Tensor:
    """One Newton-Schulz step: an error ``e`` in orthogonality becomes ``e**2``, plus rounding.

    The rounding that counts is in the measured error, so its sums grow more careful with the number of columns: the
    diagonal, where squares add up to one without cancelling, is summed apart; beyond a few hundred, all is float64.
    """
    multiply = torch.addmm if factor.ndim == 2 else torch.baddbmm
    columns = factor.shape[-1]
    if columns <= _PLAIN_SUMS:
        return multiply(factor, factor @ factor.mT, factor, beta=1.5, alpha=-0.5)
    double = columns > _SINGLE_SUMS and factor.device.type not in _WITHOUT_DOUBLE
    error = _outer(factor.double() if double else factor)
    diagonal = error.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(diagonal if double else factor.square().sum(-1)).sub_(1)
    return multiply(factor, error.to(factor.dtype), factor, alpha=-0.5)


def project(basis: Tensor, factor: Tensor) -> Tensor:
    """The part of an orthogonal factor whose rows lie in the span of ``basis``, a partial isometry.

    In float64 where there is one, since float32 bases are orthonormal to fewer digits than the result should be.
    """
    if basis.device.type in _WITHOUT_DOUBLE:
        return basis @ (basis.mT @ factor)
    # Orthonormal columns to full precision; those that are zero stay zero.
    exact = basis.double()
    exact = 1.5 * exact - 0.5 * exact @ (exact.mT @ exact)
    return (exact @ (exact.mT @ factor.double())).to(factor.dtype)


def _inverse_root(matrix: Tensor, basis: Tensor, levels: Tensor) -> Tensor | None:
    """The factor to float32's accuracy, by the inverse square root as it stands and one correction where needed."""
    result = _outer(basis * levels.pow(-0.25)) @ matrix
    probe = _probe(len(matrix), matrix)
    departure = float(torch.linalg.vector_norm(result @ (result.mT @ probe) - probe)) / math.sqrt(probe.shape[1])
    if departure <= _UNNOTICED:
        return result
    error = _outer(result)
    error.diagonal().sub_(1)
    if not float(torch.linalg.vector_norm(error)) <= _TWO_TERMS:
        return None
    # The first term of the series for (I + error)**-0.5 leaves about the square of the error, which the probe sees.
    departure = float(torch.linalg.vector_norm(error @ (error @ probe))) / math.sqrt(probe.shape[1])
    error, single = error.float(), result.float()
    step = -0.5 * error
    if departure > _UNNOTICED:
        step.addmm_(error, error, alpha=0.375)
    return single.addmm(step, single)


def _newton_factor(matrix: Tensor, basis: Tensor) -> tuple[Tensor | None, Tensor]:
    rows = basis.mT @ matrix
    repaired, sizes = _repair(rows)
    if repaired is None:
        return None, sizes
    return torch.addmm(basis, basis, repaired).div_(sizes) @ rows, sizes


def _repair(rows: Tensor) -> tuple[Tensor | None, Tensor]:
    r"""Mixing :math:`K` and sizes :math:`d` such that :math:`(I + K) D^{-1} B` is the orthogonal factor of ``rows``.

    Write :math:`B B^\top = D (I + F) D` with :math:`F` hollow. To first order the factor is :math:`(I + K_1) D^{-1} B`
    with :math:`K_1 = -F_{ij} d_j / (d_i + d_j)`: its symmetric part makes the rows orthonormal, its skew part makes
    :math:`B Q^\top` symmetric. Putting that in and solving again gives :math:`K_2 = -P - R_{ij} d_i / (d_i + d_j)` with
    :math:`P = K_1 F` and :math:`R = (K_1 + P) K_1^\top`, in which all first-order terms have cancelled on paper, so
    they leave no rounding behind. Steps after that square the error in orthogonality; in the rotation, which matters
    less the smaller the two sizes, they gain one order each.
    """
    error = _outer(rows)
    sizes = error.diagonal().sqrt()
    error.div_(sizes[:, None]).div_(sizes)
    error.fill_diagonal_(0)
    departure = float(torch.linalg.vector_norm(error))
    if not departure <= _GUARD:
        return None, sizes
    share = sizes / (sizes[:, None] + sizes)
    mixing = (error * share).neg_()
    if departure <= _ONE_STEP:
        return mixing, sizes

    # Float32 is accurate enough for corrections of second order while those are small, and always for higher ones.
    precise = departure > _TWO_STEPS
    first, hollow = (mixing, error) if precise else (_single(mixing), _single(error))
    across = first @ hollow
    around = (first + across if precise else _single(first + across)) @ first.mT
    second = (around * share.mT).add_(across).neg_()
    small = _single(second)
    mixing = (mixing + second).add_(small @ _single(first))
    if departure <= _TWO_STEPS:
        return mixing, sizes

    probe = _probe(len(sizes), error)
    if _left(mixing, error, probe) > _LEFT:
        # With X = P + P' + R removed by K2, what is left is K2 X + X K2' + K2 K2', of fourth order.
        excess = _single(around.add_(across).add_(across.mT))
        left = small @ excess.add_(small.mT, alpha=0.5)
        mixing -= (left + left.mT) / 2
    for _ in range(2):
        if _left(mixing, error, probe) <= _LEFT:
            break
        mixing = _newton(mixing, error, sizes)
    return mixing, sizes


def _left(mixing: Tensor, error: Tensor, probe: Tensor) -> float:
    """Estimated departure of ``(I + K) (I + F) (I + K)'`` from the identity: what the steps so far did not remove."""
    moved = probe + mixing.mT @ probe
    moved = moved + error @ moved
    moved = moved + mixing @ moved
    return float(torch.linalg.vector_norm(moved - probe)) / math.sqrt(probe.shape[1])


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


def _single(matrix: Tensor) -> Tensor:
    return hardshrink(matrix.float(), _TINY)


def _split(
    wide: Tensor, matrix: Tensor, basis: Tensor, levels: Tensor, tolerance: float, drop: bool
) -> tuple[Tensor, int] | None:
    """The factor when some singular values are too small for the basis: large and small rows are solved apart."""
    small = int((levels < _SPLIT**2 * levels[-1]).sum())
    lower, upper = basis[:, :small], basis[:, small:]
    rows = upper.mT @ matrix
    mixing, sizes = _repair(rows)
    if mixing is None:
        return None
    large = (rows / sizes[:, None]).addmm_(mixing / sizes, rows)
    rank = _count(sizes, tolerance)

    # Eight random vectors see the size of the rest; three times that covers what they may miss.
    probe = _probe(matrix.shape[1], matrix)
    rest = 3 * float(torch.linalg.vector_norm(lower.mT @ (matrix @ probe))) / math.sqrt(probe.shape[1])
    whole = float(torch.linalg.vector_norm(sizes))
    if rest <= tolerance * float(sizes.max()) and rest <= _EMPTY[wide.dtype] * whole:
        if drop:
            return None if rank < len(sizes) else ((upper @ large).to(wide.dtype), rank)
        return torch.addmm(upper @ large, lower, _complement(large, small)).to(wide.dtype), rank

    faint = lower.mT @ matrix
    frame, triangle = torch.linalg.qr(torch.cat([large, faint]).mT)
    left, values, right = torch.linalg.svd(triangle[len(large) :, len(large) :].mT, full_matrices=False)
    rank += int((values > tolerance * sizes.max()).sum())
    if drop and rank < len(basis):
        return None
    # The small rows still lean on the large ones by rounding errors of the eigenbasis; turn the two groups apart.
    lean = faint @ large.mT
    lean /= sizes + torch.linalg.vector_norm(faint, dim=1, keepdim=True)
    turned = torch.cat([lower - upper @ lean.mT, upper + lower @ lean], 1)
    return (turned @ torch.cat([left @ (right @ frame[:, len(large) :].mT), large])).to(wide.dtype), rank


def _low_rank(wide: Tensor, matrix: Tensor, pivots: Tensor, tolerance: float, drop: bool) -> tuple[Tensor, int] | None:
    """The factor of a matrix whose range a few random combinations of its columns exhaust, if they do.

    Cholesky stopped after ``pivots``. If a gap stopped it, they number the rank; if a slope did, something is left
    over outside the range, and the SVD has to do it.
    """
    short, long = matrix.shape
    count = int((pivots > _PIVOT * pivots[:1]).sum()) + 8
    if short < _LOW_RANK_WIDTH or 2 * count > short:
        return None
    sample = _probe(long, matrix, count + 8)
    image = matrix @ sample
    left = torch.linalg.qr(image[:, :count]).Q
    fresh = image[:, count:]
    missed = 3 * float(torch.linalg.vector_norm(fresh - left @ (left.mT @ fresh))) / math.sqrt(8)
    if not missed <= _EMPTY[wide.dtype] * float(torch.linalg.vector_norm(matrix)):
        return None
    inner, sizes, right = torch.linalg.svd(left.mT @ matrix, full_matrices=False)
    if missed > tolerance * float(sizes[0]):  # what was missed would have to be counted
        return None
    rank = _count(sizes, tolerance)
    if drop:
        return (left @ inner[:, :rank] @ right[:rank]).to(wide.dtype), rank
    rows = inner @ right
    rest = short - count
    result = torch.addmm(left @ rows, _complement(left.mT, rest).mT, _complement(rows, rest))
    return result.to(wide.dtype), rank


def _complement(rows: Tensor, count: int) -> Tensor:
    """Orthonormal rows, ``count`` of them, orthogonal to the orthonormal ``rows``."""
    reflectors, scales = torch.geqrf(rows.mT)
    padded = torch.cat([reflectors, reflectors.new_zeros(len(reflectors), count)], 1)
    frame: Tensor = torch.linalg.householder_product(padded, scales)
    return frame[:, len(rows) :].mT


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


def _probe(size: int, like: Tensor, count: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(size, count, generator=generator, dtype=torch.float64).to(like)


def _count(sizes: Tensor, tolerance: float) -> int:
    return int((sizes > tolerance * sizes.max()).sum())
