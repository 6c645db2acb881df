"""Writes in place that reach further than the node they stand at.

The walk through a graph keeps a value for every node, and an in-place operator gives the node that it writes into a new
one. That is right as long as nothing else lies on the same memory and is read later: the tensor that a slice was taken
of, the other members of a split, what a region without gradients was given. Such writes are found here.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx

# These return their very input when they have nothing to drop, and the tracer does not say so.
HANDED_ON = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"})


@dataclass(frozen=True)
class Writes:
    """What a graph writes in place.

    Attributes:
        stale: A write after which something else on the same memory is read; rewriting the graph without in-place
            operators mends that.
        secret: The same, where the operator that made the two share memory does not declare it; nothing mends that.
        lasting: The nodes that write into something that the graph was given.
    """

    stale: fx.Node | None = None
    secret: fx.Node | None = None
    lasting: tuple[fx.Node, ...] = ()


def regions(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs inside a node that runs others: regions with gradients or autocast switched."""
    owner = node.graph.owning_module
    inside = [getattr(owner, str(source.target), None) for source in node.all_input_nodes if source.op == "get_attr"]
    return [graph for graph in inside if isinstance(graph, fx.GraphModule)]


def operator_name(node: fx.Node) -> str:
    """The name of an operator without its overload and the underscore of an in-place form; nothing for other nodes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    return node.target._schema.name.partition("::")[2].rstrip("_")


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator by the names of its schema, without those that were left out."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = (argument.name for argument in node.target._schema.arguments)
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def module_path(node: fx.Node) -> str | None:
    """The module that a node stands in, or nothing if the tracer does not say."""
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return stack[-1].removeprefix("model").removeprefix(".") if stack else None


def written(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operator writes into."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    infos = {argument.name: argument.alias_info for argument in node.target._schema.arguments}
    changed = [value for name, value in arguments_of(node).items() if (info := infos[name]) and info.is_write]
    return [one for one in _flat(changed) if isinstance(one, fx.Node)]


def is_plain_write(node: fx.Node) -> bool:
    """Whether an operator writes into its first argument alone and gives it back: the usual in-place form."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
        return False
    return written(node) == [node.args[0]] and len(node.target._schema.returns) == 1


def writes_of(graph: fx.GraphModule) -> Writes:
    """The writes in place of a traced network, its regions included."""
    survey = _Survey()
    survey.look(graph)
    placeholders = {node for node in graph.graph.nodes if node.op == "placeholder"}
    lying = survey.lying()
    lasting = []
    stale = secret = None
    for time, target, node in survey.writes:
        beside = {other for part in survey.memory(target) for other in lying[part]}
        if beside & placeholders:
            lasting.append(node)
        fresh = {node, target} if is_plain_write(node) else {node}
        old = [other for other in beside - fresh if survey.made[other] <= time < survey.read[other]]
        if old or not is_plain_write(node):
            stale = stale or node
        if any(survey.family(other) is not survey.family(target) for other in old):
            secret = secret or node
    return Writes(stale, secret, tuple(lasting))


class _Survey:
    """When each node is made and read for the last time, on which memory it lies, and when which are written.

    Nodes that lie on one memory because their operators say so are of one family; others only turn out to share it.
    """

    def __init__(self) -> None:
        self.made: dict[fx.Node, int] = {}
        self.read: dict[fx.Node, int] = defaultdict(int)
        self.writes: list[tuple[int, fx.Node, fx.Node]] = []
        self._time = 0
        self._memories: dict[int, int] = {}
        self._families: dict[fx.Node, fx.Node] = {}
        self._returned: dict[fx.Node, list[Any]] = {}

    def look(self, graph: fx.GraphModule, arguments: Sequence[Any] = ()) -> None:
        waiting = iter(arguments)
        for node in graph.graph.nodes:
            # What a region is given is read before what stands in it, and what it gives is made after that.
            before, self._time = self._time, self._time + 1
            for source in node.all_input_nodes:
                self.read[source] = before
            if node.op == "placeholder" and isinstance(outer := next(waiting, None), fx.Node):
                _join(self._families, node, outer)
            for inner in regions(node):
                nodes = list(inner.graph.nodes)
                self.look(inner, node.args[-sum(part.op == "placeholder" for part in nodes) :])
                self._returned[node] = list(_flat([part.args[0] for part in nodes if part.op == "output"]))
            self.made[node] = self._time
            self.writes.extend((before, target, node) for target in written(node))
            self._relate(node)

    def _relate(self, node: fx.Node) -> None:
        """Say which of its arguments a node lies on the memory of."""
        if node.target is operator.getitem:
            container, place = node.args
            returned = self._returned.get(container, [])  # type: ignore[arg-type]
            source = returned[place] if isinstance(place, int) and place < len(returned) else container
            if isinstance(source, fx.Node):
                _join(self._families, node, source)
        if not isinstance(node.target, torch._ops.OpOverload):
            return
        for target in written(node):
            _join(self._families, node, target)
        declared = any(result.alias_info is not None for result in node.target._schema.returns) and not written(node)
        handed_on = operator_name(node) in HANDED_ON
        if node.args and isinstance(node.args[0], fx.Node) and (declared or handed_on):
            # A view lies on the memory of its first argument, whatever the tracer made of it.
            for storage in _storages(node):
                for other in _storages(node.args[0]):
                    _join(self._memories, storage, other)
            if declared:
                _join(self._families, node, node.args[0])

    def family(self, node: fx.Node) -> fx.Node:
        return _root(self._families, node)

    def memory(self, node: fx.Node) -> set[int]:
        return {_root(self._memories, storage) for storage in _storages(node)}

    def lying(self) -> dict[int, list[fx.Node]]:
        """The nodes on each memory."""
        nodes: dict[int, list[fx.Node]] = defaultdict(list)
        for node in self.made:
            for storage in self.memory(node):
                nodes[storage].append(node)
        return nodes


Key = TypeVar("Key")


def _root(joined: dict[Key, Key], key: Key) -> Key:
    while key in joined:
        key = joined[key]
    return key


def _join(joined: dict[Key, Key], key: Key, other: Key) -> None:
    first, second = _root(joined, key), _root(joined, other)
    if first != second:
        joined[first] = second


def _storages(node: fx.Node) -> set[int]:
    storages = set()
    for value in _flat([node.meta.get("val")]):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            storages.add(value.untyped_storage()._cdata)
    return storages


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
