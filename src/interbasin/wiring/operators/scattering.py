"""Operators that write entries where an index says: what lies beside the index moves, what it runs along does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Same, Term
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.convolution import positions
from interbasin.wiring.operators.elementwise import bend, combined

# How several entries that come to one place may be taken together without bending them.
LINEAR = frozenset({"sum", "mean", "add"})


@rule("index_add", "index_copy")
def index_add(run: Run, self: Value, dim: int, index: Value, source: Value, **_: Any) -> Value:
    if len(self.dims) != len(source.dims) or not self.dims:
        return run.not_known(f"{run.operator} of different ranks", [self, index, source])  # type: ignore[no-any-return]
    run.fix(index, run.why("it says where to write"))
    return _written(run, self, source, [dim % len(self.dims)])


@rule("index_put", "_unsafe_index_put")
def index_put(
    run: Run, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, **_: Any
) -> Value:
    """Only where every index is a vector: a mask of more axes is not told from an index of as many."""
    places = [axis for axis, found in enumerate(indices) if found is not None]
    given = [found for found in indices if found is not None]
    adjacent = bool(places) and places == list(range(places[0], places[0] + len(places)))
    if not adjacent or any(len(found.dims) != 1 for found in given):
        return run.not_known(f"{run.operator} with such indices", run.operands)  # type: ignore[no-any-return]
    for found in given:
        run.fix(found, run.why("it says where to write"))
    # One axis of the values stands for all that are indexed.
    after = len(self.dims) - places[-1] - 1
    own = list(values.dims)
    if len(own) > after:
        run.axes.restrict(own[len(own) - after - 1], Group.FIXED, run.why("it is written where an index says"))
        own[len(own) - after - 1 : len(own) - after] = [Same(1)] * len(places)
    return _written(run, self, Value(own, values.learned), places)


@rule("scatter_add", "scatter", "scatter_reduce")
def scatter(run: Run, self: Value, dim: int, index: Value, src: Value | None = None, value: Any = None,
            reduce: str = "sum", **_: Any) -> Value:  # fmt: skip
    """Along the axis nothing moves; beside it an index that differs from unit to unit leaves permutations."""
    if src is None or not len(self.dims) == len(index.dims) == len(src.dims) or not self.dims:
        return run.not_known(f"{run.operator} in this form", run.operands)  # type: ignore[no-any-return]
    axis = dim % len(self.dims)
    beside = [place for place in range(len(self.dims)) if place != axis]
    along = [place for place in beside if len({one.shape[place] for one in (self, index, src)}) > 1]
    if reduce not in LINEAR:
        self, src = (bend(run, one, Group.PERMUTATION, "entries are taken together") for one in (self, src))
    for place in (axis, *along):
        run.axes.restrict(index.dims[place], Group.FIXED, run.why("it says where to write"))
    found = _written(run, self, src, [axis, *along])
    own: list[Term] = [Same(1) if place in (axis, *along) else term for place, term in enumerate(index.dims)]
    why = run.why("an index differs along it")
    dims = combined(run, found, Value(own), why=why, pair=Group.PERMUTATION)
    return run.made(dims, found)


def _written(run: Run, self: Value, source: Value, axes: Sequence[int]) -> Value:
    """What is written into, and what into it, lie in one space along all axes but those that are written along."""
    why = run.why("it is written where an index says")
    for value in (self, source):
        lead = len(self.dims) - len(value.dims)
        for axis in axes:
            if axis >= lead:
                run.axes.restrict(value.dims[axis - lead], Group.FIXED, why)
    lead = len(self.dims) - len(source.dims)
    left = [Same(1) if axis in axes else term for axis, term in enumerate(self.dims)]
    right = [Same(1) if axis + lead in axes else term for axis, term in enumerate(source.dims)]
    dims = combined(run, Value(left), Value(right), why=why, same=Group.PERMUTATION)
    for axis in axes:
        dims[axis] = positions(run, run.shape[axis : axis + 1])[0]
    return run.made(dims, self, source)
