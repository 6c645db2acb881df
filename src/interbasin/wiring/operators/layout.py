"""Operators that only lay out entries anew: views, transpositions, repetitions; and tensors made from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Each, Grid, In, Row, Same, Still, Term
from interbasin.wiring.interpret import Interpreter, Value, constant, rule
from interbasin.wiring.operators.convolution import POSITION


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like",
      "full_like", "empty_like", "scalar_tensor", "fill", "zero")  # fmt: skip
def filled(run: Interpreter, self: Value | None = None, value: Any = None, fill_value: Any = None, **_: Any) -> Value:
    """Of ``self`` only the shape counts; a number to fill it with may come as a tensor without axes."""
    return Value([Same(size) for size in run.shape])


@rule("arange", "linspace", "eye", "tril_indices", "triu_indices", "logspace")
def counted(run: Interpreter, **_: Any) -> Value:
    return constant(run.shape, POSITION)


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_copy", "_reshape_alias", "reshape_as",
      "view_as", "squeeze", "unsqueeze", "ravel", "atleast_2d", "atleast_1d", "squeeze_copy")  # fmt: skip
def view(run: Interpreter, self: Value, dtype: Any = None, other: Value | None = None, **_: Any) -> Value:
    if dtype is not None:
        return run.not_known("aten.view as another dtype", [self])  # type: ignore[no-any-return]
    return reshaped(run, self, run.shape)


def reshaped(run: Interpreter, value: Value, shape: Sequence[int]) -> Value:
    """Row-major entries under other sizes: axes are split and joined where the two lists of sizes have common marks."""
    if 0 in shape:
        return Value([Same(size) for size in shape])
    sources = [term for term in value.dims if term.size > 1]
    wanted = [size for size in shape if size > 1]
    pieces: list[Term] = []
    for inner, sizes in _runs([term.size for term in sources], wanted):
        group = [sources.pop(0) for _ in inner]
        if len(group) == len(sizes) == 1:
            pieces.append(group[0])
            continue
        whole = run.axes.resolve(Grid(tuple(group)))
        factors = run.axes.split(whole, sizes)
        if factors is None:
            return Value(run.give_up(value, shape))
        pieces.extend(factors)
    waiting = iter(pieces)
    return run.result([next(waiting) if size > 1 else Same(1) for size in shape], value)


def _runs(one: Sequence[int], other: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of both lists with equal products, in order."""
    runs: list[tuple[list[int], list[int]]] = []
    left, right = list(one), list(other)
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        while math.prod(a) != math.prod(b):
            if math.prod(a) < math.prod(b):
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        runs.append((a, b))
    return runs


@rule("permute")
def permute(run: Interpreter, self: Value, dims: Sequence[int]) -> Value:
    return run.result([self.dims[axis] for axis in dims], self)


@rule("transpose", "swapaxes", "swapdims")
def transpose(
    run: Interpreter, self: Value, dim0: int = 0, dim1: int = 1, axis0: int | None = None, axis1: int | None = None
) -> Value:
    first, second = (dim0, dim1) if axis0 is None or axis1 is None else (axis0, axis1)
    dims = list(self.dims)
    dims[first], dims[second] = dims[second], dims[first]
    return run.result(dims, self)


@rule("numpy_T")
def reversed_axes(run: Interpreter, self: Value) -> Value:
    return run.result(self.dims[::-1], self)


@rule("t", "mT", "matrix_H", "mH", "adjoint")
def turned(run: Interpreter, self: Value) -> Value:
    return run.result([*self.dims[:-2], *self.dims[:-3:-1]], self)


