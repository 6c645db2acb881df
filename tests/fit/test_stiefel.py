"""The curves of the descent stay on the manifold, and the descent does not depend on the scale of its objective."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, gaussian, orthonormal
from torch import Tensor

from interbasin import fit
from interbasin.fit.stiefel import LONGEST, _cayley_curve, _skew, descend


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    near=st.integers(0, 12),
    turn=st.sampled_from([1e-6, 1.0, LONGEST]),
    seed=SEEDS,
)
@example(rows=9, columns=1, near=8, turn=1.0, seed=0)
def test_a_curve_stays_on_the_manifold_however_near_the_minimum(
    rows: int, columns: int, near: int, turn: float, seed: int
) -> None:
    point = orthonormal(seed, max(rows, columns), min(rows, columns))
    inner = gaussian(seed + 1, point.shape[1], point.shape[1])
    # Near a minimum the gradient is the point times a symmetric matrix, and next to nothing across it.
    gradient = point @ (inner + inner.mT) + 10.0**-near * gaussian(seed + 2, *point.shape)
    size = float(torch.linalg.matrix_norm(_skew(point, gradient))) or 1.0
    reached = _cayley_curve(point, gradient)(turn / size)
    identity = torch.eye(point.shape[1], dtype=torch.float64)
    torch.testing.assert_close(reached.mT @ reached, identity, rtol=0, atol=1e-14 * max(turn, 100))


@pytest.mark.parametrize("columns", [2, 4])  # by way of the small solve, and of the whole one
def test_a_curve_is_the_cayley_transform_of_its_definition(columns: int) -> None:
    point, gradient = orthonormal(0, 7, columns), gaussian(1, 7, columns)
    skew, whole = gradient @ point.mT - point @ gradient.mT, torch.eye(7, dtype=torch.float64)
    expected = torch.linalg.inv(whole + 0.15 * skew) @ (whole - 0.15 * skew) @ point
    torch.testing.assert_close(_cayley_curve(point, gradient)(0.3), expected, rtol=1e-12, atol=1e-12)


@given(factor=st.sampled_from([1e-30, 1e-9, 1e9, 1e30]), seed=SEEDS)
def test_the_scale_of_an_objective_changes_nothing(factor: float, seed: int) -> None:
    wanted, start = orthonormal(seed, 5, 3), orthonormal(seed + 1, 5, 3)

    def scaled(by: float) -> fit.Fit:
        return fit.stiefel(objective=lambda q: (-by * (q * wanted).sum(), -by * wanted), start=start)

    plain, other = scaled(1.0), scaled(factor)
    assert other.status == plain.status == "converged"
    torch.testing.assert_close(other.map.matrix, plain.map.matrix, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "seed", [12, 26]
)  # 1000 steps of no length before the round-off of the points was reckoned with
def test_a_descent_that_round_off_stops_does_not_walk_on_the_spot(seed: int) -> None:
    x, y = gaussian(seed, 34, 5), gaussian(seed + 1, 34, 1)
    found = fit.stiefel(x, y, tolerance=1e-11)
    assert found.status == "converged" and found.steps < 500


def test_a_gradient_that_points_the_wrong_way_stalls_and_says_so() -> None:
    wanted = gaussian(1, 4, 1)

    def wrong(point: Tensor) -> tuple[Tensor, Tensor]:
        return -(point * wanted).sum(), wanted

    found = descend(wrong, orthonormal(0, 4, 1))
    assert found.status == "stalled"
    assert max(found.path) <= found.path[0] + 1e-14  # what steps within round-off add up to
