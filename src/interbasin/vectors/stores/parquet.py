"""Translating ``.parquet``: one column of vectors, the others passed through, a row group a batch."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa

from interbasin.errors import DataError
from interbasin.storage.journal import Unfinished
from interbasin.vectors.files.base import Vectors
from interbasin.vectors.files.integrity import file_fingerprint
from interbasin.vectors.files.parquet import ParquetReader, table
from interbasin.vectors.files.tables import Selection
from interbasin.vectors.stores.columns import pieces_of_table
from interbasin.vectors.stores.npy import require_room
from interbasin.vectors.stores.parquet_writer import (
    CODECS,
    I64,
    column_of,
    empty_footer,
    encoded,
    encoded_elsewhere,
    leaves,
    moved,
    of_structs,
    row_group,
)
from interbasin.vectors.stores.rows import Piece

MAGIC = b"PAR1"
COUNTS = ("rows", "rows_per_batch", "bytes", "footer_bytes")  # that are saved
DECODED_BYTES = 3 * 2**19  # at a time: so that pyarrow's levels and bitmaps of them stay in the processor's cache


@dataclass(frozen=True)
class ParquetRows:
    """Rows of a Parquet file, with all its columns."""

    vectors: Vectors
    notes: tuple[str, ...] = ()
    metric: str | None = None

    @property
    def name(self) -> str:
        return str(self.vectors.path)

    @property
    def rows(self) -> int:
        return self.vectors.rows

    @property
    def width(self) -> int:
        return self.vectors.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.selection.stored

    @property
    def _reader(self) -> ParquetReader:
        assert isinstance(self.vectors.reader, ParquetReader)
        return self.vectors.reader

    @property
    def selection(self) -> Selection:
        return self._reader.selection

    @property
    def schema(self) -> pa.Schema:
        with table(self.vectors.path) as opened:
            schema = opened.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
            raise DataError(f"{self.name} has several columns named {', '.join(twice)}; rename all but one of them.")
        return schema

    def fingerprint(self) -> dict[str, Any]:
        return {**file_fingerprint(self.vectors.path), "columns": list(self.selection.columns)}

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        decoded = max(1, DECODED_BYTES // (self.width * self.dtype.itemsize))
        found = self._reader.pieces(min(rows_per_batch, decoded), start, self.schema.names)
        return pieces_of_table(found, self.selection, self.width, rows_per_batch, start, self.name)


def compressions(rows: ParquetRows) -> dict[str, str]:
    """How each column of a file is compressed, by its path."""
    with table(rows.vectors.path) as opened:
        group = opened.metadata.row_group(0)
        return {group.column(i).path_in_schema: group.column(i).compression for i in range(group.num_columns)}


class ParquetSink:
    """A Parquet file that grows by row groups; see `interbasin.vectors.stores.rows.Sink`.

    What the footer will say of them grows in a file beside it, so that a run which is killed can go on.

    Args:
        unfinished: Where it grows.
        schema: Of the output.
        column: Which column has the vectors.
        width: How many numbers each has.
        dtype: Their dtype.
        rows: How many there will be, to see whether there is room for them.
        compression: Path of a column -> how it is compressed; "" -> how the vectors are.
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
        compression: dict[str, str],
    ) -> None:
        self._unfinished, self._schema, self._dtype, self._compression = unfinished, schema, dtype, compression
        codec = compression.get("", "UNCOMPRESSED")
        self._column = column_of(schema, column, width, dtype.itemsize, codec if codec in CODECS else "ZSTD")
        place = schema.get_field_index(column)
        self._before = leaves(pa.schema(list(schema)[:place]))
        self._others = pa.schema([field for field in schema if field.name != column])
        self._needed = rows * width * dtype.itemsize if self._column.codec == "UNCOMPRESSED" else 0
        done = unfinished.done
        unfinished.require_bytes(
            {"vectors.parquet": done.get("bytes", 0), "groups": done.get("footer_bytes", 0)},
        )
        done = unfinished.done
        self.rows = int(done.get("rows", 0))
        self.rows_per_batch: int | None = done.get("rows_per_batch")
        self._sizes = done.get("bytes", len(MAGIC)), done.get("footer_bytes", 0)
        self._data: IO[bytes] | None = None
        self._groups: IO[bytes] | None = None

    @property
    def name(self) -> str:
        return self._unfinished.name

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch
        folder = self._unfinished.folder
        try:
            require_room(folder, self._needed - self._sizes[0], self.name)
            for name in ("vectors.parquet", "groups"):
                (folder / name).touch()
            self._data = (folder / "vectors.parquet").open("r+b", buffering=2**16)
            self._groups = (folder / "groups").open("r+b")
            self._data.write(MAGIC)
            # What a killed process wrote beyond its last word is not relied on.
            for file, size in zip((self._data, self._groups), self._sizes, strict=True):
                file.truncate(size)
                file.seek(size)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def append(self, piece: Piece) -> None:
        assert self._data is not None and self._groups is not None
        vectors = np.ascontiguousarray(piece.vectors, dtype=self._dtype)
        try:
            buffers, chunk = self._column.chunk(vectors, self._data.tell())
            chunks = [chunk]
            for buffer in buffers:
                self._data.write(buffer)
            if piece.rest is not None:
                content, others = encoded_elsewhere(piece.rest.cast(self._others), self._other_compressions())
                others = list(moved(others, self._data.tell()))
                self._data.write(content)
                chunks = [*others[: self._before], chunk, *others[self._before :]]
            group = row_group(chunks, len(vectors))
            self._groups.write(struct.pack("<I", len(group)) + group)
            self._data.flush()
            self._groups.flush()
            self.rows += len(vectors)
            done = {
                "rows": self.rows,
                "rows_per_batch": self.rows_per_batch,
                "bytes": self._data.tell(),
                "footer_bytes": self._groups.tell(),
            }
            self._unfinished.save(done, self._flush)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def _flush(self) -> None:
        for file in (self._data, self._groups):
            if file is not None:
                os.fsync(file.fileno())

    def _other_compressions(self) -> dict[str, str]:
        words = {"UNCOMPRESSED": "NONE", "LZ4_RAW": "LZ4"}  # what pyarrow calls them when it writes
        return {path: words.get(how, how) for path, how in self._compression.items() if path}

    def finish(self) -> None:
        assert self._data is not None and self._groups is not None
        try:
            self._groups.seek(0)
            groups = []
            while head := self._groups.read(4):
                groups.append(self._groups.read(struct.unpack("<I", head)[0]))
            footer = encoded({**empty_footer(self._schema), 3: (I64, self.rows), 4: of_structs(groups)})
            self._data.write(footer + struct.pack("<I", len(footer)) + MAGIC)
            self._data.flush()
            os.fsync(self._data.fileno())
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error
        self._close_files()
        self._unfinished.finish("vectors.parquet")

    def close(self) -> None:
        self._close_files()
        self._unfinished.close()

    def _close_files(self) -> None:
        for file in (self._data, self._groups):
            if file is not None:
                with contextlib.suppress(OSError):  # what could not be written was told when it was tried
                    file.close()
        self._data = self._groups = None
