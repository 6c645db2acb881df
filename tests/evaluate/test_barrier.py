"""The barrier, against a plain loop over the path."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.evaluate.examples import assert_unchanged, cnn, labelled, mlp, plainly, state, whole
from tests.laws.strategies import SEEDS
from tests.profiles import at_most

import interbasin as ib
from interbasin.errors import UnknownNameError
from interbasin.evaluate import barrier

GRIDS = st.integers(2, 9)
PATHS = st.sampled_from(["lerp", "slerp"])


@given(SEEDS, GRIDS, PATHS)
@at_most(20)
def test_it_is_the_largest_rise_above_the_chord(seed, points, path):
    a, b, data = mlp(seed % 1000), mlp(seed % 1000 + 1), labelled(seed=seed)
    found = barrier(a, b, data, points=points, path=path)
    ends = plainly(a, data), plainly(b, data)
    rises, falls = [], []
    for n in range(points):
        t = n / (points - 1)
        loss, accuracy = plainly(ib.interpolate(a, b, t, path), data)
        assert (found.loss[n], found.accuracy[n], found.t[n]) == pytest.approx((loss, accuracy, t))
        rises.append(loss - (1 - t) * ends[0][0] - t * ends[1][0])
        falls.append((1 - t) * ends[0][1] + t * ends[1][1] - accuracy)
    assert found["barrier"] == float(found) == pytest.approx(max(rises), abs=1e-12)
    assert found["barrier_accuracy"] == pytest.approx(max(falls), abs=1e-12)
    assert set(found.metrics) == {"barrier", "barrier_accuracy"}
    assert (found.ends[0].loss, found.ends[1].loss) == pytest.approx((ends[0][0], ends[1][0]))


@given(SEEDS)
@at_most(20)
def test_against_its_own_ends_it_is_never_below_zero_and_the_same_from_the_other_side(seed):
    a, b, data = mlp(seed % 1000), mlp(seed % 1000 + 1), labelled(seed=seed)
    there, back = barrier(a, b, data, points=5), barrier(b, a, data, points=5)
    assert float(there) >= -1e-12 and there["barrier_accuracy"] >= -1e-12
    assert float(there) == pytest.approx(float(back)) and there.loss == pytest.approx(back.loss[::-1])
    assert float(barrier(a, a, data, points=3)) == pytest.approx(0, abs=1e-12)


@given(SEEDS)
@at_most(20)
def test_against_other_ends_both_figures_are_told(seed):
    a, b, data = mlp(seed % 1000), mlp(seed % 1000 + 1), labelled(seed=seed)
    ruined = mlp(seed % 1000 + 2)
    found = barrier(ruined, b, data, points=5, ends=(a, b))
    assert found["barrier"] == pytest.approx(barrier(ruined, b, data, points=5)["barrier"])
    ends = plainly(a, data), plainly(b, data)
    rises = [loss - (1 - t) * ends[0][0] - t * ends[1][0] for t, loss in zip(found.t, found.loss, strict=True)]
    assert found["barrier_original"] == float(found) == pytest.approx(max(rises))
    falls = [(1 - t) * ends[0][1] + t * ends[1][1] - one for t, one in zip(found.t, found.accuracy, strict=True)]
    assert found["barrier_accuracy_original"] == pytest.approx(max(falls))
    assert found.ends[0].loss == pytest.approx(ends[0][0])


def test_nothing_is_changed_and_twice_is_the_same():
    a, b, data = cnn(0).train(), cnn(1).train(), labelled(shape=(2, 4, 4))
    before = state(a), state(b)
    one, other = (barrier(a, b, data, points=4, reset=data) for _ in range(2))
    assert one == other and one.loss == other.loss
    assert a.training and b.training
    assert_unchanged(a, before[0])
    assert_unchanged(b, before[1])


def test_batch_norms_are_reset_between_the_ends_on_request():
    a, b, data = cnn(0), cnn(1), labelled(shape=(2, 4, 4))
    reset = [x for x, _ in data]
    found = barrier(a, b, data, points=3, reset=reset)
    middle = ib.batch_norm.reset_batch_norm(ib.interpolate(a, b, 0.5), reset)
    wanted = [plainly(a, data)[0], plainly(middle, data)[0], plainly(b, data)[0]]
    assert found.loss == pytest.approx(wanted)
    assert found.loss[1] != pytest.approx(barrier(a, b, data, points=3).loss[1])


def test_the_result_cannot_be_changed_and_its_curve_is_json():
    found = barrier(mlp(0), mlp(1), labelled(), points=3)
    assert json.loads(json.dumps(found.curve)) == {
        "t": [0.0, 0.5, 1.0],
        "loss": list(found.loss),
        "accuracy": list(found.accuracy),
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.path = "slerp"
    with pytest.raises(TypeError):
        found.metrics["barrier"] = 0.0
    with pytest.raises(UnknownNameError, match="no figure here named 'barier'; try one of: barrier"):
        _ = found["barier"]
    assert repr(found).startswith("Barrier(barrier=") and "3 points of the lerp path" in repr(found)


def test_without_classes_there_is_no_accuracy():
    x, _ = whole(labelled())
    found = barrier(mlp(0), mlp(1), [x], lambda outputs: outputs.square().mean(), points=3)
    assert set(found.metrics) == {"barrier"} and found.accuracy is None and "accuracy" not in found.curve


def test_a_loss_that_is_no_number_is_told():
    a, b = mlp(0), mlp(1)
    with torch.no_grad():
        b[4].bias[0] = math.nan
    found = barrier(a, b, labelled(), points=3)
    assert math.isnan(float(found)) and math.isfinite(found.loss[0]) and math.isnan(found.loss[1])
    assert found["barrier_accuracy"] >= 0


def test_a_point_whose_statistics_are_no_numbers_does_not_end_the_curve():
    a, b, data = cnn(0), cnn(1), labelled(shape=(2, 4, 4))
    with torch.no_grad():
        b[0].bias[0] = math.inf
    assert math.isnan(float(barrier(a, b, data, points=3, reset=data)))


def test_progress_counts_points_and_ends():
    told: list[int] = []
    a, b = mlp(0), mlp(1)
    barrier(a, b, labelled(), points=3, ends=(mlp(2), b), progress=told.append)
    assert told == [1, 2, 3, 4, 5]
