"""Vectors of ``.npy`` and ``.npz`` files as rows to translate, and what every file that is written must ask first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interbasin.errors import FileError
from interbasin.storage import refuse_file_in_the_way
from interbasin.vectors.files.base import Vectors
from interbasin.vectors.files.fingerprints import file_fingerprint
from interbasin.vectors.files.npz import StoredReader
from interbasin.vectors.stores.rows import Piece

__all__ = ["ArrayRows", "refuse_unless_free", "require_room"]


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array in a file."""

    vectors: Vectors
    remarks: tuple[str, ...] = ()
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
