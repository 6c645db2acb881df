"""The zip archive of a torch file: where its records lie, and whether they are what was written.

torch maps the numbers into memory where they lie and looks at no checksum. Here a record is compared with its own when
the first tensor is read from it.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from interbasin.checkpoints.checkpoint import damage_error
from interbasin.errors import CheckpointError

LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of the name and of the extra field
PIECE = 2**20  # bytes read at a time
PICKLE = "data.pkl"
NUMBERS = "data/"  # what the names of records with numbers begin with


@dataclass(frozen=True)
class Record:
    """A record of an archive: its first byte in the file, its length, and the CRC-32 that the directory gives."""

    name: str
    start: int
    length: int
    checksum: int


@dataclass(frozen=True, eq=False)
class TorchArchive:
    """The records of a torch file that are stored as they are.

    Attributes:
        path: The file.
        records: Name in the archive, without that of the folder in it -> record.
        has_checksums: Whether it was written with checksums, as it is unless torch is asked to leave them out.
    """

    path: Path
    records: Mapping[str, Record]
    has_checksums: bool
    _checked: set[str] = field(default_factory=set, repr=False)

    def check(self, record: Record) -> None:
        """Raise a `CheckpointError` if a record is not what was written; it is read for that once."""
        if not self.has_checksums or record.name in self._checked:
            return
        checksum, remaining = 0, record.length
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(record.start)
                while remaining and (piece := file.read(min(PIECE, remaining))):
                    checksum, remaining = zlib.crc32(piece, checksum), remaining - len(piece)
        except OSError as error:
            raise damage_error(self.path, error.strerror or error) from error
        if checksum != record.checksum or remaining:
            raise damage_error(self.path, f"its record {record.name} has another checksum than when it was written")
        self._checked.add(record.name)

    def check_all(self, *, numbers: bool) -> None:
        """Check all records, or those that torch reads whatever it is asked for: all but the ``numbers``."""
        for name, record in self.records.items():
            if numbers or not name.startswith(NUMBERS):
                self.check(record)

    def find(self, storages: Iterable[tuple[int, int]]) -> dict[int, Record]:
        """The record of every storage, by where it lies in memory.

        Args:
            storages: Address and length of each, in one mapping of the file from its first byte on.

        Raises:
            CheckpointError: if one is no record of the archive as a whole.
        """
        filled = sorted({(address, length) for address, length in storages if length})
        if not filled:
            return {}
        starts = {record.start: record for record in self.records.values() if record.length}
        for first in starts.values():
            # Where the file begins in memory is not told: it is where every storage is a record of its length.
            base = filled[0][0] - first.start
            if base % mmap.PAGESIZE == 0 and all(
                (record := starts.get(address - base)) is not None and record.length == length
                for address, length in filled
            ):
                return {address: starts[address - base] for address, _ in filled}
        raise damage_error(self.path, "its tensors are not as long as the records that their numbers are in")


def open_archive(path: Path) -> TorchArchive:
    """The records of an archive; those that anything but torch compressed are left out.

    Raises:
        CheckpointError: if its directory is damaged.
    """
    records: dict[str, Record] = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for entry in archive.infolist():
                name = entry.filename.partition("/")[2]
                if name in records:
                    raise damage_error(path, f"its record {name} is there twice")
                if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                    if name == PICKLE or name.startswith(NUMBERS):
                        raise damage_error(path, f"its record {name} is compressed, which torch.save does not do")
                    continue
                file.seek(entry.header_offset)
                signature, name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
                if signature != b"PK\x03\x04":
                    raise damage_error(path, f"its record {name} is not where the directory says")
                start = entry.header_offset + LOCAL_HEADER.size + name_length + extra_length
                records[name] = Record(name, start, entry.file_size, entry.CRC)
    except CheckpointError:
        raise
    # What zipfile raises for damaged directories: UnicodeDecodeError is a ValueError.
    except (OSError, EOFError, zipfile.BadZipFile, RuntimeError, ValueError, struct.error) as error:
        raise damage_error(path, error) from error
    return TorchArchive(path, records, any(record.checksum for record in records.values() if record.length))
