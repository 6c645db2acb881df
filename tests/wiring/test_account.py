"""The account of carrying: every tensor is moved, kept or skipped, with a reason and its share of the norm."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.wiring.known_networks import attention, between, generic, normed, rows
from tests.wiring.test_flatten import semi
from tests.wiring.test_target import LARGE, transformer, wider
from torch import Tensor, nn

from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity
from interbasin.wiring import Alignment, TensorAccount, Wiring, carry, carry_with_account, wire
from interbasin.wiring.account import quote_names


def gaussian(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def statuses(account: tuple[TensorAccount, ...]) -> dict[str, str]:
    return {entry.name: entry.status for entry in account}


def reasons(account: tuple[TensorAccount, ...]) -> dict[str, str]:
    return {entry.name: entry.reason for entry in account}


# ---------------------------------------------------------------------- laws


@given(st.integers(0, 2**31), st.sets(st.integers(0, 10)), st.sets(st.integers(0, 27)), st.booleans())
def test_every_tensor_is_accounted_for_and_the_shares_add_up(
    seed: int, mapped: set[int], absent: set[int], flat: bool
) -> None:
    network, wiring = transformer(32, 4)
    wiring = wiring.flattened() if flat else wiring
    maps = {name: one for place, (name, one) in enumerate(wider(wiring).items()) if place in mapped}
    update = {name: gaussian(tuple(tensor.shape), seed) for name, tensor in network.state_dict().items()}
    large = transformer(48, 6)[0].state_dict()
    target = {name: tensor for place, (name, tensor) in enumerate(large.items()) if place not in absent}
    result = carry_with_account(update, wiring, maps, target=target, skip_misfits=True)
    assert [entry.name for entry in result.account] == list(update)
    assert result.tensors.keys() == {entry.name for entry in result.account if entry.status != "skipped"}
    assert math.isclose(sum(entry.share for entry in result.account), 1.0)
    assert math.isclose(sum(result.share(status) for status in ("moved", "kept", "skipped")), 1.0)
    total = sum(float(tensor.square().sum()) for tensor in update.values())
    everything = carry(update, wiring, maps)
    for entry in result.account:
        assert entry.reason
        assert math.isclose(entry.share, float(update[entry.name].square().sum()) / total)
        moved = everything[entry.name]
        fits = entry.name in target and target[entry.name].shape == moved.shape
        assert (entry.status == "skipped") is not fits
        if fits:
            assert torch.equal(result.tensors[entry.name], moved)
            assert (entry.status == "kept") is torch.equal(moved, update[entry.name])
    json.dumps([asdict(entry) for entry in result.account], allow_nan=False)


def test_what_is_skipped_is_what_carry_refuses() -> None:
    network, wiring = transformer(32, 4)
    target = transformer(48, 6)[0]
    state = network.state_dict()
    result = carry_with_account(state, wiring, wider(wiring), target=target, skip_misfits=True)
    skipped = [entry for entry in result.account if entry.status == "skipped"]
    assert len(skipped) == 6 and all("self_attn" in entry.name for entry in skipped)
    for entry in skipped:
        with pytest.raises(ShapeError) as refused:
            carry({entry.name: state[entry.name]}, wiring, wider(wiring), target=target)
        assert entry.name in str(refused.value) and entry.reason in str(refused.value)
    with pytest.raises(ShapeError, match="in_proj_weight"):
        carry_with_account(state, wiring, wider(wiring), target=target)


# ---------------------------------------------------------------------- reasons


@pytest.fixture(scope="module")
def wiring() -> Wiring:
    return wire(between(torch.relu), rows(4))


def test_reasons_name_the_maps_and_what_has_none(wiring: Wiring) -> None:
    update = {name: torch.ones(tensor.shape) for name, tensor in wiring.tensors.items()}
    assert reasons(carry_with_account(update, wiring, {"first": semi(8, 8)}).account) == {
        "first.weight": "through the map of 'first'",
        "first.bias": "through the map of 'first'",
        "second.weight": "through the map of 'first'",
        "second.bias": "no map of 'output'",
    }
    assert reasons(carry_with_account(update, wiring, {"input": semi(4, 4)}).account) == {
        "first.weight": "through the map of 'input'; no map of 'first'",
        "first.bias": "no map of 'first'",
        "second.weight": "no map of 'output' and 'first'",
        "second.bias": "no map of 'output'",
    }


def test_identity_and_no_map_are_the_same(wiring: Wiring) -> None:
    update = {name: torch.ones(tensor.shape) for name, tensor in wiring.tensors.items()}
    for maps in ({}, {"first": Identity(8)}):
        result = carry_with_account(update, Alignment(wiring, maps))
        assert set(statuses(result.account).values()) == {"kept"} and result.share("kept") == 1.0


def test_constants_and_what_the_call_does_not_use_are_kept_and_whole_numbers_count_nothing() -> None:
    network = normed(nn.BatchNorm1d(8))
    network.spare = nn.Linear(3, 3).double()
    table = generic(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 2)))
    wiring = wire(network, rows(4))
    state = {**network.state_dict(), "norm.num_batches_tracked": torch.tensor(10**6)}
    account = carry_with_account(state, wiring.sample()).account
    assert reasons(account)["norm.num_batches_tracked"] == "it is a constant"
    assert reasons(account)["spare.weight"] == "the traced call does not use it"
    assert {entry.share for entry in account if entry.name == "norm.num_batches_tracked"} == {0.0}
    assert math.isclose(sum(entry.share for entry in account), 1.0)
    positions = wire(table, torch.arange(5)[None])
    assert reasons(carry_with_account(table.state_dict(), positions).account)["0.weight"] == "no map of '0'"


def test_what_the_target_lacks_is_skipped_with_the_reason(wiring: Wiring) -> None:
    update = {name: torch.ones(tensor.shape) for name, tensor in wiring.tensors.items()}
    target = {name: shape for name, shape in LARGE.items() if name != "second.bias"}
    result = carry_with_account(update, wiring, target=target, skip_misfits=True)
    assert set(statuses(result.account).values()) == {"skipped"} and not result.tensors
    assert reasons(result.account)["second.bias"] == "the target has no tensor of this name"
    assert reasons(result.account)["first.bias"] == (
        "it comes out as (8,), and the target has (12,); axis 0 lies in 'first', without a map"
    )
    assert result.share("skipped") == 1.0


def test_of_many_spaces_the_first_are_named() -> None:
    network = attention(shared=2)
    account = carry_with_account(network.state_dict(), wire(network, rows(5, 12)).sample()).account
    assert reasons(account)["q.weight"] == "through the maps of 'q.heads', 'q' and 'q.2'"
    assert quote_names(list("abcdef")) == "'a', 'b', 'c', 'd' and 2 more"


# ---------------------------------------------------------------------- norms


def test_a_tied_tensor_counts_once_under_its_first_name() -> None:
    network = generic(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)))
    network[1].weight = network[0].weight
    wiring = wire(network, torch.arange(5)[None])
    first, second = carry_with_account(network.state_dict(), wiring.sample()).account
    assert (first.share, second.share) == (1.0, 0.0)
    assert second.reason.endswith("; tied to 0.weight, which has its share")
    (alone,) = carry_with_account({"1.weight": network[1].weight}, wiring.sample()).account
    assert alone.share == 1.0 and "tied" not in alone.reason
    kept, trained = (f"base_model.model.1.{kind}.weight" for kind in ("original_module", "modules_to_save.default"))
    copies = carry_with_account({kept: network[1].weight, trained: 3 * network[1].weight}, wiring.sample()).account
    assert [round(entry.share, 9) for entry in copies] == [0.1, 0.9]
    skipped = carry_with_account(network.state_dict(), wiring, target={"1.weight": (10, 8)}, skip_misfits=True)
    assert [(entry.status, entry.share) for entry in skipped.account] == [("skipped", 1.0), ("kept", 0.0)]


@pytest.mark.parametrize("ndim", [2, 4])
def test_the_factors_of_a_low_rank_update_share_the_norm_of_their_product(ndim: int) -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1)) if ndim == 4 else between(torch.relu)
    inputs = rows(4, 3, 3) if ndim == 4 else rows(4)
    layer, other = ("0", "2") if ndim == 4 else ("first", "second")
    wiring = wire(generic(network), inputs)
    a, b = gaussian((2, 4, 3, 3)[:ndim], 1), gaussian((8, 2, 1, 1)[:ndim], 2)
    product = b.flatten(1) @ a.flatten(1)
    bias = gaussian((8,), 3)
    update = {
        f"{layer}.lora_A.weight": a,
        f"{other}.bias": torch.ones(2, dtype=torch.float64),
        f"{layer}.lora_B.weight": b,
        f"{layer}.lora_B.bias": bias,
    }
    shares = [entry.share for entry in carry_with_account(update, wiring.sample()).account]
    norms = [float(product.square().sum()) / 2, 2.0, float(product.square().sum()) / 2, float(bias.square().sum())]
    torch.testing.assert_close(torch.tensor(shares), torch.tensor(norms) / sum(norms))
    (alone,) = carry_with_account({f"{layer}.lora_A.weight": a}, wiring.sample()).account
    assert alone.share == 1.0


def test_an_update_of_zeros_has_no_shares(wiring: Wiring) -> None:
    update = {name: torch.zeros(tensor.shape) for name, tensor in wiring.tensors.items()}
    assert {entry.share for entry in carry_with_account(update, wiring.sample()).account} == {0.0}
    assert carry_with_account({}, wiring.sample()).account == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_norms_are_added_in_double_whatever_the_dtype(wiring: Wiring, dtype: torch.dtype) -> None:
    update = {"first.weight": torch.full((8, 4), 300.0).to(dtype), "second.bias": torch.full((2,), 300.0).to(dtype)}
    first, second = carry_with_account(update, wiring).account
    assert math.isclose(first.share, 32 / 34) and math.isclose(second.share, 2 / 34)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.full((8, 4), math.nan), r"first\.weight holds entries that are NaN, infinite or too large"),
        (torch.zeros(8, 4, device="meta"), "no numbers .device meta."),
        (torch.eye(8)[:, :4].to_sparse(), "quantised or sparse"),
        (3, "is a int; leave it out"),
    ],
)
def test_what_has_no_norm_is_refused_by_name(wiring: Wiring, value: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        carry_with_account({"first.weight": value}, wiring)


def test_a_network_has_no_account_and_its_tensors_have(wiring: Wiring) -> None:
    with pytest.raises(WiringError, match=r"found Written; give model\.state_dict\(\)"):
        carry_with_account(between(torch.relu), wiring)
    with pytest.raises(UnknownNameError, match=r"third\.weight"):
        carry_with_account({"third.weight": torch.zeros(2, 2)}, wiring, target={}, skip_misfits=True)
