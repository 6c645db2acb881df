r"""How far two sets of features are from each other: the Wasserstein distance of order 1, with Euclidean cost.

In the bound of RECRAFT [tran:26] feature alignment is :math:`\omega W_1` (its equation 14). The exact plan comes from a
linear program; its gradient is that of the cost with the plan held fixed (the envelope theorem), so that no solver has
to be differentiated. An exact plan moves mass along fewer than rows + columns pairs: only their distances are computed
with care, and only they are differentiated. Sinkhorn's regularised plan, which the paper uses, is there as well, in the
domain of logarithms and with a regularisation relative to the median cost: with a fixed one of 0.1, on features as
large as a network's, the plan underflows to nothing.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError, ShapeError
from interbasin.extras import import_extra

Solver = Literal["exact", "sinkhorn"]
EPSILON = 0.05  # of the median cost
STEPS, TOLERANCE = 1000, 1e-6  # of Sinkhorn's iteration
MOST_PAIRS = 2**26  # entries of a matrix of costs
LARGEST_REST = 1000
CLEARLY_FARTHER = 1.5  # no draw of parts of one set comes to that


def wasserstein(features: Tensor, others: Tensor, solver: Solver = "exact", *, epsilon: float = EPSILON) -> Tensor:
    """The Wasserstein distance between two sets of rows that count alike, to be differentiated by either.

    Args:
        features, others: ``(rows, width)``.
        solver: ``"exact"``, or ``"sinkhorn"``, whose plan is blurred and whose value is therefore a little larger.
        epsilon: Of Sinkhorn's: the regularisation, relative to the median cost.

    Raises:
        ShapeError, DataError: if these are no two sets of finite rows of one width.

    Example:
        >>> wasserstein(torch.zeros(3, 2), torch.tensor([[3.0, 4.0]]))
        tensor(5.)
    """
    _require_rows(features, others)
    require_choice("solver", solver, get_args(Solver))
    if solver == "sinkhorn":
        # Without matrix products, which lose the distance of rows that are nearly the same.
        cost = torch.cdist(features, others, compute_mode="donot_use_mm_for_euclid_dist")
        return (_sinkhorn_plan(cost.detach(), epsilon) * cost).sum()
    # For the plan matrix products will do: pairs that they cannot tell apart are equally good.
    rows, columns, mass = _exact_plan(torch.cdist(features.detach().cpu().double(), others.detach().cpu().double()))
    rows, columns = rows.to(features.device), columns.to(features.device)
    lengths: Tensor = torch.linalg.vector_norm(features[rows] - others[columns], dim=1)
    return (mass.to(lengths) * lengths).sum()


def sampling_floor(features: Tensor, count: int, generator: torch.Generator, draws: int = 5) -> float:
    """The distance between two random parts of one set, of at most ``count`` rows each: what sampling alone gives."""
    size = min(count, len(features) // 2)
    if size < 1:
        raise DataError(f"Two parts of one set need two rows at least, found {len(features)}; give more.")
    values = []
    for _ in range(draws):
        order = torch.randperm(len(features), generator=generator)
        values.append(float(wasserstein(features[order[:size]], features[order[size : 2 * size]])))
    return sum(values) / draws


def lies_among(features: Tensor, others: Tensor, generator: torch.Generator) -> bool:
    """Whether rows are no farther from a set than parts of the set itself are: a test at the level of 5 %.

    Each of 19 draws takes as many rows of the set and asks how far they are from the rest of it, at most `LARGEST_REST`
    rows. If the given rows were drawn from where the set was, they would be the farthest in one case of 20.

    Raises:
        ShapeError, DataError: if these are no two sets of finite rows of one width, or the set has fewer than two.
    """
    if len(others) < 2:
        raise DataError(f"Two parts of one set need two rows at least, found {len(others)}; give more.")
    count = min(len(features), len(others) // 2)
    features = features[torch.randperm(len(features), generator=generator)[:count]]
    for _ in range(19):
        order = torch.randperm(len(others), generator=generator)
        rest = others[order[count : count + LARGEST_REST]]
        distance, usual = (float(wasserstein(rows, rest)) for rows in (features, others[order[:count]]))
        if distance <= usual:
            return True
        if distance > CLEARLY_FARTHER * usual:
            return False
    return False


def mean_distance(features: Tensor) -> float:
    """The mean distance of two different rows."""
    if len(features) < 2:
        raise DataError(f"A distance of two rows was asked for, found {len(features)}; give more.")
    return float(torch.pdist(features.double()).mean())


def _require_rows(features: Tensor, others: Tensor) -> None:
    for rows in (features, others):
        if rows.ndim != 2 or not rows.numel() or not rows.is_floating_point():
            raise ShapeError(f"Features are rows, (rows, width), of numbers, found {tuple(rows.shape)} {rows.dtype}.")
        if not bool(torch.isfinite(rows).all()):
            raise DataError("The features hold NaN or infinity; look at the network or its inputs.")
    if features.shape[1] != others.shape[1]:
        raise ShapeError(
            f"Features of {features.shape[1]} and of {others.shape[1]} numbers have no distance; give two of one space."
        )
    if len(features) * len(others) > MOST_PAIRS:
        raise DataError(
            f"{len(features)} and {len(others)} rows have too many distances to plan a transport; give fewer of them."
        )


def _exact_plan(cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The plan of least cost, as the pairs that it uses and their mass: rows, columns, mass.

    Of two sets of one size it is an assignment; otherwise POT solves the linear program.
    """
    height, width = cost.shape
    if min(height, width) == 1:
        pairs = torch.arange(cost.numel())
        return pairs // width, pairs % width, torch.full_like(cost.flatten(), 1 / cost.numel())
    numbers = cost.numpy()
    if height == width:
        rows, columns = linear_sum_assignment(numbers)
        mass = np.full(height, 1 / height)
    else:
        ot = import_extra("ot", "The distance between two sets of different sizes", "ot")
        plan = ot.emd(np.full(height, 1 / height), np.full(width, 1 / width), numbers, numItermax=10_000_000)
        rows, columns = plan.nonzero()
        mass = plan[rows, columns]
    return torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(mass)


def _sinkhorn_plan(cost: Tensor, epsilon: float) -> Tensor:
    """The plan of least cost and some entropy, by potentials, which neither overflow nor vanish."""
    require_finite("epsilon", epsilon, above=0)
    scale = float(cost.median()) or float(cost.mean())
    if not scale:
        return torch.full_like(cost, 1 / cost.numel())
    scores = (cost / -(epsilon * scale)).double()
    rows, columns = cost.shape
    weights = -torch.tensor([rows, columns], dtype=torch.float64, device=cost.device).log()
    right = torch.zeros(columns, dtype=torch.float64, device=cost.device)
    left = weights[0] - torch.logsumexp(scores + right, 1)
    for _ in range(STEPS):
        right = weights[1] - torch.logsumexp(scores + left[:, None], 0)
        before, left = left, weights[0] - torch.logsumexp(scores + right, 1)
        if float((left - before).abs().max()) < TOLERANCE:
            break
    return (scores + left[:, None] + right).exp().to(cost)


def plan_pairs(cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The exact plan of least cost, for any costs, as the pairs that it uses: their rows, columns and mass.

    Args:
        cost: ``(rows, columns)``; rows count alike, and so do columns.
    """
    rows, columns, mass = _exact_plan(cost.detach().cpu().double())
    return rows.to(cost.device), columns.to(cost.device), mass.to(cost)
