"""The folder beside a destination in which an output grows, and from which it goes on after an interrupt or a kill.

It holds the output so far and ``state.json``: which source and which translator it is of, and how much of it can be
relied on. What the kernel was given survives a process that is killed, but not a machine that stops; so the state tells
both how much was written and how much of that was also flushed to the disk, and after a restart only the latter counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from interbasin.errors import FileError
from interbasin.storage.atomic import FORMAT_PREFIX, TEMPORARY, cannot_write, flush
from interbasin.storage.records import read_document

if sys.platform != "win32":
    import fcntl

FORMAT, VERSION = "unfinished-vectors", 1
SECONDS_BETWEEN_FLUSHES = 30.0


class Unfinished:
    """What was written of an output that is not complete.

    Args:
        destination: Where the output will be.
        work: What it is made of: ``source`` and ``translator``, fingerprints; ``layout``, what its bytes depend on.
        counts: The numbers that its sink saves.
        refuse_what_is_in_the_way: Raises what stands at the destination and may not be replaced, also at the end.
        force: Start anew where what is there is of other work.

    Attributes:
        name: The destination as it was given.
        folder: Where it grows.
        done: What the sink said when it last saved; empty at the start.

    Raises:
        FileError: if what is there is of other work, or another process is at it.
    """

    def __init__(
        self,
        destination: Path,
        work: Mapping[str, Any],
        *,
        counts: Sequence[str],
        refuse_what_is_in_the_way: Callable[[], object],
        force: bool = False,
    ) -> None:
        self._counts, self._force, self._refuse_what_is_in_the_way = counts, force, refuse_what_is_in_the_way
        self.name, self.destination = str(destination), Path(os.path.realpath(destination))
        # A digest, so that whatever name the destination may have, this one may be had as well.
        name = hashlib.sha256(self.destination.name.encode()).hexdigest()[:16]
        self.folder = self.destination.parent / f"{TEMPORARY}{name}"
        self._state = self.folder / "state.json"
        self._work = json.loads(json.dumps(work))
        self._flushed_at = time.monotonic()
        self._durable: dict[str, Any] = {}
        self._lock: IO[str] | None = None
        self.done: dict[str, Any] = {}
        above = self.destination.parent
        self._made_above = [folder for folder in (above, *above.parents) if not folder.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claim()
            self.done = self._take_up()
        except OSError as error:
            self._release()
            self._remove_made_above()
            raise self.cannot_write(error) from error

    def cannot_write(self, error: OSError) -> FileError:
        """The error for an output that the system refuses; one of ours passes as it is."""
        return cannot_write(self.name, error, kept=bool(self.done.get("rows")))

    def _remove_made_above(self) -> None:
        """Folders that were made for an output which did not come about, unless there is something in them."""
        with contextlib.suppress(OSError):
            for folder in self._made_above:
                folder.rmdir()

    def _claim(self) -> None:
        self._lock = claim_growing_folder(self.folder, self.name)

    def _take_up(self) -> dict[str, Any]:
        """What an earlier run of the same work did, as far as it can be relied on."""
        if not self._state.exists():
            self._empty()
            return {}
        try:
            state = self._read_state()
            check_same_work(state["work"], self._work, f"The unfinished {self.name}", f"remove {self.folder}")
        except FileError:
            if not self._force:
                raise
            self._empty()
            return {}
        self._durable = dict(state["durable"])
        return dict(state["written"] if state["boot"] is not None and state["boot"] == _boot() else self._durable)

    def _read_state(self) -> dict[str, Any]:
        try:
            state = read_document(self._state, FORMAT, VERSION)
        except FileError as error:
            raise self._cannot_go_on(f"its {self._state.name} cannot be read: {error}".rstrip(".")) from error
        for name in ("work", "written", "durable"):
            if not isinstance(state.get(name), dict):
                raise self._cannot_go_on(f"its {self._state.name} does not tell {name!r}")
        for name in ("source", "layout", "translator"):
            if not isinstance(state["work"].get(name), dict):
                raise self._cannot_go_on(f"its {self._state.name} does not tell the {name!r} of the work")
        for name in ("written", "durable"):
            for count in self._counts if state[name] else ():
                if type(state[name].get(count)) is not int or state[name][count] < 0:
                    raise self._cannot_go_on(f"its {self._state.name} does not tell {count!r} of what is {name}")
        if not isinstance(state.get("boot"), str | None):
            raise self._cannot_go_on(f"its {self._state.name} does not tell 'boot'")
        return state

    def _cannot_go_on(self, reason: str) -> FileError:
        return FileError(
            f"The unfinished {self.name} is damaged, so this run cannot go on from it ({reason}); remove {self.folder} "
            "to start anew, or ask for that with force=True (--force)."
        )

    def require_bytes(self, sizes: Mapping[str, int]) -> None:
        """Raise a `FileError` if a file or folder that grows here is smaller than when it was last saved, or missing.

        Where that is so and force was asked for, all of it is started anew.
        """
        for name, size in sizes.items() if self.done else ():
            path = self.folder / name
            if path.exists() and (path.is_dir() or path.stat().st_size >= size):
                continue
            if not self._force:
                fault = f"has {path.stat().st_size:,} of {size:,} bytes" if path.exists() else "is missing"
                raise self._cannot_go_on(f"its {name} {fault}")
            self._empty()
            self.done, self._durable = {}, {}
            return

    def require_room(self, needed: int) -> None:
        """Raise a `FileError` if so many bytes more do not fit, before hours of work rather than after."""
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise FileError(
                f"{self.name} will take {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free there; make room, or "
                "choose another place."
            )

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
        try:
            # The work may have taken hours, in which someone else may have written there.
            self._refuse_what_is_in_the_way()
        except FileError as error:
            raise FileError(
                f"{error} It came there while this run worked, of which everything is kept: move it away and run the "
                "same command again."
            ) from error
        try:
            if self.destination.is_dir() and not self.destination.is_symlink():
                shutil.rmtree(self.destination)
            os.replace(self.folder / name, self.destination)
            if sys.platform != "win32":  # where no folder can be opened
                flush(self.destination.parent)
        except OSError as error:
            raise self.cannot_write(error) from error
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def close(self) -> None:
        """Let another process have it; where nothing was done, leave nothing behind."""
        if self._lock is not None and not self.done.get("rows"):
            shutil.rmtree(self.folder, ignore_errors=True)
            self._remove_made_above()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def claim_growing_folder(folder: Path, name: str) -> IO[str] | None:
    """Make a folder beside an output ours, until the file that is returned is closed or this process ends.

    Args:
        folder: Where the output grows; it is made if it is not there.
        name: The output, in messages.

    Raises:
        FileError: if another process has it.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":  # which has no such locks
            return None
        try:
            file = (folder / "lock").open("w")
        except FileNotFoundError:  # another run has just ended and removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), (folder / "lock").stat()):
                return file
        except BlockingIOError as error:
            file.close()
            raise FileError(
                f"Another process is writing {name} at this moment; wait for it, or choose another name."
            ) from error
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks
            return file
        file.close()


