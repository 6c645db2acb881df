"""Folders: single files, indices and shards, adapters; what does not belong together is told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.strategies import same
from tests.test_storage import case, refused

from interbasin.checkpoints import open_checkpoint
from interbasin.checkpoints.open import gather
from interbasin.checkpoints.safetensors_files import open_safetensors
from interbasin.errors import CheckpointError, UnknownNameError

A, B = torch.arange(4.0), torch.ones(2, 3, dtype=torch.bfloat16)
SHARDS = {"model-00001-of-00002.safetensors": {"a": A}, "model-00002-of-00002.safetensors": {"b": B}}
INDEX = "model.safetensors.index.json"


def sharded(folder: Path, shards: dict[str, dict[str, torch.Tensor]] = SHARDS, index: str = INDEX) -> Path:
    folder.mkdir(exist_ok=True)
    for name, tensors in shards.items():
        (save_file if name.endswith("safetensors") else torch.save)(tensors, folder / name)
    write_index(folder, {tensor: name for name, tensors in shards.items() for tensor in tensors}, index)
    return folder


def lone_shard(folder: Path) -> None:
    """The second of two files, without the first one and the index: half of a network."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file({"b": torch.zeros(2)}, folder / "model-00002-of-00002.safetensors")


def write_index(folder: Path, weight_map: Any, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}), "utf-8")


def test_a_sharded_folder_is_one_checkpoint(tmp_path):
    folder = sharded(tmp_path / "m")
    for path in (folder, folder / INDEX):
        checkpoint = open_checkpoint(path)
        assert checkpoint.kind == "sharded" and set(checkpoint) == {"a", "b"}
        assert [file.name for file in checkpoint.files] == list(SHARDS)
        assert same(checkpoint["a"], A) and same(checkpoint["b"], B) and checkpoint.dtype("b") == torch.bfloat16
    assert open_checkpoint(folder).folder == folder and open_checkpoint(folder / INDEX).folder is None


def test_shards_of_torch_are_read_too(tmp_path):
    shards = {"pytorch_model-00001-of-00002.bin": {"a": A, "tied": A}, "pytorch_model-00002-of-00002.bin": {"b": B}}
    checkpoint = open_checkpoint(sharded(tmp_path / "m", shards, "pytorch_model.bin.index.json"))
    assert checkpoint.kind == "sharded" and dict(checkpoint.ties) == {"tied": "a"} and same(checkpoint["tied"], A)


def test_a_folder_with_one_file_is_read_by_whatever_name_it_has(tmp_path):
    for name in ("model.safetensors", "diffusion_model.safetensors"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        save_file({"a": A}, folder / name)
        assert open_checkpoint(folder).kind == "safetensors" and open_checkpoint(folder).folder == folder
    folder = tmp_path / "torch"
    folder.mkdir()
    torch.save({"a": A}, folder / "pytorch_model.bin")
    assert open_checkpoint(folder).kind == "torch"


def test_safetensors_come_before_torch_and_one_file_before_shards_as_in_transformers(tmp_path):
    folder = sharded(tmp_path / "m")
    torch.save({"torch": A}, folder / "pytorch_model.bin")
    assert set(open_checkpoint(folder)) == {"a", "b"}
    save_file({"single": A}, folder / "model.safetensors")
    assert set(open_checkpoint(folder)) == {"single"}


def edit_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text("utf-8"))
        change(document)
        (folder / INDEX).write_text(json.dumps(document), "utf-8")

    return edit


