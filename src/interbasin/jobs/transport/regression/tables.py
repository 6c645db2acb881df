"""Tables: rows that are added to a stream (positions, class tokens, tokens), and what attention adds for each head.

The wiring says which tensors write a stream, and not which of their rows goes to which position, nor whether anything
happens on the way. So rows are shifted in a copy of the network, to see which positions of the stream move with them.

Positions are fitted. Inputs show few of all tokens, so rows of tokens are taken from tuned A. So is what lies along
heads alone, such as a bias for every distance: products of queries and keys aim at tuned A's, and what attention adds
to them has to be tuned A's as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from interbasin.correspondence.pairs import TensorPair, tensor_of
from interbasin.jobs.transport.bases import Bases, Pair, writers_of
from interbasin.jobs.transport.regression.streams import is_shift, make_shift
from interbasin.jobs.transport.rows import Watcher, is_linear, reading_at
from interbasin.wiring import Wiring
from interbasin.wiring.axes.spaces import In, Role, leaves, spaces_in
from interbasin.wiring.trace.copying import copied

MOST_ROWS = 4096  # of a table: each is an input of its own in a regression


@dataclass(frozen=True, eq=False)
class Table:
    """A table that can be fitted, or taken from tuned A.

    Attributes:
        tensors: Of the source and of the target.
        at: Where the stream is read first behind it, of the source and of the target; nowhere where heads lie along it.
        spaces: The stream, or the heads.
        axis: Along which the stream, or the heads, lie in the target's tensor.
        count: How many rows it has.
        index: The row that is added to each position of the stream, for some inputs; -1 for none. None for a table
            that is taken from tuned A.
    """

    tensors: Pair
    at: Pair
    spaces: Pair
    axis: int
    count: int
    index: Tensor | None


def is_table(bases: Bases, pair: TensorPair) -> bool:
    """Whether the rows of a tensor may be added to a stream (no offsets of layers are), or heads alone lie along it."""
    names = pair.source, pair.target
    if pair.source_segment is not None or pair.target_segment is not None:
        return False
    along = [_stream_of(wiring, name) for wiring, name in zip(bases.wirings, names, strict=True)]
    if along[0] is None or along[1] is None:
        return False
    owner, _, kind = pair.target.rpartition(".")
    module, wiring = bases.target.get_submodule(owner), bases.wirings[1]
    scales = any(
        isinstance(leaf, In) and leaf.role is Role.SCALE
        for name, _ in module.named_parameters(owner, recurse=False)
        if name in wiring.tensors
        for axis in wiring.tensors[name].axes
        for leaf, _ in leaves(axis)
    )
    is_offset = "bias" in kind or is_linear(module) or isinstance(module, _ConvNd) or scales
    is_offset = is_offset and not _are_heads(wiring, along[1][1])
    return not is_offset and all(
        name in dict(network.named_parameters(remove_duplicate=False))
        for network, name in zip((bases.source, bases.target), names, strict=True)
    )


def _stream_of(wiring: Wiring, name: str) -> tuple[int, str] | None:
    """The axis along which a tensor writes a stream, if there is one and all others stay; and the stream."""
    streams = []
    for number, axis in enumerate(tensor_of(wiring, name).axes):
        if isinstance(axis, In) and axis.role is Role.WRITE and len(writers_of(wiring, axis.space)) > 1:
            streams.append((number, axis.space))
        elif any(not wiring.spaces[space].is_fixed for space in spaces_in([axis])):
            return None
    return streams[0] if len(streams) == 1 else None


def find_tables(
    bases: Bases, pairs: Sequence[TensorPair], tied: Mapping[str, str], inputs: Any
) -> tuple[list[Table], dict[str, str]]:
    """The tables that can be fitted or taken from tuned A, and why others cannot.

    Args:
        bases: The networks.
        pairs: Those that are tables (`is_table`).
        tied: Why those that are tied to others cannot be fitted, by their names in the target.
        inputs: Some. Rows of positions are the same for all of them, rows of tokens are not.
    """
    networks = copied(bases.source).eval(), copied(bases.target).eval()
    tables: list[Table] = []
    left_out: dict[str, str] = {}
    for pair in pairs:
        names = pair.source, pair.target
        sides = [_stream_of(wiring, name) for wiring, name in zip(bases.wirings, names, strict=True)]
        (source_axis, source), (axis, target) = (side for side in sides if side is not None)
        count = len(table_rows(networks[1].get_parameter(pair.target), axis))
        is_alike = source_axis == axis and count == len(table_rows(networks[0].get_parameter(pair.source), axis))
        if _are_heads(bases.wirings[1], target):
            if is_alike:
                tables.append(Table(names, ("", ""), (source, target), axis, count, None))
            else:
                left_out[pair.target] = "the source has other rows there"
            continue
        at = [
            find_first_change(network, name, along, readings_of(wiring, space), inputs)
            for network, wiring, name, along, space in zip(
                networks, bases.wirings, names, (source_axis, axis), (source, target), strict=True
            )
        ]
        if at[0] is None or at[1] is None:
            left_out[pair.target] = "no layer reads the stream behind it"
            continue
        index = find_added_rows(networks[1], pair.target, axis, at[1], inputs)
        if index is None:
            left_out[pair.target] = "its rows are not added to the stream as they are"
        elif not _is_by_position(index):
            problem = _find_token_problem(bases, pair, tied, is_alike)
            if problem is not None:
                left_out[pair.target] = problem
            else:
                tables.append(Table(names, (at[0], at[1]), (source, target), axis, count, None))
        elif pair.target in tied:
            left_out[pair.target] = tied[pair.target]
        elif f"{pair.target.rpartition('.')[0]}:output:1" in bases.wirings[1].activations:
            left_out[pair.target] = "it is called more than once"
        elif count > MOST_ROWS:
            left_out[pair.target] = f"it has {count} rows, and at most {MOST_ROWS} can be told apart"
        else:
            tables.append(Table(names, (at[0], at[1]), (source, target), axis, count, index))
    return tables, left_out


def _are_heads(wiring: Wiring, space: str) -> bool:
    return any(each.within and each.within[0] == space for each in wiring.spaces.values())


def _find_token_problem(bases: Bases, pair: TensorPair, tied: Mapping[str, str], is_alike: bool) -> str | None:
    """Why the rows of tokens cannot be those of tuned A, if they cannot."""
    if not is_alike:
        return "its rows belong to tokens, and the source has others"
    if bases.source.get_parameter(pair.source).numel() > bases.target.get_parameter(pair.target).numel():
        return "its rows belong to tokens, and are too narrow for those of the source"
    names = bases.wirings[0].tied
    if pair.target in tied and pair.source not in {*names, *names.values()}:
        return f"{tied[pair.target]}, and in the source they are two"
    return None


def _is_by_position(index: Tensor) -> bool:
    """Whether the rows that are added are the same for all inputs, which may stand along the first axis or the next."""
    return any(bool((index == index.narrow(axis, 0, 1)).all()) for axis in range(min(index.ndim, 2)))


def readings_of(wiring: Wiring, space: str, behind: str | None = None) -> list[str]:
    """Where modules read a space whole, in the order of the data; all such places, or those behind another place."""
    activations = list(wiring.activations)
    first = 0 if behind is None else activations.index(f"{behind}:0") + 1
    places = []
    for place in activations[first:]:
        name, side, call = place.rsplit(":", 2)
        last = wiring.activations[place][-1]
        if side == "input" and call == "0" and isinstance(last, In) and last.space == space:
            places.append(f"{name}:input")
    return places


def find_first_change(network: nn.Module, tensor: str, axis: int, places: Sequence[str], inputs: Any) -> str | None:
    """The first of some places where a shift of all rows of a table shows at all.

    Args:
        network: A copy; it is as before in the end.
        tensor: The table.
        axis: Of the table, along which the stream lies.
        places: Where the stream is read, in the order of the data.
        inputs: One batch.
    """
    if not places:
        return None
    readings = {place: reading_at(place) for place in places}
    before = Watcher(network, list(readings.values())).run(inputs)
    with _shift_rows(network, tensor, axis, None, make_shift(next(iter(before.values())))):
        after = Watcher(network, list(readings.values())).run(inputs)
    for place, reading in readings.items():
        if not torch.equal(before[reading], after[reading]):
            return place
    return None


def find_added_rows(network: nn.Module, tensor: str, axis: int, at: str, inputs: Any) -> Tensor | None:
    """Which row of a table is added to each position of the stream, -1 for none; None if rows are not simply added.

    Every row has a number, whose binary digits are found one after the other: for each digit, the rows that have it are
    shifted, and the positions that move have it too. The result has the shape of the stream without its width. For the
    arguments see `find_first_change`; ``at`` is where the stream is read.
    """
    reading = reading_at(at)
    stream = Watcher(network, [reading]).run(inputs)[reading]
    shift = make_shift(stream)

    def find_positions(chosen: Tensor | None) -> Tensor | None:
        """Which positions move with the chosen rows, or with any; None if they move otherwise."""
        with _shift_rows(network, tensor, axis, chosen, shift):
            change = Watcher(network, [reading]).run(inputs)[reading].double() - stream.double()
        is_changed = change.abs().amax(-1) > 0.1 * float(shift.max())
        return is_changed if is_shift(change[is_changed], shift) else None

    is_added = find_positions(None)
    if is_added is None:
        return None
    count = table_rows(network.get_parameter(tensor), axis).shape[0]
    numbers, index = torch.arange(count), torch.zeros(is_added.shape, dtype=torch.long, device=is_added.device)
    for digit in range((count - 1).bit_length()):
        has_digit = find_positions(numbers >> digit & 1 == 1)
        if has_digit is None:
            return None
        index += has_digit.long() << digit
    return torch.where(is_added, index, -1)


def table_rows(table: Tensor, axis: int) -> Tensor:
    """``(rows, width)``: all axes but one lie along the rows."""
    return table.detach().movedim(axis, -1).flatten(0, -2) if table.ndim > 1 else table.detach()[None]


@contextlib.contextmanager
def _shift_rows(network: nn.Module, tensor: str, axis: int, chosen: Tensor | None, shift: Tensor) -> Iterator[None]:
    """A block in which the chosen rows of a table are shifted; all of them for None."""
    table = network.get_parameter(tensor)
    original = table.detach().clone()
    rows = table_rows(original, axis).clone()
    rows[slice(None) if chosen is None else chosen.to(rows.device)] += shift.to(rows)
    try:
        set_table(table, rows, axis)
        yield
    finally:
        with torch.no_grad():
            table.copy_(original)


def set_table(table: Tensor, rows: Tensor, axis: int) -> None:
    """Write all rows, ``(rows, width)``, of a table."""
    with torch.no_grad():
        shape = table.movedim(axis, -1).shape
        table.copy_(rows.reshape(shape).movedim(-1, axis).to(table))
