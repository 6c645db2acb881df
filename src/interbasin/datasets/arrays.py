"""``.npy``, ``.npz`` and idx: samples along the first axis of an array, of any shape, read where they lie.

The idx files of MNIST and its kin, gzipped or not, have a header that gives type and shape, and then the numbers.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.datasets.base import Labels, class_numbers, require_finite_samples
from interbasin.errors import DataError, FileError, InterbasinError, ShapeError, UnknownNameError
from interbasin.text import plural
from interbasin.vectors.files.base import check_begins, check_ratio, cut_short, damaged
from interbasin.vectors.files.npy import MappedReader, open_npy
from interbasin.vectors.files.npz import PIECE, archive, open_npz


@dataclass(frozen=True, eq=False)
class ArraySamples:
    """Samples in an array, which may be a file on the disk."""

    name: str
    array: NDArray[Any]
    labels: Labels | None = None
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.array)

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        return read_rows(self.array, rows)


@dataclass(frozen=True, eq=False)
class ArrayLabels:
    """Labels in an array, which may be a file on the disk: several numbers, or a field, per sample."""

    array: NDArray[Any]

    def __getitem__(self, rows: Tensor) -> Tensor:
        return number_labels(read_rows(self.array, rows.tolist()))


def read_rows(array: NDArray[Any], rows: Sequence[int]) -> NDArray[Any]:
    """A copy of some rows of an array."""
    first, last = rows[0], rows[-1]
    # Consecutive rows are read in one go; picking rows from a mapped file is slower by far.
    consecutive = len(rows) == last - first + 1 and list(rows) == list(range(first, last + 1))
    return np.array(array[first : last + 1] if consecutive else array[np.asarray(rows)])


def number_labels(values: NDArray[Any]) -> Tensor:
    """Labels that are numbers, as a tensor: float32, or int64 where they are whole."""
    with np.errstate(over="ignore"):  # what becomes infinite is refused by its sample
        return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))


def arrays_of(name: str, x: NDArray[Any], y: NDArray[Any] | None, known: Sequence[str] = ()) -> ArraySamples:
    """Samples and their labels; ``known`` are names of classes that other parts of the data have.

    Raises:
        ShapeError: if they are not equally many.
        DataError: if labels are no numbers.
    """
    if y is None:
        return ArraySamples(name, x)
    if y.ndim == 0 or len(y) != len(x):
        count = plural(len(y), "label") if y.ndim else "a single number for labels"
        raise ShapeError(f"{name} has {plural(len(x), 'sample')} and {count}; give one label per sample.")
    classes: tuple[str, ...] = ()
    # Several labels per sample keep their shape: only the loss knows what they mean.
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        y = y.ravel()
    labels: Labels
    if y.dtype.kind == "U" and y.ndim == 1:
        numbers, classes = class_numbers([*y.tolist(), *known], name)
        labels = numbers[: len(y)]
    elif y.dtype.kind not in "iubf":
        raise DataError(f"The labels of {name} have dtype {y.dtype}, which is neither number nor text; convert them.")
    elif y.dtype == np.uint64 and y.size and int(y.max()) >= 2**63:
        raise DataError(f"The labels of {name} go up to {int(y.max())}, beyond 63 bits; number the classes from 0 on.")
    elif y.ndim > 1:
        labels = ArrayLabels(y)  # read with their samples, for they may be fields as large as these
    else:
        labels = number_labels(y)
        require_finite_samples(labels, name, None, "the labels of ", y)
    return ArraySamples(name, x, labels, classes)


def open_npy_samples(path: Path) -> ArraySamples:
    """The array of an ``.npy`` file; its first axis counts the samples."""
    return ArraySamples(str(path), map_npy(path))


def map_npy(path: Path) -> NDArray[Any]:
    """The array of an ``.npy`` file with two axes or more, mapped where it lies."""
    reader = open_npy(path).reader
    assert isinstance(reader, MappedReader)
    return _map_array(reader)


def load_npy(path: Path) -> NDArray[Any]:
    """The array of an ``.npy`` file of any shape, in memory.

    Raises:
        FileError, DataError: if it is damaged, or holds pickled objects.
    """
    check_begins(path, (b"\x93NUMPY",), ".npy")
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
        return array
    except Exception as error:  # a damaged file makes numpy raise many things
        raise _not_loaded(path, str(path), error) from error


NPZ_PARTS = {"train": ("", "_train"), "valid": ("_valid", "_val"), "test": ("_test",)}


def npz_parts(path: Path) -> dict[str, tuple[str, str]]:
    """The parts of an ``.npz`` file: split to the names of inputs and labels. Empty if it is all one part.

    Arrays ``x`` and ``y`` (or ``x_train`` and ``y_train``) are for training, ``x_valid`` (or ``x_val``) and ``x_test``
    are the other parts.
    """
    names = _names_in(path)
    parts = {}
    for split, endings in NPZ_PARTS.items():
        for ending in endings:
            if f"x{ending}" in names and split not in parts:
                parts[split] = f"x{ending}", f"y{ending}"
    return parts if len(parts) > 1 or "x_train" in names else {}


def open_npz_samples(path: Path, part: str | None = None) -> ArraySamples:
    """The arrays ``x`` and ``y`` of an ``.npz`` file, or those of a part of it; without ``y`` there are no labels.

    Raises:
        UnknownNameError: if there is no ``x``, nor only one array.
    """
    names, parts = _names_in(path), npz_parts(path)
    if part is not None and part in parts:
        x_name, y_name = parts[part]
    else:
        chosen = "x" if "x" in names else names[0] if len(names) == 1 else None
        if chosen is None:
            raise UnknownNameError.of(f"array in {path} (inputs are 'x' and labels 'y')", "x", names)
        x_name, y_name = chosen, "y"
    x = _map_or_load(path, x_name, strict=True)
    y = _map_or_load(path, y_name) if y_name in names and x_name != y_name else None
    known: list[str] = []
    if y is not None and y.dtype.kind == "U":  # so that a number means the same class in all parts
        others = [_map_or_load(path, other) for _, other in parts.values() if other in names and other != y_name]
        known = [text for labels in others for text in map(str, labels.ravel())]
    return arrays_of(f"{path} ({part})" if part in parts else str(path), x, y, known)


def _names_in(path: Path) -> list[str]:
    if not zipfile.is_zipfile(path):
        open_npz(path, None)  # which says what is wrong with it
    with archive(path) as opened:
        return [name.removesuffix(".npy") for name in opened.namelist() if name.endswith(".npy")]


def _map_or_load(path: Path, name: str, *, strict: bool = False) -> NDArray[Any]:
    """An array, mapped where it lies uncompressed, else in memory; a ``strict`` one must be a matrix of numbers."""
    try:
        reader = open_npz(path, name).reader
    except (DataError, ShapeError):
        array = _load_array(path, name)  # text, or one number per sample
        is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous  # which only streaming cannot read
        if strict and not is_fortran:
            raise
        return array
    return _map_array(reader) if isinstance(reader, MappedReader) else _load_array(path, name)


def _map_array(reader: MappedReader) -> NDArray[Any]:
    header = reader.header
    try:
        return np.memmap(
            reader.path, header.dtype, "r", reader.offset, header.shape, order="F" if header.fortran else "C"
        )
    except (OSError, ValueError) as error:
        raise damaged(reader.path, error) from error


def _load_array(path: Path, name: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            array: NDArray[Any] = arrays[name]
            return array
    except Exception as error:  # a damaged archive makes numpy and zipfile raise many things
        raise _not_loaded(path, f"The array {name!r} in {path}", error) from error


def _not_loaded(path: Path, what: str, error: Exception) -> InterbasinError:
    if isinstance(error, ValueError) and ("pickle" in str(error) or "Object arrays" in str(error)):
        return DataError(
            f"{what} holds pickled Python objects, which are never loaded because loading them can run code; save it "
            "as plain numbers or text."
        )
    return damaged(path, error)


TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file.

    Raises:
        FileError: if it is missing, damaged or cut short.
    """
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        size = path.stat().st_size
        with gzip.open(path) if is_packed else path.open("rb") as stream:
            return _read_idx(stream, path, size, is_packed)
    except FileNotFoundError as error:
        raise FileError(f"An idx file was to be read from {path}: no such file; check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileError):
            raise
        raise damaged(path, error) from error


def _read_idx(stream: Any, path: Path, size: int, is_packed: bool) -> NDArray[Any]:
    """The array in a stream of a file of ``size`` bytes."""
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or not head[3]:
        raise FileError(f"{path} is not an idx file: it begins with {head!r}; give the original file of MNIST.")
    axes, dtype = head[3], np.dtype(TYPES[head[2]])
    sizes = stream.read(4 * axes)
    if len(sizes) < 4 * axes:
        raise cut_short(path, "its header is not complete")
    shape = struct.unpack(f">{axes}I", sizes)
    promised = math.prod(shape) * dtype.itemsize
    if is_packed:
        check_ratio(str(path), size, promised)
    # No more is asked for than there can be: memory for it is taken before it is read.
    numbers = stream.read(promised if is_packed else min(promised, size))
    if len(numbers) < promised:
        raise cut_short(path, f"its header promises {promised} bytes for shape {shape}, but {len(numbers)} follow")
    while stream.read(PIECE):  # the checksum of a packed file is at its end
        pass
    try:
        array = np.frombuffer(numbers, dtype).reshape(shape)
    except ValueError as error:  # more axes than NumPy has
        raise damaged(path, error) from error
    return array.astype(dtype.newbyteorder("="))


def idx_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The splits that a folder of idx files has: name to the file of images and that of labels."""
    pairs = {}
    for split, prefixes in SPLITS.items():
        for prefix in prefixes:
            images = sorted(folder.glob(f"{prefix}-images*idx3*"))
            labels = sorted(folder.glob(f"{prefix}-labels*idx1*"))
            if images and labels:
                pairs[split] = images[0], labels[0]
    return pairs
