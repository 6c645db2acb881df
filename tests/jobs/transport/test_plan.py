"""The plan of a transport: the same account as the transport's own, from one pass and without a fit."""

from __future__ import annotations

import pytest
import torch
from tests.laws.strategies import generator
from torch import nn

from interbasin import transport
from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.jobs.transport import plan_transport


def network(width: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3)).eval()


@pytest.fixture(scope="module")
def pair():
    source, target = network(8), network(12, 1)
    update = {name: torch.randn_like(tensor) for name, tensor in source.state_dict().items()}
    return source, update, target, torch.randn(160, 6, generator=generator(0))


@pytest.mark.parametrize("method", ["theseus", "regression"])
def test_what_is_planned_is_what_happens(pair, method):
    plan, result = plan_transport(*pair, method=method), transport(*pair, method=method)
    account = [[(row.source, row.target, row.status) for row in each.moved] for each in (plan, result)]
    assert account[0] == account[1]
    assert sum(plan.share(status) for status in ("moved", "kept", "skipped")) == pytest.approx(1)
    seen = {(row.source, row.target): row.full for row in result.spaces}
    assert {(row.source, row.target): row.full for row in plan.spaces} == seen
    assert set(plan.seconds) == {method} and plan.seconds[method] > 0 and plan.memory > 0


def test_auto_lists_the_methods_that_can_be_tried(pair):
    source, update, target, data = pair
    plan = plan_transport(source, update, target, data)
    assert set(plan.seconds) == {"theseus", "regression", "auto"}
    assert "A regression would fit 2 layers of the target." in plan.notes
    same = plan_transport(source, update, network(8, 2), data)
    assert set(same.seconds) == {"theseus", "regression", "direct", "auto"}
    assert {row.status for row in plan_transport(source, update, network(8, 2), data, method="direct").moved} == {
        "kept"
    }


def test_few_inputs_show_few_directions(pair):
    source, update, target, data = pair
    (space,) = plan_transport(source, update, target, data[:4]).spaces
    assert space.seen < space.full == 8 and space.widths == (8, 12)


def test_nothing_is_run_that_cannot_be_done(pair):
    source, update, target, data = pair
    with pytest.raises(UnknownNameError, match="magic"):
        plan_transport(source, update, target, data, method="magic")
    with pytest.raises(ShapeError, match="take theseus or regression"):
        plan_transport(source, update, target, data, method="direct")
    with pytest.raises(DataError, match="more than once"):
        plan_transport(source, update, target, iter([data]))
    with pytest.raises(UnknownNameError, match="sideways"):
        plan_transport(source, update, target, data, unobserved="sideways")  # type: ignore[arg-type]
