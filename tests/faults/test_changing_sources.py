"""A file that changes after it was opened is noticed, whatever the format."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interbasin.errors import FileError
from interbasin.vectors import open_vectors
from interbasin.vectors.stores.opening import open_rows
from interbasin.vectors.stores.uri import parse_uri


@pytest.mark.parametrize("when", ["before the first batch", "between two batches"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_rows_of_another_file_are_never_handed_out(suffix: str, when: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    write = np.save if suffix == ".npy" else np.savez
    write(path, np.ones((100, 8)))
    batches = open_vectors(path).batches(10)
    if when == "between two batches":
        assert next(batches).shape == (10, 8)
    write(path, np.zeros((100, 16), dtype=np.float32))
    with pytest.raises(FileError, match="has changed since it was opened"):
        list(batches)


@pytest.mark.parametrize("when", ["before the first piece", "between two pieces"])
def test_rows_of_a_table_that_was_rewritten_in_place_are_never_handed_out(when: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"

    def write(value: float) -> None:
        vectors = np.full((600, 8), value, dtype=np.float32)
        table = pa.table({"id": [*range(600)], "v": vectors.tolist()})
        stream = pa.BufferOutputStream()
        pq.write_table(table, stream, compression="none", use_dictionary=False, row_group_size=100)
        with path.open("r+b" if path.exists() else "wb") as file:  # the same file, of the same size
            file.write(stream.getvalue().to_pybytes())

    write(1.0)
    pieces = open_rows(parse_uri(str(path))).pieces(50, 0)
    if when == "between two pieces":
        assert next(pieces).vectors.shape == (50, 8)
    write(2.0)
    os.utime(path, (path.stat().st_atime + 1, path.stat().st_mtime + 1))  # a clock may be coarser than this test
    with pytest.raises(FileError, match="has changed since it was opened"):
        list(pieces)
