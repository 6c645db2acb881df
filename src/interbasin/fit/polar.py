"""The orthogonal factor of a matrix: the one kernel under every rotation fit of this package.

A tall matrix factors as ``A = Q H`` and a wide one as ``A = H Q``, with ``Q`` orthogonal along the shorter side and
``H`` symmetric and positive semi-definite. Three ways lead to the same ``Q``: this file checks, scales, chooses and
holds the SVD; ``gram`` squares the matrix and repairs what squaring costs; ``qdwh`` iterates with products and
factorisations only, for accelerators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.fit import gram, qdwh

__all__ = ["Polar", "polar"]

Unobserved = Literal["complete", "drop"]
Path = Literal["auto", "svd", "gram", "qdwh"]

# Entries between 2**-16 and 2**16 can be squared and summed at any width we meet, in either precision.
_SAFE_EXPONENT = 16

# Measured on one core: below these widths the SVD costs less than an eigendecomposition plus its bookkeeping. Single
# precision comes later because its gram path works in float64, for accuracy, against an SVD in float32.
_GRAM_WIDTH = {torch.float64: 96, torch.float32: 384}
_GRAM_ASPECT = 1.5

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


@torch.no_grad()
def polar(
    matrix: Tensor,
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
    _check(matrix, unobserved, rank_tolerance, path)
    single = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    scaled = _scale(single.reshape(-1, *matrix.shape[-2:]), matrix)
    wide = scaled if matrix.shape[-2] <= matrix.shape[-1] else scaled.mT
    tolerance = wide.shape[-1] * torch.finfo(wide.dtype).eps if rank_tolerance is None else rank_tolerance

    factor, rank, taken = _solve(wide, tolerance, unobserved == "drop", path)

    factor = factor if wide is scaled else factor.mT
    return Polar(
        factor=factor.reshape(matrix.shape).to(matrix.dtype).contiguous(),
        rank=rank.reshape(matrix.shape[:-2]) if matrix.ndim > 2 else int(rank[0]),
        path=taken,
    )


def _solve(wide: Tensor, tolerance: float, drop: bool, path: Path) -> tuple[Tensor, Tensor, str]:
    """Factors and ranks of a batch ``(count, short, long)``, with the name of the way they were found."""
    if path == "qdwh" or (path == "auto" and wide.device.type != "cpu"):
        return *qdwh.factor(wide, tolerance, drop), "qdwh"
    if path == "svd" or (path == "auto" and not _gram_pays(wide)):
        return *_svd(wide, tolerance, drop), "svd"

    # LAPACK walks a batch one matrix at a time anyway, and each matrix has its own condition.
    found = [gram.factor(one, tolerance, drop, gated=path == "auto") for one in wide]
    left = [index for index, answer in enumerate(found) if answer is None]
    factor, rank = wide.new_empty(wide.shape), torch.empty(len(wide), dtype=torch.int64, device=wide.device)
    for index, answer in enumerate(found):
        if answer is not None:
            factor[index], rank[index] = answer
    if left:
        factor[left], rank[left] = _svd(wide[left] if len(left) < len(wide) else wide, tolerance, drop)
    return factor, rank, "gram" if not left else "svd" if len(left) == len(wide) else "gram+svd"


def _gram_pays(wide: Tensor) -> bool:
    short, long = wide.shape[-2:]
    start = _GRAM_WIDTH[wide.dtype]
    return short >= start or (short >= start / 2 and long >= _GRAM_ASPECT * short)


def _svd(wide: Tensor, tolerance: float, drop: bool) -> tuple[Tensor, Tensor]:
    """Factors and ranks by LAPACK's divide and conquer."""
    try:
        left, sizes, right = torch.linalg.svd(wide, full_matrices=False)
    except torch.linalg.LinAlgError:  # a rare failure to converge, which the iteration does not share
        return qdwh.factor(wide, tolerance, drop)
    observed = sizes > tolerance * sizes[:, :1]
    factor = left @ right
    if wide.dtype == torch.float32 and wide.shape[-1] > _POLISH_WIDTH:
        factor = gram.polish(factor)
    if drop and not bool(observed.all()):
        # Projecting the polished factor keeps it as orthonormal as its projector.
        factor = (left * observed[:, None, :]) @ (left.mT @ factor)
    return factor, observed.sum(-1)


def _scale(batch: Tensor, matrix: Tensor) -> Tensor:
    """The batch with every matrix's largest entry near one, by exact powers of two; the factor does not change."""
    low, high = torch.aminmax(batch) if len(batch) == 1 else torch.aminmax(batch.flatten(1), dim=1)
    peaks = torch.maximum(high, -low).reshape(-1).tolist()
    if not all(map(math.isfinite, peaks)):
        raise DataError(
            f"polar needs finite entries; {_count_bad(matrix)} of the {matrix.numel()} entries of this "
            f"{tuple(matrix.shape)} matrix are NaN or infinite. Remove the rows they come from, or clip them."
        )
    exponents = [math.frexp(peak)[1] if peak else 0 for peak in peaks]
    if max(map(abs, exponents)) <= _SAFE_EXPONENT:
        return batch
    # In two halves, because the whole power can lie outside the range of the dtype.
    for halves in ([e // 2 for e in exponents], [e - e // 2 for e in exponents]):
        power = torch.tensor([2.0**-half for half in halves], dtype=batch.dtype, device=batch.device)
        batch = batch * power[:, None, None]
    return batch


def _count_bad(matrix: Tensor) -> int:
    return int(matrix.numel() - torch.isfinite(matrix).sum())


def _check(matrix: Tensor, unobserved: str, rank_tolerance: float | None, path: str) -> None:
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise ShapeError(
            f"polar needs a matrix, or a batch of them, with no empty axis; this tensor has shape "
            f"{tuple(matrix.shape)}. Give it two axes or more, each at least one long."
        )
    if not matrix.is_floating_point():
        raise DataError(
            f"polar needs real floating-point entries; this tensor is {matrix.dtype}. Convert it first, "
            "for example with .double()."
        )
    if rank_tolerance is not None and not 0 <= rank_tolerance < 1:
        raise DataError(
            f"rank_tolerance is relative to the largest singular value and lies in [0, 1); got {rank_tolerance!r}. "
            "Leave it out for the default, the longer side times machine epsilon."
        )
    if unobserved not in get_args(Unobserved):
        raise UnknownNameError.of("treatment of unobserved directions", unobserved, get_args(Unobserved))
    if path not in get_args(Path):
        raise UnknownNameError.of("path", path, get_args(Path))
