"""From a network to its wiring: trace it, walk the graph, name what was found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn

from interbasin.wiring import operators  # noqa: F401  (registers the rules)
from interbasin.wiring.axes.axes import Axes
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.naming import name_spaces
from interbasin.wiring.axes.spaces import Each, Reason, Term, parts_of
from interbasin.wiring.axes.terms import whole
from interbasin.wiring.interpret import INPUT, Interpreter, Value, constant
from interbasin.wiring.trace.aliases import operator_name, regions
from interbasin.wiring.trace.preflight import check_model, names_kept
from interbasin.wiring.trace.tracing import Inputs, Trace, trace
from interbasin.wiring.wiring import TensorWiring, Wiring

CONSTANT = Reason("constant", "a constant of the network lies along it")
UNREAD = Reason("unread", "nothing reads it in the traced call")
OUTPUT = Reason("output", "the network's output lies along it")
_TRIGONOMETRIC = frozenset({"cos", "sin", "polar"})


def wire(model: nn.Module, inputs: Inputs) -> Wiring:
    """The wiring of ``model``, found by tracing one call on ``inputs``.

    No tensor's values are looked at, and the model stays as it is. An operator that is not known fixes what it touches:
    the wiring may be poorer than it could be, but every map it allows leaves the function unchanged.

    Args:
        model: In evaluation mode, on any device.
        inputs: One batch: a tensor, a tuple of positional arguments, or a mapping of keyword arguments.

    Raises:
        WiringError: if the model cannot be traced, with the line of its code and what can be done; if it draws random
            numbers; if it returns no tensors, or something that may hold them in ways that are not known; if tensors
            overlap in ways that cannot be carried, or writes in place in ways that cannot be followed.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> wiring = wire(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
        >>> wiring.spaces["0"].describe()
        'permutation of 8'
    """
    tensors, tied = check_model(model)
    wiring = _follow(trace(model, inputs), tensors, tied)
    known = {*wiring.tensors, *wiring.unused, *wiring.tied}
    return replace(wiring, constants=tuple(name for name in names_kept(model) if name not in known))


def wire_around(model: nn.Module, inputs: Inputs, modules: Mapping[str, int]) -> Wiring:
    """The wiring of a network with some modules taken out: what each puts out along its axis is a new space."""
    tensors, tied = check_model(model)
    return _follow(trace(model, inputs), tensors, tied, modules)


def _placeholders(traced: Trace) -> list[fx.Node]:
    return [node for node in traced.graph.graph.nodes if node.op == "placeholder"]


def _follow_unread(run: Interpreter, tensors: Sequence[Sequence[Term]]) -> None:
    """See to the segments of tensors that nothing reads in the traced call, as positions beyond its length.

    Another call may read them in place of those that were: what lies beside them moves as it does there. The rest stays
    as it is.
    """
    axes = run.axes

    def unread(term: Term) -> bool:
        leaves = list(axes.leaves(term))
        return bool(leaves) and all(leaf.space not in known for leaf in leaves)

    for _ in range(2):
        known = {leaf.space for atom in run.read for leaf in axes.leaves(whole(atom))}
        for dims in tensors:
            for term in dims:
                for each in [part for part in parts_of(axes.resolve(term)) if isinstance(part, Each)]:
                    read = [part for part in each.parts if not unread(part)]
                    for part in each.parts:
                        like = next((other for other in read if other.size == part.size), None)
                        if like is not None and unread(part):
                            axes.unify(part, like, UNREAD)
    known = {leaf.space for atom in run.read for leaf in axes.leaves(whole(atom))}
    for dims in tensors:
        for term in dims:
            for leaf in list(axes.leaves(term)):
                if leaf.space not in known:
                    axes.restrict(leaf, Group.FIXED, UNREAD)


def _follow(
    traced: Trace, tensors: dict[str, Tensor], tied: dict[str, str], around: Mapping[str, int] | None = None
) -> Wiring:
    axes = Axes()
    names = dict(zip((node.name for node in _placeholders(traced)), traced.placeholders, strict=True))
    buffers = {node for node, name in names.items() if name in tensors and not isinstance(tensors[name], nn.Parameter)}
    tables = {names[node] for node in _find_angles(traced.graph, buffers, names.keys() - buffers)}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in tables}
    terms = {name: axes.parameter(tensor.shape) for name, tensor in tensors.items()}
    run = Interpreter(axes, around=around or {}, writes=traced.writes)
    held = {name: Value(list(dims), learned=True) for name, dims in terms.items()}
    used: dict[str, None] = {}
    values: list[Any] = []
    for node, name in zip(_placeholders(traced), traced.placeholders, strict=True):
        home = None if name is None else tied.get(name, name)
        if home in held:
            if node.users:
                used[home] = None
            values.append(held[home])
        else:
            example = node.meta.get("val")
            why = INPUT if name is None else CONSTANT
            values.append(constant(example.shape, why) if isinstance(example, Tensor) else example)
    for value, name in zip(run.walk(traced.graph, values), traced.results, strict=True):
        if isinstance(value, Value):
            kept = None if name is None else held.get(tied.get(name, name))
            if kept is None:
                run.fix(run.settle(value), OUTPUT)
            else:
                run.write_back(kept, value)
    _follow_unread(run, [terms[name] for name in used])
    activations = {place: value.dims for place, value in run.marks if value.pending is None}
    named = name_spaces(axes, {name: terms[name] for name in terms if name in used}, activations, run.seen)
    return Wiring(
        spaces=named.spaces,
        tensors={name: TensorWiring(tuple(tensors[name].shape), parts) for name, parts in named.tensors.items()},
        activations=named.activations,
        tied=tied,
        unused=tuple(name for name in terms if name not in used),
        unknown=run.unknown,
    )


# ---------------------------------------------------------------------- tables of angles


def _find_angles(graph: fx.GraphModule, buffers: Collection[str], moving: Collection[str]) -> set[str]:
    """The placeholders among ``buffers`` of which sines or cosines are taken before anything else meets them.

    Frequencies of rotary positions sit in a buffer, and a checkpoint may even hold them. Permuting them with the
    channels they turn would leave the function unchanged, but networks keep the tables of sines and cosines that they
    once made, and rebuild the buffer from their configuration. So they count as constants of the architecture.

    Args:
        graph: The traced network.
        buffers: Names of placeholders.
        moving: Names of placeholders that are parameters or inputs.
    """
    mixed: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if (node.op == "placeholder" and node.name in moving) or not mixed.isdisjoint(node.all_input_nodes):
            mixed.add(node)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder" and node.name in buffers]
    return {node.name for node in placeholders if _leads_to_angles(node, mixed)}


def _leads_to_angles(start: fx.Node, mixed: set[fx.Node]) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        for user in waiting.pop().users:
            if _is_trigonometric(user):
                return True
            if user not in mixed and user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def _is_trigonometric(node: fx.Node) -> bool:
    # Tables are often made in a region of their own, with gradients switched off.
    inside = (part for graph in regions(node) for part in graph.graph.nodes)
    return operator_name(node) in _TRIGONOMETRIC or any(map(_is_trigonometric, inside))
