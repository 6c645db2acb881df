"""Folders of transformers: written by us they load there, and loaded here they are complete or refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.strategies import same
from tests.test_storage import refused

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.errors import CheckpointError
from interbasin.extras import import_extra
from interbasin.models import load_model, stored_tensors

TOKENS = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
LLAMA = {**TOKENS, **SMALL, "max_position_embeddings": 32, "tie_word_embeddings": False}
GPT2 = {**TOKENS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


@pytest.fixture(scope="module")
def transformers():
    return import_extra("transformers", "A network of transformers", "hf")


def small(transformers, name: str):
    torch.manual_seed(0)
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval()


@pytest.fixture
def gpt2(transformers, tmp_path) -> Path:
    small(transformers, "gpt2").save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def edit(folder: Path, **changes: object) -> None:
    document = json.loads((folder / "config.json").read_text("utf-8")) | changes
    (folder / "config.json").write_text(json.dumps(document), "utf-8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", [3_000, 10**9])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_we_write_from_pretrained_loads_completely(name, shard, dtype, transformers, tmp_path):
    model = small(transformers, name).to(dtype)
    model.save_pretrained(tmp_path / "theirs")
    write_checkpoint(tmp_path / "ours", model.state_dict(), like=tmp_path / "theirs", max_shard_bytes=shard)
    stored = [set(open_checkpoint(tmp_path / one).sources) for one in ("theirs", "ours")]
    assert stored[0] == stored[1] and (len(open_checkpoint(tmp_path / "ours").files) > 1) == (shard < 10**9)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True, dtype="auto")
    assert not any(report.values())
    found, expected = again.state_dict(), model.state_dict()
    assert set(found) == set(expected) and all(same(found[key], expected[key]) for key in expected)
    assert (again.get_input_embeddings().weight is again.get_output_embeddings().weight) == (name == "gpt2")


def test_a_tied_network_without_a_likeness_keeps_the_name_that_transformers_keeps(transformers, tmp_path):
    write_checkpoint(tmp_path / "m", small(transformers, "gpt2").state_dict())
    assert dict(open_checkpoint(tmp_path / "m").ties) == {"lm_head.weight": "transformer.wte.weight"}


def test_a_folder_is_loaded_with_inputs_that_it_takes(transformers, gpt2, capfd):
    original = small(transformers, "gpt2")
    capfd.readouterr()
    loaded = load_model(str(gpt2))
    assert capfd.readouterr() == ("", "")
    assert type(loaded.model).__name__ == "GPT2LMHeadModel" and loaded.family == "gpt2" and not loaded.model.training
    assert loaded.checkpoint is not None and loaded.checkpoint.folder == gpt2 and loaded.unused == ()
    assert loaded.inputs["use_cache"] is False
    with torch.no_grad():
        assert torch.equal(loaded.model(**loaded.inputs).logits, original(**loaded.inputs).logits)
    assert torch.equal(loaded.inputs["input_ids"], load_model(str(gpt2)).inputs["input_ids"])
    assert load_model(str(gpt2), input_shape=(3, 5)).inputs["input_ids"].shape == (3, 5)


def test_a_network_is_written_by_the_names_its_checkpoint_has(transformers, tmp_path):
    settings = {**LLAMA, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    transformers.MixtralForCausalLM(transformers.MixtralConfig(**settings)).save_pretrained(tmp_path / "theirs")
    loaded = load_model(str(tmp_path / "theirs"))
    write_checkpoint(tmp_path / "ours", stored_tensors(loaded.model), like=loaded.checkpoint)
    theirs, ours = (open_checkpoint(tmp_path / name) for name in ("theirs", "ours"))
    assert set(theirs.sources) == set(ours.sources) and all(same(theirs[name], ours[name]) for name in theirs)


def test_other_networks_are_stored_by_the_names_they_have(transformers, monkeypatch):
    layer = torch.nn.Linear(2, 2)
    assert set(stored_tensors(layer)) == {"weight", "bias"}
    model = small(transformers, "gpt2")
    monkeypatch.setitem(sys.modules, "transformers.core_model_loading", None)  # as before version 5
    assert set(stored_tensors(model)) == set(model.state_dict())
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils")
    assert set(stored_tensors(layer)) == {"weight", "bias"}


def test_the_dtype_of_the_weights_counts_and_not_what_the_configuration_says(transformers, tmp_path):
    model = small(transformers, "llama").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "m")
    edit(tmp_path / "m", dtype="float32")
    assert load_model(str(tmp_path / "m")).model.dtype == torch.bfloat16


def test_a_folder_of_torch_files_is_loaded(transformers, gpt2):
    torch.save(small(transformers, "gpt2").state_dict(), gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    loaded = load_model(str(gpt2))
    assert loaded.checkpoint is not None and loaded.checkpoint.kind == "torch"
    assert dict(loaded.checkpoint.ties) == {"lm_head.weight": "transformer.wte.weight"}


def test_a_folder_without_an_architecture_is_loaded_by_its_type(transformers, gpt2):
    edit(gpt2, architectures=None)
    save_file({k: v.clone() for k, v in small(transformers, "gpt2").transformer.state_dict().items()},
              gpt2 / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    assert type(load_model(str(gpt2)).model).__name__ == "GPT2Model"


def test_missing_superfluous_and_misshapen_tensors_are_named(transformers, gpt2):
    whole = load_file(gpt2 / "model.safetensors")

    def with_weights(**changes: torch.Tensor | None) -> None:
        changed = {name: value for name, value in {**whole, **changes}.items() if value is not None}
        save_file(changed, gpt2 / "model.safetensors", metadata={"format": "pt"})

    with_weights(**{"transformer.ln_f.weight": None})
    words = (str(gpt2), "lacks 1 tensor of its GPT2LMHeadModel: transformer.ln_f.weight")
    refused(lambda: load_model(str(gpt2)), CheckpointError, words)
    refused(lambda: load_model(str(gpt2), strict=False), CheckpointError, words)
    with_weights(**{"pooler.weight": torch.ones(3)})
    words = ("has 1 tensor that its GPT2LMHeadModel has no use for: pooler.weight", "strict=False")
    refused(lambda: load_model(str(gpt2)), CheckpointError, words)
    assert load_model(str(gpt2), strict=False).unused == ("pooler.weight",)
    with_weights(**{"transformer.ln_f.weight": torch.ones(17)})
    words = ("transformer.ln_f.weight has shape (17,) in", "and (16,) in its GPT2LMHeadModel", "together")
    refused(lambda: load_model(str(gpt2)), CheckpointError, words)


def test_damaged_weights_are_noticed_before_transformers_sees_them(transformers, gpt2):
    content = (gpt2 / "model.safetensors").read_bytes()
    (gpt2 / "model.safetensors").write_bytes(content[:-100])
    refused(lambda: load_model(str(gpt2)), CheckpointError, ("is cut short",))


def test_a_class_that_cannot_be_imported_is_named(transformers, gpt2, monkeypatch):
    from interbasin.models import from_transformers

    class Broken:
        def __getattr__(self, name: str) -> None:
            raise ModuleNotFoundError("needs a library")

    words = ("transformers knows GPT2LMHeadModel but cannot import it (needs a library)",)
    refused(lambda: from_transformers._class_named(Broken(), "GPT2LMHeadModel"), CheckpointError, words)


CODE = """
from transformers import PretrainedConfig, PreTrainedModel
import torch

