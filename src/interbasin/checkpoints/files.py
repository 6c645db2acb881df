"""What every format asks of a file, and the sentences for files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from interbasin.errors import CheckpointError
from interbasin.text import one_line

# First bytes -> what such a file is. LFS pointers are the most common reason for a "broken" file in a repository.
SIGNATURES = {
    b"version https://git-lfs": "a Git LFS pointer (fetch the real file with git lfs pull)",
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"PK\x05\x06": "an empty zip archive",
    b"\x80\x02": "a Python pickle, as torch.save wrote before torch 1.6",
    b"\x80": "a Python pickle",
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"\x89HDF": "an HDF5 file, as Keras and TensorFlow write",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"<!DOCTYPE": "an HTML page (perhaps an error page saved in place of a download)",
    b"<html": "an HTML page (perhaps an error page saved in place of a download)",
}


def kind_of(head: bytes) -> str:
    """What a file that begins with ``head`` seems to be, to end the words "it is" or "looks like"."""
    known = next((kind for start, kind in SIGNATURES.items() if head.startswith(start)), None)
    return known or f"something that begins with {head[:12]!r}"


def cut_short_error(path: Path, what: str) -> CheckpointError:
    """The error for a file that ends too early; ``what`` says what shows it."""
    return CheckpointError(f"{path} is cut short: {what}; copy or download it again.")


def damage_error(path: Path, cause: object) -> CheckpointError:
    """The error for a file that could be found but not read."""
    return CheckpointError(f"{path} could not be read ({one_line(cause)}); copy or download it again.")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise damage_error(path, error.strerror or error) from error
    except (ValueError, RecursionError) as error:
        raise damage_error(path, f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise damage_error(path, f"it holds a JSON {type(document).__name__}, expected an object")
    return document


def head_of(path: Path) -> bytes:
    """The first bytes of a file, enough to know it by."""
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        raise damage_error(path, error.strerror or error) from error
    if not head:
        raise CheckpointError(f"{path} is empty (0 bytes); write it again, or copy or download it again.")
    return head


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from a later one of the same name; None if there is none any more."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
