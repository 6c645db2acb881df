"""Why a network could not be traced, in words its owner can use."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import nn

from interbasin.errors import WiringError

__all__ = ["explain"]

DATA_DEPENDENT = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "UserError")


def explain(model: nn.Module, inputs: Any, error: Exception) -> WiringError:
    """The error to raise in place of what the tracer raised."""
    place = _place(error)
    at = f" at {place}" if place else ""
    kind, text = type(error).__name__, _first_line(error)
    if kind in DATA_DEPENDENT or "data-dependent" in str(error).lower() or "data dependent" in str(error).lower():
        return WiringError(
            f"{type(model).__name__} cannot be traced: its path depends on the values of tensors{at} ({text}). "
            "Trace the part without that branch, or replace it by torch.where."
        )
    if any(tensor.device.type == "meta" for tensor in model.parameters()):
        return WiringError(
            f"{type(model).__name__} is on the meta device and the example inputs are not; move them there too to wire "
            "it without weights, or load the weights first."
        )
    failure = _plain_run(model, inputs)
    if failure is not None:
        return WiringError(
            f"The example inputs do not fit {type(model).__name__}: a plain call fails{at} with "
            f"{type(failure).__name__}: {_first_line(failure)}. Give one batch as the network's forward takes it."
        )
    return WiringError(
        f"{type(model).__name__} cannot be traced{at}: {kind}: {text}. Wire the part of it that holds the weights, or "
        "replace what the tracer does not take."
    )


def _plain_run(model: nn.Module, inputs: Any) -> Exception | None:
    from interbasin.networks.wiring.tracing import bound_inputs

    args, kwargs = bound_inputs(model, inputs)
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _place(error: BaseException) -> str:
    """The innermost line of the traceback that is the user's: not torch's, not ours."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = frame.filename.replace("\\", "/")
        if "/torch/" not in path and "/interbasin/" not in path and not path.startswith("<"):
            return f"{path.rsplit('/', 1)[-1]}:{frame.lineno} ({(frame.line or frame.name).strip()})"
    return ""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
