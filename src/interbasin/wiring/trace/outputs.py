"""What a network returned, as tensors: each of them has to stay the same whatever the maps."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from interbasin.errors import WiringError

# What a network may return beside tensors: it cannot depend on the values of any.
PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.Size, range)


def returned_tensors(model: nn.Module, output: Any) -> list[Tensor]:
    """All tensors of what a call of ``model`` returned, in order. Caches of language models are not outputs.

    Raises:
        WiringError: if there is none, if something in it is not known to be a container, or if a tensor is of a layout
            that is not followed.
    """
    found = list(_tensors(output, "", model))
    if not found:
        raise WiringError(
            f"{type(model).__name__} returned no tensor (found {_kind(output)}), so there is nothing that maps must "
            "not change; give a network whose forward returns what it computes."
        )
    return found


def _tensors(output: Any, where: str, model: nn.Module) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.layout is not torch.strided or output.is_quantized or output.is_nested:
            raise WiringError(
                f"{type(model).__name__} returned a sparse, nested or quantised tensor{where}, which is not followed; "
                "return it dense (tensor.to_dense(), to_padded_tensor() or dequantize())."
            )
        yield output
    elif isinstance(output, PLAIN) or _is_cache(output):
        return
    elif isinstance(output, Mapping):
        for name, part in output.items():
            if not _is_old_cache(output, name, part):
                yield from _tensors(part, f"{where}[{name!r}]", model)
    elif isinstance(output, list | tuple):
        for place, part in enumerate(output):
            yield from _tensors(part, f"{where}[{place}]", model)
    elif is_dataclass(output) and not isinstance(output, type):
        for one in fields(output):
            part = getattr(output, one.name)
            if not _is_old_cache(output, one.name, part):
                yield from _tensors(part, f"{where}.{one.name}", model)
    elif type(output) in pytree.SUPPORTED_NODES:
        parts, _ = pytree.SUPPORTED_NODES[type(output)].flatten_fn(output)
        for place, part in enumerate(parts):
            yield from _tensors(part, f"{where}[{place}]", model)
    else:
        raise WiringError(
            f"{type(model).__name__} returned {_kind(output)}{where and f' at output{where}'}, and which tensors it "
            "holds is not known; return tensors in tuples, lists, mappings or dataclasses (torch.utils._pytree."
            "register_pytree_node makes a class known)."
        )


def _kind(output: Any) -> str:
    name = type(output).__name__
    return "None" if output is None else f"an object of class {name}" if name[:1].isupper() else f"a {name}"


def _of_transformers(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "transformers"


def _is_cache(value: Any) -> bool:
    """The objects in which transformers keeps keys and values of tokens that went before."""
    return _of_transformers(value) and "Cache" in type(value).__name__


def _is_old_cache(output: Any, name: Any, part: Any) -> bool:
    """The same in tuples, as older networks of transformers give it."""
    return name == "past_key_values" and _of_transformers(output) and not isinstance(part, Tensor)
