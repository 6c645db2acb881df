"""A network as a graph of aten operators.

`torch.export` without its strict mode runs the network's own Python on tensors without storage and writes down the
operators: no line is written for an architecture, the high-level operators stay whole (linear, attention, norms), and
nothing is computed. Symbolic tracing (`torch.fx`) stops at the first ``if`` on a shape, and tracing at the level of
dispatch sees attention and linear layers in pieces.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from interbasin.errors import WiringError
from interbasin.networks.wiring.copying import copied

__all__ = ["MARK", "Inputs", "Trace", "bound_inputs", "output_tensors", "trace"]

Inputs: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any]"

# An operator that does nothing but stand in the graph: it says what goes into a module and what comes out of it.
_LIBRARY = torch.library.Library("interbasin", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("mark(Tensor value, str place) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.impl("mark", lambda value, place: None, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
MARK = torch.ops.interbasin.mark.default
fx.node.has_side_effect(MARK)


@dataclass(frozen=True)
class Trace:
    """A graph, and what each of its placeholders is: a tensor of the network by name, or None for an input."""

    graph: fx.GraphModule
    placeholders: list[str | None]


def bound_inputs(model: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One batch as positional and keyword arguments. Caches of decoding are switched off where there is a switch."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    if isinstance(inputs, Tensor):
        args, kwargs = (inputs,), {}
    elif isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, Sequence) and not isinstance(inputs, str):
        args, kwargs = tuple(inputs), {}
    else:
        raise WiringError(
            f"The example inputs must be a tensor, a tuple of arguments or a mapping of keyword arguments, found "
            f"{type(inputs).__name__}; give one batch as the network's forward takes it."
        )
    forward = next((vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)), None)
    code = getattr(forward, "__code__", None)
    if code is not None and "use_cache" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        kwargs.setdefault("use_cache", False)
    return args, kwargs


def output_tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors of whatever a network returned, in order. Caches are not outputs."""
    return [tensor for tensor in _tensors(output) if tensor.is_floating_point()]


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for name, part in output.items():
            if name != "past_key_values":
                yield from _tensors(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _tensors(part)
    elif is_dataclass(output) and not isinstance(output, type):
        for one in fields(output):
            if one.name != "past_key_values":
                yield from _tensors(getattr(output, one.name))


class _FlatOutputs(nn.Module):
    """The network with its outputs as a plain tuple, whatever class they come in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(output_tensors(self.model(*args, **kwargs)))


def trace(model: nn.Module, inputs: Inputs) -> Trace:
    """The graph of one call.

    Raises:
        WiringError: if the network cannot be traced; says where in its code, and what can be done.
    """
    args, kwargs = bound_inputs(model, inputs)
    shell = _shell(model)
    try:
        with warnings.catch_warnings(), _hushed():
            warnings.simplefilter("ignore")
            program = torch.export.export(_FlatOutputs(shell), args, kwargs, strict=False)
            if _writes_into_views(program.graph):
                program = program.run_decompositions({})
    except Exception as error:
        from interbasin.networks.wiring.refusals import explain

        raise explain(model, inputs, error) from error
    signature = program.graph_signature
    names: dict[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    known = [names.get(name) for name in placeholders]
    return Trace(program.graph_module, [None if name is None else name.removeprefix("model.") for name in known])


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Without the pages that torch writes about a trace that fails: our error is one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _shell(model: nn.Module) -> nn.Module:
    """A copy that shares all tensors: what a network keeps for itself during a call stays out of the original.

    Its modules that own tensors mark what goes in and comes out of them; all others would double the work of tracing.
    """
    shell = copied(model, sharing=True)
    for name, module in shell.named_modules():
        if not any(True for _ in itertools.chain(module.parameters(False), module.buffers(False))):
            continue
        calls = itertools.count()

        def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name, calls: Any = calls) -> None:
            _mark([*args, *kwargs.values()], f"{name}:input:{next(calls)}")

        done = itertools.count()

        def leave(_: nn.Module, args: Any, output: Any, name: str = name, done: Any = done) -> None:
            _mark([output], f"{name}:output:{next(done)}")

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)
    return shell


def _mark(values: Sequence[Any], place: str) -> None:
    first = next((tensor for tensor in _tensors(list(values)) if tensor.is_floating_point()), None)
    if first is not None:
        MARK(first, place)


def _writes_into_views(graph: fx.Graph) -> bool:
    """Whether an in-place operator changes a tensor through a view of it, or one that has views."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if not node.target._schema.is_mutable or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        changed = node.args[0]
        if _is_view(changed) or any(_is_view(user) for user in changed.users if user is not node):
            return True
    return False


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(found.alias_info is not None and not found.alias_info.is_write for found in node.target._schema.returns)