def point(name: str) -> Callable[[Path], None]:
    return edit_index(lambda document: document["weight_map"].update(a=name))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        case(
            "a missing shard",
            lambda f: (f / "model-00002-of-00002.safetensors").unlink(),
            CheckpointError,
            "names 2 files and not all are there: model-00002-of-00002.safetensors missing",
        ),
        case(
            "a tensor in another shard",
            point("model-00002-of-00002.safetensors"),
            CheckpointError,
            "says that model-00002-of-00002.safetensors holds a, but it does not",
        ),
        case(
            "two tensors exchanged",
            edit_index(lambda d: d["weight_map"].update(a=d["weight_map"]["b"], b=d["weight_map"]["a"])),
            CheckpointError,
            "holds b, but it does not (some are in model-00002-of-00002.safetensors)",
        ),
        case(
            "a tensor in no shard",
            edit_index(lambda d: d["weight_map"].update(c=d["weight_map"]["a"])),
            CheckpointError,
            "holds c, but it does not;",
        ),
        case(
            "a tensor that the index does not list",
            lambda f: save_file({"a": A, "x": A.clone()}, f / "model-00001-of-00002.safetensors"),
            CheckpointError,
            "model-00001-of-00002.safetensors holds x, which",
            "does not list",
        ),
        case(
            "a tensor in two shards",
            lambda f: save_file({"b": B, "a": A}, f / "model-00002-of-00002.safetensors"),
            CheckpointError,
            "has a twice, in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors",
        ),
        case("a way out", point("../other.safetensors"), CheckpointError, '"../other.safetensors"', "not inside"),
        case("a way out below", point("x/../../o.safetensors"), CheckpointError, "not inside its folder"),
        case("an absolute path", point("/etc/o.safetensors"), CheckpointError, "not inside its folder"),
        case("another drive", point("C:\\o.safetensors"), CheckpointError, "not inside its folder"),
        case("a way out for Windows", point("..\\o.safetensors"), CheckpointError, "not inside its folder"),
        case("no name", point(""), CheckpointError, "not inside its folder"),
        case("no map", lambda f: (f / INDEX).write_text("{}", "utf-8"), CheckpointError, "has no weight_map"),
        case("an empty map", lambda f: write_index(f, {}), CheckpointError, "has no weight_map"),
        case("one file of several", lone_shard, CheckpointError, "one of 2 files", "copy all files and the index"),
        case("a list for a map", lambda f: write_index(f, ["a"]), CheckpointError, "has no weight_map"),
        case("numbers for files", lambda f: write_index(f, {"a": 1}), CheckpointError, "has no weight_map"),
        case("half an index", lambda f: (f / INDEX).write_text('{"we', "utf-8"), CheckpointError, "it is not JSON"),
        case("a list", lambda f: (f / INDEX).write_text("[]", "utf-8"), CheckpointError, "JSON list"),
        case("no text", lambda f: (f / INDEX).write_bytes(b"\xff"), CheckpointError, "it is not JSON"),
        case(
            "no index",
            lambda f: (f / INDEX).unlink(),
            CheckpointError,
            "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors and no model.safetensors.index.json",
        ),
    ],
)
def test_index_and_shards_that_do_not_agree_are_refused(damage, error, words, tmp_path):
    folder = sharded(tmp_path / "m")
    damage(folder)
    refused(lambda: open_checkpoint(folder), error, (str(folder), *words) if words[0][0] != "m" else words)


def test_a_shard_cut_off_anywhere_is_noticed_when_the_folder_is_opened(tmp_path):
    folder = sharded(tmp_path / "m")
    shard = folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    for kept in range(len(whole)):
        shard.write_bytes(whole[:kept])
        refused(lambda: open_checkpoint(folder), CheckpointError, (str(shard),))


