"""Terms of atoms: making and reading them, and cutting and factoring what they are made of.

Every axis of every parameter starts as one unknown, an *atom*. A split of fused projections cuts it, a view of channels
as heads by channels factors it: its parts then stand in its place wherever it is met.

**Dependence.** The map of an atom may differ from block to block of another atom (each head has its own), as long as
every tensor that has the one also has the other. `Atom.limits` records which atoms were beside it, in every tensor.

Nothing here knows an operator, and nothing looks at a number inside a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Atom, Each, Grid, In, Role, Row, Same, Still, Term, narrow
from interbasin.wiring.axes.terms import SEGMENT, common_factors, follows, leaves_of, segment_of, twin_of, whole


class Atoms:
    """All atoms of one network, as far as they are cut and factored; `Axes` adds what else is learned of them."""

    # ------------------------------------------------------------------ making and reading terms

    def parameter(self, sizes: Sequence[int]) -> list[Term]:
        """Fresh terms for the axes of a tensor. Each may depend on the others until a tensor says otherwise."""
        atoms = [Atom(size) if size > 1 else None for size in sizes]
        for atom in atoms:
            if atom is not None:
                self._limit(atom, frozenset(other for other in atoms if other is not None and other is not atom))
        return [Same(size) if atom is None else whole(atom) for size, atom in zip(sizes, atoms, strict=True)]

    def side_by_side(self, terms: Sequence[Term]) -> tuple[Term, Term]:
        """An axis with an entry for each of ``terms``, and the term beside it that is another one at each entry."""
        if len(terms) == 1:
            return Same(1), terms[0]
        return self._keyed([Still(1, SEGMENT) for _ in terms], terms)

    def _keyed(self, segments: Sequence[Term], parts: Sequence[Term]) -> tuple[Term, Term]:
        """A row of these segments, and the `Each` that has these parts beside them."""
        key = Atom(sum(segment.size for segment in segments))
        key.parts = Row(tuple(segments), key)
        return whole(key), Each(key, tuple(parts), tuple(segments))

    def find(self, atom: Atom) -> tuple[Atom, Role]:
        """The root of an atom, and the role in which the atom follows it."""
        link = atom.link
        if link is None:
            return atom, Role.WRITE
        if link[0].link is None:
            return link
        chain = []
        while atom.link is not None:
            chain.append((atom, atom.link[1]))
            atom = atom.link[0]
        role = Role.WRITE
        for passed, step in reversed(chain):  # each is linked to the root, so that nobody goes this way again
            role = step.of(role)
            passed.link = (atom, role)
        return atom, role

    def resolve(self, term: Term, role: Role = Role.WRITE) -> Term:
        """The term with everything that is known by now put in, in normal form."""
        if isinstance(term, In):
            if role is Role.WRITE and term.space.link is None and term.space.parts is None:
                return term
            root, step = self.find(term.space)
            role = role.of(term.role.of(step))
            return whole(root, role) if root.parts is None else self.resolve(root.parts, role)
        if isinstance(term, Row):
            return self._row([self.resolve(part, role) for part in term.parts], term.key)
        if isinstance(term, Grid):
            return self._grid([self.resolve(part, role) for part in term.parts])
        if isinstance(term, Each):
            return self._each(term, role)
        return term

    def leaves(self, term: Term) -> Iterator[In[Atom]]:
        """The leaves of a term that lie in atoms."""
        yield from leaves_of(self.resolve(term))

    def moves(self, term: Term) -> bool:
        """Whether anything in the term can still move."""
        return any(leaf.space.group is not Group.FIXED for leaf in self.leaves(term))

    def _each(self, term: Each[Term, Atom], role: Role) -> Term:
        """An `Each` with a part for each segment that its row has by now: segments may have been cut again."""
        spread: list[tuple[Term, Term]] = []
        for before, part in zip(term.segments, term.parts, strict=True):
            segment, own = self.resolve(before), self.resolve(part, role)
            if isinstance(segment, Row):
                spread.extend((narrow(own, segment.key, place), piece) for place, piece in enumerate(segment.parts))
            else:
                spread.append((own, segment))
        first = spread[0][0]
        if all(own == first for own, _ in spread[1:]):
            return first
        return Each(twin_of(term.key), *zip(*spread, strict=True))

    def _row(self, parts: list[Term], key: Atom | None) -> Term:
        """A row in normal form: not nested, no empty segments, and one `Still` for several where nobody follows it."""
        key = None if key is None else twin_of(key)
        parts = [part for part in parts if part.size]
        if len(parts) == 1:
            return parts[0]
        flat: list[Term] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, Row) else [part])
        if key is None and all(isinstance(part, Still) for part in flat):
            assert isinstance(flat[0], Still)
            return Still(sum(part.size for part in flat), flat[0].why)
        return Row(tuple(flat), key)

    def _grid(self, parts: Sequence[Term]) -> Term:
        """A grid in normal form: not nested, no factors of one entry, and a row of grids where a row is outermost."""
        flat: list[Term] = []
        for part in parts:
            for factor in part.parts if isinstance(part, Grid) else (part,):
                if factor.size == 1:
                    continue
                last = flat[-1] if flat else None
                if isinstance(factor, Still) and isinstance(last, Still):
                    flat[-1] = Still(last.size * factor.size, last.why)
                elif isinstance(factor, Same) and isinstance(last, Same):
                    flat[-1] = Same(last.size * factor.size)
                else:
                    flat.append(factor)
        if not flat:
            return Same(1)
        if len(flat) == 1:
            return flat[0]
        first, rest = flat[0], flat[1:]
        if isinstance(first, Row):
            keyed = first.key is not None and any(follows(factor, first.key) for factor in rest)
            if not keyed and all(isinstance(part, Still) for part in first.parts):
                assert isinstance(first.parts[0], Still)
                return self._grid([Still(first.size, first.parts[0].why), *rest])
            segments: list[Term] = [
                self._grid([part, *(narrow(factor, first.key, position) for factor in rest)])
                for position, part in enumerate(first.parts)
            ]
            return self._row(segments, None)
        return Grid(tuple(flat))

    # ------------------------------------------------------------------ dependence

    def _limit(self, atom: Atom, limit: frozenset[Atom]) -> None:
        atom.limits.append(limit)
        for other in self._roots(limit):
            other.dependents.add(atom)

    def _roots(self, atoms: Iterable[Atom]) -> set[Atom]:
        roots = set()
        for atom in atoms:
            root = self.find(atom)[0]
            if root.parts is None:
                roots.add(root)
            else:
                roots.update(leaf.space for leaf in self.leaves(root.parts))
        return roots

    def allowed(self, atom: Atom) -> set[Atom]:
        """The atoms from block to block of which the map of ``atom`` may still differ."""
        atom = self.find(atom)[0]
        if not all(atom.limits):
            return set()
        left: set[Atom] | None = None
        for limit in atom.limits:
            roots = self._roots(limit)
            left = roots if left is None else left & roots
            if not left:
                atom.limits = [frozenset()]
                return set()
        return (left or set()) - {atom}

    # ------------------------------------------------------------------ cutting into segments

    def cut(self, term: Term, sizes: Sequence[int]) -> list[Term] | None:
        """The term as segments of the given sizes, or nothing if its structure does not allow that."""
        term = self.resolve(term)
        sizes = list(sizes)
        if len(sizes) == 1:
            return [term]
        if 0 in sizes:
            segments = self.cut(term, [size for size in sizes if size])
            if segments is None:
                return None
            pieces = iter(segments)
            return [next(pieces) if size else Same(0) for size in sizes]
        if isinstance(term, Still):
            return [Still(size, term.why) for size in sizes]
        if isinstance(term, Same):
            return [Same(size) for size in sizes]
        if isinstance(term, In):
            return self._cut_atom(term, sizes)
        if isinstance(term, Each):
            return self._divide(term, lambda part: self.cut(part, sizes))
        if isinstance(term, Grid):
            inner = math.prod(part.size for part in term.parts[1:])
            outer_sizes = [size // inner for size in sizes]
            if any(size % inner for size in sizes) or self.cut(term.parts[0], outer_sizes) is None:
                return None
            now = self.resolve(term)
            if isinstance(now, Row):
                return self.cut(now, sizes)
            outer = self.cut(term.parts[0], outer_sizes)
            assert outer is not None
            return [self.resolve(Grid((part, *term.parts[1:]))) for part in outer]
        return self._cut_row(term, sizes)

    def _divide(self, each: Each[Term, Atom], divide: Callable[[Term], list[Term] | None]) -> list[Term] | None:
        """An `Each` of the first pieces of all parts, one of the second pieces, and so on."""
        divided = [pieces for part in each.parts if (pieces := divide(part)) is not None]
        if len(divided) < len(each.parts):
            return None
        return [Each(each.key, pieces, each.segments) for pieces in zip(*divided, strict=True)]

    def _cut_atom(self, leaf: In[Atom], sizes: list[int]) -> list[Term]:
        atom = leaf.space
        followers = [other for other in atom.dependents if other.link is None and other.parts is None]
        followers = [other for other in followers if other is not atom and atom in self.allowed(other)]
        pieces = [Atom(size, atom.group, atom.because) for size in sizes]
        for piece in pieces:
            piece.dependents = set(atom.dependents)
            for limit in atom.limits:
                self._limit(piece, limit)
        rest = {follower: self.allowed(follower) - {atom} for follower in followers}
        segments = tuple(map(segment_of, pieces))
        atom.parts = Row(segments, atom)
        for follower in followers:
            parts = []
            for piece in pieces:
                part = Atom(follower.size, follower.group, follower.because)
                part.dependents = set(follower.dependents)
                self._limit(part, frozenset({*rest[follower], piece} if piece.size > 1 else rest[follower]))
                parts.append(whole(part))
            follower.parts = Each(atom, tuple(parts), segments)
        row = self.resolve(leaf)
        assert isinstance(row, Row)
        return list(row.parts)

    def _cut_row(self, row: Row[Term, Atom], sizes: list[int]) -> list[Term] | None:
        bounds = list(accumulate(sizes))
        pieces: list[Term] = []
        start = 0
        for part in row.parts:
            stop = start + part.size
            inside = [bound for bound in bounds if start < bound < stop]
            cut = self.cut(part, [b - a for a, b in zip([start, *inside], [*inside, stop], strict=True)])
            if cut is None:
                return None
            pieces.extend(cut)
            start = stop
        return [self._row(group, None) for group in _group(pieces, sizes, sum, 0)]

    # ------------------------------------------------------------------ splitting into factors

    def split(self, term: Term, sizes: Sequence[int]) -> list[Term] | None:
        """The term as factors of the given sizes, outermost first, or nothing if its structure does not allow that.

        The map of a factor may differ from block to block of the others. Where two could differ by each other, which
        one does is settled in the end, when it is known what of them is left.
        """
        term = self.resolve(term)
        if any(size == 1 for size in sizes):
            wide = self.split(term, [size for size in sizes if size != 1] or [1])
            if wide is None:
                return None
            factors = iter(wide)
            return [Same(1) if size == 1 else next(factors) for size in sizes]
        sizes = list(sizes)
        if len(sizes) == 1:
            return [term]
        if isinstance(term, Still):
            return [Still(size, term.why) for size in sizes]
        if isinstance(term, Same):
            return [Same(size) for size in sizes]
        if isinstance(term, In):
            self._split_atom(term.space, sizes)
            grid = self.resolve(term)
            assert isinstance(grid, Grid)
            return list(grid.parts)
        if isinstance(term, Each):
            return self._divide(term, lambda part: self.split(part, sizes))
        if isinstance(term, Row):
            return self._split_row(term, sizes)
        return self._split_grid(term, sizes)

    def _split_atom(self, atom: Atom, sizes: list[int]) -> None:
        factors = [Atom(size, atom.group, atom.because) for size in sizes]
        for factor in factors:
            factor.dependents = set(atom.dependents)
            beside = frozenset(other for other in factors if other is not factor)
            for limit in atom.limits or [frozenset()]:
                self._limit(factor, limit | beside)
        atom.parts = Grid(tuple(map(whole, factors)))

    def _split_grid(self, grid: Grid[Term], sizes: list[int]) -> list[Term] | None:
        fine = common_factors([part.size for part in grid.parts], sizes)
        if fine is None:
            return None
        factors: list[Term] = []
        waiting = iter(fine)
        for part in grid.parts:
            own: list[int] = []
            while math.prod(own) < part.size:
                own.append(next(waiting))
            split = self.split(part, own)
            if split is None:
                return None
            factors.extend(split)
        return [self._grid(group) for group in _group(factors, sizes, math.prod, 1)]

    def _split_row(self, row: Row[Term, Atom], sizes: list[int]) -> list[Term] | None:
        """Segments as blocks: an outer axis that is cut, and beside it an `Each` with a part for each segment."""
        inner = math.prod(sizes[1:])
        runs: list[list[Term]] = [[]]
        filled = 0
        for part in row.parts:
            runs[-1].append(part)
            filled += part.size
            if filled % inner == 0:
                runs.append([])
        if runs.pop():
            return None
        outer: list[Term] = []
        parts: list[Term] = []
        for run in runs:
            joined = self._row(run, None)
            if isinstance(joined, Row) and joined.size > inner:
                return None  # a segment ends inside a block
            split = self.split(joined, [joined.size // inner, inner])
            if split is None:
                return None
            outer.append(split[0] if split[0].size > 1 else Still(1, SEGMENT))
            parts.append(split[1])
        first, second = (outer[0], parts[0]) if len(parts) == 1 else self._keyed(outer, parts)
        rest = self.split(second, sizes[1:])
        return None if rest is None else [self.resolve(first), *rest]


def _group(
    parts: Sequence[Term], sizes: Sequence[int], fold: Callable[[Iterable[int]], int], empty: int
) -> Iterator[list[Term]]:
    """The parts in groups whose sizes, summed or multiplied, are the given ones."""
    waiting = iter(parts)
    for size in sizes:
        group: list[Term] = []
        filled = empty
        while filled != size:
            group.append(next(waiting))
            filled = fold((filled, group[-1].size))
        yield group
