"""Laws of the bound on the target's loss: its terms by themselves, and the theorem where every term is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.transfer import (
    conditional_entropy,
    distortion,
    joint_shares,
    lies_among,
    measure_bound,
    sampling_floor,
    wasserstein,
)

SEEDS = st.integers(0, 2**16)


def rows(seed: int, count: int, width: int = 3) -> torch.Tensor:
    return torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- feature alignment


def by_linear_program(x: torch.Tensor, y: torch.Tensor) -> float:
    cost = torch.cdist(x, y).numpy()
    n, m = cost.shape
    sums = np.zeros((n + m, n * m))
    for i, j in itertools.product(range(n), range(m)):
        sums[i, i * m + j] = sums[n + j, i * m + j] = 1
    ends = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    return float(linprog(cost.ravel(), A_eq=sums, b_eq=ends).fun)


@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_the_distance_is_that_of_the_linear_program(seed, n, m):
    x, y = rows(seed, n), rows(seed + 1, m)
    assert float(wasserstein(x, y)) == pytest.approx(by_linear_program(x, y), abs=1e-9)


@given(SEEDS, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_it_is_a_metric(seed, n, m, k):
    x, y, z = rows(seed, n), rows(seed + 1, m), rows(seed + 2, k)
    assert float(wasserstein(x, x[torch.randperm(n)])) == pytest.approx(0, abs=1e-12)
    assert float(wasserstein(x, y)) == pytest.approx(float(wasserstein(y, x)), abs=1e-9)
    assert float(wasserstein(x, z)) <= float(wasserstein(x, y)) + float(wasserstein(y, z)) + 1e-9


@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_its_gradient_is_that_of_finite_differences(solver):
    x, y = rows(0, 5).requires_grad_(True), rows(1, 7)
    value = wasserstein(x, y, solver, epsilon=0.02)
    value.backward()
    step = 1e-6
    for place in itertools.product(range(2), range(3)):
        ends = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved[place] += sign * step
            ends.append(float(wasserstein(moved, y, solver, epsilon=0.02)))
        # Of the regularised distance the plan moves too, which the envelope leaves out.
        tolerance = 1e-6 if solver == "exact" else 0.1
        assert float(x.grad[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=tolerance)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sinkhorn_is_near_the_exact_distance_at_any_scale(scale):
    x, y = scale * rows(0, 30, 16), scale * (rows(1, 40, 16) + 1)
    exact = float(wasserstein(x, y))
    near, nearer = (float(wasserstein(x, y, "sinkhorn", epsilon=epsilon)) for epsilon in (0.05, 0.005))
    assert exact <= nearer * (1 + 1e-6) <= near * (1 + 1e-6) and near < 1.1 * exact and nearer < 1.01 * exact


@given(SEEDS, st.integers(2, 40), st.integers(2, 40))
def test_its_gradient_moves_each_row_by_at_most_its_share(seed, n, m):
    x = rows(seed, n).requires_grad_(True)
    wasserstein(x, rows(seed + 1, m)).backward()
    assert float(x.grad.norm(dim=1).max()) <= 1 / n + 1e-9


def test_equal_rows_have_no_distance_and_no_gradient_of_nan():
    x = torch.zeros(3, 2, requires_grad=True)
    wasserstein(x, torch.zeros(4, 2)).backward()
    assert torch.equal(x.grad, torch.zeros(3, 2))
    floor = sampling_floor(rows(0, 60), 30, torch.Generator().manual_seed(0))
    assert 0 < floor < float(wasserstein(rows(0, 60), rows(1, 60) + 5))


def test_rows_of_the_same_origin_lie_among_the_others_and_rows_that_were_moved_do_not():
    found = [
        [
            lies_among(rows(seed, 40, 3) + by, rows(seed + 100, 200, 3), torch.Generator().manual_seed(seed))
            for seed in range(40)
        ]
        for by in (0.0, 0.5, 3.0)
    ]
    # At the level of 5 %: more than six of 40 are a chance of one in a hundred.
    assert sum(found[0]) >= 34 and sum(found[1]) <= 4 and not any(found[2])
    with pytest.raises(DataError, match="two rows"):
        lies_among(rows(0, 4), rows(1, 1), torch.Generator())


# ---------------------------------------------------------------------- feature-label distortion


def drawn(seed: int, samples: int, classes: int, sharpness: float = 1.0) -> torch.Tensor:
    return (sharpness * rows(seed, samples, classes)).softmax(1)


@given(SEEDS, st.integers(2, 5), st.integers(2, 4))
def test_labels_that_are_a_function_of_pseudo_labels_have_no_distortion(seed, sources, targets):
    generator = torch.Generator().manual_seed(seed)
    pseudo = torch.randint(sources, (60,), generator=generator)
    function = torch.randint(targets, (sources,), generator=generator)
    found = distortion(torch.eye(sources)[pseudo], function[pseudo], targets)
    assert found.soft == pytest.approx(0, abs=1e-12) and found.hard == pytest.approx(found.soft, abs=1e-12)


@given(SEEDS, st.integers(2, 5), st.integers(2, 4))
def test_independent_labels_keep_their_entropy(seed, sources, targets):
    answers = drawn(seed, 1, sources).expand(30 * targets, sources)  # all inputs look alike
    labels = torch.arange(30 * targets) % targets
    found = distortion(answers, labels)
    assert found.soft == pytest.approx(math.log(targets), abs=1e-9) == found.labels


@given(SEEDS, st.integers(2, 6), st.integers(2, 5), st.floats(0, 20))
def test_it_is_never_negative_nor_above_the_entropy_of_the_labels(seed, sources, targets, sharpness):
    labels = torch.randint(targets, (40,), generator=torch.Generator().manual_seed(seed))
    found = distortion(drawn(seed, 40, sources, sharpness), labels, targets)
    for value in (found.soft, found.hard):
        assert 0 <= value <= found.labels + 1e-9
    assert found.crossed > 0


@given(SEEDS, st.integers(2, 6), st.integers(2, 5))
def test_the_soft_form_is_the_hard_form_for_sure_answers(seed, sources, targets):
    generator = torch.Generator().manual_seed(seed)
    pseudo, labels = (torch.randint(count, (50,), generator=generator) for count in (sources, targets))
    sure = distortion(torch.eye(sources)[pseudo], labels, targets)
    assert sure.soft == pytest.approx(sure.hard, abs=1e-12)


def test_the_crossed_form_is_not_flattered_by_few_samples():
    generator = torch.Generator().manual_seed(0)
    answers = torch.eye(40)[torch.randperm(40, generator=generator)]  # every sample has a pseudo-label of its own
    found = distortion(answers, torch.arange(40) % 2)
    assert found.soft == pytest.approx(0, abs=1e-12) and found.crossed > 0.95 * found.labels


# ---------------------------------------------------------------------- target fitting and the theorem


def least_entropy_plan(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The plan of Definition 5: a minimum of a concave function, so that it lies at a vertex of the polytope."""
    n, m = len(source), len(target)
    sums = np.zeros((n + m, n * m))
    for i, j in itertools.product(range(n), range(m)):
        sums[i, i * m + j] = sums[n + j, i * m + j] = 1
    ends, best, value = np.concatenate([source, target]), None, math.inf
    for chosen in itertools.combinations(range(n * m), n + m - 1):
        solution = np.linalg.lstsq(sums[:, chosen], ends, rcond=None)[0]
        plan = np.zeros(n * m)
        plan[list(chosen)] = solution
        if np.abs(sums @ plan - ends).max() < 1e-9 and plan.min() > -1e-9:
            rows_of_plan = np.clip(plan, 0, None).reshape(n, m) / source[:, None]
            entropy = float(-(source[:, None] * rows_of_plan * np.log(np.maximum(rows_of_plan, 1e-300))).sum())
            if entropy < value:
                best, value = rows_of_plan, entropy
    assert best is not None
    return best