def test_files_with_the_same_tensor_are_not_gather(tmp_path):
    for name in "12":
        save_file({"a": A}, tmp_path / f"{name}.safetensors")
    sources = [open_safetensors(tmp_path / f"{name}.safetensors") for name in "12"]
    refused(lambda: gather(tmp_path, sources), CheckpointError, ("has a twice, in 1.safetensors and in 2.safetensors",))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({}, ("holds no weights", "found no files"), id="an empty folder"),
        pytest.param({"config.json": b"{}"}, ("holds no weights", "found config.json"), id="a configuration"),
        pytest.param({"tf_model.h5": b"x"}, ("weights of TensorFlow only (tf_model.h5)", "convert"), id="tensorflow"),
        pytest.param({"flax_model.msgpack": b"x"}, ("weights of Flax only",), id="flax"),
        pytest.param({"m.q4.gguf": b"GGUF"}, ("GGUF", "gguf_file"), id="gguf"),
        pytest.param({"config.json": b"{"}, ("config.json", "not JSON"), id="a damaged configuration"),
        pytest.param({"adapter_config.json": b"{}"}, ("adapter_config.json", "peft_type is None"), id="no adapter"),
        pytest.param(
            {"adapter_config.json": b'{"peft_type": "LORA"}', "model.safetensors": b""},
            ("holds no weights", "adapter_model.safetensors"),
            id="an adapter without weights",
        ),
    ],
)
def test_a_folder_without_weights_is_refused_with_what_was_found(files, words, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused(lambda: open_checkpoint(tmp_path), CheckpointError, (str(tmp_path), *words))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", ("there is nothing there",)),
        ("a\0b", ("there is nothing there",)),
        ("x" * 300, ()),
    ],
)
def test_a_place_without_anything_is_named(name, words, tmp_path):
    refused(lambda: open_checkpoint(tmp_path / name), CheckpointError, ("Weights were to be read from", *words))


def test_a_pipe_is_not_read(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    refused(lambda: open_checkpoint(tmp_path / "pipe"), CheckpointError, ("a pipe or a device",))


def test_a_folder_that_cannot_be_looked_at_is_named(tmp_path, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    refused(lambda: open_checkpoint(tmp_path), CheckpointError, ("could not be looked at (Permission denied)",))


def test_a_configuration_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    folder = sharded(tmp_path / "m")

    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_text", refuse)
    refused(lambda: open_checkpoint(folder), CheckpointError, (INDEX, "Input/output error"))


# Adapters


def adapter(folder: Path, **settings: object) -> Path:
    folder.mkdir(exist_ok=True)
    described = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q", "v"], **settings}
    (folder / "adapter_config.json").write_text(json.dumps(described), "utf-8")
    save_file({"base_model.model.q.lora_A.weight": torch.ones(4, 6)}, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_says_what_it_is_and_of_what(tmp_path):
    checkpoint = open_checkpoint(adapter(tmp_path / "a", base_model_name_or_path="some/base"))
    assert checkpoint.kind == "adapter" and checkpoint.adapter is not None
    assert (checkpoint.adapter.method, checkpoint.adapter.base) == ("LORA", "some/base")
    assert (checkpoint.adapter.rank, checkpoint.adapter.alpha) == (4, 8)
    assert checkpoint.adapter.targets == ("q", "v") and checkpoint.adapter.settings["peft_type"] == "LORA"
    assert len(checkpoint) == 1


def test_an_adapter_may_target_by_an_expression_or_leave_things_open(tmp_path):
    found = open_checkpoint(adapter(tmp_path / "a", target_modules=".*q", r=None, lora_alpha=0.5)).adapter
    assert found is not None and found.targets == ".*q" and found.rank is None and found.base is None
    found = open_checkpoint(adapter(tmp_path / "b", target_modules=None)).adapter
    assert found is not None and found.targets == ()


def test_an_adapter_in_a_torch_file_is_read(tmp_path):
    folder = adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").unlink()
    torch.save({"x.lora_A.weight": A}, folder / "adapter_model.bin")
    assert open_checkpoint(folder).kind == "adapter" and same(open_checkpoint(folder)["x.lora_A.weight"], A)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"peft_type": None}, "peft_type is None"),
        ({"r": "four"}, "r is 'four'"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": []}, "lora_alpha is []"),
        ({"target_modules": [1]}, "target_modules is [1]"),
        ({"target_modules": 3}, "target_modules is 3"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path is 3"),
    ],
)
def test_a_configuration_that_describes_no_adapter_is_refused(settings, word, tmp_path):
    folder = adapter(tmp_path / "a", **settings)
    refused(lambda: open_checkpoint(folder), CheckpointError, ("adapter_config.json", word))


# Quantised weights


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ"),
        ({"quant_method": "awq"}, "AWQ"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"_load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({"quant_method": "fp8"}, "FP8"),
        ({}, "a method it does not name"),
        ("yes", "a method it does not name"),
    ],
)
def test_a_quantised_configuration_is_refused_by_name(settings, method, tmp_path):
    save_file({"a": A}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}), "utf-8")
    refused(lambda: open_checkpoint(tmp_path), CheckpointError, (f"quantised with {method},", "dequantize"))


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (("q.qweight", "q.qzeros", "q.scales", "q.g_idx"), "GPTQ"),
        (("q.qweight", "q.qzeros", "q.scales"), "AWQ"),
        (("q.weight", "q.weight.absmax", "q.weight.quant_state.bitsandbytes__nf4"), "bitsandbytes"),
        (("q.weight", "q.SCB"), "bitsandbytes"),
        (("q.W_q", "q.meta"), "HQQ"),
        (("q.weight_packed", "q.weight_scale"), "compressed-tensors"),
        (("q.weight", "q.weight_scale_inv"), "FP8"),
    ],
)
def test_quantised_tensors_are_refused_by_name(names, method, tmp_path):
    save_file({name: A.clone() for name in names}, tmp_path / "w.safetensors")
    refused(lambda: open_checkpoint(tmp_path / "w.safetensors"), CheckpointError, (f"quantised with {method}", "q."))


