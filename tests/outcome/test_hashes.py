"""Hashes of inputs, remembered while a file stays what it was."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interbasin.outcome import hashes
from interbasin.outcome.hashes import files_of, narrowest_mode
from interbasin.storage.digest import digest_of


@pytest.fixture(name="read")
def counted(monkeypatch):
    """The files that are read."""
    found = []
    monkeypatch.setattr(hashes, "digest_of", lambda path: found.append(path.name) or digest_of(path))
    return found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_that_did_not_change_is_read_once(tmp_path, read):
    path = tmp_path / "some.npy"
    path.write_bytes(b"some")
    assert files_of(path).sha256 == files_of(path).sha256 == sha256(b"some")
    assert read == ["some.npy"]


def test_a_file_that_changed_is_read_again(tmp_path, read):
    path = tmp_path / "some.npy"
    path.write_bytes(b"some")
    files_of(path)
    path.write_bytes(b"other")
    assert files_of(path).sha256 == sha256(b"other")
    status = path.stat()
    path.write_bytes(b"third")  # as long as before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert files_of(path).sha256 == sha256(b"third")
    assert len(read) == 3


def test_another_file_in_its_place_is_read(tmp_path, read):
    path = tmp_path / "some.npy"
    path.write_bytes(b"some")
    files_of(path)
    (tmp_path / "new").write_bytes(b"newe")
    os.replace(tmp_path / "new", path)
    assert files_of(path).sha256 == sha256(b"newe") and len(read) == 2


def test_a_file_that_is_written_to_while_it_is_hashed_is_not_remembered(tmp_path, monkeypatch):
    path = tmp_path / "some.npy"
    path.write_bytes(b"some")

    def meddled(file):
        found = digest_of(file)
        os.utime(file, ns=(1, file.stat().st_mtime_ns + 1))
        return found

    monkeypatch.setattr(hashes, "digest_of", meddled)
    files_of(path)
    monkeypatch.undo()
    path.write_bytes(b"later")
    assert files_of(path).sha256 == sha256(b"later")


# ---------------------------------------------------------------------- who may read an output

needs_modes = pytest.mark.skipif(sys.platform == "win32", reason="permissions of files")


def with_mode(path: Path, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"some")
    path.chmod(mode)
    return path


@needs_modes
@given(st.lists(st.integers(0, 0o777), max_size=4))
def test_an_output_is_as_narrow_as_every_input(modes):
    with tempfile.TemporaryDirectory() as folder:
        paths = [with_mode(Path(folder) / f"{number}.npy", mode) for number, mode in enumerate(modes)]
        found = narrowest_mode(paths)
        assert found & 0o700 == 0o600 and not found & 0o111
        assert all(found & 0o066 & ~mode == 0 for mode in modes)
        everybody = 0o666
        for mode in modes:
            everybody &= mode
        assert found == 0o600 | everybody


@needs_modes
@pytest.mark.parametrize(
    ("folder", "below", "file", "expected"),
    [
        (0o755, 0o755, 0o644, 0o644),
        (0o755, 0o755, 0o600, 0o600),
        (0o755, 0o755, 0o640, 0o640),
        (0o700, 0o755, 0o644, 0o600),  # nobody else comes to the file
        (0o750, 0o755, 0o644, 0o640),
        (0o755, 0o700, 0o666, 0o600),
        (0o755, 0o755, 0o444, 0o644),  # an output may be written by whoever makes it
        (0o777, 0o777, 0o666, 0o666),
        (0o711, 0o711, 0o644, 0o644),  # the names cannot be listed, and the files be read
    ],
)
def test_a_folder_is_as_narrow_as_what_is_in_it_and_the_way_there(folder, below, file, expected, tmp_path):
    model = tmp_path / "model"
    with_mode(model / "1_Pooling" / "config.json", file)
    with_mode(model / "model.safetensors", 0o666)
    with_mode(model / ".cache" / "token", 0o600)  # which is no part of the model
    (model / "1_Pooling").chmod(below)
    model.chmod(folder)
    tmp_path.chmod(0o700)  # a home that nobody else enters says nothing about what is made of its files
    assert narrowest_mode([model]) == expected
    assert narrowest_mode([model, with_mode(tmp_path / "b.npy", 0o600)]) == 0o600


@needs_modes
def test_links_count_as_the_files_behind_them_and_names_as_open_to_all(tmp_path):
    private = with_mode(tmp_path / "blobs" / "hash", 0o600)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(private)
    assert narrowest_mode([tmp_path / "snapshot"]) == 0o600
    (tmp_path / "snapshot" / "gone").symlink_to(tmp_path / "nowhere")
    assert narrowest_mode([tmp_path / "snapshot"]) == 0o600
    assert narrowest_mode([f"timm:resnet18@{private}"]) == 0o600
    assert narrowest_mode(["digits", "some-one/tiny", ""]) == narrowest_mode([]) == 0o666


@needs_modes
@pytest.mark.parametrize(
    "mode, expected", [(0o640, 0o600), (0o604, 0o600), (0o644, 0o644), (0o660, 0o600), (0o666, 0o666)]
)
def test_of_an_input_of_another_group_only_what_all_may_is_kept(mode, expected, tmp_path, monkeypatch):
    path = with_mode(tmp_path / "a.npy", mode)
    monkeypatch.setattr(os, "getegid", lambda: path.stat().st_gid + 1)
    assert narrowest_mode([path]) == expected
