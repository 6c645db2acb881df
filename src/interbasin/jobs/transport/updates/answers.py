"""Whether a tuned network is the source with other weights, by what both answer to a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.batches import outputs_of
from interbasin.errors import DataError, WiringError
from interbasin.jobs.transport.updates.ties import copy_untied, names_apart
from interbasin.jobs.transport.updates.update import Update
from interbasin.wiring.trace.calls import output_tensors
from interbasin.wiring.trace.copying import clone_arguments, copied

# Answers that differ by this share are others; in coarse dtypes, by so many roundings.
TOLERANCE, ROUNDINGS = 1e-3, 16
# An output this much smaller than the largest one is not compared by its own size.
SMALLEST = 1e-6


def refuse_other_answers(tuned: Any, source: nn.Module, inputs: Any) -> list[str]:
    """Refuse fine-tunes that are modules and answer otherwise than the source does with their weights.

    Networks under PEFT are left to those who read them. All that is run is a copy, in evaluation mode.

    Args:
        tuned: The fine-tune, or several in a list.
        source: The base.
        inputs: A batch without labels.

    Returns:
        What a user should know: of a network that cannot be copied nothing was compared.

    Raises:
        DataError: says by how much they differ.
    """
    notes = []
    for each in tuned if isinstance(tuned, list | tuple) else [tuned]:
        if not isinstance(each, nn.Module) or hasattr(each, "peft_config"):
            continue
        try:
            copy = _copy_like(each, source)
        except WiringError as error:
            notes.append(f"What the tuned network answers was not compared with its weights in the source: {error}")
            continue
        _compare(each, _answers(_with_weights_of(each, source), inputs), _answers(copy, inputs), source)
    return notes


def _copy_like(tuned: nn.Module, source: nn.Module) -> nn.Module:
    """A copy in evaluation mode that computes in the source's dtypes, for the sake of the same inputs."""
    copy = copied(tuned).eval()
    dtypes = {name: tensor.dtype for name, tensor in chain(source.named_parameters(), source.named_buffers())}
    for name, tensor in chain(copy.named_parameters(), copy.named_buffers()):
        dtype = dtypes.get(name, tensor.dtype)
        if dtype.is_floating_point and tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return copy


def _with_weights_of(tuned: nn.Module, source: nn.Module) -> nn.Module:
    update = Update.of(tuned, source)
    apart = names_apart(update, source)
    return update.added_to(copy_untied(source, apart) if apart else source).eval()


def _answers(network: nn.Module, inputs: Any) -> Any:
    # Networks that draw numbers in evaluation too draw the same ones.
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return outputs_of(network, clone_arguments(inputs), 0)


def _compare(tuned: nn.Module, expected: Any, found: Any, source: nn.Module) -> None:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):  # one of them may be asked for more
        names = [name for name in expected if name in found]
        expected, found = ([answer[name] for name in names] for answer in (expected, found))
    expected, found = output_tensors(expected), output_tensors(found)
    pairs = list(zip(expected, found, strict=False))
    what = f"The tuned {type(tuned).__name__} answers the first batch"
    advice = "Transport carries weights only, so that the tuned network has to be the source with other weights."
    if bool(expected) != bool(found) or any(first.shape != second.shape for first, second in pairs):
        raise DataError(
            f"{what} with tensors of shape {_shapes(found)}, and the source with its weights with {_shapes(expected)}. "
            f"{advice}"
        )
    largest = max((_size(tensor) for tensor in expected), default=0.0)
    by = max((_share(*pair, largest) for pair in pairs), default=0.0)
    dtypes = {tensor.dtype for tensor in chain(tuned.parameters(), source.parameters(), found, expected)}
    coarsest = max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)
    if by > max(TOLERANCE, ROUNDINGS * coarsest):
        raise DataError(
            f"{what} otherwise than the source does with the same weights: the answers differ by {by:.2g} of their "
            f"size. {advice} Look for another activation function, a hook, or a setting that differs."
        )


def _shapes(tensors: list[Tensor]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor"


def _size(tensor: Tensor) -> float:
    values = tensor.double()
    return float(values[values.isfinite()].norm())


def _share(expected: Tensor, found: Tensor, largest: float) -> float:
    """The norm of the difference relative to the larger of the two; what is not finite in both alike has none."""
    first, second = expected.double().cpu(), found.double().cpu()
    alike = (first == second) | (first.isnan() & second.isnan())
    difference = float((first - second).masked_fill(alike, 0).norm())
    if not math.isfinite(difference):
        return math.inf
    size = max(_size(expected), _size(found), SMALLEST * largest)
    return difference / size if size else 0.0
