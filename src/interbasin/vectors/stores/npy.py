"""Rows of ``.npy`` and ``.npz`` files, an array in a file that grows, and what every written file must ask first."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from interbasin.errors import FileError
from interbasin.storage import refuse_file_in_the_way
from interbasin.storage.journal import Unfinished
from interbasin.vectors.files.base import Vectors
from interbasin.vectors.files.integrity import file_fingerprint
from interbasin.vectors.files.npz import StoredReader, archive
from interbasin.vectors.stores.rows import Piece


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array in a file."""

    vectors: Vectors
    notes: tuple[str, ...] = ()
    metric: str | None = None

    @property
    def name(self) -> str:
        return str(self.vectors.path)

    @property
    def rows(self) -> int:
        return self.vectors.rows

    @property
    def width(self) -> int:
        return self.vectors.width

    @property
    def dtype(self) -> np.dtype[Any]:
        stored = self.vectors.stored
        return self.vectors.dtype if stored is None or stored.kind == "f" else stored

    def fingerprint(self) -> dict[str, Any]:
        return {**file_fingerprint(self.vectors.path), "column": self.vectors.column}

    def check_bytes(self) -> None:
        """Nothing, if the file is what its checksum says, if it has one; for work that does not read it in one go.

        Raises:
            FileError: if it is not.
        """
        if isinstance(self.vectors.reader, StoredReader):
            self.vectors.reader.check_bytes()

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        for batch in self.vectors.batches(rows_per_batch, start):
            yield Piece(batch)


def refuse_unless_free(path: Path, source: Path | None, *, force: bool, in_place: bool) -> None:
    """Nothing, if an output may be written to ``path``.

    Args:
        path: The destination.
        source: The file that is read, if it is one.
        force: Replace a file of the same name.
        in_place: Replace the source itself.

    Raises:
        FileError: if something is in the way, or the source is and that was not asked for.
    """
    if source is not None and path.exists() and path.samefile(source):
        if not in_place:
            raise FileError(
                f"The output {path} is the source itself, which is never replaced unasked; choose another name, or ask "
                "for it with in_place=True (--in-place)."
            )
        force = True
    # Vectors carry no mark of who wrote them: whoever says force names the very file.
    refuse_file_in_the_way(path, force=force, ours=lambda found: True)


def require_room(folder: Path, needed: int, destination: str) -> None:
    """Nothing, if an output of so many bytes fits.

    Raises:
        FileError: if it does not, before hours of work rather than after.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FileError(
            f"{destination} will take {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free there; make room, or "
            "choose another place."
        )


PIECE = 16 * 2**20  # bytes packed into an archive at a time
WRITTEN = 2**20  # bytes given to the system at a time: a batch at once took it three times as long


class ArraySink:
    """An array in a file that grows row by row; see `interbasin.vectors.stores.rows.Sink`.

    Args:
        unfinished: Where it grows.
        rows: How many rows it will have.
        width: How many numbers each has.
        dtype: Their dtype.
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
        self._unfinished, self._all = unfinished, rows
        self._member, self._compressed, self._beside = member, compressed, beside
        self._path = unfinished.folder / "vectors.npy"
        header = io.BytesIO()
        described = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, width)}
        npy_format.write_array_header_1_0(header, described)
        self._header, self._row_bytes, self._dtype = header.getvalue(), width * dtype.itemsize, dtype
        grown = len(self._header) + int(unfinished.done.get("rows", 0)) * self._row_bytes
        unfinished.require_bytes({self._path.name: grown})
        self.rows = int(unfinished.done.get("rows", 0))
        self.rows_per_batch: int | None = unfinished.done.get("rows_per_batch")
        self._file: IO[bytes] | None = None

    @property
    def name(self) -> str:
        return self._unfinished.name

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch
        size = len(self._header) + self._all * self._row_bytes
        try:
            copies = 1 if self._member is None else 2
            require_room(self._unfinished.folder, copies * size - self.rows * self._row_bytes, self.name)
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
            self._unfinished.save(done, lambda: os.fsync(file.fileno()))
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def finish(self) -> None:
        assert self._file is not None
        try:
            os.fsync(self._file.fileno())
            made = self._path if self._member is None else self._packed(self._member)
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error
        self._file.close()
        self._file = None
        self._unfinished.finish(made.name)

    def _packed(self, member: str) -> Path:
        path = self._unfinished.folder / "vectors.npz"
        kind = zipfile.ZIP_DEFLATED if self._compressed else zipfile.ZIP_STORED
        with path.open("wb") as file:
            with zipfile.ZipFile(file, "w") as packed:
                with self._path.open("rb") as array:
                    _pack(packed, f"{member}.npy", kind, array)
                if self._beside is not None:
                    with archive(self._beside) as source:
                        for one in source.infolist():
                            if one.filename != f"{member}.npy":
                                with source.open(one) as stream:
                                    _pack(packed, one.filename, one.compress_type, stream)
            file.flush()
            os.fsync(file.fileno())
        return path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._unfinished.close()


def _pack(packed: zipfile.ZipFile, name: str, kind: int, stream: IO[bytes]) -> None:
    # A fixed date, so that the same vectors make the same bytes.
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.external_attr = kind, 0o644 << 16
    with packed.open(entry, "w", force_zip64=True) as into:
        shutil.copyfileobj(stream, into, PIECE)


def _write(file: IO[bytes], content: Any, offset: int) -> None:
    """All of it; the system may take less at a time than it is given."""
    left = memoryview(content)
    file.seek(offset)
    while left:
        left = left[file.write(left[:WRITTEN]) :]
