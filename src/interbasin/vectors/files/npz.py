"""``.npz``: one array of a zip archive, mapped where it lies uncompressed and unpacked in passing where it does not.

`ArraySink` writes both ``.npy`` and ``.npz``.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from interbasin.errors import DataError, FileError, InterbasinError, UnknownNameError
from interbasin.storage.journal import Unfinished
from interbasin.vectors.files.base import (
    Batch,
    Piece,
    Vectors,
    batch_dtype,
    check_begins,
    check_ratio,
    cut_short,
    damaged,
)
from interbasin.vectors.files.npy import LONGEST_HEADER, Header, MappedReader, read_header

PIECE = 1 << 20  # bytes unpacked at a time: more would only add to the copies that zipfile holds of them
PACKED = 16 * 2**20  # bytes packed into an archive at a time
WRITTEN = 2**20  # bytes given to the system at a time: a batch at once took it three times as long
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)  # that zipfile unpacks
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of the name and of the extra field


@contextmanager
def archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The opened archive; whatever zipfile raises while it is open becomes a FileError."""
    try:
        with zipfile.ZipFile(path) as opened:
            yield opened
    except InterbasinError:
        raise
    # RuntimeError is what zipfile raises where a password is needed; UnicodeDecodeError, for damaged names.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


def read_pieces(stream: IO[bytes], count: int, path: Path, member: str) -> Iterator[bytes]:
    """The next ``count`` bytes of a member of an archive, in pieces; a `FileError` if it has fewer."""
    while count > 0:
        piece = stream.read(min(PIECE, count))
        if not piece:
            raise cut_short(path, f"its member {member!r} ends before its last row")
        yield piece
        count -= len(piece)