def definition_six(source: np.ndarray, plan: np.ndarray, predictor: np.ndarray) -> float:
    """The least mean divergence of the plan from one that gives the predictor: a convex program."""
    n, m = plan.shape

    def divergence(flat: np.ndarray) -> float:
        other = np.clip(flat.reshape(n, m), 1e-12, None)
        return float((source[:, None] * np.where(plan > 0, plan * np.log(np.maximum(plan, 1e-300) / other), 0)).sum())

    def slope(flat: np.ndarray) -> np.ndarray:
        return (-source[:, None] * plan / np.clip(flat.reshape(n, m), 1e-12, None)).ravel()

    constraints = [
        {"type": "eq", "fun": lambda flat: flat.reshape(n, m).sum(1) - 1},
        {"type": "eq", "fun": lambda flat: (source @ flat.reshape(n, m) - predictor)[:-1]},  # the last follows
    ]
    found = minimize(
        divergence,
        np.tile(predictor, (n, 1)).ravel(),
        jac=slope,
        method="SLSQP",
        bounds=[(1e-9, 1)] * (n * m),
        constraints=constraints,
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    assert found.success, found.message
    return float(found.fun)


def test_the_fitting_that_is_reported_is_at_most_that_of_the_definition():
    source, predictor = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    reported = float((source * np.log(source / predictor)).sum())
    assert reported == pytest.approx(0.511, abs=1e-3)
    assert definition_six(source, np.eye(2), predictor) == pytest.approx(0.805, abs=1e-2)


@given(SEEDS)
def test_theorem_and_direct_form_hold_where_all_is_known(seed):
    """A target with a few features, at which the labels of source and target have known distributions."""
    generator = np.random.default_rng(seed)
    places = generator.dirichlet(np.ones(3))
    sources, targets, predictors = (generator.dirichlet(np.ones(2), 3) for _ in range(3))
    error = surprise = exact = fitting = defined = 0.0
    for weight, source, target, predictor in zip(places, sources, targets, predictors, strict=True):
        source, target, predictor = (np.clip(each, 0.02, 0.98) for each in (source, target, predictor))
        source, target, predictor = (each / each.sum() for each in (source, target, predictor))
        plan = least_entropy_plan(source, target)
        error += weight * float(-(target * np.log(predictor)).sum())
        surprise += weight * float(-(source * np.log(source)).sum())
        exact += weight * float(-(source[:, None] * plan * np.log(np.maximum(plan, 1e-300))).sum())
        reported = float((target * np.log(target / predictor)).sum())
        six = definition_six(source, plan, predictor)
        assert reported <= six + 1e-5
        fitting, defined = fitting + weight * reported, defined + weight * six
    assert error <= surprise + exact + defined + 1e-5  # Theorem 7 with its first terms in the direct form
    assert error <= surprise + exact + fitting + 1e-9  # and with what is reported in the place of Definition 6


@given(SEEDS)
def test_the_theorem_holds_with_the_distance_of_features(seed):
    """Features of two sets, two labels of the source by a logistic head: the slope of its entropy is known."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=2) * 2
    omega = 0.22400 * float(np.linalg.norm(weight))  # the largest value of |x| s(x) (1 - s(x)), rounded up
    source, target = generator.normal(size=(6, 2)), generator.normal(size=(4, 2)) + generator.normal(size=2)

    def answers(features: np.ndarray) -> np.ndarray:
        share = 1 / (1 + np.exp(-features @ weight))
        return np.stack([share, 1 - share], 1)

    def surprise(shares: np.ndarray) -> float:
        return float(-(shares * np.log(shares)).sum(1).mean())

    distance = float(wasserstein(torch.from_numpy(target), torch.from_numpy(source)))
    assert surprise(answers(target)) <= surprise(answers(source)) + omega * distance + 1e-9
    labels, predictors = (0.02 + 0.96 * generator.dirichlet(np.ones(2), 4) for _ in range(2))
    error = float(-(labels * np.log(predictors)).sum(1).mean())
    fitting = float((labels * np.log(labels / predictors)).sum(1).mean())
    distorted = 0.0
    for share, label in zip(answers(target), labels, strict=True):
        plan = least_entropy_plan(share, label)
        distorted += float(-(share[:, None] * plan * np.log(np.maximum(plan, 1e-300))).sum()) / 4
    assert error <= surprise(answers(source)) + omega * distance + distorted + fitting + 1e-9


def test_the_entropy_of_labels_given_pseudo_labels_bounds_the_distortion():
    generator = np.random.default_rng(3)
    sources, targets = generator.dirichlet(np.ones(2), 5), generator.dirichlet(np.ones(2), 5)
    exact = sum(
        float(-(source[:, None] * plan * np.log(np.maximum(plan, 1e-300))).sum()) / 5
        for source, target in zip(sources, targets, strict=True)
        for plan in (least_entropy_plan(source, target),)
    )
    joint = torch.from_numpy(sum(np.outer(s, t) / 5 for s, t in zip(sources, targets, strict=True)))
    assert exact <= float(conditional_entropy(joint)) + 1e-9


def test_the_whole_bound_holds_on_samples_and_says_when_they_are_few():
    torch.manual_seed(0)
    labels = torch.arange(240) % 3
    features = torch.eye(3, 5)[labels] * 4 + torch.randn(240, 5)
    source_features = torch.eye(3, 5)[torch.arange(300) % 3] * 4 + torch.randn(300, 5)
    answers = (features[:, :3] * 1.5).softmax(1)
    found = measure_bound(
        target_features=features,
        target_labels=labels,
        target_answers=answers,
        source_answers=answers,
        source_features=source_features,
        error_source=0.2,
        omega=0.5,
    )
    assert found.error_target <= found.direct_bound and found.error_target <= found.bound
    assert found.distance < 2 * found.floor + 1 and found.notes == ()
    assert found.metrics()["bound"] == pytest.approx(0.2 + found.alignment + found.distortion.soft + found.fitting)
    few = measure_bound(
        target_features=features[:30],
        target_labels=labels[:30],
        target_answers=answers[:30],
        source_answers=answers[:30],
        source_features=source_features,
        error_source=0.2,
        omega=0.5,
    )
    assert "30 samples" in few.notes[0]
    assert joint_shares(answers, labels, 3).sum() == pytest.approx(1, abs=1e-6)


def bound_of(**changes):
    generator = torch.Generator().manual_seed(0)
    given = {
        "target_features": torch.randn(30, 4, generator=generator),
        "target_labels": torch.arange(30) % 2,
        "target_answers": torch.full((30, 2), 0.5),
        "source_answers": torch.full((30, 3), 1 / 3),
        "source_features": torch.randn(20, 4, generator=generator),
        "error_source": 0.1,
        "omega": 1.0,
    }
    return measure_bound(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"target_answers": torch.randn(30, 2)}, DataError, r"logits.softmax\(1\)"),
        ({"source_answers": torch.randn(30, 3)}, DataError, r"logits.softmax\(1\)"),
        ({"target_answers": torch.full((30, 2), torch.nan)}, DataError, "probabilities"),
        ({"target_answers": torch.full((30,), 0.5)}, ShapeError, "a row for each sample"),
        ({"target_features": torch.randn(5, 4)}, ShapeError, "one row for each sample"),
        ({"target_features": torch.full((30, 4), torch.nan)}, DataError, "NaN"),
        ({"source_features": torch.randn(20, 3)}, ShapeError, "one space"),
        ({"source_answers": torch.full((7, 3), 1 / 3)}, ShapeError, "one row for each"),
        ({"target_labels": torch.randn(30)}, DataError, "whole numbers"),
        ({"target_labels": torch.arange(30) % 2 - 1}, DataError, "whole numbers"),
        ({"target_labels": torch.zeros(0).long()}, DataError, "whole numbers"),
        ({"target_labels": (torch.arange(30) % 2).numpy()}, DataError, "torch.as_tensor"),
        ({"omega": math.nan}, DataError, "omega"),
        ({"omega": -1.0}, DataError, "omega"),
        ({"error_source": math.nan}, DataError, "error_source"),
    ],
)
def test_what_does_not_belong_together_has_no_bound(changes, error, words):
    with pytest.raises(error, match=words):
        bound_of(**changes)


def test_labels_of_any_whole_kind_have_the_same_bound():
    assert bound_of(target_labels=(torch.arange(30) % 2).int()) == bound_of()
    with pytest.raises(DataError, match="there are to be 2"):
        distortion(torch.full((4, 2), 0.5), torch.tensor([0, 1, 2, 0]), 2)
