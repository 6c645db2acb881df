"""Tables of which one column is translated and the others go along: what Parquet and Lance have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from interbasin.vectors.files.tables import Selection, storage_type, to_matrix
from interbasin.vectors.stores.rows import Piece

NEW_COLUMN = "vector"  # where the source has no name for its vectors


def translated_schema(
    schema: pa.Schema | None, selection: Selection | None, width: int, dtype: np.dtype[Any]
) -> tuple[pa.Schema, str]:
    """The schema of the output, and which column of it has the vectors.

    Lists stay the kind of lists that they are; columns that stood side by side become one of lists of a fixed size.

    Args:
        schema: The source's; None if it is no table.
        selection: Which of its columns are the vectors.
        width: Of the translated vectors.
        dtype: Of their numbers.
    """
    if schema is None or selection is None:
        return pa.schema([vector_field(NEW_COLUMN, None, width, dtype)]), NEW_COLUMN
    kept = [field for field in schema if field.name not in selection.columns]
    first = schema.get_field_index(selection.columns[0])
    if selection.lists:
        name, like = selection.columns[0], schema.field(first)
    else:
        name, like = NEW_COLUMN, None
        while name in {field.name for field in kept}:
            name += "_"
        first = sum(schema.get_field_index(field.name) < first for field in kept)
    fields = [*kept[:first], vector_field(name, like, width, dtype), *kept[first:]]
    return pa.schema(fields, metadata=schema.metadata), name


def vector_field(name: str, like: pa.Field | None, width: int, dtype: np.dtype[Any]) -> pa.Field:
    """A field of lists of ``width`` numbers, of the same kind as ``like``."""
    number = pa.from_numpy_dtype(dtype)
    if like is None:
        return pa.field(name, pa.list_(number, width))
    kind = storage_type(like.type)
    if isinstance(like.type, pa.FixedShapeTensorType):
        made: pa.DataType = pa.fixed_shape_tensor(number, [width])
    elif pa.types.is_fixed_size_list(kind):
        made = pa.list_(kind.value_field.with_type(number), width)
    elif pa.types.is_large_list(kind):
        made = pa.large_list(kind.value_field.with_type(number))
    else:
        made = pa.list_(kind.value_field.with_type(number))
    return pa.field(name, made, like.nullable, like.metadata)


def list_array(vectors: Any, field: pa.Field) -> pa.Array:
    """Rows as lists of the field's kind, without a copy."""
    kind = storage_type(field.type)
    items = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    if pa.types.is_fixed_size_list(kind):
        lists = pa.FixedSizeListArray.from_arrays(items, type=kind)
    else:
        made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        number = np.int64 if pa.types.is_large_list(kind) else np.int32
        offsets = np.arange(0, vectors.size + 1, vectors.shape[1], dtype=number)
        lists = made.from_arrays(pa.array(offsets), items, type=kind)
    return pa.ExtensionArray.from_storage(field.type, lists) if isinstance(field.type, pa.BaseExtensionType) else lists


def pieces_of_table(
    found: Iterable[pa.RecordBatch], selection: Selection, width: int, rows_per_batch: int, start: int, where: str
) -> Iterator[Piece]:
    """Pieces of exactly ``rows_per_batch`` rows, of record batches of any sizes; ``rest`` is a table of the others.

    Args:
        found: What the format gives, in order.
        selection: The columns that are the vectors.
        width: The width that every row must have.
        rows_per_batch: Rows in a piece.
        start: The number of the first row, for messages.
        where: Names the table in messages.
    """
    waiting: list[tuple[Any, pa.RecordBatch]] = []
    count, row = 0, start
    for batch in found:
        matrix = to_matrix(batch, selection, width, row, where)
        rest = batch.select([name for name in batch.schema.names if name not in selection.columns])
        row += len(batch)
        while len(matrix):
            taken = min(len(matrix), rows_per_batch - count)
            waiting.append((matrix[:taken], rest.slice(0, taken)))
            matrix, rest, count = matrix[taken:], rest.slice(taken), count + taken
            if count == rows_per_batch:
                yield _joined(waiting)
                waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(waiting: list[tuple[Any, pa.RecordBatch]]) -> Piece:
    matrices, rests = [matrix for matrix, _ in waiting], [rest for _, rest in waiting]
    matrix = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    return Piece(matrix, pa.Table.from_batches(rests) if rests[0].num_columns else None)
