"""The orthogonal factor of a matrix: the one kernel under every rotation fit of this package.

A tall matrix factors as ``A = Q H`` and a wide one as ``A = H Q``, with ``Q`` orthogonal along the shorter side and
``H`` symmetric and positive semi-definite. Three ways lead to the same ``Q``: this file checks, scales, chooses and
holds the SVD; ``gram`` squares the matrix and repairs what squaring costs; ``qdwh`` iterates with products and
factorisations only, for accelerators.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from interbasin.arrays import Array, as_tensor
from interbasin.checks import require_finite
from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.fit import gram, qdwh

Unobserved = Literal["complete", "drop"]
Path = Literal["auto", "svd", "gram", "qdwh"]

# Entries between 2**-16 and 2**16 can be squared and summed at any width we meet, in either precision.
_SAFE_EXPONENT = 16

# Measured on one core: below these widths the SVD costs less than an eigendecomposition plus its bookkeeping. A long
# matrix is dearer for the SVD, so it may be narrower.
_GRAM_WIDTH = {torch.float64: 192, torch.float32: 384}
_LONG, _GRAM_WIDTH_IF_LONG = 1.3, {torch.float64: 96, torch.float32: 192}
# Relative singular value that a third of the rows has to stay above: the whole reaches some ten times further down,
# where the gram path ends. Until a matrix is long or wide enough the race is close, and only won where next to no
# correction is needed; later in single precision, whose SVD races an eigendecomposition in float64.
_FLOOR, _CLOSE_RACE_FLOOR = 5e-6, 1e-3
_CLOSE_RACE_WIDTH = {torch.float64: 640, torch.float32: 1024}

# Up to this width LAPACK's float32 factors are orthogonal to 1e-5 in the Frobenius norm by themselves.
_POLISH_WIDTH = 48


@dataclass(frozen=True)
class Polar:
    """An orthogonal factor, and what was learned on the way to it.

    Attributes:
        factor: same shape, dtype and device as the matrix; its shorter side is orthonormal. With
            ``unobserved="drop"`` it is a partial isometry of rank ``rank``.
        rank: numerical rank; an ``int`` for one matrix, an integer tensor over the batch otherwise.
        path: ``"svd"``, ``"gram"`` or ``"qdwh"``, as taken; a batch may mix them, as in ``"gram+svd"``.
    """

    factor: Tensor
    rank: int | Tensor
    path: str

    def symmetric(self, matrix: Tensor) -> Tensor:
        """Symmetric factor ``H`` of the ``matrix`` this came from: ``Q H`` if tall or square, ``H Q`` if wide."""
        tall = matrix.shape[-2] >= matrix.shape[-1]
        product = self.factor.mT @ matrix if tall else matrix @ self.factor.mT
        return (product + product.mT) / 2


def polar(
    matrix: Array,
    *,
    unobserved: Unobserved = "complete",
    rank_tolerance: float | None = None,
    path: Path = "auto",
) -> Polar:
    r"""Nearest matrix with orthonormal rows or columns, for one matrix or a batch of them.

    With :math:`A = U S V^\top` it is :math:`Q = U V^\top`, which minimises :math:`\|A - Q\|_F`, and maximises
    :math:`\mathrm{tr}(Q^\top A)`, over all (semi-)orthogonal :math:`Q`. Where singular values vanish the minimiser is
    not unique; ``unobserved`` says what to do there. The result is deterministic and carries no gradient.

    Args:
        matrix: floating point, of any shape with two or more axes; leading axes are a batch. Half precisions are
            computed in float32 and rounded once at the end.
        unobserved: ``"complete"`` fills directions whose singular value is below the tolerance with an arbitrary
            orthonormal completion, so that norms are kept; ``"drop"`` removes them.
        rank_tolerance: relative to the largest singular value; by default the longer side times machine epsilon.
        path: ``"auto"`` chooses by device, shape and condition. A named path is tried first, but one that would miss
            the promised accuracy still hands over to the SVD, and ``Polar.path`` says so.

    Returns:
        The factor, the numerical rank, and the path taken. Orthogonality and relative reconstruction error are below
        1e-12 in float64 and 1e-5 in float32, in the Frobenius norm.

    Raises:
        ShapeError: if there are fewer than two axes, or an empty one.
        DataError: if the entries are not real floating-point numbers, or not finite, or the tolerance is no tolerance.
        UnknownNameError: if ``unobserved`` or ``path`` is not one of its names.

    Example:
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> polar(turn @ torch.tensor([[3.0, 1.0], [1.0, 2.0]])).factor.allclose(turn, atol=1e-6)
        True
    """
    if not isinstance(matrix, Tensor):
        matrix = as_tensor(matrix, "The matrix of polar")
    _check(matrix, unobserved, rank_tolerance, path)
    work = matrix.detach()
    if matrix.dtype not in (torch.float32, torch.float64):
        work = work.float()
    work = _scale(work if matrix.ndim == 2 else work.flatten(0, -3))
    tall = work.shape[-2] > work.shape[-1]
    wide = work.mT if tall else work
    tolerance = wide.shape[-1] * torch.finfo(wide.dtype).eps if rank_tolerance is None else rank_tolerance

    factor, rank, taken = _solve(wide, tolerance, unobserved == "drop", path)

    if tall:
        factor = factor.mT.contiguous()
    if factor.dtype != matrix.dtype:
        factor = factor.to(matrix.dtype)
    if isinstance(rank, Tensor):
        factor, rank = factor.reshape(matrix.shape), rank.reshape(matrix.shape[:-2])
    return Polar(factor, rank, taken)


def _solve(wide: Tensor, tolerance: float, drop: bool, path: Path) -> tuple[Tensor, int | Tensor, str]:
    """Factor and rank of one matrix or of a batch with one leading axis, and the name of the way they were found."""
    if path == "qdwh" or (path == "auto" and wide.device.type != "cpu"):
        factor, ranks = qdwh.factor(wide, tolerance, drop)
        return factor, ranks if wide.ndim > 2 else int(ranks), "qdwh"
    if path == "svd" or (path == "auto" and not _gram_may_pay(wide)):
        return *_svd(wide, tolerance, drop), "svd"
    if wide.ndim == 2:
        solution = _gram(wide, tolerance, drop, path)
        return (*_svd(wide, tolerance, drop), "svd") if solution is None else (*solution, "gram")
    # Each matrix has its own condition; and LAPACK, which does the work, walks a batch one matrix at a time anyway.
    solutions = [_solve(matrix, tolerance, drop, path) for matrix in wide]
    ranks = torch.tensor([rank for _, rank, _ in solutions], device=wide.device)
    return (
        torch.stack([factor for factor, *_ in solutions]),
        ranks,
        "+".join(sorted({taken for *_, taken in solutions})),
    )


def _gram_may_pay(wide: Tensor) -> bool:
    short, long = wide.shape[-2:]
    return bool(short >= (_GRAM_WIDTH_IF_LONG if long >= _LONG * short else _GRAM_WIDTH)[wide.dtype])


def _gram(wide: Tensor, tolerance: float, drop: bool, path: Path) -> tuple[Tensor, int] | None:
    """The gram path where it was asked for, or where it promises to be the faster one."""
    short, long = wide.shape
    close_race = short < _CLOSE_RACE_WIDTH[wide.dtype] and long < _LONG * short
    floor = None if path == "gram" else _CLOSE_RACE_FLOOR if close_race else _FLOOR
    try:
        return gram.factor(wide, tolerance, drop, floor)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None


def _svd(wide: Tensor, tolerance: float, drop: bool) -> tuple[Tensor, int | Tensor]:
    """Factor and rank by LAPACK's divide and conquer. At small widths it is worth counting calls here."""
    try:
        # Transposed, because LAPACK takes up to half as long again over a wide matrix as over the same one upright.
        long, sizes, short = torch.linalg.svd(wide.mT, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # A rare failure to converge, which the iteration does not share.
        factor, ranks = qdwh.factor(wide, tolerance, drop)
        return factor, ranks if wide.ndim > 2 else int(ranks)
    basis = short.mT
    factor = basis @ long.mT
    if wide.dtype == torch.float32 and wide.shape[-1] > _POLISH_WIDTH:
        factor = gram.polish(factor)
    if wide.ndim == 2:
        values = sizes.tolist()[::-1]
        rank = len(values) - bisect_right(values, tolerance * values[-1])
        if drop and rank < len(values):
            # Projecting the polished factor keeps it as orthonormal as the projector is.
            factor = gram.project(basis[:, :rank], factor)
        return factor, rank
    observed = sizes > tolerance * sizes[:, :1]
    if drop and not bool(observed.all()):
        factor = gram.project(basis * observed[:, None, :], factor)
    return factor, observed.sum(-1)


def _scale(work: Tensor) -> Tensor:
    """Every matrix with its largest entry near one, by exact powers of two, under which the factor does not change."""
    if work.ndim == 2:
        low, high = torch.aminmax(work)
        peaks = [max(high.item(), -low.item())]
    else:
        # Not aminmax, which is several times slower along an axis.
        peaks = torch.maximum(work.amax((-2, -1)), -work.amin((-2, -1))).tolist()
    if not all(map(math.isfinite, peaks)):
        count = int((~torch.isfinite(work)).sum())
        raise DataError(f"polar needs finite entries; {count} of the {work.numel()} are NaN or infinite; clip them.")
    exponents = [math.frexp(peak)[1] if peak else 0 for peak in peaks]
    if max(map(abs, exponents)) <= _SAFE_EXPONENT:
        return work
    # In two halves, because the whole power can lie outside the range of the dtype.
    for halves in ([e // 2 for e in exponents], [e - e // 2 for e in exponents]):
        powers = torch.tensor([2.0**-half for half in halves], dtype=work.dtype, device=work.device)
        work = work * (powers if work.ndim == 2 else powers[:, None, None])
    return work


def _check(matrix: Tensor, unobserved: str, rank_tolerance: float | None, path: str) -> None:
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise ShapeError(f"polar needs a matrix, or a batch of them, without an empty axis, got {tuple(matrix.shape)}.")
    if not matrix.is_floating_point():
        raise DataError(
            f"polar needs real floating-point entries, got {matrix.dtype}; convert it with .double() first."
        )
    if rank_tolerance is not None:
        require_finite("rank_tolerance", rank_tolerance, 0, below=1)
    if unobserved not in get_args(Unobserved):
        raise UnknownNameError.of("treatment of unobserved directions", unobserved, get_args(Unobserved))
    if path not in get_args(Path):
        raise UnknownNameError.of("path", path, get_args(Path))
