"""Which columns of a Parquet file are read, and what can be wrong with them."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fresh import Starter

from interbasin.errors import DataError, FileError, InterbasinError, ShapeError
from interbasin.vectors import open_vectors
from interbasin.vectors.files.parquet import ParquetReader
from interbasin.vectors.files.parquet_writer import I32, LIST, STRUCT, decode, encode, first_codecs

LISTS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def saved(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.parquet"


def test_the_only_column_of_lists_is_read_among_others(path: Path) -> None:
    vectors = open_vectors(
        saved(path, {"id": [1, 2, 3], "vector": LISTS, "text": ["a", "b", "c"], "words": [["a"]] * 3})
    )
    assert (vectors.format, vectors.column, vectors.rows, vectors.width) == ("parquet", "vector", 3, 2)
    assert next(vectors.batches(3)).tolist() == LISTS


def test_the_column_named_is_read(path: Path) -> None:
    saved(path, {"a": LISTS, "b": [[2, 2, 2]] * 3, "id": [1, 2, 3], "b.c": LISTS})
    vectors = open_vectors(path, column="b")
    assert (vectors.column, vectors.width, vectors.dtype) == ("b", 3, np.float32)
    assert next(vectors.batches(3)).tolist() == [[2, 2, 2]] * 3
    assert next(open_vectors(path, column="b.c").batches(3)).tolist() == LISTS


def test_a_column_of_numbers_that_is_named_is_a_matrix_of_width_one(path: Path) -> None:
    vectors = open_vectors(saved(path, {"a": LISTS, "id": [1, 2, 3]}), column="id")
    assert (vectors.column, vectors.width) == ("id", 1)
    assert next(vectors.batches(2, start=1)).tolist() == [[2], [3]]


def test_columns_of_numbers_stand_side_by_side_in_the_dtype_that_holds_them_all(path: Path) -> None:
    half = pa.array(np.array([1, 2, 3], dtype=np.float16))
    vectors = open_vectors(saved(path, {"b": [5, 6, 7], "a": [True, False, True], "c": [7, 8, 9]}))
    assert (vectors.column, vectors.width, vectors.dtype) == (None, 3, np.float32)
    assert next(vectors.batches(3)).tolist() == [[5, 1, 7], [6, 0, 8], [7, 1, 9]]
    assert open_vectors(saved(path, {"a": half, "b": [0.1, 0.2, 0.3]})).dtype == np.float64
    assert open_vectors(saved(path, {"a": half, "b": half})).dtype == np.float16


def test_an_index_that_pandas_stored_is_no_part_of_the_vectors(path: Path) -> None:
    metadata = {"pandas": '{"index_columns": ["__index_level_0__", {"kind": "range"}], "columns": []}'}
    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "__index_level_0__": [10, 20]})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    vectors = open_vectors(path)
    assert next(vectors.batches(2)).tolist() == [[1, 3], [2, 4]]
    assert open_vectors(path, column="__index_level_0__").width == 1
    pq.write_table(table.replace_schema_metadata({"pandas": "{"}), path)
    with pytest.raises(DataError, match="__index_level_0__"):
        open_vectors(path)


def test_columns_that_are_not_all_numbers_are_listed_with_their_types(path: Path) -> None:
    saved(path, {"id": [1, 2], "text": ["a", "b"], "deep": [[[1.0]], [[2.0]]]})
    with pytest.raises(DataError, match=r"no column of lists of numbers.*id \(int64\), text \(string\), deep \(list<"):
        open_vectors(path)
    saved(path, {f"c{place}": ["a"] for place in range(30)})
    with pytest.raises(DataError, match=r"c19 \(string\) and 10 more\."):
        open_vectors(path)


@pytest.mark.parametrize("row", [3, 9, 10])
@pytest.mark.parametrize("wrong", [[1.0], [1.0, 2.0, 3.0], []])
def test_a_list_of_another_length_is_named_by_its_row(row: int, wrong: list[float], path: Path) -> None:
    lists = [[1.0, 2.0]] * 11
    lists[row] = wrong
    vectors = open_vectors(saved(path, {"v": lists}, row_group_size=4))
    match = rf"column 'v' of .*rows\.parquet, row {row} \(counted from 0\) has {len(wrong)} numbers .*first row has 2"
    for rows_per_batch in (1, 3, 100):
        with pytest.raises(ShapeError, match=match):
            list(vectors.batches(rows_per_batch, start=2))


@pytest.mark.parametrize("row", [3, 9, 10])
@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)])
@pytest.mark.parametrize("wrong", [None, [1.0, None]])
def test_a_null_is_named_by_its_row(row: int, kind: pa.DataType, wrong: Any, path: Path) -> None:
    lists: list[Any] = [[1.0, 2.0]] * 11
    lists[row] = wrong
    vectors = open_vectors(saved(path, {"v": pa.array(lists, type=kind)}, row_group_size=4))
    for rows_per_batch in (1, 3, 100):
        with pytest.raises(
            DataError, match=rf"column 'v' of .*rows\.parquet, row {row} \(counted from 0\) holds a null"
        ):
            list(vectors.batches(rows_per_batch, start=2))


def test_a_null_among_columns_side_by_side_is_named_by_column_and_row(path: Path) -> None:
    vectors = open_vectors(saved(path, {"a": [1.0] * 5, "b": [1.0, 2.0, 3.0, None, 5.0]}))
    with pytest.raises(DataError, match=r"column 'b' of .*, row 3 \(counted from 0\) holds a null"):
        list(vectors.batches(2))


def test_a_first_row_that_is_null_is_refused_when_the_file_is_opened(path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'v' of .*, row 0 \(counted from 0\) holds a null"):
        open_vectors(saved(path, {"v": [None, [1.0, 2.0]]}))


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    rows_per_batch=st.integers(1, 20),
    data=st.data(),
)
def test_row_groups_of_any_sizes_empty_ones_too_make_no_difference(
    sizes: list[int], rows_per_batch: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "groups.parquet"
    array = np.arange(2 * sum(sizes), dtype=np.float64).reshape(-1, 2)
    schema = pa.schema({"v": pa.list_(pa.float64())})
    with pq.ParquetWriter(path, schema) as writer:
        for part in np.split(array, np.cumsum(sizes)[:-1]):
            writer.write_table(pa.table({"v": part.tolist()}, schema=schema))
    start = data.draw(st.integers(0, len(array)), label="start")
    batches = list(open_vectors(path).batches(rows_per_batch, start))
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 2)), *batches]), array[start:])
    assert all(len(batch) == rows_per_batch for batch in batches[:-1])


def test_row_groups_before_the_start_are_not_touched(path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((100, 8))
    # Lists of fixed size say their width in the schema, so that opening reads no row.
    lists = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), 8)
    saved(path, {"v": lists}, row_group_size=10, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)  # the first row group, but not the signature
    path.write_bytes(bytes(content))
    vectors = open_vectors(path)
    np.testing.assert_array_equal(np.concatenate(list(vectors.batches(7, start=15))), array[15:])
    with pytest.raises(FileError):
        next(vectors.batches(7))


def test_many_small_row_groups_are_read(path: Path) -> None:
    array = np.arange(3000, dtype=np.float32).reshape(1500, 2)
    vectors = open_vectors(saved(path, {"v": array.tolist()}, row_group_size=2))
    np.testing.assert_array_equal(np.concatenate(list(vectors.batches(64, start=701))), array[701:])


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_file_that_was_cut_is_refused(compression: str, path: Path) -> None:
    content = saved(path, {"v": LISTS * 50}, compression=compression).read_bytes()
    for size in (4, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(
            FileError, match=r"rows\.parquet is cut short: the signature at its end .*; copy or download"
        ):
            open_vectors(path)


def test_a_middle_that_is_missing_is_found_out(path: Path) -> None:
    content = saved(path, {"v": np.random.default_rng(0).random((500, 2)).tolist()}).read_bytes()
    path.write_bytes(content[:100] + content[-20:])
    with pytest.raises(FileError, match=r"rows\.parquet could not be read \("):
        open_vectors(path)


def test_damaged_pages_end_in_our_own_error(path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((200, 8)).tolist()
    content = bytearray(saved(path, {"v": array}, row_group_size=50, write_page_checksum=True).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(bytes(content))
    with pytest.raises(FileError, match=r"rows\.parquet could not be read \(.*; check its permissions, or copy"):
        list(open_vectors(path).batches(30))


def test_a_file_with_more_or_fewer_rows_than_it_promises_is_found_out(path: Path) -> None:
    reader = open_vectors(saved(path, {"v": LISTS * 4}, row_group_size=5)).reader
    assert isinstance(reader, ParquetReader)
    with pytest.raises(FileError, match=r"rows\.parquet could not be read \(it holds more than the 7 rows"):
        list(replace(reader, rows=7).batches(3, 0))
    with pytest.raises(FileError, match=r"rows\.parquet is cut short: it promises 20 rows, but the last .* is row 11"):
        list(replace(reader, rows=20).batches(3, 0))


def test_a_file_that_promises_rows_and_has_none_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(path, {"v": LISTS})
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *arguments, **options: iter(()))
    with pytest.raises(FileError, match=r"rows\.parquet is cut short: it promises 3 rows, but none is there"):
        open_vectors(path)


@given(place=st.integers(0, 5000), value=st.integers(0, 255))
def test_one_wrong_byte_ends_in_our_own_error_or_in_numbers(
    place: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = saved(tmp_path_factory.getbasetemp() / "wrong-byte.parquet", {"v": LISTS * 20}, row_group_size=25)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(bytes(content))
    try:
        for batch in open_vectors(path).batches(7):
            assert batch.ndim == 2
    except InterbasinError as error:
        assert "wrong-byte.parquet" in str(error)


def with_codec(path: Path, number: int) -> Path:
    """The same file, which says that its first column is compressed by method ``number``."""
    content = path.read_bytes()
    (length,) = struct.unpack("<I", content[-8:-4])
    footer = decode(content, len(content) - 8 - length)[0]
    footer[4][1][1][0][1][1][1][0][3][1][4] = (I32, number)
    written = encode(footer)
    path.write_bytes(content[: -8 - length] + written + struct.pack("<I", len(written)) + b"PAR1")
    return path


@pytest.mark.parametrize("number", [8, 100, -1])
def test_a_codec_that_the_format_does_not_have_is_refused(number: int, path: Path, starter: Starter) -> None:
    with_codec(saved(path, {"v": LISTS}), number)
    # In a process of its own: pyarrow ends it when it is asked for the name of such a codec.
    program = "import sys; from interbasin.vectors import open_vectors; open_vectors(sys.argv[1])"
    done = starter.run(program, path.parent, path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and f"its column 'v.list.element' is compressed by method {number}, which" in last


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_codecs_have_the_names_that_pyarrow_gives_them(compression: str, path: Path) -> None:
    columns = {"v": LISTS, "a": [{"b.c": 1, "d": [2]}] * 3}
    saved(path, columns, compression={"v.list.element": compression, "a.b.c": "gzip"})
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    reader = open_vectors(path, column="v").reader
    assert isinstance(reader, ParquetReader)
    assert reader.compression == {chunk.path_in_schema: chunk.compression for chunk in chunks}


def test_a_file_without_row_groups_has_no_codecs() -> None:
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": LISTS})[:0], stream)
    content = stream.getvalue().to_pybytes()
    footer = content[-8 - struct.unpack("<I", content[-8:-4])[0] : -8]
    assert first_codecs(encode({**decode(footer)[0], 4: (LIST, (STRUCT, []))})) == {} == first_codecs(b"\0")


@pytest.mark.parametrize(
    ("footer", "words"),
    [
        (b"", "is damaged"),
        (b"\x19", "is damaged"),
        (b"\x19\x1c", "is damaged"),
        (b"\x49\x1c\0", "is damaged: 1"),
        (b"\x18\xff\x01ab", "goes over the end"),  # text of 255 bytes
        (b"\x19\xf3" + b"\xff" * 8 + b"\x01", "goes over the end"),  # a list of 2^56 bytes
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1b\x00", "Thrift type 11"),
        (b"\x1c" * 100_000, "is damaged"),
    ],
)
def test_a_footer_that_cannot_be_decoded_is_refused_at_once(footer: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        first_codecs(footer)


def test_a_footer_longer_than_the_file_is_refused(path: Path) -> None:
    content = saved(path, {"v": LISTS}).read_bytes()
    path.write_bytes(content[:-8] + struct.pack("<I", 2**31) + b"PAR1")
    with pytest.raises(FileError, match=r"its footer would take 2,147,483,648 bytes, and the whole file has"):
        open_vectors(path)
