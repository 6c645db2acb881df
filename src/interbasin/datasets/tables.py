"""``.parquet``: a column of vectors or of text, and a column of labels beside it. Importing this loads pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from interbasin.datasets.arrays import ArraySamples
from interbasin.datasets.base import Samples, class_numbers
from interbasin.errors import DataError, UnknownNameError
from interbasin.vectors.files import open_vectors
from interbasin.vectors.files.parquet import open_table

LABEL = "label"
ROWS = 4096  # a piece


def open_parquet_samples(path: Path, column: str | None, texts: Callable[..., Samples]) -> Samples:
    """Samples of the column ``column``: text, or vectors as `open_vectors` reads them; labels from ``label``, if any.

    Args:
        path: The file.
        column: By default ``text`` if there is such a column of text, else what `open_vectors` takes.
        texts: Makes samples of texts, labels and class names.

    Raises:
        UnknownNameError: if there is no such column.
        DataError: if texts or labels are missing in some rows, or there are no rows.
    """
    with open_table(path) as opened:
        schema = opened.schema_arrow
        if column is not None and column not in schema.names:
            raise UnknownNameError.of(f"column in {path}", column, schema.names)
        wanted = column if column is not None else "text" if "text" in schema.names else None
        is_text = wanted is not None and _is_text(schema.field(wanted).type)
        values = [] if LABEL not in schema.names else opened.read([LABEL]).column(LABEL).to_pylist()
        words = opened.read([wanted]).column(wanted).to_pylist() if is_text else []
    labels, classes = _labels(values, path) if values else (None, ())
    if is_text:
        missing = next((row for row, word in enumerate(words) if word is None), None)
        if missing is not None:
            raise DataError(f"Row {missing} of {path} has no {wanted!r}; take such rows out.")
        return texts(words, labels, classes)
    if column is None and labels is not None and not _has_lists(schema):
        raise DataError(
            f"{path} has labels and numbers in columns of their own, so which ones are the inputs is not clear; put "
            "the numbers into one column of lists, and name it with column (--column)."
        )
    vectors = open_vectors(path, column=column)
    array = np.concatenate(list(vectors.batches(ROWS)))
    return ArraySamples(str(path), array, labels, classes)


def _labels(values: list[Any], path: Path) -> tuple[Any, tuple[str, ...]]:
    missing = next((row for row, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise DataError(f"Row {missing} of {path} has no {LABEL!r}; take such rows out.")
    return class_numbers(values, str(path))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_lists(schema: pa.Schema) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(field.type) for field in schema for is_kind in kinds)
