"""Operators that sum, average or otherwise take axes together."""

from __future__ import annotations

from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Same, Still, Term
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.convolution import POSITION
from interbasin.wiring.operators.norm import read_lengths


def _axes(value: Value, dim: Any) -> list[int]:
    rank = len(value.dims)
    if dim is None or dim == []:
        return list(range(rank))
    return [axis % rank for axis in ([dim] if isinstance(dim, int) else dim)]


def _without(run: Run, value: Value, axes: list[int], keepdim: bool) -> Value:
    dims: list[Term] = [Same(1) if axis in axes else term for axis, term in enumerate(value.dims)]
    return run.made([term for axis, term in enumerate(dims) if keepdim or axis not in axes], value)


@rule("mean", "sum", lazy=True)
def total(run: Run, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    axes = _axes(self, dim)
    if self.pending is not None and self.pending.kind == "square":
        base = run.settle(self.pending.base)
        along = [base.dims[axis] for axis in axes]
        read_lengths(run, along, [term for axis, term in enumerate(base.dims) if axis not in axes])
        return _without(run, base, axes, keepdim)
    value = run.settle(self)
    for axis in axes:
        run.axes.restrict(value.dims[axis], Group.PERMUTATION, run.why("its units are summed"))
    return _without(run, value, axes, keepdim)


@rule("var", "std", "var_mean", "std_mean", "amax", "amin", "logsumexp", "prod", "any", "all", "max", "min", "argmax",
      "argmin", "median", "nanmean", "count_nonzero")  # fmt: skip
def taken_together(run: Run, self: Value, dim: Any = None, keepdim: bool = False, other: Value | None = None, **_: Any
                   ) -> Any:  # fmt: skip
    if other is not None:
        from interbasin.wiring.operators.elementwise import pointwise

        return pointwise(run, self, other)
    for term in self.dims:
        run.axes.restrict(term, Group.PERMUTATION, run.why("its units are taken together"))
    axes = _axes(self, dim)
    found = _without(run, self, axes, keepdim)
    if run.operator.startswith(("aten.argm", "aten.max.dim", "aten.min.dim", "aten.median")):
        # An index says which unit it was, and units may move.
        for axis in axes:
            run.axes.restrict(self.dims[axis], Group.FIXED, run.why("the place of an extreme is asked for"))
    return found if len(run.shapes) == 1 else [Value(list(found.dims), found.learned) for _ in run.shapes]


@rule("cumsum", "cumprod", "logcumsumexp", "diff")
def running(run: Run, self: Value, dim: int = -1, **others: Any) -> Any:
    if any(isinstance(other, Value) for other in others.values()):
        return run.not_known(f"{run.operator} with something before or after it", run.operands)
    linear = run.operator.startswith(("aten.cumsum", "aten.diff"))
    for axis, term in enumerate(self.dims):
        if axis == dim % len(self.dims):
            run.axes.restrict(term, Group.FIXED, run.why("it is summed up in order"))
        elif not linear:
            run.axes.restrict(term, Group.PERMUTATION, run.why("an elementwise function bends it"))
    dims = list(self.dims)
    axis = dim % len(dims)
    dims[axis] = Still(run.shape[axis], POSITION) if run.shape[axis] > 1 else Same(1)
    return run.made(dims, self) if len(run.shapes) == 1 else [run.made(dims, self) for _ in run.shapes]


@rule("topk", "sort")
def ordered(run: Run, self: Value, dim: int = -1, **_: Any) -> list[Value]:
    axis = dim % len(self.dims)
    run.axes.restrict(self.dims[axis], Group.FIXED, run.why("its units are sorted"))
    for term in self.dims:
        run.axes.restrict(term, Group.PERMUTATION, run.why("its units are sorted"))
    dims = list(self.dims)
    dims[axis] = Still(run.shapes[0][axis], POSITION) if run.shapes[0][axis] > 1 else Same(1)
    return [run.made(dims, self), run.made(dims)]
