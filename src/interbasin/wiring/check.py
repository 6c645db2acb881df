"""How much a network's outputs change when it is carried through maps that should change nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from interbasin.batches import Inputs, bound_inputs
from interbasin.errors import DataError, WiringError
from interbasin.text import plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry
from interbasin.wiring.trace.calls import returned_tensors
from interbasin.wiring.trace.copying import clone_arguments, copied
from interbasin.wiring.trace.preflight import check_model, refuse_numbers_that_are_none
from interbasin.wiring.trace.refusals import call_failed, short
from interbasin.wiring.wiring import Wiring

# Two calls of one network may differ by so many units of rounding: not all kernels add in one order.
ROUNDING = 16


def changes(wiring: Wiring, model: nn.Module, inputs: Inputs, alignments: Iterable[Alignment]) -> list[float]:
    """For each alignment the largest change of an output, relative to the largest entry of that output.

    The network and its inputs stay as they are: all calls are made on copies.

    Raises:
        WiringError: for a network that is not the one that was wired, that cannot be called on these inputs, or whose
            calls do not agree with one another.
        DataError: if the outputs are empty, or NaN.
    """
    _refuse_other_network(wiring, model)
    refuse_numbers_that_are_none(model)
    before = _outputs(copied(model), inputs)
    _refuse_no_figures(model, before)
    again = _gap(before, _outputs(copied(model), inputs))
    eps = max((torch.finfo(tensor.dtype).eps for tensor in before if _holds_fractions(tensor)), default=0)
    if not again <= ROUNDING * eps:
        raise WiringError(
            f"{short(type(model).__name__)} draws random numbers: two calls disagree by {again:.1e} on the same "
            "inputs, so no check can be made; call model.eval() first, or give what it draws as an input."
        )
    return [_gap(before, _outputs(carry(model, alignment), inputs)) for alignment in alignments]


def difference(model: nn.Module, other: nn.Module, inputs: Inputs) -> float:
    """The largest difference of two networks' outputs, relative to the largest entry of each output of the first."""
    return _gap(_outputs(copied(model), inputs), _outputs(copied(other), inputs))


def round_off(model: nn.Module) -> float:
    """What rounding may do to a loss of order one: the root of the machine epsilon of the coarsest parameter.

    Errors add up from layer to layer, so that of a single operation would be too little to allow.
    """
    dtypes = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    return math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float32).eps))


def _gap(before: list[Tensor], after: list[Tensor]) -> float:
    if [output.shape for output in before] != [output.shape for output in after]:
        return math.inf
    worst = [0.0]
    for a, b in zip(before, after, strict=True):
        if a.numel():
            wide = torch.complex128 if a.is_complex() else torch.float64
            first, second = a.to(wide), b.to(wide)
            finite = torch.isfinite(first)
            scale = float(first[finite].abs().max()) if bool(finite.any()) else 1.0
            gap = torch.where(first == second, 0.0, (first - second).abs())
            worst.append(float(gap.max()) / (scale or 1.0))
    # Not max(), which passes NaN over: a network that computes it would look perfect.
    return float(torch.tensor(worst, dtype=torch.float64, device="cpu").max())


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The outputs of one call of a network that may be changed by it. What the user's generators draw stays theirs."""
    args, kwargs = bound_inputs(model, inputs)
    widths = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    drawing = {tensor.device.index or 0 for tensor in model.parameters() if tensor.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(devices=sorted(drawing)), _precision(widths):
        try:
            output = model(*clone_arguments(args), **clone_arguments(kwargs))
        except Exception as error:
            raise call_failed(model, error) from error
        return returned_tensors(model, output)


def _refuse_other_network(wiring: Wiring, model: nn.Module) -> None:
    tensors, tied = check_model(model)
    if torch.get_default_device().type == "meta":
        raise WiringError(
            "The default device is meta, where nothing is computed, so no check can be made; call "
            "torch.set_default_device('cpu') first."
        )
    known = {*wiring.tensors, *wiring.unused, *wiring.constants, *wiring.tied}
    strange = [name for name in tensors if name not in known]
    if strange:
        raise WiringError(
            f"The wiring does not know {short(strange[0])} of {short(type(model).__name__)} (of {len(strange)} tensors "
            "that it does not know); wire this network."
        )
    apart = [name for name in {**tied, **wiring.tied} if tied.get(name) != wiring.tied.get(name)]
    if apart:
        raise WiringError(
            f"{short(apart[0])} of {short(type(model).__name__)} is tied to another tensor in the wiring or in the "
            "network, but not in both; wire this network."
        )


def _holds_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _refuse_no_figures(model: nn.Module, outputs: list[Tensor]) -> None:
    name = short(type(model).__name__)
    if not any(output.numel() for output in outputs):
        raise DataError(f"All outputs of {name} are empty, so nothing can be compared; give a batch with some rows.")
    count = sum(int(torch.isnan(output).sum()) for output in outputs if _holds_fractions(output))
    if count:
        raise DataError(
            f"The outputs of {name} hold {plural(count, 'entry that is', 'entries that are')} NaN, so nothing can be "
            "compared; give inputs without NaN and in the range that the network takes."
        )


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
