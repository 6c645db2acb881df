"""The words of a wiring: spaces, the reasons why something does not move, and what the axes of tensors are made of::

    Still    does not move: positions, inputs, outputs, kernels; carries the reason
    Same     the same numbers all along, only while tracing: broadcast, so nothing is asked of what meets it
    In       lies in a space, and moves by its map (write), by the dual (read) or by its size (scale)
    Row      one segment after the other: a concatenation
    Grid     mixed radix, outermost first, as a view lays it out: a product
    Each     another axis beside each segment of a Row that stands on another axis of the same tensor

While a network is traced its spaces are unknown: atoms. An axis of atoms is a `Term`; an axis of named spaces, as a
wiring has it, is an `Axis`. Nothing here learns anything: what is known of atoms is learned in `axes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from interbasin.maps.base import Group, Role

__all__ = [
    "BOUNDARY",
    "FLATTENED",
    "PLACES",
    "Atom",
    "Axis",
    "Each",
    "Grid",
    "In",
    "Reason",
    "Role",
    "Row",
    "Same",
    "Space",
    "Still",
    "Term",
    "leaves",
    "narrow",
    "parts_of",
    "rebuild",
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


class Atom:
    """A space that is still unknown. What is known of it lives in its root, the end of its chain of links."""

    __slots__ = ("because", "dependents", "group", "limits", "link", "parts", "size", "twin")

    def __init__(self, size: int, group: Group = Group.INVERTIBLE, because: Reason | None = None) -> None:
        self.size = size
        self.group = group
        self.because = because
        self.link: tuple[Atom, Role] | None = None
        self.parts: Term | None = None
        # Of an atom that was cut: the one whose segments are known to be the same, for each `Each` that follows either.
        self.twin: Atom | None = None
        # It may depend on an atom that lies in every one of these sets. None given: on nothing.
        self.limits: list[frozenset[Atom]] = []
        self.dependents: set[Atom] = set()


# ---------------------------------------------------------------------- what an axis of a tensor is made of


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


# What names a space (a str, or an atom), what names a row (a number, or the atom that was cut), and a part of an axis.
Name = TypeVar("Name", covariant=True)
Key = TypeVar("Key", covariant=True)
Part = TypeVar("Part", bound=_Sized, covariant=True)


@dataclass(frozen=True)
class Still:
    """Does not move."""

    size: int
    why: Reason


@dataclass(frozen=True)
class Same:
    """Is the same all along."""

    size: int


@dataclass(frozen=True)
class In(Generic[Name]):
    """Lies in a space."""

    space: Name
    role: Role
    size: int


@dataclass(frozen=True)
class Row(Generic[Part, Key]):
    """One segment after the other. ``key`` names the row for an `Each` on another axis."""

    parts: tuple[Part, ...]
    key: Key | None = None

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Grid(Generic[Part]):
    """Mixed radix, outermost first: heads by channels, channels by positions."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)


@dataclass(frozen=True)
class Each(Generic[Part, Key]):
    """Something else beside each segment of the row ``key``, which stands on another axis of the same tensor.

    While tracing it also holds the ``segments`` of that row, which may be cut again.
    """

    key: Key
    parts: tuple[Part, ...]
    segments: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        return self.parts[0].size


Axis: TypeAlias = "Still | In[str] | Row[Axis, int] | Grid[Axis] | Each[Axis, int]"
Term: TypeAlias = "Still | Same | In[Atom] | Row[Term, Atom] | Grid[Term] | Each[Term, Atom]"
AnyAxis = TypeVar("AnyAxis", Axis, Term)


def parts_of(axis: AnyAxis) -> Iterator[AnyAxis]:
    """An axis and all that it is made of, at every depth."""
    yield axis
    if isinstance(axis, Row | Grid | Each):
        for part in axis.parts:
            yield from parts_of(part)


def rebuild(axis: AnyAxis, change: Callable[[AnyAxis], AnyAxis]) -> AnyAxis:
    """The axis with each of its parts changed."""
    if isinstance(axis, Row):
        return Row(tuple(map(change, axis.parts)), axis.key)
    if isinstance(axis, Grid):
        return Grid(tuple(map(change, axis.parts)))
    if isinstance(axis, Each):
        return Each(axis.key, tuple(map(change, axis.parts)), axis.segments)
    return axis


def narrow(axis: AnyAxis, key: object, position: int) -> AnyAxis:
    """The axis beside one segment of the row ``key``."""
    if key is None:
        return axis
    if isinstance(axis, Each) and axis.key == key:
        return axis.parts[position]
    return rebuild(axis, lambda part: narrow(part, key, position))


def spaces_in(axes: Iterable[Axis]) -> list[str]:
    """The spaces that axes lie in, each once, in order."""
    return list(dict.fromkeys(part.space for axis in axes for part in parts_of(axis) if isinstance(part, In)))


def leaves(axis: Axis, share: float = 1.0) -> Iterator[tuple[Still | In[str], float]]:
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
