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

from interbasin.datasets.base import class_numbers
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError
from interbasin.text import plural
from interbasin.vectors.files.base import cut_short, damaged
from interbasin.vectors.files.npy import MappedReader, open_npy
from interbasin.vectors.files.npz import archive, open_npz


@dataclass(frozen=True, eq=False)
class ArraySamples:
    """Samples in an array, which may be a file on the disk."""

    name: str
    array: NDArray[Any]
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.array)

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        first, last = rows[0], rows[-1]
        # Consecutive rows are read in one go; picking rows from a mapped file is slower by far.
        consecutive = len(rows) == last - first + 1 and list(rows) == list(range(first, last + 1))
        return np.array(self.array[first : last + 1] if consecutive else self.array[np.asarray(rows)])


def arrays_of(name: str, x: NDArray[Any], y: NDArray[Any] | None) -> ArraySamples:
    """Samples and their labels.

    Raises:
        ShapeError: if they are not equally many.
        DataError: if labels are no numbers.
    """
    if y is None:
        return ArraySamples(name, x)
    classes: tuple[str, ...] = ()
    # Several labels per sample keep their shape: only the loss knows what they mean.
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        y = y.ravel()
    if y.dtype.kind == "U" and y.ndim == 1:
        labels, classes = class_numbers(y.tolist(), name)
    elif y.dtype.kind not in "iubf":
        raise DataError(f"The labels of {name} have dtype {y.dtype}, which is neither number nor text; convert them.")
    elif not np.isfinite(y).all():
        raise DataError(f"The labels of {name} hold NaN or infinity; take such samples out.")
    else:
        labels = torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64))
    if len(labels) != len(x):
        raise ShapeError(
            f"{name} has {plural(len(x), 'sample')} and {plural(len(labels), 'label')}; give one label per sample."
        )
    return ArraySamples(name, x, labels, classes)


def open_npy_samples(path: Path) -> ArraySamples:
    """The array of an ``.npy`` file; its first axis counts the samples."""
    reader = open_npy(path).reader
    assert isinstance(reader, MappedReader)
    return ArraySamples(str(path), _map_array(reader))


def open_npz_samples(path: Path) -> ArraySamples:
    """The arrays ``x`` and ``y`` of an ``.npz`` file; without ``y`` there are no labels.

    Raises:
        UnknownNameError: if there is no ``x``, nor only one array.
    """
    if not zipfile.is_zipfile(path):
        open_npz(path, None)  # which says what is wrong with it
    with archive(path) as opened:
        names = [name.removesuffix(".npy") for name in opened.namelist() if name.endswith(".npy")]
    chosen = "x" if "x" in names else names[0] if len(names) == 1 else None
    if chosen is None:
        raise UnknownNameError.of(f"array in {path} (inputs are 'x' and labels 'y')", "x", names)
    reader = open_npz(path, chosen).reader
    x = _map_array(reader) if isinstance(reader, MappedReader) else _load_array(path, chosen)
    return arrays_of(str(path), x, _load_array(path, "y") if "y" in names and chosen != "y" else None)


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
        if isinstance(error, ValueError) and ("pickle" in str(error) or "Object arrays" in str(error)):
            raise DataError(
                f"The array {name!r} in {path} holds pickled Python objects, which are never loaded because loading "
                "them can run code; save it as plain numbers or text."
            ) from error
        raise damaged(path, error) from error


TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file.

    Raises:
        FileError: if it is missing, damaged or cut short.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"An idx file was to be read from {path}: no such file; check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES or not content[3]:
        raise FileError(f"{path} is not an idx file: it begins with {content[:4]!r}; give the original file of MNIST.")
    axes, dtype = content[3], np.dtype(TYPES[content[2]])
    if len(content) < 4 + 4 * axes:
        raise cut_short(path, "its header is not complete")
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    promised, follow = math.prod(shape) * dtype.itemsize, len(content) - 4 - 4 * axes
    if follow < promised:
        raise cut_short(path, f"its header promises {promised} bytes for shape {shape}, but {follow} follow")
    array = np.frombuffer(content, dtype, count=math.prod(shape), offset=4 + 4 * axes).reshape(shape)
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
