"""What a matrix of row vectors in a file is, whatever the format, and what can be wrong with the file.

`open_vectors` gives `Vectors`, the matrix. `Reader` is what a format provides, `Piece` some rows of a store with what
belongs to them.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FileError, ShapeError
from interbasin.text import plural

Part = TypeVar("Part")
Batch: TypeAlias = NDArray[Any]  # (rows, width), C-contiguous, writable, a floating dtype in native byte order

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
    b"\x80": "a Python pickle",
}
SAMPLE_BYTES = 2**16
EXTENSIONS = (".npy", ".npz", ".parquet")
SUPPORTED = ".npy, .npz or .parquet"
BATCH_BYTES = 64 * 2**20
FEWEST_ROWS, MOST_ROWS = 256, 65_536
# How many bytes a packed one may stand for, in what is larger than the first: even rows with a single one among zeros
# stay below 500, and zeros alone reach 1,030, which is as far as the method goes.
HARMLESS_BYTES, LARGEST_RATIO = 2**28, 500


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a store.

    Attributes:
        vectors: Of shape (rows, width).
        rest: What belongs to these rows and is passed on unchanged (ids, other columns); only the store reads it.
    """

    vectors: NDArray[Any]
    rest: Any = None


@runtime_checkable
class Reader(Protocol):
    """What a format provides. It holds no open file, so that one ``Vectors`` can be read many times, or pickled."""

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        """Exactly ``rows_per_batch`` rows per batch, except the last, from row ``start`` on; arguments are checked."""
        ...


@dataclass(frozen=True)
class Vectors:
    """A matrix of row vectors in a file, of which no more than a few batches are ever in memory.

    Made by ``open_vectors``. Values are handed on as they are, NaN and infinity included.

    Attributes:
        path: The file.
        format: ``"npy"``, ``"npz"`` or ``"parquet"``.
        column: The column or member that was chosen; None where the file has no such names, or where the columns of
            a table stand side by side.
        rows: How many vectors there are.
        width: How many numbers each has.
        dtype: The dtype of the batches; see ``open_vectors`` for how it follows from the stored one.
        reader: The format's own way of reading.
        stored: The dtype of the numbers in the file.
        stamp: Size, time and inode of the file when it was opened.
    """

    path: Path
    format: str
    column: str | None
    rows: int
    width: int
    dtype: np.dtype[Any]
    reader: Reader = field(repr=False)
    stored: np.dtype[Any] = field(repr=False)
    stamp: tuple[int, int, int] | None = field(default=None, repr=False)

    def batches(self, rows_per_batch: int, start: int = 0) -> Iterator[Batch]:
        """The rows from ``start`` on, in order, as new C-contiguous arrays of shape (rows_per_batch, width).

        Args:
            rows_per_batch: Rows in every batch; only the last may have fewer.
            start: The first row to read, counted from 0. ``start == rows`` gives no batches, so that a finished job
                can be resumed like any other.

        Raises:
            ShapeError: At once, if either number is out of range.
            FileError: While reading, if the file is damaged or has changed since it was opened.
            DataError: While reading, if a Parquet row holds nulls.
            ShapeError: While reading, if a Parquet row has another width than the first.
        """
        rows_per_batch, start = operator.index(rows_per_batch), operator.index(start)
        if rows_per_batch < 1:
            raise ShapeError(
                f"Batches of {rows_per_batch} rows were asked of {self.path}; rows_per_batch must be 1 or more."
            )
        if not 0 <= start <= self.rows:
            raise ShapeError(
                f"Reading {self.path} was to start at row {start}, but it has {plural(self.rows, 'row')}; "
                f"start must lie from 0 to {self.rows}."
            )
        return self.unchanged(self.reader.batches(rows_per_batch, start))

    def unchanged(self, parts: Iterable[Part]) -> Iterator[Part]:
        """What a reader gives, none of which comes from another file than the one that was opened.

        Raises:
            FileError: While reading, if the file has changed since.
        """
        self._require_unchanged()
        for part in parts:
            self._require_unchanged()
            yield part

    def _require_unchanged(self) -> None:
        if self.stamp is not None and stamp_of(self.path) != self.stamp:
            raise FileError(f"{self.path} has changed since it was opened; open it again when it is complete.")


