"""The idx files of MNIST and its kin, gzipped or not: a header that tells type and shape, and then the numbers."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import FileError
from interbasin.vectors.files.faults import cut_short, damaged

__all__ = ["idx_pairs", "read_idx"]

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
        raise FileError(
            f"An idx file was to be read from {path}, but there is no such file; check the path."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES or not content[3]:
        raise FileError(f"{path} is not an idx file: it begins with {content[:4]!r}; give the original file of MNIST.")
    axes, dtype = content[3], np.dtype(TYPES[content[2]])
    if len(content) < 4 + 4 * axes:
        raise cut_short(path, "its header is not complete")
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    expected, found = math.prod(shape) * dtype.itemsize, len(content) - 4 - 4 * axes
    if found < expected:
        raise cut_short(path, f"its header promises {expected} bytes for shape {shape}, but {found} follow")
    array = np.frombuffer(content, dtype, count=math.prod(shape), offset=4 + 4 * axes).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def idx_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The splits that a folder of idx files has: name to the file of images and that of labels."""
    found = {}
    for split, prefixes in SPLITS.items():
        for prefix in prefixes:
            images = sorted(folder.glob(f"{prefix}-images*idx3*"))
            labels = sorted(folder.glob(f"{prefix}-labels*idx1*"))
            if images and labels:
                found[split] = images[0], labels[0]
    return found
