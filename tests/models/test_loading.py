"""Networks of a factory, weights that fit or do not, and the inputs that the user gives."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.strategies import same
from tests.test_storage import refused

from interbasin.checkpoints import write_checkpoint
from interbasin.errors import CheckpointError, UnknownNameError
from interbasin.models import LoadedModel, load_model

SOURCE = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.head(self.embed(x))

def plain():
    return nn.Linear(3, 2)

def with_inputs():
    return nn.Linear(3, 2), torch.ones(4, 3)

def tied():
    return Tied()

class Forgetful(nn.Linear):
    def eval(self):
        super().eval()

def forgetful():
    return Forgetful(3, 2)

def evaluated():
    return nn.Linear(3, 2).eval()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a module of networks in it, of a name that no other test has imported."""
    monkeypatch.chdir(tmp_path)
    name = f"networks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SOURCE, "utf-8")
    yield name
    sys.modules.pop(name, None)


def test_a_factory_in_the_current_folder_makes_the_network(here):
    before = list(sys.path)
    loaded = load_model(f"{here}:plain")
    assert isinstance(loaded, LoadedModel) and isinstance(loaded.model, torch.nn.Linear) and not loaded.model.training
    assert loaded.inputs is None and loaded.checkpoint is None and loaded.family == "Linear"
    assert loaded.text == f"{here}:plain" and sys.path == before


def test_random_weights_follow_the_seed_and_leave_torchs_own_alone(here):
    state = torch.random.get_rng_state()
    one, other = load_model(f"{here}:plain", seed=1), load_model(f"{here}:plain", seed=1)
    assert torch.equal(one.model.weight, other.model.weight)
    assert not torch.equal(one.model.weight, load_model(f"{here}:plain", seed=2).model.weight)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_factory_may_bring_its_inputs(here):
    loaded = load_model(f"{here}:with_inputs")
    assert torch.equal(loaded.require_inputs(), torch.ones(4, 3))


def test_weights_are_put_in_with_their_dtype(here, tmp_path):
    state = {"weight": torch.randn(2, 3).bfloat16(), "bias": torch.randn(2).bfloat16()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "w.pt")
    write_checkpoint(tmp_path / "folder", state)
    for weights in ("w.safetensors", "w.pt", "folder"):
        loaded = load_model(f"{here}:with_inputs@{weights}")
        assert all(same(value, state[name]) for name, value in loaded.model.state_dict().items())
        assert loaded.checkpoint is not None and loaded.checkpoint.path == Path(weights)


def test_tied_weights_need_to_be_there_once_and_stay_tied(here, tmp_path):
    table = torch.randn(5, 3).half()
    running = {"norm.weight": torch.ones(3), "norm.bias": torch.ones(3)}
    running |= {"norm.running_mean": torch.ones(3), "norm.running_var": torch.ones(3)}
    for name in ("embed.weight", "head.weight"):
        save_file({name: table, **running}, tmp_path / f"{name}.safetensors")
        model = load_model(f"{here}:tied@{name}.safetensors").model
        assert model.head.weight is model.embed.weight and same(model.head.weight.detach(), table)
        assert model.norm.num_batches_tracked == 0  # which old files lack


def test_tensors_without_use_can_be_left_aside_but_missing_ones_cannot(here, tmp_path):
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2), "extra": torch.ones(1)}
    save_file(state, tmp_path / "w.safetensors")
    assert load_model(f"{here}:plain@w.safetensors", strict=False).unused == ("extra",)
    del state["bias"]
    save_file(state, tmp_path / "w.safetensors")
    refused(lambda: load_model(f"{here}:plain@w.safetensors", strict=False), CheckpointError, ("lacks 1 tensor",))


def test_only_a_files_own_functions_are_offered_as_factories(here, tmp_path):
    (tmp_path / "imports_much.py").write_text(
        "from collections import OrderedDict\nfrom torch import nn\n\ndef network():\n    return nn.Linear(1, 1)\n"
    )
    message = refused(lambda: load_model("imports_much:OrderedNetwork"), UnknownNameError, ("try one of: network.",))
    assert "OrderedDict" not in message


def test_errors_of_ours_pass_through_a_factory(here, tmp_path):
    text = "from interbasin.models import load_model\ndef f():\n    return load_model('./missing').model"
    (tmp_path / f"{here}_ours.py").write_text(text, "utf-8")
    refused(lambda: load_model(f"{here}_ours:f"), CheckpointError, ("'./missing'",))


# Inputs


def test_inputs_come_from_files(here, tmp_path):
    x, ids = torch.randn(4, 3), torch.arange(4)
    np.save("x.npy", x.double().numpy())
    np.savez("x.npz", x=x.numpy(), ids=ids.numpy())
    torch.save((x, ids), "pair.pt")
    torch.save({"x": x, "use_cache": False, "mask": None}, "named.pt")
    save_file({"x": x, "ids": ids}, "x.safetensors")

    def read(name: str) -> object:
        return load_model(f"{here}:with_inputs", inputs=name).inputs

    assert same(read("x.npy"), x)  # in the dtype of the network
    for name in ("x.npz", "x.safetensors"):
        found = read(name)
        assert set(found) == {"x", "ids"} and same(found["x"], x) and same(found["ids"], ids)
    assert isinstance(read("pair.pt"), tuple) and same(read("pair.pt")[1], ids)
    assert read("named.pt")["use_cache"] is False and read("named.pt")["mask"] is None
    assert same(load_model(f"{here}:plain", inputs=Path("x.npy")).require_inputs(), x)


def test_inputs_of_a_shape_follow_the_seed(here):
    one = load_model(f"{here}:plain", input_shape=(4, 3), seed=1).inputs
    assert one.shape == (4, 3) and torch.equal(one, load_model(f"{here}:plain", input_shape=[4, 3], seed=1).inputs)
    assert not torch.equal(one, load_model(f"{here}:plain", input_shape=(4, 3), seed=2).inputs)


def test_what_was_made_in_training_mode_is_known(here):
    assert load_model(f"{here}:plain").was_training and not load_model(f"{here}:evaluated").was_training
    assert not load_model(f"{here}:plain").model.training
    assert load_model(f"{here}:forgetful").model is not None


def test_a_path_names_a_network_as_text_does(here, tmp_path):
    assert load_model(Path(f"{here}:plain")).text == f"{here}:plain"
