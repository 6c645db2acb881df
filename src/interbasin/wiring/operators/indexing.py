"""Operators that read or write entries where an index says: what lies beside it moves, what it runs along does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Reason, Same, Term
from interbasin.wiring.interpret import Interpreter, Value, rule
from interbasin.wiring.operators.convolution import position
from interbasin.wiring.operators.elementwise import combine, nonlinear

LOOKED_UP = Reason("lookup", "rows are looked up by index along it")


@rule("embedding")
def embedding(run: Interpreter, weight: Value, indices: Value, **_: Any) -> Value:
    run.axes.restrict(weight.dims[0], Group.FIXED, LOOKED_UP)
    run.fix(indices, run.why("it says where to look"))
    return run.result([*indices.dims, weight.dims[1]])


@rule("index_select")
def index_select(run: Interpreter, self: Value, dim: int, index: Value) -> Value:
    run.axes.restrict(self.dims[dim], Group.FIXED, LOOKED_UP)
    run.fix(index, run.why("it says where to look"))
    dims = list(self.dims)
    dims[dim] = position(run.shape[dim])
    return run.result(dims)


@rule("index", "_unsafe_index")
def index(run: Interpreter, self: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing: the indexed axes are replaced by those of the indices, at the first of them if adjacent."""
    places = [axis for axis, indexer in enumerate(indices) if indexer is not None]
    given = [indexer for indexer in indices if indexer is not None]
    for axis in places:
        run.axes.restrict(self.dims[axis], Group.FIXED, LOOKED_UP)
    for indexer in given:
        run.fix(indexer, run.why("it says where to look"))
    kept = [term for axis, term in enumerate(self.dims) if axis not in places]
    count = len(run.shape) - len(kept)
    adjacent = places == list(range(places[0], places[0] + len(places)))
    start = places[0] if adjacent else 0
    if count < 0:
        return run.not_known("aten.index with a mask", [self])  # type: ignore[no-any-return]
    fresh = [position(size) for size in run.shape[start : start + count]]
    return run.result([*kept[:start], *fresh, *kept[start:]])


@rule("take_along_dim")
def take_along_dim(run: Interpreter, self: Value, indices: Value, dim: int | None = None) -> Value:
    if dim is None:
        return run.not_known("aten.take_along_dim of all entries", [self, indices])  # type: ignore[no-any-return]
    return gather(run, self, dim, indices)  # type: ignore[return-value]


@rule("gather")
def gather(run: Interpreter, self: Value, dim: int, index: Value, **_: Any) -> Value:
    axis = dim % len(self.dims)
    run.axes.restrict(self.dims[axis], Group.FIXED, LOOKED_UP)
    dims: list[Term] = []
    for place, (term, picked) in enumerate(zip(self.dims, index.dims, strict=True)):
        if place == axis:
            run.axes.restrict(picked, Group.FIXED, run.why("it says where to look"))
            dims.append(position(run.shape[place]))
        elif term.size == picked.size:
            # Where the index differs along an axis, its units are picked one by one.
            why = run.why("its units are picked one by one")
            dims.append(run.axes.unify(term, picked, why, pair=Group.PERMUTATION))
        else:
            for met in (term, picked):
                run.axes.restrict(met, Group.FIXED, LOOKED_UP)
            dims.append(position(run.shape[place]))
    return run.result(dims)


@rule("embedding_bag")
def embedding_bag(
    run: Interpreter, weight: Value, indices: Value, offsets: Value, mode: int = 0, per_sample_weights: Value | None =
    None, **_: Any,
) -> list[Value]:  # fmt: skip
    """Sums and means of rows are linear; a maximum goes entry by entry."""
    run.axes.restrict(weight.dims[0], Group.FIXED, LOOKED_UP)
    for where in (indices, offsets, per_sample_weights):
        if where is not None:
            run.fix(where, run.why("it says where to look"))
    if mode == 2:
        run.axes.restrict(weight.dims[1], Group.PERMUTATION, run.why("a maximum over rows bends it"))
    bags = run.result([position(run.shapes[0][0]), weight.dims[1]])
    others = [Value([position(size) for size in shape]) for shape in run.shapes[1:]]
    if mode == 2:
        # Beside the sums stands which row was the largest, for each unit.
        others[-1] = (
            run.result([position(run.shapes[-1][0]), weight.dims[1]]) if len(run.shapes[-1]) == 2 else others[-1]
        )
    return [bags, *others]


# ---------------------------------------------------------------------- writing


# How several entries that come to one place may be taken together without bending them.
LINEAR = frozenset({"sum", "mean", "add"})


@rule("index_add", "index_copy")
def index_add(run: Interpreter, self: Value, dim: int, index: Value, source: Value, **_: Any) -> Value:
    if len(self.dims) != len(source.dims) or not self.dims:
        return run.not_known(f"{run.operator} of different ranks", [self, index, source])  # type: ignore[no-any-return]
    run.fix(index, run.why("it says where to write"))
    return _written(run, self, source, [dim % len(self.dims)])


@rule("index_put", "_unsafe_index_put")
def index_put(
    run: Interpreter, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, **_: Any
) -> Value:
    """Only where every index is a vector: a mask of more axes is not told from an index of as many."""
    places = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    adjacent = bool(places) and places == list(range(places[0], places[0] + len(places)))
    if not adjacent or any(len(index.dims) != 1 for index in given):
        return run.not_known(f"{run.operator} with such indices", run.operands)  # type: ignore[no-any-return]
    for index in given:
        run.fix(index, run.why("it says where to write"))
    # One axis of the values stands for all that are indexed.
    after = len(self.dims) - places[-1] - 1
    own = list(values.dims)
    if len(own) > after:
        run.axes.restrict(own[len(own) - after - 1], Group.FIXED, run.why("it is written where an index says"))
        own[len(own) - after - 1 : len(own) - after] = [Same(1)] * len(places)
    return _written(run, self, Value(own, values.learned), places)


@rule("scatter_add", "scatter", "scatter_reduce")
def scatter(run: Interpreter, self: Value, dim: int, index: Value, src: Value | None = None, value: Any = None,
            reduce: str = "sum", **_: Any) -> Value:  # fmt: skip
    """Along the axis nothing moves; beside it an index that differs from unit to unit leaves permutations."""
    if src is None or not len(self.dims) == len(index.dims) == len(src.dims) or not self.dims:
        return run.not_known(f"{run.operator} in this form", run.operands)  # type: ignore[no-any-return]
    axis = dim % len(self.dims)
    beside = [place for place in range(len(self.dims)) if place != axis]
    along = [place for place in beside if len({operand.shape[place] for operand in (self, index, src)}) > 1]
    if reduce not in LINEAR:
        self, src = (
            nonlinear(run, operand, Group.PERMUTATION, "entries are taken together") for operand in (self, src)
        )
    for place in (axis, *along):
        run.axes.restrict(index.dims[place], Group.FIXED, run.why("it says where to write"))
    written = _written(run, self, src, [axis, *along])
    own: list[Term] = [Same(1) if place in (axis, *along) else term for place, term in enumerate(index.dims)]
    why = run.why("an index differs along it")
    dims = combine(run, written, Value(own), why=why, pair=Group.PERMUTATION)
    return run.result(dims, written)


def _written(run: Interpreter, self: Value, source: Value, axes: Sequence[int]) -> Value:
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
    dims = combine(run, Value(left), Value(right), why=why, same=Group.PERMUTATION)
    for axis in axes:
        dims[axis] = position(run.shape[axis])
    return run.result(dims, self, source)
