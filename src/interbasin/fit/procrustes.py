"""The best rotation."""

from __future__ import annotations

import math
from typing import Literal

import torch

from interbasin.checks import require_finite
from interbasin.errors import FitError
from interbasin.fit.polar import polar
from interbasin.fit.registry import Proposal, solver
from interbasin.maps import Linear, Map, Orthogonal
from interbasin.statistics import PairedMoments
from interbasin.statistics.similarity import carried_energy


@solver(name="procrustes", reference="schonemann:66", grams=False)
def procrustes(
    moments: PairedMoments,
    *,
    centered: bool = True,
    scale: bool = False,
    unobserved: Literal["complete", "drop"] = "complete",
    rank_tolerance: float | None = None,
) -> Proposal:
    r"""The rotation (or reflection) that best carries source onto target.

    Minimises :math:`\|X Q^\top - Y\|_F` over orthogonal :math:`Q`. With :math:`Y^\top X = U S V^\top` the minimiser is
    :math:`Q = U V^\top` [schonemann:66]. Into a wider space :math:`Q` has orthonormal columns and is still the
    minimiser; into a narrower one it has orthonormal rows and maximises the correlation :math:`\operatorname{tr}(Q^\top
    Y^\top X)`.

    Args:
        moments: Or two arrays of paired rows, source and target.
        centered: Fit to the rows about their means.
        scale: Also fit one factor; the map is then a `Linear`.
        unobserved: What becomes of directions in which the rows show no correlation (few rows, wide spaces):
            ``complete`` gives them an arbitrary orthonormal partner, so that all lengths are kept; ``drop`` maps them
            to zero.
        rank_tolerance: A singular value counts as observed above this share of the largest. By default
            what the precision of the products can tell from round-off.
        affine: Return an `Affine` that also carries the source's mean to the target's.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
        >>> quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> fit = procrustes(x, x @ quarter_turn.mT)
        >>> bool(fit.map.matrix.allclose(quarter_turn.double(), atol=1e-6)), fit.status
        (True, 'converged')
    """
    cross = moments.cross(centered=centered)
    tolerance = moments.rank_tolerance(max(cross.shape)) if rank_tolerance is None else rank_tolerance
    rotation, rank = nearest_orthogonal(cross, unobserved=unobserved, rank_tolerance=tolerance)
    rank = min(rank, moments.rank_bound(centered=centered))
    map: Map = rotation
    details: dict[str, float] = {"rank": rank}
    if scale:
        factor = _best_factor(rotation, moments, centered)
        map = Linear(factor * rotation.matrix)
        details["scale"] = factor
    return Proposal(map, "converged" if rank == min(cross.shape) else "rank-deficient", details=details)


def nearest_orthogonal(
    matrix: torch.Tensor, *, unobserved: str = "complete", rank_tolerance: float | None = None
) -> tuple[Orthogonal, int]:
    """The orthogonal factor of a matrix as a map, and the matrix's rank."""
    if unobserved not in ("complete", "drop"):
        raise FitError(f"unobserved must be 'complete' or 'drop', got {unobserved!r}.")
    if rank_tolerance is not None:
        require_finite("rank_tolerance", rank_tolerance, 0, below=1, error=FitError)
    factor = polar(matrix, unobserved=unobserved, rank_tolerance=rank_tolerance)  # type: ignore[arg-type]
    rank = int(factor.rank)
    return Orthogonal._trusted(factor.factor, rank if unobserved == "drop" else min(matrix.shape)), rank


def _best_factor(rotation: Orthogonal, moments: PairedMoments, centered: bool) -> float:
    energy = carried_energy(moments, rotation, centered=centered)
    if math.isnan(energy):
        moments.gram_source()  # raises, and says what to do
    if energy == 0:
        return 1.0
    cross = moments.cross(centered=centered)
    return float((rotation.matrix.to(cross) * cross).sum()) / energy
