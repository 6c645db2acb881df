"""Which networks can be wired at all, and which of their tensors take part."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from interbasin.errors import WiringError
from interbasin.text import plural
from interbasin.wiring.trace.refusals import first_line, short

# Where modules with quantised weights come from.
QUANTISED = (
    *("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized", "torchao.quantization"),
    *("bitsandbytes.nn", "auto_gptq", "gptqmodel", "awq", "hqq", "optimum.quanto", "quanto", "aqlm", "eetq"),
)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by every name they have."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def memory_of(tensor: Tensor) -> object:
    """What two tensors share only if they are the same numbers in the same places."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return id(tensor)
    return tensor.untyped_storage().data_ptr(), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def check_model(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
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
    _refuse_quantised(model)
    _refuse_training(model)
    everything = named_tensors(model)
    for name, tensor in everything.items():
        if is_lazy(tensor):
            raise WiringError(
                f"{short(name)} of {type(model).__name__} has no shape yet (a lazy module); call the network on data "
                "first."
            )
    kept = names_kept(model)
    tensors: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in everything.items():
        if name not in kept or not tensor.is_floating_point():
            continue
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor
    _refuse_overlaps(tensors, tied)
    return tensors, tied


def names_kept(model: nn.Module) -> list[str]:
    """The names of the tensors that a checkpoint of ``model`` holds.

    Raises:
        WiringError: if the network does not give them.
    """
    try:
        return [name for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)]
    except Exception as error:
        raise WiringError(
            f"{type(model).__name__}.state_dict() fails with {type(error).__name__}: {first_line(error)}, and it says "
            "which tensors can be carried; repair it, or remove its hooks."
        ) from error


def _refuse_quantised(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__module__.startswith(QUANTISED) or any(weight.is_quantized for weight in module.parameters(False)):
            raise WiringError(
                f"{short(name) or type(model).__name__} of {type(model).__name__} is quantised ({kind.__module__}."
                f"{kind.__name__}): its numbers are codes, on which no map can act; give the network that it was made "
                "from, or dequantise it first."
            )


def _refuse_training(model: nn.Module) -> None:
    random = [name for name, module in model.named_modules() if module.training and _is_random(module)]
    if random:
        raise WiringError(
            f"{type(model).__name__} is in training mode, where {short(random[0])!r} is random or takes its statistics "
            "from the batch, so no two calls agree; call model.eval() first."
        )


def _is_random(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _refuse_overlaps(tensors: dict[str, Tensor], tied: dict[str, str]) -> None:
    """Two tensors on the same memory are one if they are the same view of it; otherwise neither can move alone."""
    spans: list[tuple[int, int, int, str]] = []
    views: dict[tuple[object, ...], str] = {}
    for name, tensor in list(tensors.items()):
        if tensor.device.type == "meta" or not tensor.numel():
            continue
        view = (tensor.untyped_storage().data_ptr(), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if view in views:
            tied[name] = views[view]
            del tensors[name]
            continue
        views[view] = name
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((view[0], start, start + (last + 1) * tensor.element_size(), name))
    spans.sort(key=lambda span: span[:2])
    for before, after in pairwise(spans):
        if before[0] == after[0] and after[1] < before[2]:
            raise WiringError(
                f"{short(before[3])} and {short(after[3])} share memory without being the same tensor, so neither can "
                "move without the other; give each its own memory first (tensor.clone())."
            )


def refuse_numbers_that_are_none(model: nn.Module) -> None:
    """Refuse meta tensors and NaN or infinite weights, by name: what is to be computed with has to be numbers."""
    for name, tensor in named_tensors(model).items():
        if tensor.device.type == "meta":
            raise WiringError(
                f"{short(name)} of {type(model).__name__} is on the meta device and holds no numbers; load the weights "
                "first."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            if isinstance(dict(model.named_parameters()).get(name), nn.Parameter):
                entries = plural(count, "entry that is", "entries that are")
                raise WiringError(
                    f"{short(name)} of {type(model).__name__} holds {entries} NaN or infinite; no check can be made "
                    "with them. Load the weights again, or repair them."
                )
