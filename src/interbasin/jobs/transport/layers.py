"""The linear layers of the target that a regression fits, in the order of the data, and what each of them aims at.

A layer that writes a hidden space aims at the units of tuned A that its own were matched to. One that writes the
residual stream aims at the stream itself, behind the addition, so that it also makes good what earlier layers missed.
Queries and keys aim at tuned A's attention, head by head; the last layer at tuned A's outputs where
outputs are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from interbasin.activations import Tokens
from interbasin.activations.forward import Call, listen
from interbasin.activations.places import ModuleReading, Place, Reading
from interbasin.activations.tokens import match_tokens
from interbasin.batches import call_arguments, cut_inputs, device_of, inputs_in
from interbasin.correspondence.outline import Outline
from interbasin.correspondence.pairs import Segment, TensorPair, expand, split, tensor_of
from interbasin.errors import InterbasinError, ShapeError
from interbasin.jobs.transport.bases import Bases, Pair, writers_of
from interbasin.maps.base import Group
from interbasin.text import list_names
from interbasin.wiring import Wiring
from interbasin.wiring.axes.spaces import Axis, In, Role, leaves, spaces_in
from interbasin.wiring.trace.copying import copied

Aim = Literal["hidden", "stream", "output", "query", "key", "value", "own"]


class _Enough(BaseException):
    """Ends a forward pass that has shown all that was asked for."""


@dataclass
class Watcher:
    """Runs a network as far as some places, and hands over the rows that pass there."""

    model: nn.Module
    readings: Sequence[Reading]

    def run(self, inputs: Any) -> dict[Reading, Tensor]:
        """``(batch, positions..., width)`` at each place, for one batch."""
        seen: dict[Reading, Tensor] = {}
        waiting = set(self.readings)

        def take(reading: Reading, rows: Tensor) -> None:
            seen[reading] = rows.clone()
            waiting.discard(reading)
            if not waiting:
                raise _Enough

        args, kwargs = call_arguments(self.model, inputs, device_of(self.model))
        with listen(self.model, self.readings, take, type(self.model).__name__) as listener:
            try:
                listener.forward(Call(inputs, args, kwargs))
            except _Enough:
                listener.thread = None
        return seen


def reading_at(place: str) -> ModuleReading:
    """How a place of a module is read."""
    return ModuleReading(Place.of(place))


@dataclass(frozen=True, eq=False)
class Layer:
    """One linear layer of the target, or a segment of a fused one.

    Attributes:
        target, source: The modules, of the target and of the source.
        aim: What it is to write.
        at: Where that is shown, of the source and of the target: outputs of modules, or where a stream is read next.
        spaces: What it writes, of the source and of the target.
        columns: Which of the columns there belong to it, of the source and of the target; None: all.
        earlier: Of a hidden space, the other spaces of the source that lead to it, and where they are written: blocks
            of a deeper source whose work one block of the target does.
        positions: Of a stream, which of its positions the layer adds to, where that is not all: patches, but not the
            class token before them.
    """

    target: str
    source: str
    aim: Aim
    at: tuple[str, str]
    spaces: tuple[str, str]
    columns: tuple[slice | None, slice | None] = (None, None)
    earlier: tuple[tuple[str, str], ...] = ()
    positions: tuple[int, ...] | None = None

    @property
    def output(self) -> str:
        return f"{self.target}:output"

    def is_shared(self, bases: Bases) -> bool:
        """Whether what it writes means the same in both networks."""
        return all(self.spaces) and bases.is_shared(self.spaces)


def find_layers(bases: Bases, inputs: Any) -> tuple[list[Layer], dict[str, str]]:
    """The layers that can be fitted, in the order of the data, and why others cannot, by the name of their weight."""
    source, target = bases.wirings
    modules = dict(bases.target.named_modules())
    outline = Outline(target)
    order = {place: number for number, place in enumerate(target.activations)}
    found: dict[tuple[str, int], Layer] = {}
    left_out: dict[str, str] = {}
    for pair in expand(bases.correspondence.tensors, source, target):
        name, _, kind = pair.target.rpartition(".")
        module = modules.get(name)
        if kind != "weight" or module is None or module not in (*_linear(module),):
            inside = [axis for axis in tensor_of(target, pair.target).axes if spaces_in([axis])]
            if len(inside) > 1 and not isinstance(module, nn.Embedding):
                left_out[pair.target] = "it is no linear layer that is called by itself"
            continue
        places = f"{pair.source.rpartition('.')[0]}:output", f"{name}:output"
        problem = _problem(bases, places, module, pair.target)
        if problem is not None:
            left_out[pair.target] = problem
            continue
        layer = _layer(bases, outline, pair, places, order)
        # Where several layers of the source lead to one, the last has all that the others did behind it.
        key = name, 0 if layer.columns[1] is None else layer.columns[1].start
        before = found.get(key)
        if before is not None and before.aim == layer.aim == "hidden" and layer.columns == (None, None):
            layer = replace(layer, earlier=(*before.earlier, (before.spaces[0], before.at[0])))
        found[key] = layer
    layers = sorted(found.values(), key=lambda layer: order[f"{layer.output}:0"])
    return _check_streams(bases, layers, inputs), left_out


def _linear(module: nn.Module | None) -> Iterator[nn.Module]:
    plain = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    patches = isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros"
    if module is not None and (plain or patches):
        yield module


def _problem(bases: Bases, places: tuple[str, str], module: nn.Module, weight: str) -> str | None:
    tied = bases.wirings[1].tied
    others = {name for name, first in tied.items() if first == tied.get(weight, weight)} | {tied.get(weight, weight)}
    if len(others) > 1:
        return f"it is tied to {list_names(sorted(others - {weight}))}, which would change with it"
    for side, place, wiring in zip(("source", "target"), places, bases.wirings, strict=True):
        if f"{place}:0" not in wiring.activations:
            return f"what it puts out is not followed in the {side}"
        if f"{place}:1" in wiring.activations:
            return f"it is called more than once in the {side}"
    if isinstance(module, nn.Conv2d) and isinstance(module.padding, str):
        return "its padding is not given in numbers"
    return None


def _layer(
    bases: Bases, outline: Outline, pair: TensorPair, places: tuple[str, str], order: Mapping[str, int]
) -> Layer:
    source, target = bases.wirings
    columns = tuple(_columns(segment) for segment in (pair.source_segment, pair.target_segment))
    both = tuple(
        _written(wiring, name, segment)
        for wiring, name, segment in (
            (source, pair.source, pair.source_segment),
            (target, pair.target, pair.target_segment),
        )
    )
    own = bases.wirings[1].spaces.get(both[1])
    aim: Aim = "own"
    if own is not None and own.within:
        role = outline.roles.get(both[1])
        kind = outline.kinds.get(both[1])
        compared = role is not None and role.compared
        is_key = compared and _is_dual(target, pair, both[1])
        aim = ("key" if is_key or kind == "key" else "query") if compared else "value"
    else:
        aim = _own_aim(bases, (both[0], both[1]))
    at = list(places)
    if aim in ("hidden", "output") or (aim == "own" and own is not None and not own.is_fixed):
        # A stream may be one of the outputs, as last hidden states are.
        nexts = [
            _next_reading(wiring, place, space)
            for wiring, place, space in zip((source, target), places, both, strict=True)
        ]
        if all(nexts) and len(writers_of(target, both[1])) > 1:
            aim, at = "stream", [str(place) for place in nexts]
    return Layer(
        pair.target.rpartition(".")[0],
        pair.source.rpartition(".")[0],
        aim,
        (at[0], at[1]),
        (both[0], both[1]),
        (columns[0], columns[1]),
    )


def _own_aim(bases: Bases, spaces: Pair) -> Aim:
    """What a layer aims at that writes no heads, and into no stream that is read next as it is."""
    space = bases.wirings[1].spaces.get(spaces[1])
    if space is None:
        return "own"
    if bases.is_shared(spaces):
        return "output"
    # Where units may be mixed, none of them has a partner of its own.
    return "own" if space.is_fixed or space.group in (Group.ORTHOGONAL, Group.INVERTIBLE) else "hidden"


def _columns(segment: Segment | None) -> slice | None:
    return None if segment is None else slice(segment.start, segment.stop)


def _written(wiring: Wiring, name: str, segment: Segment | None) -> str:
    """The space that a weight, or a segment of it, writes: the innermost of its output axis that moves, if any does."""
    parts = dict(split(tensor_of(wiring, name)))
    axes = parts[segment] if segment in parts else tensor_of(wiring, name).axes
    outputs = [axis for axis in axes if _writes(axis)]
    spaces = spaces_in(outputs or axes[:1])
    free = [space for space in spaces if not wiring.spaces[space].is_fixed]  # the angles of rotary positions are not
    return (free or spaces or ("",))[-1]


def _writes(axis: Axis) -> bool:
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


def _next_reading(wiring: Wiring, place: str, space: str) -> str | None:
    """Where a space is read next behind a place."""
    places = list(wiring.activations)
    for later in places[places.index(f"{place}:0") + 1 :]:
        module, side, call = later.rsplit(":", 2)
        last = wiring.activations[later][-1]
        if side == "input" and call == "0" and isinstance(last, In) and last.space == space:
            return f"{module}:input"
    return None


def _check_streams(bases: Bases, layers: list[Layer], inputs: Any) -> list[Layer]:
    """Layers whose output is not simply added to what is read next aim at their own units instead."""
    network = copied(bases.target).eval()
    count = inputs_in(inputs)
    inputs = cut_inputs(inputs, slice(0, 2), count)  # what is added where shows in any input
    checked = []
    for layer in layers:
        if layer.aim == "stream":
            added = _added_positions(network, layer, inputs)
            modules = f"{layer.source}:output", f"{layer.target}:output"
            own = _own_aim(bases, layer.spaces)
            if added == ():
                layer = _behind_block(network, layer, inputs) or replace(layer, aim=own, at=modules)
            else:
                layer = replace(layer, positions=added)
        checked.append(layer)
    return checked


def _behind_block(network: nn.Module, layer: Layer, inputs: Any) -> Layer | None:
    """The layer with the output of the block around it as the place of its stream: a head may read one token alone."""
    blocks = _blocks_around(layer.source), _blocks_around(layer.target)
    for source, target in zip(*blocks, strict=False):
        behind = replace(layer, at=(f"{source}:output", f"{target}:output"))
        try:
            if _added_positions(network, behind, inputs) is None:
                return behind
        except InterbasinError:  # a module that puts out something else, or nothing
            continue
    return None


def _blocks_around(module: str) -> list[str]:
    """The modules that hold a module, innermost first."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def _added_positions(network: nn.Module, layer: Layer, inputs: Any) -> tuple[int, ...] | None:
    """The positions of the stream to which a layer's output is added as it is: None for all, () where it is not."""
    at, own = reading_at(layer.at[1]), reading_at(layer.output)
    before = Watcher(network, [own, at]).run(inputs)
    stream, output = before[at], before[own]
    shift = torch.linspace(0.5, 1.5, stream.shape[-1], dtype=stream.dtype, device=stream.device)
    module = network.get_submodule(layer.target)

    def add(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        axes = [1] * output.ndim
        axes[1 if isinstance(module, nn.Conv2d) else -1] = -1
        return output + shift.reshape(axes)

    hook = module.register_forward_hook(add)
    try:
        after = Watcher(network, [at]).run(inputs)[at]
    finally:
        hook.remove()
    change = (after.double() - stream.double()).flatten(1, -2) if stream.ndim > 2 else after.double() - stream.double()
    if output.shape[:-1] == stream.shape[:-1]:
        return None if torch.allclose(change, shift.double().expand_as(change), rtol=1e-2, atol=1e-2) else ()
    moved = change.abs().amax((0, -1)) > 0.1
    positions = tuple(moved.nonzero().flatten().tolist())
    same = bool(torch.allclose(change[:, moved], shift.double().expand_as(change[:, moved]), rtol=1e-2, atol=1e-2))
    return positions if same and len(positions) == output[0, ..., 0].numel() else ()


# ---------------------------------------------------------------------- rows of a layer


def input_rows(module: nn.Module, rows: Tensor) -> Tensor:
    """What a layer multiplies its weight with: ``(batch, positions..., in)``; patches for a convolution."""
    if not isinstance(module, nn.Conv2d):
        return rows
    assert not isinstance(module.padding, str)
    patches = unfold(
        rows.movedim(-1, 1), module.kernel_size, dilation=module.dilation, padding=module.padding, stride=module.stride
    )
    return patches.mT


def pair_rows(rows: Sequence[Tensor], sides: Sequence[int], tokens: Tokens | None) -> list[Tensor]:
    """Rows of both networks, ``(inputs, positions..., width)``, in equal numbers; side 0 is the source, 1 the target.

    Raises:
        ShapeError: if they do not pair, and nothing says how tokens are to be matched.
    """
    shapes = {tuple(each.shape[:-1]) for each in rows}
    if len(shapes) == 1:
        return list(rows)
    if tokens is None or any(each.ndim != 3 for each in rows):
        raise ShapeError(
            f"What the two networks show does not pair: rows of shapes {' and '.join(map(str, shapes))}; if they cut "
            "inputs into different numbers of tokens, pass tokens='interpolate2d', 'interpolate' or 'mean'."
        )
    if tokens.mode == "mean":
        return [each.mean(1, keepdim=True) for each in rows]
    return match_tokens(rows, sides, tokens)


def weight_of(module: Any) -> tuple[Tensor, Tensor | None]:
    """Weight (out, in) and bias of a layer, detached."""
    weight = module.weight.detach()
    if type(module).__name__ == "Conv1D":
        weight = weight.mT
    return weight.flatten(1), None if module.bias is None else module.bias.detach()


def set_weight(module: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Write a layer's weight (out, in) and bias."""
    own = module.weight
    with torch.no_grad():
        own.copy_((weight.mT if type(module).__name__ == "Conv1D" else weight).reshape(own.shape).to(own))
        if bias is not None and module.bias is not None:
            module.bias.copy_(bias.to(module.bias))
