"""Alignments back, after each other and on whole spaces: with blocks that change places, and with other widths."""

from __future__ import annotations

import pytest
import torch
from tests.activations.examples import by_hand, llama, mlp, numbers, rows_of, texts
from tests.wiring.known_networks import Written, attention, between, fused_attention, rotary_halves, rows
from torch import Tensor, nn

from interbasin.errors import MapError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Blocks, Identity, Linear, Orthogonal, Permutation
from interbasin.wiring import Alignment, carry, wire
from interbasin.wiring.alignment import whole_map

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
NETWORKS = {
    "between": (between(torch.tanh), rows(4)),
    "attention": (attention(), rows(5, 12)),
    "shared heads": (attention(shared=2), rows(5, 12)),
    "thirds": (fused_attention("thirds"), rows(5, 12)),
    "heads 3 channels": (fused_attention("heads 3 channels"), rows(5, 12)),
}


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def semi(target: int, source: int) -> Orthogonal:
    tall = torch.linalg.qr(gaussian(max(target, source), min(target, source))).Q
    return Orthogonal(tall if target >= source else tall.mT)


@pytest.mark.parametrize("name", NETWORKS)
def test_one_after_another_is_their_product(name: str) -> None:
    network, inputs = NETWORKS[name]
    wiring = wire(network, inputs)
    first, second, third = (wiring.sample(seed=seed) for seed in (1, 2, 3))
    twice = carry(carry(network, first), second)
    both = second @ first
    assert both.is_exact
    for key, tensor in carry(network, both).state_dict().items():
        torch.testing.assert_close(tensor, twice.state_dict()[key], **CLOSE)
    for one, other in (
        ((third @ second) @ first, third @ (second @ first)),
        (first.inverse() @ first, Alignment(wiring, {})),
    ):
        expected = carry(network, other).state_dict()
        for key, tensor in carry(network, one).state_dict().items():
            torch.testing.assert_close(tensor, expected[key], **CLOSE)


@pytest.mark.parametrize("name", ["attention", "thirds"])
def test_spaces_that_only_one_of_them_moves_go_through(name: str) -> None:
    network, inputs = NETWORKS[name]
    wiring = wire(network, inputs)
    whole = wiring.sample(seed=1)
    heads = {key: one for key, one in whole.maps.items() if key.endswith(".heads")}
    inside = {key: one for key, one in wiring.sample(seed=2).maps.items() if not key.endswith(".heads")}
    for first, second in ((heads, inside), (inside, heads)):
        a, b = Alignment(wiring, first), Alignment(wiring, second)
        expected = carry(carry(network, a), b).state_dict()
        for key, tensor in carry(network, b @ a).state_dict().items():
            torch.testing.assert_close(tensor, expected[key], **CLOSE)


def test_alignments_that_do_not_meet_are_refused() -> None:
    network, inputs = NETWORKS["between"]
    wiring = wire(network, inputs)
    wider = Alignment(wiring, {"first": semi(11, 8)})
    with pytest.raises(ShapeError, match="'first' is 11 wide behind the first alignment and 8 where the second"):
        wiring.sample() @ wider
    elsewhere = wire(attention(), rows(5, 12))
    with pytest.raises(UnknownNameError, match="space in the first alignment"):
        Alignment(elsewhere, {"v": elsewhere.sample().maps["v"]}) @ wiring.sample()
    both = Alignment(elsewhere, {"v": Identity(12)}) @ elsewhere.sample(spaces=["v"])
    assert both.maps["v"] == elsewhere.sample(spaces=["v"]).maps["v"]
    with pytest.raises(TypeError):
        wiring.sample() @ 3


@pytest.mark.parametrize("target", [11, 8, 5])
def test_the_way_back_from_another_width(target: int) -> None:
    network, inputs = NETWORKS["between"]
    there = Alignment(wire(network, inputs), {"first": semi(target, 8)})
    back = there.inverse()
    assert back.wiring.spaces["first"].width == target
    assert back.wiring.tensors["second.weight"].shape == (2, target)
    tensors = dict(network.state_dict())
    again = carry(carry(tensors, there), back)
    kept = semi(target, 8).matrix.mT @ semi(target, 8).matrix  # the identity where nothing is lost
    torch.testing.assert_close(again["first.weight"], kept @ tensors["first.weight"], **CLOSE)
    torch.testing.assert_close(again["second.weight"], tensors["second.weight"] @ kept, **CLOSE)
    assert torch.equal(back.inverse().maps["first"].matrix, there.maps["first"].matrix)
    assert back.inverse().wiring == there.wiring
    assert (back @ there).maps["first"].source_width == 8