def open_vectors(path: str | PathLike[str], *, column: str | None = None) -> Vectors:
    """The matrix of row vectors in a file, checked but not yet read.

    Floats keep their dtype: float16, float32 and float64 (wider ones become float64; byte order becomes the
    machine's). Integers and booleans are converted to float32 as they are read, which is exact up to 2^24 and rounds
    beyond. Nothing in the file is ever executed: arrays of pickled objects are refused.

    - ``.npy``: two axes or more; the last is the width, the others are flattened into rows. Read where it lies, in C
      or Fortran order.
    - ``.npz``: the array named ``column``, or the only one, or the one named ``x``. Uncompressed arrays are mapped.
      Compressed ones are unpacked in passing: to start at a later row, all before it must be unpacked too.
    - ``.parquet``: the column named ``column``; or the only column of lists of numbers; or, if every column is a
      number, all of them side by side. A data frame's index is no column unless it is named. Lists are far better
      for wide vectors: side by side, Parquet needs a page or two (1 to 2 MB) in memory for every column.

    Args:
        path: A file whose extension says its format.
        column: Which column or array to read. An ``.npy`` file has only one, so there it changes nothing.

    Raises:
        FileError: If the file is missing, a directory, empty, cut short, or not what its extension says.
        DataError: If it holds no rows, no numbers, or several matrices of which none was named.
        ShapeError: If it has no axis of rows.
        UnknownNameError: If it has no such column; lists those it has.

    Example:
        >>> import numpy, tempfile
        >>> path = tempfile.mkdtemp() + "/embeddings.npy"
        >>> numpy.save(path, numpy.arange(10.0).reshape(5, 2))
        >>> vectors = open_vectors(path)
        >>> vectors.rows, vectors.width
        (5, 2)
        >>> [batch.tolist() for batch in vectors.batches(2, start=2)]
        [[[4.0, 5.0], [6.0, 7.0]], [[8.0, 9.0]]]
    """
    file = Path(path)
    format_name = check_path(file)
    stamp = stamp_of(file)
    # A format is imported when a file has it: loading pyarrow takes longer than reading most .npy files.
    if format_name == "npy":
        from interbasin.vectors.files.npy import open_npy

        vectors = open_npy(file)
    elif format_name == "npz":
        from interbasin.vectors.files.npz import open_npz

        vectors = open_npz(file, column)
    else:
        from interbasin.vectors.files.parquet import open_parquet

        vectors = open_parquet(file, column)
    return replace(vectors, stamp=stamp)


def check_path(file: Path) -> str:
    """The format that the file's name promises; a `FileError` if it has no reader, or there is no such file."""
    try:
        if not file.exists():
            raise FileError(f"Vectors were to be read from {file}, but there is no such file; check the path.")
        if file.is_dir():
            raise FileError(
                f"Vectors were to be read from {file}, which is a directory; name one file in it ({SUPPORTED})."
            )
        if not file.is_file():
            raise FileError(
                f"Vectors were to be read from {file}, which is a pipe or a device; write its content to a file first."
            )
        extension = file.suffix.lower()
        if extension not in EXTENSIONS:
            has = f"the extension {file.suffix!r}" if file.suffix else "no extension"
            raise FileError(f"Vectors can be read from {SUPPORTED} files; {file} has {has}. Convert or rename it.")
        if file.stat().st_size == 0:
            raise FileError(f"{file} is empty (0 bytes); write it again, or copy or download it again.")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{file} could not be looked at ({error.strerror}); check its permissions.") from error
    return extension.removeprefix(".")


