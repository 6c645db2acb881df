"""The best permutation, exactly."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from interbasin.errors import FitError
from interbasin.fit.registry import Proposal, solver
from interbasin.maps import Permutation, SignedPermutation
from interbasin.statistics import PairedMoments

MATCHES = ("covariance", "correlation")
EQUAL = 1e-12  # of the largest score: what summing in another order changes


@solver(name="assignment", reference="crouse:16", grams=False)
def assignment(
    moments: PairedMoments,
    *,
    centered: bool = True,
    signed: bool = False,
    match: Literal["covariance", "correlation"] = "covariance",
) -> Proposal:
    r"""The permutation of units that best carries source onto target.

    Minimises :math:`\|X P^\top - Y\|_F` over permutations by solving the linear assignment problem exactly [crouse:16,
    the algorithm behind scipy's ``linear_sum_assignment``]. For unequal widths each unit of the narrower space gets its
    own partner, and the minimum is over all such matchings: since :math:`\|x_j - y_i\|^2 = \|x_j\|^2 + \|y_i\|^2 - 2
    c_{ij}`, a source unit's own energy counts when not all of them are taken.

    The solution is exact, and still says little about the units where there are fewer rows than units (the status is
    then ``"rank-deficient"``), or where two of them could change places and lose nothing (``"tied"``).

    Args:
        moments: Or two arrays of paired rows, source and target.
        centered: Fit to the rows about their means.
        signed: Allow each unit to change its sign (the exact group behind an odd non-linearity).
        match: Maximise covariance (the residual above) or correlation, which ignores the units' scales.
        affine: Return an `Affine` that also carries the source's mean to the target's.

    Example:
        >>> x = torch.tensor([[1.0, 5.0], [2.0, 3.0], [4.0, 4.0]])
        >>> assignment(x, x.flip(-1)).map.index
        tensor([1, 0])
    """
    from scipy.optimize import linear_sum_assignment

    worth = benefit(moments, centered=centered, match=match)
    scores = worth.abs() if signed else worth
    if match == "covariance" and moments.target_width < moments.source_width:
        scores = 2 * scores - moments.squares_source(centered=centered).to(scores)
    rows, columns = linear_sum_assignment(scores.cpu().numpy(), maximize=True)
    index = torch.full((moments.target_width,), -1, dtype=torch.int64)
    index[torch.as_tensor(rows)] = torch.as_tensor(columns)
    matched = worth[rows, columns]
    details = {"objective": float((matched.abs() if signed else matched).sum())}
    status = "converged"
    if moments.count - centered < min(scores.shape):
        status = "rank-deficient"
    elif _is_tied(scores[rows][:, columns]):
        status = "tied"
    if not signed:
        return Proposal(Permutation(index, source_width=moments.source_width), status, details=details)
    sign = torch.ones(moments.target_width, dtype=torch.int8)
    sign[torch.as_tensor(rows)] = torch.where(matched.cpu() < 0, -1, 1).to(torch.int8)
    return Proposal(SignedPermutation(index, sign, source_width=moments.source_width), status, details=details)


def _is_tied(scores: Tensor) -> bool:
    """Whether two pairs could change partners and lose nothing: units that are alike, or that never vary.

    ``scores`` has the pairs that were taken on its diagonal.
    """
    taken = scores.diagonal()
    lost = taken[:, None] + taken - scores - scores.mT
    lost.fill_diagonal_(torch.inf)
    return len(scores) > 1 and bool((lost <= EQUAL * scores.abs().max()).any())


def benefit(moments: PairedMoments, *, centered: bool, match: str) -> Tensor:
    """What matching target unit ``i`` with source unit ``j`` is worth, shape ``(target, source)``."""
    if match not in MATCHES:
        raise FitError(f"match must be 'covariance' or 'correlation', got {match!r}.")
    cross = moments.cross(centered=centered)
    if match == "covariance":
        return cross
    source = moments.squares_source(centered=centered).to(cross).sqrt()
    target = moments.squares_target(centered=centered).to(cross).sqrt()
    scale = torch.outer(target, source)
    # A unit that never varies correlates with nothing.
    return torch.where(scale > 0, cross / torch.where(scale > 0, scale, 1), 0)
