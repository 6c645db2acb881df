"""What a run has done so far, kept so that a run which was killed goes on from there, to the same bytes.

There are two kinds. `Unfinished` is an output that grows in a folder beside its destination. `Kept` is a folder of
results, each of which took long and is done, for a job that puts them together in the end.

What was kept is verified before it is trusted. What the kernel was given survives a process that is killed, but not a
machine that stops; so the state of an output tells both how much was written and how much of that was also flushed to
the disk, each with a sum over these bytes, and after a restart of the machine only the latter counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interbasin.errors import FileError
from interbasin.storage.atomic import (
    READABLE,
    allowed,
    flush_files,
    missing_parents,
    new_folder,
    put_in_place,
    remove_empty,
)
from interbasin.storage.destination import FORMAT_PREFIX, as_path, cannot_write
from interbasin.storage.digest import Sum
from interbasin.storage.interrupts import hold_back_interrupts
from interbasin.storage.lock import (
    PREFIX,
    Claim,
    claim_folder,
    discard_folder,
    foreign_names,
    mark_complete,
    remove_stale,
    unfinished_folder,
)
from interbasin.storage.records import read_document, read_record, seal_of, write_record

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, VERSION = "unfinished-vectors", 2
FILES = "files"  # the list of those that are written once
SECONDS_BETWEEN_FLUSHES = 30.0


class Unfinished:
    """What was written of an output that is not complete.

    Args:
        destination: Where the output will be.
        work: What it is made of: mappings by name.
        refuse_what_is_in_the_way: Raises what stands at the destination and may not be replaced, also at the end.
        check_same_work: Raises how the work that was begun, the first argument, differs from this one, the second; the
            others are what to call it, and what to do to start anew.
        force: Start anew where what is there is of other work, or damaged.
        mode: Who may read and write the output, beside what the umask takes away.

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
        work: Mapping[str, Mapping[str, Any]],
        *,
        refuse_what_is_in_the_way: Callable[[], object],
        check_same_work: Callable[[Mapping[str, Any], Mapping[str, Any], str, str], object],
        force: bool = False,
        mode: int = READABLE,
    ) -> None:
        self._force, self._mode = force, mode
        self._refuse_what_is_in_the_way, self._check_same_work = refuse_what_is_in_the_way, check_same_work
        self.name, self.destination = str(destination), Path(os.path.realpath(destination))
        self.folder = unfinished_folder(self.destination)
        self._state = self.folder / "state.json"
        self._work = json.loads(json.dumps(work))
        self._flushed_at = time.monotonic()
        self._durable: dict[str, Any] = {}
        self._sums: dict[str, Sum] = {}
        self._listed: set[str] = set()
        self._claim: Claim | None = None
        self.done: dict[str, Any] = {}
        self._made_above = missing_parents(self.destination)
        try:
            with hold_back_interrupts():
                self._claim = claim_folder(self.folder, self.name)
                remove_stale(self.destination.parent)
            self._take_up()
        except BaseException as error:
            self._release()
            remove_empty([self.folder, *self._made_above])
            raise self.cannot_write(error) if isinstance(error, OSError) else error from error

    def cannot_write(self, error: OSError) -> FileError:
        """The error for an output that the system refuses; one of ours passes as it is."""
        return cannot_write(self.name, error, kept=bool(self.done.get("rows")))

    def _take_up(self) -> None:
        """See what an earlier run of the same work did, as far as it can be relied on."""
        if foreign := foreign_names(self.folder):
            raise FileError(
                f"{self.name} is to grow in {self.folder} until it is complete, but that folder holds other things "
                f"({foreign[0]}); move them away, or choose another output."
            )
        if not self._state.exists():
            self._empty()
            return
        try:
            state = self._read_state()
            self._check_same_work(state["work"], self._work, f"The unfinished {self.name}", f"remove {self.folder}")
        except FileError:
            if not self._force:
                raise
            self._empty()
            return
        is_same_boot = state["boot"] is not None and state["boot"] == _boot()
        self._durable = dict(state["durable"])
        self.done = dict(state["written"] if is_same_boot else self._durable)
        sums = self.done.pop("sums", {})
        self._sums = {name: Sum(*pair) for name, pair in sums.items()}

    def _read_state(self) -> dict[str, Any]:
        try:
            return read_document(self._state, FORMAT, VERSION, sealed=True)
        except FileError as error:
            raise self._cannot_go_on(f"its {self._state.name} cannot be read: {error}".rstrip(".")) from error

    def _cannot_go_on(self, reason: str) -> FileError:
        return FileError(
            f"The unfinished {self.name} is damaged, so this run cannot go on from it ({reason}); remove {self.folder} "
            "to start anew, or ask for that with force=True (--force)."
        )

    def require_kept(self, sizes: Mapping[str, int]) -> None:
        """Raise a `FileError` if a file that grows here does not begin with the bytes that were saved.

        So it is with the files that `save` was told of as written once. Where force was asked for, all is started anew.
        """
        if not self.done:
            return
        try:
            for name, size in sizes.items():
                self._require_sum(name, self._sums.get(name, Sum()), size)
            if FILES in self._sums:
                self._require_sum(FILES, self._sums[FILES], self._sums[FILES].size)
                with (self.folder / FILES).open("rb") as file:
                    listed = [json.loads(line) for line in file.read(self._sums[FILES].size).splitlines()]
                for name, size, crc in listed:
                    self._require_sum(name, Sum(size, crc), size)
                self._listed = {name for name, _, _ in listed}
        except FileError:
            if not self._force:
                raise
            self._empty()
            self.done, self._durable, self._sums = {}, {}, {}

    def _require_sum(self, name: str, kept: Sum, size: int) -> None:
        path = self.folder / name
        if path.is_symlink():
            raise self._cannot_go_on(f"its {name} is a link, which would be written through")
        if not path.is_file():
            raise self._cannot_go_on(f"its {name} is missing")
        if path.stat().st_size < size:
            raise self._cannot_go_on(f"its {name} has {path.stat().st_size:,} of {size:,} bytes")
        if Sum().grown(path, size) != kept:
            raise self._cannot_go_on(f"its {name} is not what was saved")

    def require_room(self, needed: int) -> None:
        """Raise a `FileError` if so many bytes more do not fit, before hours of work rather than after."""
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise FileError(
                f"{self.name} will take {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free there; make room, or "
                "choose another place."
            )

    def _empty(self) -> None:
        self._state.unlink(missing_ok=True)  # first: without it there is nothing to go on from
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def save(
        self,
        done: Mapping[str, Any],
        flush: Callable[[], object],
        sizes: Mapping[str, int] | None = None,
        *,
        written_once: Iterable[Path] = (),
    ) -> None:
        """Keep what is done; now and then, after ``flush`` has brought it to the disk.

        Args:
            done: What the sink has to know to go on.
            flush: Brings all that was written to the disk.
            sizes: Of the files that grow here: how many bytes count. They do not change any more.
            written_once: Files that will not change, those that were told of before among them.
        """
        for name, size in (sizes or {}).items():
            self._sums[name] = self._sums.get(name, Sum()).grown(self.folder / name, size)
        self._list_new_files(written_once)
        now = time.monotonic()
        kept = {**done, "sums": {name: [part.size, part.crc] for name, part in self._sums.items()}}
        if now - self._flushed_at > SECONDS_BETWEEN_FLUSHES:
            flush()
            self._flushed_at, self._durable = now, kept
        self.done = dict(done)
        document = {
            "format": FORMAT_PREFIX + FORMAT,
            "version": VERSION,
            "destination": self.destination.name,
            "work": self._work,
            "boot": _boot(),
            "written": kept,
            "durable": self._durable,
        }
        soon = self.folder / "state.soon"
        soon.write_text(json.dumps({**document, "seal": seal_of(document)}), "utf-8")
        os.replace(soon, self._state)

    def _list_new_files(self, paths: Iterable[Path]) -> None:
        """Add the sums over new files to a list, which grows like any other file."""
        new = {path.relative_to(self.folder).as_posix(): path for path in paths}
        lines = []
        for name in sorted(new.keys() - self._listed):
            part = Sum().grown(new[name], new[name].stat().st_size)
            lines.append(json.dumps([name, part.size, part.crc]).encode() + b"\n")
            self._listed.add(name)
        if lines:
            before = self._sums.get(FILES, Sum())
            with (self.folder / FILES).open("r+b" if before.size else "wb") as file:
                file.seek(before.size)  # beyond are the lines of a run that was killed before it saved
                file.writelines(lines)
                size = file.tell()
            self._sums[FILES] = before.grown(self.folder / FILES, size)

    def finish(self, name: str) -> None:
        """Move what is complete, the file or folder ``name`` in here, to the destination, and leave nothing behind."""
        complete = self.folder / name
        try:
            if complete.is_dir():
                flush_files(complete, self._mode)
            else:
                complete.chmod(allowed(self._mode))
            # Says, should this process be killed after the next step, that nothing is left to go on from.
            mark_complete(self.folder, name)
            with hold_back_interrupts(complete=Path(self.name)):
                put_in_place(complete, self.destination, self._refuse_late)
                discard_folder(self.folder)
                self._release()
        except OSError as error:
            raise self.cannot_write(error) from error

    def _refuse_late(self) -> None:
        """The work may have taken hours, in which someone else may have written there."""
        try:
            self._refuse_what_is_in_the_way()
        except FileError as error:
            raise FileError(
                f"{error} It came there while this run worked, of which everything is kept: move it away and run the "
                "same command again."
            ) from error

    def close(self) -> None:
        """Let another process have it; where nothing was done, leave nothing behind."""
        with hold_back_interrupts():
            if self._claim is not None and not self.done.get("rows"):
                discard_folder(self.folder)
                remove_empty(self._made_above)
            self._release()

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None


