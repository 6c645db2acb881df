"""A folded network comes back from its folder as it was saved, whichever library made it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.selection import parameters
from tests.architectures.zoo import ARCHITECTURES
from torch import Tensor, nn

import interbasin
from interbasin.checkpoints import write_checkpoint
from interbasin.errors import CheckpointError, FileError, WiringError
from interbasin.extras import import_extra
from interbasin.models import load_model
from interbasin.models.folding import FOLDING, Folding, group_reasons
from interbasin.wiring import carry, wire
from interbasin.wiring.check import difference
from interbasin.wiring.folding import fold_norms, folding_of, save_folded

pytestmark = pytest.mark.slow


def entry(name: str) -> tuple[nn.Module, Any]:
    network, inputs = ARCHITECTURES[name](0)
    return randomise(network, 0, inputs), inputs


# The numbers are the same, and their places in memory need not be: kernels add in other orders.
ROUNDING = 2e-6
TRANSFORMERS = [f"transformers/{name}" for name in ("gpt2", "llama", "gemma", "qwen3", "t5", "opt", "mamba", "vit")]


@pytest.mark.slow
@pytest.mark.parametrize("name", parameters(TRANSFORMERS))
def test_a_folded_network_of_transformers_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    network, inputs = entry(name)
    folded = fold_norms(network, inputs)
    save_folded(folded, tmp_path / "folded")
    loaded = load_model(str(tmp_path / "folded"))
    assert type(loaded.model) is type(network) and loaded.inputs is not None
    assert folding_of(loaded.model) == folding_of(folded)
    stored = folded.state_dict()
    assert list(loaded.model.state_dict()) == list(stored)
    assert all(torch.equal(tensor, stored[key]) for key, tensor in loaded.model.state_dict().items())
    assert difference(folded, loaded.model, inputs) < ROUNDING


def test_what_was_tied_after_folding_is_tied_again_and_what_was_not_is_not(tmp_path: Path) -> None:
    network, inputs = entry("transformers/t5")
    folded = fold_norms(network, inputs)
    save_folded(folded, tmp_path / "folded")
    loaded = load_model(str(tmp_path / "folded")).model
    assert loaded.encoder.embed_tokens.weight is loaded.decoder.embed_tokens.weight
    assert (loaded.lm_head.weight is loaded.shared.weight) == (folded.lm_head.weight is folded.shared.weight)


def test_a_carried_folded_network_can_be_saved_too_and_its_tensors_be_written_like_it(tmp_path: Path) -> None:
    network, inputs = entry("transformers/gpt2")
    folded = fold_norms(network, inputs)
    save_folded(folded, tmp_path / "folded")
    alignment = wire(folded, inputs).sample(seed=1)
    other = carry(folded, alignment)
    save_folded(other, tmp_path / "carried", like=tmp_path / "folded")
    write_checkpoint(tmp_path / "tensors", carry(folded.state_dict(), alignment), like=tmp_path / "folded")
    for folder in ("carried", "tensors"):
        assert difference(other, load_model(str(tmp_path / folder)).model, inputs) < ROUNDING
    assert difference(network, other, inputs) < 1e-4


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    network, inputs = entry("transformers/llama")
    folded = fold_norms(network, inputs).bfloat16()
    save_folded(folded, tmp_path / "folded")
    loaded = load_model(str(tmp_path / "folded")).model
    assert {one.dtype for one in loaded.parameters()} == {torch.bfloat16}


def test_a_folded_network_of_timm_comes_back_as_weights_of_its_architecture(tmp_path: Path) -> None:
    timm = import_extra("timm", "A network of timm", "timm")
    network = randomise(timm.create_model("test_vit", num_classes=7), 0).eval()
    inputs = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    folded = fold_norms(network, inputs)
    save_folded(folded, tmp_path / "folded")
    loaded = load_model(f"timm:test_vit@{tmp_path / 'folded'}")
    assert difference(folded, loaded.model, inputs) < ROUNDING
    with pytest.raises(CheckpointError, match="weights of another network"):
        load_model(f"timm:resnet18@{tmp_path / 'folded'}")


MODULE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 12)
        self.norm, self.last = nn.LayerNorm(12), nn.LayerNorm(12)
        self.up, self.down = nn.Linear(12, 20, bias=False), nn.Linear(20, 12)
        self.head = nn.Linear(12, 9, bias=False)
        self.head.weight = self.embed.weight
        self.pooled = nn.LayerNorm(12)

    def forward(self, x):
        stream = self.embed(x)
        stream = stream + self.down(torch.relu(self.up(self.norm(stream))))
        return self.head(self.last(stream)), self.pooled(stream)

def network():
    return Small(), torch.arange(9)[None]
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "folded_small.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "folded_small", raising=False)
    return "folded_small:network"


def test_a_folded_network_of_a_factory_comes_back_as_its_weights(factory: str, tmp_path: Path) -> None:
    loaded = load_model(factory)
    network, inputs = randomise(loaded.model, 0), loaded.require_inputs()
    folded = fold_norms(network, inputs)
    folding = folding_of(folded)
    assert {name: one.kind for name, one in folding.replaced.items()} == {
        "norm": "unit", "last": "unit", "pooled": "spelled",
    }  # fmt: skip
    assert set(folding.biases) == {"up", "head"} and folding.ties == ()
    save_folded(folded, tmp_path / "folded")
    again = load_model(f"{factory}@{tmp_path / 'folded'}").model
    assert difference(folded, again, inputs) < ROUNDING


@pytest.mark.slow
def test_a_folded_network_is_loaded_without_what_traces(factory: str, tmp_path: Path) -> None:
    loaded = load_model(factory)
    save_folded(fold_norms(randomise(loaded.model, 0), loaded.require_inputs()), tmp_path / "folded")
    program = (
        "import sys; from interbasin.models import load_model; "
        f"load_model('{factory}@folded'); "
        "assert 'interbasin.wiring.trace.tracing' not in sys.modules"
    )
    home = str(Path(interbasin.__file__).parents[1])
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": home})


# ---------------------------------------------------------------------- errors


@pytest.fixture
def saved(factory: str, tmp_path: Path) -> Path:
    loaded = load_model(factory)
    save_folded(fold_norms(randomise(loaded.model, 0), loaded.require_inputs()), tmp_path / "folded")
    return tmp_path / "folded"


DAMAGES = {
    "no JSON": lambda found: None,
    "another format": lambda found: found.update(format="interbasin.map"),
    "a later version": lambda found: found.update(version=99),
    "nothing replaced": lambda found: found.pop("replaced"),
    "a kind that does not exist": lambda found: found["replaced"]["norm"].update(kind="rubber"),
    "a width that is none": lambda found: found["replaced"]["norm"].update(width="12"),
    "a key too many": lambda found: found["replaced"]["norm"].update(colour="red"),
    "a bias without a name": lambda found: found.update(biases=[3]),
    "a module that is not there": lambda found: found["replaced"].update(nowhere=found["replaced"]["norm"]),
    "a bias of no linear layer": lambda found: found.update(biases=["embed"]),
    "a tie of nothing": lambda found: found.update(ties=[["embed.weight", "nowhere.weight"]]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_mark_is_refused(damage: str, saved: Path, factory: str) -> None:
    document = json.loads((saved / FOLDING).read_text())
    text = "{" if DAMAGES[damage](document) is None and damage == "no JSON" else json.dumps(document)
    (saved / FOLDING).write_text(text)
    with pytest.raises(CheckpointError):
        load_model(f"{factory}@{saved}")


def test_another_version_of_transformers_is_named_where_tensors_do_not_fit(tmp_path: Path) -> None:
    network, inputs = entry("transformers/gpt2")
    save_folded(fold_norms(network, inputs), tmp_path / "folded")
    for file, key, value in ((FOLDING, "transformers", "3.0.0"), ("config.json", "n_layer", 1)):
        document = json.loads((tmp_path / "folded" / file).read_text())
        (tmp_path / "folded" / file).write_text(json.dumps({**document, key: value}))
    with pytest.raises(CheckpointError, match=r"saved with transformers 3\.0\.0, and this is"):
        load_model(str(tmp_path / "folded"))


def test_a_configuration_that_transformers_cannot_build_is_refused(tmp_path: Path) -> None:
    network, inputs = entry("transformers/gpt2")
    save_folded(fold_norms(network, inputs), tmp_path / "folded")
    document = json.loads((tmp_path / "folded" / "config.json").read_text())
    (tmp_path / "folded" / "config.json").write_text(json.dumps({**document, "n_head": 7}))
    with pytest.raises(CheckpointError, match=r"could not make the GPT2LMHeadModel that .* was folded from"):
        load_model(str(tmp_path / "folded"))


def test_what_transformers_cannot_build_again_is_refused(tmp_path: Path, saved: Path) -> None:
    network, inputs = entry("transformers/gpt2")
    folded = fold_norms(network, inputs)
    with pytest.raises(FileError, match="exists already"):
        save_folded(folded, saved)
    save_folded(folded, saved, force=True)
    type(folded).__name__, name = "Elsewhere", type(folded).__name__
    try:
        with pytest.raises(WiringError, match="Elsewhere is not a class of transformers"):
            save_folded(folded, tmp_path / "out")
    finally:
        type(folded).__name__ = name


# ---------------------------------------------------------------------- what is told


def test_norms_that_stay_are_told_with_the_reason_once_for_all_layers() -> None:
    network, inputs = entry("transformers/qwen3")
    folding = folding_of(fold_norms(network, inputs))
    names = [name for names in folding.left.values() for name in names]
    assert {name.rpartition(".")[2] for name in names} == {"q_norm", "k_norm"}
    assert len(folding.left) < len(names)
    assert "left as it is: model.layers.0.self_attn." in str(folding) and "like it" in str(folding)


def test_a_folding_is_told_in_words() -> None:
    network, inputs = entry("timm/vit-registers")
    told = str(folding_of(fold_norms(network, inputs)))
    assert "norms folded into what reads them" in told
    assert "scalings folded into what writes them" in told
    assert "1 norm, the gain a linear layer behind it" in told


def test_reasons_of_layers_that_repeat_are_one() -> None:
    assert group_reasons({"a.0.n": "x 'a.0.m'", "a.1.n": "x 'a.1.m'", "b": "y"}) == {
        "x 'a.0.m'": ("a.0.n", "a.1.n"), "y": ("b",),
    }  # fmt: skip
    assert Folding({}).left == {}


def test_a_gain_that_is_read_elsewhere_is_refused_by_name() -> None:
    class Reading(nn.Module):
        def __init__(self, what: str) -> None:
            super().__init__()
            self.what = what
            self.embed, self.norm, self.last = nn.Embedding(9, 12), nn.LayerNorm(12), nn.LayerNorm(12)
            self.up, self.down, self.head = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 9)

        def forward(self, x: Tensor) -> Tensor:
            stream = self.embed(x)
            stream = stream + self.down(torch.relu(self.up(self.norm(stream))))
            return self.head(self.last(stream)) * getattr(self.norm, self.what).square().mean()

    for what in ("weight", "bias"):
        network = randomise(Reading(what), 0).eval()
        with pytest.raises(WiringError, match=r"Reading reads the gain or the bias of norm.* outside of that norm"):
            fold_norms(network, torch.arange(9)[None])


def test_gains_of_one_that_are_read_elsewhere_are_refused_too() -> None:
    class Ones(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(9, 12), nn.RMSNorm(12)
            self.head = nn.Linear(12, 9)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.embed(x))) * self.norm.weight.mean()

    with pytest.raises(WiringError, match="outside of that norm"):
        fold_norms(Ones().eval(), torch.arange(9)[None])
