"""Recurrent layers as one operator: the gates are segments of one axis, and all of them move with the hidden units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Row, Term
from interbasin.wiring.interpret import Interpreter, Value, rule
from interbasin.wiring.operators.contraction import contract
from interbasin.wiring.operators.convolution import positions
from interbasin.wiring.operators.elementwise import add_like, combine, nonlinear

# How many gates each kind has; a sigmoid among them leaves permutations, even where others are odd.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def layers(
    run: Interpreter, input: Value, hx: Any, params: Sequence[Value], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """Each direction of each layer reads its input and its own last state; the directions are joined side by side."""
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    projected = count == 3 + 2 * has_biases
    if not (projected or count == 2 + 2 * has_biases) or len(input.dims) != 3:
        return run.not_known(f"{run.operator} in this form", run.operands)
    _fix_times(run, input.dims[:2])
    # Even where the input is the same all along, the states are not.
    value = Value([*positions(input.shape[:2]), input.dims[2]])
    states = [hx] if isinstance(hx, Value) else hx
    waiting = iter(params)
    last: list[tuple[Term, Term]] = []
    for _ in range(num_layers):
        sides = []
        for _ in range(directions):
            own = [next(waiting) for _ in range(count)]
            first = [_first(run, state, len(last)) for state in states]
            side, units = _direction(run, value, own, first, projected)
            sides.append(side)
            last.append((side.dims[-1], units))
        value = sides[0] if directions == 1 else _side_by_side(run, sides)
    # What comes out last is what is handed on, and beside it the units themselves where they have a memory.
    ends = [run.axes.side_by_side(terms) for terms in zip(*last, strict=True)]
    pairs = zip(ends, run.shapes[1:], strict=False)
    return [value, *(run.result([layers, *positions(shape[1:-1]), end]) for (layers, end), shape in pairs)]


def _fix_times(run: Interpreter, terms: Sequence[Term]) -> None:
    for term in terms:
        run.axes.restrict(term, Group.FIXED, run.why("time and batch lie along it", "position"))


def _gates(run: Interpreter) -> int:
    return GATES[run.operator.removeprefix("aten.").partition(".")[0].removesuffix("_cell")]


def _first(run: Interpreter, state: Value, place: int) -> Term:
    """The units of the first state of one direction of one layer."""
    _fix_times(run, state.dims[1:2])
    kept = run.take(state, 0, place, 1) if state.shape[0] > 1 else list(state.dims)
    return run.result(kept[1:], state).dims[-1]


def _direction(
    run: Interpreter, input: Value, own: Sequence[Value], first: Sequence[Term], projected: bool
) -> tuple[Value, Term]:
    """What one direction of one layer hands on, and its units: the same, unless it projects them."""
    inward, recurrent, *biases = own
    projection = biases.pop() if projected else None
    summed = contract(run, input, "aby", inward, "zy", "abz")
    for bias in biases:
        summed = add_like(run, summed, bias)
    gates, group = _gates(run), Group.PERMUTATION
    size = recurrent.shape[0] // gates
    segments = [Value(run.take(summed, 2, gate * size, size)) for gate in range(gates)]
    hidden = nonlinear(run, segments[0], group, "the gates of a recurrent layer bend it")
    for other in segments[1:]:
        why = run.why("the gates of a recurrent layer meet entry by entry")
        hidden = run.result(combine(run, hidden, other, why=why, pair=group), hidden, other)
    handed_on = hidden if projection is None else contract(run, hidden, "aby", projection, "zy", "abz")
    # The first state stands in place of what was handed on, and of the memory of the units.
    for value, term in zip((handed_on, hidden), first, strict=False):
        run.axes.unify(value.dims[-1], term, run.why("it is the first state of a recurrent layer"), same=group)
    again = contract(run, handed_on, "aby", recurrent, "zy", "abz")
    add_like(run, summed, again)
    return run.result(handed_on.dims, handed_on), hidden.dims[-1]


def _side_by_side(run: Interpreter, sides: Sequence[Value]) -> Value:
    joined = run.axes.resolve(Row(tuple(side.dims[-1] for side in sides)))
    return run.result([*sides[0].dims[:-1], joined], *sides)


@rule("gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(
    run: Interpreter,
    input: Value,
    hx: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None = None,
    b_hh: Value | None = None,
) -> Value:
    """One step: what is read from the input and from the last state, cut into gates that meet entry by entry."""
    group = Group.SIGNED if run.operator.startswith("aten.rnn_tanh") else Group.PERMUTATION
    batch = "ab"[: len(input.dims) - 1]
    summed = contract(run, input, batch + "y", w_ih, "zy", batch + "z")
    summed = add_like(run, summed, contract(run, hx, batch + "y", w_hh, "zy", batch + "z"))
    for bias in (b_ih, b_hh):
        if bias is not None:
            summed = add_like(run, summed, bias)
    size = hx.shape[-1]
    hidden = hx
    for gate in range(_gates(run)):
        taken = Value(run.take(summed, len(summed.dims) - 1, gate * size, size))
        segment = nonlinear(run, taken, group, "a gate bends it")
        why = run.why("the gates of a recurrent layer meet entry by entry")
        hidden = run.result(combine(run, hidden, segment, why=why, pair=group, same=group), hidden, segment)
    # A later step, which the traced call may not come to, would read the new state in place of the old.
    add_like(run, summed, contract(run, hidden, batch + "y", w_hh, "zy", batch + "z"))
    return run.result(hidden.dims)


@rule("lstm_cell")
def lstm_cell(
    run: Interpreter, input: Value, hx: Sequence[Value], w_ih: Value, w_hh: Value, b_ih: Value | None = None,
    b_hh: Value | None = None,
) -> list[Value]:  # fmt: skip
    hidden = cell(run, input, hx[0], w_ih, w_hh, b_ih, b_hh)
    assert isinstance(hidden, Value)
    memory = add_like(run, hidden, hx[1])
    return [run.result(memory.dims), run.result(memory.dims)]
