"""Folders that one process has to itself, and what is left of those that were killed."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from interbasin.errors import FileError
from interbasin.storage.lock import (
    TEMPORARY,
    claim_folder,
    claim_temporary_folder,
    find_leftovers,
    mark_complete,
    remove_leftover,
    remove_stale,
    unfinished_folder,
)


def leave(folder: Path, *names: str) -> Path:
    """A folder as a killed process would leave it."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("half")
    return folder


def test_a_folder_is_claimed_once_until_it_is_released(tmp_path):
    folder = unfinished_folder(tmp_path / "new.npy")
    claim = claim_folder(folder, "new.npy")
    for _ in range(2):
        with pytest.raises(FileError, match=r"Another process is writing new\.npy at this moment"):
            claim_folder(folder, "new.npy")
    claim.release()
    claim.release()
    claim_folder(folder, "new.npy").release()


def test_a_claim_ends_with_its_process(tmp_path):
    folder = unfinished_folder(tmp_path / "new.npy")
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        claim_folder(folder, "new.npy")
        os.write(tell, b"!")
        signal.pause()
    assert os.read(ready, 1) == b"!"
    with pytest.raises(FileError, match="Another process"):
        claim_folder(folder, "new.npy")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    claim_folder(folder, "new.npy").release()


def test_a_folder_that_was_replaced_while_it_was_locked_is_claimed_anew(tmp_path, monkeypatch):
    folder, lock = tmp_path / "folder", "fcntl.flock"
    calls = []

    def flock(descriptor: int, how: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:  # the run that had it ends just now, and another one begins
            folder.rmdir()
            folder.mkdir()

    monkeypatch.setattr(lock, flock)
    claim = claim_folder(folder, "it")
    assert len(calls) == 2
    claim.release()


def test_a_private_folder_is_nobody_elses_to_read_and_never_a_link(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    claim_folder(folder, "it").release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(FileError, match="a link stands there"):
        claim_folder(tmp_path / "link", "it")
    claim_folder(tmp_path / "link", "it", private=False).release()
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="something that is no folder stands there"):
        claim_folder(tmp_path / "file", "it")


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    folder = leave(tmp_path / "folder")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(FileError, match="a folder of another user stands there"):
        claim_folder(folder, "it")
    assert find_leftovers(tmp_path) == []


def test_a_temporary_folder_is_swept_when_nobody_has_it(tmp_path):
    claim = claim_temporary_folder(tmp_path)
    (claim.folder / "half").write_text("half")
    assert remove_stale(tmp_path) == 0 and (claim.folder / "half").exists()
    claim.release()
    assert [(left.folder, left.resumable, left.size) for left in find_leftovers(tmp_path)] == [(claim.folder, False, 4)]
    assert remove_stale(tmp_path) == 1 and not claim.folder.exists()
    assert remove_stale(tmp_path / "nowhere") == 0


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_what_can_be_gone_on_from_is_not_swept(is_exchanged, tmp_path):
    folder = leave(unfinished_folder(tmp_path / "new.npy"), "vectors.npy", "state.json")
    assert remove_stale(tmp_path) == 0
    mark_complete(folder, "vectors.npy")
    assert remove_stale(tmp_path) == 0
    assert [left.resumable for left in find_leftovers(tmp_path)] == [True]
    older = tmp_path / "new.npy"
    older.write_text("older")
    if is_exchanged:  # it has changed places with an older one
        (folder / "vectors.npy").rename(tmp_path / "kept")
        older.rename(folder / "vectors.npy")
    else:  # it was moved to where it belongs
        (folder / "vectors.npy").unlink()
    assert [left.resumable for left in find_leftovers(tmp_path)] == [False]
    assert remove_stale(tmp_path) == 1 and not folder.exists()


def test_nothing_but_our_own_folders_is_ever_removed(tmp_path):
    precious = leave(tmp_path / "precious", "note")
    (tmp_path / f"{TEMPORARY}link").symlink_to(precious)
    leave(tmp_path / ".interbasin-of-another-kind", "note")
    leave(unfinished_folder(tmp_path / "some"), "state.json", "thesis.txt")
    (tmp_path / f"{TEMPORARY}file").write_text("a file")
    assert find_leftovers(tmp_path) == [] and remove_stale(tmp_path) == 0
    assert not remove_leftover(tmp_path / f"{TEMPORARY}link")
    assert (precious / "note").exists() and len(os.listdir(tmp_path)) == 5


def test_a_leftover_that_another_process_took_up_meanwhile_stays(tmp_path):
    folder = leave(unfinished_folder(tmp_path / "new.npy"), "state.json")
    claim = claim_folder(folder, "new.npy")
    assert not remove_leftover(folder) and (folder / "state.json").exists()
    claim.release()
    assert remove_leftover(folder)


def test_on_a_file_system_without_locks_nothing_is_ever_swept(tmp_path, monkeypatch):
    def flock(descriptor: int, how: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    claim = claim_temporary_folder(tmp_path)
    claim_folder(unfinished_folder(tmp_path / "new.npy"), "new.npy").release()
    claim.release()
    assert remove_stale(tmp_path) == 0 and find_leftovers(tmp_path) == [] and len(os.listdir(tmp_path)) == 2
