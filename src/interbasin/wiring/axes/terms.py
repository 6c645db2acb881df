"""What an axis of a tensor is made of while a network is being traced, as small terms::

    Plain      does not move: positions, inputs, outputs, kernels; carries the reason
    Same       the same numbers all along: broadcast, so nothing is asked of what meets it
    Leaf       an atom, and how it moves: by the map (write), by its dual (read), by its size (scale)
    Sum        one stretch after the other
    Product    mixed radix, outermost first, as a view lays it out
    Family     a term for each stretch of a Sum that stands on another axis of the same tensor

Nothing here learns anything: the functions read terms, or make others of them. What is known of atoms is learned in
`axes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Reason, Role


class Atom:
    """One unknown. What is known of it so far lives in its root, the end of its chain of links."""

    __slots__ = ("because", "dependents", "group", "limits", "link", "parts", "size", "twin")

    def __init__(self, size: int, group: Group = Group.INVERTIBLE, because: Reason | None = None) -> None:
        self.size = size
        self.group = group
        self.because = because
        self.link: tuple[Atom, Role] | None = None
        self.parts: Term | None = None
        # Of an atom that was cut: the one whose stretches are known to be the same, for families that follow either.
        self.twin: Atom | None = None
        # It may depend on an atom that lies in every one of these sets. None given: on nothing.
        self.limits: list[frozenset[Atom]] = []
        self.dependents: set[Atom] = set()


@dataclass(frozen=True)
class Plain:
    size: int
    why: Reason


@dataclass(frozen=True)
class Same:
    size: int


@dataclass(frozen=True)
class Leaf:
    atom: Atom
    role: Role = Role.WRITE

    @property
    def size(self) -> int:
        return self.atom.size


@dataclass(frozen=True)
class Sum:
    parts: tuple[Term, ...]
    origin: Atom | None = None

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Product:
    parts: tuple[Term, ...]

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)


@dataclass(frozen=True)
class Family:
    origin: Atom
    stretches: tuple[Term, ...]  # of the row, one a member
    members: tuple[Term, ...]

    @property
    def size(self) -> int:
        return self.members[0].size


Term = Plain | Same | Leaf | Sum | Product | Family


STRETCH = Reason("structure", "one stretch of a fused tensor")


def unit(piece: Atom) -> Term:
    """A stretch of one entry, which has no map to speak of but a factor; it is left alone."""
    return Plain(1, piece.because or STRETCH)


def twin_of(origin: Atom) -> Atom:
    """The row that stands for all that are known to be cut alike."""
    while origin.twin is not None:
        origin = origin.twin
    return origin


def families(term: Term) -> Iterator[Family]:
    """The families in a term, the outer ones first."""
    if isinstance(term, Family):
        yield term
    for part in term.members if isinstance(term, Family) else term.parts if isinstance(term, Sum | Product) else ():
        yield from families(part)


def factors_of(term: Term) -> tuple[Term, ...]:
    """What a term is a product of, itself at least."""
    return term.parts if isinstance(term, Product) else (term,)


def varying(term: Term, why: Reason) -> Term:
    """The term beside something that differs from entry to entry: nothing in it is the same all along any more."""
    if isinstance(term, Same):
        return Plain(term.size, why) if term.size > 1 else term
    return rebuilt(term, lambda part: varying(part, why))


def bounds_of(term: Term) -> list[int]:
    """Where the stretches of a term end."""
    if isinstance(term, Sum):
        return list(accumulate(part.size for part in term.parts))
    return [term.size]


def common_factors(one: Sequence[int], other: Sequence[int]) -> list[int] | None:
    """The coarsest factors that refine both lists, outermost first, or nothing if there are none."""
    marks = {1}
    for sizes in (one, other):
        marks.update(accumulate(reversed(sizes), lambda a, b: a * b))
    ladder = sorted(marks)
    if any(upper % lower for lower, upper in pairwise(ladder)):
        return None
    return [upper // lower for lower, upper in pairwise(ladder)][::-1]


def walk(term: Term) -> Iterator[Term]:
    """The term, its parts, and theirs."""
    yield term
    for part in children(term):
        yield from walk(part)


def children(term: Term) -> tuple[Term, ...]:
    """The parts of a term, or the members of a family."""
    if isinstance(term, Sum | Product):
        return term.parts
    return term.members if isinstance(term, Family) else ()


def rebuilt(term: Term, change: Callable[[Term], Term]) -> Term:
    """The term with each of its parts changed."""
    if isinstance(term, Product):
        return Product(tuple(map(change, term.parts)))
    if isinstance(term, Sum):
        return Sum(tuple(map(change, term.parts)), term.origin)
    if isinstance(term, Family):
        return Family(term.origin, term.stretches, tuple(map(change, term.members)))
    return term


def leaves_of(term: Term) -> Iterator[Leaf]:
    """The leaves of a term as it stands."""
    return (part for part in walk(term) if isinstance(part, Leaf))


@dataclass(frozen=True)
class Beside:
    """What stands beside a part of a tensor's axes: the factors next to it on its own axis, and the other axes."""

    own: tuple[Term, ...]
    others: tuple[Term, ...]

    def narrowed(self, origin: Atom, position: int) -> Beside:
        own = (stretch_of(term, origin, position) for term in self.own)
        return Beside(tuple(own), tuple(stretch_of(term, origin, position) for term in self.others))