def _boot() -> str | None:
    """What changes when the machine starts again; None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None


# ---------------------------------------------------------------------- results that are done


@dataclass(frozen=True)
class Kept:
    """Results of one kind that are done: a sealed record for each, in a folder of its own.

    Attributes:
        folder: Where these folders are.
        name: Of the records.
        format, version: Of the records.
    """

    folder: Path
    name: str
    format: str
    version: int

    def read(self, place: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """A result, or None if it is not there, not whole, or not what was written: then it is to be made anew."""
        try:
            return read_record(self.folder / place, self.name, self.format, self.version, sealed=True)
        except FileError:
            return None

    def write(self, place: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Keep a result in place of what is there."""
        with new_folder(self.folder / place, force=True, ours=self._is_own) as folder:
            write_record(folder, self.name, self.format, self.version, document, tensors)

    def _is_own(self, folder: Path) -> bool:
        """Whether a folder holds such a result, damaged or not, and nothing else."""
        return {path.name for path in folder.iterdir()} <= {f"{self.name}.json", f"{self.name}.safetensors"}


def state_folder(state: str | os.PathLike[str], what: str, owned: re.Pattern[str]) -> Path:
    """The folder that a state is kept in, which is empty, not there, or holds what is ours.

    Args:
        state: As it was given.
        what: The state, in messages: "The state of a transport".
        owned: The names of what may be in it, beside temporary folders.

    Raises:
        FileError: if it cannot be one.
    """
    place = as_path(state, what)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(place)  # says what no name can be
        is_there = place.exists()
        above = next(folder for folder in place.absolute().parents if folder.exists())
    except (OSError, ValueError) as error:
        raise no_state(place, error) from error
    if is_there and not place.is_dir():
        raise FileError(f"The state was to be kept in {place}, which is a file; choose another place.")
    if not is_there and place.is_symlink():
        raise FileError(f"The state was to be kept in {place}, a link that leads nowhere; choose another place.")
    if not os.access(place if is_there else above, os.W_OK | os.X_OK):
        raise FileError(f"The state was to be kept in {place}, where nothing can be written; choose another place.")
    names = sorted(path.name for path in place.iterdir()) if is_there else []
    others = [name for name in names if not owned.fullmatch(name) and not name.startswith(PREFIX)]
    if others:
        raise FileError(f"The state was to be kept in {place}, which holds other things ({others[0]}); choose another.")
    return place


def no_state(place: Path, error: Exception) -> FileError:
    """The error for a state that the system has no place for."""
    reason = getattr(error, "strerror", None) or error
    return FileError(f"The state was to be kept in {str(place)!r}, which cannot be ({reason}); choose another place.")


@contextlib.contextmanager
def holding_folder(folder: Path) -> Iterator[None]:
    """Have the folder of a state for this process alone; what killed ones left half-written in it goes.

    Raises:
        FileError: if another process has it, or it cannot be made.
    """
    is_new = not folder.exists()
    try:
        claim = claim_folder(folder, f"the state in {folder}", private=False)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        for parent in (folder, *(path for path in folder.iterdir() if path.is_dir())):
            remove_stale(parent)
        yield
    finally:
        claim.release()
        if is_new:
            remove_empty([folder])  # unless something is kept in it
