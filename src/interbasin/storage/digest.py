"""What tells one content of a file from another: size and SHA-256, and sums over the beginning of a file that grows."""

from __future__ import annotations

import hashlib
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from interbasin.errors import FileError

PIECE = 2**18  # bytes that are read at once


@dataclass(frozen=True)
class Digest:
    """One file: how long it is, and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


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


@dataclass(frozen=True)
class Sum:
    """The first ``size`` bytes of a file that grows, by their CRC-32.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"
        >>> _ = path.write_bytes(b"begun")
        >>> begun = Sum().grown(path, 5)
        >>> _ = path.write_bytes(b"begun, and gone on")
        >>> begun.grown(path, 9) == Sum().grown(path, 9)
        True
    """

    size: int = 0
    crc: int = 0

    def grown(self, path: Path, size: int) -> Sum:
        """The sum over more of the file, of which only what is new is read.

        Raises:
            OSError: if the file cannot be read, or is shorter.
        """
        crc, remaining = self.crc, size - self.size
        if remaining:
            with path.open("rb", buffering=0) as file:
                file.seek(self.size)
                while remaining > 0:
                    piece = file.read(min(PIECE, remaining))
                    if not piece:
                        raise OSError(f"{path.name} ends after {size - remaining:,} of {size:,} bytes")
                    crc = zlib.crc32(piece, crc)
                    remaining -= len(piece)
        return Sum(size, crc)


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
        buffer, before = memoryview(bytearray(PIECE)), self._size
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