def beside_each(terms: Sequence[Term]) -> Iterator[tuple[Leaf | Family, Beside]]:
    """Every leaf and every family on the axes of a tensor, with what stands beside it."""
    for place, term in enumerate(terms):
        yield from _beside_parts(term, Beside((), (*terms[:place], *terms[place + 1 :])))


def _beside_parts(term: Term, beside: Beside) -> Iterator[tuple[Leaf | Family, Beside]]:
    if isinstance(term, Leaf | Family):
        yield term, beside
    if isinstance(term, Product):
        for place, part in enumerate(term.parts):
            own = (*beside.own, *term.parts[:place], *term.parts[place + 1 :])
            yield from _beside_parts(part, Beside(own, beside.others))
    elif isinstance(term, Sum | Family):
        for position, part in enumerate(children(term)):
            narrow = beside if term.origin is None else beside.narrowed(term.origin, position)
            yield from _beside_parts(part, narrow)


def has_row(terms: Sequence[Term], family: Family) -> bool:
    """Whether the row that a family follows stands on these axes, once, and with the stretches it had."""
    rows = [part for term in terms for part in walk(term) if isinstance(part, Sum) and part.origin is family.origin]
    sizes = [stretch.size for stretch in family.stretches]
    alike = all([part.size for part in row.parts] == sizes for row in rows)
    return alike and count_of(terms, family.origin) == (1, 1)


def stretch_of(term: Term, origin: Atom, position: int) -> Term:
    """The term with the rows and the families of ``origin`` narrowed to one stretch."""
    if isinstance(term, Sum | Family) and term.origin is origin and position < len(children(term)):
        return children(term)[position]
    return rebuilt(term, lambda part: stretch_of(part, origin, position))


def count_of(terms: Sequence[Term], atom: Atom) -> tuple[int, int]:
    """How often an atom, or the row that was cut from it, stands on these axes: at least, and at most."""
    least = most = 0
    for term in terms:
        if isinstance(term, Leaf):
            found = (1, 1) if term.atom is atom else (0, 0)
        elif isinstance(term, Sum) and term.origin is atom:
            found = (1, 1)
        elif isinstance(term, Product):
            found = count_of(term.parts, atom)
        elif isinstance(term, Sum | Family):
            each = [count_of([part], atom) for part in children(term)]
            found = (min(low for low, _ in each), max(high for _, high in each))
        else:
            found = (0, 0)
        least, most = least + found[0], most + found[1]
    return least, most


def mentions(term: Term, origin: Atom) -> bool:
    """Whether a family in the term follows the row of ``origin``."""
    return any(isinstance(part, Family) and part.origin is origin for part in walk(term))


def member_of(term: Term, origin: Atom | None, position: int) -> Term:
    """The term with the families of ``origin`` narrowed to one stretch."""
    if origin is None:
        return term
    if isinstance(term, Family) and term.origin is origin:
        return term.members[position]
    return rebuilt(term, lambda part: member_of(part, origin, position))


def rekeyed(term: Term, origin: Atom, fresh: Atom) -> Term:
    """The term with the families of ``origin`` following another row."""
    made = rebuilt(term, lambda part: rekeyed(part, origin, fresh))
    if isinstance(made, Family) and made.origin is origin:
        return Family(fresh, made.stretches, made.members)
    return made
