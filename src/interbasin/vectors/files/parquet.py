"""``.parquet``: columns of a table, decoded a batch of rows at a time; and a file that grows by a row group per batch.

Importing this loads pyarrow.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from interbasin.errors import DataError, InterbasinError
from interbasin.storage.journal import Unfinished
from interbasin.vectors.files.base import Batch, Piece, Vectors, check_begins, cut_short, damaged
from interbasin.vectors.files.parquet_writer import (
    CODECS,
    encode_table,
    file_footer,
    first_codecs,
    row_group,
    vector_column,
)
from interbasin.vectors.files.tables import Selection, select, table_pieces, to_matrix

MAGIC = b"PAR1"
BUFFERED_BYTES = 16 * 2**20  # of the compressed file, over all columns that are read
LEAST_BUFFER, LARGEST_BUFFER = 2**13, 2**20  # for one column
DECODED_BYTES = 3 * 2**19  # at a time: so that pyarrow's levels and bitmaps of them stay in the processor's cache
PYARROW_NAMES = {"UNCOMPRESSED": "NONE", "LZ4_RAW": "LZ4"}  # of codecs, when it writes


@contextlib.contextmanager
def open_table(path: Path, columns: int = 1) -> Iterator[pq.ParquetFile]:
    """The opened file; whatever pyarrow raises while it is open becomes a FileError.

    Each of the ``columns`` that will be read has a buffer of its own.
    """
    # Without a buffer size, or with pre_buffer, pyarrow holds whole row groups, and a file may be one row group:
    # reading 300 MB in batches of 4 MB took 320 MB so, and 17 MB with these two settings.
    buffer = min(LARGEST_BUFFER, max(LEAST_BUFFER, BUFFERED_BYTES // columns))
    try:
        if path.stat().st_size <= BUFFERED_BYTES:
            # With a buffer, pyarrow takes as much memory as a page claims to need, up to 2 GB; what is in memory as a
            # whole it can only cut pieces of.
            buffer = 0
        with pq.ParquetFile(path, buffer_size=buffer, pre_buffer=False, page_checksum_verification=True) as opened:
            yield opened
    except InterbasinError:
        raise
    # UnicodeDecodeError: the names of columns are decoded while the file is opened.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


@dataclass(frozen=True)
class ParquetReader:
    """Rows of a table; row groups that lie before ``start`` are not touched.

    Attributes:
        path, rows, width: Of the matrix; see `Vectors`.
        selection: The columns that are the vectors.
        schema: Of the whole table.
        compression: Path of a column -> its codec in the first row group.
    """

    path: Path
    selection: Selection
    rows: int
    width: int
    schema: pa.Schema
    compression: Mapping[str, str]

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        return (piece.vectors for piece in self.pieces(rows_per_batch, start, self.selection.columns))

    def pieces(self, rows_per_batch: int, start: int, columns: Sequence[str]) -> Iterator[Piece]:
        """Rows from ``start`` on, with those of these columns that are no vectors beside them."""
        rows = max(1, DECODED_BYTES // (self.width * self.selection.dtype.itemsize))
        batches = self._record_batches(min(rows_per_batch, rows), start, columns)
        return table_pieces(batches, self.selection, self.width, self.rows, rows_per_batch, start, where=str(self.path))

    def _record_batches(self, most_rows: int, start: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """What pyarrow decodes of the rows from ``start`` on, at most ``most_rows`` at a time."""
        with open_table(self.path, len(columns)) as opened:
            skipped, groups = start, list(range(opened.num_row_groups))
            while groups and skipped >= (length := opened.metadata.row_group(groups[0]).num_rows):
                skipped -= length
                del groups[0]
            if not groups:
                return
            for batch in opened.iter_batches(most_rows, row_groups=groups, columns=list(columns)):
                kept = batch.slice(min(skipped, len(batch)))
                skipped -= len(batch) - len(kept)
                if len(kept):
                    yield kept


def open_parquet(path: Path, column: str | None) -> Vectors:
    """The chosen column, or columns side by side; see ``open_vectors``."""
    check_begins(path, (MAGIC,), ".parquet")
    footer = _read_footer(path)
    with open_table(path) as opened:
        try:
            compression = first_codecs(footer)
        except ValueError as error:
            raise damaged(path, error) from error
        metadata, schema = opened.metadata, opened.schema_arrow
        rows = int(metadata.num_rows)
        selection = select(schema, column, str(path))
        if rows == 0:
            raise DataError(f"{path} has no rows; check what wrote it.")
        width = selection.width
        if width is None:
            first = next(opened.iter_batches(1, columns=list(selection.columns)), None)
            if first is None:
                raise cut_short(path, f"it promises {rows} rows, but none is there")
            width = to_matrix(first, selection, None, 0, str(path)).shape[1]
    if width == 0:
        raise DataError(f"{path} has rows of no numbers at all; check what wrote it.")
    name = selection.columns[0] if selection.lists or column is not None else None
    reader = ParquetReader(path, selection, rows, width, schema, compression)
    return Vectors(path, "parquet", name, rows, width, selection.dtype, reader, selection.stored)


def _read_footer(path: Path) -> bytes:
    """The bytes between the data and the signature at the end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(-min(8, size), os.SEEK_END)
            end = file.read()
            # Twelve bytes are the least that the two signatures and a length between them take.
            if size < 12 or end[4:] != MAGIC:
                raise cut_short(path, "the signature at its end is missing")
            (length,) = struct.unpack("<I", end[:4])
            if length > size - 12:
                raise damaged(path, f"its footer would take {length:,} bytes, and the whole file has {size:,}")
            file.seek(-8 - length, os.SEEK_END)
            return file.read(length)
    except OSError as error:
        if isinstance(error, InterbasinError):
            raise
        raise damaged(path, error) from error


