"""What is copied along with the weights, and what never is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.test_storage import left_in

from interbasin import merge
from interbasin.checkpoints import links, open_checkpoint, write_checkpoint
from interbasin.checkpoints.write import copy_companions, find_companions, is_our_folder
from interbasin.errors import CheckpointError
from interbasin.outcome import new_outcome

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


def snapshot(cache: Path) -> Path:
    """A folder as the cache of the hub has it: links to files that are called by their hashes."""
    blobs, folder = cache / "models--some-one--tiny" / "blobs", cache / "models--some-one--tiny" / "snapshots" / "f00"
    blobs.mkdir(parents=True)
    (folder / "1_Pooling").mkdir(parents=True)
    save_file({"w": torch.ones(1)}, blobs / "weights")
    (blobs / "words").write_text("words", "utf-8")
    (blobs / "modules").write_text('[{"path": "1_Pooling"}]', "utf-8")
    for name, blob in (("vocab.txt", "words"), ("modules.json", "modules"), ("model.safetensors", "weights")):
        (folder / name).symlink_to(Path("../../blobs") / blob)
    (folder / "1_Pooling" / "config.json").symlink_to("../../../blobs/words")
    (folder / "tokenizer.json").symlink_to("../../blobs/gone")
    return folder


def test_links_of_the_hubs_cache_become_files(tmp_path):
    like = snapshot(tmp_path)
    write_checkpoint(tmp_path / "m", open_checkpoint(like), like=like)
    copied = tmp_path / "m" / "vocab.txt"
    assert copied.read_text("utf-8") == "words" and not copied.is_symlink()
    assert left_in(tmp_path / "m") == [
        "1_Pooling",
        "1_Pooling/config.json",
        "model.safetensors",
        "modules.json",
        "vocab.txt",
    ]
    (tmp_path / "short").symlink_to(like)  # a link to the folder, given by whoever asks
    write_checkpoint(tmp_path / "n", open_checkpoint(tmp_path / "short"), like=tmp_path / "short")
    assert left_in(tmp_path / "n") == left_in(tmp_path / "m")


def secret(tmp_path: Path) -> Path:
    (tmp_path / "credentials").write_text("a token", "utf-8")
    return tmp_path / "credentials"


def linked(tmp_path: Path, place: str) -> Path:
    """A folder with links out of it, at home or in a cache."""
    if place == "a cache":
        folder = snapshot(tmp_path / "cache")
        (folder.parents[1] / "blobs" / "link").symlink_to(secret(tmp_path))
        (folder / "NOTICE").symlink_to("../../blobs/link")
    else:
        folder = tmp_path / "like"
        folder.mkdir()
        save_file({"w": torch.ones(1)}, folder / "model.safetensors")
    (folder / "notes").write_text("kept", "utf-8")
    (folder / "LICENSE").symlink_to("notes")  # inside
    (folder / "LICENSE.txt").symlink_to(secret(tmp_path))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool.jinja").symlink_to(os.path.relpath(secret(tmp_path), folder / "a"))
    return folder


@pytest.mark.parametrize("place", ["a folder", "a cache"])
def test_links_that_leave_the_folder_are_left_out_and_it_is_said(place, tmp_path):
    like = linked(tmp_path, place)
    with pytest.warns(UserWarning, match=r"were not copied along: .*LICENSE\.txt.* are links that leave the folder"):
        write_checkpoint(tmp_path / "m", {"w": torch.zeros(1)}, like=like)
    assert (tmp_path / "m" / "LICENSE").read_text("utf-8") == "kept"
    texts = [path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert not any(b"a token" in text for text in texts)
    for names in (["LICENSE.txt"], ["additional_chat_templates/tool.jinja"]):
        with pytest.raises(CheckpointError, match="a link that leaves the folder"):
            copy_companions(names, like, tmp_path / "m")


def test_an_outcome_and_a_merge_say_what_they_left_out(tmp_path):
    like = linked(tmp_path, "a folder")
    with new_outcome(tmp_path / "o", job="rebasin", request={}) as draft:
        draft.write_checkpoint({"w": torch.zeros(1)}, like=like)
        draft.write_checkpoint({"w": torch.zeros(1)}, like=like, name="again", place="again")
    assert sum("not copied along" in note for note in draft.outcome.notes) == 1
    done = merge([like, like], output=tmp_path / "merged")
    assert any("LICENSE.txt" in note and "not copied along" in note for note in done.notes)
    assert "LICENSE.txt" in (tmp_path / "merged" / "README.md").read_text("utf-8")
    for folder in (tmp_path / "o", tmp_path / "merged"):
        assert not any(b"a token" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_cache_whose_blobs_are_a_link_is_no_cache(tmp_path):
    folder = tmp_path / "models--some-one--tiny" / "snapshots" / "f00"
    folder.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_text("a key", "utf-8")
    (folder.parents[1] / "blobs").symlink_to(tmp_path / "home")
    (folder / "LICENSE").symlink_to("../../blobs/id_rsa")
    assert find_companions(folder) == []


def test_what_is_no_ordinary_file_is_not_copied(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "LICENSE")  # opening it would wait for whoever writes there
    (tmp_path / "folder" / "NOTICE").mkdir()
    assert find_companions(tmp_path / "folder") == []
    for name in ("LICENSE", "NOTICE"):
        with pytest.raises(CheckpointError, match=rf"{name} was to be copied along with the weights, and could not be"):
            copy_companions([name], tmp_path / "folder", tmp_path)


def test_a_file_that_becomes_a_link_after_it_was_looked_at_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "LICENSE").write_text("mine", "utf-8")

    def exchange(path, folder):
        place = links.Path(os.path.realpath(path))
        path.unlink()
        path.symlink_to(secret(tmp_path))
        return place

    monkeypatch.setattr(links, "place_inside", exchange)
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="could not be"):
        copy_companions(["LICENSE"], tmp_path / "folder", tmp_path / "out")
    assert left_in(tmp_path / "out") == []


def sharded(folder: Path) -> Path:
    write_checkpoint(folder, {"a": torch.ones(4), "b": torch.ones(4)}, max_shard_bytes=16)
    return folder


def test_weights_and_shards_that_are_links_out_of_the_folder_are_refused(tmp_path):
    other = sharded(tmp_path / "other")
    save_file({"w": torch.ones(1)}, tmp_path / "single.safetensors")
    for name, target in (
        ("model.safetensors", tmp_path / "single.safetensors"),
        ("adapter_model.safetensors", tmp_path / "single.safetensors"),
        ("model.safetensors.index.json", other / "model.safetensors.index.json"),
    ):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        if name.startswith("adapter"):
            settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["w"]}
            (folder / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
        (folder / name).symlink_to(target)
        with pytest.raises(
            CheckpointError, match=r"is a link to .*, which is outside of its folder; .* open it by itself"
        ):
            open_checkpoint(folder)
    folder = sharded(tmp_path / "sharded")
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    shard.symlink_to(other / shard.name)
    for opened in (folder, folder / "model.safetensors.index.json"):
        with pytest.raises(CheckpointError, match="outside of its folder"):
            open_checkpoint(opened)


def test_weights_that_are_links_inside_the_folder_or_given_by_name_are_read(tmp_path):
    folder = sharded(tmp_path / "sharded")
    for shard in sorted(folder.glob("*.safetensors")):
        shard.rename(folder / f"{shard.name}.kept")
        shard.symlink_to(f"{shard.name}.kept")
    assert set(open_checkpoint(folder)) == {"a", "b"}
    save_file({"w": torch.ones(1)}, tmp_path / "single.safetensors")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "single.safetensors")
    assert set(open_checkpoint(tmp_path / "link.safetensors")) == {"w"}  # whoever asks named it


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
