"""Files and folders that appear whole or not at all.

They are filled under a temporary name beside their destination and renamed when they are complete, so an interrupt or
a full disk leaves what was there before.

A writer that ends, well or badly, removes its temporary folder. Only SIGKILL, or a machine that stops, leaves one
behind. `claim_folder` keeps a locked file in it; the system lifts that lock with the process, so a folder whose lock
can be had belongs to nobody, and `remove_stale_folders` removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from interbasin.errors import FileError

if sys.platform != "win32":  # which has no such locks: stale folders stay there
    import fcntl

FORMAT_PREFIX = "interbasin."
# Short, so that whatever name the destination may have, the temporary one may be had as well.
TEMPORARY = ".interbasin-"
LOCK = ".claimed"


def as_path(name: object, what: str = "A file or a folder", error: type[FileError] = FileError) -> Path:
    """``name`` as a path; ``what`` is how the message calls what it should name.

    Raises:
        FileError: (or the error that is given) if it cannot be one.
    """
    path = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    if not isinstance(path, str):
        raise error(f"{what} is named by text or a pathlib.Path, found a {type(name).__name__}; give its name.")
    if not path:  # which Path takes for the current folder
        raise error(f"{what} was asked for, and its name is empty; give its name.")
    return Path(path)


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str],
    holds: Collection[str] | None = None,
    *,
    force: bool = False,
    ours: Callable[[Path], bool] | None = None,
) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` if the block ends well, and vanishes if it does not.

    Args:
        path: The destination. Missing parents are made.
        holds: The names of the records that such a folder may hold; by default any of this package.
        force: Replace a folder that holds such records and nothing else. Anything else is never replaced.
        ours: Says whether a folder may be replaced, where that is not a matter of records.

    Raises:
        FileError: if ``path`` exists (and ``force`` is off, or it is not ours), or cannot be written.
    """
    refuse_what_is_in_the_way(path, holds, force=force, ours=ours)
    # Behind a symbolic link the folder it names is replaced, and the link stays.
    destination = Path(os.path.realpath(path))
    with _temporary_folder(destination) as temporary:
        yield temporary
        # mkdtemp makes private folders; what we leave behind follows the user's umask like any other folder.
        temporary.chmod(0o777 & ~_umask())
        _flush_files(temporary)
        # Filling it may have taken hours, in which someone else may have written there.
        refuse_what_is_in_the_way(path, holds, force=force, ours=ours)
        _move_into_place(temporary, destination)


