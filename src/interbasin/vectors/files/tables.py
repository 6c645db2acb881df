"""Arrow tables of which some columns make a matrix of vectors: which ones, a piece of them, and the table written back.

What Parquet and Lance have in common. Knows Arrow, but no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.text import list_names
from interbasin.vectors.files.base import Piece, batch_dtype, cut_short, damaged

MOST_LISTED = 20  # columns named in one message
NEW_COLUMN = "vector"  # where the source has no name for its vectors


@dataclass(frozen=True)
class Selection:
    """The columns that make the matrix: one of lists, or some of numbers that stand side by side.

    Attributes:
        columns: Their names, in the order of the table.
        lists: Whether it is one column of lists.
        width: How many numbers each row has; None where only the first row can tell.
        dtype: The dtype of the batches.
        stored: The dtype in the table, common to all columns.
    """

    columns: tuple[str, ...]
    lists: bool
    width: int | None
    dtype: np.dtype[Any]
    stored: np.dtype[Any]


def select(schema: pa.Schema, column: str | None, where: str) -> Selection:
    """The columns to read: the one named, or the only one of lists of numbers, or all if all are numbers.

    Raises:
        UnknownNameError: If there is no column of that name in the table, which messages call ``where``.
        DataError: If it does not hold numbers, or if none was named and which was meant is not clear.
    """
    if column is not None:
        if column not in schema.names:
            raise UnknownNameError.of(f"column in {where}", column, set(schema.names))
        if schema.names.count(column) > 1:
            raise DataError(f"{where} has several columns named {column!r}; rename all but one of them.")
        fields = [schema.field(column)]
        if number_type(fields[0].type) is None:
            raise DataError(
                f"The column {column!r} of {where} has type {fields[0].type}, but vectors are numbers or lists of "
                f"numbers; convert it, or name another column: {describe(schema)}."
            )
    else:
        fields = find_vectors(schema, where)
    kinds = [kind for field in fields if (kind := number_type(field.type)) is not None]
    stored = [np.dtype(kind.to_pandas_dtype()) for kind in kinds]
    dtype = np.result_type(*(batch_dtype(dtype, where) for dtype in stored))
    lists = list_type(fields[0].type)
    # list_size is an attribute of the fixed-size kind alone.
    width = len(fields) if lists is None else lists.list_size if pa.types.is_fixed_size_list(lists) else None
    return Selection(tuple(field.name for field in fields), lists is not None, width, dtype, np.result_type(*stored))


def find_vectors(schema: pa.Schema, where: str) -> list[pa.Field]:
    """The columns that can only be the vectors, where none was named."""
    index = index_columns(schema)
    fields = [field for field in schema if field.name not in index]
    numbers = [field for field in fields if number_type(field.type) is not None]
    of_lists = [field for field in numbers if list_type(field.type) is not None]
    if len(of_lists) == 1:
        return of_lists
    if of_lists:
        raise DataError(
            f"{where} has {len(of_lists)} columns of lists of numbers, so which one has the vectors is not clear; "
            f"name one with column= (--column): {describe(of_lists)}."
        )
    if not fields or len(numbers) < len(fields):
        raise DataError(
            f"{where} has no column of lists of numbers, and its columns are not all numbers that could stand side by "
            f"side; name one with column= (--column), or store the vectors as lists. Its columns: {describe(fields)}."
        )
    if len({field.name for field in fields}) < len(fields):
        raise DataError(f"{where} has several columns of one name: {describe(fields)}; rename all but one.")
    whole = [field for field in fields if not pa.types.is_floating(field.type)]
    if whole and len(whole) < len(fields):
        # An id or a label beside the features would be read as one of them, and drown the others.
        raise DataError(
            f"{where} has columns of whole numbers ({describe(whole)}) among columns of real ones, and whether "
            "they belong to the vectors is not clear; drop them, or store the vectors as lists in one column."
        )
    return fields


def table_pieces(
    batches: Iterable[pa.RecordBatch],
    selection: Selection,
    width: int,
    rows: int,
    rows_per_batch: int,
    start: int,
    where: str,
) -> Iterator[Piece]:
    """Pieces of exactly ``rows_per_batch`` rows, of record batches of any sizes; ``rest`` is a table of other columns.

    The first row has the number ``start`` among the ``rows`` of the whole table, which messages call ``where``. A
    `FileError` if there are more rows, or fewer.
    """
    row, filled = start, 0
    vectors: NDArray[Any] | None = None
    rests: list[pa.RecordBatch] = []
    for batch in batches:
        matrix = to_matrix(batch, selection, width, row, where)
        rest = batch.select([name for name in batch.schema.names if name not in selection.columns])
        if row + len(matrix) > rows:
            raise damaged(where, f"it holds more than the {rows} rows that it promises")
        while len(matrix):
            if vectors is None:
                vectors = np.empty((min(rows_per_batch, rows - row), width), dtype=selection.dtype)
            count = min(len(matrix), len(vectors) - filled)
            vectors[filled : filled + count] = matrix[:count]
            rests.append(rest.slice(0, count))
            matrix, rest, filled, row = matrix[count:], rest.slice(count), filled + count, row + count
            if filled == len(vectors):
                yield Piece(vectors, pa.Table.from_batches(rests) if rest.num_columns else None)
                vectors, filled, rests = None, 0, []
    if row != rows:
        raise cut_short(where, f"it promises {rows} rows, but the last one found is row {row - 1}")


def to_matrix(
    piece: pa.RecordBatch, selection: Selection, width: int | None, first_row: int, where: str
) -> NDArray[Any]:
    """The vectors of a record batch, whose first row has the number ``first_row`` in the whole table.

    Raises:
        DataError: If a row or a number is missing; says which row.
        ShapeError: If a list has another length than ``width``, or if that is None than the first; says which row.
    """
    columns = [piece.column(piece.schema.get_field_index(name)) for name in selection.columns]
    if not selection.lists:
        matrix = np.empty((len(piece), len(columns)), dtype=selection.dtype)
        for place, (name, column) in enumerate(zip(selection.columns, columns, strict=True)):
            check_no_nulls(column, 1, first_row, f"column {name!r} of {where}")
            matrix[:, place] = column.to_numpy(zero_copy_only=False)
        return matrix
    where = f"column {selection.columns[0]!r} of {where}"
    lists = columns[0].storage if isinstance(columns[0], pa.ExtensionArray) else columns[0]
    check_no_nulls(lists, 1, first_row, where)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if width is None else width
    if (lengths != width).any():
        row = int(np.argmax(lengths != width))
        raise ShapeError(
            f"In {where}, row {first_row + row} (counted from 0) has {lengths[row]} numbers where the first row has "
            f"{width}; vectors of one matrix must be equally wide, so drop or complete that row."
        )
    items = lists.flatten()
    check_no_nulls(items, width, first_row, where)
    return np.reshape(items.to_numpy(zero_copy_only=False), (len(piece), width))


def check_no_nulls(values: pa.Array, values_per_row: int, first_row: int, where: str) -> None:
    if values.null_count:
        place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"In {where}, row {first_row + place // values_per_row} (counted from 0) holds a null where numbers "
            "should be; drop or fill such rows."
        )


def translated_schema(
    schema: pa.Schema | None, selection: Selection | None, width: int, dtype: np.dtype[Any]
) -> tuple[pa.Schema, str]:
    """The schema of the output, and which column of it has the vectors, of ``width`` numbers of ``dtype`` each.

    Lists stay the kind of lists that they are; columns that stood side by side become one of lists of a fixed size.
    Without the schema of a source the vectors are the only column.
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
    kind: Any = list_type(like.type)
    if isinstance(like.type, pa.FixedShapeTensorType):
        lists: pa.DataType = pa.fixed_shape_tensor(number, [width])
    elif pa.types.is_fixed_size_list(kind):
        lists = pa.list_(kind.value_field.with_type(number), width)
    elif pa.types.is_large_list(kind):
        lists = pa.large_list(kind.value_field.with_type(number))
    else:
        lists = pa.list_(kind.value_field.with_type(number))
    return pa.field(name, lists, like.nullable, like.metadata)


