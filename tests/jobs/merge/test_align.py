"""Networks that were trained apart are brought together before they are merged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, InterbasinError, UnknownNameError
from interbasin.outcome import Outcome

FACTORY = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), torch.rand(2, 6)
"""


def pair() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A network, and the same in other coordinates."""
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    inputs = torch.rand(4, 6)
    return one, ib.carry(one, ib.wire(one, inputs).sample(seed=1)), inputs


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    (tmp_path / "merge_nets.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("merge_nets", None)
    one, other, _ = pair()
    save_file(one.state_dict(), "one.safetensors")
    save_file(other.state_dict(), "other.safetensors")
    yield "merge_nets:small@one.safetensors", "merge_nets:small@other.safetensors"
    sys.modules.pop("merge_nets", None)


def test_modules_meet_in_the_coordinates_of_the_first():
    one, other, inputs = pair()
    merged = ib.merge([one, other], align="permutation-weights", inputs=inputs)
    assert torch.allclose(merged(inputs), one(inputs), atol=1e-6)
    assert not torch.allclose(ib.merge([one, other])(inputs), one(inputs), atol=1e-3)


@pytest.mark.parametrize("output", ["merged", "merged.safetensors"])
def test_networks_on_disk_meet_too(on_disk, output):
    made = ib.merge(list(on_disk), align="permutation-weights", output=output)
    assert made.request["align"] == "permutation-weights"
    found = load_file(output if output.endswith(".safetensors") else f"{output}/model.safetensors")
    for name, tensor in load_file("one.safetensors").items():
        assert torch.allclose(found[name], tensor, atol=1e-6)
    if output == "merged":
        assert Outcome.load(output).request["align"] == "permutation-weights"
        assert "coordinates of the first by permutation-weights" in Path("merged/README.md").read_text("utf-8").replace(
            "\n", " "
        )


def test_what_cannot_be_aligned_is_refused_and_nothing_written(on_disk, tmp_path):
    one, other, inputs = pair()
    with pytest.raises(DataError, match="give inputs="):
        ib.merge([one, other], align="permutation-weights")
    with pytest.raises(DataError, match="tensors alone"):
        ib.merge([one.state_dict(), other.state_dict()], align="permutation-weights", inputs=inputs)
    with pytest.raises(DataError, match="share its coordinates already"):
        ib.merge([one], "task-arithmetic", base=other, align="permutation-weights", inputs=inputs)
    with pytest.raises(
        DataError, match=r"a merge aligns by weights alone; align by permutation-weights.*rebasin first"
    ):
        ib.merge([one, other], align="procrustes-activations", inputs=inputs)
    with pytest.raises(UnknownNameError, match="telepathy"):
        ib.merge(list(on_disk), align="telepathy", output="merged")
    with pytest.raises(DataError, match="MODELs that can be built"):
        opened = [ib.checkpoints.open_checkpoint("one.safetensors")] * 2
        ib.merge(opened, align="permutation-weights", output="merged")
    with pytest.raises(InterbasinError):
        ib.merge(["one.safetensors", "other.safetensors"], align="permutation-weights", output="merged")
    assert not (tmp_path / "merged").exists()


def test_maps_that_change_the_function_are_told(on_disk):
    exact = ib.merge(list(on_disk), align="permutation-weights", output="exact")
    assert exact.notes == ("All models were brought into the coordinates of the first by permutation-weights.",)
    turned = ib.merge(list(on_disk), align="procrustes-weights", output="turned")
    assert any("by procrustes-weights; its maps are approximate" in note for note in turned.notes)
    assert any("approximate" in warning for warning in Outcome.load("turned").notes)
