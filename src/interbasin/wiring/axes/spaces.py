"""The words of a wiring: spaces, the roles of axes in them, and the reasons why something does not move."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from interbasin.maps.base import Group, Role

__all__ = [
    "BOUNDARY",
    "FLATTENED",
    "PLACES",
    "Axis",
    "Each",
    "Grid",
    "In",
    "Reason",
    "Role",
    "Row",
    "Space",
    "Still",
    "leaves",
    "parts_of",
    "spaces_in",
]


@dataclass(frozen=True)
class Reason:
    """Why a group shrank. ``kind`` is a word to count by, ``text`` a clause to read."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


# Kinds that are the network's own boundary, not a lack of understanding: they do not count against coverage.
BOUNDARY = frozenset({"input", "output", "kernel", "lookup", "position", "unread"})
# Of these, the ones that are not even spaces: nothing is written or read there.
PLACES = frozenset({"constant", "kernel", "lookup", "position", "unread"})
FLATTENED = Reason("flattened", "blocks are read as one flat space, where every map but the identity is approximate")


@dataclass(frozen=True)
class Space:
    """One coordinate system of a network.

    Attributes:
        name: Taken from the module that first writes it.
        size: How many units a map of it mixes.
        within: The spaces from block to block of which its map may differ (each head has its own channels).
        blocks: How many blocks that makes; one where ``within`` is empty.
        group: The largest group of maps, for each block, that leaves the network's function unchanged.
        writes, reads, scales: The axes of tensors that follow the map, its dual, its size: ``"fc1.weight[0]"``.
        because: What made the group as small as it is.
    """

    name: str
    size: int
    within: tuple[str, ...]
    blocks: int
    group: Group
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    scales: tuple[str, ...]
    because: Reason | None = None

    @property
    def width(self) -> int:
        """Width of its maps: all blocks side by side."""
        return self.size * self.blocks

    @property
    def is_fixed(self) -> bool:
        return self.group is Group.FIXED

    @property
    def is_flattened(self) -> bool:
        """Whether it comes from `Wiring.flattened`: it is fixed, and yet meant to be mapped, approximately."""
        return self.because is not None and self.because.kind == FLATTENED.kind

    def describe(self) -> str:
        """Its group in words: ``"permutation of 64"``, ``"4 x invertible of 16"``, ``"flat of 64, approximate"``."""
        if self.is_flattened:
            return f"flat of {self.size}, approximate"
        of = f"{self.group} of {self.size}" if not self.is_fixed else "fixed"
        return f"{self.blocks} x {of}" if self.blocks > 1 and not self.is_fixed else of


# ---------------------------------------------------------------------- what an axis of a tensor is made of


@dataclass(frozen=True)
class Still:
    """Does not move."""

    size: int
    why: Reason


@dataclass(frozen=True)
class In:
    """Lies in a space."""

    space: str
    role: Role
    size: int


@dataclass(frozen=True)
class Row:
    """One stretch after the other. ``key`` names the row for an `Each` on another axis."""

    parts: tuple[Axis, ...]
    key: int | None = None

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Grid:
    """Mixed radix, outermost first: heads by channels, channels by positions."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)


@dataclass(frozen=True)
class Each:
    """Something else beside each stretch of the row ``key``, which stands on another axis of the same tensor."""

    key: int
    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return self.parts[0].size


Axis = Still | In | Row | Grid | Each


def parts_of(axis: Axis) -> Iterator[Axis]:
    """An axis and all that it is made of, at every depth."""
    yield axis
    if isinstance(axis, Row | Grid | Each):
        for part in axis.parts:
            yield from parts_of(part)


def spaces_in(axes: Iterable[Axis]) -> list[str]:
    """The spaces that axes lie in, each once, in order."""
    return list(dict.fromkeys(part.space for axis in axes for part in parts_of(axis) if isinstance(part, In)))


def leaves(axis: Axis, share: float = 1.0) -> Iterator[tuple[Still | In, float]]:
    """The leaves of an axis, each with the share of the axis' entries that it describes."""
    if isinstance(axis, Row):
        for part in axis.parts:
            yield from leaves(part, share * part.size / max(axis.size, 1))
    elif isinstance(axis, Each):
        for part in axis.parts:
            yield from leaves(part, share / len(axis.parts))
    elif isinstance(axis, Grid):
        for part in axis.parts:
            yield from leaves(part, share)
    else:
        yield axis, share
