"""What a matrix of row vectors in a file is, whatever the format: ``Vectors``, and the ``Reader`` under it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FileError, ShapeError
from interbasin.text import plural

Batch: TypeAlias = NDArray[Any]  # (rows, width), C-contiguous, writable, a floating dtype in native byte order


@runtime_checkable
class Reader(Protocol):
    """What a format provides. It holds no open file, so that one ``Vectors`` can be read many times, or pickled."""

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        """Exactly ``rows_per_batch`` rows a batch, except the last, from row ``start`` on; arguments are checked."""
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
        stamp: Size, time and inode of the file when it was opened.
        stored: The dtype of the numbers in the file.
    """

    path: Path
    format: str
    column: str | None
    rows: int
    width: int
    dtype: np.dtype[Any]
    reader: Reader = field(repr=False)
    stamp: tuple[int, int, int] | None = field(default=None, repr=False)
    stored: np.dtype[Any] | None = field(default=None, repr=False)

    def batches(self, rows_per_batch: int, start: int = 0) -> Iterator[Batch]:
        """The rows from ``start`` on, in order, as new C-contiguous arrays of shape (rows_per_batch, width).

        Args:
            rows_per_batch: Rows in every batch; only the last may have fewer.
            start: The first row to read, counted from 0. ``start == rows`` gives no batches, so that a job which had
                finished can be resumed like any other.

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
        return self._unchanged(rows_per_batch, start)

    def _unchanged(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        """The reader's batches, none of which comes from another file than the one that was opened."""
        self._require_unchanged()
        for batch in self.reader.batches(rows_per_batch, start):
            self._require_unchanged()
            yield batch

    def _require_unchanged(self) -> None:
        if self.stamp is not None and stamp_of(self.path) != self.stamp:
            raise FileError(f"{self.path} has changed since it was opened; open it again when it is complete.")


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from a later one of the same name; None if there is none any more."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def batch_dtype(stored: np.dtype[Any], where: str) -> np.dtype[Any]:
    """The dtype in which numbers stored as ``stored`` are handed out.

    Args:
        stored: The dtype in the file.
        where: Names the array in the message.

    Raises:
        DataError: If these are not real numbers.
    """
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
