"""What weights are, wherever they come from: `LazyTensors`, and `Checkpoint`, which are those on disk.

A checkpoint is opened, checked and merged without torch, which takes longer to import than the rest of it.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from interbasin.errors import CheckpointError, DataError, ShapeError, UnknownNameError, WiringError
from interbasin.text import list_names, one_line, plural

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from interbasin.checkpoints.lora import Adapter

    Array: TypeAlias = np.ndarray[Any, Any]
    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
    Read: TypeAlias = Callable[[int, Bytes], Bytes]

# Code in a safetensors header -> torch's name of the dtype, and bytes per number.
KINDS: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
CODES = {kind: code for code, (kind, _) in KINDS.items()}
# Kinds that are added and scaled. The others hold counts, flags, or codes of quantised weights.
ARITHMETIC = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")

# First bytes -> what such a file is. LFS pointers are the most common reason for a "broken" file in a repository.
SIGNATURES = {
    b"version https://git-lfs": "a Git LFS pointer (fetch the real file with git lfs pull)",
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"PK\x05\x06": "an empty zip archive",
    b"\x80\x02": "a Python pickle, as torch.save wrote before torch 1.6",
    b"\x80": "a Python pickle",
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"\x89HDF": "an HDF5 file, as Keras and TensorFlow write",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"<!DOCTYPE": "an HTML page (perhaps an error page saved in place of a download)",
    b"<html": "an HTML page (perhaps an error page saved in place of a download)",
}


@dataclass(frozen=True)
class Entry:
    """What is known of a tensor before it is read.

    Attributes:
        kind: Its dtype by the name that torch has for it: ``"bfloat16"``.
        shape: Its sizes.
        itemsize: Bytes per number.
    """

    kind: str
    shape: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, dtype: torch.dtype, shape: Iterable[int]) -> Entry:
        return cls(str(dtype).removeprefix("torch."), tuple(shape), dtype.itemsize)

    @property
    def dtype(self) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, self.kind)
        return dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


class LazyTensors(Mapping[str, "Tensor"], ABC):
    """Tensors by name that are read or computed when they are asked for; dtypes and shapes are known before.

    What works on weights takes and returns these, so that no network need be in memory as a whole. Indexing gives a
    tensor in memory of its own; iterating and ``in`` read nothing.

    Attributes:
        entries: Dtype and shape of every tensor, tied ones once.
        ties: Name -> name in ``entries`` that it stands for, for tied weights.
    """

    entries: Mapping[str, Entry]
    ties: Mapping[str, str]

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor: ...

    def bytes_of(self, name: str) -> Bytes:
        """The tensor of that name as the bytes it is stored in; not to be written to.

        Raises:
            UnknownNameError: If there is none; lists the nearest.
        """
        from interbasin.checkpoints.in_memory import bytes_in  # with torch, which those on disk do without

        return bytes_in(self[name])

    def chunks(self, name: str) -> Iterator[Array]:
        """The same in pieces; a piece is good until the next is asked for."""
        yield self.bytes_of(name)

    def reading(self, name: str) -> AbstractContextManager[Read]:
        """A function that reads chunks of the tensor of that name while the block lasts.

        It takes the first byte of the chunk and memory that it fills, and gives the same memory back.

        Raises:
            UnknownNameError: If there is none; lists the nearest.

        Example:
            >>> import tempfile, numpy, torch
            >>> from interbasin.checkpoints import open_checkpoint, write_checkpoint
            >>> path = tempfile.mkdtemp() + "/some.safetensors"
            >>> write_checkpoint(path, {"x": torch.arange(8.0)})
            >>> with open_checkpoint(path).reading("x") as read:
            ...     print(read(5 * 4, numpy.empty(2 * 4, numpy.uint8)).view("float32"))
            [5. 6.]
        """
        stored = self.bytes_of(name)

        def read(start: int, buffer: Bytes) -> Bytes:
            buffer[:] = stored[start : start + len(buffer)]
            return buffer

        return nullcontext(read)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, tied ones included."""
        return tuple(self)

    @property
    def numel(self) -> int:
        """How many numbers there are, tied ones once."""
        return sum(entry.numel for entry in self.entries.values())

    @property
    def nbytes(self) -> int:
        """How many bytes they take, tied ones once."""
        return sum(entry.nbytes for entry in self.entries.values())

    def entry(self, name: str) -> Entry:
        """Dtype and shape of the tensor of that name, without reading it.

        Raises:
            UnknownNameError: If there is none; lists the nearest.
        """
        return self.entries[self.stored_name(name)]

    def dtype(self, name: str) -> torch.dtype:
        return self.entry(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entry(name).shape

    def stored_name(self, name: str) -> str:
        """The name under which the tensor of that name is stored: another one, if it is tied.

        Raises:
            UnknownNameError: If there is none; lists the nearest.
        """
        stored = self.ties.get(name, name) if isinstance(name, str) else None
        if stored is None or stored not in self.entries:
            near = difflib.get_close_matches(str(name), self.names, 5, cutoff=0.0)
            raise UnknownNameError.of(f"tensor in {self.label}", name, near)
        return stored

    @property
    def label(self) -> str:
        """How messages call these tensors."""
        return f"the {type(self).__name__.lower()}"

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors, in memory; tied names share one."""
        tensors = {name: self[name] for name in self.entries}
        return tensors | {name: tensors[stored] for name, stored in self.ties.items()}

    def __iter__(self) -> Iterator[str]:
        return iter((*self.entries, *self.ties))

    def __len__(self) -> int:
        return len(self.entries) + len(self.ties)

    # What Mapping offers for these two reads the tensor, and expects a KeyError.
    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self.ties

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        size = f"{plural(len(self), 'tensor')}, {plural(self.numel, 'number')}"
        return f"{type(self).__name__}({size})"


@dataclass(frozen=True, eq=False, repr=False)
class StoredFile(LazyTensors):
    """One file of a checkpoint, which is not held open; each format says how its tensors are read.

    A tied name may stand for a tensor in another file. ``stamp`` tells the file from a later one of the same name; the
    other attributes are those of `Checkpoint`.
    """

    path: Path
    entries: Mapping[str, Entry]
    ties: Mapping[str, str]
    stamp: tuple[int, int, int] | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    part: str | None = None
    prefix: str = ""
    left_out: tuple[str, ...] = ()

    def require_unchanged(self) -> None:
        """Refuse to read a file that was written to since it was opened."""
        if stamp_of(self.path) != self.stamp:
            raise CheckpointError(f"{self.path} has changed since it was opened; open it again when it is complete.")


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint(LazyTensors):
    """A network's weights on disk, of which nothing is read but the names, dtypes and shapes.

    Made by `open_checkpoint`. Indexing reads that one tensor, on the CPU, in the dtype it is stored in.

    Attributes:
        path: What was opened: a file or a folder.
        kind: ``"safetensors"``, ``"torch"``, ``"sharded"`` (an index and several files) or ``"adapter"`` (of PEFT).
        sources: The file of every tensor, tied names left out.
        entries: Dtype and shape of every tensor, likewise.
        ties: Name -> name of the tensor that it stands for, for tied weights, which are stored once.
        metadata: Notes in the safetensors headers, text to text.
        folder: The folder, if one was opened; its configuration and tokenizer can be copied along.
        adapter: What ``adapter_config.json`` says, if this is an adapter.
        part: For a torch file that holds more than weights: under which name they were, for example ``"state_dict"``.
        prefix: For a torch file: what all names began with and was taken off, for example ``"module."``.
        left_out: For a torch file: names beside the weights that hold no tensor.
    """

    path: Path
    kind: str
    sources: Mapping[str, StoredFile]
    entries: Mapping[str, Entry]
    ties: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    adapter: Adapter | None = None
    part: str | None = None
    prefix: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with the weights, in the order of their names."""
        return tuple(sorted({source.path for source in self.sources.values()}))

    @property
    def label(self) -> str:
        return str(self.path)

    def bytes_of(self, name: str) -> Bytes:
        stored = self.stored_name(name)
        return self.sources[stored].bytes_of(stored)

    def reading(self, name: str) -> AbstractContextManager[Read]:
        stored = self.stored_name(name)
        return self.sources[stored].reading(stored)

    def __getitem__(self, name: str) -> Tensor:
        stored = self.stored_name(name)
        return self.sources[stored][stored]

    def __repr__(self) -> str:
        size = f"{plural(len(self), 'tensor')}, {plural(self.numel, 'number')}"
        return f"Checkpoint({str(self.path)!r}, {self.kind}, {size})"


# ---------------------------------------------------------------------- what every format asks of a file


def kind_of(head: bytes) -> str:
    """What a file that begins with ``head`` seems to be, to end the words "it is" or "looks like"."""
    known = next((kind for start, kind in SIGNATURES.items() if head.startswith(start)), None)
    return known or f"something that begins with {head[:12]!r}"


def cut_short_error(path: Path, what: str) -> CheckpointError:
    """The error for a file that ends too early; ``what`` says what shows it."""
    return CheckpointError(f"{path} is cut short: {what}; copy or download it again.")


def damage_error(path: Path, cause: object) -> CheckpointError:
    """The error for a file that could be found but not read."""
    return CheckpointError(f"{path} could not be read ({one_line(cause)}); copy or download it again.")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise damage_error(path, error.strerror or error) from error
    except (ValueError, RecursionError) as error:
        raise damage_error(path, f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise damage_error(path, f"it holds a JSON {type(document).__name__}, expected an object")
    return document


def head_of(path: Path) -> bytes:
    """The first bytes of a file, enough to know it by."""
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        raise damage_error(path, error.strerror or error) from error
    if not head:
        raise CheckpointError(f"{path} is empty (0 bytes); write it again, or copy or download it again.")
    return head


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from a later one of the same name; None if there is none any more."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


# ---------------------------------------------------------------------- do networks fit together?


def require_same_tensors(networks: Sequence[tuple[str, LazyTensors]], purpose: str) -> None:
    """Refuse networks that are not made of the same tensors, in the same shapes, of numbers that can be added.

    A second name of a tied tensor that another network leaves out, as transformers does, is no difference. Each network
    comes with what messages call it; ``purpose`` is what is to be done with them: "merged".
    """
    (first, expected), *others = networks
    compared = [
        {*network.entries, *(name for name in network.ties if all(name in other for _, other in networks))}
        for _, network in networks
    ]
    for (other, tensors), names in zip(others, compared[1:], strict=True):
        _require_same_names(first, compared[0], other, names, purpose)
        for name in (name for name in expected if name in tensors):
            entry, another = expected.entry(name), tensors.entry(name)
            if another.shape != entry.shape:
                raise ShapeError(
                    f"{name} has shape {_shape(entry)} in {first} and {_shape(another)} in {other}; only networks of "
                    f"equal widths can be {purpose} (updates between unequal ones are the job of transport)."
                )
            if (entry.kind in ARITHMETIC) != (another.kind in ARITHMETIC):
                raise DataError(
                    f"{name} is of {entry.kind} in {first} and of {another.kind} in {other}; convert one of them."
                )
    for network, tensors in networks:
        for name, entry in tensors.entries.items():
            if entry.kind.startswith("float") and entry.kind not in ARITHMETIC:
                raise DataError(
                    f"{name} in {network} is of {entry.kind}, which is for storing quantised weights and not for "
                    "adding them; convert it to bfloat16 or float32 first."
                )


def _require_same_names(first: str, expected: set[str], other: str, names: set[str], purpose: str) -> None:
    missing, surplus = expected - names, names - expected
    if not missing and not surplus:
        return
    if _without_numbers(expected) == _without_numbers(names) and not (
        _layers(missing) & _layers(names) or _layers(surplus) & _layers(expected)
    ):
        deeper, shallower, alone = (first, other, missing) if len(expected) > len(names) else (other, first, surplus)
        raise WiringError(
            f"{deeper} is deeper than {shallower}: it alone holds {list_names(sorted(alone, key=_by_number), 1)}; "
            f"only networks of equal depth can be {purpose}."
        )
    parts = [
        f"{where} holds {list_names(sorted(alone, key=_by_number), 2)}, which {elsewhere} lacks"
        for alone, where, elsewhere in ((missing, first, other), (surplus, other, first))
        if alone
    ]
    raise WiringError(f"Only networks of one architecture can be {purpose}, but {'; '.join(parts)}.")


def _without_numbers(names: Iterable[str]) -> set[str]:
    return {re.sub(r"\d+", "#", name) for name in names}


def _layers(names: Iterable[str]) -> set[str]:
    """What names begin with, up to the first number: the layers that they are in."""
    return {re.match(r"\D*\d*", name)[0] for name in names}  # type: ignore[index]


def _by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts layer 10 behind layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _shape(entry: Entry) -> str:
    return " x ".join(map(str, entry.shape)) or "()"
