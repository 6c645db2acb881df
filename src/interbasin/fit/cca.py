"""Procrustes between whitened spaces, from not whitened at all to CCA."""

from __future__ import annotations

from typing import Literal

import torch

from interbasin.checks import require_finite
from interbasin.errors import FitError
from interbasin.fit.procrustes import nearest_orthogonal
from interbasin.fit.registry import Proposal, solver
from interbasin.maps import Linear, Map
from interbasin.statistics import PairedMoments
from interbasin.statistics.similarity import matrix_powers


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
    power = require_finite("power", power, 0, 0.5, error=FitError)
    ridge = require_finite("ridge", ridge, 0, error=FitError)
    grams = moments.gram_source(centered=centered), moments.gram_target(centered=centered)
    (whiten_source, _, rank_source), (whiten_target, colour_target, rank_target) = (
        matrix_powers(gram / moments.count, power, moments, ridge) for gram in grams
    )
    if power == 0:  # nothing is whitened, and directions without variance need no special care
        whiten_source, whiten_target = (torch.eye(len(gram)).to(gram) for gram in grams)
    whitened = whiten_target @ (moments.cross(centered=centered) / moments.count) @ whiten_source
    rotation, rank = nearest_orthogonal(whitened, unobserved=unobserved)
    rank = min(rank, rank_source, rank_target)
    correlations = torch.linalg.svdvals(whitened)
    map: Map = rotation if power == 0 else Linear(colour_target @ rotation.matrix.to(whitened) @ whiten_source)
    status = "converged" if rank == min(whitened.shape) else "rank-deficient"
    return Proposal(map, status, details={"rank": rank, "power": power, "correlations": correlations})
