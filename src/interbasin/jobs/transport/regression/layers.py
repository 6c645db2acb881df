"""The linear layers of the target that a regression fits, in the order of the data, and what each of them aims at.

A layer that writes a hidden space aims at the units of tuned A that its own were matched to. One that writes the
residual stream aims at the stream itself, behind the addition, so that it also makes good what earlier layers missed.
Queries and keys aim at tuned A's attention, head by head, whether layers of their own make them or
`torch.nn.MultiheadAttention` does inside; the last layer at tuned A's outputs where outputs are shared. Class tokens
and positions are layers too, which read nothing but which of their rows is wanted. Tables of tokens and what attention
adds for each head are not fitted but taken from tuned A, in the target's coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interbasin.activations.places import QKV
from interbasin.correspondence.outline import Outline
from interbasin.correspondence.pairs import Segment, TensorPair, expand, split, tensor_of
from interbasin.errors import InterbasinError
from interbasin.jobs.transport.bases import Bases, Pair, writers_of
from interbasin.jobs.transport.regression.streams import find_added_positions, first_inputs
from interbasin.jobs.transport.regression.tables import Table, find_tables, is_table, readings_of, set_table, table_rows
from interbasin.jobs.transport.rows import OUT, Watcher, attention_around, is_linear, reading_at
from interbasin.maps.base import Group
from interbasin.text import list_names
from interbasin.wiring import Wiring
from interbasin.wiring.axes.spaces import Axis, In, Role, leaves, spaces_in
from interbasin.wiring.trace.copying import copied

Aim = Literal["hidden", "stream", "output", "query", "key", "value", "own", "taken"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One linear layer of the target, a segment of a fused one, or a table whose rows are added to a stream.

    Attributes:
        tensors: The weights, of the source and of the target.
        aim: What it is to write. ``"hidden"``: units of tuned A, one for each of its own; ``"stream"``: what takes the
            stream to tuned A's; ``"output"``: tuned A's outputs; ``"query"``, ``"key"``, ``"value"``: those of tuned A,
            head by head; ``"own"``: what tuned A writes there, through an isometry; ``"taken"``: a table that is not
            fitted, but has tuned A's rows.
        at: Where that is shown, of the source and of the target: outputs of modules, or where a stream is read next.
        spaces: What it writes, of the source and of the target.
        reads: Where what it reads is shown; nowhere for a table.
        output: Where what it puts out is shown.
        columns: Which of the columns there belong to it, of the source and of the target; None: all.
        rows: Which of the rows of its weight (out, in) belong to it; None: all.
        earlier: Of a hidden space, the other spaces of the source that lead to it, and where they are written: blocks
            of a deeper source whose work one block of the target does.
        positions: Of a stream, which of its positions the layer adds to, of the source and of the target, where that
            is not all: patches, but not the class token before them.
        axis: Of a table, along which the stream lies, or the heads; None for layers.
        beside: A table that adds a row of its own wherever this layer adds something, and is fitted with it.
    """

    tensors: tuple[str, str]
    aim: Aim
    at: tuple[str, str]
    spaces: tuple[str, str]
    reads: str = ""
    output: str = ""
    columns: tuple[slice | None, slice | None] = (None, None)
    rows: slice | None = None
    earlier: tuple[tuple[str, str], ...] = ()
    positions: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    axis: int | None = None
    beside: Layer | None = None

    @property
    def target(self) -> str:
        """The module of the target that holds the weight."""
        return self.tensors[1].rpartition(".")[0]

    @property
    def source(self) -> str:
        return self.tensors[0].rpartition(".")[0]

    @property
    def is_table(self) -> bool:
        return self.axis is not None

    @property
    def fitted_tensors(self) -> tuple[str, ...]:
        """The tensors of the target that a fit changes: the weight and its bias, whether or not there is one."""
        module, _, kind = self.tensors[1].rpartition(".")
        bias = () if self.is_table else (f"{module}.{'bias' if kind == 'weight' else 'in_proj_bias'}",)
        return (self.tensors[1], *bias)

    def is_shared(self, bases: Bases) -> bool:
        """Whether what it writes means the same in both networks."""
        return all(self.spaces) and bases.is_shared(self.spaces)

    def weight_in(self, model: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Weight (out, in) and bias that a network of the target's shapes has there, detached; whole where fused."""
        if self.axis is not None:
            return table_rows(model.get_parameter(self.tensors[1]), self.axis).mT, None
        return weight_of(model.get_submodule(self.target), self.tensors[1].rpartition(".")[2])

    def write(self, model: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
        """Give a network another weight (out, in) and bias there."""
        if self.axis is not None:
            set_table(model.get_parameter(self.tensors[1]), weight.mT, self.axis)
        else:
            set_weight(model.get_submodule(self.target), weight, bias, self.tensors[1].rpartition(".")[2])


def find_layers(bases: Bases, inputs: Any) -> tuple[list[Layer], dict[str, str]]:
    """The layers that can be fitted, in the order of the data, and why others cannot, by the name of their weight."""
    linear_layers, table_pairs, left_out = _find_linear_layers(bases)
    ties = {pair.target: tie for pair in table_pairs if (tie := _describe_tie(bases, pair.target)) is not None}
    tables, reasons = find_tables(bases, table_pairs, ties, first_inputs(inputs, 8))
    tables_to_fit = {
        Layer(table.tensors, "stream", table.at, table.spaces, axis=table.axis): table
        for table in tables
        if table.index is not None
    }
    tables_to_take = [
        Layer(table.tensors, "taken", table.at, table.spaces, axis=table.axis)
        for table in tables
        if table.index is None
    ]
    linear_layers = [_attach_table(layer, tables_to_fit) for layer in _check_streams(bases, linear_layers, inputs)]
    order = {place: number for number, place in enumerate(bases.wirings[1].activations)}
    ranks = {layer: (order[_wiring_place(layer.output)], 0) for layer in linear_layers}
    # The largest table first: a class token and the first position say the same.
    ranks |= {layer: (order[f"{layer.at[1]}:0"], -table.count) for layer, table in tables_to_fit.items()}
    return [*tables_to_take, *sorted(ranks, key=lambda layer: ranks[layer])], left_out | reasons


def _find_linear_layers(bases: Bases) -> tuple[list[Layer], list[TensorPair], dict[str, str]]:
    """The linear layers that can be fitted, the pairs of tensors that are tables, and why other weights cannot be."""
    source, target = bases.wirings
    outline = Outline(target)
    layers: dict[tuple[str, int], Layer] = {}
    table_pairs: list[TensorPair] = []
    left_out: dict[str, str] = {}
    for pair in expand(bases.correspondence.tensors, source, target):
        source_outlet, target_outlet = (
            _find_outlet(network, *part)
            for network, part in zip((bases.source, bases.target), (pair.parts[0], pair.parts[1]), strict=True)
        )
        if source_outlet is None or target_outlet is None:
            inside = [axis for axis in tensor_of(target, pair.target).axes if spaces_in([axis])]
            if is_table(bases, pair):
                table_pairs.append(pair)
            elif len(inside) > 1:
                why = "it is no linear layer that is called by itself"
                left_out[pair.target] = _describe_tie(bases, pair.target) or why
            continue
        problem = _find_problem(bases, (source_outlet.place, target_outlet.place), pair.target)
        if problem is not None:
            left_out[pair.target] = problem
            continue
        layer = _make_layer(bases, outline, pair, (source_outlet, target_outlet))
        # Where several layers of the source lead to one, the last has all that the others did behind it.
        key = pair.target, 0 if layer.rows is None else layer.rows.start
        previous = layers.get(key)
        if previous is not None and previous.aim == layer.aim == "hidden" and layer.columns == (None, None):
            layer = replace(layer, earlier=(*previous.earlier, (previous.spaces[0], previous.at[0])))
        layers[key] = layer
    return list(layers.values()), table_pairs, left_out


@dataclass(frozen=True)
class _Outlet:
    """Where a network shows what a weight, or a segment of it, puts out and reads.

    Attributes:
        place: Where its outputs are shown.
        reads: Where its inputs are shown.
        columns: Which columns of the outputs belong to it; None: all.
        rows: Which rows of the weight (out, in) belong to it; None: all.
    """

    place: str
    reads: str
    columns: slice | None
    rows: slice | None


def _find_outlet(network: nn.Module, weight: str, segment: Segment | None) -> _Outlet | None:
    """The outlet of a weight that is used as a linear layer; None for other weights."""
    name, _, kind = weight.rpartition(".")
    try:
        module: Any = network.get_submodule(name)
    except AttributeError:
        return None
    columns = None if segment is None else slice(segment.start, segment.stop)
    if isinstance(module, nn.MultiheadAttention) and kind.endswith("proj_weight"):
        side = kind[0]
        if kind == "in_proj_weight":
            if segment is None or segment.stop - segment.start != module.embed_dim or segment.start % module.embed_dim:
                return None
            side = QKV[segment.start // module.embed_dim]
        return _Outlet(f"{name}:{side}", f"{name}:{side}", None, columns)
    if kind != "weight" or not is_linear(module):
        return None
    return _Outlet(_output_place(network, name), f"{name}:input", columns, columns)


def _wiring_place(place: str) -> str:
    """The name of a place in the wiring, where queries, keys and values stand at the input of attention."""
    module, _, side = place.rpartition(":")
    return f"{module}:{'input' if side in QKV else side}:0"


def _find_problem(bases: Bases, places: tuple[str, str], weight: str) -> str | None:
    """Why a linear layer cannot be fitted, as a clause, if it cannot."""
    tie = _describe_tie(bases, weight)
    if tie is not None:
        return tie
    for side, place, wiring in zip(("source", "target"), places, bases.wirings, strict=True):
        if _wiring_place(place) not in wiring.activations:
            return f"what it puts out is not followed in the {side}"
        if f"{_wiring_place(place)[:-2]}:1" in wiring.activations:
            return f"it is called more than once in the {side}"
    module = bases.target.get_submodule(weight.rpartition(".")[0])
    if isinstance(module, nn.Conv2d) and isinstance(module.padding, str):
        return "its padding is not given in numbers"
    return None


def _describe_tie(bases: Bases, weight: str) -> str | None:
    """Which other tensors of the target a weight is tied to, as a clause, if there are any."""
    tied = bases.wirings[1].tied
    others = {name for name, first in tied.items() if first == tied.get(weight, weight)} | {tied.get(weight, weight)}
    if len(others) == 1:
        return None
    return f"it is tied to {list_names(sorted(others - {weight}))}, which would change with it"


def _make_layer(bases: Bases, outline: Outline, pair: TensorPair, outlets: tuple[_Outlet, _Outlet]) -> Layer:
    """The layer of a pair of weights, with what it aims at and where."""
    source, target = bases.wirings
    spaces = (
        _output_space(source, pair.source, pair.source_segment),
        _output_space(target, pair.target, pair.target_segment),
    )
    target_space = target.spaces.get(spaces[1])
    aim: Aim
    if target_space is not None and target_space.within:
        role = outline.roles.get(spaces[1])
        kind = outline.kinds.get(spaces[1])
        is_compared = role is not None and role.compared
        is_key = is_compared and _is_dual(target, pair, spaces[1])
        aim = ("key" if is_key or kind == "key" else "query") if is_compared else "value"
    else:
        aim = _choose_aim(bases, spaces)
    at = outlets[0].place, outlets[1].place
    if aim in ("hidden", "output") or (aim == "own" and target_space is not None):
        # A stream may be one of the outputs, as last hidden states are.
        readings = [
            readings_of(wiring, space, behind=outlet.place)
            for wiring, outlet, space in zip((source, target), outlets, spaces, strict=True)
        ]
        if all(readings) and len(writers_of(target, spaces[1])) > 1:
            aim, at = "stream", (readings[0][0], readings[1][0])
    return Layer(
        (pair.source, pair.target),
        aim,
        at,
        spaces,
        outlets[1].reads,
        outlets[1].place,
        (outlets[0].columns, outlets[1].columns),
        outlets[1].rows,
    )


def _choose_aim(bases: Bases, spaces: Pair) -> Aim:
    """What a layer aims at that writes no heads, and into no stream that is read next as it is."""
    space = bases.wirings[1].spaces.get(spaces[1])
    if space is None:
        return "own"
    if bases.is_shared(spaces):
        return "output"
    # Where units may be mixed, none of them has a partner of its own.
    return "own" if space.is_fixed or space.group in (Group.ORTHOGONAL, Group.INVERTIBLE) else "hidden"


def _output_space(wiring: Wiring, name: str, segment: Segment | None) -> str:
    """The space that a weight, or a segment of it, writes: the innermost of its output axis that moves, if any does."""
    parts = dict(split(tensor_of(wiring, name)))
    axes = parts[segment] if segment in parts else tensor_of(wiring, name).axes
    outputs = [axis for axis in axes if _is_output(axis)]
    spaces = spaces_in(outputs or axes[:1])
    free = [space for space in spaces if not wiring.spaces[space].is_fixed]  # the angles of rotary positions are not
    return (free or spaces or ("",))[-1]


def _is_output(axis: Axis) -> bool:
    return any(isinstance(leaf, In) and leaf.role is Role.WRITE for leaf, _ in leaves(axis))


def _is_dual(wiring: Wiring, pair: TensorPair, space: str) -> bool:
    """Whether what a weight, or a segment of it, puts into a space moves by the dual: keys, beside queries."""
    parts = dict(split(tensor_of(wiring, pair.target)))
    axes = parts.get(pair.target_segment, tensor_of(wiring, pair.target).axes)
    return any(
        isinstance(leaf, In) and leaf.space == space and leaf.role is Role.READ
        for axis in axes
        for leaf, _ in leaves(axis)
    )


def _check_streams(bases: Bases, layers: list[Layer], inputs: Any) -> list[Layer]:
    """Layers whose output is not simply added to what is read next aim at their own units instead."""
    source, network = (copied(each).eval() for each in (bases.source, bases.target))
    inputs = first_inputs(inputs, 2)  # what is added where shows in any input
    pooled_places = _find_pooled_places(source, network, layers, inputs)
    checked_layers = []
    for layer in layers:
        if layer.aim == "stream":
            positions = find_added_positions(network, layer.output, layer.at[1], inputs)
            source_output = _output_place(source, layer.source)
            if positions == ():
                behind_block = _aim_behind_block(network, layer, inputs)
                aim, at = _choose_aim(bases, layer.spaces), (source_output, layer.output)
                layer = replace(layer, aim=aim, at=at) if behind_block is None else behind_block
            elif positions is not None:
                source_positions = find_added_positions(source, source_output, layer.at[0], inputs)
                layer = replace(layer, positions=(source_positions or positions, positions))
            elif layer.at[0] in pooled_places:
                block = _find_block_behind(source, source_output, layer.source, inputs)
                layer = layer if block is None else replace(layer, at=(f"{block}:output", layer.at[1]))
        checked_layers.append(layer)
    return checked_layers


def _output_place(network: nn.Module, module: str) -> str:
    """Where a linear layer shows its output: the attention around it, where that is a part of one."""
    return f"{module.removesuffix(OUT) if attention_around(network, module) is not None else module}:output"


def _find_pooled_places(source: nn.Module, target: nn.Module, layers: Sequence[Layer], inputs: Any) -> set[str]:
    """Where the source reads a stream with fewer axes than the target does: behind its last block, one token alone."""
    pairs = [layer.at for layer in layers if layer.aim == "stream"]
    rows = [
        Watcher(network, list(dict.fromkeys(reading_at(pair[side]) for pair in pairs))).run(inputs) if pairs else {}
        for side, network in enumerate((source, target))
    ]
    return {pair[0] for pair in pairs if rows[0][reading_at(pair[0])].ndim < rows[1][reading_at(pair[1])].ndim}


def _find_block_behind(network: nn.Module, output: str, module: str, inputs: Any) -> str | None:
    """The innermost module around another whose output is the stream behind it, all positions of it."""
    for block in _blocks_around(module):
        try:
            if find_added_positions(network, output, f"{block}:output", inputs) is None:
                return block
        except InterbasinError:  # a module that puts out something else, or nothing
            continue
    return None


def _aim_behind_block(network: nn.Module, layer: Layer, inputs: Any) -> Layer | None:
    """The layer with the output of the block around it as the place of its stream: a head may read one token alone."""
    blocks = _blocks_around(layer.source), _blocks_around(layer.target)
    for source, target in zip(*blocks, strict=False):
        try:
            if find_added_positions(network, layer.output, f"{target}:output", inputs) is None:
                return replace(layer, at=(f"{source}:output", f"{target}:output"))
        except InterbasinError:  # a module that puts out something else, or nothing
            continue
    return None


def _blocks_around(module: str) -> list[str]:
    """The modules that hold a module, innermost first."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def _attach_table(layer: Layer, tables: Mapping[Layer, Table]) -> Layer:
    """The layer, with the table that adds another row at every position that the layer adds to, if there is one."""
    for other, table in tables.items():
        if table.index is None:
            continue
        if layer.aim == "stream" and layer.at == table.at and table.index.ndim > 1:
            index = table.index if layer.positions is None else table.index.flatten(1)[:, list(layer.positions[1])]
            if bool((index >= 0).all()) and bool((index != index.flatten()[0]).any()):
                return replace(layer, beside=other)
    return layer


# ---------------------------------------------------------------------- weights


def weight_of(module: Any, name: str = "weight") -> tuple[Tensor, Tensor | None]:
    """Weight (out, in) and bias of a layer, detached; inside attention of the projection with that name."""
    weight = getattr(module, name).detach()
    if type(module).__name__ == "Conv1D":
        weight = weight.mT
    bias = _bias_of(module, name)
    return weight.flatten(1), None if bias is None else bias.detach()


def _bias_of(module: Any, name: str) -> Tensor | None:
    if name == "weight":
        return module.bias  # type: ignore[no-any-return]
    whole: Tensor | None = module.in_proj_bias
    return whole if whole is None or name == "in_proj_weight" else whole.chunk(3)["qkv".index(name[0])]


def set_weight(module: Any, weight: Tensor, bias: Tensor | None, name: str = "weight") -> None:
    """Write a layer's weight (out, in) and bias."""
    module_weight = getattr(module, name)
    weight = weight.mT if type(module).__name__ == "Conv1D" else weight
    with torch.no_grad():
        module_weight.copy_(weight.reshape(module_weight.shape).to(module_weight))
        module_bias = _bias_of(module, name)
        if bias is not None and module_bias is not None:
            module_bias.copy_(bias.to(module_bias))
