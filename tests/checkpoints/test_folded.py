"""Folders of folded networks: fillers for transformers are not weights, and what it cannot hold it does not find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.test_storage import left_in
from torch import Tensor

from interbasin import merge
from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.checkpoints.folded import FOLDING, Filler, describe_folder
from interbasin.checkpoints.write import is_our_folder
from interbasin.errors import CheckpointError, WiringError

FILLERS = {"norm.weight": [1, 4], "norm.bias": [0, 4], "last.weight": [0, 2]}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def weights(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(4, 4, generator=generator).to(dtype) for name in ("up", "down")}


def folded(folder: Path, fillers: Any = FILLERS, **more: Any) -> Path:
    """The configuration of a folded network, without its weights."""
    folder.mkdir(parents=True)
    (folder / FOLDING).write_text(json.dumps({"fillers": fillers, "centred": False, **more}), "utf-8")
    (folder / "config.json").write_text('{"model_type": "tiny", "architectures": ["Tiny"]}', "utf-8")
    return folder


def architectures(folder: Path) -> list[str]:
    named: list[str] = json.loads((folder / "config.json").read_text("utf-8"))["architectures"]
    return named


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shard", [1, 10**9], ids=["shards", "one file"])
def test_fillers_are_written_beside_the_weights_in_their_dtype_and_are_no_weights(dtype, shard, tmp_path):
    write_checkpoint(tmp_path / "m", weights(dtype), like=folded(tmp_path / "like"), max_shard_bytes=shard)
    stored: dict[str, Tensor] = {}
    for file in (tmp_path / "m").glob("model*.safetensors"):
        stored |= load_file(file)
    assert {name: tensor.tolist() for name, tensor in stored.items() if name in FILLERS} == {
        "norm.weight": [1.0] * 4,
        "norm.bias": [0.0] * 4,
        "last.weight": [0.0] * 2,
    }
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    checkpoint = open_checkpoint(tmp_path / "m")
    assert set(checkpoint) == {"up", "down"} and checkpoint.numel == 32
    assert all(torch.equal(checkpoint[name], tensor) for name, tensor in weights(dtype).items())
    assert architectures(tmp_path / "m") == ["Tiny"] and is_our_folder(tmp_path / "m")
    write_checkpoint(tmp_path / "again", checkpoint, like=checkpoint)
    assert set(load_file(tmp_path / "again" / "model.safetensors")) == {"up", "down", *FILLERS}
    assert "Ones stand in their places" in str(describe_folder(tmp_path / "again", "It"))


def test_one_file_of_such_a_folder_is_what_transformers_reads(tmp_path):
    write_checkpoint(tmp_path / "m", weights(), like=folded(tmp_path / "like"))
    assert set(open_checkpoint(tmp_path / "m" / "model.safetensors")) == {"up", "down", *FILLERS}


@pytest.mark.parametrize("shard", [1, 10**9], ids=["shards", "one file"])
@pytest.mark.parametrize(
    ("fillers", "centred"), [(None, False), (FILLERS, True)], ids=["no place", "a mean that may be there again"]
)
def test_what_the_class_would_compute_otherwise_is_kept_from_transformers(fillers, centred, shard, tmp_path):
    like = folded(tmp_path / "like", fillers, centred=centred)
    for name in ("m", "again"):
        write_checkpoint(tmp_path / name, weights(), like=like, max_shard_bytes=shard)
        files = left_in(tmp_path / name)
        assert not any(file.startswith(("model", "pytorch_model")) for file in files)
        assert any(file.startswith("folded_model") for file in files)
        assert architectures(tmp_path / name) == ["FoldedTiny"]
        assert set(open_checkpoint(tmp_path / name)) == {"up", "down"}
        assert "transformers refuses the folder (folded_model" in str(describe_folder(tmp_path / name, "It"))
        assert is_our_folder(tmp_path / name)
        like = tmp_path / "m"
    write_checkpoint(tmp_path / "m", weights(), like=tmp_path / "again", force=True)


def test_a_mark_without_a_word_on_fillers_is_one_of_an_earlier_version(tmp_path):
    like = folded(tmp_path / "like")
    (like / FOLDING).write_text("{}", "utf-8")
    save_file(weights(), like / "model.safetensors")  # under the name that it had
    write_checkpoint(tmp_path / "m", open_checkpoint(like), like=like)
    assert "folded_model.safetensors" in left_in(tmp_path / "m")


def test_fillers_that_are_among_the_tensors_are_taken_as_they_are(tmp_path):
    given = {name: torch.full((width,), float(value)) for name, (value, width) in FILLERS.items()}
    write_checkpoint(tmp_path / "m", {**weights(), **given}, like=folded(tmp_path / "like", centred=True))
    assert set(load_file(tmp_path / "m" / "model.safetensors")) == {"up", "down", *FILLERS}


def test_a_configuration_without_architectures_and_none_at_all(tmp_path):
    like = folded(tmp_path / "like", None)
    (like / "config.json").write_text("{}", "utf-8")
    write_checkpoint(tmp_path / "m", weights(), like=like)
    assert architectures(tmp_path / "m") == ["Folded"]
    (like / "config.json").unlink()
    write_checkpoint(tmp_path / "n", weights(), like=like)
    assert left_in(tmp_path / "n") == ["folded_model.safetensors", FOLDING]
    assert "Only interbasin builds it again" in str(describe_folder(tmp_path / "n", "It"))


@pytest.mark.parametrize(
    "other",
    [torch.tensor([1.0, 1.0, 1.0, 1.5]), torch.ones(5), torch.ones(4, dtype=torch.int32), torch.ones(4, 1)],
    ids=["another number", "another width", "another dtype", "another shape"],
)
def test_gains_that_somebody_changed_are_refused(other, tmp_path):
    write_checkpoint(tmp_path / "m", weights(), like=folded(tmp_path / "like"))
    file = tmp_path / "m" / "model.safetensors"
    save_file({**load_file(file), "norm.weight": other}, file)
    with pytest.raises(CheckpointError, match=r"norm\.weight is 1 throughout, but other numbers are stored"):
        open_checkpoint(tmp_path / "m")
    (tmp_path / "m" / FOLDING).unlink()
    assert set(open_checkpoint(tmp_path / "m")) == {"up", "down", *FILLERS}


@pytest.mark.parametrize(
    "fillers",
    [3, ["a"], {"a": 1}, {"a": [1]}, {"a": [2, 4]}, {"a": [1, 0]}, {"a": [1.0, 4]}, {"a": [1, 4, 5]}],
    ids=str,
)
def test_a_damaged_list_of_fillers_is_refused(fillers, tmp_path):
    like = folded(tmp_path / "like", fillers)
    save_file(weights(), like / "model.safetensors")
    for act in (lambda: open_checkpoint(like), lambda: write_checkpoint(tmp_path / "m", weights(), like=like)):
        with pytest.raises(CheckpointError, match="is damaged in what it calls fillers"):
            act()
    assert not (tmp_path / "m").exists()


def test_a_filler_in_bfloat16_is_what_torch_makes_of_it():
    for value in (0, 1):
        stored = torch.from_numpy(Filler(value, 3).stored_as("bfloat16").copy()).view(torch.bfloat16)
        assert torch.equal(stored, torch.full((3,), value, dtype=torch.bfloat16))


# ---------------------------------------------------------------------- merging


def two(tmp_path: Path, **more: Any) -> list[Path]:
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        write_checkpoint(folder, weights(seed=seed), like=folded(tmp_path / f"like-{seed}", **more))
    return folders


@pytest.mark.parametrize("loads", [True, False], ids=["with fillers", "without"])
def test_a_merge_of_folded_networks_is_folded_and_its_card_says_so(loads, tmp_path):
    done = merge(two(tmp_path, **({} if loads else {"fillers": None})), output=tmp_path / "out")
    assert set(open_checkpoint(tmp_path / "out")) == {"up", "down"}
    assert done.metrics["tensors"] == 2 and architectures(tmp_path / "out") == ["Tiny" if loads else "FoldedTiny"]
    assert ("model.safetensors" in left_in(tmp_path / "out")) is loads
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    sentence = "Like each of the models, the merged network is folded: the gains of its norms are in the layers"
    assert sentence in card and any(sentence in note for note in done.notes)
    assert ("transformers loads the folder" if loads else "transformers refuses the folder") in card


def test_a_merge_of_folded_networks_into_one_file_says_what_a_file_cannot(tmp_path):
    done = merge(two(tmp_path), output=tmp_path / "out.safetensors")
    assert any("which a single file cannot say" in note for note in done.notes)
    assert set(open_checkpoint(tmp_path / "out.safetensors")) == {"up", "down"}


def test_a_folded_network_is_not_merged_with_one_that_is_not(tmp_path):
    write_checkpoint(tmp_path / "one", weights(), like=folded(tmp_path / "like"))
    gains = {name: torch.ones(width) for name, (_, width) in FILLERS.items()}
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text('{"model_type": "tiny"}', "utf-8")
    write_checkpoint(tmp_path / "two", {**weights(), **gains}, like=tmp_path / "plain")
    for models in (["one", "two"], ["two", "one"]):
        with pytest.raises(WiringError, match=r"one, in which the gains of norms are folded .* fold both"):
            merge([tmp_path / name for name in models], output=tmp_path / "out")
