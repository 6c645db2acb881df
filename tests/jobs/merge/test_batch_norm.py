"""Running statistics of a merged network: estimated anew on request, and told of where they are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import interbasin as ib
from interbasin.batch_norm import reset_batch_norm
from interbasin.errors import DataError, WiringError
from interbasin.outcome import Outcome

FACTORY = """
import torch
from torch import nn

def normed():
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)), torch.rand(2, 6)

def plain():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), torch.rand(2, 6)

def wrapped():
    return nn.Sequential(normed()[0]), torch.rand(2, 6)
"""


def normed(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    network.train()(2 * torch.randn(40, 6) + seed)
    return network.eval()


DATA = [torch.randn(16, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    (tmp_path / "reset_nets.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("reset_nets", None)
    for seed in (0, 1):
        save_file(normed(seed).state_dict(), f"{seed}.safetensors")
    yield ["reset_nets:normed@0.safetensors", "reset_nets:normed@1.safetensors"]
    sys.modules.pop("reset_nets", None)


def test_modules_are_merged_and_then_reset():
    one, other = normed(0), normed(1)
    kept = one[1].running_mean.clone()
    found = ib.merge([one, other], reset=DATA)
    wanted = reset_batch_norm(ib.merge([one, other]), DATA)
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    assert torch.equal(one[1].running_mean, kept) and not torch.equal(found[1].running_mean, kept)


@pytest.mark.parametrize("output", ["merged", "merged.safetensors"])
def test_networks_on_disk_come_out_as_modules_do(on_disk, output):
    made = ib.merge(on_disk, output=output, reset=DATA)
    wanted = ib.merge([normed(0), normed(1)], reset=DATA).state_dict()
    found = load_file(output if output.endswith(".safetensors") else f"{output}/model.safetensors")
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor)
    assert made.request["reset"] == "3 batches"
    assert any("estimated anew, on 3 batches" in note for note in made.notes)
    assert not any("merged like weights" in note for note in made.notes)
    if output == "merged":
        card = Path("merged/README.md").read_text("utf-8")
        assert "estimated on 3 batches" in card and "--reset BATCHES" in card
        assert Outcome.load("merged").request["reset"] == "3 batches"


def test_statistics_are_reset_after_alignment_and_in_another_dtype(on_disk):
    ib.merge(on_disk, output="merged", reset=DATA, align="permutation-weights", dtype="float64")
    found = load_file("merged/model.safetensors")
    wanted = ib.merge([normed(0), normed(1)], reset=DATA, align="permutation-weights", inputs=DATA[0]).state_dict()
    assert found["1.running_var"].dtype == torch.float64
    torch.testing.assert_close(found["1.running_var"].float(), wanted["1.running_var"])


def test_statistics_that_are_merged_like_weights_are_told_of(on_disk):
    made = ib.merge(on_disk, output="merged")
    (note,) = made.notes
    assert note.startswith("1.running_mean, 1.running_var are running statistics") and "--reset 20" in note
    assert note in Path("merged/README.md").read_text("utf-8")
    assert Outcome.load("merged").notes == made.notes
    assert ib.merge([on_disk[0], on_disk[0]], output="same").notes == ()


def test_what_cannot_be_reset_is_refused_and_nothing_written(on_disk, tmp_path):
    plain = nn.Linear(2, 2)
    with pytest.raises(DataError, match=r"keeps none.*repair"):
        ib.merge([plain, plain], reset=[torch.randn(4, 2)])
    with pytest.raises(DataError, match="tensors alone tell no network"):
        ib.merge([plain.state_dict()] * 2, reset=DATA)
    with pytest.raises(DataError, match="more than once"):
        ib.merge([normed(0), normed(1)], reset=iter(DATA))
    save_file(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)).state_dict(), "plain.safetensors")
    with pytest.raises(DataError, match="keeps none"):
        ib.merge(["reset_nets:plain@plain.safetensors"] * 2, output="merged", reset=DATA)
    with pytest.raises(DataError, match="MODEL that can be built"):
        ib.merge([ib.checkpoints.open_checkpoint("0.safetensors")] * 2, output="merged", reset=DATA)
    assert not (tmp_path / "merged").exists()


def test_names_that_a_network_does_not_have_are_told(on_disk, monkeypatch):
    from interbasin.jobs.merge import networks
    from interbasin.models import load_model

    wrapped = load_model("reset_nets:wrapped")
    monkeypatch.setattr(networks, "load_model", lambda text: wrapped)
    with pytest.raises(WiringError, match="another name or dtype"):
        ib.merge(on_disk, output="merged", reset=DATA)
