"""Operators that look entries up by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Reason, Same, Still, Term
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.convolution import POSITION

LOOKED_UP = Reason("lookup", "rows are looked up by index along it")


@rule("embedding")
def embedding(run: Run, weight: Value, indices: Value, **_: Any) -> Value:
    run.axes.restrict(weight.dims[0], Group.FIXED, LOOKED_UP)
    run.fix(indices, run.why("it says where to look"))
    return run.made([*indices.dims, weight.dims[1]])


@rule("index_select")
def index_select(run: Run, self: Value, dim: int, index: Value) -> Value:
    run.axes.restrict(self.dims[dim], Group.FIXED, LOOKED_UP)
    run.fix(index, run.why("it says where to look"))
    dims = list(self.dims)
    dims[dim] = _looked_up(run.shape[dim])
    return run.made(dims)


@rule("index", "_unsafe_index")
def index(run: Run, self: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing: the indexed axes are replaced by those of the indices, at the first of them if adjacent."""
    places = [axis for axis, found in enumerate(indices) if found is not None]
    given = [found for found in indices if found is not None]
    for axis in places:
        run.axes.restrict(self.dims[axis], Group.FIXED, LOOKED_UP)
    for found in given:
        run.fix(found, run.why("it says where to look"))
    kept = [term for axis, term in enumerate(self.dims) if axis not in places]
    count = len(run.shape) - len(kept)
    adjacent = places == list(range(places[0], places[0] + len(places)))
    start = places[0] if adjacent else 0
    if count < 0:
        return run.not_known("aten.index with a mask", [self])  # type: ignore[no-any-return]
    fresh = [_looked_up(size) for size in run.shape[start : start + count]]
    return run.made([*kept[:start], *fresh, *kept[start:]])


@rule("take_along_dim")
def take_along_dim(run: Run, self: Value, indices: Value, dim: int | None = None) -> Value:
    if dim is None:
        return run.not_known("aten.take_along_dim of all entries", [self, indices])  # type: ignore[no-any-return]
    return gather(run, self, dim, indices)  # type: ignore[return-value]


@rule("gather")
def gather(run: Run, self: Value, dim: int, index: Value, **_: Any) -> Value:
    axis = dim % len(self.dims)
    run.axes.restrict(self.dims[axis], Group.FIXED, LOOKED_UP)
    dims: list[Term] = []
    for place, (term, found) in enumerate(zip(self.dims, index.dims, strict=True)):
        if place == axis:
            run.axes.restrict(found, Group.FIXED, run.why("it says where to look"))
            dims.append(_looked_up(run.shape[place]))
        elif term.size == found.size:
            # Where the index differs along an axis, its units are picked one by one.
            dims.append(run.axes.unify(term, found, run.why("its units are picked one by one"), pair=Group.PERMUTATION))
        else:
            for one in (term, found):
                run.axes.restrict(one, Group.FIXED, LOOKED_UP)
            dims.append(_looked_up(run.shape[place]))
    return run.made(dims)


def _looked_up(size: int) -> Term:
    return Still(size, POSITION) if size > 1 else Same(1)


@rule("embedding_bag")
def embedding_bag(
    run: Run, weight: Value, indices: Value, offsets: Value, mode: int = 0, per_sample_weights: Value | None = None,
    **_: Any,
) -> list[Value]:  # fmt: skip
    """Sums and means of rows are linear; a maximum goes entry by entry."""
    run.axes.restrict(weight.dims[0], Group.FIXED, LOOKED_UP)
    for found in (indices, offsets, per_sample_weights):
        if found is not None:
            run.fix(found, run.why("it says where to look"))
    if mode == 2:
        run.axes.restrict(weight.dims[1], Group.PERMUTATION, run.why("a maximum over rows bends it"))
    bags = run.made([_looked_up(run.shapes[0][0]), weight.dims[1]])
    others = [Value([_looked_up(size) for size in shape]) for shape in run.shapes[1:]]
    if mode == 2:
        # Beside the sums stands which row was the largest, for each unit.
        others[-1] = (
            run.made([_looked_up(run.shapes[-1][0]), weight.dims[1]]) if len(run.shapes[-1]) == 2 else others[-1]
        )
    return [bags, *others]
