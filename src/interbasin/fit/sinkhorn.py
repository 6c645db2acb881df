"""A soft assignment."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import numpy as np
import torch

from interbasin.checks import require_finite, require_whole
from interbasin.errors import FitError
from interbasin.extras import import_extra
from interbasin.fit.assignment import benefit
from interbasin.fit.registry import Proposal, solver
from interbasin.maps import Linear
from interbasin.statistics import PairedMoments

COOLING = 4  # how much hotter each solution is than the next one, which starts from its potentials
WARM_UP = 20  # iterations at each of the higher temperatures
PATIENCE = 100  # iterations at the temperature itself before Newton's method takes over, and of that in turn


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

    Where units are nearly tied, Sinkhorn's iteration alone needs tens of thousands of steps. So it starts from the
    potentials of a few iterations at higher temperatures [schmitzer:19], and Newton's method takes over after a hundred
    iterations [brauer:17].

    Args:
        moments: Or two arrays of paired rows, source and target.
        centered: Fit to the rows about their means.
        temperature: How soft, relative to the largest covariance.
        match: As for `assignment`.
        tolerance: Stop when the margins are met this well.
        steps: The limit of iterations, those at higher temperatures and those of Newton's method included.
        affine: Return an `Affine` that also carries the source's mean to the target's.

    Raises:
        MissingExtraError: without the ``ot`` extra.
    """
    import_extra("ot", "The sinkhorn fit", "ot")
    temperature = require_finite("temperature", temperature, above=0, error=FitError)
    tolerance = require_finite("tolerance", tolerance, above=0, error=FitError)
    steps = require_whole("steps", steps, 1, error=FitError)
    worth = benefit(moments, centered=centered, match=match).cpu()
    scale = float(worth.abs().max())
    cost = (-worth / scale if scale > 0 else worth).numpy()
    # Up to the temperature of the largest cost, but never so many that the last one has less than half of the steps.
    temperatures = [temperature]
    while temperatures[-1] < 1 and 2 * WARM_UP * len(temperatures) < steps:
        temperatures.append(COOLING * temperatures[-1])
    stages = [(_iterate, heat, WARM_UP) for heat in temperatures[:0:-1]]
    stages += [(_iterate, temperature, PATIENCE), (_newton, temperature, PATIENCE), (_iterate, temperature, steps)]
    taken, potentials = 0, (np.zeros(len(cost)), np.zeros(cost.shape[1]))
    for solve, heat, most in stages:
        plan, error, potentials, used = solve(cost, heat, potentials, tolerance, min(most, steps - taken))
        taken += used
        if taken == steps or (heat == temperature and error <= tolerance):
            break
    details = {"temperature": temperature, "margin_error": error}
    status = "converged" if error <= tolerance else "step-limit"
    return Proposal(Linear(torch.as_tensor(plan) * len(cost)), status, taken, details)


Numbers = np.ndarray[Any, Any]
Potentials = tuple[Numbers, Numbers]  # of rows and columns, in the units of the cost
Solution = tuple[Numbers, float, Potentials, int]  # the plan, how far its margins are off, its potentials, iterations


def _iterate(cost: Numbers, temperature: float, start: Potentials, tolerance: float, steps: int) -> Solution:
    """The plan by Sinkhorn's iteration."""
    rows, columns = cost.shape
    with warnings.catch_warnings():
        # POT warns when it stops at the limit; the status says so.
        warnings.simplefilter("ignore")
        plan, log = import_extra("ot", "The sinkhorn fit", "ot").sinkhorn(
            [1 / rows] * rows,
            [1 / columns] * columns,
            cost,
            temperature,
            method="sinkhorn_log",
            numItermax=steps,
            stopThr=tolerance,
            log=True,
            warmstart=(start[0] / temperature, start[1] / temperature),
        )
    potentials = temperature * log["log_u"], temperature * log["log_v"]
    return plan, float(log["err"][-1]), potentials, min(int(log["niter"]) + 1, steps)


def _newton(cost: Numbers, temperature: float, start: Potentials, tolerance: float, steps: int) -> Solution:
    """The plan by Newton's method, over the potentials of the columns: those of the rows follow from them."""
    scores, column = -torch.from_numpy(cost) / temperature, torch.from_numpy(start[1]) / temperature
    rows, columns = scores.shape
    best: tuple[Numbers, float, Potentials] | None = None
    for taken in range(1, steps + 1):  # noqa: B007  (how many it took)
        lifted = scores + column
        row = -lifted.logsumexp(dim=1) - math.log(rows)
        plan = torch.exp(lifted + row[:, None])
        missing = 1 / columns - plan.sum(dim=0)
        error = float(torch.linalg.vector_norm(missing))
        if best is None or error < best[1]:
            best = plan.numpy(), error, (temperature * row.numpy(), temperature * column.numpy())
        # The Hessian is a graph Laplacian. Its diagonal is summed from the other entries, so that weak links between
        # groups of units keep their digits. One potential is free, and the first one stays.
        laplacian = -rows * (plan.mT @ plan)
        laplacian.fill_diagonal_(0)
        laplacian.diagonal().copy_(-laplacian.sum(dim=1))
        change = torch.zeros_like(column)
        change[1:], failed = torch.linalg.solve_ex(laplacian[1:, 1:], missing[1:])
        change = change - (change.max() + change.min()) / 2
        largest = float(change.abs().max())
        if error <= tolerance or int(failed) or not math.isfinite(largest):
            break
        # Beyond a factor of e in the plan the Hessian is that of another place.
        column = column + change / max(1.0, largest)
    assert best is not None
    return *best, taken