class ParquetSink:
    """A Parquet file that grows by row groups; see `interbasin.vectors.stores.opening.Sink`.

    What the footer will say of them grows in a file beside it, so that a run which is killed can go on.

    Args:
        unfinished: Where it grows.
        schema: Of the output.
        column, width, dtype, codec: Which column has the vectors, and how they are stored.
        rows: How many there will be, to see whether there is room for them.
        compression: Path of another column -> how it is compressed.
    """

    mark = None
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        unfinished: Unfinished,
        schema: pa.Schema,
        column: str,
        width: int,
        dtype: np.dtype[Any],
        rows: int,
        codec: str,
        compression: Mapping[str, str],
    ) -> None:
        self._unfinished, self.name, self._schema, self._dtype = unfinished, unfinished.name, schema, dtype
        self._column = vector_column(schema, column, width, dtype.itemsize, codec if codec in CODECS else "ZSTD")
        self._others = pa.schema([field for field in schema if field.name != column])
        self._compression = {path: PYARROW_NAMES.get(name, name) for path, name in compression.items()}
        self._needed = rows * width * dtype.itemsize if self._column.codec == "UNCOMPRESSED" else 0
        done = unfinished.done
        unfinished.require_kept({"vectors.parquet": done.get("bytes", 0), "groups": done.get("footer_bytes", 0)})
        done = unfinished.done
        self.rows = int(done.get("rows", 0))
        self.rows_per_batch: int | None = done.get("rows_per_batch")
        self._sizes = done.get("bytes", len(MAGIC)), done.get("footer_bytes", 0)
        self._files: list[IO[bytes]] = []  # of row groups, and of what the footer says of them

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch
        folder = self._unfinished.folder
        try:
            self._unfinished.require_room(self._needed - self._sizes[0])
            for name, size in zip(("vectors.parquet", "groups"), self._sizes, strict=True):
                (folder / name).touch()
                file = (folder / name).open("r+b", buffering=2**16)
                self._files.append(file)
                if name == "vectors.parquet":
                    file.write(MAGIC)
                # What a killed process wrote after it last saved is not relied on.
                file.truncate(size)
                file.seek(size)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def append(self, piece: Piece) -> None:
        data, groups = self._files
        vectors = np.ascontiguousarray(piece.vectors, dtype=self._dtype)
        try:
            buffers, chunk = self._column.encode(vectors, data.tell())
            chunks = [chunk]
            for buffer in buffers:
                data.write(buffer)
            if piece.rest is not None:
                content, others = encode_table(piece.rest.cast(self._others), self._compression, data.tell())
                data.write(content)
                chunks = [*others[: self._column.leaf], chunk, *others[self._column.leaf :]]
            group = row_group(chunks, len(vectors))
            groups.write(struct.pack("<I", len(group)) + group)
            data.flush()
            groups.flush()
            self.rows += len(vectors)
            sizes = {"vectors.parquet": data.tell(), "groups": groups.tell()}
            done = {"rows": self.rows, "rows_per_batch": self.rows_per_batch}
            done |= {"bytes": sizes["vectors.parquet"], "footer_bytes": sizes["groups"]}
            self._unfinished.save(done, self._flush, sizes)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def _flush(self) -> None:
        for file in self._files:
            os.fsync(file.fileno())

    def finish(self) -> None:
        data, groups = self._files
        try:
            groups.seek(0)
            descriptions = []
            while head := groups.read(4):
                descriptions.append(groups.read(struct.unpack("<I", head)[0]))
            footer = file_footer(self._schema, self.rows, descriptions)
            data.write(footer + struct.pack("<I", len(footer)) + MAGIC)
            data.flush()
            os.fsync(data.fileno())
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error
        self._close_files()
        self._unfinished.finish("vectors.parquet")

    def close(self) -> None:
        self._close_files()
        self._unfinished.close()

    def _close_files(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # what could not be written was reported when it was tried
                file.close()
        self._files = []
