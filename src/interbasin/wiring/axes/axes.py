"""The algebra of axes: what is learned about the axes of a network's tensors while it is being traced.

Every axis of every parameter starts as one unknown, an *atom*. Operators make atoms one (a sum adds what lies in one
space), cut them (a split of fused projections), factor them (a view of channels as heads by channels), and shrink the
group of maps that may act on them. An axis is described by a small term of `terms`.

**Dependence.** The map of an atom may differ from block to block of another atom (each head has its own), as long as
every tensor that has the one also has the other. `limits` records which atoms were beside it, in every tensor seen.

Nothing here knows an operator, and nothing looks at a number inside a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from interbasin.wiring.axes.groups import Group, contains, meet
from interbasin.wiring.axes.spaces import Reason, Role
from interbasin.wiring.axes.terms import (
    STRETCH,
    Atom,
    Beside,
    Family,
    Leaf,
    Plain,
    Product,
    Same,
    Sum,
    Term,
    beside_each,
    bounds_of,
    common_factors,
    count_of,
    factors_of,
    has_row,
    leaves_of,
    member_of,
    mentions,
    rebuilt,
    rekeyed,
    twin_of,
    unit,
    varying,
    walk,
)


class Axes:
    """The store of all atoms of one network, and the few things that can be learned about them."""

    def __init__(self) -> None:
        # Why axes that could not be matched were given up: set by whoever interprets an operator.
        self.context = Reason("structure", "its axes are cut in ways that do not fit together")

    # ------------------------------------------------------------------ making and reading terms

    def parameter(self, sizes: Sequence[int]) -> list[Term]:
        """Fresh terms for the axes of a tensor. Each may depend on the others until a tensor says otherwise."""
        atoms = [Atom(size) if size > 1 else None for size in sizes]
        for atom in atoms:
            if atom is not None:
                self._limit(atom, frozenset(other for other in atoms if other is not None and other is not atom))
        return [Same(size) if atom is None else Leaf(atom) for size, atom in zip(sizes, atoms, strict=True)]

    def side_by_side(self, terms: Sequence[Term]) -> tuple[Term, Term]:
        """An axis with an entry for each of ``terms``, and the term beside it that is another one at each entry."""
        if len(terms) == 1:
            return Same(1), terms[0]
        origin = Atom(len(terms))
        stretches: tuple[Term, ...] = tuple(Plain(1, STRETCH) for _ in terms)
        origin.parts = Sum(stretches, origin)
        return Leaf(origin), Family(origin, stretches, tuple(terms))

    def find(self, atom: Atom) -> tuple[Atom, Role]:
        """The root of an atom, and the role in which the atom follows it."""
        role = Role.WRITE
        while atom.link is not None:
            atom, step = atom.link
            role = role.of(step)
        return atom, role

    def resolve(self, term: Term, role: Role = Role.WRITE) -> Term:
        """The term with everything that is known by now put in, in normal form."""
        if isinstance(term, Leaf):
            root, step = self.find(term.atom)
            role = role.of(term.role.of(step))
            return Leaf(root, role) if root.parts is None else self.resolve(root.parts, role)
        if isinstance(term, Sum):
            return self._sum([self.resolve(part, role) for part in term.parts], term.origin)
        if isinstance(term, Product):
            return self._product([self.resolve(part, role) for part in term.parts])
        if isinstance(term, Family):
            return self._family(term, role)
        return term

    def _family(self, term: Family, role: Role) -> Term:
        """A family with a member for each stretch that its row has by now: stretches may have been cut again."""
        spread: list[tuple[Term, Term]] = []
        for part, member in zip(term.stretches, term.members, strict=True):
            stretch, own = self.resolve(part), self.resolve(member, role)
            if isinstance(stretch, Sum):
                spread.extend((one, member_of(own, stretch.origin, place)) for place, one in enumerate(stretch.parts))
            else:
                spread.append((stretch, own))
        first = spread[0][1]
        if all(own == first for _, own in spread[1:]):
            return first
        return Family(twin_of(term.origin), *zip(*spread, strict=True))

    def leaves(self, term: Term) -> Iterator[Leaf]:
        """The leaves of a term, families included."""
        yield from leaves_of(self.resolve(term))

    def moves(self, term: Term) -> bool:
        """Whether anything in the term can still move."""
        return any(leaf.atom.group is not Group.FIXED for leaf in self.leaves(term))

    def _sum(self, parts: list[Term], origin: Atom | None) -> Term:
        origin = None if origin is None else twin_of(origin)
        parts = [part for part in parts if part.size]
        if len(parts) == 1:
            return parts[0]
        flat: list[Term] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, Sum) else [part])
        if origin is None and all(isinstance(part, Plain) for part in flat):
            assert isinstance(flat[0], Plain)
            return Plain(sum(part.size for part in flat), flat[0].why)
        return Sum(tuple(flat), origin)

    def _product(self, parts: list[Term]) -> Term:
        flat: list[Term] = []
        for part in parts:
            for factor in part.parts if isinstance(part, Product) else (part,):
                if factor.size == 1:
                    continue
                last = flat[-1] if flat else None
                if isinstance(factor, Plain) and isinstance(last, Plain):
                    flat[-1] = Plain(last.size * factor.size, last.why)
                elif isinstance(factor, Same) and isinstance(last, Same):
                    flat[-1] = Same(last.size * factor.size)
                else:
                    flat.append(factor)
        if not flat:
            return Same(1)
        if len(flat) == 1:
            return flat[0]
        first, rest = flat[0], flat[1:]
        if isinstance(first, Sum):
            keyed = first.origin is not None and any(mentions(factor, first.origin) for factor in rest)
            if not keyed and all(isinstance(part, Plain) for part in first.parts):
                assert isinstance(first.parts[0], Plain)
                return self._product([Plain(first.size, first.parts[0].why), *rest])
            stretches: list[Term] = [
                self._product([part, *(member_of(factor, first.origin, position) for factor in rest)])
                for position, part in enumerate(first.parts)
            ]
            return self._sum(stretches, None)
        return Product(tuple(flat))

    # ------------------------------------------------------------------ learning

    def restrict(self, term: Term, group: Group, why: Reason) -> None:
        """Only maps of ``group`` may act on ``term`` from now on."""
        for leaf in self.leaves(term):
            self._restrict(leaf, group, why)

    def _restrict(self, leaf: Leaf, group: Group, why: Reason) -> None:
        atom, _ = self.find(leaf.atom)
        if leaf.role is Role.SCALE and contains(group, Group.PERMUTATION):
            return  # it moves by the size of the map, which is a permutation whatever the sign
        lower = meet(atom.group, group)
        if lower is not atom.group:
            atom.group, atom.because = lower, why

    def unify(
        self,
        one: Term,
        other: Term,
        why: Reason,
        *,
        role: Role = Role.WRITE,
        pair: Group = Group.INVERTIBLE,
        same: Group = Group.INVERTIBLE,
    ) -> Term:
        """Make two terms of equal size move alike, and return the term of what comes of them.

        Args:
            one, other: The terms.
            why: What stands in the reasons if this shrinks a group.
            role: How ``one`` follows ``other``: by the same map, by its dual (a contraction), by its size (a gain).
            pair: What is left of the group where both vary.
            same: What is left of it where only one varies and the other is the same all along.
        """
        a, b = self.resolve(one), self.resolve(other)
        if isinstance(a, Same) or isinstance(b, Same):
            left = b if isinstance(a, Same) else a
            self.restrict(left, same, why)
            return left
        if isinstance(a, Plain) or isinstance(b, Plain):
            plain, left = (a, b) if isinstance(a, Plain) else (b, a)
            assert isinstance(plain, Plain)
            self.restrict(left, Group.FIXED, plain.why)
            return varying(left, plain.why)  # which now does not move either, and still knows what depends on it
        again = {"why": why, "role": role, "pair": pair, "same": same}
        if isinstance(a, Family) or isinstance(b, Family):
            return self._unify_families(a, b, again)
        if isinstance(a, Leaf) and isinstance(b, Leaf):
            self._join(a, b, role, why)
            joined = self.resolve(b if role is Role.SCALE else a)
            self.restrict(joined, pair, why)
            return joined
        if isinstance(a, Sum) or isinstance(b, Sum):
            return self._unify_sums(a, b, again)
        return self._unify_products(a, b, again)

    def _unify_families(self, a: Term, b: Term, again: dict[str, object]) -> Term:
        if isinstance(a, Family) and isinstance(b, Family):
            if a.origin is b.origin and len(a.members) == len(b.members):
                pairs = zip(a.members, b.members, strict=True)
                both = tuple(self.unify(x, y, **again) for x, y in pairs)  # type: ignore[arg-type]
                return Family(a.origin, a.stretches, both)
            a, b = self.uniform(a), self.uniform(b)
            return self.unify(a, b, **again)  # type: ignore[arg-type]
        if isinstance(a, Family):
            for member in a.members:
                self.unify(member, b, **again)  # type: ignore[arg-type]
        else:
            assert isinstance(b, Family)
            for member in b.members:
                self.unify(a, member, **again)  # type: ignore[arg-type]
        return self.resolve(b if isinstance(a, Family) or again["role"] is Role.SCALE else a)

    def _unify_sums(self, a: Term, b: Term, again: dict[str, object]) -> Term:
        bounds = sorted({*bounds_of(a), *bounds_of(b)})
        sizes = [stop - start for start, stop in zip([0, *bounds[:-1]], bounds, strict=True)]
        left, right = self.cut(a, sizes), self.cut(b, sizes)
        if left is None or right is None:
            return self._give_up(a, b)
        parts = tuple(self.unify(x, y, **again) for x, y in zip(left, right, strict=True))  # type: ignore[arg-type]
        a, b = self.resolve(a), self.resolve(b)
        # By now both are cut, if only just: families that follow either row follow one.
        origins = [term.origin for term in (a, b) if isinstance(term, Sum) and term.origin is not None]
        if len(origins) == 2 and bounds_of(a) == bounds_of(b) and origins[0] is not origins[1]:
            origins[1].twin = origins[0]
        origin = a.origin if isinstance(a, Sum) and len(a.parts) == len(parts) else None
        return self._sum(list(parts), origin)

    def _unify_products(self, a: Term, b: Term, again: dict[str, object]) -> Term:
        sizes = common_factors([part.size for part in factors_of(a)], [part.size for part in factors_of(b)])
        left = None if sizes is None else self.split(a, sizes)
        right = None if sizes is None else self.split(b, sizes)
        if left is None or right is None:
            return self._give_up(a, b)
        pairs = zip(left, right, strict=True)
        return self.resolve(Product(tuple(self.unify(x, y, **again) for x, y in pairs)))  # type: ignore[arg-type]

    def _give_up(self, *terms: Term) -> Term:
        for term in terms:
            self.restrict(term, Group.FIXED, self.context)
        return Plain(terms[0].size, self.context)

    def _join(self, a: Leaf, b: Leaf, role: Role, why: Reason) -> None:
        r"""Let :math:`M_a = r(M_b)`, where each side is a root's map in some role."""
        first, second, wanted = a.atom, b.atom, role.of(b.role)
        if first is second:
            if a.role is not wanted:
                both_linear = Role.SCALE not in (a.role, wanted)
                self._restrict(Leaf(first), Group.ORTHOGONAL if both_linear else Group.PERMUTATION, why)
            return
        if a.role is Role.SCALE and wanted is not Role.SCALE:
            # |M_first| = r(M_second): the second can only be a permutation, and follows.
            first, second, step = second, first, Role.SCALE
        elif a.role is Role.SCALE:
            step = Role.WRITE
        else:
            step = a.role.of(wanted)  # write and read are their own inverses
        group, because = second.group, second.because
        if step is Role.SCALE:
            if meet(first.group, Group.PERMUTATION) is Group.FIXED:
                group, because = Group.FIXED, first.because
            elif not contains(Group.SIGNED, group):
                group, because = meet(group, Group.SIGNED), why
        elif meet(group, first.group) is not group:
            group, because = meet(group, first.group), first.because
        second.group, second.because = group, because
        second.limits = [*second.limits, *(limit for limit in first.limits if limit not in second.limits)]
        second.dependents |= first.dependents
        first.link = (second, step)

    # ------------------------------------------------------------------ dependence

    def _limit(self, atom: Atom, limit: frozenset[Atom]) -> None:
        atom.limits.append(limit)
        for other in self._roots(limit):
            other.dependents.add(atom)

    def _roots(self, atoms: Iterable[Atom]) -> set[Atom]:
        found: set[Atom] = set()
        for atom in atoms:
            found.update(leaf.atom for leaf in self.leaves(Leaf(atom)))
        return found

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

    def dependence(self, *terms: Term) -> int:
        """How much stands before these terms: what others depend on is to be made one before them."""
        found = 0
        for term in map(self.resolve, terms):
            for part in walk(term):
                if isinstance(part, Family):
                    found = max(found, 1)
                elif isinstance(part, Leaf):
                    found = max(found, len(self.allowed(part.atom)))
        return found

    def settle(self, dims: Sequence[Term]) -> list[Term]:
        """The axes of a tensor, after what is not on it has been taken from what its atoms may depend on."""
        terms = [self.resolve(term) for term in dims]
        while lost := {
            part.origin
            for part, beside in beside_each(terms)
            if isinstance(part, Family) and not has_row([*beside.own, *beside.others], part)
        }:
            terms = [self.resolve(self._without_families(term, lost)) for term in terms]
        limited = {leaf.atom for term in terms for leaf in leaves_of(term) if self.allowed(leaf.atom)}
        if limited:
            for part, beside in beside_each(terms):
                if isinstance(part, Leaf) and part.atom in limited:
                    self._settle_atom(part.atom, beside)
        return terms

    def _settle_atom(self, atom: Atom, beside: Beside) -> None:
        """Keep of what an atom may depend on what stands beside it unmistakably.

        That is what stands beside it once. In a table of all pairs it stands there twice, and does not say which of the
        two the map goes by, unless each axis has its own: the atom and what it depends on, once each, or neither.
        """
        allowed = self.allowed(atom)
        kept = set()
        for other in allowed:
            once = count_of([*beside.own, *beside.others], other) == (1, 1)
            own = count_of(beside.own, other) == (1, 1) and count_of(beside.own, atom) == (0, 0)
            each = ((count_of([axis], other), count_of([axis], atom)) for axis in beside.others)
            if once or (own and all(counts in (((0, 0), (0, 0)), ((1, 1), (1, 1))) for counts in each)):
                kept.add(other)
        if kept != allowed:
            atom.limits.append(frozenset(kept))

    def _without_families(self, term: Term, origins: set[Atom]) -> Term:
        if isinstance(term, Family) and term.origin in origins:
            return self.uniform(term)
        if isinstance(term, Product):
            return self._product([self._without_families(part, origins) for part in term.parts])
        if isinstance(term, Sum):
            return self._sum([self._without_families(part, origins) for part in term.parts], term.origin)
        return rebuilt(term, lambda part: self._without_families(part, origins))

    def uniform(self, family: Family) -> Term:
        """One term in place of a family: all members move alike."""
        why = Reason("structure", "the same in every block, because a tensor holds it without the blocks")
        first = family.members[0]
        for member in family.members[1:]:
            first = self.unify(first, member, why)
        return self.resolve(first)

    # ------------------------------------------------------------------ cutting and factoring

    def cut(self, term: Term, sizes: Sequence[int]) -> list[Term] | None:
        """The term as stretches of the given sizes, or nothing if its structure does not allow that."""
        term = self.resolve(term)
        sizes = list(sizes)
        if len(sizes) == 1:
            return [term]
        if 0 in sizes:
            whole = self.cut(term, [size for size in sizes if size])
            if whole is None:
                return None
            pieces = iter(whole)
            return [next(pieces) if size else Same(0) for size in sizes]
        if isinstance(term, Plain):
            return [Plain(size, term.why) for size in sizes]
        if isinstance(term, Same):
            return [Same(size) for size in sizes]
        if isinstance(term, Leaf):
            return self._cut_atom(term, sizes)
        if isinstance(term, Family):
            return self._taken_apart(term, lambda member: self.cut(member, sizes))
        if isinstance(term, Product):
            inner = math.prod(part.size for part in term.parts[1:])
            if (
                any(size % inner for size in sizes)
                or self.cut(term.parts[0], [size // inner for size in sizes]) is None
            ):
                return None
            now = self.resolve(term)
            if isinstance(now, Sum):
                return self.cut(now, sizes)
            outer = self.cut(term.parts[0], [size // inner for size in sizes])
            assert outer is not None
            return [self.resolve(Product((part, *term.parts[1:]))) for part in outer]
        return self._cut_sum(term, sizes)

    def _taken_apart(self, family: Family, apart: Callable[[Term], list[Term] | None]) -> list[Term] | None:
        """A family of the first parts of all members, one of the second parts, and so on."""
        members = [apart(member) for member in family.members]
        found = [parts for parts in members if parts is not None]
        if len(found) < len(members):
            return None
        return [Family(family.origin, family.stretches, parts) for parts in zip(*found, strict=True)]

    def _cut_atom(self, leaf: Leaf, sizes: list[int]) -> list[Term]:
        atom = leaf.atom
        followers = [one for one in atom.dependents if one.link is None and one.parts is None and one is not atom]
        followers = [one for one in followers if atom in self.allowed(one)]
        pieces = [Atom(size, atom.group, atom.because) for size in sizes]
        for piece in pieces:
            piece.dependents = set(atom.dependents)
            for limit in atom.limits:
                self._limit(piece, limit)
        rest = {one: self.allowed(one) - {atom} for one in followers}
        atom.parts = Sum(tuple(Leaf(piece) if piece.size > 1 else unit(piece) for piece in pieces), atom)
        for one in followers:
            members = []
            for piece in pieces:
                member = Atom(one.size, one.group, one.because)
                member.dependents = set(one.dependents)
                self._limit(member, frozenset({*rest[one], piece} if piece.size > 1 else rest[one]))
                members.append(Leaf(member))
            one.parts = Family(atom, atom.parts.parts, tuple(members))
        whole = self.resolve(leaf)
        assert isinstance(whole, Sum)
        return list(whole.parts)

    def _cut_sum(self, term: Sum, sizes: list[int]) -> list[Term] | None:
        wanted = list(accumulate(sizes))
        pieces: list[Term] = []
        start = 0
        for part in term.parts:
            stop = start + part.size
            inside = [bound for bound in wanted if start < bound < stop]
            cuts = [b - a for a, b in zip([start, *inside], [*inside, stop], strict=True)]
            found = self.cut(part, cuts)
            if found is None:
                return None
            pieces.extend(found)
            start = stop
        grouped: list[list[Term]] = [[] for _ in sizes]
        position, filled = 0, 0
        for piece in pieces:
            grouped[position].append(piece)
            filled += piece.size
            if filled == wanted[position]:
                position += 1
        return [self._sum(group, None) for group in grouped]

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
        if isinstance(term, Plain):
            return [Plain(size, term.why) for size in sizes]
        if isinstance(term, Same):
            return [Same(size) for size in sizes]
        if isinstance(term, Leaf):
            self._split_atom(term.atom, sizes)
            whole = self.resolve(term)
            assert isinstance(whole, Product)
            return list(whole.parts)
        if isinstance(term, Family):
            return self._taken_apart(term, lambda member: self.split(member, sizes))
        if isinstance(term, Sum):
            return self._split_sum(term, sizes)
        return self._split_product(term, sizes)

    def _split_atom(self, atom: Atom, sizes: list[int]) -> None:
        factors = [Atom(size, atom.group, atom.because) for size in sizes]
        for position, factor in enumerate(factors):
            factor.dependents = set(atom.dependents)
            beside = frozenset(other for place, other in enumerate(factors) if place != position)
            for limit in atom.limits or [frozenset()]:
                self._limit(factor, limit | beside)
        atom.parts = Product(tuple(Leaf(factor) for factor in factors))

    def _split_product(self, term: Product, sizes: list[int]) -> list[Term] | None:
        fine = common_factors([part.size for part in term.parts], sizes)
        if fine is None:
            return None
        factors: list[Term] = []
        position = 0
        for part in term.parts:
            own, filled = [], 1
            while filled < part.size:
                own.append(fine[position])
                filled *= fine[position]
                position += 1
            found = self.split(part, own)
            if found is None:
                return None
            factors.extend(found)
        grouped: list[Term] = []
        position = 0
        for size in sizes:
            own_factors: list[Term] = []
            filled = 1
            while filled < size:
                own_factors.append(factors[position])
                filled *= factors[position].size
                position += 1
            grouped.append(self._product(own_factors))
        return grouped

    def _split_sum(self, term: Sum, sizes: list[int]) -> list[Term] | None:
        """Stretches as blocks: an outer axis that is cut, and beside it a family with a term for each stretch."""
        inner = math.prod(sizes[1:])
        runs: list[list[Term]] = [[]]
        filled = 0
        for part in term.parts:
            runs[-1].append(part)
            filled += part.size
            if filled % inner == 0:
                runs.append([])
        if runs.pop():
            return None
        outer: list[Term] = []
        members: list[Term] = []
        for run in runs:
            whole = self._sum(run, None)
            if isinstance(whole, Sum) and whole.size > inner:
                return None  # a stretch ends inside a block
            found = self.split(whole, [whole.size // inner, inner])
            if found is None:
                return None
            outer.append(found[0] if found[0].size > 1 else Plain(1, STRETCH))
            members.append(found[1])
        if len(members) == 1:
            first, second = outer[0], members[0]
        else:
            origin = Atom(sizes[0])
            origin.parts = Sum(tuple(outer), origin)
            first, second = Leaf(origin), Family(origin, tuple(outer), tuple(members))
        rest = self.split(second, sizes[1:])
        return None if rest is None else [self.resolve(first), *rest]

    def take(self, dims: Sequence[Term], axis: int, start: int, length: int) -> list[Term] | None:
        """The axes of a tensor of which the stretch ``start`` to ``start + length`` of one axis is kept."""
        size = dims[axis].size
        sizes = [start, length, size - start - length]
        pieces = self.cut(dims[axis], sizes)
        if pieces is None:
            return None
        whole = self.resolve(dims[axis])
        kept = list(dims)
        kept[axis] = pieces[1]
        if isinstance(whole, Sum) and whole.origin is not None:
            bounds = [0, *bounds_of(whole)]
            if start in bounds and start + length in bounds:
                first, last = bounds.index(start), bounds.index(start + length)
                kept = [self._narrow(self.resolve(term), whole.origin, first, last) for term in kept]
                if last - first > 1:
                    # The stretches that are left are a sum of their own, which the families follow.
                    fresh = Atom(length)
                    fresh.parts = Sum(whole.parts[first:last], fresh)
                    kept = [rekeyed(term, whole.origin, fresh) for term in kept]
                    kept[axis] = Leaf(fresh)
        return self.settle(kept)

    def _narrow(self, term: Term, origin: Atom, first: int, last: int) -> Term:
        if isinstance(term, Family) and term.origin is origin:
            members = term.members[first:last]
            return members[0] if len(members) == 1 else Family(origin, term.stretches[first:last], members)
        if isinstance(term, Product):
            return self._product([self._narrow(part, origin, first, last) for part in term.parts])
        if isinstance(term, Sum) and term.origin is not origin:
            return self._sum([self._narrow(part, origin, first, last) for part in term.parts], term.origin)
        return term