@rule("movedim", "moveaxis")
def movedim(run: Interpreter, self: Value, source: Any, destination: Any) -> Value:
    rank = len(self.dims)
    sources = [axis % rank for axis in ([source] if isinstance(source, int) else source)]
    targets = [axis % rank for axis in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(axis for axis in range(rank) if axis not in sources)
    order = [sources[targets.index(place)] if place in targets else next(rest) for place in range(rank)]
    return run.result([self.dims[axis] for axis in order], self)


@rule("expand", "broadcast_to", "expand_as", "expand_copy")
def expand(run: Interpreter, self: Value, other: Value | None = None, **_: Any) -> Value:
    shape = run.shape
    lead = len(shape) - len(self.dims)
    dims: list[Term] = [Same(size) for size in shape[:lead]]
    for term, size in zip(self.dims, shape[lead:], strict=True):
        dims.append(Same(size) if term.size == 1 and size != 1 else term)
    return run.result(dims, self)


@rule("repeat", "tile")
def repeat(
    run: Interpreter, self: Value, repeats: Sequence[int] | None = None, dims: Sequence[int] | None = None
) -> Value:
    times = list(repeats if repeats is not None else dims or [])
    rank = max(len(times), len(self.dims))
    times = [1] * (rank - len(times)) + times
    own: list[Term] = [Same(1)] * (rank - len(self.dims)) + list(self.dims)
    repeated = [Grid((Same(count), term)) if count > 1 else term for count, term in zip(times, own, strict=True)]
    return run.result(repeated, self)


@rule("repeat_interleave")
def repeat_interleave(run: Interpreter, self: Value, repeats: Any, dim: int | None = None, **_: Any) -> Value:
    if not isinstance(repeats, int) or dim is None:
        return run.not_known("aten.repeat_interleave with a tensor", [self])  # type: ignore[no-any-return]
    dims = list(self.dims)
    dims[dim] = Grid((dims[dim], Same(repeats)))
    return run.result(dims, self)


@rule("pixel_shuffle")
def pixel_shuffle(run: Interpreter, self: Value, upscale_factor: int) -> Value:
    *lead, channels, height, width = self.dims
    factor = upscale_factor
    spread = run.axes.split(channels, [channels.size // factor**2, factor, factor])
    if spread is None:
        return Value(run.give_up(self, run.shape))
    return run.result([*lead, spread[0], Grid((height, spread[1])), Grid((width, spread[2]))], self)


@rule("pixel_unshuffle")
def pixel_unshuffle(run: Interpreter, self: Value, downscale_factor: int) -> Value:
    *lead, channels, height, width = self.dims
    factor = downscale_factor
    tall = run.axes.split(height, [height.size // factor, factor])
    wide = run.axes.split(width, [width.size // factor, factor])
    if tall is None or wide is None:
        return Value(run.give_up(self, run.shape))
    return run.result([*lead, Grid((channels, tall[1], wide[1])), tall[0], wide[0]], self)


@rule("channel_shuffle")
def channel_shuffle(run: Interpreter, self: Value, groups: int) -> Value:
    factors = run.axes.split(self.dims[1], [groups, self.shape[1] // groups])
    if factors is None:
        return Value(run.give_up(self, run.shape))
    return run.result([self.dims[0], Grid((factors[1], factors[0])), *self.dims[2:]], self)


@rule("cat", "concat", "concatenate", lazy=True)
def cat(run: Interpreter, tensors: Sequence[Value], dim: int = 0) -> Value:
    tensors = [value for value in tensors if value.shape != (0,)]
    axis = dim % len(run.shape)
    turned = _turned_halves(run, tensors, axis, strided=False)
    if turned is not None:
        return turned
    values = [run.settle(value) for value in tensors]
    if len(values) > 1 and all(value is values[0] for value in values):
        dims = list(values[0].dims)
        dims[axis] = Grid((Same(len(values)), dims[axis]))
        return run.result(dims, values[0])
    return _joined(run, values, axis)


def _joined(run: Interpreter, values: Sequence[Value], axis: int) -> Value:
    why = run.why("segments of different spaces are joined along another axis")
    rest = list(values[0].dims)
    for value in values[1:]:
        for position, term in enumerate(value.dims):
            if position != axis:
                rest[position] = run.axes.unify(rest[position], term, why, same=Group.PERMUTATION)
    # What is the same all along a segment differs from the next segment.
    parts = (value.dims[axis] for value in values)
    segments = [Still(part.size, POSITION) if isinstance(part, Same) else part for part in parts]
    rest[axis] = run.axes.resolve(Row(tuple(segments)))
    return run.result(rest, *values)


@rule("stack", lazy=True)
def stack(run: Interpreter, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % len(run.shape)
    turned = _turned_halves(run, tensors, axis - 1, strided=True)
    if turned is not None:
        # The axis of pairs stands behind the axis that was halved.
        return reshaped(run, turned, run.shape)
    values = []
    for value in tensors:
        settled = run.settle(value)
        values.append(Value([*settled.dims[:axis], Same(1), *settled.dims[axis:]], settled.learned))
    if len(values) > 1 and all(value is tensors[0] for value in tensors):
        return run.result([*values[0].dims[:axis], Same(len(values)), *values[0].dims[axis + 1 :]], values[0])
    return _joined(run, values, axis)


def _turned_halves(run: Interpreter, tensors: Sequence[Value], axis: int, strided: bool) -> Value | None:
    """Halves of one axis put together crosswise with one sign changed: a quarter turn of every pair of channels.

    That is how rotary positions are written. What commutes with the turn is a rotation and scale of each pair, so the
    axis becomes pairs by frequencies, and keeps more of its freedom than if it were cut.
    """
    pending = [value.pending for value in tensors]
    if len(pending) != 2 or any(piece is None or piece.kind != "piece" for piece in pending):
        return None
    first, second = pending
    assert first is not None and second is not None
    crossed = (first.index, second.index) == (1, 0) and (first.sign, second.sign) in ((-1, 1), (1, -1))
    alike = first.base is second.base and first.axis == second.axis == axis and first.strided == second.strided
    if not (crossed and alike and first.strided == strided):
        return None
    base = run.settle(first.base)
    half = base.shape[axis] // 2
    factors = run.axes.split(base.dims[axis], [half, 2] if strided else [2, half])
    if factors is None:
        return None
    pairs = factors[1] if strided else factors[0]
    if not all(isinstance(part, In) for part in (pairs.parts if isinstance(pairs, Each) else [pairs])):
        return None  # two that were the same are not so any more after the turn
    run.axes.restrict(pairs, Group.SIMILARITY, run.why("rotary positions turn it"))
    # The turn mixes the two of a pair, so nothing else can move differently for one and the other.
    beside = factors[0] if strided else factors[1]
    run.axes.settle([*base.dims[:axis], beside, *base.dims[axis + 1 :]])
    return run.result(base.dims, base)
