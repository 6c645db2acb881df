"""Two files are read in step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from interbasin.vectors import default_rows_per_batch, open_vectors, paired_batches


def test_pairs_hold_the_same_rows_of_both_files_whatever_their_formats(tmp_path: Path) -> None:
    numbers = np.arange(23)
    np.savez_compressed(tmp_path / "source.npz", x=np.stack([numbers, numbers], axis=1))
    pq.write_table(pa.table({"y": [[float(n)] for n in numbers]}), tmp_path / "target.parquet", row_group_size=4)
    source, target = open_vectors(tmp_path / "source.npz"), open_vectors(tmp_path / "target.parquet")
    pairs = list(paired_batches(source, target, 5, start=2))
    assert [len(x) for x, _ in pairs] == [5, 5, 5, 5, 1]
    for x, y in pairs:
        np.testing.assert_array_equal(x[:, :1], y)
    assert pairs[0][0][0, 0] == 2


@given(source=st.integers(1, 10**6), target=st.integers(0, 10**6))
def test_default_batches_take_about_64_mib_within_bounds(source: int, target: int) -> None:
    rows = default_rows_per_batch(source, target)
    assert 256 <= rows <= 65_536
    if rows > 256:
        assert rows * 4 * (source + target) <= 64 * 2**20
    if rows < 65_536:
        assert (rows + 1) * 4 * (source + target) > 64 * 2**20
