"""One law for every format: the batches, put together again, are the array that was saved."""

from __future__ import annotations

import pickle
import tempfile
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError
from interbasin.vectors import Vectors, open_vectors

Array = NDArray[Any]
FLOATS = ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"]
INTEGERS = ["?", "|i1", "|u1", "<i2", ">u2", "<i4", "<u4", "<i8", ">i8", "<u8"]


def save_npy(folder: Path, array: Array) -> Path:
    np.save(folder / "vectors.npy", array)
    return folder / "vectors.npy"


def save_stored(folder: Path, array: Array) -> Path:
    np.savez(folder / "vectors.npz", before=np.zeros(3), x=array, behind=np.ones((2, 2)))
    return folder / "vectors.npz"


def save_compressed(folder: Path, array: Array) -> Path:
    np.savez_compressed(folder / "vectors.npz", before=np.zeros(3), x=np.ascontiguousarray(array))
    return folder / "vectors.npz"


def flat(array: Array) -> Array:
    """Rows of native numbers, for Arrow knows neither more axes nor other byte orders."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]), dtype=array.dtype.newbyteorder("="))


def save_columns(folder: Path, array: Array) -> Path:
    columns = {f"c{place}": pa.array(column) for place, column in enumerate(flat(array).T)}
    pq.write_table(pa.table(columns), folder / "vectors.parquet", row_group_size=7)
    return folder / "vectors.parquet"


def save_lists(folder: Path, array: Array, row_group_size: int = 5) -> Path:
    rows = flat(array)
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(offsets, pa.array(rows.reshape(-1)))
    names = pa.array([f"row {row}" for row in range(len(rows))])
    pq.write_table(
        pa.table({"name": names, "vector": lists}), folder / "vectors.parquet", row_group_size=row_group_size
    )
    return folder / "vectors.parquet"


def save_large_lists(folder: Path, array: Array) -> Path:
    rows = flat(array)
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int64)
    lists = pa.LargeListArray.from_arrays(offsets, pa.array(rows.reshape(-1)))
    pq.write_table(pa.table({"vector": lists}), folder / "vectors.parquet", row_group_size=1000)
    return folder / "vectors.parquet"


def save_fixed_lists(folder: Path, array: Array, row_group_size: int = 3) -> Path:
    rows = flat(array)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"id": np.arange(len(rows)), "vector": lists})
    pq.write_table(table, folder / "vectors.parquet", row_group_size=row_group_size)
    return folder / "vectors.parquet"


def save_tensors(folder: Path, array: Array) -> Path:
    rows = flat(array)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(lists.type.value_type, [rows.shape[1]]), lists)
    pq.write_table(pa.table({"vector": tensors}), folder / "vectors.parquet", row_group_size=4)
    return folder / "vectors.parquet"


FORMATS: list[Callable[[Path, Array], Path]] = [
    save_npy,
    save_stored,
    save_compressed,
    save_columns,
    save_lists,
    save_large_lists,
    save_fixed_lists,
    save_tensors,
]


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Two to four axes, any dtype, C or Fortran order; integers small enough to be exact in float32."""
    shape = (*draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)), draw(st.integers(1, 5)))
    dtype = np.dtype(draw(st.sampled_from(FLOATS + INTEGERS)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = 100 * generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 128, shape)
    return np.asarray(values.astype(dtype), order="F" if draw(st.booleans()) else "C")


@pytest.mark.parametrize("save", FORMATS)
@given(array=arrays(), rows_per_batch=st.integers(1, 12), data=st.data())
def test_batches_put_together_are_the_array_that_was_saved(
    save: Callable[[Path, Array], Path], array: Array, rows_per_batch: int, data: st.DataObject
) -> None:
    rows = flat(array)
    start = data.draw(st.integers(0, len(rows)), label="start")
    expected = rows[start:].astype(np.float32) if rows.dtype.kind in "biu" else rows[start:]
    with tempfile.TemporaryDirectory() as folder:
        vectors = open_vectors(save(Path(folder), array))
        batches = list(vectors.batches(rows_per_batch, start))
    assert (vectors.rows, vectors.width, vectors.dtype) == (*rows.shape, expected.dtype)
    assert vectors.dtype.isnative
    assert all(len(batch) == rows_per_batch for batch in batches[:-1])
    for batch in batches:
        assert type(batch) is np.ndarray and batch.dtype == vectors.dtype
        assert batch.flags.c_contiguous and batch.flags.writeable
    np.testing.assert_array_equal(np.concatenate([np.empty((0, rows.shape[1]), vectors.dtype), *batches]), expected)
    assert len(batches) == -(-len(expected) // rows_per_batch)


@pytest.mark.parametrize("save", FORMATS)
def test_nan_and_infinity_are_handed_on(save: Callable[[Path, Array], Path], tmp_path: Path) -> None:
    array = np.array([[1, np.nan], [np.inf, -np.inf]], dtype=np.float32)
    (batch,) = open_vectors(save(tmp_path, array)).batches(10)
    np.testing.assert_array_equal(batch, array)


@pytest.mark.parametrize("save", FORMATS)
def test_opened_vectors_can_be_read_again_side_by_side_and_after_pickling(
    save: Callable[[Path, Array], Path], tmp_path: Path
) -> None:
    array = np.arange(60, dtype=np.float64).reshape(20, 3)
    vectors = open_vectors(str(save(tmp_path, array)))
    copy: Vectors = pickle.loads(pickle.dumps(vectors))
    for mine, its, part in zip(vectors.batches(6), copy.batches(6), np.split(array, [6, 12, 18]), strict=True):
        np.testing.assert_array_equal(mine, part)
        np.testing.assert_array_equal(its, part)


@pytest.mark.parametrize("save", FORMATS)
def test_batches_are_the_callers_to_change(save: Callable[[Path, Array], Path], tmp_path: Path) -> None:
    array = np.ones((9, 2), dtype=np.float32)
    vectors = open_vectors(save(tmp_path, array))
    kept = []
    for batch in vectors.batches(2):
        batch *= 2
        kept.append(batch)
    np.testing.assert_array_equal(np.concatenate(kept), 2 * array)
    np.testing.assert_array_equal(np.concatenate(list(vectors.batches(4))), array)


# One row group for the whole file is the worst case.
ONE_GROUP = [partial(save_lists, row_group_size=10**6), partial(save_fixed_lists, row_group_size=10**6)]


@pytest.mark.slow
@pytest.mark.parametrize("save", [save_npy, save_stored, save_compressed, *ONE_GROUP])
def test_memory_is_bounded_by_batches_and_not_by_the_file(save: Callable[[Path, Array], Path], tmp_path: Path) -> None:
    # 40 MB of random numbers, which do not compress.
    array = np.random.default_rng(0).standard_normal((80_000, 128), dtype=np.float32)
    path = save(tmp_path, array)
    assert path.stat().st_size > 35e6
    del array
    pool = pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), 0
    tracemalloc.start()
    try:
        vectors = open_vectors(path)
        for batch in vectors.batches(4000, start=1000):
            assert batch.nbytes <= 2.1e6
            peak = max(peak, pool.bytes_allocated() - before)
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(batch) == 3000
    assert traced < 10e6
    assert peak < 10e6


def test_a_batch_may_be_larger_than_the_file_and_start_may_be_its_end(tmp_path: Path) -> None:
    for save in FORMATS:
        vectors = open_vectors(save(tmp_path, np.ones((3, 2))))
        assert [len(batch) for batch in vectors.batches(2**62)] == [3]
        assert list(vectors.batches(2, start=3)) == []


def test_numbers_out_of_range_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    vectors = open_vectors(save_npy(tmp_path, np.ones((3, 2))))
    with pytest.raises(ShapeError, match=r"Batches of 0 rows .*vectors\.npy.*1 or more"):
        vectors.batches(0)
    for start in (-1, 4):
        with pytest.raises(ShapeError, match=rf"start at row {start}, but it has 3 rows; .*0 to 3"):
            vectors.batches(1, start)


def test_wide_floats_become_float64_and_large_integers_are_rounded(tmp_path: Path) -> None:
    (batch,) = open_vectors(save_npy(tmp_path, np.full((1, 1), 0.1, dtype=np.longdouble))).batches(1)
    assert batch.dtype == np.float64 and batch[0, 0] == 0.1
    (batch,) = open_vectors(save_npy(tmp_path, np.full((1, 1), 2**24 + 1))).batches(1)
    assert batch.dtype == np.float32 and batch[0, 0] == 2**24


@pytest.mark.parametrize("dtype", ["c8", "U3", "S3", "M8[s]", [("a", "f4"), ("b", "f4")], [("µ", "f4"), ("Ω", "f4")]])
@pytest.mark.parametrize("save", [save_npy, save_stored])
def test_what_is_not_a_real_number_is_refused(save: Callable[[Path, Array], Path], dtype: Any, tmp_path: Path) -> None:
    if isinstance(dtype, list) and dtype[1][0] == "Ω":
        with pytest.warns(UserWarning, match="NumPy >= 1.17"):
            path = save(tmp_path, np.zeros((2, 2), dtype=dtype))
    else:
        path = save(tmp_path, np.zeros((2, 2), dtype=dtype))
    with pytest.raises(DataError, match=r"vectors\.np[yz].* (not a real number; convert|a structured array)"):
        open_vectors(path)


def test_bfloat16_which_numpy_cannot_name_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="may be bfloat16, so convert it to float32"):
        open_vectors(save_npy(tmp_path, np.zeros((2, 2), dtype="V2")))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("save", [save_npy, save_stored, save_compressed])
def test_pickled_objects_are_refused_and_not_loaded(save: Callable[[Path, Array], Path], tmp_path: Path) -> None:
    path = save(tmp_path, np.array([[Bomb()]], dtype=object))
    with pytest.raises(DataError, match=r"pickled Python objects.*never loaded.*np\.stack"):
        open_vectors(path)


@pytest.mark.parametrize("save", [save_npy, save_stored, save_compressed])
def test_arrays_without_rows_width_or_axes_are_refused(save: Callable[[Path, Array], Path], tmp_path: Path) -> None:
    for shape in ((), (7,)):
        # np.savez_compressed of a scalar: ascontiguousarray makes one axis of none.
        with pytest.raises(ShapeError, match=r"has shape \(\d?,?\), but vectors need two axes .*\(1, width\)"):
            open_vectors(save(tmp_path, np.zeros(shape)))
    for shape in ((0, 4), (3, 0, 4)):
        with pytest.raises(DataError, match=r"has no rows \(its shape is .*, 4\)"):
            open_vectors(save(tmp_path, np.zeros(shape)))
    with pytest.raises(DataError, match=r"rows of no numbers at all \(its shape is \(4, 0\)\)"):
        open_vectors(save(tmp_path, np.zeros((4, 0))))
