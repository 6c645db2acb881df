"""Operators that keep a segment of an axis, or give the segments of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Each, Grid, In, Row, Same, Still, Term
from interbasin.wiring.interpret import Interpreter, Pending, Value, rule
from interbasin.wiring.operators.convolution import POSITION, position, positions


def _piece(run: Interpreter, value: Value, axis: int, start: int, length: int, *, strided: bool = False) -> Value:
    """A half of an axis waits to see whether the halves are put together again; any other segment is cut out."""
    size = value.shape[axis]
    halved = size == 2 * length and (strided or start in (0, length)) and run.axes.moves(value.dims[axis])
    if halved:
        index = start if strided else start // length
        shape = (*value.shape[:axis], length, *value.shape[axis + 1 :])
        waiting = Pending("piece", value, axis, index, strided)
        return Value([Same(extent) for extent in shape], value.learned, waiting)
    return Value(run.take(value, axis, start, length), value.learned)


@rule("slice")
def slice_(run: Interpreter, self: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
           ) -> Value:  # fmt: skip
    axis = dim % len(self.dims)
    size = self.shape[axis]
    first, last, _ = slice(start, end).indices(size)
    length = max(last - first, 0)
    if length == size and step == 1:
        return self
    if not run.axes.moves(self.dims[axis]) or step == 1:
        if length == 0:
            return Value([Same(extent) for extent in run.shape])
        if step == 1:
            return _piece(run, self, axis, first, length)
        kept = list(self.dims)
        kept[axis] = _shorter(self.dims[axis], run.shape[axis])
        return run.result(kept, self)
    if size % step or first >= step or last != size:
        return Value(run.give_up(self, run.shape), self.learned)
    if step == 2:
        return _piece(run, self, axis, first, size // 2, strided=True)
    return _one_of(run, self, axis, size // step, step, first)


def _one_of(run: Interpreter, value: Value, axis: int, outer: int, inner: int, index: int) -> Value:
    factors = run.axes.split(value.dims[axis], [outer, inner])
    if factors is None:
        return Value(run.give_up(value, run.shape), value.learned)
    spread = [*value.dims[:axis], *factors, *value.dims[axis + 1 :]]
    kept = run.take(Value(spread), axis + 1, index, 1)
    return Value([term for position, term in enumerate(kept) if position != axis + 1], value.learned)


def _shorter(term: Term, size: int) -> Term:
    why = term.why if isinstance(term, Still) else POSITION
    return Same(size) if isinstance(term, Same) or size == 1 else Still(size, why)


@rule("narrow")
def narrow(run: Interpreter, self: Value, dim: int, start: int, length: int) -> Value:
    axis = dim % len(self.dims)
    return _piece(run, self, axis, start + self.shape[axis] if start < 0 else start, length)


@rule("select")
def select(run: Interpreter, self: Value, dim: int, index: int) -> Value:
    axis = dim % len(self.dims)
    size = self.shape[axis]
    kept = run.take(self, axis, index % size, 1) if size > 1 else list(self.dims)
    return run.result([term for position, term in enumerate(kept) if position != axis], self)


@rule("unbind")
def unbind(run: Interpreter, self: Value, dim: int = 0) -> list[Value]:
    return [select(run, self, dim, index) for index in range(self.shape[dim])]  # type: ignore[misc]


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split", "split_copy")
def split(run: Interpreter, self: Value, dim: int = 0, **_: Any) -> list[Value]:
    axis = dim % len(self.dims)
    if sum(shape[axis] for shape in run.shapes) != self.shape[axis]:
        return run.not_known(f"{run.operator} with segments that overlap", [self])  # type: ignore[no-any-return]
    pieces, start = [], 0
    for shape in run.shapes:
        whole = shape[axis] == self.shape[axis]
        pieces.append(self if whole else _piece(run, self, axis, start, shape[axis]))
        start += shape[axis]
    return pieces


@rule("roll")
def roll(run: Interpreter, self: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    touched = [axis % len(self.dims) for axis in dims] if dims else list(range(len(self.dims)))
    for axis in touched:
        run.axes.restrict(self.dims[axis], Group.FIXED, run.why("it is shifted"))
    if not dims:
        # Entries go from row to row: what was the same along an axis is so no longer.
        return run.result(positions(self.shape), self)
    return run.result(_in_other_places(self, touched), self)


def _in_other_places(value: Value, axes: Sequence[int]) -> list[Term]:
    """Axes whose entries changed places: what is beside them cannot go by where they were."""
    return [Still(term.size, POSITION) if axis in axes and isinstance(term, In | Grid | Row | Each) else term
            for axis, term in enumerate(value.dims)]  # fmt: skip


@rule("flip")
def flip(run: Interpreter, self: Value, dims: Sequence[int]) -> Value:
    for axis in dims:
        run.axes.restrict(self.dims[axis], Group.FIXED, run.why("it is turned around"))
    return run.result(_in_other_places(self, [axis % len(self.dims) for axis in dims]), self)


@rule("rot90")
def rot90(run: Interpreter, self: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    turned = list(self.dims)
    for axis in dims:
        run.axes.restrict(self.dims[axis], Group.FIXED, run.why("it is turned around"))
        turned[axis] = position(run.shape[axis])
    return run.result(turned, self)


@rule("constant_pad_nd", "pad")
def pad(run: Interpreter, self: Value, pad: Sequence[int], value: Any = 0, mode: str = "constant") -> Value:
    dims = list(self.dims)
    if value not in (0, None):
        run.restrict(dims, Group.PERMUTATION, "it is filled up with a number")
    for place in range(len(pad) // 2):
        axis = len(dims) - 1 - place
        before, after = pad[2 * place], pad[2 * place + 1]
        if before == after == 0:
            continue
        if before < 0 or after < 0 or not run.axes.moves(dims[axis]) or mode != "constant":
            run.axes.restrict(dims[axis], Group.FIXED, run.why("it is padded"))
            dims[axis] = Still(run.shape[axis], POSITION)
        else:
            dims[axis] = _padded(run, dims[axis], before, after)
    return run.result(dims, self)


def _padded(run: Interpreter, term: Term, before: int, after: int) -> Term:
    why = run.why("zeros fill it up")
    parts = [Still(before, why)] * (before > 0) + [term] + [Still(after, why)] * (after > 0)
    return run.axes.resolve(Row(tuple(parts)))


@rule("unfold")
def unfold(run: Interpreter, self: Value, dimension: int, size: int, step: int) -> Value:
    axis = dimension % len(self.dims)
    run.axes.restrict(self.dims[axis], Group.FIXED, run.why("windows slide along it"))
    kept = [*self.dims[:axis], position(run.shape[axis]), *self.dims[axis + 1 :]]
    return run.result([*(Same(1) if term.size == 1 else term for term in kept), position(size)], self)


@rule("tril", "triu")
def triangle(run: Interpreter, self: Value, diagonal: int = 0) -> Value:
    cut = run.why("a triangle is cut out of it")
    kept = [run.axes.unify(term, Still(term.size, cut), cut) if term.size > 1 else term for term in self.dims[-2:]]
    return run.result([*self.dims[:-2], *kept], self)


@rule("copy")
def copy(run: Interpreter, self: Value, src: Value, non_blocking: bool = False) -> Value:
    lead: list[Term] = [Same(size) for size in run.shape[: len(run.shape) - len(src.dims)]]
    grown = zip(src.dims, run.shape[len(lead) :], strict=True)
    return run.result([*lead, *(Same(size) if term.size == 1 else term for term, size in grown)], src)


@rule("slice_scatter", "select_scatter")
def scatter(run: Interpreter, self: Value, src: Value, dim: int = 0, index: int | None = None, **_: Any) -> Value:
    """One segment of an axis written anew: the axis stays as it is, all others lie in one space."""
    axis = dim % len(self.dims)
    run.axes.restrict(self.dims[axis], Group.FIXED, run.why("a segment of it is written anew"))
    source = list(src.dims) if index is None else [*src.dims[:axis], Same(1), *src.dims[axis:]]
    run.axes.restrict(source[axis], Group.FIXED, run.why("it is written into a segment"))
    dims: list[Term] = []
    for place, (term, other) in enumerate(zip(self.dims, source, strict=True)):
        if place == axis:
            dims.append(position(run.shape[place]))
        else:
            why = run.why("two spaces are joined along another axis")
            dims.append(run.axes.unify(term, other if other.size == term.size else Same(term.size), why,
                                       same=Group.PERMUTATION))  # fmt: skip
    return run.result(dims, self, src)
