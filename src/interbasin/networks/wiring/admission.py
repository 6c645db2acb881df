"""Which networks can be wired at all, and which of their tensors take part."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from interbasin.errors import WiringError

__all__ = ["admit", "named_tensors"]


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by every name they have."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def admit(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that can move, tied ones once, and the other names of those: name -> the name it is listed under.

    Tensors that no checkpoint holds, or that hold no numbers to map, stay out: tables of frequencies, indices, masks.

    Raises:
        WiringError: for what could not be wired or carried.
    """
    if not isinstance(model, nn.Module):
        raise WiringError(f"Asked to wire a {type(model).__name__}; give a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise WiringError(
            f"Asked to wire a TorchScript module ({type(model).__name__}), whose code cannot be traced again; wire the "
            "module that it was made from."
        )
    _refuse_training(model)
    everything = named_tensors(model)
    for name, tensor in everything.items():
        if is_lazy(tensor):
            raise WiringError(
                f"{name} of {type(model).__name__} has no shape yet (a lazy module); call the network on data first."
            )
    kept = model.state_dict(keep_vars=True)
    found: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in everything.items():
        if name not in kept or not tensor.is_floating_point():
            continue
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            found[name] = tensor
    _refuse_overlaps(found, tied)
    return found, tied


def _refuse_training(model: nn.Module) -> None:
    random = [name for name, module in model.named_modules() if module.training and _is_random(module)]
    if random:
        raise WiringError(
            f"{type(model).__name__} is in training mode, where {random[0]!r} is random or takes its statistics from "
            "the batch, so no two calls agree; call model.eval() first."
        )


def _is_random(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _refuse_overlaps(found: dict[str, Tensor], tied: dict[str, str]) -> None:
    """Two tensors on the same memory are one if they are the same view of it; otherwise neither can move alone."""
    spans: list[tuple[int, int, int, str]] = []
    views: dict[tuple[object, ...], str] = {}
    for name, tensor in list(found.items()):
        if tensor.device.type == "meta" or not tensor.numel():
            continue
        view = (tensor.untyped_storage().data_ptr(), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if view in views:
            tied[name] = views[view]
            del found[name]
            continue
        views[view] = name
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((view[0], start, start + (last + 1) * tensor.element_size(), name))
    spans.sort(key=lambda span: span[:2])
    for before, after in pairwise(spans):
        if before[0] == after[0] and after[1] < before[2]:
            raise WiringError(
                f"{before[3]} and {after[3]} share memory without being the same tensor, so neither can move without "
                "the other; give each its own memory first (tensor.clone())."
            )


def refuse_numbers_that_are_none(model: nn.Module) -> None:
    """Refuse meta tensors and NaN or infinite weights, by name: what is to be computed with has to be numbers."""
    for name, tensor in named_tensors(model).items():
        if tensor.device.type == "meta":
            raise WiringError(
                f"{name} of {type(model).__name__} is on the meta device and holds no numbers; load the weights first."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            if isinstance(dict(model.named_parameters()).get(name), nn.Parameter):
                raise WiringError(
                    f"{name} of {type(model).__name__} holds {count} entries that are NaN or infinite; no check can be "
                    "made with them. Load the weights again, or repair them."
                )
