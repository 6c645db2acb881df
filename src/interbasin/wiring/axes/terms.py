"""Functions that read the terms of a tensor's axes, or make others of them, and learn nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from interbasin.wiring.axes.spaces import Atom, Each, Grid, In, Reason, Role, Row, Same, Still, Term, parts_of, rebuild

SEGMENT = Reason("structure", "one segment of a fused tensor")


def whole(atom: Atom, role: Role = Role.WRITE) -> In[Atom]:
    """The axis that lies in all of an atom."""
    return In(atom, role, atom.size)


def segment_of(piece: Atom) -> Term:
    """A piece of an atom; one of a single entry has no map to speak of but a factor, and is left alone."""
    return whole(piece) if piece.size > 1 else Still(1, piece.because or SEGMENT)


def twin_of(key: Atom) -> Atom:
    """The row that stands for all that are known to be cut alike."""
    while key.twin is not None:
        key = key.twin
    return key


def factors_of(term: Term) -> tuple[Term, ...]:
    """What a term is a product of, itself at least."""
    return term.parts if isinstance(term, Grid) else (term,)


def vary(term: Term, why: Reason) -> Term:
    """The term beside something that differs from entry to entry: nothing in it is the same all along any more."""
    if isinstance(term, Same):
        return Still(term.size, why) if term.size > 1 else term
    return rebuild(term, lambda part: vary(part, why))


def bounds_of(term: Term) -> list[int]:
    """Where the segments of a term end."""
    if isinstance(term, Row):
        return list(accumulate(part.size for part in term.parts))
    return [term.size]


def common_factors(sizes: Sequence[int], others: Sequence[int]) -> list[int] | None:
    """The coarsest factors that refine both lists, outermost first, or nothing if there are none."""
    marks = {1}
    for factors in (sizes, others):
        marks.update(accumulate(reversed(factors), lambda a, b: a * b))
    ladder = sorted(marks)
    if any(upper % lower for lower, upper in pairwise(ladder)):
        return None
    return [upper // lower for lower, upper in pairwise(ladder)][::-1]


def leaves_of(term: Term) -> Iterator[In[Atom]]:
    """The leaves of a term that lie in atoms, as it stands."""
    return (part for part in parts_of(term) if isinstance(part, In))


@dataclass(frozen=True)
class Beside:
    """What stands beside a part of a tensor's axes: the factors next to it on its own axis, and the other axes."""

    own: tuple[Term, ...]
    others: tuple[Term, ...]

    def narrowed(self, key: Atom, position: int) -> Beside:
        own = (_narrow_all(term, key, position) for term in self.own)
        return Beside(tuple(own), tuple(_narrow_all(term, key, position) for term in self.others))


def beside_each(terms: Sequence[Term]) -> Iterator[tuple[In[Atom] | Each[Term, Atom], Beside]]:
    """Every leaf and every `Each` on the axes of a tensor, with what stands beside it."""
    for place, term in enumerate(terms):
        yield from _beside_parts(term, Beside((), (*terms[:place], *terms[place + 1 :])))


def _beside_parts(term: Term, beside: Beside) -> Iterator[tuple[In[Atom] | Each[Term, Atom], Beside]]:
    if isinstance(term, In | Each):
        yield term, beside
    if isinstance(term, Grid):
        for place, part in enumerate(term.parts):
            own = (*beside.own, *term.parts[:place], *term.parts[place + 1 :])
            yield from _beside_parts(part, Beside(own, beside.others))
    elif isinstance(term, Row | Each):
        for position, part in enumerate(term.parts):
            yield from _beside_parts(part, beside if term.key is None else beside.narrowed(term.key, position))


def _narrow_all(term: Term, key: Atom, position: int) -> Term:
    """The term beside one segment of the row ``key``, and that segment in place of the row."""
    if isinstance(term, Row | Each) and term.key is key and position < len(term.parts):
        return term.parts[position]
    return rebuild(term, lambda part: _narrow_all(part, key, position))


def has_row(terms: Sequence[Term], each: Each[Term, Atom]) -> bool:
    """Whether the row that an `Each` follows stands on these axes, once, and with the segments it had."""
    rows = [part for term in terms for part in parts_of(term) if isinstance(part, Row) and part.key is each.key]
    sizes = [segment.size for segment in each.segments]
    alike = all([part.size for part in row.parts] == sizes for row in rows)
    return alike and count_of(terms, each.key) == (1, 1)


def count_of(terms: Sequence[Term], atom: Atom) -> tuple[int, int]:
    """How often an atom, or the row that was cut from it, stands on these axes: at least, and at most."""
    least = most = 0
    for term in terms:
        low = high = 0
        if isinstance(term, In):
            low = high = int(term.space is atom)
        elif isinstance(term, Row) and term.key is atom:
            low = high = 1
        elif isinstance(term, Grid):
            low, high = count_of(term.parts, atom)
        elif isinstance(term, Row | Each):
            counts = [count_of([part], atom) for part in term.parts]
            low, high = min(low for low, _ in counts), max(high for _, high in counts)
        least, most = least + low, most + high
    return least, most


def follows(term: Term, key: Atom) -> bool:
    """Whether an `Each` in the term follows the row ``key``."""
    return any(isinstance(part, Each) and part.key is key for part in parts_of(term))


def rekey(term: Term, key: Atom, fresh: Atom) -> Term:
    """The term with each `Each` of the row ``key`` following another row."""
    rebuilt = rebuild(term, lambda part: rekey(part, key, fresh))
    return replace(rebuilt, key=fresh) if isinstance(rebuilt, Each) and rebuilt.key is key else rebuilt
