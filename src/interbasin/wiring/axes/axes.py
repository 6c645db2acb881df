"""The algebra of axes: what is learned about the axes of a network's tensors while it is being traced.

Operators make atoms one (a sum adds what lies in one space), and shrink the group of maps that may act on them. How
atoms are cut and factored stands in `atoms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from interbasin.wiring.axes.atoms import Atoms
from interbasin.wiring.axes.groups import Group, contains, meet
from interbasin.wiring.axes.spaces import Atom, Each, Grid, In, Reason, Role, Row, Same, Still, Term, parts_of, rebuild
from interbasin.wiring.axes.terms import (
    Beside,
    beside_each,
    bounds_of,
    common_factors,
    count_of,
    factors_of,
    has_row,
    leaves_of,
    rekey,
    vary,
    whole,
)


class _How(TypedDict):
    """The arguments of `Axes.unify` that hold for all parts."""

    why: Reason
    role: Role
    pair: Group
    same: Group


class Axes(Atoms):
    """The store of all atoms of one network, and the few things that can be learned about them."""

    def __init__(self) -> None:
        # Why axes that could not be matched were given up: set by whoever interprets an operator.
        self.context = Reason("structure", "its axes are cut in ways that do not fit together")

    def restrict(self, term: Term, group: Group, why: Reason) -> None:
        """Only maps of ``group`` may act on ``term`` from now on."""
        for leaf in self.leaves(term):
            self._restrict(leaf, group, why)

    def _restrict(self, leaf: In[Atom], group: Group, why: Reason) -> None:
        atom, _ = self.find(leaf.space)
        if leaf.role is Role.SCALE and contains(group, Group.PERMUTATION):
            return  # it moves by the size of the map, which is a permutation whatever the sign
        lower = meet(atom.group, group)
        if lower is not atom.group:
            atom.group, atom.because = lower, why

    # ------------------------------------------------------------------ making one

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
        if isinstance(a, Still) or isinstance(b, Still):
            still, left = (a, b) if isinstance(a, Still) else (b, a)
            assert isinstance(still, Still)
            self.restrict(left, Group.FIXED, still.why)
            return vary(left, still.why)  # which now does not move either, and still knows what depends on it
        how: _How = {"why": why, "role": role, "pair": pair, "same": same}
        if isinstance(a, Each) or isinstance(b, Each):
            return self._unify_each(a, b, how)
        if isinstance(a, In) and isinstance(b, In):
            self._join(a, b, role, why)
            joined = self.resolve(b if role is Role.SCALE else a)
            self.restrict(joined, pair, why)
            return joined
        if isinstance(a, Row) or isinstance(b, Row):
            return self._unify_rows(a, b, how)
        return self._unify_grids(a, b, how)

    def _unify_each(self, a: Term, b: Term, how: _How) -> Term:
        if isinstance(a, Each) and isinstance(b, Each):
            if a.key is b.key and len(a.parts) == len(b.parts):
                both = tuple(self.unify(x, y, **how) for x, y in zip(a.parts, b.parts, strict=True))
                return Each(a.key, both, a.segments)
            return self.unify(self.uniform(a), self.uniform(b), **how)
        for x in a.parts if isinstance(a, Each) else (a,):
            for y in b.parts if isinstance(b, Each) else (b,):
                self.unify(x, y, **how)
        return self.resolve(b if isinstance(a, Each) or how["role"] is Role.SCALE else a)

    def _unify_rows(self, a: Term, b: Term, how: _How) -> Term:
        bounds = sorted({*bounds_of(a), *bounds_of(b)})
        sizes = [stop - start for start, stop in zip([0, *bounds[:-1]], bounds, strict=True)]
        left, right = self.cut(a, sizes), self.cut(b, sizes)
        if left is None or right is None:
            return self._give_up(a, b)
        parts = [self.unify(x, y, **how) for x, y in zip(left, right, strict=True)]
        a, b = self.resolve(a), self.resolve(b)
        # By now both are cut, if only just: what follows either row follows one.
        keys = [term.key for term in (a, b) if isinstance(term, Row) and term.key is not None]
        if len(keys) == 2 and bounds_of(a) == bounds_of(b) and keys[0] is not keys[1]:
            keys[1].twin = keys[0]
        return self._row(parts, a.key if isinstance(a, Row) and len(a.parts) == len(parts) else None)

    def _unify_grids(self, a: Term, b: Term, how: _How) -> Term:
        sizes = common_factors([part.size for part in factors_of(a)], [part.size for part in factors_of(b)])
        left = None if sizes is None else self.split(a, sizes)
        right = None if sizes is None else self.split(b, sizes)
        if left is None or right is None:
            return self._give_up(a, b)
        return self.resolve(Grid(tuple(self.unify(x, y, **how) for x, y in zip(left, right, strict=True))))

    def uniform(self, each: Each[Term, Atom]) -> Term:
        """One term in place of an `Each`: all its parts move alike."""
        why = Reason("structure", "the same in every block, because a tensor holds it without the blocks")
        first = each.parts[0]
        for part in each.parts[1:]:
            first = self.unify(first, part, why)
        return self.resolve(first)

    def _give_up(self, *terms: Term) -> Term:
        for term in terms:
            self.restrict(term, Group.FIXED, self.context)
        return Still(terms[0].size, self.context)

    def _join(self, a: In[Atom], b: In[Atom], role: Role, why: Reason) -> None:
        r"""Let :math:`M_a = r(M_b)`, where each side is a root's map in some role."""
        first, second, wanted = a.space, b.space, role.of(b.role)
        if first is second:
            if a.role is not wanted:
                both_linear = Role.SCALE not in (a.role, wanted)
                self._restrict(whole(first), Group.ORTHOGONAL if both_linear else Group.PERMUTATION, why)
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

    # ------------------------------------------------------------------ the axes of one tensor

    def dependence(self, *terms: Term) -> int:
        """How much stands before these terms: what others depend on is to be made one before them."""
        most = 0
        for term in map(self.resolve, terms):
            for part in parts_of(term):
                if isinstance(part, Each):
                    most = max(most, 1)
                elif isinstance(part, In):
                    most = max(most, len(self.allowed(part.space)))
        return most

    def settle(self, dims: Sequence[Term]) -> list[Term]:
        """The axes of a tensor, after what is not on it has been taken from what its atoms may depend on."""
        terms = [self.resolve(term) for term in dims]
        while lost := {
            part.key
            for part, beside in beside_each(terms)
            if isinstance(part, Each) and not has_row([*beside.own, *beside.others], part)
        }:
            terms = [self.resolve(self._without_each(term, lost)) for term in terms]
        limited = {leaf.space for term in terms for leaf in leaves_of(term) if self.allowed(leaf.space)}
        if limited:
            for part, beside in beside_each(terms):
                if isinstance(part, In) and part.space in limited:
                    self._settle_atom(part.space, beside)
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

    def _without_each(self, term: Term, keys: set[Atom]) -> Term:
        if isinstance(term, Each) and term.key in keys:
            return self.uniform(term)
        if isinstance(term, Grid):
            return self._grid([self._without_each(part, keys) for part in term.parts])
        if isinstance(term, Row):
            return self._row([self._without_each(part, keys) for part in term.parts], term.key)
        return rebuild(term, lambda part: self._without_each(part, keys))

    def take(self, dims: Sequence[Term], axis: int, start: int, length: int) -> list[Term] | None:
        """The axes of a tensor of which the segment ``start`` to ``start + length`` of one axis is kept."""
        size = dims[axis].size
        pieces = self.cut(dims[axis], [start, length, size - start - length])
        if pieces is None:
            return None
        row = self.resolve(dims[axis])
        kept = list(dims)
        kept[axis] = pieces[1]
        if isinstance(row, Row) and row.key is not None:
            bounds = [0, *bounds_of(row)]
            if start in bounds and start + length in bounds:
                first, last = bounds.index(start), bounds.index(start + length)
                kept = [self._narrow(self.resolve(term), row.key, first, last) for term in kept]
                if last - first > 1:
                    # The segments that are left are a row of their own, which each `Each` follows.
                    fresh = Atom(length)
                    fresh.parts = Row(row.parts[first:last], fresh)
                    kept = [rekey(term, row.key, fresh) for term in kept]
                    kept[axis] = whole(fresh)
        return self.settle(kept)

    def _narrow(self, term: Term, key: Atom, first: int, last: int) -> Term:
        if isinstance(term, Each) and term.key is key:
            parts = term.parts[first:last]
            return parts[0] if len(parts) == 1 else Each(key, parts, term.segments[first:last])
        if isinstance(term, Grid):
            return self._grid([self._narrow(part, key, first, last) for part in term.parts])
        if isinstance(term, Row) and term.key is not key:
            return self._row([self._narrow(part, key, first, last) for part in term.parts], term.key)
        return term
