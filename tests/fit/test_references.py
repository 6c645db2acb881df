"""Fits and similarities against libraries that solve the same problem, and against definitions on the raw rows."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import scipy.linalg
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import LinearRegression, Ridge
from tests.laws.strategies import SEEDS, gaussian, well_conditioned
from tests.profiles import at_most
from torch import Tensor

from interbasin import fit, maps
from interbasin.statistics import (
    PairedMoments,
    canonical_correlations,
    explained_variance,
    linear_cka,
    mean_cosine,
    procrustes_distance,
    pwcca,
)

widths = st.integers(1, 20)


def pair(seed: int, source: int, target: int, rows: int = 80) -> tuple[Tensor, Tensor]:
    """Rows that have something in common, so that no solution is a tie."""
    x = gaussian(seed, rows, source) @ well_conditioned(seed, source, source).mT + 1
    return x, 0.5 * x @ gaussian(seed + 1, target, source).mT + gaussian(seed + 2, rows, target)


def centred(x: Tensor) -> np.ndarray:
    return (x - x.mean(dim=0)).numpy()


@given(seed=SEEDS, width=widths)
def test_procrustes_agrees_with_scipy(seed: int, width: int) -> None:
    x, y = pair(seed, width, width)
    rotation, scale = scipy.linalg.orthogonal_procrustes(centred(x), centred(y))
    found = fit.procrustes(x, y, scale=True)
    np.testing.assert_allclose(fit.procrustes(x, y).map.matrix.numpy(), rotation.T, atol=1e-8)
    assert found.details["scale"] == pytest.approx(scale / (centred(x) ** 2).sum(), rel=1e-9)


@given(seed=SEEDS, source=widths, target=widths, signed=st.booleans())
def test_assignment_reaches_the_cost_that_scipy_reaches(seed: int, source: int, target: int, signed: bool) -> None:
    x, y = pair(seed, source, target)
    a, b = centred(x), centred(y)
    # The full table of distances between units, which the solver never forms.
    cost = ((a[:, None, :] - b[:, :, None]) ** 2).sum(axis=0)
    if signed:
        cost = np.minimum(cost, ((a[:, None, :] + b[:, :, None]) ** 2).sum(axis=0))
    # A target unit without a partner misses all of itself; a partner changes that.
    alone = (b**2).sum(axis=0)
    rows, columns = scipy.optimize.linear_sum_assignment(cost - alone[:, None])
    expected = alone.sum() + (cost - alone[:, None])[rows, columns].sum()
    found = fit.assignment(x, y, signed=signed).map
    missed = found(torch.from_numpy(a)).numpy() - b
    assert (missed**2).sum() == pytest.approx(expected, rel=1e-9)


@given(seed=SEEDS, source=widths, target=widths)
def test_least_squares_agrees_with_scikit_learn(seed: int, source: int, target: int) -> None:
    x, y = pair(seed, source, target)
    reference = LinearRegression().fit(x.numpy(), y.numpy())
    found = fit.least_squares(x, y, affine=True).map
    assert isinstance(found, maps.Affine)
    np.testing.assert_allclose(found.matrix.numpy(), reference.coef_, atol=1e-8)
    np.testing.assert_allclose(found.offset.numpy(), reference.intercept_, atol=1e-8)


@given(seed=SEEDS, source=widths, target=widths, ridge=st.sampled_from([1e-6, 1e-2, 1.0, 100.0]))
def test_ridge_agrees_with_scikit_learn(seed: int, source: int, target: int, ridge: float) -> None:
    x, y = pair(seed, source, target)
    strength = ridge * (centred(x) ** 2).sum() / source
    reference = Ridge(alpha=strength).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(
        fit.least_squares(x, y, ridge=ridge).map.matrix.numpy(), reference.coef_.reshape(target, source), atol=1e-8
    )


@given(seed=SEEDS, source=st.integers(2, 30), target=widths)
def test_without_enough_rows_least_squares_is_the_pseudo_inverse(seed: int, source: int, target: int) -> None:
    x, y = gaussian(seed, source // 2 + 1, source), gaussian(seed + 1, source // 2 + 1, target)
    reference = np.linalg.pinv(x.numpy()) @ y.numpy()
    np.testing.assert_allclose(fit.least_squares(x, y, centered=False).map.matrix.numpy(), reference.T, atol=1e-8)


@at_most(20)
@given(seed=SEEDS, source=st.integers(1, 6), target=st.integers(1, 6))
def test_canonical_correlations_agree_with_scikit_learn(seed: int, source: int, target: int) -> None:
    x, y = pair(seed, source, target, rows=200)
    count = min(source, target)
    reference = CCA(n_components=count, max_iter=20_000, tol=1e-12).fit(x.numpy(), y.numpy())
    a, b = reference.transform(x.numpy(), y.numpy())
    expected = sorted((abs(np.corrcoef(a[:, i], b[:, i])[0, 1]) for i in range(count)), reverse=True)
    np.testing.assert_allclose(canonical_correlations(PairedMoments.of(x, y)).numpy(), expected, atol=1e-5)
    found = fit.cca(x, y)
    np.testing.assert_allclose(found.details["correlations"].numpy()[:count], expected, atol=1e-5)


@given(seed=SEEDS, source=widths, target=widths)
def test_a_cca_map_gives_the_source_the_second_moments_of_the_target(seed: int, source: int, target: int) -> None:
    target = min(source, target)
    x, y = pair(seed, source, target)
    carried = centred(fit.cca(x, y).map(x))
    np.testing.assert_allclose(carried.T @ carried, centred(y).T @ centred(y), rtol=1e-6, atol=1e-6)


@at_most(20)
@given(seed=SEEDS, source=st.integers(1, 12), target=st.integers(1, 12), temperature=st.sampled_from([0.05, 0.3]))
def test_sinkhorn_agrees_with_the_plain_iteration_of_pot(
    seed: int, source: int, target: int, temperature: float
) -> None:
    x, y = pair(seed, source, target)
    worth = centred(y).T @ centred(x)
    cost = -worth / np.abs(worth).max()
    plain, log = ot.sinkhorn(
        np.full(target, 1 / target),
        np.full(source, 1 / source),
        cost,
        temperature,
        method="sinkhorn",
        numItermax=50_000,
        warn=False,
        log=True,
    )
    found = fit.sinkhorn(x, y, temperature=temperature, tolerance=1e-10, steps=50_000)
    plan = found.map.matrix.numpy() / target
    if log["err"][-1] <= 1e-9:  # where units are nearly tied it is still far from the solution at its limit
        np.testing.assert_allclose(plan * target, plain * target, atol=1e-5)
    # There is one plan with these margins whose logarithm is the worth and a number for each row and each column.
    np.testing.assert_allclose(plan.sum(axis=1) * target, 1, atol=1e-6)
    np.testing.assert_allclose(plan.sum(axis=0) * source, 1, atol=1e-6)
    free = np.log(plan) + cost / temperature
    np.testing.assert_allclose(free - free[:1] - free[:, :1] + free[0, 0], 0, atol=1e-9)


@given(seed=SEEDS, source=widths, target=widths)
def test_linear_cka_agrees_with_its_definition_on_the_rows(seed: int, source: int, target: int) -> None:
    x, y = pair(seed, source, target)
    a, b = centred(x), centred(y)
    kernel_x, kernel_y = a @ a.T, b @ b.T
    expected = (kernel_x * kernel_y).sum() / (np.linalg.norm(kernel_x) * np.linalg.norm(kernel_y))
    assert linear_cka(PairedMoments.of(x, y)) == pytest.approx(expected, rel=1e-9)


@given(seed=SEEDS, source=widths, target=widths)
def test_pwcca_agrees_with_its_definition_on_the_rows(seed: int, source: int, target: int) -> None:
    x, y = pair(seed, source, target)
    a, b = centred(x), centred(y)
    basis_x, basis_y = np.linalg.qr(a)[0], np.linalg.qr(b)[0]
    left, correlations, _ = np.linalg.svd(basis_x.T @ basis_y, full_matrices=False)
    variates = basis_x @ left
    weights = np.abs(variates.T @ a).sum(axis=1)
    assert pwcca(PairedMoments.of(x, y)) == pytest.approx((weights * correlations).sum() / weights.sum(), rel=1e-7)
    assert pwcca(PairedMoments.of(y, x), "target") == pytest.approx(pwcca(PairedMoments.of(x, y)), rel=1e-7)


@given(seed=SEEDS, width=widths)
def test_the_procrustes_distance_is_what_the_best_rotation_leaves(seed: int, width: int) -> None:
    x, y = pair(seed, width, width)
    a, b = centred(x) / np.linalg.norm(centred(x)), centred(y) / np.linalg.norm(centred(y))
    rotation, _ = scipy.linalg.orthogonal_procrustes(a, b)
    assert procrustes_distance(PairedMoments.of(x, y)) == pytest.approx(np.linalg.norm(a @ rotation - b), abs=1e-7)


@given(seed=SEEDS, source=widths, target=widths)
def test_explained_variance_and_mean_cosine_agree_with_the_rows(seed: int, source: int, target: int) -> None:
    x, y = pair(seed, source, target)
    m = maps.Linear(well_conditioned(seed + 5, target, source))
    carried, b = centred(m(x)), centred(y)
    moments = PairedMoments.of(x, y)
    assert explained_variance(moments, m) == pytest.approx(
        1 - ((carried - b) ** 2).sum() / (b**2).sum(), rel=1e-8, abs=1e-8
    )
    expected = (carried * b).sum() / (np.linalg.norm(carried) * np.linalg.norm(b))
    assert mean_cosine(moments, m) == pytest.approx(expected, abs=1e-9)


def test_the_mean_cosine_of_rows_of_equal_norm_is_the_plain_mean() -> None:
    angles = torch.arange(8, dtype=torch.float64) * torch.pi / 4
    x = torch.stack([angles.cos(), angles.sin()], dim=1)  # centred already
    y = torch.stack([(angles + 0.3).cos(), (angles + 0.3).sin()], dim=1)
    assert mean_cosine(PairedMoments.of(x, y)) == pytest.approx(float(torch.cosine_similarity(x, y).mean()), abs=1e-12)


def test_a_two_by_two_case_by_hand() -> None:
    # C = [[0, -3], [1, 0]] has the singular values 3 and 1 and the orthogonal factor of a quarter turn.
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    y = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    found = fit.procrustes(x, y, centered=False)
    torch.testing.assert_close(found.map.matrix, torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64))
    # m(x) = [[0, 1], [-3, 0]] misses y by [[0, 0], [-2, 0]], and ||y|| = sqrt(2).
    assert found.residual == pytest.approx(2 / 2**0.5)
