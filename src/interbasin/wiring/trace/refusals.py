"""Why a network could not be traced, wired or run, in words its owner can use.

Among the reasons are operators that draw random numbers: no two calls of such a network agree.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from interbasin.batches import bound_inputs
from interbasin.errors import WiringError
from interbasin.wiring.trace.aliases import Writes, arguments_of, module_path, operator_name, regions, written
from interbasin.wiring.trace.copying import clone_arguments, copied

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
        inside = [drawing for region in regions(node) if (drawing := random_operator(region)) is not None]
        if inside:
            return inside[0]
        if _draws(node):
            return node  # type: ignore[no-any-return]
    return None


def _writes(node: fx.Node) -> bool:
    inside = (part for region in regions(node) for part in region.graph.nodes)
    return bool(written(node)) or any(_writes(part) for part in inside)


def _draws(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = operator_name(node)
    defaults = {
        argument.name: argument.default_value
        for argument in node.target._schema.arguments
        if argument.has_default_value()
    }
    arguments = defaults | arguments_of(node)
    if name in DROPOUT:
        return arguments.get("train") is not False and 0 < _number(arguments.get("p")) < 1
    if name.startswith("rrelu"):
        return bool(arguments.get("training")) and arguments.get("lower") != arguments.get("upper")
    if name in RECURRENT:
        return (
            bool(arguments.get("train")) and _number(arguments.get("dropout")) > 0 and arguments.get("num_layers") != 1
        )
    if "scaled_dot_product" in name:
        return _number(arguments.get("dropout_p")) > 0
    # One with a generator of its own may well draw the same at every call; `Wiring.check` tells.
    return torch.Tag.nondeterministic_seeded in node.target.tags and arguments.get("generator") is None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.5 if isinstance(value, fx.Node) else 0.0


DATA_DEPENDENT = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "UserError")
# Sums of products, whose kernels take factors of one dtype only; the tracer lets others pass.
PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "scaled_dot_product_attention"})
FACTORS = frozenset(
    {"self", "input", "weight", "other", "mat1", "mat2", "vec", "tensor", "query", "key", "value", "bias"}
)
_STANDARD_LIBRARY = tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "platstdlib"))
_OURS = (str(Path(__file__).resolve().parents[2]) + os.sep, str(Path(torch.__file__).resolve().parent) + os.sep)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>[^\n]*)(\n +(?P<code>[^\n]+))?')


def short(name: object, limit: int = 100) -> str:
    """A name as it stands, or its two ends if it would drown the sentence."""
    text = str(name)
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 3 :]}"


def explain(model: nn.Module, inputs: Any, error: Exception) -> WiringError:
    """The error to raise in place of what the tracer raised."""
    kind, text = type(error).__name__, first_line(error)
    if kind in DATA_DEPENDENT or "data-dependent" in str(error).lower() or "data dependent" in str(error).lower():
        return _depends_on_values(model, _at(_place(error)), text)
    if any(tensor.device.type == "meta" for tensor in model.parameters()):
        return WiringError(
            f"{_label(model)} is on the meta device and the example inputs are not; move them there too to wire it "
            "without weights, or load the weights first."
        )
    failure = _plain_run(model, inputs)
    if failure is not None:
        return call_failed(model, failure, error)
    return WiringError(
        f"{_label(model)} cannot be traced{_at(_place(error))}: {kind}: {text}. Wire the part of it that holds the "
        "weights, or replace what the tracer does not take."
    )


def call_failed(model: nn.Module, failure: Exception, traced: Exception | None = None) -> WiringError:
    """The error for a network that cannot be called on the inputs it was given."""
    place = _place(failure) if traced is None else _place(traced)
    return WiringError(
        f"The example inputs do not fit {_label(model)}: a plain call fails{_at(place)} with "
        f"{type(failure).__name__}: {first_line(failure)}. Give one batch as the network's forward takes it."
    )


def refuse_graph(model: nn.Module, graph: fx.GraphModule, writes: Writes) -> None:
    """Refuse what was traced and cannot be followed.

    Raises:
        WiringError: for sizes that depend on values, random numbers, factors of different dtypes, and writes in place
            that reach what the trace does not show.
    """
    for node in _nodes(graph):
        if not all(isinstance(size, int) for size in _sizes(node.meta.get("val"))):
            raise _depends_on_values(model, _at(_line(node)), "the sizes of its tensors do too")
    random = random_operator(graph)
    if random is not None:
        raise WiringError(
            f"{_label(model)} draws random numbers{_at(_line(random))} ({random.target}), so no two calls agree; call "
            "model.eval() first, or give what it draws as an input."
        )
    hidden = writes.secret or writes.stale
    if hidden is not None:
        raise WiringError(
            f"{_label(model)} writes in place{_at(_line(hidden))} ({hidden.target}) into memory that another tensor "
            "shares and that is read later, which cannot be followed there; write into a copy (tensor.clone()), or "
            "use the form that returns a new tensor."
        )
    if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
        _refuse_mixed_factors(model, graph)


def _refuse_mixed_factors(model: nn.Module, graph: fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        for inner in [] if "autocast" in str(node.target) else regions(node):
            _refuse_mixed_factors(model, inner)
        if operator_name(node) not in PRODUCTS:
            continue
        factors = [factor for name, factor in arguments_of(node).items() if name in FACTORS]
        values = [factor.meta.get("val") for factor in factors if isinstance(factor, fx.Node)]
        dtypes = list(dict.fromkeys(value.dtype for value in values if isinstance(value, torch.Tensor)))
        if len(dtypes) > 1:
            raise WiringError(
                f"The example inputs do not fit {_label(model)}: a product of {' and '.join(map(str, dtypes))}"
                f"{_at(_line(node))} ({node.target}), which torch does not compute. Give inputs of the dtype of the "
                "weights."
            )


def _depends_on_values(model: nn.Module, at: str, text: str) -> WiringError:
    return WiringError(
        f"{_label(model)} cannot be traced: its path depends on the values of tensors{at} ({text}). Trace the part "
        "without that branch, or replace it by torch.where."
    )


def _nodes(graph: fx.GraphModule) -> list[fx.Node]:
    nodes = []
    for node in graph.graph.nodes:
        nodes.append(node)
        for inner in regions(node):
            nodes.extend(_nodes(inner))
    return nodes


def _sizes(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, list | tuple):
        return [size for part in value for size in _sizes(part)]
    return []


def _label(model: nn.Module) -> str:
    return short(type(model).__name__)


def _plain_run(model: nn.Module, inputs: Any) -> Exception | None:
    """What a call outside the tracer raises, on copies: a call may write into the network and its inputs."""
    args, kwargs = bound_inputs(model, inputs)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copied(model)(*clone_arguments(args), **clone_arguments(kwargs))
    except Exception as error:
        return error
    return None


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _place(error: BaseException) -> str:
    """The innermost line of the traceback that is the user's: not torch's, not Python's, not ours."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_the_users(frame.filename):
            return _describe_frame(frame.filename, frame.lineno, frame.line or frame.name)
    return ""


def _line(node: fx.Node) -> str:
    """The same for an operator of the graph."""
    for frame in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        if _is_the_users(frame["file"]):
            return _describe_frame(frame["file"], frame["line"], frame["code"] or frame["name"])
    return short(module_path(node) or "")


def _describe_frame(file: str, line: object, code: str) -> str:
    return f"{file.replace(os.sep, '/').rsplit('/', 1)[-1]}:{line} ({short(code.strip())})"


def _is_the_users(file: str) -> bool:
    path = os.path.realpath(file)
    if file.startswith("<") or path.startswith(_OURS):
        return False
    return "site-packages" in Path(path).parts or not path.startswith(_STANDARD_LIBRARY)


def first_line(error: BaseException) -> str:
    """What an error says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return short(lines[0] if lines else type(error).__name__, 400).rstrip(".")
