"""Networks with a LoRA on them, and LoRAs alone, are carried through the wiring of the network beneath."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interbasin.errors import ShapeError, WiringError
from interbasin.extras import import_extra
from interbasin.wiring import Alignment, carry, wire

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.table(ids))
        return self.head(torch.tanh(x + self.down(torch.relu(self.up(x)))))


@pytest.fixture(scope="module")
def peft() -> Any:
    return import_extra("peft", "Wiring a network with a LoRA on it", "hf")


def tokens() -> Tensor:
    return torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(0))


def adapted(peft: Any, base: nn.Module, **settings: Any) -> Any:
    config = peft.LoraConfig(r=2, **{"target_modules": ["up", "table"], **settings})
    network = peft.get_peft_model(copy.deepcopy(base), config).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                tensor.normal_(generator=generator)
    return network


@pytest.fixture(scope="module")
def base() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Small().double().eval()


@pytest.fixture(scope="module")
def alignment(base: nn.Module) -> Alignment:
    return wire(base, tokens()).sample(seed=3)


SETTINGS: dict[str, dict[str, Any]] = {
    "a layer and a table": {},
    "a bias behind B": {"target_modules": ["up", "down"], "lora_bias": True},
    "a head that is trained whole": {"modules_to_save": ["head"]},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_network_with_a_lora_on_it_moves_through_the_wiring_of_its_base(peft, base, alignment, settings: str) -> None:
    network = adapted(peft, base, **SETTINGS[settings])
    other = carry(network, alignment)
    torch.testing.assert_close(other(tokens()), network(tokens()), **CLOSE)
    moved = carry(network.state_dict(), alignment)
    assert list(moved) == list(network.state_dict())
    for name, tensor in other.state_dict().items():
        assert torch.equal(moved[name], tensor), name
    factors = [name for name in moved if "lora_" in name]
    assert any(not torch.equal(moved[name], network.state_dict()[name]) for name in factors)


def test_a_merged_lora_moves_too_and_can_be_taken_out_again(peft, base, alignment) -> None:
    network = adapted(peft, base)
    expected = network(tokens())
    network.merge_adapter()
    other = carry(network, alignment)
    torch.testing.assert_close(other(tokens()), expected, **CLOSE)
    other.unmerge_adapter()
    torch.testing.assert_close(other(tokens()), expected, **CLOSE)


def test_a_saved_lora_moves_by_the_names_in_its_file(peft, base, alignment) -> None:
    network = adapted(peft, base, target_modules=["up", "down"])
    saved = peft.get_peft_model_state_dict(network)
    moved = carry(saved, alignment)
    assert list(moved) == list(saved)
    there = peft.get_peft_model(carry(base, alignment), network.peft_config["default"]).double().eval()
    peft.set_peft_model_state_dict(there, moved)
    torch.testing.assert_close(there(tokens()), network(tokens()), **CLOSE)


def test_a_dora_is_refused_by_name_and_moves_through_a_wiring_of_its_own(peft, base, alignment) -> None:
    network = adapted(peft, base, target_modules=["up"], use_dora=True)
    for subject in (network, network.state_dict(), peft.get_peft_model_state_dict(network)):
        with pytest.raises(WiringError, match=r"up\.lora_magnitude_vector.* belongs to a DoRA.*merge"):
            carry(subject, alignment)
    own = wire(network, tokens())
    assert own.check(network, tokens()) < 1e-10


def test_an_adapter_that_is_no_lora_is_refused_by_name(peft, base, alignment) -> None:
    config = peft.IA3Config(target_modules=["up"], feedforward_modules=[])
    network = peft.get_peft_model(copy.deepcopy(base), config).double().eval()
    with pytest.raises(WiringError, match=r"ia3_l.*neither a factor of a LoRA"):
        carry(network, alignment)


def test_factors_of_different_ranks_are_refused(alignment) -> None:
    pair = {"up.lora_A.weight": torch.zeros(2, 8), "up.lora_B.weight": torch.zeros(12, 3)}
    with pytest.raises(ShapeError, match=r"up\.lora_A\.weight has rank 2 and up\.lora_B\.weight has rank 3"):
        carry(pair, alignment)
    two = {"up.lora_A.one.weight": torch.zeros(2, 8), "up.lora_B.two.weight": torch.zeros(12, 3)}
    assert list(carry(two, alignment)) == list(two)  # of two adapters
