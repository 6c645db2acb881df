"""The laws of updates, for networks of every kind of layer and of any sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, gaussian
from torch import nn

from interbasin import carry, wire
from interbasin.checkpoints.lora import Factors
from interbasin.jobs.transport import prepare_transport
from interbasin.jobs.transport.updates.fine_tunes import MERGES, read_fine_tune
from interbasin.jobs.transport.updates.update import Update

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SIZES = st.integers(1, 5)


def pair_of(seed: int, width: int, hidden: int, tied: bool) -> tuple[nn.Module, nn.Module]:
    """A network with a table, linear layers, a convolution and a norm; and a fine-tune of it."""
    parts = {
        "table": nn.Embedding(hidden, width),
        "up": nn.Linear(width, hidden),
        "conv": nn.Conv2d(hidden, width, (2, 1)),
        "norm": nn.BatchNorm1d(width),
        "head": nn.Linear(width, hidden, bias=False),
    }
    base = nn.ModuleDict(parts).double()
    if tied:
        base["head"].weight = base["table"].weight
    tuned = copy.deepcopy(base)
    for place, network in enumerate((base, tuned)):
        with torch.no_grad():
            for number, tensor in enumerate(network.parameters()):
                tensor.copy_(gaussian(seed + 97 * place + number, *tensor.shape))
    return base, tuned


NETWORKS = st.builds(pair_of, SEEDS, SIZES, SIZES, st.booleans())


@given(pair=NETWORKS)
def test_the_update_of_a_fine_tune_makes_the_base_into_it(pair):
    base, tuned = pair
    before = copy.deepcopy(base.state_dict())
    update = Update.of(tuned, base)
    total = update.added_to(base).state_dict()
    for name, tensor in tuned.state_dict().items():
        torch.testing.assert_close(total[name], tensor, msg=name, **CLOSE)
        assert torch.equal(before[name], base.state_dict()[name])
    back = update.scaled(-1).added_to(update.added_to(base)).state_dict()
    for name, tensor in base.state_dict().items():
        torch.testing.assert_close(back[name], tensor, msg=name, **CLOSE)
    assert Update.of(base, base).does_nothing


@given(pair=NETWORKS, rank=st.integers(1, 6))
def test_a_truncation_loses_what_it_says_and_nothing_at_full_rank(pair, rank):
    base, tuned = pair
    update = Update.of(tuned, base)
    cut, lost = update.truncated(rank)
    assert set(cut) == set(update) and set(lost) == set(cut.factors) and (cut.rank or 0) <= rank
    assert cut.norm() <= update.norm() * (1 + 1e-9)
    for name, share in lost.items():
        whole = update.tensor(name)
        assert float((whole - cut.tensor(name)).norm()) == pytest.approx(share * float(whole.norm()), abs=1e-9)
    full, none = update.truncated(99)
    assert max(none.values(), default=0) < 1e-9
    for name in update:
        torch.testing.assert_close(full.tensor(name), update.tensor(name), msg=name, **CLOSE)
    again, _ = full.truncated(rank)
    for name in again.factors:  # the best of its rank, from factors as from the whole; unless two are equally good
        left = [float((update.tensor(name) - one.tensor(name)).norm()) for one in (again, cut)]
        assert left[0] == pytest.approx(left[1], abs=1e-9)


@given(seed=SEEDS, rows=SIZES, columns=SIZES, rank=st.integers(1, 7), turned=st.booleans())
def test_the_norm_of_factors_is_that_of_their_product(seed, rows, columns, rank, turned):
    pair = Factors(gaussian(seed, rank, columns), gaussian(seed + 1, rows, rank))
    update = Update({"bias": gaussian(seed + 2, rows)}, {"w": pair}, frozenset({"w"} if turned else ()))
    assert update.shape("w") == tuple(update.tensor("w").shape) == ((columns, rows) if turned else (rows, columns))
    assert update.norm_of("w") == pytest.approx(float(update.tensor("w").norm()), rel=1e-9, abs=1e-12)
    assert update.norm() == pytest.approx(update.as_dense().norm(), rel=1e-9)


@given(seed=SEEDS, ranks=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_sum_of_updates_is_the_update_of_the_sum(seed, ranks):
    updates = [
        Update({"bias": gaussian(seed + n, 3)}, {"w": Factors(gaussian(seed + n, r, 4), gaussian(seed - n, 3, r))})
        for n, r in enumerate(ranks)
    ]
    weights = gaussian(seed + 9, len(ranks)).tolist()
    total = Update.combined(updates, weights)
    assert total.rank == sum(ranks)
    for name in ("bias", "w"):
        expected = sum(weight * one.tensor(name) for weight, one in zip(weights, updates, strict=True))
        torch.testing.assert_close(total.tensor(name), expected, **CLOSE)


SEVERAL = st.lists(st.floats(-2, 2).map(lambda weight: round(weight, 3)), min_size=1, max_size=4)


def several_of(count: int, seed: int) -> tuple[nn.Module, list[dict[str, torch.Tensor]], nn.Module]:
    """A network, updates of it by name, and the network in other coordinates."""
    sizes = (4, 6, 3)
    net = nn.Sequential(nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:])).double().eval()
    with torch.no_grad():
        for number, tensor in enumerate(net.parameters()):
            tensor.copy_(gaussian(seed + number, *tensor.shape))
    updates = [
        {name: gaussian(seed + 31 * place + len(name), *tensor.shape) for name, tensor in net.state_dict().items()}
        for place in range(1, count + 1)
    ]
    return net, updates, carry(net, wire(net, gaussian(seed, 4, 4)).sample(seed=seed % 1000))


@given(weights=SEVERAL, seed=SEEDS)
def test_a_sum_of_fine_tunes_does_not_depend_on_their_order(weights, seed):
    net, updates, _ = several_of(len(weights), seed)
    forth = read_fine_tune(updates, net, weights=weights)
    back = read_fine_tune(updates[::-1], net, weights=weights[::-1])
    for name in forth:
        torch.testing.assert_close(forth.tensor(name), back.tensor(name), **CLOSE)


@given(seed=SEEDS, weight=st.floats(-2, 2))
def test_one_fine_tune_alone_is_itself_by_every_merge(seed, weight):
    net, (update,), _ = several_of(1, seed)
    for merge in MERGES:
        density = 1.0 if merge == "ties" else None
        alone = read_fine_tune([update], net, merge=merge, weights=[1.0], density=density)
        scaled = read_fine_tune(update, net, weights=[weight])
        for name, tensor in update.items():
            torch.testing.assert_close(alone.tensor(name), tensor, **CLOSE)
            torch.testing.assert_close(scaled.tensor(name), weight * tensor, **CLOSE)


@given(weights=SEVERAL, seed=SEEDS)
def test_what_is_merged_and_carried_is_what_is_carried_and_merged(weights, seed):
    """Theseus is linear in the update."""
    net, updates, other = several_of(len(weights), seed)
    prepared = prepare_transport(net, other, gaussian(seed + 1, 32, 4))
    together = prepared.apply(updates, merge_weights=weights).update
    apart = Update.combined([prepared.apply(update).update for update in updates], weights)
    for name in together:
        torch.testing.assert_close(together.tensor(name), apart.tensor(name), **CLOSE)
