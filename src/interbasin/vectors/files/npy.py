"""``.npy``: the header, and rows of an array that lies uncompressed in a file.

An uncompressed member of an ``.npz`` is such an array too, at an offset; ``npz`` uses both halves of this file.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from interbasin.errors import DataError, FileError, InterbasinError, ShapeError
from interbasin.vectors.files.base import Batch, Vectors, batch_dtype, check_begins, cut_short, damaged

LONGEST_HEADER = 2**14  # bytes; NumPy itself refuses headers of more than 10,000


@dataclass(frozen=True)
class Header:
    """What an ``.npy`` header says of its array, already known to be a matrix of numbers.

    Attributes:
        shape: The stored shape; its last axis is the width and the others together are the rows.
        dtype: The stored dtype.
        fortran: Whether the first axis varies fastest.
        size: Bytes of the header itself, so where the data begin.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    size: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def width(self) -> int:
        return self.shape[-1]

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def data_bytes(self) -> int:
        return self.rows * self.row_bytes


def read_header(stream: io.BufferedIOBase, size: int, path: Path, where: str) -> Header:
    """The header of an array of ``size`` bytes, header included, that begins where ``stream`` stands.

    Raises:
        FileError: If this is no header, or it promises more than there is.
        DataError: If the array is empty or not of real numbers.
        ShapeError: If it has no axis of rows.
    """
    try:
        version = npy_format.read_magic(stream)
        # Version 3 differs from 2 only in that names of fields may be UTF-8; NumPy writes it for nothing else.
        if version == (3, 0):
            raise DataError(f"{where} is a structured array, not a matrix; save its fields side by side as numbers.")
        if version not in ((1, 0), (2, 0)):
            raise damaged(path, f"{where} is of version {version[0]}.{version[1]} of .npy, which is not known")
        _check_header_length(stream, 2 if version == (1, 0) else 4)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except InterbasinError:
        raise
    # NumPy tokenises and evaluates the header as a literal; a damaged one fails there in a dozen ways.
    except Exception as error:
        reason = "it is nested too deep" if isinstance(error, MemoryError) else error
        raise damaged(path, f"{where} has a damaged .npy header: {reason}") from error
    if any(type(length) is not int or length < 0 for length in shape):  # True is a number to NumPy
        raise damaged(path, f"{where} has a damaged .npy header: its shape is {shape}")
    batch_dtype(dtype, where)
    if len(shape) < 2:
        raise ShapeError(
            f"{where} has shape {shape}, but vectors need two axes or more, the last being the width; "
            "save one vector with shape (1, width), or many scalars with shape (rows, 1)."
        )
    if 0 in shape:
        missing = "rows of no numbers at all" if shape[-1] == 0 else "no rows"
        raise DataError(f"{where} has {missing} (its shape is {shape}); check what wrote it.")
    # Where only one axis is longer than 1 the two orders are the same bytes, and C order can always be streamed.
    header = Header(shape, dtype, fortran and sum(length > 1 for length in shape) > 1, stream.tell())
    if size < header.size + header.data_bytes:
        raise cut_short(
            where,
            f"its header promises {header.data_bytes} bytes for shape {shape} of {dtype}, but {size - header.size} "
            "follow",
        )
    return header


def _check_header_length(stream: io.BufferedIOBase, count: int) -> None:
    """Refuse a header of gigabytes, which NumPy would read before it finds that too long; ``count`` bytes tell it."""
    told = stream.read(count)
    stream.seek(-len(told), os.SEEK_CUR)
    length = int.from_bytes(told, "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"it would be {length:,} bytes long")


@dataclass(frozen=True)
class MappedReader:
    """Rows of an uncompressed array, any of which can be reached at once.

    The file is mapped anew for every batch: a mapping that lived as long as the reading would let all of the file
    pile up in the process's resident memory, and making one costs microseconds.

    Attributes:
        path, header: The file, and what is stored there.
        offset: Where in the file the data begin.
        dtype: The dtype of the batches.
    """

    path: Path
    header: Header
    offset: int
    dtype: np.dtype[Any]

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        read = self._read_rows
        if self.header.fortran:
            read = self._read_columns if len(self.header.shape) == 2 else self._gather_rows
        for first in range(start, self.header.rows, rows_per_batch):
            last = min(first + rows_per_batch, self.header.rows)
            try:
                batch = read(first, last)
            except (OSError, ValueError) as error:
                raise damaged(self.path, error) from error
            yield batch

    def _read_rows(self, first: int, last: int) -> Batch:
        shape = (last - first, self.header.width)
        rows = np.memmap(
            self.path, self.header.dtype, mode="r", offset=self.offset + first * self.header.row_bytes, shape=shape
        )
        return np.array(rows, dtype=self.dtype)

    def _read_columns(self, first: int, last: int) -> Batch:
        """The same in Fortran order, where a column of the batch is one run of bytes.

        Read and not mapped: a mapping of runs that are spread over the whole file draws the pages between them into
        resident memory too (all 300 MB of a file of that size, for batches of 8 MB).
        """
        columns = np.empty((self.header.width, last - first), dtype=self.header.dtype)
        with self.path.open("rb", buffering=0) as file:
            for place in range(self.header.width):
                file.seek(self.offset + (place * self.header.rows + first) * self.header.dtype.itemsize)
                column = np.fromfile(file, self.header.dtype, count=last - first)
                if len(column) < last - first:
                    raise ValueError(f"it ends before row {last} of column {place}")
                columns[place] = column
        return np.array(columns.T, dtype=self.dtype, order="C")

    def _gather_rows(self, first: int, last: int) -> Batch:
        """The same in Fortran order with three axes or more, where the rows of a batch are strewn over the file."""
        shape = self.header.shape
        array = np.memmap(self.path, self.header.dtype, mode="r", offset=self.offset, shape=shape, order="F")
        # Flattening the leading axes would copy the array whole, so each row is looked up instead.
        rows = array[np.unravel_index(np.arange(first, last), shape[:-1])]
        return np.array(rows, dtype=self.dtype, order="C")


def open_npy(path: Path) -> Vectors:
    """The array of an ``.npy`` file; see ``open_vectors``."""
    check_begins(path, (npy_format.MAGIC_PREFIX,), ".npy")
    try:
        with path.open("rb") as stream:
            header = read_header(stream, path.stat().st_size, path, str(path))
    except FileError:
        raise
    except OSError as error:
        raise damaged(path, error) from error
    dtype = batch_dtype(header.dtype, str(path))
    reader = MappedReader(path, header, header.size, dtype)
    return Vectors(path, "npy", None, header.rows, header.width, dtype, reader, header.dtype)
