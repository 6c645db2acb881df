"""Operators that take axes together: sums, extremes, lengths and the norms of networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, Same, Term
from interbasin.wiring.interpret import Interpreter, Value, rule
from interbasin.wiring.operators.convolution import position
from interbasin.wiring.operators.elementwise import add_like, multiply, pointwise


def _axes(value: Value, dim: Any) -> list[int]:
    rank = len(value.dims)
    if dim is None or dim == []:
        return list(range(rank))
    return [axis % rank for axis in ([dim] if isinstance(dim, int) else dim)]


def _without(run: Interpreter, value: Value, axes: list[int], keepdim: bool) -> Value:
    dims: list[Term] = [Same(1) if axis in axes else term for axis, term in enumerate(value.dims)]
    return run.result([term for axis, term in enumerate(dims) if keepdim or axis not in axes], value)


@rule("mean", "sum", lazy=True)
def total(run: Interpreter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
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
def taken_together(
    run: Interpreter, self: Value, dim: Any = None, keepdim: bool = False, other: Value | None = None, **_: Any
) -> Any:
    if other is not None:
        return pointwise(run, self, other)
    run.restrict(self.dims, Group.PERMUTATION, "its units are taken together")
    axes = _axes(self, dim)
    reduced = _without(run, self, axes, keepdim)
    if run.operator.startswith(("aten.argm", "aten.max.dim", "aten.min.dim", "aten.median")):
        # An index says which unit it was, and units may move.
        run.restrict((self.dims[axis] for axis in axes), Group.FIXED, "the place of an extreme is asked for")
    return reduced if len(run.shapes) == 1 else [Value(list(reduced.dims), reduced.learned) for _ in run.shapes]


@rule("cumsum", "cumprod", "logcumsumexp", "diff")
def running(run: Interpreter, self: Value, dim: int = -1, **others: Any) -> Any:
    if any(isinstance(other, Value) for other in others.values()):
        return run.not_known(f"{run.operator} with something before or after it", run.operands)
    dims = list(self.dims)
    axis = dim % len(dims)
    run.axes.restrict(dims[axis], Group.FIXED, run.why("it is summed up in order"))
    if not run.operator.startswith(("aten.cumsum", "aten.diff")):
        run.restrict(dims, Group.PERMUTATION, "an elementwise function bends it")
    dims[axis] = position(run.shape[axis])
    return run.result(dims, self) if len(run.shapes) == 1 else [run.result(dims, self) for _ in run.shapes]


@rule("topk", "sort")
def ordered(run: Interpreter, self: Value, dim: int = -1, **_: Any) -> list[Value]:
    axis = dim % len(self.dims)
    run.axes.restrict(self.dims[axis], Group.FIXED, run.why("its units are sorted"))
    run.restrict(self.dims, Group.PERMUTATION, "its units are sorted")
    dims = list(self.dims)
    dims[axis] = position(run.shapes[0][axis])
    return [run.result(dims, self), run.result(dims)]


# ---------------------------------------------------------------------- norms


@rule("layer_norm", "native_layer_norm")
def layer_norm(
    run: Interpreter,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    **_: Any,
) -> Value:
    _take_statistics(run, input.dims, input.dims[: -len(normalized_shape)])
    return _scaled_and_shifted(run, run.result(input.dims, input), weight, bias)


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(
    run: Interpreter, input: Value, normalized_shape: Sequence[int], weight: Value | None = None, **_: Any
) -> Value:
    read_lengths(run, input.dims[-len(normalized_shape) :], input.dims[: -len(normalized_shape)])
    return _scaled_and_shifted(run, run.result(input.dims, input), weight, None)


def read_lengths(run: Interpreter, along: Sequence[Term], beside: Sequence[Term]) -> None:
    """The length of the vectors along some axes is taken: orthogonal maps keep it. Entries beside it stand alone.

    Each of these entries has one length, so how they move cannot depend on what the length is taken along.
    """
    run.restrict(along, Group.ORTHOGONAL, "its length is taken")
    run.restrict(beside, Group.PERMUTATION, "lengths are taken for each of its entries")
    run.axes.settle(beside)


def _scaled_and_shifted(run: Interpreter, value: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        value = multiply(run, value, weight)
    return value if bias is None else add_like(run, value, bias)


def _beside_positions(value: Value, channel: Value) -> Value:
    """A vector over the channels, shaped to meet a value of (batch, channels, positions...)."""
    return Value([channel.dims[0], *(Same(1) for _ in value.dims[2:])], channel.learned)


@rule("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "_batch_norm_impl_index")
def batch_norm(
    run: Interpreter,
    input: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    training: bool = False,
    **_: Any,
) -> Value:
    run.axes.restrict(input.dims[1], Group.SIGNED, run.why("it is normalised unit by unit"))
    if training or running_mean is None:
        _take_statistics(run, [input.dims[0], *input.dims[2:]], [input.dims[1]])
    return _by_units(run, input, weight, bias, running_mean, running_var)


def _take_statistics(run: Interpreter, along: Sequence[Term], beside: Sequence[Term]) -> None:
    """The statistics of a norm come from the batch itself, along some axes; those beside cannot depend on these."""
    run.restrict(along, Group.PERMUTATION, "its mean and variance are taken")
    run.axes.settle(beside)


def _by_units(
    run: Interpreter, value: Value, weight: Value | None, bias: Value | None, running_mean: Value | None = None,
    running_var: Value | None = None,
) -> Value:  # fmt: skip
    """Statistics that were kept, a gain and a bias, with an entry for each channel."""
    value = run.result(value.dims, value)
    if running_mean is not None:
        value = add_like(run, value, _beside_positions(value, running_mean))
    for scale in (running_var, weight):
        if scale is not None:
            value = multiply(run, value, _beside_positions(value, scale))
    return value if bias is None else add_like(run, value, _beside_positions(value, bias))


@rule("instance_norm")
def instance_norm(
    run: Interpreter, input: Value, weight: Value | None = None, bias: Value | None = None,
    running_mean: Value | None = None, running_var: Value | None = None, **_: Any,
) -> Value:  # fmt: skip
    run.axes.restrict(input.dims[1], Group.SIGNED, run.why("it is normalised unit by unit"))
    run.axes.restrict(input.dims[0], Group.PERMUTATION, run.why("its mean and variance are taken"))
    _take_statistics(run, input.dims[2:], input.dims[:2])
    return _by_units(run, input, weight, bias, running_mean, running_var)


@rule("group_norm", "native_group_norm")
def group_norm(
    run: Interpreter, input: Value, weight: Value | None = None, bias: Value | None = None, num_groups: int | None =
    None, group: int | None = None, **_: Any,
) -> Value:  # fmt: skip
    groups = num_groups if num_groups is not None else group
    assert groups is not None
    run.restrict(input.dims, Group.PERMUTATION, "its mean and variance are taken")
    factors = run.axes.split(input.dims[1], [groups, input.shape[1] // groups])
    if factors is None:
        return Value(run.give_up(input, run.shape))
    run.axes.settle([input.dims[0], factors[0]])
    value = run.result([input.dims[0], Grid(tuple(factors)), *input.dims[2:]], input)
    return _by_units(run, value, weight, bias)


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(run: Interpreter, v: Value, g: Value, dim: int = 0) -> Value:
    """``g v / |v|`` with the length over all axes but ``dim``."""
    read_lengths(run, [term for axis, term in enumerate(v.dims) if axis != dim % len(v.dims)], [v.dims[dim]])
    return multiply(run, run.result(v.dims, v), g)


@rule("linalg_vector_norm", "norm", "linalg_norm")
def vector_norm(
    run: Interpreter, self: Value, ord: Any = 2, p: Any = None, dim: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    order = p if p is not None else ord
    axes = _axes(self, dim)
    along = [self.dims[axis] for axis in axes]
    if run.operator.startswith("aten.linalg_norm") and len(axes) == 2:
        for term in along:
            run.axes.settle([term])  # the norm of a matrix: neither of its axes can move by the other
    if order == 2:
        read_lengths(run, along, [term for axis, term in enumerate(self.dims) if axis not in axes])
    else:
        run.restrict(self.dims, Group.PERMUTATION, "a norm is taken")
    return _without(run, self, axes, keepdim)


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def all_distances(run: Interpreter, x1: Value, x2: Value, p: float = 2, **_: Any) -> Value:
    """The distances of all rows of one from all rows of the other: lengths of differences."""
    rows = Value([*x1.dims[:-1], Same(1), x1.dims[-1]], x1.learned)
    other = Value([*x2.dims[:-2], Same(1), *x2.dims[-2:]], x2.learned)
    return _length(run, add_like(run, rows, other), p)


@rule("pairwise_distance")
def distance(run: Interpreter, x1: Value, x2: Value, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Value:
    apart = add_like(run, x1, x2)
    run.axes.restrict(apart.dims[-1], Group.PERMUTATION, run.why("a number is added to all its units alike"))
    length = _length(run, apart, p)
    return run.result([*length.dims, Same(1)], length) if keepdim else length


def _length(run: Interpreter, value: Value, order: float) -> Value:
    read_lengths(run, value.dims[-1:], value.dims[:-1])
    if order != 2:
        run.axes.restrict(value.dims[-1], Group.PERMUTATION, run.why("a norm is taken"))
    return run.result(value.dims[:-1], value)
