"""The distance of weights, against one long vector."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.evaluate.examples import cnn, mlp, wiring
from tests.laws.strategies import SEEDS
from torch import nn
from torch.nn.utils import parameters_to_vector

import interbasin as ib
from interbasin.evaluate import distance


@given(SEEDS, st.sampled_from([mlp, cnn]))
def test_it_is_that_of_all_parameters_as_one_vector(seed, make):
    a, b = make(seed % 1000), make(seed % 1000 + 1)
    one, other = parameters_to_vector(a.parameters()), parameters_to_vector(b.parameters())
    found = distance(a, b)
    assert float(found) == found["distance"] == pytest.approx(float((one - other).norm()))
    assert found["relative_distance"] == pytest.approx(float((one - other).norm() / other.norm()))
    assert float(distance(b, a)) == pytest.approx(float(found)) and float(distance(a, a)) == 0
    assert found.tensors["0.bias"] == pytest.approx(float((a[0].bias - b[0].bias).norm()))


@given(SEEDS)
def test_an_exact_alignment_moves_the_network_and_keeps_its_distance_to_itself_carried(seed):
    model = mlp()
    alignment = wiring().sample(seed)
    carried = ib.carry(model, alignment)
    assert float(distance(ib.carry(carried, alignment.inverse()), model)) == pytest.approx(0, abs=1e-12)


def test_buffers_do_not_count_and_tied_tensors_count_once():
    a, b = cnn(0), cnn(0)
    b[1].running_mean += 5
    assert float(distance(a, b)) == 0
    one, other = (nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)) for _ in range(2))
    for tied in (one, other):
        tied[1].weight = tied[0].weight
    wanted = torch.linalg.vector_norm(one[0].weight.detach() - other[0].weight.detach())
    assert float(distance(one, other)) == pytest.approx(float(wanted))


def test_mappings_and_halves_will_do():
    a, b = mlp(0).to(torch.bfloat16), mlp(1).to(torch.bfloat16)
    found = float(distance(dict(a.named_parameters()), b.state_dict()))
    assert found == pytest.approx(float(distance(a, b)))
    zeros = {"w": torch.zeros(3)}
    assert set(distance(zeros, zeros).metrics) == {"distance"}
