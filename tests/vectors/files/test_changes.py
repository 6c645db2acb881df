"""A file that changes after it was opened is noticed, whatever the format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from interbasin.errors import FileError
from interbasin.vectors import open_vectors


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
