"""Where something is to be written: what stands there, whether it may be replaced, and what the system refuses.

Nothing is replaced unless that is asked for, and then only what this program wrote and nothing else is in.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from interbasin.errors import FileError

FORMAT_PREFIX = "interbasin."
LARGEST_DOCUMENT = 256 * 2**20  # bytes of JSON; the largest of ours have some megabytes


def read_text(path: Path) -> str:
    """The text of a small file, which is looked at before it is read: a pipe would never end.

    Raises:
        FileError: if it is no ordinary file, or too large to be a document of ours.
        OSError, ValueError: as `Path.read_text` does.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{path} is no ordinary file, so it is not read; copy it again or make it anew.")
    if status.st_size > LARGEST_DOCUMENT:
        raise FileError(
            f"{path} has {status.st_size:,} bytes, and no document of ours is as long; copy it again or make it anew."
        )
    return path.read_text(encoding="utf-8")


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
        document = json.loads(read_text(path))
    except (FileError, OSError, ValueError, RecursionError):
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


def cannot_write(destination: Path | str, error: OSError | ValueError, *, kept: bool = False) -> FileError:
    """The error for an output that the system refuses; one of ours passes as it is."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, ValueError):
        return FileError(f"{str(destination)!r} cannot be the name of a folder or file ({error}); choose another.")
    kept_words = " What is done is kept: make room and run the same command to go on." if kept else ""
    advice = f"is there room on the disk and leave to write there?{kept_words}"
    return FileError(f"Could not write {destination}: {error.strerror or error}; {advice}")
