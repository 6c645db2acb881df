"""Folders that one process has to itself, and what is left of those whose process was killed.

The lock is the system's, on the folder itself: it needs no file in the folder, it goes with the folder when that is
renamed, and it ends with the process, however that ends. So a folder of ours whose lock can be had belongs to nobody.

There are two kinds, both beside what they are for. A *temporary* folder is filled and then renamed; once its process
has ended it is rubbish, and `remove_stale` takes it away before the next one is made. An *unfinished* folder is
named after its output, so that the same command finds it and goes on; it is kept until that command ends, or until
somebody asks for it to be removed (`find_leftovers`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from interbasin.errors import FileError
from interbasin.storage.interrupts import hold_back_interrupts

if sys.platform != "win32":  # which has no such locks: stale folders stay there
    import fcntl

# Short, so that whatever name the destination may have, the temporary one may be had as well.
PREFIX = ".interbasin-"
TEMPORARY = f"{PREFIX}new-"
COMPLETE = "complete"  # tells which file or folder is the output, before it is moved out of an unfinished folder
# What an unfinished folder may hold; one with anything else in it is somebody's own, whatever its name.
GROWN = frozenset(
    {"state", "state.json", "state.soon", COMPLETE, "files", "groups"}
    | {"vectors.npy", "vectors.npz", "vectors.parquet", "table.lance"}
)
UNFINISHED = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{16}}")


@dataclass
class Claim:
    """A folder that this process has to itself until it lets go, or ends."""

    folder: Path
    _descriptor: int | None

    def release(self) -> None:
        """Let another process have it; nothing happens the second time."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def unfinished_folder(destination: Path) -> Path:
    """Where an output grows: beside it, under a name that follows from the output's own."""
    # A digest, so that whatever name the destination may have, this one may be had as well.
    name = hashlib.sha256(os.fsencode(destination.name)).hexdigest()[:16]
    return destination.parent / f"{PREFIX}{name}"