@dataclass(frozen=True)
class StoredReader(MappedReader):
    """Rows of an uncompressed member, compared with its checksum where they are read from the first to the last.

    Attributes:
        member, bytes, checksum: The file in the archive, its size, and what the archive says of its bytes.
    """

    member: str
    bytes: int
    checksum: int

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        batches = super().batches(rows_per_batch, start)
        if start or self.header.fortran:
            if not start:  # rows in Fortran order do not come in the order of the bytes
                self.check_bytes()
            yield from batches
            return
        checksum, done = self._running_checksum(0, 0, self.header.size), self.header.size
        for batch in batches:
            some = len(batch) * self.header.row_bytes
            checksum, done = self._running_checksum(checksum, done, some), done + some
            if done == self.header.size + self.header.data_bytes:
                self._compare(self._running_checksum(checksum, done, self.bytes - done))
            yield batch

    def check_bytes(self) -> None:
        """Read the whole member, and raise a `FileError` if it is not as it was written."""
        self._compare(self._running_checksum(0, 0, self.bytes))

    def _compare(self, checksum: int) -> None:
        if checksum != self.checksum:
            raise damaged(self.path, f"Bad CRC-32 for file {self.member!r}")  # in the words of zipfile

    def _running_checksum(self, checksum: int, first: int, count: int) -> int:
        """The checksum with ``count`` more bytes of the member; those of a batch have just been read by the system."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.offset - self.header.size + first)
                for piece in read_pieces(file, count, self.path, self.member):
                    checksum = zlib.crc32(piece, checksum)
        except FileError:
            raise
        except OSError as error:
            raise damaged(self.path, error) from error
        return checksum


@dataclass(frozen=True)
class StreamedReader:
    """Rows of a compressed member, which can only be unpacked from its beginning: ``start`` skips by reading."""

    path: Path
    member: str
    header: Header
    dtype: np.dtype[Any]

    def batches(self, rows_per_batch: int, start: int) -> Iterator[Batch]:
        if start == self.header.rows:
            return
        with archive(self.path) as opened, opened.open(self.member) as stream:
            for _ in read_pieces(stream, self.header.size + start * self.header.row_bytes, self.path, self.member):
                pass
            for first in range(start, self.header.rows, rows_per_batch):
                rows = min(rows_per_batch, self.header.rows - first)
                # Bytes first and dtype after: a piece may end in the middle of a number.
                raw, filled = np.empty(rows * self.header.row_bytes, dtype=np.uint8), 0
                for piece in read_pieces(stream, len(raw), self.path, self.member):
                    raw[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                    filled += len(piece)
                if first + rows == self.header.rows:
                    stream.read(1)  # zipfile compares the checksum only when it meets the end
                stored = raw.view(self.header.dtype).reshape(rows, self.header.width)
                yield stored.astype(self.dtype, order="C", copy=False)


def open_npz(path: Path, column: str | None) -> Vectors:
    """The array named ``column``, or the only one, or the one named ``x``; see ``open_vectors``."""
    check_begins(path, (b"PK\x03\x04", b"PK\x05\x06"), ".npz")
    if not zipfile.is_zipfile(path):
        raise cut_short(path, "the directory at the end of the archive is missing")
    with archive(path) as opened:
        # An .npz is any zip with .npy files in it; other files in it are no arrays.
        arrays = [name.removesuffix(".npy") for name in opened.namelist() if name.endswith(".npy")]
        name = choose_array(arrays, column, path)
        member = opened.getinfo(f"{name}.npy")
        where = f"The array {name!r} in {path}"
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileError(
                f"{where} is compressed by a method that NumPy does not write (number {member.compress_type}); "
                "save it with np.savez or np.savez_compressed."
            )
        check_ratio(where, min(member.compress_size, path.stat().st_size), member.file_size)
        with opened.open(member) as stream:
            beginning = io.BytesIO(stream.read(2 * LONGEST_HEADER))
    # Parsed apart from the archive, so that a damaged archive is not taken for a damaged header.
    header = read_header(beginning, member.file_size, path, where)
    dtype = batch_dtype(header.dtype, where)
    reader: StoredReader | StreamedReader
    if member.compress_type == zipfile.ZIP_STORED:
        offset = data_offset(path, member) + header.size
        reader = StoredReader(path, header, offset, dtype, member.filename, member.file_size, member.CRC)
    elif header.fortran:
        raise DataError(
            f"{where} is compressed and in Fortran order, so no row is complete before all of it is unpacked; "
            "save it with np.savez (uncompressed), or in C order with np.ascontiguousarray."
        )
    else:
        reader = StreamedReader(path, member.filename, header, dtype)
    return Vectors(path, "npz", name, header.rows, header.width, dtype, reader, header.dtype)


def choose_array(arrays: list[str], column: str | None, path: Path) -> str:
    """The name of the array to read: the one asked for, the only one, or ``x``."""
    if not arrays:
        raise DataError(f"{path} holds no arrays at all; write it with np.savez(path, x=vectors).")
    if column is not None:
        name = column.removesuffix(".npy")
        if name not in arrays:
            raise UnknownNameError.of(f"array in {path}", column, arrays)
        return name
    if len(arrays) == 1:
        return arrays[0]
    if "x" in arrays:
        return "x"
    raise DataError(
        f"{path} holds {len(arrays)} arrays and none is named 'x', so which one has the vectors is not clear; "
        f"name one with column= (--column): {', '.join(sorted(arrays))}."
    )


def data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the bytes of an uncompressed member begin; only the local header, not the directory, can tell."""
    try:
        with path.open("rb") as file:
            file.seek(member.header_offset)
            signature, name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    except (OSError, struct.error) as error:
        raise damaged(path, error) from error
    if signature != b"PK\x03\x04":
        raise damaged(path, f"its member {member.filename!r} is not where the directory says")
    return member.header_offset + LOCAL_HEADER.size + int(name_length) + int(extra_length)


