"""There and back again."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from tests.activations.examples import llama, texts
from tests.evaluate.examples import labelled, mlp, plainly, wiring
from tests.laws.strategies import SEEDS, orthonormal
from tests.profiles import at_most

import interbasin as ib
from interbasin.evaluate import cycle, cycle_errors, distance


def moved(seed):
    """Aligning that pays no heed to the target."""

    def align(source, target):
        alignment = wiring().sample(seed)
        return SimpleNamespace(model=ib.carry(source, alignment), alignment=alignment)

    return align


def there_and_back(seed, home):
    """Aligning that undoes, on the way to ``home``, what it does on the way from it."""
    alignment = wiring().sample(seed)

    def align(source, target):
        one = alignment.inverse() if target is home else alignment
        return SimpleNamespace(model=ib.carry(source, one), alignment=one)

    return align


@given(SEEDS)
@at_most(15)
def test_what_comes_back_as_it_went_has_no_error(seed):
    a, b = mlp(0), mlp(1)
    found = cycle(a, b, there_and_back(seed, a), labelled())
    assert set(found.metrics) == {
        "cycle_loss",
        "cycle_accuracy",
        "cycle_frne",
        *(f"cycle_error{kind}.{space}" for kind in ("", "_relative") for space in ("0", "2")),
    }
    assert all(abs(value) < 1e-9 for value in found.metrics.values())


def test_what_comes_back_changed_is_measured():
    a, b, data = mlp(0), mlp(1), labelled()

    def turn(source, target):
        alignment = ib.Alignment(wiring(), {"0": ib.maps.Orthogonal(orthonormal(1, 6, 6))})
        return SimpleNamespace(model=ib.carry(source, alignment), alignment=alignment)

    found = cycle(a, b, turn, data)
    returned = turn(turn(a, b).model, a).model
    assert found["cycle_loss"] == pytest.approx(plainly(returned, data)[0] - plainly(a, data)[0])
    assert found["cycle_accuracy"] == pytest.approx(plainly(returned, data)[1] - plainly(a, data)[1])
    assert found["cycle_frne"] == pytest.approx(distance(returned, a)["relative_distance"])
    turned = orthonormal(1, 6, 6)
    wanted = float((turned @ turned - torch.eye(6)).norm())
    assert found["cycle_error.0"] == pytest.approx(wanted)
    assert found["cycle_error_relative.0"] == pytest.approx(wanted / math.sqrt(6))


@given(SEEDS)
@at_most(15)
def test_errors_of_spaces_are_those_of_the_matrices(seed):
    one, other = wiring().sample(seed), wiring().sample(seed + 1)
    found = cycle_errors(one, other)
    for name in one.maps:
        product = other.maps[name].matrix.double() @ one.maps[name].matrix.double()
        assert found[f"cycle_error.{name}"] == pytest.approx(float((product - torch.eye(len(product))).norm()))
    assert all(value == 0 for value in cycle_errors(one, one.inverse()).metrics.values())


@pytest.mark.parametrize("seed", [0, 1])
def test_heads_that_change_places_and_come_back_leave_no_error(seed):
    wired = ib.wire(llama(), texts()[0])
    alignment = wired.sample(seed)
    assert any(wired.spaces[name].within for name in alignment.maps)
    found = cycle_errors(alignment, alignment.inverse())
    assert max(found.metrics.values()) < 1e-12
    assert max(cycle_errors(alignment, alignment).metrics.values()) > 0.1


def test_a_space_that_only_one_way_moves_counts():
    one = wiring().sample(0)
    found = cycle_errors(one, ib.Alignment(wiring(), {}))
    assert found["cycle_error.0"] == pytest.approx(float((one.maps["0"].matrix - torch.eye(6)).norm()))


def test_a_meaning_can_be_chosen_and_without_data_there_is_no_loss():
    a, b = mlp(0), mlp(1)
    assert set(cycle(a, b, moved(0), kinds=["return"]).metrics) == {"cycle_frne"}
    calls = []

    def align(source, target):
        calls.append((source, target))
        return moved(0)(source, target)

    found = cycle(a, b, align, kinds=("compose",))
    assert {name.split(".")[0] for name in found.metrics} == {"cycle_error", "cycle_error_relative"}
    assert [(x is a, y is b) for x, y in calls] == [(True, True), (False, False)] and calls[1] == (b, a)
