"""The writer for tensors that come piece by piece: a header first, then the numbers; memory is needed for a piece.

Names, dtypes and shapes have to be known before the first tensor is there, as they are when checkpoints are merged.
Torch is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from interbasin.errors import CheckpointError
from interbasin.networks.checkpoints.checkpoint import Entry
from interbasin.networks.checkpoints.dtypes import CODES
from interbasin.networks.checkpoints.layout import headers, name_files

__all__ = ["in_file_order", "stream_file", "stream_into"]

Pieces: TypeAlias = "Iterable[np.ndarray[Any, Any]]"
Tensors: TypeAlias = "Iterable[tuple[str, Pieces]]"

Written: TypeAlias = "Callable[[Path, int], object]"

TOLD = 8 * 2**20  # bytes after which a listener hears how far a file has come
ALIGNMENT = 8  # bytes; the numbers of every file begin at a multiple


def in_file_order(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The tensors in the order in which they have to come: longer numbers first, so that all lie aligned."""
    return dict(sorted(entries.items(), key=lambda item: -item[1].itemsize))


def stream_into(
    folder: Path,
    entries: Mapping[str, Entry],
    tensors: Tensors,
    *,
    stem: str,
    ties: Mapping[str, str],
    copied: Sequence[str],
    notes: Mapping[str, str],
    max_shard_bytes: int,
    written: Written | None = None,
) -> int:
    """Write tensors into a folder that is being filled, as one file or as shards with an index; how many files.

    Args:
        folder: Where to.
        entries: What is going to come; `in_file_order` puts it in order.
        tensors: Names and, one after the other, the pieces of what is stored, in that order.
        stem: What the names of the files begin with.
        ties: Names that are not stored -> the name that they stand for.
        copied: The other files that the folder will hold, those that are no weights.
        notes: For the headers, text to text.
        max_shard_bytes: A file is closed before it grows beyond this.
        written: Told from time to time, and at the end, which file holds how many bytes by now; it may read them.

    Raises:
        CheckpointError: if something else comes than was announced.
    """
    shards = _planned(in_file_order(entries), max_shard_bytes)
    coming = iter(tensors)
    for number, shard in enumerate(shards):
        # Ties stand in one header; a reader gathers those of all files.
        marked = headers(notes, ties if number == 0 else {}, copied)
        _write(folder / _part(number), shard, coming, marked, written)
    _require_end(coming)
    total = sum(entry.nbytes for entry in entries.values())
    name_files(folder, stem, lambda number: folder / _part(number), [list(shard) for shard in shards], total)
    return len(shards)


def stream_file(
    path: Path,
    entries: Mapping[str, Entry],
    tensors: Tensors,
    *,
    ties: Mapping[str, str],
    notes: Mapping[str, str],
) -> None:
    """The same as one file of that name."""
    coming = iter(tensors)
    _write(path, in_file_order(entries), coming, headers(notes, ties, []))
    _require_end(coming)


def _planned(entries: Mapping[str, Entry], limit: int) -> list[dict[str, Entry]]:
    shards: list[dict[str, Entry]] = [{}]
    size = 0
    for name, entry in entries.items():
        if shards[-1] and size + entry.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = entry
        size += entry.nbytes
    return shards


def _write(
    path: Path,
    entries: Mapping[str, Entry],
    coming: Iterator[tuple[str, Pieces]],
    metadata: Mapping[str, str],
    written: Written | None = None,
) -> None:
    with path.open("xb") as file:
        reached, told = file.write(_header(entries, metadata)), 0
        for name, entry in entries.items():
            found, pieces = next(coming, (None, ()))
            count = 0
            for piece in pieces if found == name else ():
                file.write(piece.reshape(-1).view(np.uint8).data)
                count += piece.nbytes
                if written is not None and reached + count >= told + TOLD:
                    file.flush()
                    told = reached + count
                    written(path, told)
            if found != name or count != entry.nbytes:
                raise CheckpointError(
                    f"{name} was announced with {entry.nbytes:,} bytes, and {count:,} of {found} came; give the "
                    "tensors as they were announced, in the order of in_file_order."
                )
            reached += count
        file.flush()
        if written is not None:
            written(path, reached)


def _header(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    reached = 0
    for name, entry in entries.items():
        described[name] = {
            "dtype": CODES[entry.kind],
            "shape": list(entry.shape),
            "data_offsets": [reached, reached + entry.nbytes],
        }
        reached += entry.nbytes
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _require_end(coming: Iterator[tuple[str, Pieces]]) -> None:
    surplus = next(coming, None)
    if surplus is not None:
        raise CheckpointError(f"{surplus[0]} came, and was not announced; announce every tensor once.")


def _part(number: int) -> str:
    return f"part-{number:05}"
