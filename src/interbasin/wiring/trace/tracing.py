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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import OutputKind
from torch.torch_version import TorchVersion

from interbasin.batches import Inputs, bound_inputs
from interbasin.errors import WiringError
from interbasin.wiring.trace.aliases import Writes, writes_of
from interbasin.wiring.trace.calls import iterate_tensors, observe_calls, returned_tensors
from interbasin.wiring.trace.copying import copied, forget_what_was_derived
from interbasin.wiring.trace.preflight import memory_of, named_tensors
from interbasin.wiring.trace.refusals import explain, refuse_graph

__all__ = ["MARK", "Inputs", "Trace", "bound_inputs", "trace"]

# An operator that does nothing but stand in the graph: it says what goes into a module and what comes out of it.
_LIBRARY = torch.library.Library("interbasin", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("mark(Tensor value, str place) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.impl("mark", lambda value, place: None, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
# Nothing comes out of it, so a tensor without storage need not go through it: that was half of what a mark cost. The
# oldest versions of torch that we take cannot say so.
if hasattr(torch.library, "register_torch_dispatch"):
    torch.library.register_torch_dispatch("interbasin::mark", FakeTensorMode, lambda *_: None, lib=_LIBRARY)
MARK = torch.ops.interbasin.mark.default
fx.node.has_side_effect(MARK)

_NO_LINES = "do_not_emit_stack_traces"  # a setting of torch.fx, which older versions do not read
WRITTEN_BACK = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


@dataclass(frozen=True)
class Trace:
    """A graph, what each of its placeholders is, and which of them a call writes into.

    Attributes:
        graph: The operators of one call.
        placeholders: For each of its placeholders a tensor of the network by name, or None for an input.
        results: For each of its outputs the tensor of the network that it is written into, or None for an output.
        writes: The nodes that write into tensors of the network or into its inputs.
    """

    graph: fx.GraphModule
    placeholders: list[str | None]
    results: list[str | None]
    writes: frozenset[fx.Node] = frozenset()


class _FlatOutputs(nn.Module):
    """The network with its outputs as a plain tuple, whatever class they come in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(returned_tensors(self.model, self.model(*args, **kwargs)))


def trace(model: nn.Module, inputs: Inputs) -> Trace:
    """The graph of one call.

    Raises:
        WiringError: if the network cannot be traced; says where in its code, and what can be done.
    """
    args, kwargs = bound_inputs(model, inputs)
    _refuse_empty(model, (args, kwargs))
    shell, program, writes = _export(model, inputs, args, kwargs, lines=False)
    try:
        refuse_graph(model, program.graph_module, writes)
    except WiringError:
        # To write down the line of code behind each operator takes long, and only a refusal tells it.
        shell, program, writes = _export(model, inputs, args, kwargs, lines=True)
        refuse_graph(model, program.graph_module, writes)
    signature = program.graph_signature
    names: dict[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    owned = {name: _owner(owner) for name, owner in names.items()}
    owned |= _kept_elsewhere(shell, program)
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    return Trace(
        program.graph_module,
        [owned.get(name) for name in placeholders],
        [_owner(output.target) if output.kind in WRITTEN_BACK else None for output in signature.output_specs],
        frozenset(writes.lasting),
    )


def _export(
    model: nn.Module, inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any], *, lines: bool
) -> tuple[nn.Module, torch.export.ExportedProgram, Writes]:
    """The network that was traced, its program and what that writes; ``lines``: operators know their line of code."""
    shell = _shell(model)
    try:
        with warnings.catch_warnings(), _silence_torch(), _lines_of_code(lines), _no_code():
            warnings.simplefilter("ignore")
            program = torch.export.export(_FlatOutputs(shell), args, kwargs, strict=False)
            writes = writes_of(program.graph_module)
            if writes.stale is not None and writes.secret is None:
                program = program.run_decompositions({})
                writes = writes_of(program.graph_module)
    except WiringError:
        raise
    except Exception as error:
        raise explain(model, inputs, error) from error
    return shell, program, writes


def _refuse_empty(model: nn.Module, given: Any) -> None:
    """Refuse tensors of no entries: how such a one is cut up does not tell which axis goes where."""
    empty = next((tensor for tensor in iterate_tensors(given) if not tensor.numel()), None)
    if empty is not None:
        raise WiringError(
            f"The example inputs of {type(model).__name__} hold an empty tensor, of shape {tuple(empty.shape)}, along "
            "which no space can be followed; give a batch with some rows."
        )


def _kept_elsewhere(shell: nn.Module, program: torch.export.ExportedProgram) -> dict[str, str]:
    """Constants of the graph that are the network's own tensors, reached by another way than their names: whose."""
    own = {memory_of(tensor): name for name, tensor in named_tensors(shell).items()}
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    held = {placeholder: program.constants.get(constant) for placeholder, constant in lifted.items()}
    whose = {name: own.get(memory_of(constant)) for name, constant in held.items() if isinstance(constant, Tensor)}
    return {placeholder: name for placeholder, name in whose.items() if name is not None}


def _owner(name: str | None) -> str:
    return str(name).removeprefix("model.")


@contextlib.contextmanager
def _silence_torch() -> Iterator[None]:
    """Without the pages that torch writes about a trace that fails: our error is one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _lines_of_code(wanted: bool) -> Iterator[None]:
    """Whether operators of graphs that are traced meanwhile know the lines of code that they come from."""
    before = getattr(fx.config, _NO_LINES, False)
    setattr(fx.config, _NO_LINES, not wanted)
    try:
        yield
    finally:
        setattr(fx.config, _NO_LINES, before)


def _no_code() -> contextlib.AbstractContextManager[Any]:
    """Without the Python code of graphs that are traced meanwhile, until one is called: nobody reads it here.

    The passes that follow a trace would each have it written and compiled anew. The setting is not public, and of older
    versions it is not known whether their passes can do without.
    """
    lazily = getattr(getattr(fx, "_lazy_graph_module", None), "_use_lazy_graph_module", None)
    return lazily(True) if lazily and TorchVersion(torch.__version__) >= "2.13" else contextlib.nullcontext()


def _shell(model: nn.Module) -> nn.Module:
    """A copy that shares all tensors: what a network keeps for itself during a call stays out of the original.

    Its modules that own tensors mark what goes in and comes out of them; all others would double the work of tracing.
    A network that does more than to set a flag when its mode changes may rewrite its weights then, as merged low-rank
    updates do, so it is copied whole, and traced as it will be carried.
    """
    plain = all(type(module).train is nn.Module.train for module in model.modules())
    shell = copied(model, sharing=plain)
    if not plain:
        forget_what_was_derived(shell)
    for name, module in shell.named_modules():
        if not any(True for _ in itertools.chain(module.parameters(False), module.buffers(False))):
            continue
        entered, left = itertools.count(), itertools.count()

        def enter(args: Any, kwargs: Any, name: str = name, calls: Any = entered) -> None:
            _mark([*args, *kwargs.values()], f"{name}:input:{next(calls)}")

        def leave(output: Any, name: str = name, calls: Any = left) -> None:
            _mark([output], f"{name}:output:{next(calls)}")

        observe_calls(module, enter, leave)
    return shell


def _mark(values: Sequence[Any], place: str) -> None:
    first = next((tensor for tensor in iterate_tensors(list(values)) if tensor.is_floating_point()), None)
    if first is not None:
        MARK(first, place)