class OwnConfig(PretrainedConfig):
    model_type = "own-network"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    main_input_name = "own"

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 2)
        self.post_init()

    def forward(self, own):
        return self.layer(own)
"""


def test_code_that_comes_with_a_folder_is_run_only_when_asked(transformers, tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "modeling_own.py").write_text(CODE, "utf-8")
    brought = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    settings = {"model_type": "own-network", "architectures": ["OwnModel"], "auto_map": brought}
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    write_checkpoint(folder / "w.safetensors", {"layer.weight": torch.ones(2, 2), "layer.bias": torch.ones(2)})
    (folder / "w.safetensors").rename(folder / "model.safetensors")
    words = (str(folder), "modeling_own.OwnModel", "not run unasked", "--trust-remote-code")
    refused(lambda: load_model(str(folder)), CheckpointError, words)
    cache = transformers.dynamic_module_utils
    monkeypatch.setattr(cache, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = load_model(str(folder), trust_remote_code=True)
    assert loaded.family == "own-network" and loaded.inputs is None
    assert same(loaded.model.layer.weight.detach(), torch.ones(2, 2))


def test_code_of_a_folder_is_not_needed_where_transformers_has_its_own(transformers, gpt2):
    edit(gpt2, auto_map={"AutoModelForCausalLM": "modeling_evil.GPT2LMHeadModel"})
    (gpt2 / "modeling_evil.py").write_text("raise SystemExit('was run')", "utf-8")
    assert type(load_model(str(gpt2)).model).__module__ == "transformers.models.gpt2.modeling_gpt2"


# The hub


@pytest.fixture
def cache(transformers, gpt2, tmp_path, monkeypatch) -> Path:
    """A cache of the hub with one network in it, laid out as the hub's own library lays it out."""
    root = tmp_path / "cache" / "models--someone--small"
    (root / "snapshots").mkdir(parents=True)
    (root / "refs").mkdir()
    gpt2.rename(root / "snapshots" / "abc")
    (root / "refs" / "main").write_text("abc", "utf-8")
    hub = pytest.importorskip("huggingface_hub")
    real = hub.snapshot_download
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **options: real(name, cache_dir=root.parent, **options))
    monkeypatch.delenv("INTERBASIN_DOWNLOADS", raising=False)
    return root


def test_a_hub_id_in_the_cache_is_loaded_without_asking_the_hub(cache):
    assert load_model("someone/small").family == "gpt2"


def test_downloads_are_tried_only_if_the_environment_allows_them(cache, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def refuse(name: str, **options: object) -> None:
        asked.append(options)
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    monkeypatch.setenv("INTERBASIN_DOWNLOADS", "1")
    words = ("nor could it be downloaded (no route to the hub)",)
    refused(lambda: load_model("someone/large"), CheckpointError, words)
    monkeypatch.delenv("INTERBASIN_DOWNLOADS")
    refused(lambda: load_model("someone/large"), CheckpointError)
    assert asked == [{"local_files_only": False}, {"local_files_only": True}]
