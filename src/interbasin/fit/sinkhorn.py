"""A soft assignment."""

from __future__ import annotations

import math
import warnings
from typing import Literal

import torch

from interbasin.errors import FitError
from interbasin.extras import import_extra
from interbasin.fit.assignment import benefit
from interbasin.fit.registry import solver
from interbasin.fit.result import Proposal
from interbasin.maps import Linear
from interbasin.statistics import PairedMoments

__all__ = ["sinkhorn"]


@solver(name="sinkhorn", reference="cuturi:13", grams=False, isometric=False)
def sinkhorn(
    moments: PairedMoments,
    *,
    centered: bool = True,
    temperature: float = 0.05,
    match: Literal["covariance", "correlation"] = "covariance",
    tolerance: float = 1e-6,
    steps: int = 5000,
) -> Proposal:
    r"""The soft permutation of units that best carries source onto target: each target unit a mixture of source units.

    Entropic optimal transport between the units [cuturi:13], by POT in the log domain: the plan :math:`P` maximises
    :math:`\sum_{ij} P_{ij} w_{ij} - \varepsilon \sum_{ij} P_{ij} \log P_{ij}` with uniform margins, :math:`w` the
    covariances (or correlations) and :math:`\varepsilon` the temperature times the largest :math:`|w|`. The map's rows
    are those of the plan, scaled to sum to one; as the temperature falls it becomes the permutation of `assignment`.

    Args:
        moments: Or two arrays of paired rows, source and target.
        centered: Fit to the rows about their means.
        temperature: How soft, relative to the largest covariance.
        match: As for `assignment`.
        tolerance: Stop when the margins are met this well.
        steps: The limit of iterations.
        affine: Return an `Affine` that also carries the source's mean to the target's.

    Raises:
        MissingExtraError: without the ``ot`` extra.
    """
    ot = import_extra("ot", "The sinkhorn fit", "ot")
    if not (isinstance(temperature, int | float) and math.isfinite(temperature) and temperature > 0):
        raise FitError(f"temperature is relative to the largest covariance and above 0, found {temperature!r}.")
    if not (isinstance(tolerance, int | float) and math.isfinite(tolerance) and tolerance > 0):
        raise FitError(f"tolerance is how well the margins are met, a finite number above 0, found {tolerance!r}.")
    if not (isinstance(steps, int) and steps >= 1):
        raise FitError(f"steps is the limit of iterations, a whole number of at least 1, found {steps!r}.")
    worth = benefit(moments, centered=centered, match=match).cpu()
    scale = float(worth.abs().max())
    cost = (-worth / scale if scale > 0 else worth).numpy()
    rows, columns = cost.shape
    with warnings.catch_warnings():
        # POT warns when it stops at the limit; the status says so.
        warnings.simplefilter("ignore")
        plan, log = ot.sinkhorn(
            [1 / rows] * rows,
            [1 / columns] * columns,
            cost,
            temperature,
            method="sinkhorn_log",
            numItermax=steps,
            stopThr=tolerance,
            log=True,
        )
    error = float(log["err"][-1])
    details = {"temperature": float(temperature), "margin_error": error}
    taken = int(log["niter"]) + 1
    status = "converged" if error <= tolerance else "step-limit"
    return Proposal(Linear(torch.as_tensor(plan) * rows), status, min(taken, steps), details)
