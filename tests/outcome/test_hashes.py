"""Hashes of inputs, remembered while a file stays what it was."""

from __future__ import annotations

import hashlib
import os

import pytest

from interbasin.outcome import hashes
from interbasin.outcome.hashes import digest_of, files_of


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
