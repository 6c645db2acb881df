"""What the inputs of a job were: the files behind a path or a MODEL, by size and SHA-256, and who may read them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from interbasin.checkpoints.checkpoint import stamp_of
from interbasin.errors import InterbasinError
from interbasin.storage.digest import Digest, digest_of

LISTED = 32  # files of a folder that are listed one by one; beyond, one hash stands for all


@dataclass(frozen=True)
class InputFiles:
    """What an input was.

    Attributes:
        given: The text that named it.
        path: The file or folder behind it, as far as it was told; None if it is only a name (``digits``).
        bytes: Of all its files together.
        sha256: Of the file; of a folder, that of the lines ``HASH  NAME``, sorted by name, as sha256sum prints them.
        files: Name to `Digest`, for a folder of a few files.
    """

    given: str
    path: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    files: dict[str, Digest] = field(default_factory=dict)


def files_of(given: str | os.PathLike[str]) -> InputFiles:
    """The files that ``given`` names, hashed: a path, a MODEL with ``@weights``, or a name without files.

    Raises:
        FileError: if they cannot be read.
    """
    text = os.fspath(given)
    path = _find_path(text)
    if path is None:
        return InputFiles(text)
    if path.is_file():
        digest = _digest_once(path)
        return InputFiles(text, str(path), digest.bytes, digest.sha256)
    files = {file.relative_to(path).as_posix(): _digest_once(file) for file in _list_files(path)}
    lines = "".join(f"{digest.sha256}  {name}\n" for name, digest in sorted(files.items()))
    return InputFiles(
        text,
        str(path),
        sum(digest.bytes for digest in files.values()),
        hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest(),
        files if len(files) <= LISTED else {},
    )


def narrowest_mode(inputs: Iterable[str | os.PathLike[str]]) -> int:
    """The permissions that an output made of these inputs may have at most, as the mode of a file.

    What others may not do with every input they may not do with the output: the modes of all files are met (``&``), and
    a folder that a group or the others may not enter counts as files that they may not read. Whoever makes the output
    may always read and write it. Where an input has another group than an output will have, what the group may and what
    the others may are met as well. The folders above an input do not count.

    Args:
        inputs: Paths and MODELs, as `files_of` takes them; a name without files (``digits``) is open to all.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "private"
        >>> path.touch(0o640)
        >>> oct(narrowest_mode([path, "digits"]))
        '0o640'
    """
    mode = 0o666
    for given in inputs:
        path = _find_path(os.fspath(given))
        if path is None:
            continue
        for place in (path, *(_list_places(path) if path.is_dir() else ())):
            with contextlib.suppress(OSError):  # a link to nothing, or a file that is gone
                mode &= _mode_of_file(place.stat())
    return 0o600 | mode


def _mode_of_file(status: os.stat_result) -> int:
    """The permissions of a file; those of the files in a folder, as far as the folder lets anybody come to them."""
    mode = status.st_mode
    if hasattr(os, "getegid") and status.st_gid != os.getegid():
        # An output has another group: whoever is in either may be among the others of the other.
        shared = mode >> 3 & mode & 0o7
        mode = mode & ~0o077 | shared << 3 | shared
    if not stat.S_ISDIR(mode):
        return mode & 0o666
    entered = mode & 0o111
    # Writing into a folder is making files in it, and says nothing about those that are there.
    return entered << 2 | entered << 1


# Inputs that were hashed, by what tells a file from a later one of the same name.
_SEEN: dict[tuple[str, int, int, int], Digest] = {}


def _digest_once(path: Path) -> Digest:
    """The digest of an input; a file that did not change since this process hashed it is not read again.

    Who tries many merges of the same networks would otherwise wait for little else.
    """
    stamp = stamp_of(path)
    if stamp is None:
        return digest_of(path)
    key = (os.path.realpath(path), *stamp)
    if key not in _SEEN:
        digest = digest_of(path)
        if stamp_of(path) != stamp:  # written to in the meantime
            return digest
        _SEEN[key] = digest
    return _SEEN[key]


def _find_path(text: str) -> Path | None:
    """The file or folder that a path or a MODEL string stands for."""
    # A name that no file can have is a name of something else.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = Path(text).expanduser()
        if text and (path.is_file() or path.is_dir()):  # Path takes no text for the current folder
            return path
    with contextlib.suppress(OSError, ValueError, InterbasinError):
        from interbasin.models import parse_model  # with torch, which a path needs none of

        weights = parse_model(text).weights
        return weights if weights is not None and (weights.is_file() or weights.is_dir()) else None
    return None


def _list_places(folder: Path) -> Iterator[Path]:
    """The files and folders below a folder that `_list_files` goes through."""
    for file in _list_files(folder):
        yield file
        yield from (parent for parent in file.parents if parent != folder and parent.is_relative_to(folder))


def _list_files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those below it; hidden ones (.git, .cache) are not part of a model or of data."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))
