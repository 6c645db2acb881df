"""Tables of Arrow: ``.parquet``, and the folders that the library `datasets` saves. No need for that library itself.

Inputs are one column of lists (of lists: fields), or of text; labels are another column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.datasets.arrays import ArraySamples
from interbasin.datasets.base import Samples, class_numbers
from interbasin.datasets.text_tables import NO_LABELS, TableColumns
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError
from interbasin.text import plural
from interbasin.vectors.files.base import check_begins, damaged, open_vectors

LABEL = "label"  # the column of labels, unless another is named
ROWS = 4096  # of a table that are read at a time
VALID = ("valid", "validation", "val", "dev")  # what the part for choosing is called


class MakeTexts(Protocol):
    """Makes samples of texts, labels and class names."""

    def __call__(self, words: list[str], labels: Tensor | None = None, classes: tuple[str, ...] = (), /) -> Samples: ...


def open_parquet_samples(path: Path, columns: TableColumns, texts: MakeTexts) -> Samples:
    """Samples of a column of a Parquet file: text, or vectors as `open_vectors` reads them."""
    check_begins(path, (b"PAR1",), ".parquet")
    # Imported here because it takes longer than reading most other files.
    from interbasin.vectors.files.parquet import open_table

    with open_table(path) as opened:
        schema = opened.schema_arrow
        table = _Columns(str(path), schema, lambda name: opened.read([name]).column(name))
        inputs, labels, classes = table.choose(columns.among(schema.names))
    if inputs is not None:
        _require_as_many(path, inputs, labels)
        return texts(inputs, labels, classes)
    array = np.concatenate(list(open_vectors(path, column=columns.inputs).batches(ROWS)))
    _require_as_many(path, array, labels)
    return ArraySamples(str(path), array, labels, classes)


def _require_as_many(path: Path, inputs: Sized, labels: Tensor | None) -> None:
    """Refuse a table whose columns differ in length, as those of a damaged file may."""
    if labels is not None and len(labels) != len(inputs):
        raise damaged(path, f"it has {plural(len(inputs), 'sample')} and {plural(len(labels), 'label')}")


class _Columns:
    """The columns of a table, of which one may be text and one may hold labels."""

    def __init__(self, name: str, schema: Any, read: Callable[[str], Any]) -> None:
        self.name, self.schema, self.read = name, schema, read

    def choose(
        self, columns: TableColumns, names: tuple[str, ...] = ()
    ) -> tuple[list[str] | None, Tensor | None, tuple[str, ...]]:
        """Texts, if the inputs are such; labels; and their names, ``names`` if these are known."""
        import pyarrow as pa

        column, label_column = columns.inputs, columns.labels
        for name in (column, None if label_column == NO_LABELS else label_column):
            if name is not None and name not in self.schema.names:
                raise UnknownNameError.of(f"column in {self.name}", name, self.schema.names)
        label = None if label_column == NO_LABELS else label_column or (LABEL if LABEL in self.schema.names else None)
        chosen = column if column is not None else "text" if "text" in self.schema.names else None
        kind = None if chosen is None else self.schema.field(chosen).type
        is_text = kind is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        labels, classes = (None, ()) if label is None else self._read_labels(label, names)
        if chosen is not None and is_text:
            return self._read_whole(chosen), labels, classes
        if column is None and labels is not None and not self.lists():
            raise DataError(
                f"{self.name} has labels beside columns of numbers, so which are the inputs is not clear; put the "
                "numbers into one column of lists, and name it with column (--column)."
            )
        return None, labels, classes

    def lists(self) -> list[str]:
        """The columns of lists."""
        from interbasin.vectors.files.tables import list_type

        return [field.name for field in self.schema if list_type(field.type) is not None]

    def _read_whole(self, name: str) -> list[Any]:
        values: list[Any] = self.read(name).to_pylist()
        if None in values:
            raise DataError(f"Row {values.index(None)} of {self.name} has no {name!r}; take such rows out.")
        return values

    def _read_labels(self, name: str, names: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
        from interbasin.vectors.files.tables import list_type

        if list_type(self.schema.field(name).type) is not None:  # several labels per sample, or a field
            stacked = stack_lists(self.read(name), f"column {name!r} of {self.name}")
            return torch.from_numpy(stacked.astype(np.float32 if stacked.dtype.kind == "f" else np.int64)), ()
        labels, classes = class_numbers(self._read_whole(name), self.name)
        if names and not classes:
            outside = (labels < 0) | (labels >= len(names))
            if bool(outside.any()):
                row = int(outside.nonzero()[0])
                raise DataError(
                    f"Row {row} of {self.name} has label {int(labels[row])}, and the classes have the numbers 0 to "
                    f"{len(names) - 1}; take rows without a label out."
                )
            return labels, names
        return labels, classes


# ---------------------------------------------------------------------- folders of `datasets`


def is_arrow_folder(folder: Path) -> bool:
    """Whether `datasets` saved one table here."""
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def arrow_parts(folder: Path) -> dict[str, Path]:
    """The parts that `datasets` saved here: split to folder; that for choosing is called ``valid``, whatever it was."""
    if not (folder / "dataset_dict.json").is_file():
        return {}
    splits = _read_json(folder / "dataset_dict.json").get("splits")
    names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    parts = {"valid" if name in VALID else name: folder / Path(name).name for name in names}
    # The part for training first: it is the one that is read unless another is asked for.
    return {name: parts[name] for name in sorted(parts, key=lambda name: name != "train")}


def open_arrow_samples(folder: Path, asked: TableColumns, texts: MakeTexts) -> Samples:
    """Samples of a table that `datasets` saved: a column of text, or the one of lists, mapped where it lies.

    Raises:
        FileError: if the folder is damaged.
        DataError: if which column holds the inputs is not clear, or a row is incomplete.
    """
    table = _read_arrow(folder)
    columns = _Columns(str(folder), table.schema, table.column)
    asked = asked.among(table.schema.names)
    column, label = asked.inputs, LABEL if asked.labels is None else asked.labels
    words, labels, classes = columns.choose(asked, _class_names(folder, label))
    if words is not None:
        return texts(words, labels, classes)
    lists = [name for name in columns.lists() if name != label]
    if column is None and len(lists) != 1:
        described = f"the columns {', '.join(table.schema.names)}, {len(lists)} of which hold lists of numbers"
        raise DataError(f"{folder} has {described}; name that of the inputs with column= (--column).")
    inputs = lists[0] if column is None else column
    array = stack_lists(table.column(inputs), f"column {inputs!r} of {folder}")
    return ArraySamples(str(folder), array, labels, classes)


def _read_arrow(folder: Path) -> Any:
    import pyarrow as pa

    state = _read_json(folder / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(
            f"{folder} holds a choice of rows beside its table, as older versions of datasets save it; load it there, "
            "call flatten_indices() and save it again."
        )
    entries = state.get("_data_files")
    listed = (
        [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    names = [name for name in listed if isinstance(name, str) and Path(name).name == name]
    if not names or names != listed:
        raise damaged(folder / "state.json", "it names no files of data")
    tables = []
    for name in names:
        if not (folder / name).is_file():
            raise FileError(f"{folder / 'state.json'} names {name}, which is not beside it; copy the whole folder.")
        try:
            source = pa.memory_map(str(folder / name))
            tables.append(pa.ipc.open_stream(source).read_all())
        except (pa.ArrowException, OSError) as error:
            raise damaged(folder / name, error) from error
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise damaged(folder, error) from error


def _class_names(folder: Path, label: str) -> tuple[str, ...]:
    features = _read_json(folder / "dataset_info.json").get("features")
    feature = features.get(label) if isinstance(features, dict) else None
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not isinstance(document, dict):
        raise FileError(f"{path} holds a {type(document).__name__} where datasets writes an object; copy it again.")
    return document


def stack_lists(column: Any, where: str) -> NDArray[Any]:
    """The lists (of lists) of a column as one array; its first axis counts the rows.

    Raises:
        DataError: if it holds something else than numbers, or a number is missing; says which row.
        ShapeError: if lists differ in their lengths; says which row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from interbasin.vectors.files.tables import list_type, number_type

    values = column.combine_chunks()
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    shape = [len(values)]

    def require_complete() -> None:
        if values.null_count:
            place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"In {where}, row {row_of(place)} holds a null where numbers should be; take it out.")

    def row_of(place: int) -> int:
        return place // max(1, int(np.prod(shape[1:])))

    while list_type(values.type) is not None:
        require_complete()
        lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
        other = np.flatnonzero(lengths != lengths[:1])
        if len(other):
            raise ShapeError(
                f"In {where}, row {row_of(int(other[0]))} has a list of {lengths[other[0]]} where the first has "
                f"{lengths[0]}; samples must have one shape, so cut or complete that row."
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        values = values.flatten()
    if number_type(values.type) is None or len(shape) == 1:
        raise DataError(f"{where} holds {column.type}, and inputs are lists of numbers; convert it to such.")
    require_complete()
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(shape)
    return array
