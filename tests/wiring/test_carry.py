"""Carrying: networks, parameters, updates and the factors of low-rank updates, all by one rule."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.wiring.known_networks import (
    Written,
    attention,
    between,
    fused_attention,
    generic,
    normed,
    rows,
    tokens,
)
from torch import Tensor, nn

from interbasin.errors import DataError, InterbasinError, MapError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity, Linear, Orthogonal, Permutation
from interbasin.wiring import Alignment, Wiring, carry, wire

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def gaussian(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def floats(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}


def tied_network() -> Written:
    def run(self: Written, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.down(F.gelu(self.up(x)))
        return F.rms_norm(x, (8,)) @ self.table.weight.t()

    return Written(run, table=nn.Embedding(10, 8), up=nn.Linear(8, 6), down=nn.Linear(6, 8))


CASES = {
    "between": (between(torch.tanh), rows(4)),
    "batch norm": (normed(nn.BatchNorm1d(8)), rows(4)),
    "attention": (attention(), rows(5, 12)),
    "shared heads": (attention(shared=2), rows(5, 12)),
    "thirds": (fused_attention("thirds"), rows(5, 12)),
    "heads 3 channels": (fused_attention("heads 3 channels"), rows(5, 12)),
    "tied": (tied_network(), tokens()),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Wiring]:
    network, inputs = CASES[request.param]
    return network, inputs, wire(network, inputs)


# ---------------------------------------------------------------------- networks


def test_a_carried_network_is_a_new_one_of_the_same_class_that_computes_the_same(case) -> None:
    network, inputs, wiring = case
    before = copy.deepcopy(network.state_dict())
    other = carry(network, wiring.sample(seed=1))
    assert type(other) is type(network) and other is not network
    torch.testing.assert_close(other(inputs), network(inputs), **CLOSE)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])
    moved = [name for name, tensor in other.state_dict().items() if not torch.equal(tensor, before[name])]
    assert moved


def test_carrying_through_no_maps_changes_nothing(case) -> None:
    network, _, wiring = case
    for alignment in (
        Alignment(wiring, {}),
        Alignment(wiring, {n: Identity(s.width) for n, s in wiring.spaces.items()}),
    ):
        for name, tensor in carry(network, alignment).state_dict().items():
            assert torch.equal(tensor, network.state_dict()[name])


def test_a_network_and_its_tensors_are_carried_alike(case) -> None:
    network, _, wiring = case
    alignment = wiring.sample(seed=2)
    network_moved = carry(network, alignment).state_dict()
    for name, tensor in carry(floats(network), alignment).items():
        assert torch.equal(network_moved[name], tensor)


def test_a_whole_state_dict_is_carried_with_its_counts_as_they_are() -> None:
    network, inputs = CASES["batch norm"]
    moved = carry(dict(network.state_dict()), wire(network, inputs).sample())
    assert torch.equal(moved["norm.num_batches_tracked"], network.state_dict()["norm.num_batches_tracked"])


def test_a_wiring_with_maps_beside_it_is_an_alignment(case) -> None:
    network, _, wiring = case
    alignment = wiring.sample(seed=2)
    for name, tensor in carry(network, wiring, alignment.maps).state_dict().items():
        assert torch.equal(tensor, carry(network, alignment).state_dict()[name])


def test_shared_tensors_stay_shared_and_dtype_and_gradients_stay_as_they_are() -> None:
    network = Written(
        lambda self, ids: self.head(torch.relu(self.table(ids))),
        table=nn.Embedding(10, 8),
        head=nn.Linear(8, 10, bias=False),
    )
    network.head.weight = network.table.weight
    network.float()
    network.table.weight.requires_grad_(False)
    wiring = wire(network, tokens())
    other = carry(network, wiring.sample())
    assert wiring.tied == {"head.weight": "table.weight"}
    assert other.head.weight is other.table.weight
    assert other.table.weight.dtype is torch.float32 and not other.table.weight.requires_grad


def test_half_precision_is_carried_in_double_and_rounded_once() -> None:
    network = between(torch.relu)
    wiring = wire(network, rows(4))
    alignment = wiring.sample(seed=4)
    exact = carry({name: tensor.bfloat16().double() for name, tensor in network.state_dict().items()}, alignment)
    for name, tensor in carry({n: t.bfloat16() for n, t in network.state_dict().items()}, alignment).items():
        assert tensor.dtype is torch.bfloat16
        assert torch.equal(tensor, exact[name].bfloat16())


def test_a_state_dict_that_lacks_a_tensor_is_warned_of() -> None:
    network = between(torch.relu)
    wiring = wire(network, rows(4))
    alignment, state = wiring.sample(seed=4), network.state_dict()
    whole = carry(state, alignment)
    last = list(wiring.tensors)[-1]
    most = {name: tensor for name, tensor in state.items() if name != last}
    with pytest.warns(UserWarning, match=rf"lacks {last}, of {len(wiring.tensors)} tensors .* or say partial=True"):
        moved = carry(most, alignment)
    assert moved.keys() == most.keys() and all(torch.equal(tensor, whole[name]) for name, tensor in moved.items())
    # Warnings are errors in these tests: an update of some layers, and the whole of a tied network, give none.
    carry(most, alignment, partial=True)
    carry({last: state[last]}, alignment)
    carry({}, alignment)


def test_one_name_of_tied_tensors_is_enough() -> None:
    network = Written(
        lambda self, ids: self.head(torch.relu(self.table(ids))),
        table=nn.Embedding(10, 8),
        head=nn.Linear(8, 10, bias=False),
    )
    network.head.weight = network.table.weight
    alignment = wire(network, tokens()).sample()
    for name in ("table.weight", "head.weight"):
        carry({key: tensor for key, tensor in network.state_dict().items() if key != name}, alignment)


# ---------------------------------------------------------------------- laws


def test_carrying_is_linear(case) -> None:
    network, _, wiring = case
    alignment = wiring.sample(seed=5)
    one = {name: gaussian(tensor.shape, 1) for name, tensor in floats(network).items()}
    other = {name: gaussian(tensor.shape, 2) for name, tensor in one.items()}
    mixed = carry({name: 2 * one[name] - 3 * other[name] for name in one}, alignment)
    first, second = carry(one, alignment), carry(other, alignment)
    for name, tensor in mixed.items():
        torch.testing.assert_close(tensor, 2 * first[name] - 3 * second[name], **CLOSE)


def test_an_update_moves_as_the_difference_of_what_it_leads_between(case) -> None:
    network, _, wiring = case
    alignment = wiring.sample(seed=5)
    tuned = generic(copy.deepcopy(network), seed=9).state_dict()
    base = floats(network)
    moved = carry({name: tuned[name] - base[name] for name in base}, alignment)
    far, near = carry({name: tuned[name] for name in base}, alignment), carry(base, alignment)
    for name in base:
        torch.testing.assert_close(moved[name], far[name] - near[name], **CLOSE)


@pytest.mark.parametrize("name", ["between", "batch norm", "tied"])
def test_carrying_twice_is_carrying_through_the_composition(name: str) -> None:
    network, inputs = CASES[name]
    wiring = wire(network, inputs)
    assert not any(space.within for space in wiring.spaces.values())
    first, second = wiring.sample(seed=1), wiring.sample(seed=2)
    both = Alignment(wiring, {name: second.maps[name] @ first.maps[name] for name in first.maps})
    twice = carry(carry(network, first), second).state_dict()
    for name, tensor in carry(network, both).state_dict().items():
        torch.testing.assert_close(twice[name], tensor, **CLOSE)


def test_the_way_back_gives_the_network_back(case) -> None:
    network, _, wiring = case
    alignment = wiring.sample(seed=3)
    back = carry(carry(network, alignment), alignment.inverse()).state_dict()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(back[name], tensor, **CLOSE)
    again = alignment.inverse().inverse()
    for name, one in alignment.maps.items():
        torch.testing.assert_close(again.maps[name].matrix, one.matrix, **CLOSE)


# ---------------------------------------------------------------------- low-rank updates


def factors(shape: tuple[int, int], rank: int = 2) -> tuple[Tensor, Tensor]:
    return gaussian((shape[0], rank), 3), gaussian((rank, shape[1]), 4)


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
@pytest.mark.parametrize("form", ["{}.lora_{}.weight", "{}.lora_{}.default.weight"])
def test_the_factors_of_a_low_rank_update_move_as_their_product(case, prefix: str, form: str) -> None:
    network, _, wiring = case
    alignment = wiring.sample(seed=6)
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            b, a = factors(module.weight.shape)
            names = {letter: prefix + form.format(name, letter) for letter in "AB"}
            moved = carry({names["A"]: a, names["B"]: b}, alignment)
            whole = carry({f"{name}.weight": b @ a}, alignment)[f"{name}.weight"]
            torch.testing.assert_close(moved[names["B"]] @ moved[names["A"]], whole, **CLOSE)


def test_the_factors_of_an_update_of_a_table_are_the_other_way_round() -> None:
    network = tied_network()
    alignment = wire(network, tokens()).sample(seed=6)
    a, b = gaussian((2, 10), 1), gaussian((8, 2), 2)
    stem = "base_model.model.table.lora_embedding_"
    moved = carry({f"{stem}A": a, f"{stem}B": b}, alignment)
    whole = carry({"table.weight": (b @ a).mT}, alignment)["table.weight"]
    torch.testing.assert_close((moved[f"{stem}B"] @ moved[f"{stem}A"]).mT, whole, **CLOSE)


def test_the_factors_of_an_update_of_a_convolution_move_as_their_product() -> None:
    network = generic(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)))
    alignment = wire(network, rows(3, 6, 6)).sample(seed=6)
    a, b = gaussian((2, 6, 3, 3), 1), gaussian((4, 2, 1, 1), 2)
    moved = carry({"1.lora_A.weight": a, "1.lora_B.weight": b}, alignment)
    whole = carry({"1.weight": torch.einsum("or,rikl->oikl", b[..., 0, 0], a)}, alignment)["1.weight"]
    product = torch.einsum("or,rikl->oikl", moved["1.lora_B.weight"][..., 0, 0], moved["1.lora_A.weight"])
    torch.testing.assert_close(product, whole, **CLOSE)


class Transposed(nn.Module):
    """A linear layer whose weight is (inputs, outputs), as GPT-2 has it."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inside, outside))
        self.bias = nn.Parameter(torch.zeros(outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


@pytest.mark.parametrize("width", [6, 8])
def test_the_factors_of_an_update_of_a_transposed_layer_move_as_their_product(width: int) -> None:
    network = Written(
        lambda self, x: self.c(torch.tanh(self.b(torch.tanh(self.a(x))))),
        a=Transposed(4, 8), b=Transposed(8, width), c=Transposed(width, 2),
    )  # fmt: skip
    alignment = wire(network, rows(4)).sample(seed=6)
    b, a = factors((width, 8))
    moved = carry({"b.lora_A.weight": a, "b.lora_B.weight": b}, alignment)
    whole = carry({"b.weight": (b @ a).mT}, alignment)["b.weight"]
    torch.testing.assert_close((moved["b.lora_B.weight"] @ moved["b.lora_A.weight"]).mT, whole, **CLOSE)


def test_a_factor_of_a_grouped_layer_cannot_move_alone_and_says_so() -> None:
    network = generic(nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(4, 2, 1)))
    alignment = wire(network, rows(3, 4, 4)).sample()
    with pytest.raises(WiringError, match="Carry the whole update"):
        carry({"1.lora_A.weight": gaussian((2, 3, 3, 3))}, alignment)


def test_a_factor_of_a_layer_whose_halves_read_different_spaces_cannot_move_alone_and_says_so() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        first, second = self.fused.weight.chunk(2)
        return self.c(torch.tanh(self.a(x) @ first.t()) + torch.tanh(self.b(x) @ second.t()))

    network = Written(run, a=nn.Linear(4, 6), b=nn.Linear(4, 6), fused=nn.Linear(6, 10, bias=False), c=nn.Linear(5, 2))
    wiring = wire(network, rows(4))
    assert wiring.check(network, rows(4)) < 1e-12
    assert "fused.weight  (fused.0 + fused.0) <- (a | b)" in str(wiring)
    with pytest.raises(WiringError, match="Carry the whole update"):
        carry({"fused.lora_A.weight": gaussian((2, 6))}, wiring.sample())


# ---------------------------------------------------------------------- errors


@pytest.fixture(scope="module")
def alignment() -> Alignment:
    network, inputs = CASES["between"]
    return wire(network, inputs).sample()


def test_a_tensor_that_the_wiring_does_not_know_is_refused_with_the_nearest_names(alignment: Alignment) -> None:
    with pytest.raises(UnknownNameError, match=r"first\.weight"):
        carry({"frist.weight": torch.zeros(8, 4)}, alignment)
    with pytest.raises(UnknownNameError):
        carry({"third.lora_A.weight": torch.zeros(2, 4)}, alignment)


def test_a_tensor_of_another_shape_is_refused(alignment: Alignment) -> None:
    with pytest.raises(ShapeError, match=r"first\.weight has shape \(8, 5\), but the wiring was made with \(8, 4\)"):
        carry({"first.weight": torch.zeros(8, 5)}, alignment)
    with pytest.raises(ShapeError, match="4 wide there"):
        carry({"first.lora_A.weight": torch.zeros(2, 5)}, alignment)
    with pytest.raises(ShapeError, match="two are needed"):
        carry({"first.lora_A.weight": torch.zeros(4)}, alignment)


def test_a_network_of_another_shape_or_with_other_names_is_refused(alignment: Alignment) -> None:
    with pytest.raises(ShapeError):
        carry(between(torch.tanh, hidden=9), alignment)
    with pytest.raises(UnknownNameError):
        carry(nn.Linear(4, 8), alignment)


def test_what_is_neither_network_nor_mapping_is_refused(alignment: Alignment) -> None:
    with pytest.raises(WiringError, match="found list"):
        carry([torch.zeros(3)], alignment)
    with pytest.raises(WiringError, match="found dict"):
        carry({}, {"first": Identity(8)})


def test_a_network_keeps_its_shapes_and_a_mapping_need_not(alignment: Alignment) -> None:
    narrow = Alignment(alignment.wiring, {"first": Permutation(torch.arange(5), source_width=8)})
    with pytest.raises(ShapeError, match="a network keeps its shapes"):
        carry(CASES["between"][0], narrow)
    moved = carry({"first.weight": gaussian((8, 4)), "second.weight": gaussian((2, 8))}, narrow)
    assert moved["first.weight"].shape == (5, 4) and moved["second.weight"].shape == (2, 5)


def test_tensors_that_the_call_did_not_touch_stay_as_they_are() -> None:
    network = Written(lambda self, x: self.used(x), used=nn.Linear(4, 2), unused=nn.Linear(3, 3))
    wiring = wire(network, rows(4))
    assert wiring.unused == ("unused.weight", "unused.bias")
    tensor = gaussian((3, 3))
    assert torch.equal(carry({"unused.weight": tensor}, wiring.sample())["unused.weight"], tensor)


def test_a_space_with_a_map_for_each_head_refuses_one_map_for_all() -> None:
    network, inputs = CASES["attention"]
    wiring = wire(network, inputs)
    dense = Linear(wiring.sample(seed=2, spaces=["v"]).maps["v"].matrix)
    with pytest.raises(MapError, match="one map for each of its 3 blocks of"):
        carry(network, wiring, {"v": dense})


def test_every_error_of_carrying_is_one_of_ours(alignment: Alignment) -> None:
    for subject in ({"first.weight": torch.zeros(1)}, {"x": torch.zeros(1)}, nn.ReLU(), 3):
        with pytest.raises(InterbasinError):
            carry(subject, alignment)


# ---------------------------------------------------------------------- networks that are not the one that was wired


def head_and_table(tied: bool) -> Written:
    network = Written(
        lambda self, ids: self.head(torch.relu(self.table(ids))),
        table=nn.Embedding(10, 8),
        head=nn.Linear(8, 10, bias=False),
    )
    if tied:
        network.head.weight = network.table.weight
    return network


@pytest.mark.parametrize(
    ("wired", "given", "words"),
    [
        (False, True, "are one tensor in this network, but two in the one that was wired"),
        (True, False, "are two tensors in this network, but one in the one that was wired"),
    ],
)
def test_a_network_whose_ties_are_not_those_of_the_wiring_is_refused(wired: bool, given: bool, words: str) -> None:
    wiring = wire(head_and_table(wired), tokens())
    with pytest.raises(WiringError, match=words):
        carry(head_and_table(given), wiring.sample())


def test_a_tensor_that_shares_the_memory_of_another_counts_as_tied() -> None:
    wiring = wire(head_and_table(tied=False), tokens())
    other = head_and_table(tied=False)
    other.head.weight = nn.Parameter(other.table.weight.detach())
    with pytest.raises(WiringError, match="are one tensor"):
        carry(other, wiring.sample())
    own = wire(other, tokens())
    assert own.tied == {"head.weight": "table.weight"}
    torch.testing.assert_close(carry(other, own.sample())(tokens()), other(tokens()), **CLOSE)


def test_a_network_with_a_tensor_that_the_wiring_does_not_know_is_refused(alignment: Alignment) -> None:
    network = between(torch.tanh)
    network.third = nn.Linear(3, 3)
    with pytest.raises(UnknownNameError, match=r"third\.weight"):
        carry(network, alignment)


class Merging(nn.Module):
    """A linear layer with a low-rank update that evaluation merges into the weight, and training takes out again."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside, dtype=torch.float64))
        self.a = nn.Parameter(torch.randn(2, inside, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(outside, 2, dtype=torch.float64))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            with torch.no_grad():
                self.weight += (-1 if self.merged else 1) * self.b @ self.a
            self.merged = not self.merged
        return self

    def forward(self, x: Tensor) -> Tensor:
        whole = x @ self.weight.t()
        return whole if self.merged else whole + (x @ self.a.t()) @ self.b.t()


def test_a_network_that_rewrites_its_weights_in_training_mode_is_carried_as_it_then_is() -> None:
    network = nn.Sequential(Merging(4, 8), nn.Tanh(), Merging(8, 3)).eval()
    unmerged = copy.deepcopy(network)
    unmerged.train()
    for module in unmerged.modules():
        module.training = False
    alignment = wire(unmerged, rows(4)).sample(seed=1)
    assert not any(name in alignment.wiring.unused for name in ("0.a", "0.b"))
    other = carry(network, alignment)
    assert network[0].merged and not other.training
    torch.testing.assert_close(other(rows(4)), network(rows(4)), **CLOSE)
    torch.testing.assert_close(other.eval()(rows(4)), network(rows(4)), **CLOSE)


def test_a_network_that_cannot_go_to_training_mode_says_so(alignment: Alignment) -> None:
    class Frozen(nn.Module):
        def train(self, mode: bool = True) -> Frozen:
            if mode:
                raise RuntimeError("frozen for good")
            return self

    network = between(torch.tanh)
    network.extra = Frozen()
    with pytest.raises(WiringError, match=r"training mode and back .frozen for good."):
        carry(network, alignment)


# ---------------------------------------------------------------------- maps and values that are refused


def turned(width: int, seed: int = 0) -> Orthogonal:
    return Orthogonal(torch.linalg.qr(gaussian((width, width), seed)).Q)


def test_maps_beside_an_alignment_are_refused_and_so_is_what_is_no_mapping(alignment: Alignment) -> None:
    with pytest.raises(WiringError, match="an alignment, which has its maps, and maps beside it"):
        carry(CASES["between"][0], alignment, {"first": Identity(8)})
    with pytest.raises(WiringError, match=r"maps must be a dict .*, got list"):
        carry(CASES["between"][0], alignment.wiring, [1])


@pytest.mark.parametrize("space", ["input", "output"])
def test_a_network_keeps_its_inputs_and_outputs_and_its_tensors_need_not(alignment: Alignment, space: str) -> None:
    network, wiring = CASES["between"][0], alignment.wiring
    maps = {space: turned(wiring.spaces[space].width)}
    with pytest.raises(WiringError, match=f"Space '{space}' is fixed .*network's {space}.*leave its map out"):
        carry(network, wiring, maps)
    moved = carry(floats(network), wiring, maps)
    tensor = {"input": "first.weight", "output": "second.weight"}[space]
    assert not torch.equal(moved[tensor], network.state_dict()[tensor])


def test_maps_beyond_the_group_of_a_space_are_allowed(alignment: Alignment) -> None:
    network = CASES["between"][0]
    other = carry(network, alignment.wiring, {"first": turned(8)})
    assert not torch.allclose(other(rows(4)), network(rows(4)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_whole_numbers_are_moved_and_never_mixed(alignment: Alignment, dtype: torch.dtype) -> None:
    tensor = torch.arange(32).reshape(8, 4).to(dtype)
    order = Permutation(torch.arange(7, -1, -1))
    assert torch.equal(
        carry({"first.weight": tensor}, alignment.wiring, {"first": order})["first.weight"], tensor.flip(0)
    )
    with pytest.raises(DataError, match="would be rounded"):
        carry({"first.weight": tensor}, alignment.wiring, {"first": turned(8)})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, r"first\.weight is a NoneType; leave it out"),
        (torch.zeros(8, 4).numpy(), r"first\.weight is a ndarray; give torch\.from_numpy"),
        (torch.zeros(8, 4, device="meta"), "no numbers .device meta."),
        (torch.eye(8)[:, :4].to_sparse(), r"quantised or sparse .*to_dense"),
        (torch.zeros(8, 4).to(torch.float8_e4m3fn), "for storage and not to calculate with"),
    ],
)
def test_values_that_cannot_be_mixed_are_refused_by_name(alignment: Alignment, value: object, words: str) -> None:
    for one in (alignment, Alignment(alignment.wiring, {"first": turned(8)})):
        with pytest.raises(DataError, match=words):
            carry({"first.weight": value}, one)


def test_keys_that_are_no_names_are_refused(alignment: Alignment) -> None:
    with pytest.raises(DataError, match="found the key 3"):
        carry({3: torch.zeros(8, 4)}, alignment)


def test_of_many_names_only_the_nearest_are_told() -> None:
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(20)))
    with pytest.raises(UnknownNameError, match=r"try one of: 7\.weight, .* \(and 35 more\)") as refused:
        carry({"7.weigth": torch.zeros(3, 3)}, wire(network.double(), rows(3)).sample())
    assert str(refused.value).count(".weight") <= 5
