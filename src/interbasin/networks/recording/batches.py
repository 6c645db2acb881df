"""Data as batches, and batches as what networks are called with."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.errors import DataError
from interbasin.networks.recording.characters import OFFSETS
from interbasin.networks.recording.masks import MaskOf
from interbasin.networks.wiring.tracing import bound_inputs

__all__ = [
    "arguments",
    "batches_of",
    "described",
    "device_of",
    "digest_of",
    "each_inputs",
    "leading",
    "once_only",
    "whole_number",
]

SAMPLES = 256
SHOWN = 6  # arguments that a message describes


def batches_of(data: object, batch_size: int) -> Iterable[Any]:
    """The batches of ``data``: a tensor is cut, anything else is iterated over."""
    if isinstance(data, Tensor):
        size = whole_number(batch_size)
        if data.ndim == 0 or size < 1:
            raise DataError(
                f"A tensor of shape {tuple(data.shape)} cannot be cut into batches of {batch_size!r}; give one whose "
                "first axis counts the inputs, and a batch size of at least one."
            )
        return torch.split(data, size) if len(data) else ()
    if isinstance(data, np.ndarray):
        raise DataError(
            f"The data are a tensor or batches of tensors, found an array of shape {data.shape}; give "
            "torch.from_numpy(array), in the dtype of the network."
        )
    if isinstance(data, Mapping) or not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise DataError(
            f"The data are batches to iterate over, found one {type(data).__name__}; put a single batch into a list."
        )
    return data


def whole_number(given: object) -> int:
    """``given`` if it is a whole number, else -1, which no count is."""
    try:
        return -1 if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return -1


def once_only(data: object) -> bool:
    """Whether data are gone when they have been read: a generator, an iterator."""
    return isinstance(data, Iterator)


def each_inputs(batch: Any, networks: int, index: int, *, labelled: bool, own_inputs: bool) -> list[Any]:
    """What each network is given of a batch, checked."""
    if labelled:
        batch = _pair(batch, index, "inputs and labels", "labelled")[0]
    if own_inputs and networks == 2:
        parts = _pair(batch, index, "the source's inputs and the target's", "own_inputs")
    else:
        parts = [batch] * networks
    for part in parts:
        if not isinstance(part, Tensor | Mapping | Sequence) or isinstance(part, str | bytes):
            raise DataError(
                f"Batch {index} is a {type(part).__name__}; give a tensor, a tuple of arguments or a mapping of "
                "keyword arguments."
            )
    return parts


def _pair(batch: Any, index: int, what: str, option: str) -> list[Any]:
    if not isinstance(batch, Sequence) or isinstance(batch, str) or len(batch) != 2:
        found = f"{len(batch)} parts" if isinstance(batch, Sequence) else f"a {type(batch).__name__}"
        raise DataError(f"Batch {index} should be a pair of {what}, found {found}; leave {option}=True out.")
    return list(batch)


def arguments(
    model: nn.Module, inputs: Any, mask: MaskOf, device: torch.device | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of a call, on the network's device.

    Offsets of tokens are for us and not for the network, and so is a mask that its forward has no parameter for.
    """
    if isinstance(inputs, Mapping):
        ours = {OFFSETS}
        if isinstance(mask, str) and mask not in inspect.signature(model.forward).parameters:
            ours.add(mask)
        inputs = {name: value for name, value in inputs.items() if name not in ours}
    args, kwargs = bound_inputs(model, inputs)
    return tuple(_moved(value, device) for value in args), {n: _moved(value, device) for n, value in kwargs.items()}


def _moved(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [_moved(part, device) for part in value]
    if type(value) is tuple:
        return tuple(_moved(part, device) for part in value)
    return value


def described(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments of a call in a few words: shapes and dtypes."""
    named = [(None, value) for value in args] + list(kwargs.items())
    shown = [
        ("" if name is None else f"{name}=")
        + (f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__)
        for name, value in named
    ]
    return (", ".join(shown[:SHOWN]) or "nothing") + (", ..." if len(shown) > SHOWN else "")


def leading(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """How many inputs a batch holds: the length of its first tensor."""
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim)
    return next((len(tensor) for tensor in tensors), None)


def device_of(model: nn.Module) -> torch.device | None:
    """Where a network's first tensor lives."""
    held: Tensor | None = next(itertools.chain(model.parameters(), model.buffers()), None)
    return None if held is None or held.device.type == "meta" else held.device


def digest_of(value: Any, before: str = "") -> str:
    """A hash of a batch, or of weights: of each tensor the shape, a sample, and the sum of all its bits.

    Hashing every byte would take longer than many a forward pass. The sum notices any one entry that has changed, the
    sample that entries have changed places.
    """
    digest = hashlib.sha256(before.encode())
    for name, part in _parts(value, ""):
        if not isinstance(part, Tensor):
            digest.update(f"{name} {part!r};".encode(errors="backslashreplace"))
            continue
        digest.update(f"{name} {part.dtype} {tuple(part.shape)};".encode())
        if part.layout == torch.strided and not part.is_quantized and part.device.type != "meta":
            flat = part.detach().resolve_conj().resolve_neg().flatten()
            sample = flat[:: max(1, flat.numel() // SAMPLES)].cpu()
            digest.update(sample.contiguous().view(torch.uint8).numpy().tobytes())
            digest.update(f"{_sum_of_bits(flat)};".encode())
    return digest.hexdigest()


def _sum_of_bits(flat: Tensor) -> int:
    """The sum of all entries, read as whole numbers of the same size."""
    whole = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(whole.contiguous().view(kinds[whole.element_size()]).sum())


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch and the plain values beside them, by name; nothing of other objects is compared."""
    if isinstance(value, Tensor) or value is None or isinstance(value, str | bool | int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _parts(part, f"{name}.{position}")
