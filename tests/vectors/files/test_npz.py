"""Which array of an ``.npz`` is read, and what can be wrong with the archive."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as npy_format

from interbasin.datasets import open_data
from interbasin.errors import DataError, FileError, InterbasinError
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.vectors import open_vectors
from interbasin.vectors.files import base
from interbasin.vectors.files.npz import data_offset

ONES = np.ones((6, 3), dtype=np.float32)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_the_array_named_is_read_with_or_without_its_extension(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=ONES, y=2 * ONES)
    for name in ("y", "y.npy"):
        vectors = open_vectors(tmp_path / "rows.npz", column=name)
        assert (vectors.format, vectors.column) == ("npz", "y")
        assert (next(vectors.batches(6)) == 2).all()


def test_the_only_array_is_read_whatever_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", embeddings=ONES)
    assert open_vectors(tmp_path / "rows.npz").column == "embeddings"


def test_files_in_the_archive_that_are_no_arrays_do_not_count(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
        archive.writestr("folder/rows.npy", npy(ONES))
    assert open_vectors(tmp_path / "rows.npz").column == "folder/rows"


def test_of_several_arrays_the_one_named_x_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "rows.npz", y=np.zeros(6), x=ONES)
    assert open_vectors(tmp_path / "rows.npz").column == "x"


def test_an_archive_without_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    for name in ("empty.npz", "text.npz"):
        with pytest.raises(DataError, match=rf"{name} holds no arrays at all; write it with np\.savez"):
            open_vectors(tmp_path / name)


def test_a_compressed_array_of_one_column_has_no_order_to_refuse(tmp_path: Path) -> None:
    column = npy(np.arange(5.0)[:, None]).replace(b"'fortran_order': False,", b"'fortran_order': True, ")
    with zipfile.ZipFile(tmp_path / "rows.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", column)
    (batch,) = open_vectors(tmp_path / "rows.npz").batches(5)
    assert batch[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_that_was_cut_is_refused(save, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save(tmp_path / "rows.npz", x=np.random.default_rng(0).standard_normal((50, 4)))
    content = (tmp_path / "rows.npz").read_bytes()
    for size in (4, 100, len(content) // 2, len(content) - 30):
        (tmp_path / "cut.npz").write_bytes(content[:size])
        with pytest.raises(FileError, match=r"cut\.npz is cut short: the directory .*; copy or download it again"):
            open_vectors(tmp_path / "cut.npz")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_shorter_than_its_header_promises_is_refused(compression: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w", compression) as archive:
        archive.writestr("x.npy", npy(ONES)[:-8])
    with pytest.raises(
        FileError, match=r"The array 'x' in .* is cut short: its header promises 72 bytes .*but 64 follow"
    ):
        open_vectors(tmp_path / "rows.npz")


def test_a_directory_that_promises_more_than_there_is_is_found_out_while_reading(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(ONES)[:-8])
        archive.getinfo("x.npy").file_size += 8
    with pytest.raises(FileError, match=r"rows\.npz is cut short: its member 'x\.npy' ends before its last row"):
        list(open_vectors(tmp_path / "rows.npz").batches(4))


def test_a_member_that_is_not_where_the_directory_says_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=ONES)
    member = zipfile.ZipInfo("x.npy")
    for offset, match in ((7, "'x.npy' is not where the directory says"), (10**6, "could not be read")):
        member.header_offset = offset
        with pytest.raises(FileError, match=match):
            data_offset(tmp_path / "rows.npz", member)


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("x.npy", "not an array")
    with pytest.raises(FileError, match=r"rows\.npz could not be read \(.*'x'.*damaged \.npy header"):
        open_vectors(tmp_path / "rows.npz")


def test_a_password_is_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=ONES)
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[6] |= 1  # the flag that says "encrypted", once in the local header and once in the directory
    content[directory + 8] |= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FileError, match=r"rows\.npz could not be read \(.*encrypted"):
        open_vectors(path)


def test_a_wrong_checksum_is_found_out_at_the_last_batch(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).standard_normal((100, 4)))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 16] ^= 1
    path.write_bytes(bytes(content))
    for rows_per_batch in (7, 50, 1000):
        with pytest.raises(FileError, match=r"could not be read \(Bad CRC-32"):
            list(open_vectors(path).batches(rows_per_batch))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(place=st.integers(0, 2000), value=st.integers(0, 255))
def test_one_wrong_byte_ends_in_our_own_error_or_in_numbers(  # type: ignore[no-untyped-def]
    save, place: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "wrong-byte.npz"
    save(path, x=np.arange(80.0).reshape(20, 4))
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(bytes(content))
    try:
        for batch in open_vectors(path).batches(7):
            assert batch.ndim == 2
    except InterbasinError as error:
        assert "wrong-byte.npz" in str(error)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_uncompressed_member_is_compared_with_its_checksum(tmp_path, order):
    x = np.asarray(np.random.default_rng(0).standard_normal((2000, 4)), order=order)
    path = tmp_path / "x.npz"
    np.savez(path, x=x)
    for start in (0, 7, 2000):
        found = list(open_vectors(path).batches(8, start))
        np.testing.assert_array_equal(np.concatenate([np.empty((0, 4)), *found]), x[start:])
    content = bytearray(path.read_bytes())
    content[content.find(x[1000, 2].tobytes()) + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"x.npz could not be read \(Bad CRC-32 for file 'x.npy'\)"):
        list(open_vectors(path).batches(8))
    assert len(next(open_vectors(path).batches(8, 16))) == 8  # what is read by parts cannot be compared


def bomb(path: Path, shape: tuple[int, ...], dtype: str = "<f4") -> Path:
    """A compressed array of zeros, written without ever being in memory; and its labels."""
    header = io.BytesIO()
    npy_format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w") as stream:
            stream.write(header.getvalue())
            for _ in range(int(np.prod(shape)) * np.dtype(dtype).itemsize >> 20):
                stream.write(bytes(2**20))
        archive.writestr("y.npy", npy(np.zeros(shape[0])))
    return path


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "HARMLESS_BYTES", 2**22)  # packing hundreds of megabytes takes seconds


def test_an_archive_of_kilobytes_that_would_fill_the_memory_is_refused(little_memory: None, tmp_path: Path) -> None:
    path = bomb(tmp_path / "rows.npz", (2**12, 2**10))
    for read in (open_vectors, open_data):
        with pytest.raises(FileError, match=r"'x' in .* would take 16,777,\d+ bytes, from 16,\d+ in the file; no data"):
            read(path)


def test_zeros_that_take_little_are_read(little_memory: None, tmp_path: Path) -> None:
    path = bomb(tmp_path / "rows.npz", (2**12, 2**7))
    assert not next(open_vectors(path).batches(10)).any()


@pytest.mark.parametrize("split", ["train", "test"])
def test_text_that_would_fill_the_memory_is_refused(split: str, little_memory: None, tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "rows.npz", x=ONES, y=np.array(["a"] * 6), x_test=ONES, y_test=np.array([["a" * 2**19] * 6]).T
    )
    with pytest.raises(FileError, match=r"'y_test' in .* no data are that much alike"):
        open_data(tmp_path / "rows.npz", split=split)


def test_another_member_that_cannot_be_unpacked_is_refused_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=ONES, y=ONES)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # that of y
    content[entry + 10 : entry + 12] = (97).to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"rows\.npz holds y\.npy, compressed by method 97, which cannot be unpacked"):
        translate_vectors(Translator(), path, tmp_path / "new.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.npz"]


class Translator:
    source_width = target_width = 3
    carries_norms = True

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x
