"""Operators that draw random numbers: a network whose output depends on one has no two calls that agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from interbasin.wiring.trace.aliases import regions, written

__all__ = ["random_operator"]

DROPOUT = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"})
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def random_operator(graph: fx.GraphModule) -> fx.Node | None:
    """The first operator on the way to the output, or to something that is written, that draws random numbers."""
    needed: set[fx.Node] = set()
    for node in reversed(list(graph.graph.nodes)):
        if node.op == "output" or node in needed or _writes(node):
            needed.update([node, *node.all_input_nodes])
    for node in graph.graph.nodes:
        if node not in needed:
            continue
        inside = [found for one in regions(node) if (found := random_operator(one)) is not None]
        if inside:
            return inside[0]
        if _draws(node):
            return node  # type: ignore[no-any-return]
    return None


def _writes(node: fx.Node) -> bool:
    inside = (part for one in regions(node) for part in one.graph.nodes)
    return bool(written(node)) or any(_writes(part) for part in inside)


def _draws(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.partition("::")[2].rstrip("_")
    given = _arguments(node)
    if name in DROPOUT:
        return given.get("train") is not False and 0 < _number(given.get("p")) < 1
    if name.startswith("rrelu"):
        return bool(given.get("training")) and given.get("lower") != given.get("upper")
    if name in RECURRENT:
        return bool(given.get("train")) and _number(given.get("dropout")) > 0 and given.get("num_layers") != 1
    if "scaled_dot_product" in name:
        return _number(given.get("dropout_p")) > 0
    # One with a generator of its own may well draw the same at every call; `Wiring.check` tells.
    return torch.Tag.nondeterministic_seeded in node.target.tags and given.get("generator") is None


def _arguments(node: fx.Node) -> dict[str, Any]:
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    defaults = {one.name: one.default_value for one in schema if one.has_default_value()}
    return defaults | dict(zip((one.name for one in schema), node.args, strict=False)) | node.kwargs


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.5 if isinstance(value, fx.Node) else 0.0
