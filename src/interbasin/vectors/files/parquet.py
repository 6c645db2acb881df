"""``.parquet``: columns of a table, decoded a batch of rows at a time. Importing this loads pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from interbasin.errors import DataError, InterbasinError
from interbasin.vectors.files.base import Batch, Vectors
from interbasin.vectors.files.integrity import check_begins, cut_short, damaged
from interbasin.vectors.files.tables import Selection, first_width, select, to_matrix

BUFFERED_BYTES = 16 * 2**20  # of the compressed file, over all columns that are read
PIECE_BYTES = 32 * 2**20  # decoded at a time: a piece and a batch are in memory together
LEAST_BUFFER, LARGEST_BUFFER = 2**13, 2**20  # for one column


@contextmanager
def table(path: Path, columns: int = 1) -> Iterator[pq.ParquetFile]:
    """The opened file; whatever pyarrow raises while it is open becomes a FileError.

    Args:
        path: The file.
        columns: How many columns will be read; each has a buffer of its own.
    """
    # Without a buffer size, or with pre_buffer, pyarrow holds whole row groups, and a file may be one row group:
    # reading 300 MB in batches of 4 MB took 320 MB so, and 17 MB with these two settings.
    buffer = min(LARGEST_BUFFER, max(LEAST_BUFFER, BUFFERED_BYTES // columns))
    try:
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
        path: The file.
        selection: The columns to read.
        rows: How many rows the file has.
        width: How many numbers each has.
    """

    path: Path
    selection: Selection
    rows: int
    width: int

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        # pyarrow's pieces may end where a row group does, so they are copied into batches of the size asked for.
        row, filled = start, 0
        batch: Batch | None = None
        rows_per_piece = min(rows_per_batch, max(1, PIECE_BYTES // (self.width * self.selection.dtype.itemsize)))
        for piece in self.pieces(rows_per_piece, start, self.selection.columns):
            matrix = to_matrix(piece, self.selection, self.width, row, str(self.path))
            if row + len(matrix) > self.rows:
                raise damaged(self.path, f"it holds more than the {self.rows} rows that it promises")
            while len(matrix):
                if batch is None:
                    batch = np.empty((min(rows_per_batch, self.rows - row), self.width), dtype=self.selection.dtype)
                taken = min(len(matrix), len(batch) - filled)
                batch[filled : filled + taken] = matrix[:taken]
                matrix, filled, row = matrix[taken:], filled + taken, row + taken
                if filled == len(batch):
                    yield batch
                    batch, filled = None, 0
        if row != self.rows:
            raise cut_short(self.path, f"it promises {self.rows} rows, but the last one found is row {row - 1}")

    def pieces(self, rows_per_piece: int, start: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """What pyarrow makes of the rows from ``start`` on, in pieces of at most ``rows_per_piece`` rows."""
        with table(self.path, len(columns)) as opened:
            skipped, groups = start, list(range(opened.num_row_groups))
            while groups and skipped >= (length := opened.metadata.row_group(groups[0]).num_rows):
                skipped -= length
                del groups[0]
            if not groups:
                return
            for piece in opened.iter_batches(rows_per_piece, row_groups=groups, columns=list(columns)):
                kept = piece.slice(min(skipped, len(piece)))
                skipped -= len(piece) - len(kept)
                if len(kept):
                    yield kept


def open_parquet(path: Path, column: str | None) -> Vectors:
    """The chosen column, or columns side by side; see ``open_vectors``."""
    check_begins(path, (b"PAR1",), ".parquet")
    with path.open("rb") as file:
        size = file.seek(0, SEEK_END)
        file.seek(-min(4, size), SEEK_END)
        # Twelve bytes are the least that the two signatures and a length between them take.
        if size < 12 or file.read() != b"PAR1":
            raise cut_short(path, "the signature at its end is missing")
    with table(path) as opened:
        rows = int(opened.metadata.num_rows)
        selection = select(opened.schema_arrow, column, str(path))
        if rows == 0:
            raise DataError(f"{path} has no rows; check what wrote it.")
        width = selection.width
        if width is None:
            first = next(opened.iter_batches(1, columns=list(selection.columns)), None)
            if first is None:
                raise cut_short(path, f"it promises {rows} rows, but none is there")
            width = first_width(first, selection, str(path))
    if width == 0:
        raise DataError(f"{path} has rows of no numbers at all; check what wrote it.")
    name = selection.columns[0] if selection.lists or column is not None else None
    reader = ParquetReader(path, selection, rows, width)
    return Vectors(path, "parquet", name, rows, width, selection.dtype, reader, stored=selection.stored)
