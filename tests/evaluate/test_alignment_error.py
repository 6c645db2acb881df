"""The error a space, against stored activations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from tests.activations.examples import by_hand, llama, rows_of, texts
from tests.evaluate.examples import assert_unchanged, labelled, mlp, state, whole, wiring
from tests.laws.strategies import SEEDS, orthonormal, well_conditioned
from tests.profiles import at_most
from torch import nn

import interbasin as ib
from interbasin.evaluate import alignment_error
from interbasin.wiring.alignment import whole_map


def aligned(seed, kind=ib.maps.Orthogonal, matrix=orthonormal):
    return mlp(0), ib.Alignment(wiring(), {"0": kind(matrix(seed, 6, 6)), "2": kind(matrix(seed + 1, 4, 4))})


def assert_error(found, name, alignment, x, y):
    x, y = x.detach(), y.detach()
    mapped = whole_map(alignment, name)(x)
    missed = (mapped - y).square().sum(1).mean()
    assert found[f"alignment_error.{name}"] == pytest.approx(float(missed))
    assert found[f"alignment_error_relative.{name}"] == pytest.approx(float(missed / y.square().sum(1).mean()))
    for what, one in (("cosine_before", x), ("cosine_after", mapped)):
        u, v = one - one.mean(0), y - y.mean(0)
        assert found[f"{what}.{name}"] == pytest.approx(float((u * v).sum() / u.norm() / v.norm()))
    assert found.spaces[name].count == len(x)


@given(SEEDS)
@at_most(15)
def test_it_is_that_of_all_rows_at_once(seed):
    target, data = mlp(1), labelled(seed=seed)
    x, _ = whole(data)
    for kind, matrix in ((ib.maps.Orthogonal, orthonormal), (ib.maps.Linear, well_conditioned)):
        source, alignment = aligned(seed, kind, matrix)
        before = state(source), state(target)
        found = alignment_error(source, target, alignment, data)
        assert_error(found, "0", alignment, source[:2](x), target[:2](x))
        assert_error(found, "2", alignment, source[:4](x), target[:4](x))
        pre = alignment_error(source, target, alignment, data, at="pre", spaces=["2"])
        assert_error(pre, "2", alignment, source[:3](x), target[:3](x))
        assert_unchanged(source, before[0])
        assert_unchanged(target, before[1])


@given(SEEDS)
@at_most(15)
def test_a_network_carried_through_exact_maps_has_none(seed):
    model, data = mlp(0), labelled()
    alignment = wiring().sample(seed)
    found = alignment_error(model, ib.carry(model, alignment), alignment, data)
    assert all(abs(one.relative) < 1e-12 and one.cosine_after > 1 - 1e-9 for one in found.spaces.values())


def test_heads_that_change_places_are_followed():
    model, batches = llama(), texts()
    alignment = ib.wire(model, batches[0]).sample(1)
    found = alignment_error(model, ib.carry(model, alignment), alignment, batches)
    assert len(found.spaces) > 3
    assert all(one.relative < 1e-12 for one in found.spaces.values())
    other = llama(1)
    name = "model.layers.1.self_attn.v_proj"
    found = alignment_error(model, other, alignment, batches, spaces=[name], at="pre")
    counts = torch.cat([batch["attention_mask"].flatten() for batch in batches]).bool()
    rows = [rows_of(by_hand(one, batches, name))[counts] for one in (model, other)]
    assert_error(found, name, alignment, *rows)


def test_widths_may_differ_and_rows_that_do_not_vary_have_no_cosine():
    source, data = mlp(0), labelled()
    target = mlp(1, hidden=9)
    wide = ib.Alignment(wiring(), {"0": ib.maps.Orthogonal(orthonormal(0, 9, 6))})
    found = alignment_error(source, target, wide, data, wiring=wiring(hidden=9))
    assert found.spaces["0"].cosine_before is None and "cosine_before.0" not in found.metrics
    assert found.spaces["0"].cosine_after is not None
    with torch.no_grad():
        for tensor in target[0].parameters():
            tensor.zero_()
    found = alignment_error(source, target, wide, data, wiring=wiring(hidden=9))
    assert set(found.metrics) == {"alignment_error.0"}


def test_networks_in_training_mode_are_measured_in_evaluation_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3)).double()
    alignment = ib.wire(model.eval(), labelled()[0][0]).sample(0)
    carried = ib.carry(model, alignment)
    found = alignment_error(model.train(), carried.train(), alignment, labelled())
    assert found["alignment_error_relative.0"] < 1e-12 and model.training
