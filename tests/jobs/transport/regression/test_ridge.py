"""Ridge regression from sums, beside scikit-learn's from rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.laws.strategies import gaussian
from torch import Tensor

from interbasin.jobs.transport.regression.ridge import LADDER, Sums

CLOSE = {"rtol": 1e-8, "atol": 1e-8}
X, Y = gaussian(0, 60, 5) + 0.7, gaussian(1, 60, 3) - 0.4
NOTHING = torch.zeros(3, 5, dtype=torch.float64)


def summed(x: Tensor, y: Tensor, weight: float = 1.0) -> Sums:
    sums = Sums()
    sums.add(x, y, weight)
    return sums


def reference(x: Tensor, y: Tensor, ridge: float, *, bias: bool, weights: Tensor | None = None) -> Ridge:
    """The same with scikit-learn, whose ridge is not relative to the mean eigenvalue."""
    weights = torch.ones(len(x)) if weights is None else weights
    mean = (weights[:, None] * x).sum(0) / weights.sum() if bias else 0
    eigenvalue = float((weights[:, None] * (x - mean).square()).sum()) / x.shape[1]
    model = Ridge(alpha=ridge * eigenvalue, fit_intercept=bias)
    return model.fit(x.numpy(), y.numpy(), sample_weight=weights.numpy())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ridge", [1e-6, 0.1, 10.0])
def test_it_is_ridge_regression(bias: bool, ridge: float) -> None:
    found = summed(X, Y).solve(NOTHING, NOTHING[:, 0] if bias else None, ridge=ridge)
    expected = reference(X, Y, ridge, bias=bias)
    np.testing.assert_allclose(found.weight, expected.coef_, **CLOSE)
    if bias:
        np.testing.assert_allclose(found.bias, expected.intercept_, **CLOSE)
        residual = torch.from_numpy(expected.predict(X.numpy())) - Y
        share = 1 - float(residual.square().sum() / (Y - Y.mean(0)).square().sum())
        assert found.explained == pytest.approx(share, abs=1e-8)
    else:
        assert found.bias is None


def test_batches_add_up() -> None:
    parts = Sums()
    for x, y in zip(X.split(7), Y.split(7), strict=True):
        parts.add(x, y)
    whole = summed(X, Y)
    assert parts.rows == whole.rows == 60
    prior = gaussian(2, 3, 5)
    torch.testing.assert_close(
        parts.solve(prior, prior[:, 0]).weight, whole.solve(prior, prior[:, 0]).weight, rtol=1e-10, atol=1e-10
    )


def test_weights_count_rows_several_times() -> None:
    heavy = Sums()
    heavy.add(X[:20], Y[:20], 3.0)
    heavy.add(X[20:], Y[20:])
    weights = torch.where(torch.arange(60) < 20, 3.0, 1.0)
    expected = reference(X, Y, 0.1, bias=True, weights=weights)
    found = heavy.solve(NOTHING, NOTHING[:, 0], ridge=0.1)
    np.testing.assert_allclose(found.weight, expected.coef_, **CLOSE)


def test_it_shrinks_towards_the_prior() -> None:
    prior, bias = gaussian(2, 3, 5), gaussian(3, 3)
    sums = summed(X, Y)
    expected = reference(X, Y - X @ prior.mT, 0.5, bias=True)
    found = sums.solve(prior, bias, ridge=0.5)
    np.testing.assert_allclose(found.weight - prior, expected.coef_, **CLOSE)
    near, far = (float((sums.solve(prior, bias, ridge=ridge).weight - prior).norm()) for ridge in (1e4, 1e-4))
    assert near < 1e-3 < far


def test_a_prior_that_is_right_stays() -> None:
    prior, bias = gaussian(2, 3, 5), gaussian(3, 3)
    found = summed(X, X @ prior.mT + bias).solve(prior, bias)
    torch.testing.assert_close(found.weight, prior, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.bias, bias, rtol=1e-12, atol=1e-12)
    assert found.explained == pytest.approx(1)


def test_cross_validation_takes_what_is_good_on_fresh_rows() -> None:
    true = gaussian(5, 3, 5)
    assert summed(X, X @ true.mT).solve(NOTHING, NOTHING[:, 0]).ridge == LADDER[0]
    noise = summed(gaussian(6, 40, 30), gaussian(7, 40, 3))
    zeros = torch.zeros(3, 30, dtype=torch.float64)
    assert noise.solve(zeros, zeros[:, 0]).ridge >= 1
    x, fresh, true = gaussian(8, 40, 30), gaussian(9, 500, 30), gaussian(10, 3, 30)
    sums = summed(x, x @ true.mT + 3 * gaussian(11, 40, 3))
    errors = {ridge: _error(sums, zeros, ridge, fresh, true) for ridge in LADDER}
    found = _error(sums, zeros, None, fresh, true)
    assert found < 1.3 * min(errors.values())
    assert found < 0.8 * errors[LADDER[0]]


def _error(sums: Sums, zeros: Tensor, ridge: float | None, fresh: Tensor, true: Tensor) -> float:
    found = sums.solve(zeros, zeros[:, 0], ridge=ridge)
    assert found.bias is not None
    return float((fresh @ (found.weight - true).mT + found.bias).norm())


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_inputs_give_finite_weights(rows: int) -> None:
    found = summed(X[:rows], Y[:rows]).solve(NOTHING, NOTHING[:, 0])
    assert bool(found.weight.isfinite().all())


def test_a_layer_beside_offsets_is_what_both_come_to_together() -> None:
    """Fitted with what offsets explain taken out first, a layer is that of the least squares of both."""
    x, y = gaussian(0, 90, 5), gaussian(1, 90, 3)
    groups = torch.eye(4, dtype=torch.float64)[torch.arange(90) % 4]
    x = x + groups @ gaussian(2, 4, 5)  # inputs and outputs have other means in each group
    y = y + groups @ gaussian(3, 4, 3)
    sums = Sums()
    sums.add(torch.cat([x, groups], 1), y)
    together = torch.linalg.lstsq(torch.cat([x, groups], 1), y).solution[:5].mT
    alone = sums.partial_out(5).solve(torch.zeros(3, 5), None, ridge=0.0)
    torch.testing.assert_close(alone.weight, together)
    assert sums.partial_out(5).rows == 86
    error = (y - x @ together.mT - groups @ torch.linalg.lstsq(groups, y - x @ together.mT).solution).square().sum()
    means = groups @ torch.linalg.lstsq(groups, y).solution
    assert alone.explained == pytest.approx(1 - float(error / (y - means).square().sum()))
