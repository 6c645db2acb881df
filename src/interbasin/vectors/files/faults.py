"""The sentences for files that are not what they should be, so that every format words the same fault alike."""

from __future__ import annotations

from pathlib import Path

from interbasin.errors import FileError

__all__ = ["check_begins", "cut_short", "damaged"]

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
