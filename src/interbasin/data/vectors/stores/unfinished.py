"""The folder beside a destination in which an output grows, and from which it goes on after an interrupt or a kill.

It holds the output so far and ``state.json``: which source and which translator it is of, and how much of it can be
relied on. What the kernel was given survives a process that is killed, but not a machine that stops; so the state tells
both how much was written and how much of that was also flushed to the disk, and after a restart only the latter counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from interbasin.errors import FileError
from interbasin.jobs.translate.applying import same_probe
from interbasin.storage import FORMAT_PREFIX, TEMPORARY, read_document

if sys.platform != "win32":
    import fcntl

__all__ = ["Unfinished", "cannot_write", "check_same_work"]

FORMAT, VERSION = "unfinished-vectors", 1
SECONDS_BETWEEN_FLUSHES = 30.0


class Unfinished:
    """What was written of an output that is not complete.

    Args:
        destination: Where the output will be.
        work: What it is made of: ``source`` and ``translator``, fingerprints; ``layout``, what its bytes depend on.
        force: Start anew where what is there is of other work.

    Attributes:
        name: The destination as it was given.
        folder: Where it grows.
        done: What the sink said when it last saved; empty at the start.

    Raises:
        FileError: if what is there is of other work, or another process is at it.
    """

    def __init__(self, destination: Path, work: Mapping[str, Any], *, force: bool = False) -> None:
        self.name, self.destination = str(destination), Path(os.path.realpath(destination))
        # A digest, so that whatever name the destination may have, this one may be had as well.
        name = hashlib.sha256(self.destination.name.encode()).hexdigest()[:16]
        self.folder = self.destination.parent / f"{TEMPORARY}{name}"
        self._work = json.loads(json.dumps(work))
        self._flushed_at = time.monotonic()
        self._durable: dict[str, Any] = {}
        self._lock: IO[str] | None = None
        self.done: dict[str, Any] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claim()
            self.done = self._found(force)
        except OSError as error:
            self._release()
            raise cannot_write(self.name, error) from error

    @property
    def _state(self) -> Path:
        return self.folder / "state.json"

    def _claim(self) -> None:
        if sys.platform == "win32":
            return
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileError(
                f"Another process is writing {self.name} at this moment; wait for it, or choose another name."
            ) from error

    def _found(self, force: bool) -> dict[str, Any]:
        if not self._state.exists():
            self._empty()
            return {}
        state = read_document(self._state, FORMAT, VERSION)
        try:
            check_same_work(state["work"], self._work, f"The unfinished {self.name}", f"remove {self.folder}")
        except FileError:
            if not force:
                raise
            self._empty()
            return {}
        self._durable = dict(state["durable"])
        return dict(state["written"] if state["boot"] is not None and state["boot"] == _boot() else self._durable)

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def save(self, done: Mapping[str, Any], flush: Callable[[], object]) -> None:
        """Keep what is done; now and then, after ``flush`` has brought it to the disk."""
        now = time.monotonic()
        if now - self._flushed_at > SECONDS_BETWEEN_FLUSHES:
            flush()
            self._flushed_at, self._durable = now, dict(done)
        self.done = dict(done)
        document = {
            "format": FORMAT_PREFIX + FORMAT,
            "version": VERSION,
            "destination": self.destination.name,
            "work": self._work,
            "boot": _boot(),
            "written": self.done,
            "durable": self._durable,
        }
        soon = self.folder / "state.soon"
        soon.write_text(json.dumps(document), "utf-8")
        os.replace(soon, self._state)

    def finish(self, name: str) -> None:
        """Move what is complete, the file or folder ``name`` in here, to the destination, and leave nothing behind."""
        made = self.folder / name
        try:
            if self.destination.is_dir() and not self.destination.is_symlink():
                shutil.rmtree(self.destination)
            os.replace(made, self.destination)
            _flush_folder(self.destination.parent)
        except OSError as error:
            raise cannot_write(self.name, error) from error
        self.discard()

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def close(self) -> None:
        """Let another process have it; where nothing was done, leave nothing behind."""
        if self._lock is not None and not self.done:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def check_same_work(found: Mapping[str, Any], asked: Mapping[str, Any], what: str, remedy: str) -> None:
    """Nothing, if what was begun is what is asked for now.

    Raises:
        FileError: if it is not; says which part differs.
    """
    differs = [name for name in ("source", "layout") if found.get(name) != asked.get(name)]
    if not same_probe(found.get("translator", {}), asked.get("translator", {})):
        differs.append("translator")
    if not differs:
        return
    told = {
        "source": "from another source, or the source has changed since",
        "layout": "in another layout",
        "translator": "by another translator",
    }
    raise FileError(
        f"{what} was begun {' and '.join(told[name] for name in differs)}, so this run cannot go on from it; {remedy} "
        "to start anew, or ask for that with force=True (--force)."
    )


def cannot_write(destination: Path | str, error: OSError) -> FileError:
    """The error for an output that the system refuses; one of ours passes as it is."""
    if isinstance(error, FileError):
        return error
    return FileError(
        f"Could not write {destination}: {error.strerror or error}; is there room on the disk and leave to write "
        "there? What is done is kept: make room and run the same command to go on."
    )


def _boot() -> str | None:
    """What changes when the machine starts again; None where that is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None


def _flush_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
