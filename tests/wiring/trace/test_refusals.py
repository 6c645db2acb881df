"""Refusals that name a line of the user's code, what is wired although it looks odd, and maps that do not fit.

Misuses of wirings stand in tests/misuses.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from interbasin.errors import MapError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Affine, Blocks, Identity, Orthogonal, Permutation
from interbasin.wiring import Alignment, carry, wire


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def batch() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.sum() > 0:  # the branch that the message names
            return y
        return -y


def test_a_branch_on_values_is_named_with_its_line() -> None:
    with pytest.raises(WiringError, match=r"depends on the values of tensors at test_refusals\.py:\d+ \(if y\.sum"):
        wire(Branching().eval(), batch())


@pytest.mark.parametrize("layer", [nn.Dropout(0.1).eval(), nn.Dropout(0.0)])
def test_dropout_that_drops_nothing_is_wired(layer: nn.Module) -> None:
    assert wire(nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3)), batch()).coverage == 1


def test_a_network_on_the_meta_device_is_wired() -> None:
    with torch.device("meta"):
        network = mlp()
    assert wire(network, batch().to("meta")) == wire(mlp(), batch())


def test_tensors_beside_one_another_in_one_memory_are_wired() -> None:
    network = mlp()
    memory = torch.randn(100)
    network[0].weight = nn.Parameter(memory[:32].view(8, 4))
    network[2].weight = nn.Parameter(memory[40:64].view(3, 8))
    assert wire(network, batch()).coverage == 1


def test_two_parameters_on_one_memory_are_tied() -> None:
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)).eval()
    network[2].weight = nn.Parameter(network[0].weight.data)
    wiring = wire(network, torch.randn(3, 6))
    assert wiring.tied == {"2.weight": "0.weight"}


def test_an_operator_without_a_rule_fixes_what_it_touches_and_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.special.i0(self.first(x)))

    network = Odd().eval()
    wiring = wire(network, batch())
    space = wiring.spaces["first"]
    assert space.is_fixed
    assert space.because is not None
    assert "aten.special_i0" in str(space.because)
    assert wiring.unknown == {"aten.special_i0.default": 1}
    assert wiring.coverage == 0
    assert wiring.check(network, batch()) == 0


def test_a_failed_trace_says_its_sentence_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WiringError):
        wire(Branching().eval(), batch())
    assert capfd.readouterr() == ("", "")


def test_autocast_takes_factors_of_different_dtypes() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert wire(mlp(), batch().double()).coverage == 1


def test_very_long_names_do_not_drown_the_sentence() -> None:
    network = nn.Sequential()
    network.add_module("a" * 5000, nn.LazyLinear(3))
    with pytest.raises(WiringError, match=r"^a+\.\.\.a+\.weight of Sequential has no shape yet") as caught:
        wire(network, batch())
    assert len(str(caught.value)) < 300


def test_the_line_of_a_failure_is_the_users_and_not_that_of_the_standard_library() -> None:
    class Reading(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * json.loads("{")

    with pytest.raises(WiringError, match=r"a plain call fails at test_refusals\.py:\d+ \(return x \* json\.loads"):
        wire(Reading(), batch())


def test_an_unknown_operator_outside_of_any_module_is_named_without_brackets() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.special.i0(self.weight)

    wiring = wire(Alone().eval(), batch())
    assert wiring.unknown == {"aten.special_i0.default": 1}
    assert all("()" not in str(space.because) for space in wiring.spaces.values())


# ---------------------------------------------------------------------- alignments and carrying


def test_an_alignment_refuses_unknown_spaces_and_other_widths() -> None:
    wiring = wire(mlp(), batch())
    with pytest.raises(UnknownNameError, match="no space named 'hidden'; try one of: "):
        Alignment(wiring, {"hidden": Permutation([0, 1])})
    with pytest.raises(ShapeError, match="Space '0' is 8 wide and its map reads width 2"):
        Alignment(wiring, {"0": Permutation([0, 1])})
    with pytest.raises(MapError, match="must be a map"):
        Alignment(wiring, {"0": torch.eye(8)})  # type: ignore[dict-item]


def test_an_affine_map_is_refused_because_weights_have_no_place_for_its_offset() -> None:
    wiring = wire(mlp(), batch())
    with pytest.raises(MapError, match=r"space '0' is affine.*map\.linear"):
        Alignment(wiring, {"0": Affine(torch.eye(8), torch.ones(8))})


def test_carry_refuses_what_is_neither_network_nor_tensors() -> None:
    wiring = wire(mlp(), batch())
    with pytest.raises(
        WiringError, match=r"carry moves networks and mappings of tensors, found list; give a torch\.nn\.Module or"
    ):
        carry([1, 2], wiring.sample())  # type: ignore[call-overload]
    with pytest.raises(WiringError, match="carry takes an alignment, or a wiring with maps beside it, found dict"):
        carry(mlp(), {})  # type: ignore[call-overload]


def test_a_network_of_another_shape_is_refused() -> None:
    wiring = wire(mlp(), batch())
    other = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ShapeError, match=r"0\.weight has shape \(9, 4\), but the wiring was made with \(8, 4\)"):
        carry(other, wiring.sample())
    with pytest.raises(UnknownNameError, match="no tensor of the network named"):
        carry(nn.Linear(4, 8), wiring.sample())


def test_a_map_onto_another_width_changes_tensors_but_not_networks() -> None:
    wiring = wire(mlp(), batch())
    wide = Orthogonal(torch.linalg.qr(torch.randn(10, 8, dtype=torch.float64)).Q)
    with pytest.raises(ShapeError, match="a network keeps its shapes; carry a mapping"):
        carry(mlp(), Alignment(wiring, {"0": wide}))
    moved = carry(mlp().state_dict(), Alignment(wiring, {"0": wide}))
    assert moved["0.weight"].shape == (10, 4)
    assert moved["2.weight"].shape == (3, 10)


def test_a_map_for_blocks_must_be_one_a_block() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.MultiheadAttention(8, 2, batch_first=True)
            self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            return self.head(self.heads(x, x, x, need_weights=False)[0])

    network, x = Attention().eval(), torch.randn(2, 3, 4)
    wiring = wire(network, x)
    space = next(space for space in wiring.spaces.values() if space.blocks == 2)
    with pytest.raises(MapError, match=r"one map for each of its 2 blocks of 4.*Blocks.*by the map of 'heads"):
        Alignment(wiring, {space.name: Permutation(range(8))})
    with pytest.raises(MapError, match="in the order of the source"):
        Alignment(wiring, {space.name: Blocks([Identity(4), Identity(4)], order=[1, 0])})
    assert Alignment(wiring, {space.name: Identity(8)}).is_exact


def test_an_alignment_knows_whether_it_is_exact() -> None:
    wiring = wire(mlp(), batch())
    assert wiring.sample().is_exact
    assert not Alignment(wiring, {"0": Orthogonal(torch.linalg.qr(torch.randn(8, 8)).Q)}).is_exact
