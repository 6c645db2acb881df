"""The numbers of a tensor, flat, in the precision they are stored in, and a stretch of them at a time in a wider one.

Merging is bound by memory and not by arithmetic: it goes over stretches that fit in a cache, so no tensor need be in
memory as a whole. NumPy does that as fast as torch, and is there in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["LARGEST", "STORED", "Array", "Numbers", "narrow", "stretches", "widened", "working_precision"]

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Precision: TypeAlias = "type[np.floating[Any]]"

STRETCH = 1 << 16  # numbers

# Kind -> how NumPy holds it: bfloat16, which it lacks, as its bits, and complex numbers as pairs of real ones.
STORED: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.float32,
    "complex128": np.float64,
}
# The largest number that each can hold.
LARGEST = {
    "float16": 65504.0,
    "bfloat16": float(2**127 * (2 - 2**-7)),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
    "complex64": float(np.finfo(np.float32).max),
    "complex128": float(np.finfo(np.float64).max),
}


@dataclass(frozen=True, eq=False)
class Numbers:
    """A tensor's numbers, one after the other, wherever they are.

    Attributes:
        kind: Their dtype by torch's name; a key of `STORED`.
        length: How many there are; complex ones count twice.
        take: A stretch of them as `STORED` says: not to be written to, and good until the next is taken.
    """

    kind: str
    length: int
    take: Callable[[slice], Array]

    @classmethod
    def of_array(cls, stored: Array, kind: str) -> Numbers:
        """Numbers in memory."""
        return cls(kind, len(stored), stored.__getitem__)

    @classmethod
    def of_file(cls, read: Callable[[int, Array], Array], nbytes: int, kind: str) -> Numbers:
        """Numbers in a file, of which a function reads stretches (see `Checkpoint.reading`)."""
        dtype = np.dtype(STORED[kind])
        buffer = np.empty(STRETCH * dtype.itemsize, np.uint8)

        def take(part: slice) -> Array:
            size = (part.stop - part.start) * dtype.itemsize
            return read(part.start * dtype.itemsize, buffer[:size]).view(dtype)

        return cls(kind, nbytes // dtype.itemsize, take)

    def wide(self, part: slice, precision: Precision) -> Array:
        """A stretch of the numbers in that precision; not to be written to either."""
        return widened(self.take(part), self.kind, precision)


def widened(stored: Array, kind: str, precision: Precision) -> Array:
    """Stored numbers in that precision."""
    if kind == "bfloat16":  # the upper half of a float32
        bits = stored.astype(np.uint32)
        bits <<= 16
        stored = bits.view(np.float32)
    return stored.astype(precision, copy=False)


def narrow(values: Array, kind: str) -> Array:
    """Numbers as they are stored: rounded to the nearest, and of two that are as near to the even one.

    Example:
        >>> [hex(bits) for bits in narrow(np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8]), "bfloat16")]
        ['0x3f80', '0x3f80', '0x3f82']
    """
    if kind != "bfloat16":
        return values.astype(STORED[kind], copy=False)
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    return rounded.astype(np.uint16)


def working_precision(*kinds: str) -> Precision:
    """The precision to calculate in: that of the widest, but float32 at least."""
    return np.float64 if any(STORED[kind] is np.float64 for kind in kinds) else np.float32


def stretches(length: int) -> Iterator[slice]:
    """Slices that cover so many numbers, one after the other."""
    for start in range(0, length, STRETCH):
        yield slice(start, min(start + STRETCH, length))