def test_the_channels_of_heads_come_back_from_another_width_and_heads_stay_as_many() -> None:
    network, inputs = NETWORKS["attention"]
    wiring = wire(network, inputs)
    turns = [semi(6, 4) for _ in range(3)]
    order = Permutation([2, 0, 1])
    there = Alignment(wiring, {"v": Blocks(turns), "q.heads": order})
    tensors = dict(network.state_dict())
    moved = carry(tensors, there)
    assert moved["v.weight"].shape == (18, 12)
    again = carry(moved, there.inverse())
    for name, tensor in tensors.items():
        torch.testing.assert_close(again[name], tensor, **CLOSE)
    fewer = Alignment(wiring, {"q.heads": Permutation([0, 1], source_width=3)})
    with pytest.raises(MapError, match="changes the number of its blocks from 3 to 2"):
        fewer.inverse()


@pytest.mark.parametrize("widths", [(6, 6, 5), (5, 6, 7)])
def test_blocks_that_end_in_several_widths_are_refused_before_anything_is_carried(widths: tuple[int, ...]) -> None:
    network, inputs = NETWORKS["attention"]
    with pytest.raises(MapError, match=r"blocks of space 'v' end in widths 5 and 6.* to the same width"):
        Alignment(wire(network, inputs), {"v": Blocks([semi(width, 4) for width in widths])})


def test_pairs_that_rotary_positions_turn_stay_pairs() -> None:
    wiring = wire(attention(turn=rotary_halves), rows(5, 12))
    assert (wiring.spaces["q"].size, wiring.spaces["q"].blocks) == (2, 6)
    with pytest.raises(MapError, match=r"'q' changes its width from 12 to 18.*rotary.*wiring\.flattened"):
        Alignment(wiring, {"q": Blocks([semi(3, 2)] * 6)})
    assert not Alignment(wiring, {"q": Blocks([Linear([[1, 2], [3, 4]])] * 6)}).is_exact


def test_segments_beside_different_spaces_need_one_width() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        first, second = self.fused.weight.chunk(2)
        return self.c(torch.tanh(self.a(x) @ first.t()) + torch.tanh(self.b(x) @ second.t()))

    network = Written(run, a=nn.Linear(4, 6), b=nn.Linear(4, 6), fused=nn.Linear(6, 10, bias=False), c=nn.Linear(5, 2))
    wiring = wire(network, rows(4))
    one = Alignment(wiring, {"a": semi(9, 6)})
    for fails in (one.inverse, lambda: carry(dict(network.state_dict()), one)):
        with pytest.raises(ShapeError, match="maps to the same width"):
            fails()
    both = Alignment(wiring, {"a": semi(9, 6), "b": semi(9, 6)})
    again = carry(carry(dict(network.state_dict()), both), both.inverse())
    torch.testing.assert_close(again["fused.weight"], network.fused.weight.detach(), **CLOSE)


def test_maps_of_ones_own_can_be_checked() -> None:
    network, inputs = NETWORKS["between"]
    wiring = wire(network, inputs)
    exact, beyond = wiring.sample(seed=5), {"first": semi(8, 8)}
    assert wiring.check(network, inputs, alignment=exact) < 1e-12
    assert wiring.check(network, inputs, alignment=beyond) > 1e-2
    assert wiring.check(network, inputs, alignment=Alignment(wiring, {"first": Identity(8)})) == 0.0
    each = wiring.check(network, inputs, alignment=beyond, each=True)
    assert list(each) == ["first"] and each["first"] > 1e-2
    other = wire(attention(), rows(5, 12))
    with pytest.raises(WiringError, match="an alignment of another wiring"):
        wiring.check(network, inputs, alignment=other.sample())


# ---------------------------------------------------------------------- the map of a whole space


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heads_that_change_places_take_their_maps_along(seed: int) -> None:
    model, batch = llama(), texts()[0]
    wiring = wire(model, batch)
    alignment = wiring.sample(seed)
    carried = carry(model, alignment)
    name = "model.layers.0.self_attn.v_proj"
    assert wiring.spaces[name].within
    before, after = (rows_of(by_hand(one, [batch], name)) for one in (model, carried))
    torch.testing.assert_close(whole_map(alignment, name)(before), after)
    only_heads = Alignment(wiring, {n: m for n, m in alignment.maps.items() if n in wiring.spaces[name].within})
    after = rows_of(by_hand(carry(model, only_heads), [batch], name))
    torch.testing.assert_close(whole_map(only_heads, name)(before), after)


def test_a_space_without_blocks_has_its_map_and_one_without_a_map_stays() -> None:
    model = mlp()
    alignment = wire(model, numbers(4, 5)).sample(0)
    assert whole_map(alignment, "0") is alignment.maps["0"]
    assert whole_map(Alignment(alignment.wiring, {}), "0") == Identity(8)
    with pytest.raises(UnknownNameError, match="no space named 'fc'"):
        whole_map(alignment, "fc")
