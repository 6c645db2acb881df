r"""The orthogonal factor by the dynamically weighted Halley iteration, for devices where products are cheap.

Each step sends every singular value :math:`\sigma` to :math:`\sigma (a + b\sigma^2) / (1 + c\sigma^2)`, with weights
that lift the smallest possible one as far as such a function can, so six or seven steps reach one from anywhere
[nakatsukasa:10]. Steps with a large ``c`` go through a QR factorisation, which is stable whatever the condition; later
ones through Cholesky. The weights follow from the bound alone, so nothing is read back from the device in between.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from interbasin.fit.gram import polish, project

# Above this weight the Cholesky form would lose digits.
_QR_WEIGHT = 100.0
# Extra plain steps after the bound has reached one, for a value that began below the bound.
_SETTLING_STEPS = 2
# How often the whole sequence may be repeated, and the squared norm that may be missing without.
_PASSES = 4
_MISSING = 1e-2
_SEED = 2010


def factor(wide: Tensor, tolerance: float, drop: bool) -> tuple[Tensor, Tensor]:
    """Orthogonal factor and numerical rank of a wide matrix or a batch of them, entries scaled to around one."""
    epsilon = torch.finfo(wide.dtype).eps
    # Only the triangle is iterated: it is square, and the frame stays orthonormal however low the rank.
    frame, triangle = torch.linalg.qr(wide.mT)
    result = polish(_iterate(_perturb(triangle.mT, epsilon), epsilon) @ frame.mT)

    product = wide @ result.mT
    levels, basis = torch.linalg.eigh((product + product.mT) / 2)
    result = polish(result + _turn(product, levels, basis) @ result)
    # Eigenvalues carry a few roundings of their own, so nothing below those is counted whatever the tolerance.
    observed = (levels > max(tolerance, 8 * epsilon) * levels[..., -1:]) & (levels > 0)
    if drop and not bool(observed.all()):
        result = project(basis * observed[..., None, :], result)
    return result, observed.sum(-1)


def _turn(product: Tensor, levels: Tensor, basis: Tensor) -> Tensor:
    """Small rotation that makes ``product`` symmetric: the Newton step for the rounding of all earlier steps.

    It only pays between values well above rounding; below the square root of epsilon it could turn too far to polish.
    """
    sums = levels[..., :, None] + levels[..., None, :]
    lost = math.sqrt(torch.finfo(levels.dtype).eps) * levels[..., -1:, None]
    skew = basis.mT @ (product - product.mT) @ basis
    turn = torch.where(sums > lost, skew / sums.clamp(min=torch.finfo(levels.dtype).tiny), 0)
    return basis @ turn @ basis.mT


def _perturb(square: Tensor, epsilon: float) -> Tensor:
    """The matrix scaled to norm at most one, plus a fixed full-rank matrix of about one rounding error.

    The perturbation is what completes a rank-deficient factor, down to the matrix that is all zeros. It is random
    because any patterned choice, the identity for one, is blind to some null space.
    """
    size = square.shape[-1]
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64)
    noise = (noise / (2 * math.sqrt(size) + 2)).to(square)
    norm = torch.linalg.matrix_norm(square)[..., None, None]
    started = torch.where(norm > 0, square / norm, noise)
    return (started + epsilon * noise) / (1 + epsilon)


def _iterate(current: Tensor, epsilon: float) -> Tensor:
    """Steps until every singular value is one.

    Rounding in a QR step is as large as the perturbation, and in a small matrix now and then cancels it; the value is
    then left far below the bound, so the steps are repeated for as long as one is missing.
    """
    for _ in range(_PASSES):
        current = _sweep(current, epsilon)
        missing = current.shape[-1] - current.square().sum((-2, -1))
        if float(missing.max()) < _MISSING:
            break
    return current


def _sweep(current: Tensor, epsilon: float) -> Tensor:
    size = current.shape[-1]
    identity = torch.eye(size, dtype=current.dtype, device=current.device).expand_as(current)
    bound, settled = epsilon / (100 * size**1.5), 0
    while settled <= _SETTLING_STEPS:
        settled += bound > 1 - 10 * epsilon
        a, b, c = _weights(bound)
        if c > _QR_WEIGHT:
            stacked = torch.linalg.qr(torch.cat([math.sqrt(c) * current, identity], -2)).Q
            lifted = stacked[..., :size, :] @ stacked[..., size:, :].mT / math.sqrt(c)
        else:
            lower = torch.linalg.cholesky(identity + c * (current.mT @ current))
            lifted = torch.cholesky_solve(current.mT, lower).mT
        current = (b / c) * current + (a - b / c) * lifted
        bound = min(1.0, bound * (a + b * bound**2) / (1 + c * bound**2))
    return current


def _weights(bound: float) -> tuple[float, float, float]:
    """Halley weights that lift a smallest singular value of ``bound`` the most [nakatsukasa:10]."""
    square = bound**2
    gamma = (4 * (1 - square) / square**2) ** (1 / 3)
    root = math.sqrt(1 + gamma)
    a = root + math.sqrt(8 - 4 * gamma + 8 * (2 - square) / (square * root)) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1
