"""Buffers that are tables of angles, not statistics.

Frequencies of rotary positions sit in a buffer, and a checkpoint may even hold them. Permuting them with the channels
they turn would leave the function unchanged, but networks keep the tables of sines and cosines that they once made, and
rebuild the buffer from their configuration. So they count as constants of the architecture.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

_TRIGONOMETRIC = frozenset({"cos", "sin", "polar"})


def angles(graph: fx.GraphModule, buffers: Collection[str], moving: Collection[str]) -> set[str]:
    """The placeholders among ``buffers`` of which sines or cosines are taken before anything else meets them.

    Args:
        graph: The traced network.
        buffers: Names of placeholders.
        moving: Names of placeholders that are parameters or inputs.
    """
    mixed: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if (node.op == "placeholder" and node.name in moving) or any(one in mixed for one in node.all_input_nodes):
            mixed.add(node)
    found = set()
    for node in graph.graph.nodes:
        if node.op == "placeholder" and node.name in buffers and _leads_to_angles(graph, node, mixed):
            found.add(node.name)
    return found


def _leads_to_angles(graph: fx.GraphModule, start: fx.Node, mixed: set[fx.Node]) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        for user in waiting.pop().users:
            if _is_trigonometric(graph, user):
                return True
            if user not in mixed and user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def _is_trigonometric(graph: fx.GraphModule, node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.partition("::")[2].rstrip("_") in _TRIGONOMETRIC
    # Tables are often made in a region of their own, with gradients switched off.
    regions = [one for one in node.all_input_nodes if one.op == "get_attr"]
    inner = [getattr(graph, str(one.target), None) for one in regions]
    return any(
        _is_trigonometric(one, part) for one in inner if isinstance(one, fx.GraphModule) for part in one.graph.nodes
    )
