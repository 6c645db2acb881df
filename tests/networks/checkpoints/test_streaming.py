"""The writer that streams, and stretches of tensors read from files of either format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file
from tests.networks.checkpoints.strategies import tensors as any_tensor
from tests.networks.checkpoints.strategies import weights
from tests.test_storage import refused

from interbasin.errors import CheckpointError, UnknownNameError
from interbasin.networks import open_checkpoint, write_checkpoint
from interbasin.networks.checkpoints import streaming
from interbasin.networks.checkpoints.checkpoint import Entry
from interbasin.networks.checkpoints.dtypes import CODES, KINDS, kind_of_dtype, torch_dtype
from interbasin.networks.checkpoints.layout import is_our_file, is_our_folder
from interbasin.networks.checkpoints.streaming import in_file_order, stream_file, stream_into


def stored(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def announced(tensors: dict[str, torch.Tensor]) -> dict[str, Entry]:
    return {
        name: Entry(kind_of_dtype(one.dtype), tuple(one.shape), one.element_size()) for name, one in tensors.items()
    }


def streamed(folder, tensors, limit=10**9, pieces=lambda raw: [raw], **keywords):
    folder.mkdir()
    entries = announced(tensors)
    coming = ((name, pieces(stored(tensors[name]))) for name in in_file_order(entries))
    options = {"stem": "model", "ties": {}, "copied": [], "notes": {"format": "pt"}, "max_shard_bytes": limit}
    return stream_into(folder, entries, coming, **{**options, **keywords})


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(stored(one), stored(other))


@given(found=weights())
def test_what_is_streamed_is_read_back_bit_by_bit(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamed") / "model"
    streamed(folder, found, limit=64, pieces=lambda raw: [raw[:3], raw[3:]])
    back = open_checkpoint(folder)
    assert set(back) == set(found) and all(equal(back[name], tensor) for name, tensor in found.items())
    assert is_our_folder(folder)


@given(found=weights())
def test_a_listener_hears_of_every_byte_once_it_can_be_read(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamed") / "model"
    seen: dict[int, list[int]] = {}

    def heard(path, size):
        assert path.stat().st_size == size
        seen.setdefault(path.stat().st_ino, []).append(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "TOLD", 16)
        streamed(folder, found, limit=64, pieces=lambda raw: [raw[:3], raw[3:]], written=heard)
    assert all(sizes == sorted(sizes) for sizes in seen.values())
    files = folder.glob("*.safetensors")
    assert {file.stat().st_ino: file.stat().st_size for file in files} == {
        one: sizes[-1] for one, sizes in seen.items()
    }


def test_the_library_reads_what_is_streamed(tmp_path):
    tensors = {
        "a": torch.randn(3, 2).half(),
        "b": torch.randn(5).double(),
        "c": torch.tensor([True]),
        "d": torch.ones(()),
    }
    assert streamed(tmp_path / "model", tensors) == 1
    found = load_file(tmp_path / "model/model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_ties_notes_and_a_single_file(tmp_path):
    tensors = {"a": torch.randn(3)}
    path = tmp_path / "some.safetensors"
    stream_file(path, announced(tensors), [("a", [stored(tensors["a"])])], ties={"b": "a"}, notes={"said": "so"})
    found = open_checkpoint(path)
    assert dict(found.ties) == {"b": "a"} and found.metadata["said"] == "so" and is_our_file(path)
    assert torch.equal(found["b"], tensors["a"])


@pytest.mark.parametrize(
    "coming",
    [
        [("b", [np.zeros(12, np.uint8)])],
        [("a", [np.zeros(8, np.uint8)])],
        [],
        [("a", [np.zeros(12, np.uint8), np.zeros(1, np.uint8)])],
    ],
    ids=["another", "too short", "none", "too long"],
)
def test_what_was_not_announced_is_refused(coming, tmp_path):
    entries = {"a": Entry("float32", (3,), 4)}
    action = lambda: stream_file(tmp_path / "x.safetensors", entries, coming, ties={}, notes={})  # noqa: E731
    refused(action, CheckpointError, ("a was announced with 12 bytes",))


def test_one_tensor_too_many_is_refused(tmp_path):
    coming = [("a", [np.zeros(4, np.uint8)]), ("b", [])]
    entries = {"a": Entry("float32", (1,), 4)}
    action = lambda: stream_file(tmp_path / "x.safetensors", entries, coming, ties={}, notes={})  # noqa: E731
    refused(action, CheckpointError, ("b came, and was not announced",))


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_stretches_and_bytes_are_those_of_the_tensor(ending, tmp_path):
    tensors = {"x": torch.arange(10.0), "y": torch.arange(12).reshape(3, 4).mT.half()}
    path = tmp_path / f"some.{ending}"
    if ending == "pt":
        torch.save(tensors, path)
    else:
        write_checkpoint(path, tensors)
    found = open_checkpoint(path)
    for name, tensor in tensors.items():
        raw = stored(tensor)
        assert np.array_equal(found.bytes_of(name), raw)
        with found.reading(name) as read:
            assert np.array_equal(read(4, np.empty(6, np.uint8)), raw[4:10])
            assert np.array_equal(read(0, np.empty(2, np.uint8)), raw[:2])
    refused(lambda: found.reading("z"), UnknownNameError, ("no tensor in", "'z'"))
    refused(lambda: found.bytes_of("z"), UnknownNameError, ("no tensor in", "'z'"))


def test_a_file_that_is_cut_off_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "some.safetensors"
    write_checkpoint(path, {"x": torch.arange(100.0)})
    with open_checkpoint(path).reading("x") as read:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 40)
        refused(lambda: read(380, np.empty(20, np.uint8)), CheckpointError, ("is cut short: it ends inside x",))


def test_a_file_that_goes_away_is_noticed(tmp_path):
    path = tmp_path / "some.safetensors"
    write_checkpoint(path, {"x": torch.arange(100.0)})
    found = open_checkpoint(path)
    path.unlink()
    refused(lambda: found.bytes_of("x"), CheckpointError, ("has changed since it was opened",))


@given(tensor=any_tensor())
def test_dtypes_go_by_their_names(tensor):
    kind = kind_of_dtype(tensor.dtype)
    assert torch_dtype(kind) == tensor.dtype and KINDS[CODES[kind]] == (kind, tensor.element_size())
