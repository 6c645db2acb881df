"""Which columns of a table make the matrix, and a piece of the table as that matrix. Knows Arrow, but no files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.vectors.files.base import batch_dtype

MOST_LISTED = 20  # columns named in one message


@dataclass(frozen=True)
class Selection:
    """The columns that make the matrix: one of lists, or some of numbers that stand side by side.

    Attributes:
        columns: Their names, in the order of the table.
        lists: Whether it is one column of lists.
        width: How many numbers a row has; None where only the first row can tell.
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

    Args:
        schema: The table's.
        column: The name asked for, if any.
        where: Names the table in messages.

    Raises:
        UnknownNameError: If there is no column of that name.
        DataError: If it does not hold numbers, or if none was named and which was meant is not clear.
    """
    if column is not None:
        if column not in schema.names:
            raise UnknownNameError.of(f"column in {where}", column, set(schema.names))
        if schema.names.count(column) > 1:
            raise DataError(f"{where} has several columns named {column!r}; rename all but one of them.")
        chosen = [schema.field(column)]
        if not (is_number(chosen[0].type) or is_list_of_numbers(chosen[0].type)):
            raise DataError(
                f"The column {column!r} of {where} has type {chosen[0].type}, but vectors are numbers or lists of "
                f"numbers; convert it, or name another column: {described(list(schema))}."
            )
    else:
        chosen = without_a_name(schema, where)
    kinds = {field.name: item_type(field.type) for field in chosen}
    dtypes = [np.dtype(kind.to_pandas_dtype()) for kind in kinds.values()]
    dtype = np.result_type(*(batch_dtype(one, where) for one in dtypes))
    lists = not is_number(chosen[0].type)
    storage = storage_type(chosen[0].type)
    # list_size is an attribute of the fixed-size kind alone.
    width = len(chosen) if not lists else storage.list_size if pa.types.is_fixed_size_list(storage) else None
    return Selection(tuple(kinds), lists, width, dtype, np.result_type(*dtypes))


def without_a_name(schema: pa.Schema, where: str) -> list[pa.Field]:
    index = index_columns(schema)
    fields = [field for field in schema if field.name not in index]
    of_lists = [field for field in fields if is_list_of_numbers(field.type)]
    if len(of_lists) == 1:
        return of_lists
    if of_lists:
        raise DataError(
            f"{where} has {len(of_lists)} columns of lists of numbers, so which one has the vectors is not clear; "
            f"name one with column= (--column): {described(of_lists)}."
        )
    if fields and all(is_number(field.type) for field in fields):
        if len({field.name for field in fields}) < len(fields):
            raise DataError(f"{where} has several columns of one name: {described(fields)}; rename all but one.")
        whole = [field for field in fields if not pa.types.is_floating(field.type)]
        if whole and len(whole) < len(fields):
            # An id or a label beside the features would be read as one of them, and drown the others.
            raise DataError(
                f"{where} has columns of whole numbers ({described(whole)}) among columns of real ones, and whether "
                "they belong to the vectors is not clear; drop them, or store the vectors as lists in one column."
            )
        return fields
    raise DataError(
        f"{where} has no column of lists of numbers, and its columns are not all numbers that could stand side by "
        f"side; name one with column= (--column), or store the vectors as lists. Its columns: {described(fields)}."
    )


def to_matrix(piece: pa.RecordBatch, selection: Selection, width: int, first_row: int, where: str) -> NDArray[Any]:
    """The rows of a piece of the table, in the stored dtype (lists) or that of the batches (columns side by side).

    Args:
        piece: Rows of the table.
        selection: The columns to take.
        width: The width that every row must have.
        first_row: The number of the piece's first row in the whole table, for messages.
        where: Names the table in messages.

    Raises:
        DataError: If a row or a number is missing; says which row.
        ShapeError: If a list has another length than ``width``; says which row.
    """
    columns = [piece.column(piece.schema.get_field_index(name)) for name in selection.columns]
    if not selection.lists:
        matrix = np.empty((len(piece), width), dtype=selection.dtype)
        for place, (name, column) in enumerate(zip(selection.columns, columns, strict=True)):
            check_no_nulls(column, 1, first_row, f"column {name!r} of {where}")
            matrix[:, place] = column.to_numpy(zero_copy_only=False)
        return matrix
    where = f"column {selection.columns[0]!r} of {where}"
    lists = storage_array(columns[0])
    check_no_nulls(lists, 1, first_row, where)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    if (lengths != width).any():
        row = int(np.argmax(lengths != width))
        raise ShapeError(
            f"In {where}, row {first_row + row} (counted from 0) has {lengths[row]} numbers where the first row has "
            f"{width}; vectors of one matrix must be equally wide, so drop or complete that row."
        )
    items = lists.flatten()
    check_no_nulls(items, width, first_row, where)
    return np.reshape(items.to_numpy(zero_copy_only=False), (len(piece), width))


def first_width(piece: pa.RecordBatch, selection: Selection, where: str) -> int:
    """The length of the first list in a piece; lists that may vary in length say their width nowhere else.

    Raises:
        DataError: If the first row is null.
    """
    name = selection.columns[0]
    lists = storage_array(piece.column(piece.schema.get_field_index(name))).slice(0, 1)
    check_no_nulls(lists, 1, 0, f"column {name!r} of {where}")
    return int(pc.list_value_length(lists)[0].as_py())


def check_no_nulls(values: pa.Array, values_per_row: int, first_row: int, where: str) -> None:
    if values.null_count:
        place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"In {where}, row {first_row + place // values_per_row} (counted from 0) holds a null where numbers "
            "should be; drop or fill such rows."
        )


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_list_of_numbers(kind: pa.DataType) -> bool:
    storage = storage_type(kind)
    is_list = pa.types.is_list(storage) or pa.types.is_large_list(storage) or pa.types.is_fixed_size_list(storage)
    return bool(is_list and is_number(storage.value_type))


def item_type(kind: pa.DataType) -> pa.DataType:
    return kind if is_number(kind) else storage_type(kind).value_type


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type beneath an extension type, such as Arrow's tensors of a fixed shape, which are lists of fixed size."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def storage_array(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def index_columns(schema: pa.Schema) -> set[str]:
    """Columns in which pandas stored a data frame's index: labels of the rows, no part of the vectors."""
    try:
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        return set()
    # An index that merely counts is described by a mapping and stored in no column.
    return {name for name in stored if isinstance(name, str)}


def described(fields: list[pa.Field]) -> str:
    shown = ", ".join(f"{field.name} ({field.type})" for field in fields[:MOST_LISTED])
    more = len(fields) - MOST_LISTED
    return f"{shown or '(none)'}{f' and {more} more' if more > 0 else ''}"
