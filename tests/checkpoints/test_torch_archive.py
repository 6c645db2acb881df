"""The archive of a torch file is compared with its checksums, and with what the tensors in it ask for."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.checkpoints.strategies import same
from tests.misuses.table import time_limit
from tests.test_storage import refused

import interbasin as ib
from interbasin.checkpoints import open_checkpoint
from interbasin.checkpoints.torch_archive import open_archive
from interbasin.checkpoints.torch_files import load_harmless
from interbasin.errors import CheckpointError

STATE = {"a": torch.arange(6.0), "b": torch.arange(5.0), "void": torch.empty(0), "end of b": torch.arange(5.0)[3:]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def rewrite(file: Path, change: Callable[[str, bytes], bytes | None], method: int = zipfile.ZIP_STORED) -> Path:
    """The archive with other records, which have the right checksums; None leaves one as it is."""
    made = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            changed = change(entry.filename.partition("/")[2], content)
            kind = zipfile.ZIP_STORED if changed is None else method
            new.writestr(zipfile.ZipInfo(entry.filename), content if changed is None else changed, kind)
    file.write_bytes(made.getvalue())
    return file


def flip(file: Path, record: str, place: int) -> Path:
    content = bytearray(file.read_bytes())
    content[open_archive(file).records[record].start + place] ^= 1
    file.write_bytes(content)
    return file


def test_records_lie_where_torch_finds_them(file):
    reader = torch._C.PyTorchFileReader(str(file))
    records = open_archive(file).records
    assert {name: record.start for name, record in records.items()} == {
        name: reader.get_record_offset(name) for name in reader.get_all_records()
    }


@pytest.mark.parametrize("place", [0, 13, 23])
def test_a_wrong_byte_among_numbers_is_noticed_when_they_are_read_and_not_before(place, file):
    checkpoint = open_checkpoint(flip(file, "data/0", place))
    refused(lambda: checkpoint["a"], CheckpointError, (str(file), "its record data/0 has another checksum"))
    refused(checkpoint.state_dict, CheckpointError, ("data/0",))
    assert all(same(checkpoint[name], STATE[name]) for name in STATE if name != "a")


def test_weights_with_a_wrong_byte_are_not_merged(file, tmp_path):
    torch.save(STATE, tmp_path / "other.pt")
    flip(file, "data/1", 3)
    refused(
        lambda: ib.merge([file, tmp_path / "other.pt"], output=tmp_path / "merged.safetensors"),
        CheckpointError,
        ("its record data/1 has another checksum",),
    )
    assert not (tmp_path / "merged.safetensors").exists()


@pytest.mark.parametrize("record", ["data.pkl", "version", "byteorder"])
def test_a_wrong_byte_in_what_is_read_first_is_noticed_when_the_file_is_opened(record, file):
    refused(lambda: open_checkpoint(flip(file, record, 0)), CheckpointError, (f"its record {record} has another",))


def test_inputs_with_a_wrong_byte_are_refused(file):
    refused(lambda: load_harmless(flip(file, "data/0", 5)), CheckpointError, ("its record data/0 has another",))


def test_a_file_that_was_saved_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "weights.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    checkpoint = open_checkpoint(tmp_path / "weights.pt")
    assert all(same(checkpoint[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("change", [lambda content: content + b"\0", lambda content: content[:-4]])
def test_numbers_that_are_more_or_fewer_than_a_tensor_has_are_refused(change, file):
    rewrite(file, lambda name, content: change(content) if name == "data/0" else None)
    refused(lambda: open_checkpoint(file), CheckpointError, ("not as long as the records that their numbers are in",))


@pytest.mark.parametrize("record", ["data.pkl", "data/0"])
def test_a_record_that_was_compressed_is_refused(record, file):
    rewrite(file, lambda name, content: content + bytes(2**20) if name == record else None, zipfile.ZIP_DEFLATED)
    refused(lambda: open_checkpoint(file), CheckpointError, (f"its record {record} is compressed",))


def test_a_record_that_is_there_twice_is_refused(file):
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("weights/data/0", bytes(24))
    refused(lambda: open_checkpoint(file), CheckpointError, ("its record data/0 is there twice",))


def test_a_record_that_is_not_where_the_directory_says_is_refused(file):
    content = bytearray(file.read_bytes())
    entry = content.index(b"PK\x01\x02")
    (place,) = struct.unpack_from("<I", content, entry + 42)
    struct.pack_into("<I", content, entry + 42, place + 1)
    file.write_bytes(content)
    refused(lambda: open_checkpoint(file), CheckpointError, ("is not where the directory says",))


def test_a_file_that_is_gone_when_a_record_is_checked_is_named(file):
    archive = open_archive(file)
    file.unlink()
    refused(lambda: archive.check(archive.records["data/0"]), CheckpointError, ("No such file",))


def test_one_number_that_stands_for_gigabytes_is_refused(tmp_path):
    torch.save(
        {"small": torch.ones(1).expand(1000), "large": torch.ones(1).expand(100_000, 100_000)}, tmp_path / "w.pt"
    )
    with time_limit():
        refused(
            lambda: open_checkpoint(tmp_path / "w.pt"),
            CheckpointError,
            ("large in", "would take 40,000,000,000 bytes, and the file has 4 for it", ".contiguous()"),
        )
    torch.save({"small": torch.ones(1).expand(1000)}, tmp_path / "w.pt")
    assert same(open_checkpoint(tmp_path / "w.pt")["small"], torch.ones(1000))
