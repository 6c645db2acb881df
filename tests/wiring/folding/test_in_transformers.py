"""What transformers' own loaders make of a folded network's folder: the same function or an error, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.selection import parameters
from tests.architectures.zoo import ARCHITECTURES
from tests.test_storage import left_in
from torch import nn

from interbasin import merge
from interbasin.checkpoints import write_checkpoint
from interbasin.errors import WiringError
from interbasin.extras import import_extra
from interbasin.models import load_model
from interbasin.outcome import Outcome, new_outcome
from interbasin.wiring import carry, wire
from interbasin.wiring.check import difference
from interbasin.wiring.folding import fold_norms, save_folded

pytestmark = pytest.mark.slow

SAME = 1e-5
# Norms whose gains and biases their readers take in: of root mean square, with a gain beside one, of layers, scales.
HELD = ("llama", "llama-classifier", "gemma", "qwen3", "phi3", "mamba", "vit", "dinov2")
# A head without a bias for that of the last norm; a norm whose output is read by more than weights.
NOT_HELD = ("gpt2", "opt", "t5", "gpt-neox")
EACH = parameters([f"transformers/{name}" for name in (*HELD, *NOT_HELD)])


def entry(name: str, seed: int = 0) -> tuple[nn.Module, Any]:
    network, inputs = ARCHITECTURES[name](0)
    return randomise(network, seed, inputs), inputs


def folded(name: str, seed: int = 0) -> tuple[nn.Module, Any]:
    network, inputs = entry(name, seed)
    return fold_norms(network, inputs), inputs


def is_held(name: str) -> bool:
    return name.removeprefix("transformers/") in HELD


def check(folder: Path, network: nn.Module, inputs: Any, *, held: bool) -> None:
    """Our loader and that of transformers compute what ``network`` does, or the latter raises, whichever is asked."""
    assert difference(network, load_model(str(folder)).model, inputs) < SAME
    transformers = import_extra("transformers", "Loading a folder", "hf")
    kind = type(network)
    if held:
        loaded, report = kind.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values())
        assert difference(network, loaded, inputs) < SAME
        return
    for loader in (kind, transformers.AutoModel):
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            loader.from_pretrained(folder)
    named = json.loads((folder / "config.json").read_text("utf-8"))["architectures"]
    assert named == [f"Folded{kind.__name__}"] and not hasattr(transformers, named[0])


@pytest.mark.parametrize("name", EACH)
def test_a_folded_network_is_computed_alike_or_refused(name: str, tmp_path: Path) -> None:
    network, inputs = folded(name)
    (sentence,) = save_folded(network, tmp_path / "folded")
    check(tmp_path / "folded", network, inputs, held=is_held(name))
    assert sentence.startswith("The network in folded is folded")
    assert ("transformers loads the folder" in sentence) is is_held(name)


@pytest.mark.parametrize("name", parameters(["transformers/llama", "transformers/vit", "transformers/gpt2"]))
def test_a_network_that_was_turned_after_folding_is_too(name: str, tmp_path: Path) -> None:
    network, inputs = folded(name)
    alignment = wire(network, inputs).sample(seed=1)
    other = carry(network, alignment)
    save_folded(other, tmp_path / "carried")
    # A layer norm takes away the mean, which is no longer where it was folded away once the stream is turned.
    check(tmp_path / "carried", other, inputs, held=name == "transformers/llama")
    write_checkpoint(tmp_path / "tensors", carry(network.state_dict(), alignment), like=tmp_path / "carried")
    check(tmp_path / "tensors", other, inputs, held=name == "transformers/llama")
    with new_outcome(tmp_path / "out", job="rebasin", request={}) as draft:
        draft.write_checkpoint(other, like=tmp_path / "carried")
    check(tmp_path / "out", other, inputs, held=name == "transformers/llama")
    assert any("is folded: the gains of its norms" in note for note in Outcome.load(tmp_path / "out").notes)


@pytest.mark.parametrize("name", parameters(["transformers/llama", "transformers/vit", "transformers/gpt2"]))
@pytest.mark.parametrize("method", ["average", "ties"])
def test_what_is_merged_of_folded_networks_is_too(name: str, method: str, tmp_path: Path) -> None:
    for seed, place in enumerate(("one", "two", "base")):
        network, inputs = folded(name, seed)
        save_folded(network, tmp_path / place)
    models = [tmp_path / "one", tmp_path / "two"]
    merge(models, method, base=tmp_path / "base" if method == "ties" else None, output=tmp_path / "out")
    merged = load_model(str(tmp_path / "out")).model
    check(tmp_path / "out", merged, inputs, held=name == "transformers/llama")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "Like each of the models, the merged network is folded" in card


def test_a_stream_that_got_a_mean_again_is_noticed(tmp_path: Path) -> None:
    network, inputs = folded("transformers/vit")
    with torch.no_grad():
        network.vit.layers[0].attention.o_proj.bias.add_(0.1)  # type: ignore[union-attr, operator, index]
    save_folded(network, tmp_path / "folded")
    check(tmp_path / "folded", network, inputs, held=False)
    assert not {"model.safetensors"} & {*left_in(tmp_path / "folded")}


def test_half_precision_is_left_to_transformers_where_it_rounds_alike(tmp_path: Path) -> None:
    network, inputs = folded("transformers/llama")
    save_folded(network.bfloat16(), tmp_path / "folded")
    loaded, report = type(network).from_pretrained(tmp_path / "folded", output_loading_info=True)  # type: ignore[attr-defined]
    assert not any(report.values()) and {one.dtype for one in loaded.parameters()} == {torch.bfloat16}
    assert difference(network, loaded, inputs) < 0.05


def test_a_network_whose_norms_stand_behind_is_not_folded_at_all() -> None:
    network, inputs = entry("transformers/bert")
    with pytest.raises(WiringError, match="No norm of Bert"):
        fold_norms(network, inputs)


def test_rebasin_says_who_loads_the_folded_networks(tmp_path: Path) -> None:
    from interbasin import rebasin

    (source, inputs), (target, _) = entry("transformers/gpt2", 0), entry("transformers/gpt2", 1)
    result = rebasin(source, target, inputs, stay_in_class=False)
    result.save(tmp_path / "out")
    notes = Outcome.load(tmp_path / "out").notes
    assert sum("transformers refuses the folder" in note for note in notes) == 2
    check(tmp_path / "out" / "model", result.model, inputs, held=False)
    check(tmp_path / "out" / "target", result.target, inputs, held=False)
