"""Small networks whose groups are known by hand: what wiring finds is what the mathematics says, no less."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.wiring import known_networks as known
from tests.wiring.known_networks import Written, attention, between, fused_attention, normed, rows, tokens
from torch import Tensor, nn

from interbasin.wiring import Wiring, wire

EXACT = 1e-12


def wired(network: nn.Module, inputs: Tensor) -> Wiring:
    """The wiring, which is exact and understands all of the network."""
    wiring = wire(network, inputs)
    assert wiring.check(network, inputs) < EXACT
    assert wiring.coverage == 1
    return wiring


def moving(wiring: Wiring) -> dict[str, str]:
    return {name: space.describe() for name, space in wiring.spaces.items() if not space.is_fixed}


@pytest.mark.parametrize(
    ("function", "group"),
    [
        (torch.relu, "permutation of 8"),
        (F.gelu, "permutation of 8"),
        (torch.abs, "permutation of 8"),
        (lambda x: x + 1, "permutation of 8"),
        (lambda x: x.softmax(-1), "permutation of 8"),
        (lambda x: x**2, "permutation of 8"),
        (torch.tanh, "signed permutation of 8"),
        (torch.sin, "signed permutation of 8"),
        (lambda x: x**3, "signed permutation of 8"),
        (lambda x: x.clamp(-1, 1), "signed permutation of 8"),
        (lambda x: 1 / x, "signed permutation of 8"),
        (lambda x: -2 * x, "invertible of 8"),
        (lambda x: F.normalize(x, dim=-1), "orthogonal of 8"),
        (lambda x: x / x.pow(2).sum(-1, keepdim=True).sqrt(), "orthogonal of 8"),
        (lambda x: x * (x * x).mean(-1, keepdim=True), "orthogonal of 8"),
        (lambda x: x / x.norm(dim=-1, keepdim=True), "orthogonal of 8"),
        (lambda x: x - x.mean(-1, keepdim=True), "permutation of 8"),
    ],
)
def test_what_stands_between_two_layers_says_which_maps_are_left(function: Callable[..., Tensor], group: str) -> None:
    assert moving(wired(between(function), rows(4))) == {"first": group}


@pytest.mark.parametrize(
    ("norm", "group"),
    [
        (nn.RMSNorm(8, elementwise_affine=False), "orthogonal of 8"),
        (nn.RMSNorm(8), "signed permutation of 8"),
        (nn.LayerNorm(8), "permutation of 8"),
        (nn.LayerNorm(8, elementwise_affine=False), "permutation of 8"),
        (nn.BatchNorm1d(8), "signed permutation of 8"),
    ],
)
def test_a_norm_says_which_maps_are_left(norm: nn.Module, group: str) -> None:
    assert moving(wired(normed(norm), rows(4))) == {"first": group}


def test_gains_biases_and_statistics_move_with_the_units_they_belong_to() -> None:
    wiring = wired(normed(nn.BatchNorm1d(8)), rows(4))
    assert wiring.spaces["first"].scales == ("norm.weight[0]", "norm.running_var[0]")
    assert wiring.spaces["first"].writes == ("first.weight[0]", "norm.bias[0]", "norm.running_mean[0]")
    assert wiring.spaces["first"].reads == ("second.weight[1]",)


def test_group_norm_makes_blocks_that_change_places() -> None:
    network = Written(
        lambda self, x: self.b(self.norm(self.a(x))),
        a=nn.Conv1d(3, 6, 1),
        norm=nn.GroupNorm(2, 6),
        b=nn.Conv1d(6, 2, 1),
    )
    assert moving(wired(network, rows(3, 5))) == {"a.groups": "permutation of 2", "a": "2 x permutation of 3"}


# ---------------------------------------------------------------------- convolutions


def convolved(*layers: nn.Module) -> nn.Module:
    return known.generic(nn.Sequential(*layers))


def test_a_depthwise_convolution_keeps_the_channels_that_it_reads() -> None:
    network = convolved(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 2, 1))
    assert moving(wired(network, rows(3, 4, 4))) == {"0": "permutation of 6"}


def test_a_depthwise_convolution_may_write_several_channels_for_each() -> None:
    network = convolved(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 12, 3, groups=4), nn.Conv2d(12, 2, 1))
    assert moving(wired(network, rows(3, 4, 4))) == {"0.groups": "permutation of 4", "1": "4 x invertible of 3"}


def test_a_grouped_convolution_has_its_groups_as_blocks() -> None:
    network = convolved(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(4, 2, 1))
    assert moving(wired(network, rows(3, 4, 4))) == {
        "0.groups": "permutation of 2", "0": "2 x invertible of 3", "1": "2 x invertible of 2"
    }  # fmt: skip


def test_a_linear_layer_reads_channels_by_positions_of_a_flattened_convolution() -> None:
    network = convolved(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
    wiring = wired(network, rows(3, 2, 2))
    assert moving(wiring) == {"0": "permutation of 6"}
    assert "3.weight  output <- (0 4)" in str(wiring)


def test_concatenated_features_keep_their_own_spaces() -> None:
    def dense(self: Written, x: Tensor) -> Tensor:
        first = torch.relu(self.a(x))
        second = torch.relu(self.b(first))
        return self.c(torch.cat([first, second], 1))

    network = Written(dense, a=nn.Conv2d(3, 6, 1), b=nn.Conv2d(6, 4, 1), c=nn.Conv2d(10, 2, 1))
    wiring = wired(network, rows(3, 4, 4))
    assert moving(wiring) == {"a": "permutation of 6", "b": "permutation of 4"}
    assert "c.weight  output 1 1 <- (a + b)" in str(wiring)


# ---------------------------------------------------------------------- gated layers and tied tables


def test_a_gated_layer_has_one_permutation() -> None:
    network = Written(
        lambda self, x: self.down(F.silu(self.gate(x)) * self.up(x)),
        gate=nn.Linear(4, 8), up=nn.Linear(4, 8), down=nn.Linear(8, 2),
    )  # fmt: skip
    assert moving(wired(network, rows(4))) == {"gate": "permutation of 8"}


def test_a_gated_layer_of_one_tensor_has_one_permutation_for_both_halves() -> None:
    network = Written(lambda self, x: self.down(F.glu(self.up(x), -1)), up=nn.Linear(4, 16), down=nn.Linear(8, 2))
    wiring = wired(network, rows(4))
    assert moving(wiring) == {"up.0": "permutation of 8"}
    assert "(up.0 + up.0)" in str(wiring)


def tied(inside: Callable[[Written, Tensor], Tensor]) -> Written:
    return Written(
        lambda self, x: inside(self, self.table(x)) @ self.table.weight.t(),
        table=nn.Embedding(10, 8), layer=nn.Linear(8, 8), norm=nn.LayerNorm(8),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("inside", "group"),
    [
        (lambda self, x: self.layer(x), "invertible of 8"),  # the layer leads from the space to its dual
        (lambda self, x: x + self.layer(x), "orthogonal of 8"),
        (lambda self, x: F.rms_norm(x + self.layer(x), (8,)), "orthogonal of 8"),
        (lambda self, x: self.norm(x), "permutation of 8"),
    ],
)
def test_a_table_that_is_used_at_both_ends_has_one_space(inside: Callable[..., Tensor], group: str) -> None:
    wiring = wired(tied(inside), tokens())
    assert [space for name, space in moving(wiring).items()] == [group]
    assert "input" not in wiring.spaces and "output" not in wiring.spaces  # rows of the table are neither


# ---------------------------------------------------------------------- attention


@pytest.mark.parametrize("spelled", [False, True])
def test_every_head_has_its_own_maps_of_queries_and_keys_and_of_values(spelled: bool) -> None:
    wiring = wired(attention(spelled=spelled), rows(5, 12))
    assert moving(wiring) == {
        "q.heads": "permutation of 3", "q": "3 x invertible of 4", "v": "3 x invertible of 4"
    }  # fmt: skip
    assert "k.weight  (q.heads ~q) <- input" in str(wiring)
    assert "o.weight  output <- (q.heads v)" in str(wiring)


@pytest.mark.parametrize("turn", [known.rotary_halves, known.rotary_pairs])
def test_rotary_positions_leave_a_rotation_and_scale_for_each_head_and_frequency(turn: Callable[..., Tensor]) -> None:
    wiring = wired(attention(turn=turn), rows(5, 12))
    assert moving(wiring) == {
        "q.heads": "permutation of 3", "q": "6 x rotation and scale of 2", "v": "3 x invertible of 4"
    }  # fmt: skip


def test_query_heads_that_share_keys_and_values_move_inside_their_group() -> None:
    wiring = wired(attention(shared=2), rows(5, 12))
    assert moving(wiring) == {
        "q.heads": "permutation of 3",
        "q": "3 x permutation of 2",
        "q.2": "3 x invertible of 4",
        "v": "3 x invertible of 4",
    }
    assert "o.weight  output <- (q.heads q v)" in str(wiring)


def test_norms_of_queries_and_keys_with_shared_gains_leave_one_signed_permutation_for_all_heads() -> None:
    wiring = wired(attention(norm=True), rows(5, 12))
    assert moving(wiring) == {
        "q.heads": "permutation of 3", "q": "signed permutation of 4", "v": "3 x invertible of 4"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "blocks"),
    [("3 heads channels", "qkv.0.heads"), ("heads 3 channels", "qkv.heads"), ("thirds", "qkv.0.heads")],
)
def test_fused_projections_are_taken_apart(layout: str, blocks: str) -> None:
    wiring = wired(fused_attention(layout), rows(5, 12))
    assert moving(wiring) == {
        blocks: "permutation of 3", "qkv.0": "3 x invertible of 4", "qkv.2": "3 x invertible of 4"
    }  # fmt: skip


# ---------------------------------------------------------------------- what does not move says why


def test_inputs_and_outputs_are_fixed_and_called_that() -> None:
    wiring = wired(between(torch.relu), rows(4))
    assert wiring.spaces["input"].is_fixed and wiring.spaces["input"].because.kind == "input"
    assert wiring.spaces["output"].is_fixed and wiring.spaces["output"].because.kind == "output"
    assert str(wiring.spaces["output"].because) == "the network's output lies along it"


def test_an_operator_without_a_rule_fixes_what_it_touches_and_is_named() -> None:
    network = Written(
        lambda self, x: self.c(torch.cummax(self.b(torch.relu(self.a(x))), -1)[0]),
        a=nn.Linear(4, 6), b=nn.Linear(6, 8), c=nn.Linear(8, 2),
    )  # fmt: skip
    wiring = wire(network, rows(4))
    assert moving(wiring) == {"a": "permutation of 6"}
    assert wiring.spaces["b"].because.kind == "unknown"
    assert "aten.cummax" in str(wiring.spaces["b"].because)
    assert dict(wiring.unknown) == {"aten.cummax.default": 1}
    assert wiring.check(network, rows(4)) < EXACT
    assert wiring.coverage < 1


def test_units_that_are_told_apart_by_place_are_fixed() -> None:
    wiring = wire(between(lambda x: x.cumsum(-1)), rows(4))
    assert moving(wiring) == {}
    assert "summed up in order" in str(wiring.spaces["first"].because)
