"""What is copied along with the weights, and what never is."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.test_storage import left_in

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.checkpoints.write import find_companions, is_our_folder

COPIED = (
    "LICENSE",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "modeling_own.py",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
LEFT = (
    ".gitattributes",
    "README.md",
    "model.safetensors.index.json",
    "optimizer.pt",
    "pytorch_model.bin",
    "rng_state.pth",
    "tokenizer.bin",
    "trainer_state.json",
    "training_args.bin",
    "flax_model.msgpack",
    "tf_model.h5",
)


def filled(folder: Path) -> Path:
    for name in (*COPIED, *LEFT):
        (folder / name).write_text("{}", "utf-8")
    save_file({"w": torch.ones(1)}, folder / "model.safetensors")
    return folder


def test_configuration_tokenizer_and_licence_are_copied_and_weights_are_not(tmp_path):
    like = tmp_path / "like"
    like.mkdir()
    filled(like)
    (like / "checkpoint-500").mkdir()
    (like / "checkpoint-500" / "config.json").write_text("{}", "utf-8")
    write_checkpoint(tmp_path / "m", {"w": torch.zeros(1)}, like=open_checkpoint(like))
    assert left_in(tmp_path / "m") == sorted((*COPIED, "model.safetensors"))
    assert is_our_folder(tmp_path / "m")


def test_links_of_the_hubs_cache_become_files(tmp_path):
    (tmp_path / "blob").write_text("words", "utf-8")
    like = tmp_path / "like"
    like.mkdir()
    (like / "vocab.txt").symlink_to(tmp_path / "blob")
    (like / "tokenizer.json").symlink_to(tmp_path / "gone")
    write_checkpoint(tmp_path / "m", {}, like=like)
    copied = tmp_path / "m" / "vocab.txt"
    assert copied.read_text("utf-8") == "words" and not copied.is_symlink()
    assert left_in(tmp_path / "m") == ["model.safetensors", "vocab.txt"]


def test_the_modules_of_sentence_transformers_are_copied_and_no_other_folder(tmp_path):
    for folder in ("1_Pooling", "other", "additional_chat_templates"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}", "utf-8")
        (tmp_path / folder / "pytorch_model.bin").write_text("", "utf-8")
        (tmp_path / folder / "tool.jinja").write_text("", "utf-8")
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "../x"}, {"path": ".."}, {}, 3]
    (tmp_path / "modules.json").write_text(json.dumps(modules), "utf-8")
    expected = ["1_Pooling/config.json", "1_Pooling/tool.jinja", "additional_chat_templates/config.json"]
    assert find_companions(tmp_path) == [*expected, "additional_chat_templates/tool.jinja", "modules.json"]
    write_checkpoint(tmp_path / "m", {}, like=tmp_path)
    assert (tmp_path / "m" / "1_Pooling" / "config.json").is_file() and is_our_folder(tmp_path / "m")
    write_checkpoint(tmp_path / "m", {}, like=tmp_path, force=True)


def test_a_damaged_list_of_modules_is_copied_as_it_is(tmp_path):
    for text in ("{", '{"a": 1}'):
        (tmp_path / "modules.json").write_text(text, "utf-8")
        assert find_companions(tmp_path) == ["modules.json"]
