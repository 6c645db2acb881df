"""The best linear map."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from interbasin.errors import FitError
from interbasin.fit.registry import solver
from interbasin.fit.result import Proposal
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
    matrix, rank = ridge_solution(moments, centered=centered, ridge=ridge)
    status = "converged" if ridge > 0 or rank == moments.source_width else "rank-deficient"
    return Proposal(Linear(matrix), status, details={"rank": rank, "ridge": ridge})


def ridge_solution(moments: PairedMoments, *, centered: bool, ridge: float) -> tuple[Tensor, int]:
    """The ridge (or, for 0, minimum-norm) solution of shape ``(target, source)``, and the rank of the source."""
    if not (isinstance(ridge, int | float) and math.isfinite(ridge) and ridge >= 0):
        raise FitError(
            f"ridge is a share of the source's mean variance, a finite number of at least 0, found {ridge!r}."
        )
    gram = moments.gram_source(centered=centered)
    values, vectors = torch.linalg.eigh(gram)
    line = values[-1].clamp(min=0) * moments.rank_tolerance(len(values))
    kept = values > line
    shrunk = values + ridge * float(values.clamp(min=0).mean())
    weights = torch.where(kept, 1 / torch.where(kept, shrunk, 1), 0)
    solution = ((moments.cross(centered=centered).to(vectors) @ vectors) * weights) @ vectors.mT
    return solution, int(kept.sum())
