"""What alignment does to the network itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from tests.activations.examples import llama, texts
from tests.evaluate.examples import assert_unchanged, labelled, mlp, plainly, state, wiring
from tests.laws.strategies import SEEDS, orthonormal
from tests.profiles import at_most

import interbasin as ib
from interbasin.errors import WiringError
from interbasin.evaluate import self_change
from interbasin.wiring.check import round_off


@given(SEEDS)
@at_most(20)
def test_exact_maps_change_nothing_in_any_precision(seed):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model, data = mlp(dtype=dtype), [(x.to(dtype), y) for x, y in labelled()]
        alignment = wiring(dtype=dtype).sample(seed)
        found = self_change(model, ib.carry(model, alignment), data, alignment=alignment)
        assert abs(found["delta_loss_self"]) < round_off(model) * 10
    assert round_off(mlp()) < 1e-7


def test_a_language_model_carried_through_exact_maps_is_the_same():
    model = llama()
    data = [(batch, batch["input_ids"]) for batch in texts()]
    alignment = ib.wire(model, texts()[0]).sample(0)
    found = self_change(model, ib.carry(model, alignment), data, alignment=alignment)
    assert found["delta_loss_self"] == pytest.approx(0, abs=1e-10) and found["delta_accuracy_self"] == 0


def test_approximate_maps_are_measured():
    model, data = mlp(), labelled()
    alignment = ib.Alignment(wiring(), {"0": ib.maps.Orthogonal(orthonormal(0, 6, 6))})
    aligned = ib.carry(model, alignment)
    before = state(model)
    found = self_change(model, aligned, data, alignment=alignment)
    assert not alignment.is_exact
    assert found["delta_loss_self"] == pytest.approx(plainly(aligned, data)[0] - plainly(model, data)[0])
    assert found["delta_accuracy_self"] == pytest.approx(plainly(aligned, data)[1] - plainly(model, data)[1])
    assert found["delta_loss_self"] != 0
    assert_unchanged(model, before)


def test_an_exact_alignment_that_changed_the_loss_is_an_error():
    model, data = mlp(), labelled()
    alignment = wiring().sample(0)
    with pytest.raises(WiringError, match=r"The alignment is exact, so the loss should stay at .* but it became"):
        self_change(model, mlp(1), data, alignment=alignment)
    broken = ib.carry(model, alignment)
    with torch.no_grad():
        broken[0].weight[0, 0] = math.nan
    with pytest.raises(WiringError, match="but it became nan"):
        self_change(model, broken, data, alignment=alignment)
    assert math.isnan(self_change(broken, broken, data, alignment=alignment)["delta_loss_self"])


def test_without_classes_there_is_no_accuracy():
    data = [x for x, _ in labelled()]
    found = self_change(mlp(0), mlp(1), data, lambda outputs: outputs.square().mean())
    assert set(found.metrics) == {"delta_loss_self"}
