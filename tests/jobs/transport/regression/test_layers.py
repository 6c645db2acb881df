"""Which layers a regression fits, in which order, and what each aims at."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import mlp
from tests.laws.strategies import gaussian, generator
from tests.laws.transported import CASES, ResidualMLP
from torch import Tensor, nn

import interbasin as ib
from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.regression.layers import Layer, find_layers, set_weight, weight_of
from interbasin.jobs.transport.rows import Watcher, input_rows, reading_at

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def found_in(network: nn.Module, inputs: Any) -> tuple[list[Layer], dict[str, str]]:
    network = network.double().eval()
    return find_layers(relate(network, network, [inputs]), inputs)


def aims_of(network: nn.Module, inputs: Any) -> dict[str, str]:
    """Layer -> aim, by the last word of its name, of the layers of one block and of those around all blocks."""
    layers = [layer for layer in found_in(network, inputs)[0] if not layer.is_table]
    return {layer.target.rpartition(".")[2]: layer.aim for layer in layers}


class Pooling(nn.Module):
    """Blocks on a stream of tokens, and a norm and a head that read the first token alone."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        return x + self.down(torch.relu(self.up(read + read.mean(1, keepdim=True))))


class Tied(nn.Module):
    """The table is the head's weight: whichever of the two is named first."""

    def __init__(self, head_first: bool) -> None:
        super().__init__()
        table, head = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
        head.weight = table.weight
        for name, module in (("head", head), ("table", table)) if head_first else (("table", table), ("head", head)):
            self.add_module(name, module)
        self.mid = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.table(ids))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.again, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.again(torch.relu(self.again(torch.relu(self.one(x)))))))


def test_an_mlp() -> None:
    layers, left_out = found_in(mlp(6, 8, 8, 3), gaussian(0, 5, 6))
    assert [(layer.target, layer.aim) for layer in layers] == [("0", "hidden"), ("2", "hidden"), ("4", "output")]
    assert not left_out


def test_layers_whose_units_may_be_mixed_have_no_partners_unit_by_unit() -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    assert aims_of(network, gaussian(0, 5, 6)) == {"0": "own", "1": "hidden", "3": "output"}


def test_a_residual_network_aims_at_its_stream_where_it_is_read_next() -> None:
    layers, _ = found_in(ResidualMLP(), gaussian(0, 5, 10))
    assert {layer.target: (layer.aim, layer.at[1]) for layer in layers} == {
        "stem": ("stream", "blocks.0.norm:input"),
        "blocks.0.up": ("hidden", "blocks.0.up:output"),
        "blocks.0.down": ("stream", "blocks.1.norm:input"),
        "blocks.1.up": ("hidden", "blocks.1.up:output"),
        "blocks.1.down": ("stream", "norm:input"),
        "head": ("output", "head:output"),
    }


ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "stream"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit", {**ATTENTION, "projection": "stream", "fc1": "hidden", "fc2": "stream", "classifier": "output"}),
        (
            "llama",
            {**ATTENTION, "gate_proj": "hidden", "up_proj": "hidden", "down_proj": "stream", "lm_head": "output"},
        ),
        ("resnet", {name: "hidden" for name in ("stem", "one", "two", "wide", "shortcut")} | {"head": "output"}),
    ],
)
def test_aims(name: str, expected: dict[str, str]) -> None:
    case = CASES[name]
    assert aims_of(case.make(), case.inputs(0)) == expected


@pytest.mark.parametrize(
    "depths", [(2, 4), *(pytest.param(depths, marks=pytest.mark.slow) for depths in ((2, 2), (4, 2)))]
)
def test_the_stream_behind_the_last_block_is_that_of_all_tokens(depths: tuple[int, int]) -> None:
    torch.manual_seed(0)
    source, target = (Pooling(depth, width).double().eval() for depth, width in zip(depths, (6, 8), strict=True))
    inputs = gaussian(0, 40, 5, 4)
    layers, _ = find_layers(relate(source, target, [inputs]), inputs)
    streams = {layer.tensors[1]: layer.at for layer in layers if layer.aim == "stream"}
    assert set(streams) == {"stem.weight", *(f"blocks.{number}.down.weight" for number in range(depths[1]))}
    for place, network in zip(zip(*streams.values(), strict=True), (source, target), strict=True):
        assert "norm:input" not in place
        rows = Watcher(network, [reading_at(each) for each in place]).run(inputs)
        assert all(each.ndim == 3 for each in rows.values())
    tuned = copy.deepcopy(source)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    result = ib.transport(source, tuned, target, inputs, method="regression")
    assert result.metrics["effect_explained"] > 0.3


