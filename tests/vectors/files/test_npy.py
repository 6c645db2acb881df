"""What can be wrong inside an ``.npy`` file; that good ones are read is the law in ``test_vectors``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interbasin.errors import FileError, InterbasinError
from interbasin.vectors import open_vectors


def saved(path: Path, rows: int = 20) -> Path:
    np.save(path, np.arange(rows * 4, dtype=np.float32).reshape(rows, 4))
    return path


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def test_what_is_known_before_reading(tmp_path: Path) -> None:
    path = saved(tmp_path / "rows.npy")
    vectors = open_vectors(path, column="ignored, for there is only one array")
    assert (vectors.path, vectors.format, vectors.column) == (path, "npy", None)
    assert (vectors.rows, vectors.width, vectors.dtype) == (20, 4, np.float32)


def test_data_shorter_than_the_header_promises_are_refused(tmp_path: Path) -> None:
    path = cut(saved(tmp_path / "rows.npy"), 128 + 100)
    with pytest.raises(FileError, match=r"cut short: .*promises 320 bytes .*\(20, 4\) of float32, but 100 follow"):
        open_vectors(path)


def test_a_header_that_ends_early_is_refused(tmp_path: Path) -> None:
    for size in (6, 9, 60):
        with pytest.raises(FileError, match=r"damaged \.npy header.*copy or download"):
            open_vectors(cut(saved(tmp_path / "rows.npy"), size))


@pytest.mark.parametrize(
    "header",
    [
        *("{", "nonsense", "{'descr': '<f4'}", "[" * 500),
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4)}",
    ],
)
def test_a_header_that_makes_no_sense_is_refused(header: str, tmp_path: Path) -> None:
    text = header.encode("latin1").ljust(1000) + b"\n"
    path = tmp_path / "rows.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    with pytest.raises(FileError, match=r"damaged \.npy header"):
        open_vectors(path)


def test_a_header_that_is_nested_too_deep_is_refused_with_a_reason(tmp_path: Path) -> None:
    text = ("-" * 9000 + "1\n").encode()  # Python's parser gives up with a MemoryError that says nothing
    path = tmp_path / "rows.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    with pytest.raises(FileError, match=r"damaged \.npy header: it is nested too deep"):
        open_vectors(path)


def test_a_header_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"))
        file.truncate(2**31 + 100)
    with pytest.raises(FileError, match=r"damaged \.npy header: it would be 2,147,483,648 bytes long"):
        open_vectors(path)


def test_a_version_from_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    path.write_bytes(b"\x93NUMPY\x09\x00" + bytes(200))
    with pytest.raises(FileError, match=r"rows\.npy could not be read \(.* is of version 9\.0 of \.npy, which is not"):
        open_vectors(path)


@given(place=st.integers(0, 447), value=st.integers(0, 255))
def test_one_wrong_byte_ends_in_our_own_error_or_in_numbers(
    place: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = saved(tmp_path_factory.getbasetemp() / "wrong-byte.npy")
    content = bytearray(path.read_bytes())
    content[place] = value
    path.write_bytes(bytes(content))
    try:
        for batch in open_vectors(path).batches(7):
            assert batch.ndim == 2
    except InterbasinError as error:
        assert "wrong-byte.npy" in str(error)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_shrinks_while_it_is_read_ends_in_our_own_error(order: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.asarray(np.ones((20, 4)), order=order))  # type: ignore[call-overload]
    batches = open_vectors(path).batches(8)
    next(batches)
    cut(path, 128 + 8 * 4 * 8)
    with pytest.raises(FileError, match=r"rows\.npy could not be read"):
        next(batches)


def test_a_file_that_is_gone_when_it_is_read_ends_in_our_own_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "rows.npy")
    batches = open_vectors(path).batches(8)
    path.unlink()
    with pytest.raises(FileError, match=r"rows\.npy has changed since it was opened"):
        next(batches)
