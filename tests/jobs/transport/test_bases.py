"""How two networks are related: heads, depth, outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import Attention, mlp
from tests.laws.strategies import gaussian, generator
from tests.laws.transported import CASES, DECODER, ResidualBlock, ResidualMLP, made, randomise
from torch import Tensor, nn

from interbasin import Correspondence, wire
from interbasin.errors import DataError, InterbasinError, WiringError
from interbasin.jobs.transport.bases import is_observable, relate, writers_of

pytestmark = pytest.mark.filterwarnings("ignore")
X = gaussian(0, 24, 10)
IDS = torch.randint(0, 40, (4, 7), generator=generator(0))


def net(*widths: int) -> nn.Module:
    return mlp(*widths).double().eval()


class TwoOutputs(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(10, hidden), nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.up(x))
        return self.head(x), x


def test_outputs_of_equal_width_are_shared_unless_said_otherwise() -> None:
    same, other = (net(10, 8, 5), net(10, 12, 5)), (net(10, 8, 5), net(10, 12, 6))
    assert relate(*same, [X]).shares_outputs
    assert relate(*same, [X]).is_shared(("output", "output"))
    own = relate(*same, [X], outputs="own")
    assert not own.shares_outputs
    assert not own.is_shared(("output", "output"))
    assert not relate(*other, [X]).shares_outputs
    with pytest.raises(DataError, match=r"5\) and those of the target"):
        relate(*other, [X], outputs="shared")


def test_one_of_several_outputs_may_be_shared() -> None:
    bases = relate(TwoOutputs(8).double().eval(), TwoOutputs(12).double().eval(), [X])
    widths = {
        bases.spaces(pair)[0].width: bases.is_shared(pair)
        for pair in bases.correspondence.spaces
        if bases.spaces(pair)[0].is_fixed
    }
    assert widths[5]
    assert not widths[8]


@pytest.mark.parametrize("option", ["heads", "depth", "outputs"])
def test_unknown_choices_are_refused(option: str) -> None:
    wrong: dict[str, Any] = {option: "sideways"}
    with pytest.raises(InterbasinError, match="sideways"):
        relate(net(10, 8, 5), net(10, 8, 5), [X], **wrong)


@pytest.mark.slow
def test_heads_are_matched_where_there_are_as_many() -> None:
    four, two = Attention(4).double().eval(), Attention(2).double().eval()
    assert relate(four, Attention(4, width=24).double().eval(), [IDS]).heads == "matched"
    assert relate(four, four, [IDS], heads="free").heads == "free"
    bases = relate(four, two, [IDS])
    assert bases.heads == "free"
    assert not [name for wiring in bases.wirings for name, space in wiring.spaces.items() if space.within]
    with pytest.raises(WiringError, match="heads='free'"):
        relate(four, two, [IDS], heads="matched")


@pytest.mark.slow
def test_rotary_heads_of_other_sizes_are_not_matched() -> None:
    inputs = {name: tensor[:4] for name, tensor in CASES["llama"].inputs(0).items()}
    narrow, wide = (
        randomise(made("LlamaForCausalLM", **{**DECODER, "num_hidden_layers": 1, "head_dim": size})().eval(), 0)
        for size in (8, 12)
    )
    assert relate(narrow, wide, [inputs]).heads == "free"
    assert relate(narrow, narrow, [inputs]).heads == "matched"


def deeper(depth: int) -> ResidualMLP:
    network = ResidualMLP()
    network.blocks = nn.ModuleList(ResidualBlock(16, 24) for _ in range(depth))
    return network.double().eval()


@pytest.mark.parametrize("depth", ["auto", "cka", "even"])
def test_every_block_of_a_deeper_network_has_a_partner(depth: Any) -> None:
    bases = relate(deeper(2), deeper(4), [X], depth=depth)
    targets = {pair.target for pair in bases.correspondence.tensors}
    assert {f"blocks.{block}.up.weight" for block in range(4)} <= targets


def test_a_correspondence_of_ones_own() -> None:
    source, target, third = net(10, 8, 5), net(10, 12, 5), net(10, 8, 8, 5)
    own = Correspondence.by_role(wire(source, X), wire(target, X))
    assert relate(source, target, [X], correspondence=own).correspondence is own
    with pytest.raises(WiringError, match="another network than the target"):
        relate(source, third, [X], correspondence=own)


def test_no_data_is_said() -> None:
    with pytest.raises(InterbasinError, match=r"(?i)batch|empty"):
        relate(net(10, 8, 5), net(10, 8, 5), [])


def test_spaces_are_seen_and_written() -> None:
    wiring = wire(deeper(2), X)
    stream = next(name for name in wiring.spaces if len(writers_of(wiring, name)) > 1)
    assert writers_of(wiring, stream) == {"stem", "blocks.0.down", "blocks.1.down"}
    assert is_observable(wiring, stream)


class FirstAxisIsTime(nn.Module):
    """Adds a number to each of 24 steps, which come on the first axis: two steps are no input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(24, 1))
        self.up, self.head = nn.Linear(10, hidden), nn.Linear(hidden, 5)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.head(torch.relu(self.up(x + self.steps)))  # type: ignore[no-any-return]


def test_two_inputs_show_the_shape_of_outputs_and_all_where_two_cannot() -> None:
    networks = [FirstAxisIsTime(hidden).double().eval() for hidden in (8, 12)]
    assert relate(networks[0], networks[1], [X]).shares_outputs
    assert networks[0].seen == [2, 24]
    with torch.no_grad():
        for network in networks:
            network.steps = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
            network.seen.clear()
    assert relate(networks[0], networks[1], [X]).shares_outputs
    assert networks[0].seen == [2]
