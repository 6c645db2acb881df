"""safetensors files read by hand: what the library reads, and nothing that it would not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tests.checkpoints.strategies import same
from tests.misuses.table import time_limit
from tests.test_storage import refused

from interbasin.checkpoints import open_checkpoint
from interbasin.checkpoints.safetensors_files import mark_of, open_safetensors
from interbasin.errors import CheckpointError

TENSORS = {
    "embed.weight": torch.arange(12.0).reshape(3, 4),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "nothing": torch.empty(0, 3),
    "one": torch.tensor(7),
}


@pytest.fixture
def file(tmp_path) -> Path:
    save_file(TENSORS, tmp_path / "weights.safetensors", metadata={"format": "pt", "author": "someone"})
    return tmp_path / "weights.safetensors"


def with_header(path: Path, header: object, numbers: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)
    return path


def entry(shape: object = (2,), span: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


def test_a_file_of_the_library_is_read_exactly(file):
    checkpoint = open_checkpoint(file)
    assert set(checkpoint) == set(TENSORS) and len(checkpoint) == 4
    assert checkpoint.kind == "safetensors" and checkpoint.files == (file,) and checkpoint.folder is None
    assert dict(checkpoint.metadata) == {"format": "pt", "author": "someone"}
    for name, tensor in TENSORS.items():
        assert checkpoint.dtype(name) == tensor.dtype and checkpoint.shape(name) == tuple(tensor.shape)
        assert same(checkpoint[name], tensor)
    assert checkpoint.numel == 18 and checkpoint.nbytes == 12 * 4 + 5 * 2 + 8


def test_a_tensor_that_was_read_is_ones_own(file):
    checkpoint = open_checkpoint(file)
    first = checkpoint["embed.weight"]
    first.zero_()
    assert same(checkpoint["embed.weight"], TENSORS["embed.weight"])


def test_nothing_is_read_before_it_is_asked_for(file, monkeypatch):
    checkpoint = open_checkpoint(file)
    monkeypatch.setattr(
        type(next(iter(checkpoint.sources.values()))), "__getitem__", lambda *_: pytest.fail("was read")
    )
    assert "half" in checkpoint and "other" not in checkpoint and checkpoint.get("other", 3) == 3
    assert [checkpoint.entry(name).nbytes for name in checkpoint] and repr(checkpoint)
    assert checkpoint == checkpoint and checkpoint != open_checkpoint(file) and hash(checkpoint)


@pytest.mark.slow
def test_many_tensors_cost_memory_for_one(tmp_path):
    save_file({f"t{i}": torch.full((1000,), float(i)) for i in range(50)}, tmp_path / "w.safetensors")
    checkpoint = open_checkpoint(tmp_path / "w.safetensors")
    assert {checkpoint[name].untyped_storage().nbytes() for name in checkpoint} == {4000}


def test_a_name_that_is_not_there_is_answered_with_the_nearest(file):
    from interbasin.errors import UnknownNameError

    message = refused(lambda: open_checkpoint(file)["embd.weight"], UnknownNameError, (str(file), "'embd.weight'"))
    assert "try one of: embed.weight" in message


def test_a_file_cut_off_anywhere_is_noticed_when_it_is_opened(file):
    whole = file.read_bytes()
    for kept in range(len(whole)):
        file.write_bytes(whole[:kept])
        message = refused(lambda: open_checkpoint(file), CheckpointError, (str(file),))
        assert "cut short" in message or "is empty" in message, kept


def test_bytes_behind_the_end_are_noticed(file):
    file.write_bytes(file.read_bytes() + b"\0")
    refused(
        lambda: open_checkpoint(file), CheckpointError, ("is damaged", "promises 66 bytes of numbers and there are 67")
    )


@given(data=st.data())
def test_a_damaged_header_is_refused_wherever_the_library_refuses_it(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("flipped") / "weights.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    content = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    for place in data.draw(st.lists(st.integers(0, end - 1), min_size=1, max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        with safe_open(path, framework="pt") as reference:
            expected = {name: reference.get_tensor(name) for name in reference.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError):
        refused(lambda: open_checkpoint(path), CheckpointError, (str(path),))
        return
    try:
        found = open_checkpoint(path)
    except CheckpointError:
        return  # what is read here may be less than what the library reads, and never other
    assert set(found) == set(expected) and all(same(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("header", "numbers", "words"),
    [
        pytest.param(b"[1, 2]  ", b"", ("begins with", "named as a safetensors file"), id="a list"),
        pytest.param(b"{", b"", ("it is not JSON",), id="half an object"),
        pytest.param(b"{\xff\xfe}", b"", ("it is not text",), id="not text"),
        pytest.param(b'{"a":' * 50_000, b"", ("it is not JSON",), id="braces without end"),
        pytest.param({"a": 3}, b"", ("the entry of a is 3",), id="a number"),
        pytest.param({"a": entry(dtype=3)}, b"", ("the entry of a",), id="a dtype that is a number"),
        pytest.param({"a": entry(shape=[-1])}, b"", ("the entry of a",), id="a negative size"),
        pytest.param({"a": entry(shape=[True])}, b"", ("the entry of a",), id="a size that is no number"),
        pytest.param({"a": entry(shape=[0, 2**70])}, b"", ("the entry of a",), id="a size beyond all machines"),
        pytest.param({"a": entry(span=[0])}, b"", ("the entry of a",), id="half a span"),
        pytest.param({"a": entry(span=[0, 7])}, b"\0" * 7, ("a should take 8 bytes and is given 7",), id="too small"),
        pytest.param({"a": entry(span=[4, 12])}, b"\0" * 12, ("begins at byte 4", "expected 0"), id="a hole"),
        pytest.param(
            {"a": entry(), "b": entry()}, b"\0" * 8, ("b begins at byte 0", "expected 8"), id="two in one place"
        ),
        pytest.param({"a": entry(dtype="F4")}, b"\0" * 8, ("'F4'", "quantised"), id="four bits"),
        pytest.param({"a": entry(dtype="Q9")}, b"\0" * 8, ("'Q9'", "too old"), id="a dtype of the future"),
        pytest.param({"__metadata__": {"a": 1}}, b"", ("not text to text",), id="notes that are no text"),
        pytest.param({"__metadata__": []}, b"", ("not text to text",), id="notes that are a list"),
        pytest.param(
            {"__metadata__": {"interbasin": '{"ties": []}'}}, b"", ("list of tied names",), id="ties that are a list"
        ),
        pytest.param(b'{"a": 1, "a": 2}', b"", ("it names 'a' twice",), id="a name twice"),
        pytest.param(b'{"\\ud800": 1}', b"", ("it is not JSON",), id="half a character"),
    ],
)
def test_every_kind_of_wrong_header_is_named(header, numbers, words, tmp_path):
    path = with_header(tmp_path / "w.safetensors", header, numbers)
    refused(lambda: open_checkpoint(path), CheckpointError, (str(path), *words))


def test_a_header_longer_than_the_library_allows_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b"{")
        file.truncate(100_000_100)  # takes no room on the disk
    refused(lambda: open_checkpoint(path), CheckpointError, ("100,000,001 bytes long",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", ("is empty",), id="empty"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", ("Git LFS pointer", "git lfs pull"), id="lfs"),
        pytest.param(b"<!DOCTYPE html><html>", ("HTML page",), id="html"),
        pytest.param(b"PK\x03\x04" + b"\0" * 40, ("zip archive", "rename"), id="torch"),
        pytest.param(b"\x89HDF\r\n\x1a\n" + b"\0" * 40, ("HDF5",), id="keras"),
    ],
)
def test_a_file_that_is_something_else_is_named(content, words, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    refused(lambda: open_checkpoint(path), CheckpointError, (str(path), *words))


def test_a_file_that_changed_after_it_was_opened_is_not_read(file):
    checkpoint = open_checkpoint(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content[:-4])
    refused(lambda: checkpoint["embed.weight"], CheckpointError, ("has changed since it was opened",))


def test_a_file_that_is_cut_off_while_it_is_read_is_noticed(file):
    opened = open_safetensors(file)
    os.truncate(file, file.stat().st_size - 4)
    late = opened.__class__(**{**vars(opened), "stamp": open_stamp(file)})
    last = max((name for name in late.starts if late.entries[name].numel), key=lambda name: late.starts[name])
    refused(lambda: late[last], CheckpointError, ("is cut short", f"it ends inside {last}"))


def open_stamp(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def test_a_file_that_cannot_be_read_is_named(file, monkeypatch):
    opened = open_safetensors(file)

    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", refuse)
    refused(lambda: opened["one"], CheckpointError, ("Input/output error",))
    refused(lambda: open_safetensors(file), CheckpointError, ("Input/output error",))


def test_a_mark_is_found_only_in_what_we_wrote(file, tmp_path):
    assert mark_of(file) == {} and mark_of(tmp_path / "missing") == {}
    for notes in ({"interbasin": "{"}, {"interbasin": "[]"}, [], {"interbasin": 3}):
        assert mark_of(with_header(tmp_path / "w.safetensors", {"__metadata__": notes})) == {}


def test_ties_that_do_not_fit_the_tensors_are_refused(tmp_path):
    notes = {"interbasin": json.dumps({"ties": {"b": "gone"}})}
    path = with_header(tmp_path / "w.safetensors", {"__metadata__": notes, "a": entry()}, b"\0" * 8)
    refused(lambda: open_checkpoint(path), CheckpointError, ("b is tied to gone", "does not fit"))


def many(count: int, last: str = "") -> bytes:
    """A header of empty tensors, all at the same place, and then one more entry."""
    empty = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(f'"e{number}":{empty}' for number in range(count)) + last + "}").encode()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        pytest.param(many(400_000), ("more than the 262,144 tensors",), id="many empty tensors"),
        pytest.param(b'{"a":' + b"[" * 2_000_000, ("more than the 262,144 tensors",), id="many lists"),
        pytest.param(b'{"a":[' + b"1," * 5_000_000 + b"1]}", ("more than the 262,144 tensors",), id="many numbers"),
        pytest.param(
            b"{" + b",".join(b'"%d":0' % n for n in range(400_000)) + b',"399999":0}',
            ("it names '399999' twice",),
            id="the last of many names twice",
        ),
        pytest.param({"a": entry(shape=[10**18] * 500_000)}, ("the entry of a is {",), id="many axes"),
        pytest.param(
            b'{"a":{"dtype":"F32","shape":[' + b",".join([b"7" * 4000] * 2000) + b'],"data_offsets":[0,8]}}',
            ("the entry of a is {",),
            id="sizes of thousands of digits",
        ),
        pytest.param({"a": entry(shape=[1] * 65, span=[0, 4])}, ("the entry of a is {",), id="65 axes"),
        pytest.param({"a": entry(span=[2**60, 2**60 + 8])}, ("the entry of a is {",), id="beyond all disks"),
    ],
)
def test_a_header_that_is_made_to_be_slow_is_refused_soon(header, words, tmp_path):
    path = with_header(tmp_path / "w.safetensors", header)
    with time_limit():
        message = refused(lambda: open_checkpoint(path), CheckpointError, (str(path), *words))
    assert len(message) < 500


def test_as_many_tensors_as_the_largest_networks_have_are_opened(tmp_path):
    path = with_header(tmp_path / "w.safetensors", many(50_000))
    with time_limit():
        assert len(open_checkpoint(path)) == 50_000


def test_tensors_without_numbers_may_share_a_place_and_lie_in_no_other(tmp_path):
    spans = {"first": (0, 0), "a": (0, 8), "between": (8, 8), "again": (8, 8), "b": (8, 16), "last": (16, 16)}
    header = {name: entry(shape=[(end - start) // 4], span=[start, end]) for name, (start, end) in spans.items()}
    path = with_header(tmp_path / "w.safetensors", header, bytes(range(16)))
    checkpoint = open_checkpoint(path)
    with safe_open(path, framework="pt") as reference:
        assert all(same(checkpoint[name], reference.get_tensor(name)) for name in spans)
    for span in ([4, 4], [20, 20]):
        with_header(path, header | {"between": entry(shape=[0], span=span)}, bytes(16))
        refused(lambda: open_checkpoint(path), CheckpointError, (f"between begins at byte {span[0]} of the numbers",))
        with pytest.raises(SafetensorError):
            safe_open(path, framework="pt")
