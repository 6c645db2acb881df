"""What is wrong with a file, in one wording for every format, and what tells a file from another or from its past."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from interbasin.errors import FileError

# First bytes -> what such a file is. LFS pointers are the most common reason for a "broken" file in a repository.
SIGNATURES = {
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"PK\x03\x04": "a zip archive (.npz)",
    b"PK\x05\x06": "an empty zip archive",
    b"PAR1": "a Parquet file (.parquet)",
    b"PARE": "an encrypted Parquet file",
    b"version https://git-lfs": "a Git LFS pointer (fetch the real file with git lfs pull)",
    b"ARROW1": "an Arrow or Feather file",
    b"\x89HDF": "an HDF5 file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"SQLite format 3": "an SQLite database",
    b"<!DOCTYPE": "an HTML page (perhaps an error page saved in place of a download)",
    b"<html": "an HTML page (perhaps an error page saved in place of a download)",
    b"\x80\x02": "a Python pickle",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
}


def check_begins(path: Path, expected: tuple[bytes, ...], format_name: str) -> None:
    """Nothing, if the file begins as its name promises.

    Raises:
        FileError: If it does not, or cannot be read at all.
    """
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        raise damaged(path, error) from error
    if not head.startswith(expected):
        kind = next((kind for start, kind in SIGNATURES.items() if head.startswith(start)), None)
        found = f"looks like {kind}" if kind else f"begins with {head[:12]!r}"
        raise FileError(
            f"{path} is named as a {format_name} file but {found}; rename it to what it is, or save it again."
        )


def cut_short(path: Path, what: str) -> FileError:
    """The error for a file that ends too early; ``what`` says what shows it."""
    return FileError(f"{path} is cut short: {what}; copy or download it again.")


def damaged(path: Path, cause: BaseException | str) -> FileError:
    """The error for a file that could be found but not read, with the library's own reason on one line."""
    reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
    return FileError(f"{path} could not be read ({reason}); check its permissions, or copy or download it again.")


SAMPLE_BYTES = 2**16


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Name, size, time and a sample of a file; JSON-able.

    Raises:
        FileError: If it cannot be read.
    """
    try:
        status = path.stat()
        return {
            "file": path.name,
            "bytes": status.st_size,
            "sample": _digest(path, status.st_size),
            "modified": status.st_mtime_ns,
        }
    except OSError as error:
        raise FileError(f"{path} cannot be read any more: {error.strerror}; is it still there?") from error


def _digest(path: Path, size: int) -> str:
    """A hash of blocks from the head, the middle and the tail: files from one archive share sizes and times."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for start in (0, size // 3, 2 * size // 3, max(0, size - SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
