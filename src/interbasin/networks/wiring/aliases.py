"""Writes in place that reach further than the node they stand at.

The walk through a graph keeps a value for every node, and an in-place operator gives the node that it writes into a new
one. That is right as long as nothing else lies on the same memory and is read later: the tensor that a slice was taken
of, the other members of a split, what a region without gradients was given. Such writes are found here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

__all__ = ["Writes", "regions", "writes_of"]

# These return their very input when they have nothing to drop, and the tracer does not say so.
HANDED_ON = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"})


@dataclass(frozen=True)
class Writes:
    """What a graph writes in place.

    Attributes:
        stale: A write after which something else on the same memory is read; rewriting the graph without in-place
            operators mends that.
        secret: The same, where the operator that made them share memory does not declare it; nothing mends that.
        into: For each write into something that the graph was given (by the name of the placeholder): the nodes that
            write.
    """

    stale: fx.Node | None = None
    secret: fx.Node | None = None
    into: dict[str, list[fx.Node]] = field(default_factory=dict)


def regions(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs inside a node that runs others: regions with gradients or autocast switched."""
    owner = node.graph.owning_module
    inside = [one for one in node.all_input_nodes if one.op == "get_attr"]
    found = [getattr(owner, str(one.target), None) for one in inside]
    return [one for one in found if isinstance(one, fx.GraphModule)]


def written(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operator writes into."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    arguments = node.target._schema.arguments
    given = dict(zip((one.name for one in arguments), node.args, strict=False)) | node.kwargs
    changed = [given.get(one.name) for one in arguments if one.alias_info is not None and one.alias_info.is_write]
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
    given = {node for node in graph.graph.nodes if node.op == "placeholder"}
    lying = survey.lying()
    into: dict[str, list[fx.Node]] = {}
    stale = secret = None
    for time, target, node in survey.writes:
        memory = survey.memory(target)
        beside = {one for part in memory for one in lying[part]}
        for placeholder in beside & given:
            into.setdefault(placeholder.name, []).append(node)
        fresh = {node, target} if is_plain_write(node) else {node}
        if any(survey.made[one] < time < survey.read[one] for one in beside - fresh) or not is_plain_write(node):
            stale = stale or node
            # What is handed on in secret only after the write reads what was written, as it should.
            if any(before < time and memory & shared for before, shared in survey.undeclared()):
                secret = secret or node
    return Writes(stale, secret, into)


class _Survey:
    """When each node is made and read for the last time, on which memory it lies, and when which are written."""

    def __init__(self) -> None:
        self.made: dict[fx.Node, int] = {}
        self.read: dict[fx.Node, int] = defaultdict(int)
        self.writes: list[tuple[int, fx.Node, fx.Node]] = []
        self._joined: dict[int, int] = {}
        self._undeclared: list[tuple[int, set[int]]] = []

    def look(self, graph: fx.GraphModule) -> None:
        for node in graph.graph.nodes:
            time = self.made[node] = len(self.made) + 1
            for one in node.all_input_nodes:
                self.read[one] = time
            for inner in regions(node):
                self.look(inner)
            self.writes.extend((time, target, node) for target in written(node))
            self._join(node)

    def _join(self, node: fx.Node) -> None:
        if not isinstance(node.target, torch._ops.OpOverload) or written(node):
            return
        declared = any(one.alias_info is not None for one in node.target._schema.returns)
        handed_on = node.target._schema.name.partition("::")[2] in HANDED_ON
        for source in node.all_input_nodes:
            shared = bool(_storages(node) & _storages(source))
            # A view lies on the memory of its first argument, whatever the tracer made of it.
            if handed_on or (declared and node.args and source is node.args[0]):
                for one in _storages(node):
                    for other in _storages(source):
                        self._joined[self._root(one)] = self._root(other)
            if (shared and not declared) or handed_on:
                self._undeclared.append((self.made[node], _storages(node) | _storages(source)))

    def _root(self, storage: int) -> int:
        while self._joined.get(storage, storage) != storage:
            storage = self._joined[storage]
        return storage

    def memory(self, node: fx.Node) -> set[int]:
        return {self._root(one) for one in _storages(node)}

    def lying(self) -> dict[int, list[fx.Node]]:
        """The nodes on each memory."""
        found: dict[int, list[fx.Node]] = defaultdict(list)
        for node in self.made:
            for one in self.memory(node):
                found[one].append(node)
        return found

    def undeclared(self) -> list[tuple[int, set[int]]]:
        """When which memory was shared by an operator that does not declare it."""
        return [(time, {self._root(one) for one in shared}) for time, shared in self._undeclared]


def _storages(node: fx.Node) -> set[int]:
    found = set()
    for one in _flat([node.meta.get("val")]):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided:
            found.add(one.untyped_storage()._cdata)
    return found


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, list | tuple):
            yield from _flat(one)
        else:
            yield one
