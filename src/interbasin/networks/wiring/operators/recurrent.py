"""Recurrent layers as one operator: the gates are stretches of one axis, and all of them move with the hidden units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.networks.wiring.groups import Group
from interbasin.networks.wiring.interpret import Run, Value, rule
from interbasin.networks.wiring.operators.contraction import contract
from interbasin.networks.wiring.operators.convolution import positions
from interbasin.networks.wiring.operators.elementwise import add_like, bend, combined
from interbasin.networks.wiring.terms import Same, Sum, Term

__all__: list[str] = []


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
    if count != 2 + 2 * has_biases or any(_given(run, state) for state in states) or len(input.dims) != 3:
        return run.not_known(f"{run.operator} with projections or learned states", run.operands)
    for term in input.dims[:2]:
        run.axes.restrict(term, Group.FIXED, run.why("time and batch lie along it", "position"))
    # Even where the input is the same all along, the states are not.
    value = Value([*positions(run, input.shape[:2]), input.dims[2]])
    waiting = iter(params)
    last: list[Term] = []
    for _ in range(num_layers):
        sides = [_direction(run, value, [next(waiting) for _ in range(count)], gates, group) for _ in range(directions)]
        value = sides[0] if directions == 1 else _side_by_side(run, sides)
        last.extend(side.dims[-1] for side in sides)
    layers, hidden = run.axes.side_by_side(last)
    return [value, *(run.made([layers, *positions(run, shape[1:-1]), hidden]) for shape in run.shapes[1:])]


def _given(run: Run, state: Value) -> bool:
    """Whether a first state tells the units apart: one that is the same for all of them does not."""
    return run.moves(state) or not isinstance(run.axes.resolve(state.dims[-1]), Same)


def _direction(run: Run, input: Value, own: Sequence[Value], gates: int, group: Group) -> Value:
    inward, recurrent, *biases = own
    summed = contract(run, input, "aby", inward, "zy", "abz")
    for bias in biases:
        summed = add_like(run, summed, bias)
    size = recurrent.shape[1]
    stretches = [Value(run.taken(summed, 2, gate * size, size)) for gate in range(gates)]
    hidden = bend(run, stretches[0], group, "the gates of a recurrent layer bend it")
    for other in stretches[1:]:
        why = run.why("the gates of a recurrent layer meet entry by entry")
        hidden = run.made(combined(run, hidden, other, why=why, pair=group), hidden, other)
    again = contract(run, hidden, "aby", recurrent, "zy", "abz")
    add_like(run, summed, again)
    return run.made(hidden.dims, hidden)


def _side_by_side(run: Run, sides: Sequence[Value]) -> Value:
    joined = run.axes.resolve(Sum(tuple(side.dims[-1] for side in sides)))
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