class ArraySink:
    """An array in a file that grows row by row; see `interbasin.vectors.stores.opening.Sink`.

    Args:
        unfinished: Where it grows.
        rows, width, dtype: Of the array when it is complete.
        member: For ``.npz``: the array's name in the archive.
        compressed: For ``.npz``: whether to compress it.
        beside: For ``.npz``: the archive whose other members go along.
    """

    mark = None
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        unfinished: Unfinished,
        rows: int,
        width: int,
        dtype: np.dtype[Any],
        *,
        member: str | None = None,
        compressed: bool = False,
        beside: Path | None = None,
    ) -> None:
        self._unfinished, self.name, self._all = unfinished, unfinished.name, rows
        self._member, self._compressed = member, compressed
        self._others = [] if beside is None else [(beside, entry) for entry in _entries(beside)]
        self._path = unfinished.folder / "vectors.npy"
        header = io.BytesIO()
        fields = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, width)}
        npy_format.write_array_header_1_0(header, fields)
        self._header, self._row_bytes, self._dtype = header.getvalue(), width * dtype.itemsize, dtype
        grown = len(self._header) + int(unfinished.done.get("rows", 0)) * self._row_bytes
        unfinished.require_kept({self._path.name: grown})
        self.rows = int(unfinished.done.get("rows", 0))
        self.rows_per_batch: int | None = unfinished.done.get("rows_per_batch")
        self._file: IO[bytes] | None = None

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch
        size = len(self._header) + self._all * self._row_bytes
        try:
            copies = 1 if self._member is None else 2
            self._unfinished.require_room(copies * size - self.rows * self._row_bytes)
            self._path.touch()
            self._file = self._path.open("r+b", buffering=0)
            self._file.truncate(size)
            _write(self._file, self._header, 0)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def append(self, piece: Piece) -> None:
        assert self._file is not None
        try:
            vectors = np.ascontiguousarray(piece.vectors, dtype=self._dtype)
            _write(self._file, vectors.reshape(-1).view(np.uint8), len(self._header) + self.rows * self._row_bytes)
            self.rows += len(vectors)
            file = self._file
            done = {"rows": self.rows, "rows_per_batch": self.rows_per_batch}
            grown = len(self._header) + self.rows * self._row_bytes
            self._unfinished.save(done, lambda: os.fsync(file.fileno()), {self._path.name: grown})
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def finish(self) -> None:
        assert self._file is not None
        try:
            os.fsync(self._file.fileno())
            complete = self._path if self._member is None else self._pack_archive(self._member)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error
        self._file.close()
        self._file = None
        self._unfinished.finish(complete.name)

    def _pack_archive(self, member: str) -> Path:
        path = self._unfinished.folder / "vectors.npz"
        kind = zipfile.ZIP_DEFLATED if self._compressed else zipfile.ZIP_STORED
        with path.open("wb") as file:
            with zipfile.ZipFile(file, "w") as packed:
                with self._path.open("rb") as array:
                    _pack(packed, f"{member}.npy", kind, iter(partial(array.read, PACKED), b""))
                for beside, entry in self._others:
                    if entry.filename != f"{member}.npy":
                        _pack(packed, entry.filename, entry.compress_type, _pieces_of(beside, entry))
            file.flush()
            os.fsync(file.fileno())
        return path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._unfinished.close()


def _entries(path: Path) -> list[zipfile.ZipInfo]:
    """The members of an archive, all of which can be unpacked; what cannot be is refused before hours of work."""
    with archive(path) as opened:
        entries = opened.infolist()
    for entry in entries:
        if entry.compress_type not in METHODS:
            raise FileError(
                f"{path} holds {entry.filename}, compressed by method {entry.compress_type}, which cannot be unpacked "
                "here; take it out, or pack it again."
            )
    return entries


def _pieces_of(path: Path, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """What fails in here is the archive that is read; what its pieces are written to has errors of its own."""
    with archive(path) as opened, opened.open(entry) as stream:
        yield from iter(partial(stream.read, PACKED), b"")


def _pack(packed: zipfile.ZipFile, name: str, kind: int, pieces: Iterator[bytes]) -> None:
    # A fixed date, so that the same vectors make the same bytes.
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.external_attr = kind, 0o644 << 16
    with packed.open(entry, "w", force_zip64=True) as into:
        for piece in pieces:
            into.write(piece)


def _write(file: IO[bytes], content: Any, offset: int) -> None:
    """All of it; the system may take less at a time than it is given."""
    remaining = memoryview(content)
    file.seek(offset)
    while remaining:
        remaining = remaining[file.write(remaining[:WRITTEN]) :]
