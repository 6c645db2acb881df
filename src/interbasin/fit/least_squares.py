"""The best linear map, and the rotation nearest to it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from interbasin.checks import require_finite
from interbasin.errors import FitError
from interbasin.fit.procrustes import nearest_orthogonal
from interbasin.fit.registry import Proposal, solver
from interbasin.maps import Linear
from interbasin.statistics import PairedMoments


@solver(name="least-squares", reference="hoerl:70", grams=True)
def least_squares(moments: PairedMoments, *, centered: bool = True, ridge: float = 0.0) -> Proposal:
    r"""The linear map that best carries source onto target.

    Minimises :math:`\|X M^\top - Y\|_F^2 + \lambda \|M\|_F^2` with :math:`\lambda = \mathrm{ridge} \cdot
    \operatorname{tr}(X^\top X) / d` for a source of width :math:`d`, so that the same ridge means the same on data of
    any scale [hoerl:70]. Without a ridge, directions that the rows do not show are mapped to zero (the pseudo-inverse),
    and the status says so.

    Args:
        moments: Or two arrays of paired rows, source and target. Needs the Gram matrices.
        centered: Fit to the rows about their means.
        ridge: Relative to the mean variance of the source.
        affine: Return an `Affine` that also carries the source's mean to the target's: ordinary least squares with
            intercept.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
        >>> fit = least_squares(x, 3 * x, centered=False)
        >>> bool(fit.map.matrix.allclose(3 * torch.eye(2, dtype=torch.float64)))
        True
    """
    matrix, rank = _solve_ridge(moments, centered=centered, ridge=ridge)
    status = "converged" if ridge > 0 or rank == moments.source_width else "rank-deficient"
    return Proposal(Linear(matrix), status, details={"rank": rank, "ridge": ridge})


@solver(name="orthogonalised", reference="higham:86", grams=True)
def orthogonalised(
    moments: PairedMoments,
    *,
    centered: bool = True,
    ridge: float = 0.0,
    unobserved: Literal["complete", "drop"] = "complete",
) -> Proposal:
    r"""The rotation nearest to the least-squares map.

    The orthogonal factor of the least-squares solution: :math:`\arg\min_Q \|Q - M\|_F` [higham:86]. Where the source's
    variances are all equal it is the Procrustes map; elsewhere it weighs every direction of the source alike, however
    little it varies.

    Args:
        moments: Or two arrays of paired rows, source and target. Needs the Gram matrices.
        centered: Fit to the rows about their means.
        ridge: As for `least_squares`.
        unobserved: As for `procrustes`.
        affine: Return an `Affine` that also carries the source's mean to the target's.
    """
    matrix, source_rank = _solve_ridge(moments, centered=centered, ridge=ridge)
    rotation, rank = nearest_orthogonal(matrix, unobserved=unobserved)
    rank = min(rank, source_rank)
    return Proposal(rotation, "converged" if rank == min(matrix.shape) else "rank-deficient", details={"rank": rank})


def _solve_ridge(moments: PairedMoments, *, centered: bool, ridge: float) -> tuple[Tensor, int]:
    """The ridge (or, for 0, minimum-norm) solution of shape ``(target, source)``, and the rank of the source."""
    ridge = require_finite("ridge", ridge, 0, error=FitError)
    gram = moments.gram_source(centered=centered)
    values, vectors = torch.linalg.eigh(gram)
    kept = values > values[-1].clamp(min=0) * moments.rank_tolerance(len(values))
    shrunk = values + ridge * float(values.clamp(min=0).mean())
    weights = torch.where(kept, 1 / torch.where(kept, shrunk, 1), 0)
    solution = ((moments.cross(centered=centered).to(vectors) @ vectors) * weights) @ vectors.mT
    return solution, int(kept.sum())
