"""Bad input gets a clear error, and no network changes."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import GENERIC, generic, mlp
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError

INPUTS = GENERIC["mlp"][1]()


def network(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return generic(mlp(*(widths or (10, 12, 12, 5)), activation=activation), 0)


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        (lambda: network(10, 14, 12, 5), ShapeError, "'0' is 12 wide in the source and 14 wide in the target"),
        (lambda: network(10, 12, 5), WiringError, "architecture and depth"),
        (lambda: network(10, 12, 12, 12, 5), WiringError, "architecture and depth"),
        (lambda: network(activation=nn.Tanh), WiringError, "compute differently"),
        (lambda: None, WiringError, "found a NoneType"),
    ],
)
def test_networks_that_do_not_go_together(target, error, words):
    with pytest.raises(error, match=words):
        ib.rebasin(network(), target(), INPUTS)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"method": "telepathy"}, UnknownNameError, "telepathy"),
        ({"variant": "sideways"}, UnknownNameError, "sideways"),
        ({"reach": "far"}, UnknownNameError, "far"),
        ({"method": "procrustes-activations"}, DataError, "pass data="),
        ({"method": "straight-through"}, DataError, "pass data="),
        ({"method": "straight-through", "data": [INPUTS]}, DataError, "needs labels"),
        ({"finetune": 2}, DataError, "Fine-tuning needs data with labels"),
        ({"finetune": 2, "data": [INPUTS]}, DataError, "Fine-tuning needs data with labels"),
        ({"points": 1}, DataError, "at least two, the ends, or 0 for none"),
        ({"inputs": INPUTS[:0]}, WiringError, "empty tensor"),
        ({"points": 5}, DataError, "A barrier needs data with labels"),
        ({"finetune": -1}, DataError, "finetune must be a whole number"),
        ({"sweeps": 0}, DataError, "sweeps must be a whole number"),
        ({"restarts": True}, DataError, "restarts must be a whole number"),
        ({"data": []}, DataError, "no batch at all"),
        ({"data": iter([INPUTS])}, DataError, "more than once"),
        ({"inputs": None}, DataError, "give inputs="),
    ],
)
def test_requests_that_cannot_be_met(asked, error, words):
    with pytest.raises(error, match=words):
        ib.rebasin(network(), network(), **{"inputs": INPUTS, **asked})


def test_curves_need_orthogonal_maps():
    build, tokens = GENERIC["attention"]
    one = generic(build(), 0)
    with pytest.raises(WiringError, match="Cayley"):
        ib.rebasin(one, one, tokens(), method="stiefel")


def test_nan_weights_are_refused_by_name():
    broken = network()
    with torch.no_grad():
        broken[2].weight[0, 0] = torch.nan
    with pytest.raises(WiringError, match=r"2\.weight"):
        ib.rebasin(broken, network(), INPUTS)
    with pytest.raises(WiringError, match=r"2\.weight"):
        ib.rebasin(network(), broken, INPUTS)


def test_no_network_changes():
    source, target = network(), generic(mlp(10, 12, 12, 5), 1)
    kept = [[tensor.clone() for tensor in one.parameters()] for one in (source, target)]
    data = [(INPUTS, torch.tensor([0, 1, 2, 3, 4, 0]))]
    found = ib.rebasin(source, target, data=data, finetune=1, points=3)
    for one, before in zip((source, target), kept, strict=True):
        assert all(torch.equal(now, then) for now, then in zip(one.parameters(), before, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(found.model.parameters(), kept[0], strict=True))


class Tied(nn.Module):
    """A table that is read again at the end, or one of its own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).relu())


@pytest.mark.parametrize("first", [True, False])
def test_networks_with_other_ties_are_told_so(first):
    words = f"head.weight is tied to another tensor in the {'source' if first else 'target'} and a tensor of its own"
    with pytest.raises(WiringError, match=words):
        ib.rebasin(Tied(first), Tied(not first), torch.arange(9)[None])


@pytest.mark.parametrize("name", ["lora_A", "base_model"])
def test_an_adapter_is_to_be_merged_first(name):
    plain = network()
    adapted = nn.Module()
    if name == "base_model":
        adapted.base_model = nn.Module()
        adapted.base_model.model = network()
    else:
        adapted = network()
        adapted[0].lora_A = nn.Linear(2, 2)
    for pair in ((plain, adapted), (adapted, plain)):
        with pytest.raises(WiringError, match=f"carries an adapter .*{name}.*merge it into its base first"):
            ib.rebasin(*pair, INPUTS)