def paired_batches(
    source: Vectors, target: Vectors, rows_per_batch: int, start: int = 0
) -> Iterator[tuple[Batch, Batch]]:
    """Batches of the same rows of both, from row ``start`` on; see ``Vectors.batches``.

    Raises:
        ShapeError: At once, if the two differ in their numbers of rows, or if an argument is out of range.
    """
    if source.rows != target.rows:
        raise ShapeError(
            f"Paired vectors need equal numbers of rows; {source.path} has {source.rows} and {target.path} has "
            f"{target.rows}. Give two files in which row i is the same sample, for every i."
        )
    return zip(source.batches(rows_per_batch, start), target.batches(rows_per_batch, start), strict=True)


def default_rows_per_batch(source_width: int, target_width: int = 0, batch_bytes: int = BATCH_BYTES) -> int:
    """Rows for which a pair of float32 batches takes about ``batch_bytes``, from 256 to 65,536.

    Example:
        >>> default_rows_per_batch(384, 768), default_rows_per_batch(384, 768, 32 * 2**20)
        (14563, 7281)
    """
    row_bytes = 4 * max(1, source_width + target_width)
    return min(MOST_ROWS, max(FEWEST_ROWS, batch_bytes // row_bytes))


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from a later one of the same name; None if there is none any more."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def batch_dtype(stored: np.dtype[Any], where: str) -> np.dtype[Any]:
    """The dtype in which numbers stored as ``stored`` are handed out; a `DataError` if these are not real numbers."""
    if stored.kind in "biu":
        return np.dtype(np.float32)
    if stored.kind == "f":
        # torch has no float wider than 64 bits, and extended precision differs from one machine to the next.
        return np.dtype(np.float64) if stored.itemsize > 8 else stored.newbyteorder("=")
    if stored.hasobject:
        raise DataError(
            f"{where} holds pickled Python objects, which are never loaded because loading them can run code; "
            "save it as one array of numbers, for example np.save(path, np.stack(list_of_vectors))."
        )
    # NumPy has no bfloat16 of its own: what ml_dtypes saves comes back as two nameless bytes.
    hint = "it may be bfloat16, so " if stored.kind == "V" and stored.itemsize == 2 and not stored.names else ""
    raise DataError(f"{where} has dtype {stored}, which is not a real number; {hint}convert it to float32 and save it.")


def check_begins(path: Path, expected: tuple[bytes, ...], format_name: str) -> None:
    """Raise a `FileError` if the file does not begin as its name promises, or cannot be read at all."""
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        raise damaged(path, error) from error
    if not head.startswith(expected):
        kind = next((kind for start, kind in SIGNATURES.items() if head.startswith(start)), None)
        content = f"looks like {kind}" if kind else f"begins with {head[:12]!r}"
        raise FileError(
            f"{path} is named as a {format_name} file but {content}; rename it to what it is, or save it again."
        )


def check_ratio(where: str, packed: int, unpacked: int) -> None:
    """Raise a `FileError` if a few packed bytes stand for so many that they are meant to fill the memory."""
    if unpacked > max(HARMLESS_BYTES, LARGEST_RATIO * packed):
        raise FileError(
            f"{where} would take {unpacked:,} bytes, from {packed:,} in the file; no data are that much alike. If it "
            "is what it should be, save it uncompressed."
        )


def cut_short(path: Path | str, what: str) -> FileError:
    """The error for a file that ends too early; ``what`` says what shows it."""
    return FileError(f"{path} is cut short: {what}; copy or download it again.")


def damaged(path: Path | str, cause: BaseException | str) -> FileError:
    """The error for a file that could be found but not read, with the library's own reason on one line."""
    reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
    return FileError(f"{path} could not be read ({reason}); check its permissions, or copy or download it again.")


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Name, size, time and a sample of a file, JSON-able; a `FileError` if it cannot be read."""
    # A hash of blocks from the head, the middle and the tail: files from one archive share sizes and times.
    digest = hashlib.sha256()
    try:
        status = path.stat()
        size = status.st_size
        with path.open("rb") as file:
            for start in (0, size // 3, 2 * size // 3, max(0, size - SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise FileError(f"{path} cannot be read any more: {error.strerror}; is it still there?") from error
    return {"file": path.name, "bytes": size, "sample": digest.hexdigest(), "modified": status.st_mtime_ns}
