"""Adapters: the base is found, the adapter put on, and what does not fit is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.test_from_transformers import small
from tests.test_storage import refused

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.errors import CheckpointError
from interbasin.extras import import_extra
from interbasin.models import load_model


@pytest.fixture(scope="module")
def transformers():
    return import_extra("transformers", "A network of transformers", "hf")


@pytest.fixture(scope="module")
def saved(transformers, tmp_path_factory) -> tuple[Path, torch.Tensor]:
    """A base and its adapter, side by side, and what they answer together."""
    peft = import_extra("peft", "An adapter", "hf")
    folder = tmp_path_factory.mktemp("peft")
    small(transformers, "llama").save_pretrained(folder / "base")
    base = transformers.LlamaForCausalLM.from_pretrained(folder / "base")
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], use_dora=True, init_lora_weights=False)
    model = peft.get_peft_model(base, config).eval()
    model.save_pretrained(folder / "adapter")
    with torch.no_grad():
        return folder, model(torch.arange(3, 9)[None]).logits


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy of both that may be damaged."""
    import shutil

    shutil.copytree(saved[0], tmp_path / "copy")
    return tmp_path / "copy"


def edit(folder: Path, **changes: object) -> None:
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def test_an_adapter_is_put_on_the_base_that_it_names(saved, capfd):
    path, answer = saved
    loaded = load_model(str(path / "adapter"))
    assert type(loaded.model).__name__ == "PeftModelForCausalLM" or "Peft" in type(loaded.model).__name__
    assert loaded.family == "llama" and not loaded.model.training
    assert loaded.checkpoint is not None and loaded.checkpoint.adapter is not None
    assert loaded.checkpoint.adapter.rank == 2 and loaded.checkpoint.adapter.targets == ("q_proj",)
    with torch.no_grad():
        assert torch.equal(loaded.model(torch.arange(3, 9)[None]).logits, answer)
        loaded.model(**loaded.inputs)


@pytest.mark.parametrize("name", ["../base", "base"])
def test_the_base_may_be_named_as_seen_from_either_folder(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    edit(folder, base_model_name_or_path=name)
    assert load_model("adapter").family == "llama"


def test_another_base_can_be_asked_for(folder):
    edit(folder, base_model_name_or_path="somewhere/else")
    words = ("'somewhere/else'", "neither a folder here")
    refused(lambda: load_model(str(folder / "adapter")), CheckpointError, words)
    assert load_model(str(folder / "adapter"), base=str(folder / "base")).family == "llama"


def test_an_adapter_that_does_not_fit_is_refused(folder):
    path = folder / "adapter" / "adapter_model.safetensors"
    whole = load_file(path)
    first = sorted(whole)[0]
    save_file({name: value for name, value in whole.items() if name != first}, path)
    refused(lambda: load_model(str(folder / "adapter")), CheckpointError, ("lacks 1 tensor of the adapter of",))
    save_file({**whole, "base_model.model.stranger.lora_A.weight": torch.ones(1)}, path)
    refused(lambda: load_model(str(folder / "adapter")), CheckpointError, ("no use for", "stranger"))
    save_file({name: torch.ones(3, 3) for name in whole}, path)
    refused(lambda: load_model(str(folder / "adapter")), CheckpointError, ("PEFT could not put the adapter",))
    edit(folder, target_modules=["nowhere"])
    refused(lambda: load_model(str(folder / "adapter")), CheckpointError, ("PEFT could not put", "nowhere"))


def test_an_adapter_that_we_write_is_one_that_peft_loads(folder):
    adapter = open_checkpoint(folder / "adapter")
    write_checkpoint(folder / "twice", {name: 2 * adapter[name] for name in adapter}, like=adapter)
    loaded = load_model(str(folder / "twice")).model.state_dict()
    name = next(name for name in adapter if name.endswith("lora_A.weight"))
    assert torch.equal(loaded[name.replace("lora_A", "lora_A.default")], 2 * adapter[name])