def claim_folder(folder: Path, name: str, *, private: bool = True) -> Claim:
    """Make a folder ours, and make it first if it is not there.

    Args:
        folder: Missing parents are made too.
        name: What is written there, for messages.
        private: Nobody but this program is to put anything there. A link, or a folder of another user, is refused: its
            name can be foreseen, and what is in it may be removed. Other users cannot read what is in it.

    Raises:
        FileError: if another process has it, or it is not ours to use.
    """
    while True:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700 if private else 0o777)
        if private:
            _require_own(folder, name)
        if sys.platform == "win32":  # where no folder can be opened
            return Claim(folder, None)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if private else 0))
        except FileNotFoundError:  # another run has just ended and removed the folder
            continue
        try:
            if private and stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
                os.fchmod(descriptor, 0o700)
            _lock(descriptor)
            if _is_still_at(descriptor, folder):
                return Claim(folder, descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise FileError(
                f"Another process is writing {name} at this moment; wait for it, or choose another name."
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def claim_temporary_folder(parent: Path) -> Claim:
    """A new folder of a random name, which nobody else can read."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
        if sys.platform == "win32":
            return Claim(folder, None)
        # Until it is locked it looks like one that was left behind, and may be removed as such.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                _lock(descriptor)
                if _is_still_at(descriptor, folder):
                    return Claim(folder, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _require_own(folder: Path, name: str) -> None:
    try:
        status = os.lstat(folder)
    except FileNotFoundError:  # removed again by the run that had it
        return
    if stat.S_ISLNK(status.st_mode):
        fault = "a link"
    elif not stat.S_ISDIR(status.st_mode):
        fault = "something that is no folder"
    elif sys.platform != "win32" and status.st_uid != os.geteuid():
        fault = "a folder of another user"
    else:
        return
    raise FileError(
        f"{name} is to grow in {folder} until it is complete, but {fault} stands there; remove it, or choose another "
        "output."
    )


def _lock(descriptor: int) -> None:
    """Lock an open folder, or raise `BlockingIOError`; on a file system without locks nothing happens."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _is_still_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------------- what killed processes leave


@dataclass(frozen=True)
class Leftover:
    """A folder that no process has.

    Attributes:
        folder: Where it is.
        resumable: Whether the command that left it would go on from it.
        size: Bytes in it.
    """

    folder: Path
    resumable: bool
    size: int


def find_leftovers(parent: Path) -> list[Leftover]:
    """The folders of ours in ``parent`` that belong to no process any more."""
    found = []
    for folder in _folders_of_ours(parent):
        with _claim_leftover(folder) as is_free:
            if is_free:
                size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
                found.append(Leftover(folder, not _is_spent(folder), size))
    return found


def clean(folder: Path, *, unfinished: bool = False, below: bool = False, dry_run: bool = False) -> list[Leftover]:
    """Remove what killed processes left in a folder; what was removed, or would be.

    Args:
        folder: Where outputs were to be.
        unfinished: Also remove that from which the same command would go on.
        below: Look in all folders below it too; links are not followed.
        dry_run: Remove nothing.

    Raises:
        FileError: if there is no such folder.
    """
    if not folder.is_dir():
        raise FileError(f"Asked to clean {folder}, which is no folder; give the folder that outputs were written to.")
    parents = [Path(root) for root, _, _ in os.walk(folder)] if below else [folder]
    leftovers = [each for parent in parents for each in find_leftovers(parent) if unfinished or not each.resumable]
    return [each for each in leftovers if dry_run or remove_leftover(each.folder)]


def remove_leftover(folder: Path) -> bool:
    """Remove a folder of ours, unless a process has it by now; whether it is gone."""
    with _claim_leftover(folder) as is_free:
        if is_free:
            discard_folder(folder)
    return not os.path.lexists(folder)


def discard_folder(folder: Path) -> None:
    """Remove a folder, so that a kill on the way leaves nothing which is taken for whole."""
    aside = folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}")
    with hold_back_interrupts():
        try:
            os.rename(folder, aside)
        except OSError:
            aside = folder
        shutil.rmtree(aside, ignore_errors=True)


def remove_stale(parent: Path) -> int:
    """Remove what killed processes left half-filled in ``parent``, and nothing can go on from; how many folders."""
    return sum(remove_leftover(folder) for folder in _folders_of_ours(parent) if _is_spent(folder))


def _is_spent(folder: Path) -> bool:
    """Whether no command goes on from a folder: a temporary one, or one whose output has moved to its place."""
    if folder.name.startswith(TEMPORARY):
        return True
    try:
        number, name = (folder / COMPLETE).read_text("utf-8").split(" ", 1)
        return not os.path.lexists(folder / name) or os.lstat(folder / name).st_ino != int(number)  # it is an older one
    except (OSError, ValueError):
        return False


def mark_complete(folder: Path, name: str) -> None:
    """Say which file or folder in an unfinished folder is the output: when it has moved, the work is done."""
    (folder / COMPLETE).write_text(f"{os.lstat(folder / name).st_ino} {name}", "utf-8")


def _folders_of_ours(parent: Path) -> list[Path]:
    if sys.platform == "win32":
        return []
    try:
        with os.scandir(parent) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False) and _is_own(entry)
            ]
    except OSError:
        return []
    folders = (parent / name for name in sorted(names))
    return [folder for folder in folders if folder.name.startswith(TEMPORARY) or _is_unfinished(folder)]


def _is_unfinished(folder: Path) -> bool:
    return UNFINISHED.fullmatch(folder.name) is not None and not foreign_names(folder)


def foreign_names(folder: Path) -> list[str]:
    """What is in an unfinished folder and not of this program."""
    try:
        return sorted(name for name in os.listdir(folder) if name not in GROWN)
    except OSError:
        return []


def _is_own(entry: os.DirEntry[str]) -> bool:
    return entry.stat(follow_symlinks=False).st_uid == os.geteuid()


@contextlib.contextmanager
def _claim_leftover(folder: Path) -> Iterator[bool]:
    """Have a folder while the block lasts; whether it could be had."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        # Not `_lock`: on a file system without locks nobody can tell whose a folder is, so it stays.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)