def list_array(vectors: NDArray[Any], field: pa.Field) -> pa.Array:
    """Rows as lists of the field's kind, without a copy."""
    kind = list_type(field.type)
    items = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    if pa.types.is_fixed_size_list(kind):
        lists = pa.FixedSizeListArray.from_arrays(items, type=kind)
    else:
        is_large = pa.types.is_large_list(kind)
        offsets = np.arange(0, vectors.size + 1, vectors.shape[1], dtype=np.int64 if is_large else np.int32)
        array_type = pa.LargeListArray if is_large else pa.ListArray
        lists = array_type.from_arrays(pa.array(offsets), items, type=kind)
    return pa.ExtensionArray.from_storage(field.type, lists) if isinstance(field.type, pa.BaseExtensionType) else lists


def number_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the numbers in a column of numbers or of lists of numbers; None for any other column."""
    lists = list_type(kind)
    item = kind if lists is None else lists.value_type
    is_number = pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)
    return item if is_number else None


def list_type(kind: pa.DataType) -> pa.DataType | None:
    """The lists that a column holds, also as Arrow's tensors of a fixed shape; None for any other column."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    is_list = pa.types.is_list(storage) or pa.types.is_large_list(storage) or pa.types.is_fixed_size_list(storage)
    return storage if is_list else None


def index_columns(schema: pa.Schema) -> set[str]:
    """Columns in which pandas stored a data frame's index: labels of the rows, no part of the vectors."""
    try:
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        return set()
    # An index that merely counts is described by a mapping and stored in no column.
    return {name for name in stored if isinstance(name, str)}


def describe(fields: Iterable[pa.Field]) -> str:
    return list_names((f"{field.name} ({field.type})" for field in fields), MOST_LISTED) or "(none)"
