"""The laws of transport: what is carried to a network of the same function does there what it did before."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.rebasin.networks_to_match import mlp
from tests.laws.strategies import SEEDS, gaussian
from tests.laws.transported import CASES, LABELS, WIDER, Pair, distance, low_rank, pair_of, tuned_by, wider
from tests.profiles import at_most
from torch import nn

import interbasin as ib
from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.methods import regression, theseus
from interbasin.jobs.transport.regression.layers import find_layers
from interbasin.jobs.transport.regression.sequence import Recipe, regress
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")
LATER = {
    ("bert", False),
    ("clip", False),
    ("post-norm encoder", False),
    ("vit", False),
    ("vit", True),
    ("llama", True),
    ("gpt2", True),
    ("t5", False),
    ("t5", True),
    ("qwen2", True),
    ("qwen2", False),
    ("encoder", True),
    ("encoder, batch second", False),
}  # like others, and slow to trace


def case(name: str, folded: bool) -> Any:
    marks = [pytest.mark.slow] if (name, folded) in LATER else []
    return pytest.param(name, folded, id=f"{name}, folded" if folded else name, marks=marks)


every_case = pytest.mark.parametrize(
    ("name", "folded"),
    [case(name, folded) for name, each in CASES.items() for folded in ([False, True] if each.folds else [False])],
)
every_plain_case = pytest.mark.parametrize(
    ("name", "folded"), [case(name, False) for name in CASES if name not in ("t5", "clip")]
)


SHIFTED = ("encoder", "vit", "bert", "gpt2", "llama")


@cache
def carried(name: str, folded: bool) -> Transported:
    return theseus(pair_of(name, folded).task, "spaces")


def tolerance(name: str, folded: bool) -> float:
    return 1e-9 if folded else CASES[name].tolerance


# ---------------------------------------------------------------------- networks of the same function


@every_case
def test_a_carried_update_does_what_it_did(name: str, folded: bool) -> None:
    pair, fresh = pair_of(name, folded), CASES[name].inputs(99)
    found = carried(name, folded)
    assert distance(pair.tuned, pair.source, fresh) > 0.05
    assert pair.error(found.update, fresh) < tolerance(name, folded)


@every_case
def test_every_tensor_is_accounted_for(name: str, folded: bool) -> None:
    pair, found = pair_of(name, folded), carried(name, folded)
    assert {row.source for row in found.moved} == set(pair.task.update)
    assert math.fsum(row.share for row in found.moved) == pytest.approx(1)
    assert not [row for row in found.moved if row.status == "skipped"]
    assert set(found.update) <= set(pair.target.state_dict())


@every_case
def test_norms_are_kept(name: str, folded: bool) -> None:
    norm = pair_of(name, folded).task.update.norm()
    assert carried(name, folded).update.norm() == pytest.approx(norm, rel=1e-9)


@every_case
def test_a_regression_finds_the_tuned_network(name: str, folded: bool) -> None:
    pair, fresh = pair_of(name, folded), CASES[name].inputs(99)
    assert pair.error(regression(pair.task, "tuned").update, fresh) < tolerance(name, folded)


@pytest.mark.parametrize(
    "name", ["relu mlp", "resnet", *(pytest.param(name, marks=pytest.mark.slow) for name in SHIFTED)]
)
def test_so_does_a_regression_that_aims_at_shifts(name: str) -> None:
    """Of networks that are one in two coordinate systems, A's change is B's."""
    pair, fresh = pair_of(name), CASES[name].inputs(99)
    assert pair.error(regression(pair.task, "shift").update, fresh) < tolerance(name, False)


FITTED = ("relu mlp", "residual mlp", "resnet", "encoder")
FITTED_LATER = ("encoder, batch second", "post-norm encoder", "bert", "vit", "clip")


@pytest.mark.parametrize("name", [*FITTED, *(pytest.param(name, marks=pytest.mark.slow) for name in FITTED_LATER)])
def test_a_regression_finds_what_it_fits_without_being_given_any_of_it(name: str) -> None:
    """Positions, class tokens, and all inside attention too: nothing is carried, and nothing shrunk towards."""
    pair = pair_of(name)
    layers, _ = find_layers(pair.bases, pair.data[0])
    fitted = {tensor for layer in layers for tensor in layer.fitted_tensors}
    changes = {tensor: value for tensor, value in pair.tuned.state_dict().items() if tensor in fitted}
    tuned = copy.deepcopy(pair.source)
    tuned.load_state_dict({**pair.source.state_dict(), **changes})
    data = [CASES[name].inputs(seed) for seed in range(1, 9)]
    found = regress(pair.bases, tuned, data, recipe=Recipe(prior="zero"))
    assert distance(tuned, pair.source, CASES[name].inputs(99)) > 0.05
    # Directions in which inputs vary little are told from others by the smallest ridge, and no better than that.
    assert distance(tuned, found.model, CASES[name].inputs(99)) < 1e-5


@pytest.mark.parametrize(
    "name", ["gelu mlp", "encoder", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit", "gpt2"))]
)
def test_a_regression_from_a_network_to_itself_is_the_tuned_network(name: str) -> None:
    pair = pair_of(name)
    task = replace(pair.task, bases=relate(pair.source, pair.source, pair.data))
    found = regression(task, "tuned").update.added_to(pair.source)
    assert distance(pair.tuned, found, CASES[name].inputs(99)) < 1e-9


@every_plain_case
def test_low_rank_stays_low_rank(name: str, folded: bool) -> None:
    pair, fresh = pair_of(name, folded), CASES[name].inputs(99)
    update = low_rank(pair.source, 2, seed=5)
    carrier = pair.task.carrier()
    found, dense = carrier.carry(update), carrier.carry(update.as_dense()).update
    assert set(found.update.factors) == set(dense)
    assert found.update.rank == 2
    for tensor in dense:
        torch.testing.assert_close(found.update.tensor(tensor), dense.tensor(tensor), rtol=1e-10, atol=1e-10)
    tuned = update.added_to(pair.source)
    assert distance(tuned, pair.source, fresh) > 0.01
    assert distance(tuned, found.update.added_to(pair.target), fresh) < tolerance(name, folded)
    assert {row.source for row in found.moved} == set(update)


@pytest.mark.parametrize(
    "name",
    ["relu mlp", "residual mlp", "resnet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama"))],
)
def test_from_a_network_to_itself_nothing_changes(name: str) -> None:
    pair = pair_of(name)
    task = replace(pair.task, bases=relate(pair.source, pair.source, pair.data))
    for found in task.maps().values():
        matrix = found.map.matrix
        torch.testing.assert_close(matrix, torch.eye(len(matrix), dtype=matrix.dtype), rtol=0, atol=1e-9)
    update = theseus(task, "spaces").update
    for tensor in task.update:
        torch.testing.assert_close(update.tensor(tensor), task.update.tensor(tensor), rtol=1e-9, atol=1e-9)


@at_most(6)
@given(seed=SEEDS, widths=st.lists(st.integers(1, 12), min_size=1, max_size=3), gelu=st.booleans())
def test_any_mlp(seed: int, widths: list[int], gelu: bool) -> None:
    network = mlp(6, *widths, 4, activation=nn.GELU if gelu else nn.ReLU).double().eval()
    with torch.no_grad():
        for place, parameter in enumerate(network.parameters()):
            parameter.copy_(gaussian(seed + place, *parameter.shape))
    data = [gaussian(seed + 20, 200, 6)]
    target = ib.carry(network, ib.wire(network, data[0]).sample(seed, isometric=True))
    pair = Pair(network, target, tuned_by(network, seed), data)
    assert pair.error(theseus(pair.task, "spaces").update, data[0]) < 1e-9


# ---------------------------------------------------------------------- wider networks of the same function


@pytest.mark.parametrize("name", [*WIDER[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in WIDER[2:])])
def test_a_wider_network_gets_the_same_update(name: str) -> None:
    source, target, data = wider(name)
    assert distance(source, target, data[0]) < 1e-12
    pair = Pair(source, target, tuned_by(source, 9), data)
    found = theseus(pair.task, "spaces")
    assert pair.error(found.update, data[1]) < 1e-9
    assert found.update.norm() == pytest.approx(pair.task.update.norm(), rel=1e-9)
    assert math.fsum(row.share for row in found.moved) == pytest.approx(1)


# ---------------------------------------------------------------------- networks that have little to do with another


def unrelated(rows: int, hidden: int) -> Task:
    source, target = mlp(10, 16, 16, LABELS).double().eval(), mlp(10, hidden, hidden, LABELS).double().eval()
    with torch.no_grad():
        for place, parameter in enumerate([*source.parameters(), *target.parameters()]):
            parameter.copy_(gaussian(place, *parameter.shape))
    tuned, data = tuned_by(source, 3), [gaussian(1, rows, 10)]
    return Task(relate(source, target, data), Update.of(tuned, source), tuned, data)


@pytest.mark.parametrize("rows", [4, 200])
@pytest.mark.parametrize("hidden", [16, 24])
def test_completed_maps_keep_norms_however_little_was_seen(rows: int, hidden: int) -> None:
    task = unrelated(rows, hidden)
    assert theseus(task, "spaces").update.norm() == pytest.approx(task.update.norm(), rel=1e-9)


def test_onto_a_narrower_network_norms_do_not_grow() -> None:
    task = unrelated(200, 12)
    assert theseus(task, "spaces").update.norm() < task.update.norm()


def test_directions_that_were_never_seen_are_said_and_can_be_dropped() -> None:
    task = unrelated(4, 24)
    found = task.carrier().carry(task.update)
    dropping = replace(task, options=Options(unobserved="drop"))
    dropped = theseus(dropping, "spaces").update
    assert 0.2 < found.unobserved_share < 1
    assert dropped.norm() ** 2 == pytest.approx((1 - found.unobserved_share) * task.update.norm() ** 2, rel=1e-6)
    enough = unrelated(200, 24)
    assert enough.carrier().carry(enough.update).unobserved_share == 0