@pytest.mark.parametrize("names", [("g_idx.weight", "scales"), ("a.qzeros",), ("absmax", "SCB")])
def test_names_that_only_look_alike_are_read(names, tmp_path):
    save_file({name: A.clone() for name in names}, tmp_path / "w.safetensors")
    assert set(open_checkpoint(tmp_path / "w.safetensors")) == set(names)


@pytest.mark.parametrize("magic", [b"GGUF", b"lmgg", b"tjgg"])
@pytest.mark.parametrize("name", ["m.gguf", "m.bin", "m.safetensors"])
def test_a_gguf_file_is_refused_whatever_it_is_called(magic, name, tmp_path):
    (tmp_path / name).write_bytes(magic + b"\3\0\0\0" * 8)
    refused(lambda: open_checkpoint(tmp_path / name), CheckpointError, ("GGUF file of llama.cpp", "gguf_file"))


@pytest.mark.parametrize("given", [None, 3, b"m", [], object()], ids=lambda given: type(given).__name__)
def test_a_path_is_text(given):
    refused(lambda: open_checkpoint(given), CheckpointError, ("named by text", f"found a {type(given).__name__}"))


def test_an_empty_path_is_not_the_current_folder():
    refused(lambda: open_checkpoint(""), CheckpointError, ("its name is empty",))


def test_a_part_is_one_of_a_torch_file(tmp_path):
    folder = sharded(tmp_path / "m")
    for path, found in (
        (folder, "a folder"),
        (folder / INDEX, "an index"),
        (folder / next(iter(SHARDS)), "a safetensors"),
    ):
        words = ("part='ema' chooses among the state dicts", found, "leave part= out")
        refused(lambda path=path: open_checkpoint(path, part="ema"), CheckpointError, words)


@pytest.mark.parametrize("name", [None, 3, ["a"], {}])
def test_names_of_tensors_are_text(tmp_path, name):
    checkpoint = open_checkpoint(sharded(tmp_path / "m"))
    for look in (checkpoint.__getitem__, checkpoint.entry, checkpoint.shape):
        refused(lambda look=look: look(name), UnknownNameError, (f"named {name!r}", "a, b"))