def check_same_work(begun: Mapping[str, Any], work: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raise a `FileError` that says how the work that was begun differs from the one that is asked for now."""
    differs = []
    if begun.get("source") != work.get("source"):
        differs.append("from another source, or the source has changed since")
    before, now = dict(begun.get("layout", {})), dict(work.get("layout", {}))
    scales = before.pop("scale", None), now.pop("scale", None)
    if scales[0] != scales[1]:
        differs.append(f"with the scale {scales[0]}, and {scales[1]} is asked for now")
    # Rows that were refused are not there, so that a run which keeps them may follow, but not the other way round.
    if (before.pop("bad_rows", "refuse"), now.pop("bad_rows", "refuse")) == ("keep", "refuse"):
        differs.append("with bad rows kept, and to refuse them is asked for now")
    if before != now:
        differs.append("in another layout")
    if not same_probe(begun.get("translator", {}), work.get("translator", {})):
        differs.append("by another translator")
    if differs:
        raise FileError(
            f"{what} was begun {' and '.join(differs)}, so this run cannot go on from it; {remedy} to start anew, or "
            "ask for that with force=True (--force)."
        )


def same_probe(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of one translator; sums may differ in their last digits from machine to machine."""
    try:
        probes = [np.asarray(fingerprint.get("probe", []), dtype=np.float64) for fingerprint in (first, second)]
    except (TypeError, ValueError):  # of what was damaged
        return False
    return (
        first.get("widths") == second.get("widths")
        and probes[0].shape == probes[1].shape
        and bool(np.allclose(probes[0], probes[1], rtol=1e-6, atol=1e-9))
    )


def _boot() -> str | None:
    """What changes when the machine starts again; None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None
