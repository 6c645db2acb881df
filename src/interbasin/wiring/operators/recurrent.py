"""Recurrent layers as one operator: the gates are stretches of one axis, and all of them move with the hidden units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Row, Term
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.contraction import contract
from interbasin.wiring.operators.convolution import positions
from interbasin.wiring.operators.elementwise import add_like, bend, combined


@rule("lstm")
def lstm(
    run: Run, input: Value, hx: Sequence[Value], params: Sequence[Value], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    # Odd functions bend the cell, but sigmoids gate it: permutations.
    return _layers(run, input, hx, params, has_biases, num_layers, bidirectional, 4, Group.PERMUTATION)


@rule("gru")
def gru(
    run: Run, input: Value, hx: Value, params: Sequence[Value], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    return _layers(run, input, [hx], params, has_biases, num_layers, bidirectional, 3, Group.PERMUTATION)


@rule("rnn_tanh")
def rnn_tanh(
    run: Run, input: Value, hx: Value, params: Sequence[Value], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    return _layers(run, input, [hx], params, has_biases, num_layers, bidirectional, 1, Group.PERMUTATION)


@rule("rnn_relu")
def rnn_relu(
    run: Run, input: Value, hx: Value, params: Sequence[Value], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    return _layers(run, input, [hx], params, has_biases, num_layers, bidirectional, 1, Group.PERMUTATION)


def _layers(
    run: Run,
    input: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    gates: int,
    group: Group,
) -> Any:
    """Each direction of each layer reads its input and its own last state; the directions are joined side by side."""
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    projected = count == 3 + 2 * has_biases
    if not (projected or count == 2 + 2 * has_biases) or len(input.dims) != 3:
        return run.not_known(f"{run.operator} in this form", run.operands)
    for term in input.dims[:2]:
        run.axes.restrict(term, Group.FIXED, run.why("time and batch lie along it", "position"))
    # Even where the input is the same all along, the states are not.
    value = Value([*positions(run, input.shape[:2]), input.dims[2]])
    waiting = iter(params)
    last: list[tuple[Term, Term]] = []
    for _ in range(num_layers):
        sides = []
        for _ in range(directions):
            own = [next(waiting) for _ in range(count)]
            first = [_first(run, state, len(last)) for state in states]
            side, units = _direction(run, value, own, first, gates, group, projected)
            sides.append(side)
            last.append((side.dims[-1], units))
        value = sides[0] if directions == 1 else _side_by_side(run, sides)
    # What comes out last is what is handed on, and beside it the units themselves where they have a memory.
    ends = [run.axes.side_by_side(terms) for terms in zip(*last, strict=True)]
    pairs = zip(ends, run.shapes[1:], strict=False)
    return [value, *(run.made([layers, *positions(run, shape[1:-1]), end]) for (layers, end), shape in pairs)]


def _first(run: Run, state: Value, place: int) -> Term:
    """The units of the first state of one direction of one layer."""
    run.axes.restrict(state.dims[1], Group.FIXED, run.why("time and batch lie along it", "position"))
    kept = run.taken(state, 0, place, 1) if state.shape[0] > 1 else list(state.dims)
    return run.made(kept[1:], state).dims[-1]


def _direction(
    run: Run, input: Value, own: Sequence[Value], first: Sequence[Term], gates: int, group: Group, projected: bool
) -> tuple[Value, Term]:
    """What one direction of one layer hands on, and its units: the same, unless it projects them."""
    inward, recurrent, *biases = own
    projection = biases.pop() if projected else None
    summed = contract(run, input, "aby", inward, "zy", "abz")
    for bias in biases:
        summed = add_like(run, summed, bias)
    size = recurrent.shape[0] // gates
    stretches = [Value(run.taken(summed, 2, gate * size, size)) for gate in range(gates)]
    hidden = bend(run, stretches[0], group, "the gates of a recurrent layer bend it")
    for other in stretches[1:]:
        why = run.why("the gates of a recurrent layer meet entry by entry")
        hidden = run.made(combined(run, hidden, other, why=why, pair=group), hidden, other)
    handed_on = hidden if projection is None else contract(run, hidden, "aby", projection, "zy", "abz")
    # The first state stands in place of what was handed on, and of the memory of the units.
    for value, term in zip((handed_on, hidden), first, strict=False):
        run.axes.unify(value.dims[-1], term, run.why("it is the first state of a recurrent layer"), same=group)
    again = contract(run, handed_on, "aby", recurrent, "zy", "abz")
    add_like(run, summed, again)
    return run.made(handed_on.dims, handed_on), hidden.dims[-1]


def _side_by_side(run: Run, sides: Sequence[Value]) -> Value:
    joined = run.axes.resolve(Row(tuple(side.dims[-1] for side in sides)))
    return run.made([*sides[0].dims[:-1], joined], *sides)


@rule("gru_cell")
def gru_cell(
    run: Run, input: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> Value:
    return _cell(run, input, hx, w_ih, w_hh, b_ih, b_hh, 3, Group.PERMUTATION)


@rule("rnn_tanh_cell")
def rnn_tanh_cell(
    run: Run, input: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> Value:
    return _cell(run, input, hx, w_ih, w_hh, b_ih, b_hh, 1, Group.SIGNED)


@rule("rnn_relu_cell")
def rnn_relu_cell(
    run: Run, input: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> Value:
    return _cell(run, input, hx, w_ih, w_hh, b_ih, b_hh, 1, Group.PERMUTATION)


@rule("lstm_cell")
def lstm_cell(
    run: Run, input: Value, hx: Sequence[Value], w_ih: Value, w_hh: Value, b_ih: Value | None = None,
    b_hh: Value | None = None,
) -> list[Value]:  # fmt: skip
    hidden = _cell(run, input, hx[0], w_ih, w_hh, b_ih, b_hh, 4, Group.PERMUTATION)
    cell = add_like(run, hidden, hx[1])
    return [run.made(cell.dims), run.made(cell.dims)]


def _cell(
    run: Run,
    input: Value,
    state: Value,
    inward: Value,
    recurrent: Value,
    b_ih: Value | None,
    b_hh: Value | None,
    gates: int,
    group: Group,
) -> Value:
    """One step: what is read from the input and from the last state, cut into gates that meet entry by entry."""
    batch = "ab"[: len(input.dims) - 1]
    summed = contract(run, input, batch + "y", inward, "zy", batch + "z")
    summed = add_like(run, summed, contract(run, state, batch + "y", recurrent, "zy", batch + "z"))
    for bias in (b_ih, b_hh):
        if bias is not None:
            summed = add_like(run, summed, bias)
    size = state.shape[-1]
    last = len(summed.dims) - 1
    hidden = state
    for gate in range(gates):
        stretch = bend(run, Value(run.taken(summed, last, gate * size, size)), group, "a gate bends it")
        why = run.why("the gates of a recurrent layer meet entry by entry")
        hidden = run.made(combined(run, hidden, stretch, why=why, pair=group, same=group), hidden, stretch)
    # A later step, which the traced call may not come to, would read the new state in place of the old.
    add_like(run, summed, contract(run, hidden, batch + "y", recurrent, "zy", batch + "z"))
    return run.made(hidden.dims)
