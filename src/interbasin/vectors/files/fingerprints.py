"""What tells a file, in its present state, from another: for work that goes on after an interrupt."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from interbasin.errors import FileError

__all__ = ["file_fingerprint"]

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
