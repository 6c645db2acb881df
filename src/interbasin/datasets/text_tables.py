"""Tables of numbers in text: ``.csv``, and the ``.tsv`` of the UCR archive, in which a row is a time series.

Both may be gzipped. pyarrow reads them; what it cannot read is looked for a second time, so that the row can be named.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from interbasin.datasets.arrays import ArraySamples
from interbasin.datasets.base import class_numbers
from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.text import list_names
from interbasin.vectors.files.base import damaged

LABELS = ("label", "y", "target", "class")  # names of columns that are taken for labels
NO_LABELS = "none"
SERIES_ENDINGS = (".tsv", ".tsv.gz")
LARGEST = float(np.finfo(np.float32).max)
LISTED = 12  # columns that a message names


class TableColumns(NamedTuple):
    """Which columns of a table are read.

    Attributes:
        inputs: The column of inputs, where there are several.
        labels: The column of labels, where it has another name; ``"none"`` if there are no labels.
        labels_needed: Whether a table that has no such column is refused.
    """

    inputs: str | None = None
    labels: str | None = None
    labels_needed: bool = True

    def among(self, names: Sequence[str]) -> TableColumns:
        """The same for a table with columns of these names: one that it may lack, and does, is not asked for."""
        is_missing = self.labels != NO_LABELS and self.labels not in names
        return self._replace(labels=None) if is_missing and not self.labels_needed else self


def open_csv(path: Path, columns: TableColumns | None = None) -> ArraySamples:
    """The rows of a ``.csv`` file: numbers, and a label in the column ``label``, ``y``, ``target`` or ``class``.

    The first line may name the columns; without, they are called ``0``, ``1`` and so on.

    Args:
        path: The file, gzipped if its name ends so.
        columns: Which of them holds the labels; all others are inputs.

    Raises:
        FileError: if it cannot be read.
        DataError: if which column holds the labels is not clear, or a number is missing; says which row.
        UnknownNameError: if there is no such column.
    """
    first = _first_row(path, ",")
    has_header = any(not _is_number(cell) for cell in first)
    names = [cell.strip() for cell in first] if has_header else [str(place) for place in range(len(first))]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"Two columns of {path} are called {twice!r}; give each a name of its own.")
    label = _label_place(names, (columns or TableColumns()).among(names), path)
    numbers, labels = _read(path, ",", names, label, skipped=int(has_header))
    if labels is None:
        return ArraySamples(str(path), numbers)
    values, classes = class_numbers(_plain_values(labels, path), str(path))
    return ArraySamples(str(path), numbers, values, classes)


def _label_place(names: Sequence[str], columns: TableColumns, path: Path) -> int | None:
    if columns.labels == NO_LABELS:
        return None
    if columns.labels is not None:
        if columns.labels not in names:
            raise UnknownNameError.of(f"column in {path}", columns.labels, names)
        return names.index(columns.labels)
    places = [place for place, name in enumerate(names) if name.lower() in LABELS]
    if len(places) == 1:
        return places[0]
    if not places and not columns.labels_needed:
        return None
    described = f"the columns {list_names(names, LISTED)}"
    reason = "several of which could be the labels" if places else f"none of which is called {', '.join(LABELS)}"
    raise DataError(
        f"{path} has {described}, {reason}; name that of the labels with label_column= (--label-column), or say "
        f"label_column='{NO_LABELS}' if there are none."
    )


# ---------------------------------------------------------------------- time series


def series_parts(path: Path) -> dict[str, Path]:
    """The files of a set of the UCR archive: split to file. Empty where there are not both of them.

    ``path`` is ``NAME_TRAIN.tsv``, beside which ``NAME_TEST.tsv`` stands, or a folder ``NAME`` that holds the two.
    """
    for ending in SERIES_ENDINGS:
        folder, stem = (path, path.name) if path.is_dir() else (path.parent, path.name.removesuffix(f"_TRAIN{ending}"))
        if not path.is_dir() and stem == path.name:
            continue
        train = folder / f"{stem}_TRAIN{ending}"
        tests = [folder / f"{stem}_TEST{other}" for other in SERIES_ENDINGS]
        test = next((file for file in tests if file.is_file()), None)
        if train.is_file() and test is not None:
            return {"train": train, "test": test}
    return {}


def open_series(path: Path, others: Sequence[Path] = ()) -> ArraySamples:
    """The time series of a UCR file, ``(1, length)`` each: the first column is the label, the others are the values.

    Labels are numbered from 0 on, in the order of their values; ``classes`` keeps what the file calls them.

    Args:
        path: The file.
        others: Files with other parts of the same set, so that a number means the same class in all of them.

    Raises:
        FileError: if it cannot be read.
        DataError: if a number is missing, as in series of several lengths; says which row.
    """
    width = len(_first_row(path, "\t"))
    if width < 2:
        raise DataError(f"{path} has one column; a row is a label and the values of a series, with tabs between them.")
    names = [str(place) for place in range(width)]
    numbers, labels = _read(path, "\t", names, 0, skipped=0)
    assert labels is not None
    known = [*labels, *(label for other in others for label in _first_cells(other))]
    values = _plain_values(known, path)
    order = sorted(set(values))
    places = {value: place for place, value in enumerate(order)}
    classes = tuple(
        str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in order
    )
    own = torch.tensor([places[value] for value in values[: len(labels)]], dtype=torch.int64)
    return ArraySamples(str(path), numbers[:, None], own, classes)


def _first_cells(path: Path) -> list[str]:
    with _open_text(path) as file:
        return [row[0] for row in csv.reader(file, delimiter="\t") if row]


# ---------------------------------------------------------------------- reading


def _read(
    path: Path, delimiter: str, names: Sequence[str], label: int | None, skipped: int
) -> tuple[NDArray[np.float32], list[str] | None]:
    """All numbers of a table, and the texts in the column of labels; ``skipped`` lines come first."""
    # Imported here because it takes longer than reading most other files.
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # Of lines that are skipped, pyarrow counts empty ones too.
    first_lines = _line_of(path, delimiter, skipped - 1) if skipped else 0
    types = {name: pa.string() if place == label else pa.float64() for place, name in enumerate(names)}
    try:
        table = arrow_csv.read_csv(
            str(path),
            read_options=arrow_csv.ReadOptions(column_names=list(names), skip_rows=first_lines),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True),
        )
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        _name_bad_row(path, delimiter, names, label, skipped)
        raise damaged(path, error) from error
    if table.num_rows == 0 or len(names) == int(label is not None):
        raise DataError(f"{path} holds no {'samples' if table.num_rows == 0 else 'numbers beside the labels'}.")
    places = [place for place in range(len(names)) if place != label]
    numbers = np.empty((table.num_rows, len(places)), dtype=np.float32)
    for position, place in enumerate(places):
        column = table.column(place).to_numpy()  # what is missing becomes NaN
        bad = np.flatnonzero(~np.isfinite(column))
        if len(bad):
            raise _missing(path, delimiter, int(bad[0]), skipped, names[place], "no number, or NaN or infinity")
        large = np.flatnonzero(np.abs(column) > LARGEST)
        if len(large):
            what = f"{column[large[0]]:g}, where float32 ends at {LARGEST:.3g},"
            raise _missing(
                path, delimiter, int(large[0]), skipped, names[place], what, "divide that column by its spread first"
            )
        numbers[:, position] = column
    if label is None:
        return numbers, None
    labels = table.column(label).to_pylist()
    if None in labels:
        raise _missing(path, delimiter, labels.index(None), skipped, names[label], "no label")
    return numbers, labels


def _missing(
    path: Path,
    delimiter: str,
    row: int,
    skipped: int,
    column: str,
    what: str,
    advice: str = "complete such rows, or take them out",
) -> DataError:
    line = _line_of(path, delimiter, row + skipped)
    return DataError(f"Row {row} (line {line}) of {path} has {what} in column {column!r}; {advice}.")


def _line_of(path: Path, delimiter: str, row: int) -> int:
    """The line in which a row ends, counted from 1; empty lines are no rows."""
    with _open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        next(itertools.islice((cells for cells in reader if cells), row, None), None)
        return reader.line_num


def _name_bad_row(path: Path, delimiter: str, names: Sequence[str], label: int | None, skipped: int) -> None:
    """Raise the error for the first row that is no row of this table, if there is one."""
    with _open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        rows = (row for row in reader if row)
        for _ in range(skipped):
            next(rows, None)
        for number, row in enumerate(rows):
            if len(row) != len(names):
                raise DataError(
                    f"Row {number} (line {reader.line_num}) of {path} has {len(row)} cells, and the first has "
                    f"{len(names)}; complete such rows, or take them out."
                )
            for place, cell in enumerate(row):
                if place != label and not _is_number(cell):
                    raise _missing(path, delimiter, number, skipped, names[place], f"{cell!r}, which is no number,")


def _first_row(path: Path, delimiter: str) -> list[str]:
    with _open_text(path) as file:
        row = next((row for row in csv.reader(file, delimiter=delimiter) if row), None)
    if row is None:
        raise DataError(f"{path} holds no samples at all; check what wrote it.")
    return row


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    try:
        opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text ({error.reason}); convert it.") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        if isinstance(error, FileError):
            raise
        raise damaged(path, error) from error


def _is_number(cell: str) -> bool:
    """Whether a cell holds a number, NaN, or nothing."""
    try:
        float(cell or "nan")
    except ValueError:
        return cell.strip().upper() in ("", "NA", "N/A", "NULL")
    return True


def _plain_values(labels: Sequence[str], path: Path) -> list[Any]:
    """Labels as whole numbers if all of them are, else as numbers, else as text."""
    with contextlib.suppress(ValueError):
        return [int(label) for label in labels]
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return list(labels)
    wrong = next((label for label, value in zip(labels, values, strict=True) if not math.isfinite(value)), None)
    if wrong is not None:  # one number that is too large is no reason to take all of them for names of classes
        raise DataError(f"{path} has the label {wrong:.40}, which is no finite number; take such rows out.")
    return values
