"""Least squares first, then the nearest rotation."""

from __future__ import annotations

from typing import Literal

from interbasin.fit.least_squares import ridge_solution
from interbasin.fit.procrustes import nearest_orthogonal
from interbasin.fit.registry import solver
from interbasin.fit.result import Proposal
from interbasin.statistics import PairedMoments


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
    matrix, source_rank = ridge_solution(moments, centered=centered, ridge=ridge)
    rotation, rank = nearest_orthogonal(matrix, unobserved=unobserved)
    rank = min(rank, source_rank)
    return Proposal(rotation, "converged" if rank == min(matrix.shape) else "rank-deficient", details={"rank": rank})
