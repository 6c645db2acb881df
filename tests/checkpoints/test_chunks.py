"""Tensors that come in chunks: written as they come, and read from files of either format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file
from tests.checkpoints.strategies import tensors as any_tensor
from tests.checkpoints.strategies import weights
from tests.test_storage import left_in, refused

from interbasin.checkpoints import LazyTensors, open_checkpoint, write, write_checkpoint, write_into
from interbasin.checkpoints.checkpoint import CODES, KINDS, Entry
from interbasin.checkpoints.in_memory import tensor_from
from interbasin.checkpoints.write import is_our_file, is_our_folder
from interbasin.errors import CheckpointError, DataError, UnknownNameError


def stored(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


class InChunks(LazyTensors):
    """Tensors that come in two chunks each."""

    def __init__(self, tensors: dict[str, torch.Tensor], ties: dict[str, str] | None = None) -> None:
        self.tensors, self.ties = tensors, ties or {}
        self.entries = {name: Entry.of(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    def chunks(self, name: str) -> Iterator[np.ndarray]:
        raw = stored(self.tensors[self.stored_name(name)])
        yield from (raw[:3], raw[3:])

    def __getitem__(self, name: str) -> torch.Tensor:
        return tensor_from(self.chunks(name), self.entry(name))


def written(folder: Path, tensors: dict[str, torch.Tensor], limit: int = 10**9, **keywords: object) -> int:
    folder.mkdir()
    return write_into(folder, InChunks(tensors), max_shard_bytes=limit, **keywords)


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(stored(one), stored(other))


@given(found=weights())
def test_what_comes_in_chunks_is_read_back_bit_by_bit(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks") / "model"
    written(folder, found, limit=64)
    back = open_checkpoint(folder)
    assert set(back) == set(found) and all(equal(back[name], tensor) for name, tensor in found.items())
    assert is_our_folder(folder)


@given(found=weights())
def test_a_listener_hears_of_every_byte_once_it_can_be_read(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks") / "model"
    seen: dict[int, list[int]] = {}

    def heard(path, size):
        assert path.stat().st_size == size
        seen.setdefault(path.stat().st_ino, []).append(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "REPORTED", 16)
        written(folder, found, limit=64, listener=heard)
    assert all(sizes == sorted(sizes) for sizes in seen.values())
    files = folder.glob("*.safetensors")
    assert {file.stat().st_ino: file.stat().st_size for file in files} == {
        one: sizes[-1] for one, sizes in seen.items()
    }


def test_the_library_reads_what_comes_in_chunks(tmp_path):
    tensors = {
        "a": torch.randn(3, 2).half(),
        "b": torch.randn(5).double(),
        "c": torch.tensor([True]),
        "d": torch.ones(()),
    }
    assert written(tmp_path / "model", tensors) == 1
    found = load_file(tmp_path / "model/model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_ties_notes_and_a_single_file(tmp_path):
    path = tmp_path / "some.safetensors"
    tensors = {"a": torch.randn(3)}
    write_checkpoint(path, InChunks(tensors, {"b": "a"}), metadata={"said": "so"})
    found = open_checkpoint(path)
    assert dict(found.ties) == {"b": "a"} and found.metadata["said"] == "so" and is_our_file(path)
    assert torch.equal(found["b"], tensors["a"])


def test_a_tied_name_that_the_other_checkpoint_stores_is_stored(tmp_path):
    tensor = torch.randn(3)
    write_checkpoint(tmp_path / "like", {"a": tensor, "b": tensor.clone()})
    write_checkpoint(tmp_path / "m", InChunks({"a": tensor}, {"b": "a", "c": "a"}), like=tmp_path / "like")
    found = open_checkpoint(tmp_path / "m")
    assert set(found.sources) == {"a", "b"} and dict(found.ties) == {"c": "a"}


@pytest.mark.parametrize("name", ["m", "m.safetensors"])
@pytest.mark.parametrize("count", [0, 8, 13], ids=["none", "too short", "too long"])
def test_what_was_not_announced_is_refused_and_nothing_is_left(name, count, tmp_path):
    class Wrong(InChunks):
        def chunks(self, name: str) -> Iterator[np.ndarray]:
            yield np.zeros(count, np.uint8)

    words = (f"a was announced with 12 bytes, and {count} came",)
    refused(lambda: write_checkpoint(tmp_path / name, Wrong({"a": torch.ones(3)})), CheckpointError, words)
    double = InChunks({"a": torch.ones(3, dtype=torch.complex128)})
    refused(lambda: write_checkpoint(tmp_path / name, double), DataError, ("a is of complex128",))
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_chunks_and_bytes_are_those_of_the_tensor(ending, tmp_path):
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
    entry = Entry.of(tensor.dtype, tensor.shape)
    assert entry.dtype == tensor.dtype and entry.nbytes == tensor.nbytes
    assert KINDS[CODES[entry.kind]] == (entry.kind, tensor.element_size())
