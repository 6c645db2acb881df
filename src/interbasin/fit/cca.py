"""Procrustes between whitened spaces, as far whitened as one likes."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from interbasin.errors import FitError
from interbasin.fit.procrustes import nearest_orthogonal
from interbasin.fit.registry import solver
from interbasin.fit.result import Proposal
from interbasin.maps import Linear, Map
from interbasin.statistics import PairedMoments


@solver(name="cca", reference="hotelling:36", grams=True)
def cca(
    moments: PairedMoments,
    *,
    centered: bool = True,
    power: float = 0.5,
    ridge: float = 0.0,
    unobserved: Literal["complete", "drop"] = "complete",
) -> Proposal:
    r"""The map that rotates between the whitened spaces, from Procrustes (power 0) to CCA (power 0.5).

    With :math:`\Sigma_x, \Sigma_y` the second moments, whiten both sides by :math:`\Sigma^{-p}`, rotate by the
    orthogonal factor :math:`Q` of :math:`\Sigma_y^{-p} C \Sigma_x^{-p}`, and undo the target's whitening: :math:`M =
    \Sigma_y^{p} Q \Sigma_x^{-p}`. At :math:`p = 1/2` the rotation pairs the canonical variates [hotelling:36] and the
    map gives the carried source exactly the target's second moments; at :math:`p = 0` it is `procrustes`.

    Args:
        moments: Or two arrays of paired rows, source and target. Needs the Gram matrices.
        centered: Fit to the rows about their means.
        power: Between 0 and 0.5.
        ridge: Added to both spaces' variances, relative to their mean.
        unobserved: As for `procrustes`, in the whitened spaces.
        affine: Return an `Affine` that also carries the source's mean to the target's.
    """
    if not (isinstance(power, int | float) and 0 <= power <= 0.5):
        raise FitError(f"power goes from 0 (Procrustes) to 0.5 (CCA), found {power!r}.")
    if not (isinstance(ridge, int | float) and math.isfinite(ridge) and ridge >= 0):
        raise FitError(f"ridge is a share of the mean variance, a finite number of at least 0, found {ridge!r}.")
    whiten_source, _, rank_source = _powers(
        moments.gram_source(centered=centered) / moments.count, power, ridge, moments
    )
    whiten_target, colour_target, rank_target = _powers(
        moments.gram_target(centered=centered) / moments.count, power, ridge, moments
    )
    whitened = whiten_target @ (moments.cross(centered=centered) / moments.count) @ whiten_source
    rotation, rank = nearest_orthogonal(whitened, unobserved=unobserved)
    rank = min(rank, rank_source, rank_target)
    correlations = torch.linalg.svdvals(whitened)
    map: Map = rotation if power == 0 else Linear(colour_target @ rotation.matrix.to(whitened) @ whiten_source)
    status = "converged" if rank == min(whitened.shape) else "rank-deficient"
    return Proposal(map, status, details={"rank": rank, "power": float(power), "correlations": correlations})


def _powers(second: Tensor, power: float, ridge: float, moments: PairedMoments) -> tuple[Tensor, Tensor, int]:
    """``second ** -power`` and ``second ** power`` on the directions that vary, and how many those are."""
    values, vectors = torch.linalg.eigh(second)
    kept = values > values[-1].clamp(min=0) * moments.rank_tolerance(len(values))
    if power == 0:
        # Nothing is whitened, and directions without variance need no special care.
        identity = torch.eye(len(values), dtype=values.dtype, device=values.device)
        return identity, identity, int(kept.sum())
    lifted = torch.where(kept, values + ridge * float(values.clamp(min=0).mean()), 1)
    whitening = torch.where(kept, lifted**-power, 0)
    colouring = torch.where(kept, lifted**power, 0)
    return (vectors * whitening) @ vectors.mT, (vectors * colouring) @ vectors.mT, int(kept.sum())