@pytest.mark.slow
def test_patches_leave_the_class_token_alone() -> None:
    case = CASES["vit"]
    layers, left_out = found_in(case.make(), case.inputs(0))
    assert layers[0].positions == (tuple(range(1, 17)),) * 2
    assert {layer.positions for layer in layers[1:]} == {None}
    assert [layer.tensors[1].rpartition(".")[2] for layer in layers[1:3]] == ["position_embeddings", "cls_token"]
    assert layers[0].beside is layers[1]
    assert [layer.is_table for layer in layers[:4]] == [False, True, True, False]
    assert not left_out


@pytest.mark.slow
def test_bert() -> None:
    case = CASES["bert"]
    layers, left_out = found_in(case.make(), case.inputs(0))
    block = [layer.aim for layer in layers if ".layer.1." in layer.target]
    assert block == ["query", "key", "value", "stream", "hidden", "stream"]
    assert [layer.aim for layer in layers[-2:]] == ["hidden", "output"]
    assert [(layer.tensors[1].split(".")[-2], layer.aim) for layer in layers if layer.is_table] == [
        ("word_embeddings", "taken"),
        ("position_embeddings", "stream"),
        ("token_type_embeddings", "stream"),
    ]
    assert not left_out


@pytest.mark.slow
def test_gpt2_whose_queries_keys_and_values_are_one_tensor() -> None:
    case = CASES["gpt2"]
    layers, left_out = found_in(case.make(), case.inputs(0))
    tables = [layers.pop(0) for _ in range(2)]
    assert [(table.tensors[1], table.aim) for table in tables] == [
        ("transformer.wte.weight", "taken"),
        ("transformer.wpe.weight", "stream"),
    ]
    assert not left_out
    block = [(layer.target.rpartition("h.1.")[2], layer.aim) for layer in layers if ".h.1." in layer.target]
    attention, others = block[:3], block[3:]
    assert attention == [("attn.c_attn", aim) for aim in ("query", "key", "value")]
    assert others == [("attn.c_proj", "stream"), ("mlp.c_fc", "hidden"), ("mlp.c_proj", "stream")]
    assert [layer.columns[1] for layer in layers[:3]] == [slice(0, 16), slice(16, 32), slice(32, 48)]
    assert "lm_head" not in {layer.target for layer in layers}  # its weight is the table of tokens


@pytest.mark.parametrize("head_first", [True, False])
def test_a_tied_head_is_left_out(head_first: bool) -> None:
    ids = torch.randint(0, 9, (4, 5), generator=generator(0))
    layers, left_out = found_in(Tied(head_first), ids)
    assert [layer.target for layer in layers] == ["mid"]
    if head_first:
        assert "tied to table.weight" in left_out["head.weight"]


def test_a_layer_that_is_called_twice_is_left_out() -> None:
    layers, left_out = found_in(Twice(), gaussian(0, 5, 6))
    assert [layer.target for layer in layers] == ["one", "head"]
    assert "more than once" in left_out["again.weight"]


@pytest.mark.parametrize(
    "module",
    [nn.Linear(6, 4), nn.Linear(6, 4, bias=False), nn.Conv2d(6, 4, 3, padding=1, stride=2, dilation=1)],
)
def test_rows_times_the_weight_are_what_a_layer_puts_out(module: nn.Module) -> None:
    module = module.double()
    convolves = isinstance(module, nn.Conv2d)
    x = gaussian(0, 3, 6, 8, 8) if convolves else gaussian(0, 3, 7, 6)
    weight, bias = weight_of(module)
    rows = input_rows(module, x.movedim(1, -1) if convolves else x)
    outputs = rows @ weight.mT + (0 if bias is None else bias)
    expected = module(x).flatten(2).mT if convolves else module(x)
    torch.testing.assert_close(outputs, expected.detach())
    set_weight(module, 2 * weight, None if bias is None else 2 * bias)
    torch.testing.assert_close(2 * outputs, (module(x).flatten(2).mT if convolves else module(x)).detach())
