"""The encoder of one network and the head of another, with a translation between them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.jobs.translate.test_translator import pairs

import interbasin as ib
from interbasin.errors import DataError


def test_a_stitched_network_answers_as_the_head_would() -> None:
    torch.manual_seed(0)
    one, other = torch.nn.Linear(6, 9), torch.nn.Linear(6, 9)
    with torch.no_grad():
        other.weight.copy_(torch.linalg.qr(torch.randn(9, 9)).Q @ one.weight)
    head, x = torch.nn.Linear(9, 4), torch.randn(200, 6)
    translator = ib.Translator(method="ridge").fit(one(x).detach(), other(x).detach())
    network = ib.stitch(one, translator, head)
    torch.testing.assert_close(network(x), head(other(x)), atol=1e-4, rtol=1e-4)
    assert {name for name, _ in network.named_parameters()} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert "9 -> 9, ridge" in repr(network)


def test_a_stitched_network_is_saved_with_its_translation(tmp_path: Any) -> None:
    x, y = pairs(60, 9, 5)
    encoder, head = torch.nn.Linear(6, 9), torch.nn.Linear(5, 3)
    network = ib.stitch(encoder, ib.Translator(method="ridge").fit(x, y), head)
    rows = torch.randn(4, 6)
    wanted = network(rows)
    other = ib.stitch(torch.nn.Linear(6, 9), ib.Translator(method="ridge").fit(x, -y), torch.nn.Linear(5, 3))
    torch.save(network.state_dict(), tmp_path / "network.pt")
    save_file(network.state_dict(), tmp_path / "network.safetensors")
    for state in (torch.load(tmp_path / "network.pt"), load_file(tmp_path / "network.safetensors")):
        assert not torch.allclose(other(rows), wanted)
        again = copy.deepcopy(other)
        again.load_state_dict(state)
        assert torch.equal(again(rows), wanted)
    for wrong in (torch.zeros(3, dtype=torch.uint8), {"a": 1}, network[1].get_extra_state()[:-5]):
        with pytest.raises(DataError, match="translation"):
            other[1].set_extra_state(wrong)
