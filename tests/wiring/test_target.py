"""Carrying for a known target: what does not come out in its shapes is an error by name, never a result."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.wiring.known_networks import attention, between, fused_attention, generic, rotary_pairs, rows
from tests.wiring.test_flatten import semi
from torch import Tensor, nn

from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.maps import Blocks, Map
from interbasin.wiring import Alignment, Wiring, carry, wire

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.stem = nn.Linear(7, width)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.stem(x)).mean(1))


@cache
def transformer(width: int, heads: int) -> tuple[nn.Module, Wiring]:
    network = generic(Transformer(width, heads))
    return network, wire(network, rows(5, 7))


def wider(wiring: Wiring, factor: float = 1.5) -> dict[str, Map]:
    """A semi-orthogonal map to half as many units again, for each space that is one axis wide."""
    return {
        name: semi(int(factor * space.width), space.width, seed)
        for seed, (name, space) in enumerate(wiring.spaces.items())
        if space.is_flattened or not (space.is_fixed or space.within or name.endswith(".heads"))
    }


def forms_of(network: nn.Module, wiring: Wiring) -> dict[str, Any]:
    state = network.state_dict()
    return {
        "network": network,
        "wiring": wiring,
        "tensors": dict(state),
        "shapes": {name: tuple(tensor.shape) for name, tensor in state.items()},
        "lists": {name: list(tensor.shape) for name, tensor in state.items()},
    }


FORMS = ("network", "wiring", "tensors", "shapes", "lists")


# ---------------------------------------------------------------------- from 4 heads of width 32 to 6 of width 48


@pytest.mark.parametrize("form", FORMS)
def test_heads_without_a_map_do_not_come_out_in_another_shape_unseen(form: str) -> None:
    (network, wiring), target = transformer(32, 4), forms_of(*transformer(48, 6))[form]
    maps = wider(wiring)
    assert carry(network.state_dict(), wiring, maps)["encoder.layers.0.self_attn.in_proj_weight"].shape == (96, 48)
    with pytest.raises(
        ShapeError,
        match=r"^encoder\.layers\.0\.self_attn\.in_proj_weight does not fit the target: it comes out as \(96, 48\), "
        r"and the target has \(144, 48\); axis 0 holds the blocks of '.*\.heads', without a map; .*flattened\(\)",
    ):
        carry(network.state_dict(), wiring, maps, target=target)


@pytest.mark.parametrize("form", FORMS)
def test_flat_maps_take_4_heads_into_6(form: str) -> None:
    (network, wiring), (wide, wide_wiring) = transformer(32, 4), transformer(48, 6)
    flat = wiring.flattened()
    moved = carry(network.state_dict(), flat, wider(flat), target=forms_of(wide, wide_wiring)[form])
    assert moved.keys() == wide.state_dict().keys()
    assert {name: tensor.shape for name, tensor in moved.items()} == {
        name: tensor.shape for name, tensor in wide.state_dict().items()
    }
    name = "encoder.layers.1.self_attn.out_proj.weight"
    stream, values = (wider(flat)[one].matrix for one in ("stem", "encoder.layers.1.self_attn.in_proj_weight.2"))
    torch.testing.assert_close(moved[name], stream @ network.state_dict()[name] @ values.mT, **CLOSE)


def test_what_was_widened_by_flat_maps_comes_back() -> None:
    network, wiring = transformer(32, 4)
    there = Alignment(wiring.flattened(), wider(wiring.flattened()))
    again = carry(carry(network.state_dict(), there), there.inverse(), target=network)
    for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight"):
        name = f"encoder.layers.0.self_attn.{name}"
        torch.testing.assert_close(again[name], network.state_dict()[name], **CLOSE)


@pytest.mark.parametrize(
    "make",
    [
        attention,
        lambda: attention(shared=2),
        lambda: attention(shared=2, turn=rotary_pairs),
        lambda: fused_attention("thirds"),
        lambda: fused_attention("heads 3 channels"),
    ],
)
def test_every_layout_of_heads_is_carried_to_another_width(make: Any) -> None:
    network = make()
    flat = wire(network, rows(5, 12)).flattened()
    maps = wider(flat)
    grown = {
        name: tuple(
            size * 3 // 2 if any(space in maps for space in axis_spaces(axis)) else size for axis, size in sizes
        )
        for name, tensor in flat.tensors.items()
        for sizes in [list(zip(tensor.axes, tensor.shape, strict=True))]
    }
    assert any(shape != flat.tensors[name].shape for name, shape in grown.items())
    assert {
        name: tuple(one.shape) for name, one in carry(network.state_dict(), flat, maps, target=grown).items()
    } == grown


def axis_spaces(axis: Any) -> set[str]:
    return {axis.space} if hasattr(axis, "space") else set().union(*map(axis_spaces, getattr(axis, "parts", ())))


# ---------------------------------------------------------------------- what does not fit, by name and by cause


@pytest.fixture
def case() -> tuple[nn.Module, Wiring]:
    network = between(torch.relu)
    return network, wire(network, rows(4))


SAME = {"first.weight": (8, 4), "first.bias": (8,), "second.weight": (2, 8), "second.bias": (2,)}
LARGE = {"first.weight": (12, 4), "first.bias": (12,), "second.weight": (2, 12), "second.bias": (2,)}


@pytest.mark.parametrize(
    ("maps", "target", "words"),
    [
        (
            {},
            LARGE,
            r"first\.weight does .* as \(8, 4\), and the target has \(12, 4\); axis 0 lies in 'first', without a",
        ),
        (
            {"first": semi(10, 8)},
            LARGE,
            r"as \(10, 4\), .* has \(12, 4\); axis 0 follows 'first' to width 10; give maps",
        ),
        ({}, {**SAME, "second.bias": (3,)}, r"second\.bias does not fit .*axis 0 lies in 'output', without a map"),
        ({}, {**SAME, "first.bias": (8, 1)}, r"first\.bias does .* as \(8,\), and the target has \(8, 1\); is it the"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_both_shapes_and_the_cause(case, maps, target, words: str) -> None:
    network, wiring = case
    with pytest.raises(ShapeError, match=words):
        carry(network.state_dict(), wiring, maps, target=target)
    assert carry(network.state_dict(), wiring, {"first": semi(12, 8)}, target=LARGE)["first.bias"].shape == (12,)


def test_an_axis_that_lies_in_no_space_and_maps_inside_heads_are_named_as_the_cause() -> None:
    table = generic(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 2)))
    wiring = wire(table, torch.arange(5)[None])
    with pytest.raises(ShapeError, match=r"axis 0 lies in no space, so that no map changes it; leave it out"):
        carry(table.state_dict(), wiring, target={"0.weight": (11, 8)})
    headed = attention()
    wiring = wire(headed, rows(5, 12))
    with pytest.raises(ShapeError, match=r"v\.weight .*holds the blocks of 'q\.heads', where each keeps to its map"):
        carry({"v.weight": headed.v.weight}, wiring, {"v": Blocks([semi(6, 4)] * 3)}, target={"v.weight": (24, 12)})


def test_a_tensor_that_the_target_does_not_have_is_named(case) -> None:
    network, wiring = case
    fewer = {name: shape for name, shape in SAME.items() if name != "second.bias"}
    with pytest.raises(UnknownNameError, match=r"no tensor in the target named 'second\.bias'"):
        carry(network.state_dict(), wiring, target=fewer)
    assert carry({"first.bias": torch.zeros(8)}, wiring, target=fewer).keys() == {"first.bias"}


def test_a_wiring_tells_no_shape_of_what_its_call_does_not_use() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double().eval()
    wiring = wire(network, rows(4))
    count = {"1.num_batches_tracked": torch.tensor(3)}
    with pytest.raises(
        WiringError, match=r"1\.num_batches_tracked cannot be checked: .*wiring does not tell its shape"
    ):
        carry(count, wiring, target=wiring)
    assert carry(count, wiring, target=network) == count


def test_a_network_is_checked_against_the_target_too(case) -> None:
    network, wiring = case
    other = carry(network, wiring.sample(), target=between(torch.relu))
    torch.testing.assert_close(other(rows(4)), network(rows(4)))
    with pytest.raises(ShapeError, match=r"^first\.weight does not fit the target"):
        carry(network, wiring.sample(), target=between(torch.relu, hidden=12))


def test_a_tied_tensor_is_checked_under_every_name() -> None:
    network = generic(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)))
    network[1].weight = network[0].weight
    wiring = wire(network, torch.arange(5)[None])
    assert wiring.tied
    assert carry(network.state_dict(), wiring, target=wiring).keys() == {"0.weight", "1.weight"}
    with pytest.raises(ShapeError, match=r"^1\.weight"):
        carry(network.state_dict(), wiring, target={"0.weight": (10, 8), "1.weight": (12, 8)})


@pytest.mark.parametrize("target", [3, "model", [(8, 4)]])
def test_what_is_no_target_is_refused(case, target: object) -> None:
    network, wiring = case
    with pytest.raises(WiringError, match="target is a network, its wiring, or a mapping"):
        carry(network, wiring, target=target)


@pytest.mark.parametrize("value", ["(8, 4)", 8, None, (8.0, 4.0)])
def test_a_value_of_the_target_that_is_no_shape_is_named(case, value: object) -> None:
    network, wiring = case
    with pytest.raises(WiringError, match=r"The target's first\.weight is a "):
        carry(network.state_dict(), wiring, target={**SAME, "first.weight": value})


# ---------------------------------------------------------------------- low-rank updates


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_the_factors_of_a_low_rank_update_are_checked_against_the_weight_they_update(case, prefix: str) -> None:
    _, wiring = case
    maps = {"first": semi(12, 8)}
    update = {
        f"{prefix}first.lora_A.weight": torch.zeros(2, 4),
        f"{prefix}first.lora_B.weight": torch.zeros(8, 2),
        f"{prefix}first.lora_B.bias": torch.zeros(8),
        f"{prefix}second.lora_A.default.weight": torch.zeros(3, 8),
        f"{prefix}second.lora_B.default.weight": torch.zeros(2, 3),
    }
    moved = carry(update, wiring, maps, target=LARGE)
    assert [tuple(tensor.shape) for tensor in moved.values()] == [(2, 4), (12, 2), (12,), (3, 12), (2, 3)]
    with pytest.raises(ShapeError, match=r"first\.lora_B\.weight .*as \(8, 2\), and the target has \(12, 2\); axis 0"):
        carry(update, wiring, target=LARGE)
    with pytest.raises(UnknownNameError, match="no tensor in the target"):
        carry(update, wiring, maps, target={"other.weight": (12, 4)})
    peft = {f"base_model.model.{name.replace('.', '.base_layer.', 1)}": shape for name, shape in LARGE.items()}
    assert carry(update, wiring, maps, target=peft).keys() == update.keys()


def test_factors_of_square_and_transposed_weights_are_checked_along_the_right_axis() -> None:
    class Transposed(nn.Module):
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(inside, outside))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    network = generic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Transposed(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    wiring = wire(network, rows(4))
    maps = {"0": semi(12, 8), "2": semi(9, 8)}
    update = {"2.lora_A.weight": torch.zeros(2, 8), "2.lora_B.weight": torch.zeros(8, 2)}
    moved = carry(update, wiring, maps, target={"2.weight": (12, 9)})
    assert [tuple(tensor.shape) for tensor in moved.values()] == [(2, 12), (9, 2)]
    with pytest.raises(ShapeError, match=r"2\.lora_A\.weight .*as \(2, 12\), and the target has \(2, 9\)"):
        carry(update, wiring, maps, target={"2.weight": (9, 12)})


def test_factors_of_tables_convolutions_and_unused_layers_are_checked_too() -> None:
    network = generic(nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)))
    network.unused = nn.Linear(5, 6).double()
    network.forward = lambda x: network[3](network[2](network[1](network[0](x))))
    wiring = wire(network, rows(3, 5))
    update = {
        "0.lora_A.weight": torch.zeros(2, 3, 3),
        "0.lora_B.weight": torch.zeros(8, 2, 1),
        "unused.lora_A.weight": torch.zeros(2, 5),
    }
    target = {"0.weight": (12, 3, 3), "unused.weight": (6, 5)}
    moved = carry(update, wiring, {"0": semi(12, 8)}, target=target)
    assert [tuple(tensor.shape) for tensor in moved.values()] == [(2, 3, 3), (12, 2, 1), (2, 5)]
    with pytest.raises(ShapeError, match=r"unused\.lora_A\.weight .*the target has \(2, 7\)"):
        carry(update, wiring, {"0": semi(12, 8)}, target={**target, "unused.weight": (6, 7)})
    with pytest.raises(ShapeError, match=r"0\.lora_A\.weight .*the target has \(2, 3, 5\)"):
        carry(update, wiring, {"0": semi(12, 8)}, target={**target, "0.weight": (12, 3, 5)})
