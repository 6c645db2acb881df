"""What the inputs of a job were: the files behind a path or a MODEL, by size and SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from interbasin.checkpoints.checkpoint import stamp_of
from interbasin.errors import FileError, InterbasinError

LISTED = 32  # files of a folder that are listed one by one; beyond, one hash stands for all


@dataclass(frozen=True)
class Digest:
    """One file: how long it is, and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


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


def digest_of(path: Path) -> Digest:
    """Size and hash of one file, read in pieces.

    Raises:
        FileError: if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Digest(file.tell(), digest)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}; is it still there, and yours?") from error


class Following:
    """Hashes files while they are written, behind the writer, on a thread of its own.

    Hashing takes no lock of Python's: beside a writer, on a second core, it costs next to no time.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"
        >>> with Following() as following, path.open("wb") as file:
        ...     for _ in range(3):
        ...         _ = file.write(b"piece")
        ...         file.flush()
        ...         following.reached(path, file.tell())
        >>> following.digest(path) == digest_of(path)
        True
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "hashing")
        self._work: list[Future[None]] = []
        self._files: dict[int, _Growing] = {}  # by inode

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=error[0] is not None)
        for growing in self._files.values():
            growing.file.close()

    def reached(self, path: Path, size: int) -> None:
        """The file holds so many bytes by now, and they will not change; it may get another name later."""
        number = path.stat().st_ino
        if number not in self._files:
            self._files[number] = _Growing(path.open("rb", buffering=0))
        self._work.append(self._thread.submit(self._files[number].read_to, size))

    def digest(self, path: Path) -> Digest | None:
        """What the file is, if all of it was followed; call it when the block has ended."""
        for task in self._work:
            task.result()
        state = path.stat()
        growing = self._files.get(state.st_ino)
        return growing.digest if growing is not None and growing.digest.bytes == state.st_size else None


class _Growing:
    def __init__(self, file: FileIO) -> None:
        self.file, self._sum, self._size = file, hashlib.sha256(), 0

    def read_to(self, size: int) -> None:
        buffer, before = memoryview(bytearray(2**18)), self._size
        while self._size < size:
            count = self.file.readinto(buffer[: size - self._size])
            if not count:
                return  # cut by someone else: its digest will not be asked for, as the size differs
            self._sum.update(buffer[:count])
            self._size += count
        _begin_writing(self.file.fileno(), before, size - before)

    @property
    def digest(self) -> Digest:
        return Digest(self._size, self._sum.hexdigest())


def _begin_writing(descriptor: int, start: int, size: int) -> None:
    """Have the system begin to write new bytes of a file, so that there is little left to wait for in the end."""
    if hasattr(os, "posix_fadvise"):
        # Linux begins to write pages that it is told are not needed; those that are not written yet it keeps.
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


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


def _list_files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those below it; hidden ones (.git, .cache) are not part of a model or of data."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))