@contextlib.contextmanager
def new_file(
    path: str | os.PathLike[str], *, force: bool = False, ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """A temporary name for a file that becomes ``path`` if the block ends well, and vanishes if it does not.

    Args:
        path: The destination. Missing parents are made.
        force: Replace a file that is ours. Anything else is never replaced.
        ours: Says whether a file is ours; by default none is.

    Raises:
        FileError: if ``path`` exists (and ``force`` is off, or it is not ours), or cannot be written.
    """
    refuse_file_in_the_way(path, force=force, ours=ours)
    destination = Path(os.path.realpath(path))
    with _temporary_folder(destination) as folder:
        yield folder / destination.name
        _flush_files(folder)
        refuse_file_in_the_way(path, force=force, ours=ours)
        os.replace(folder / destination.name, destination)


@contextlib.contextmanager
def _temporary_folder(destination: Path) -> Iterator[Path]:
    """A folder beside the destination for as long as the block lasts; what the system refuses becomes a `FileError`."""
    folder = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=destination.parent))
        yield folder
    except FileError:
        raise
    except OSError as error:
        raise cannot_write(destination, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Mark a temporary folder as being filled for as long as the block, and this process, lasts."""
    if sys.platform == "win32":
        yield
        return
    # Locked before it has the name that is looked for, so that it is never found free.
    with (folder / f"{LOCK}-soon").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is ever removed there
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / f"{LOCK}-soon").rename(folder / LOCK)
        try:
            yield
        finally:
            for name in (LOCK, f"{LOCK}-soon"):
                (folder / name).unlink(missing_ok=True)


def remove_stale_folders(parent: Path) -> int:
    """Remove the folders beside a destination that killed processes left half-filled; how many there were."""
    if sys.platform == "win32" or not parent.is_dir():
        return 0
    count = 0
    for lock in parent.glob(f"{TEMPORARY}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
            count += 1
    return count


def is_ours(folder: Path, holds: Collection[str] | None = None) -> bool:
    """Whether a folder holds the named records of this package and nothing else, so that replacing it loses nothing."""
    paths = sorted(folder.iterdir())
    ours = {path.stem for path in paths if path.suffix == ".json" and _names_our_format(path)}
    return (
        bool(ours)
        and (holds is None or ours <= set(holds))
        and all(path.suffix in (".json", ".safetensors") and path.stem in ours for path in paths)
    )


def _names_our_format(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("format", "")).startswith(FORMAT_PREFIX)


def refuse_what_is_in_the_way(
    path: str | os.PathLike[str],
    holds: Collection[str] | None = None,
    *,
    force: bool,
    ours: Callable[[Path], bool] | None = None,
) -> None:
    """Raise the `FileError` that writing a folder to ``path`` would, so that long work can fail before it starts."""
    destination = as_path(path)
    try:
        entries = sorted(destination.iterdir())
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.lexists(destination):
            is_link = isinstance(error, FileNotFoundError)
            obstacle = "that is a link to nothing" if is_link else "a file of that name exists"
            raise FileError(
                f"Asked to write a folder at {destination}, but {obstacle}; choose another name."
            ) from error
        _refuse_what_is_above(destination)
        return
    except (OSError, ValueError) as error:
        raise cannot_write(destination, error) from error
    if os.path.samefile(destination, "."):
        raise FileError("Asked to write to the current folder, which would be replaced by a new one; give a new name.")
    if not entries:
        return
    _require_force(destination, force)
    if not (is_ours(destination, holds) if ours is None else ours(destination)):
        raise FileError(
            f"Asked to replace {destination}, but that folder holds files that this command did not write; "
            "choose another name, or remove the folder yourself."
        )


def refuse_file_in_the_way(
    path: str | os.PathLike[str], *, force: bool, ours: Callable[[Path], bool] | None = None
) -> None:
    """Raise the `FileError` that writing a file to ``path`` would, so that long work can fail before it starts."""
    destination = as_path(path)
    try:
        os.lstat(destination)
    except (FileNotFoundError, NotADirectoryError):
        _refuse_what_is_above(destination, "file")
        return
    except (OSError, ValueError) as error:
        raise cannot_write(destination, error) from error
    if not destination.is_file():
        obstacle = "a folder of that name exists" if destination.is_dir() else "that is no ordinary file"
        raise FileError(f"Asked to write a file at {destination}, but {obstacle}; choose another name.")
    _require_force(destination, force)
    if ours is None or not ours(destination):
        raise FileError(
            f"Asked to replace {destination}, but this command did not write that file; choose another name, or remove "
            "the file yourself."
        )


def _require_force(destination: Path, force: bool) -> None:
    if not force:
        raise FileError(
            f"{destination} exists already and nothing is overwritten unasked; choose another name, or ask for it with "
            "force=True (--force)."
        )


def _refuse_what_is_above(destination: Path, what: str = "folder") -> None:
    """Refuse a destination below a file, or below a folder that cannot be written to."""
    above = next(parent for parent in Path(os.path.abspath(destination)).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise FileError(f"Asked to write a {what} at {destination}, but {above} is not a folder; choose another name.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise FileError(f"Asked to write a {what} at {destination}, but {above} is not yours to write; choose another.")


def _move_into_place(temporary: Path, destination: Path) -> None:
    if not destination.exists() or not any(destination.iterdir()):
        os.replace(temporary, destination)
    elif not _exchange(temporary, destination):
        # Elsewhere a folder cannot be renamed over a full one: step the old one aside, and back again if that fails.
        aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=destination.parent))
        try:
            os.replace(destination, aside)
            os.replace(temporary, destination)
        except BaseException:
            if not destination.exists():
                os.replace(aside, destination)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Whether the two folders could be exchanged in one step (Linux); no moment then has neither in place."""
    current_folder, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(current_folder, os.fsencode(first), current_folder, os.fsencode(second), exchange) == 0)


def _flush_files(folder: Path) -> None:
    """Have the files on the disk before their name says that they are."""
    for path in folder.rglob("*"):
        if not path.is_dir():
            path.chmod(0o666 & ~_umask())  # safetensors makes private files
            flush(path)


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cannot_write(destination: Path | str, error: OSError | ValueError, *, kept: bool = False) -> FileError:
    """The error for an output that the system refuses; one of ours passes as it is."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, ValueError):
        return FileError(f"{str(destination)!r} cannot be the name of a folder or file ({error}); choose another.")
    kept_words = " What is done is kept: make room and run the same command to go on." if kept else ""
    advice = f"is there room on the disk and leave to write there?{kept_words}"
    return FileError(f"Could not write {destination}: {error.strerror or error}; {advice}")
