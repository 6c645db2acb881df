"""``open_vectors`` looks at a path and hands it to the file that knows the format; two matrices are read in step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path

from interbasin.errors import FileError, ShapeError
from interbasin.vectors.files.base import Batch, Vectors, stamp_of
from interbasin.vectors.files.npy import open_npy
from interbasin.vectors.files.npz import open_npz

EXTENSIONS = (".npy", ".npz", ".parquet")
SUPPORTED = ".npy, .npz or .parquet"
BATCH_BYTES = 64 * 2**20
FEWEST_ROWS, MOST_ROWS = 256, 65_536


def open_vectors(path: str | PathLike[str], *, column: str | None = None) -> Vectors:
    """The matrix of row vectors in a file, checked but not yet read.

    Floats keep their dtype: float16, float32 and float64 (wider ones become float64; byte order becomes the
    machine's). Integers and booleans are converted to float32 as they are read, which is exact up to 2^24 and rounds
    beyond. Nothing in the file is ever executed: arrays of pickled objects are refused.

    - ``.npy``: two axes or more; the last is the width, the others are flattened into rows. Read where it lies, in C
      or Fortran order.
    - ``.npz``: the array named ``column``, or the only one, or the one named ``x``. Uncompressed arrays are mapped.
      Compressed ones are unpacked in passing: to start at a later row, all before it must be unpacked too.
    - ``.parquet``: the column named ``column``; or the only column of lists of numbers; or, if every column is a
      number, all of them side by side. A data frame's index is no column unless it is named. Lists are far better
      for wide vectors: side by side, Parquet needs a page or two (1 to 2 MB) in memory for every column.

    Args:
        path: A file whose extension says its format.
        column: Which column or array to read. An ``.npy`` file has only one, so there it changes nothing.

    Raises:
        FileError: If the file is missing, a directory, empty, cut short, or not what its extension says.
        DataError: If it holds no rows, no numbers, or several matrices of which none was named.
        ShapeError: If it has no axis of rows.
        UnknownNameError: If it has no such column; lists those it has.

    Example:
        >>> import numpy, tempfile
        >>> path = tempfile.mkdtemp() + "/embeddings.npy"
        >>> numpy.save(path, numpy.arange(10.0).reshape(5, 2))
        >>> vectors = open_vectors(path)
        >>> vectors.rows, vectors.width
        (5, 2)
        >>> [batch.tolist() for batch in vectors.batches(2, start=2)]
        [[[4.0, 5.0], [6.0, 7.0]], [[8.0, 9.0]]]
    """
    file = Path(path)
    format_name = check_path(file)
    stamp = stamp_of(file)
    if format_name == "npy":
        vectors = open_npy(file)
    elif format_name == "npz":
        vectors = open_npz(file, column)
    else:
        # Imported here because it loads pyarrow, which takes longer than reading most .npy files.
        from interbasin.vectors.files.parquet import open_parquet

        vectors = open_parquet(file, column)
    return replace(vectors, stamp=stamp)


def check_path(file: Path) -> str:
    """The format that the file's name promises.

    Raises:
        FileError: If there is no such file with something in it, or no reader for its extension.
    """
    try:
        if not file.exists():
            raise FileError(f"Vectors were to be read from {file}, but there is no such file; check the path.")
        if file.is_dir():
            raise FileError(
                f"Vectors were to be read from {file}, which is a directory; name one file in it ({SUPPORTED})."
            )
        if not file.is_file():
            raise FileError(
                f"Vectors were to be read from {file}, which is a pipe or a device; write its content to a file first."
            )
        extension = file.suffix.lower()
        if extension not in EXTENSIONS:
            has = f"the extension {file.suffix!r}" if file.suffix else "no extension"
            raise FileError(f"Vectors can be read from {SUPPORTED} files; {file} has {has}. Convert or rename it.")
        if file.stat().st_size == 0:
            raise FileError(f"{file} is empty (0 bytes); write it again, or copy or download it again.")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{file} could not be looked at ({error.strerror}); check its permissions.") from error
    return extension.removeprefix(".")


def paired_batches(
    source: Vectors, target: Vectors, rows_per_batch: int, start: int = 0
) -> Iterator[tuple[Batch, Batch]]:
    """Batches of the same rows of both, from row ``start`` on; see ``Vectors.batches``.

    Raises:
        ShapeError: At once, if the two differ in their numbers of rows, or if an argument is out of range.
    """
    if source.rows != target.rows:
        raise ShapeError(
            f"Paired vectors need equal numbers of rows; {source.path} has {source.rows} and {target.path} has "
            f"{target.rows}. Give two files in which row i is the same sample, for every i."
        )
    return zip(source.batches(rows_per_batch, start), target.batches(rows_per_batch, start), strict=True)


def default_rows_per_batch(source_width: int, target_width: int = 0, batch_bytes: int = BATCH_BYTES) -> int:
    """Rows for which a pair of float32 batches takes about ``batch_bytes``, from 256 to 65,536.

    Example:
        >>> default_rows_per_batch(384, 768), default_rows_per_batch(384, 768, 32 * 2**20)
        (14563, 7281)
    """
    row_bytes = 4 * max(1, source_width + target_width)
    return min(MOST_ROWS, max(FEWEST_ROWS, batch_bytes // row_bytes))
