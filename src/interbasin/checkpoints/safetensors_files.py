"""safetensors files: the header read and checked by hand, then a tensor at a time.

The library maps the file into memory. A file that is cut off while it is mapped ends the program without a word, so
here tensors are read as bytes, and the library is what the tests compare with.
"""

from __future__ import annotations

import contextlib
import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

import numpy as np

from interbasin.checkpoints.checkpoint import (
    KINDS,
    Entry,
    StoredFile,
    cut_short_error,
    damage_error,
    head_of,
    kind_of,
    stamp_of,
)
from interbasin.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from interbasin.checkpoints.checkpoint import Bytes, Read

# The key under which our own files tell, in JSON, what wrote them, which names are tied, and what was copied along.
MARK = "interbasin"
LONGEST_HEADER = 100_000_000  # bytes; the library has the same limit
# What a header may hold, counted before it is parsed: the largest networks have some ten thousand tensors in a file,
# and a header of 100 MB that is made to be slow would take minutes and gigabytes.
MOST_TENSORS = 2**18
MOST_AXES = 64  # of a tensor, as in NumPy
LARGEST = 2**60  # of sizes, and of numbers in a tensor


@dataclass(frozen=True, eq=False, repr=False)
class SafetensorsFile(StoredFile):
    """A file whose header has been checked against its size; ``starts`` says where each tensor begins."""

    starts: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        import torch

        entry = self.entries[name]
        raw = torch.empty(entry.nbytes, dtype=torch.uint8)
        self._fill(raw.numpy(), name)
        return raw.view(entry.dtype).reshape(entry.shape)

    def bytes_of(self, name: str) -> Bytes:
        raw = np.empty(self.entries[name].nbytes, dtype=np.uint8)
        self._fill(raw, name)
        return raw

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        begin = self.starts[name]
        with self._open() as file:
            yield lambda start, buffer: self._read(file, begin + start, buffer, name)

    def _fill(self, view: Bytes, name: str) -> None:
        with self._open() as file:
            self._read(file, self.starts[name], view, name)

    def _open(self) -> BinaryIO:
        self.require_unchanged()
        try:
            return self.path.open("rb", buffering=0)
        except OSError as error:
            raise damage_error(self.path, error.strerror or error) from error

    def _read(self, file: BinaryIO, start: int, view: Bytes, name: str) -> Bytes:
        """Fill ``view`` with what is in the file from byte ``start`` on."""
        filled = 0
        try:
            file.seek(start)
            while filled < len(view):
                count = file.readinto(view[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise cut_short_error(self.path, f"it ends inside {name}")
                filled += count
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise damage_error(self.path, error.strerror or error) from error
        return view


def open_safetensors(path: Path) -> SafetensorsFile:
    """The file with names, dtypes and shapes known, and its size compared with what they promise."""
    stamp = stamp_of(path)
    header, begin, size = _header(path)
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise _wrong(path, "its metadata is not text to text")
    entries: dict[str, Entry] = {}
    spans: dict[str, tuple[int, int]] = {}
    for name, described in header.items():
        entries[name], spans[name] = _entry(path, name, described)
    _check_spans(path, entries, spans, size - begin)
    mark = _parse(notes.get(MARK))
    ties = mark.get("ties", {})
    if not isinstance(ties, dict) or not all(isinstance(stored, str) for stored in ties.values()):
        raise _wrong(path, "its list of tied names is not one")
    metadata = {key: value for key, value in notes.items() if key != MARK}
    starts = {name: begin + start for name, (start, _) in spans.items()}
    return SafetensorsFile(path, entries, ties, stamp, metadata, starts=starts)


def mark_of(path: Path) -> dict[str, Any]:
    """What this package noted in the header of a file it wrote; nothing, if it did not write it."""
    try:
        notes = _header(path)[0].get("__metadata__")
    except CheckpointError:
        return {}
    return _parse(notes.get(MARK)) if isinstance(notes, dict) else {}


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The JSON at the beginning, where the numbers begin, and how long the file is."""
    head = head_of(path)
    length = int.from_bytes(head[:8], "little")
    if head[8:9] not in (b"{", b""):
        raise CheckpointError(
            f"{path} is named as a safetensors file, but it is {kind_of(head)}; rename it, or copy it again."
        )
    try:
        size = path.stat().st_size
        if size < 8 + length or len(head) < 9:
            raise cut_short_error(path, f"its header should be {length:,} bytes long and the whole file has {size:,}")
        if length > LONGEST_HEADER:
            raise _wrong(path, f"it would be {length:,} bytes long")
        with path.open("rb") as file:
            file.seek(8)
            text = file.read(length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(path, "it is not text") from error
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise damage_error(path, error.strerror or error) from error
    # Three brackets and six commas belong to a tensor of two axes; notes have a few of their own.
    if text.count("[") + text.count("{") > 4 * MOST_TENSORS or text.count(",") > 16 * MOST_TENSORS:
        raise _wrong(path, f"it describes more than the {MOST_TENSORS:,} tensors that are read here")
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(path, pairs), parse_int=_parse_size)
        if "\\u" in text:  # half a character can be written in JSON, but not shown
            json.dumps(header, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _wrong(path, f"it is a JSON {type(header).__name__}, expected an object")
    return header, 8 + length, size


def _without_repeats(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _wrong(path, f"it names {twice!r} twice")
    return fields


def _parse_size(digits: str) -> int:
    """A whole number of a header; one of thousands of digits is no size, and takes long to calculate with."""
    return int(digits) if len(digits) < 20 else LARGEST


def _entry(path: Path, name: str, described: Any) -> tuple[Entry, tuple[int, int]]:
    fields = described if isinstance(described, dict) else {}
    code, shape, span = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not _are_sizes(shape) or not _are_places(span) or not isinstance(code, str):
        raise _wrong(path, f"the entry of {name} is {reprlib.repr(described)}")
    if code not in KINDS:
        advice = (
            "quantised weights cannot be carried" if code.startswith(("F4", "F6")) else "this program may be too old"
        )
        raise CheckpointError(
            f"{name} in {path} is of dtype {code!r}, which is not read here ({advice}); convert it first."
        )
    kind, itemsize = KINDS[code]
    return Entry(kind, tuple(shape), itemsize), (span[0], span[1])


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    """Whether these are the sizes of a tensor that a machine could hold."""
    return (
        isinstance(values, list)
        and len(values) <= MOST_AXES
        and all(type(value) is int and 0 <= value < LARGEST for value in values)
        and math.prod(max(value, 1) for value in values) < LARGEST
    )


def _are_places(values: Any) -> TypeGuard[list[int]]:
    """Whether these are the first byte of a tensor and the one behind its last."""
    return (
        isinstance(values, list)
        and len(values) == 2
        and all(type(value) is int and 0 <= value < LARGEST for value in values)
    )


def _check_spans(path: Path, entries: Mapping[str, Entry], spans: Mapping[str, tuple[int, int]], size: int) -> None:
    """Every tensor as long as its shape says, one behind the other, from the first byte to the last."""
    reached = 0
    for name in sorted(spans, key=lambda name: spans[name]):
        start, end = spans[name]
        if end - start != entries[name].nbytes:
            raise _wrong(path, f"{name} should take {entries[name].nbytes:,} bytes and is given {end - start:,}")
        if start != reached:
            raise _wrong(path, f"{name} begins at byte {start:,} of the numbers, expected {reached:,}")
        reached = end
    if size < reached:
        missing = [name for name in spans if spans[name][1] > size]
        raise cut_short_error(
            path,
            f"its header promises {reached:,} bytes of numbers and there are {size:,} ({missing[0]} is not whole)",
        )
    if size > reached:
        raise _wrong(path, f"it promises {reached:,} bytes of numbers and there are {size:,}")


def _wrong(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"The header of {path} is damaged: {reason}; copy or download the file again.")


def _parse(text: Any) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
