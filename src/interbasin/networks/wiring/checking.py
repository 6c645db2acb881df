"""How much a network's outputs change when it is carried through maps that should change nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from interbasin.networks.wiring.admission import refuse_numbers_that_are_none
from interbasin.networks.wiring.carrying import carry
from interbasin.networks.wiring.tracing import Inputs, bound_inputs, output_tensors
from interbasin.networks.wiring.wiring import Alignment

__all__ = ["change", "difference"]


def change(model: nn.Module, inputs: Inputs, alignment: Alignment) -> float:
    """The largest change of an output, relative to the largest entry of that output."""
    refuse_numbers_that_are_none(model)
    return difference(model, carry(model, alignment), inputs)


def difference(model: nn.Module, other: nn.Module, inputs: Inputs) -> float:
    """The largest difference of two networks' outputs, relative to the largest entry of each output of the first."""
    before, after = _outputs(model, inputs), _outputs(other, inputs)
    worst = [0.0]
    for a, b in zip(before, after, strict=True):
        if a.numel():
            finite = torch.isfinite(a)
            scale = float(a[finite].abs().max()) if bool(finite.any()) else 1.0
            gap = torch.where(a == b, 0.0, (a.double() - b.double()).abs())
            worst.append(float(gap.max()) / (scale or 1.0))
    # Not max(), which passes NaN over: a network that computes it would look perfect.
    return float(torch.tensor(worst, dtype=torch.float64).max())


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    args, kwargs = bound_inputs(model, inputs)
    widths = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    with torch.no_grad(), _precision(widths):
        return output_tensors(model(*args, **kwargs))


def _precision(widths: set[torch.dtype]) -> contextlib.AbstractContextManager[Any]:
    return _AllDouble() if widths == {torch.float64} else contextlib.nullcontext()  # type: ignore[no-untyped-call]


class _AllDouble(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Steps that a network takes in float32 whatever its weights are in, as many norms and softmaxes do, in float64.

    The figure then shows what the maps change, not what the network itself rounds.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
