"""Which networks and inputs a transport takes: modules with numbers in them, and no LoRA on top."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import nn

from interbasin.checkpoints.lora import factor_of
from interbasin.errors import DataError, WiringError
from interbasin.wiring.trace.calls import iterate_tensors


def require_network(network: object, role: str) -> None:
    """Refuse what is no network; ``role`` is what it was given as, for example source or target.

    Raises:
        DataError: says what was found.
    """
    if isinstance(network, nn.Module):
        return
    found = repr(network) if isinstance(network, str) or network is None else f"a {type(network).__name__}"
    if isinstance(network, type) and issubclass(network, nn.Module):
        found = f"the class {network.__name__} itself"
    raise DataError(
        f"The {role} is a torch.nn.Module, found {found}; give the network itself (of a folder or a name, "
        "interbasin.models.load_model(name).model)."
    )


def require_base(network: nn.Module, role: str) -> None:
    """Refuse a base that cannot be one, by what it is made of: no number is looked at.

    Raises:
        DataError, WiringError: if it is no network, is quantised, has a LoRA on it, or has tensors on the meta device
            or of eight bits; names the layer or the tensor.
    """
    require_network(network, role)
    refuse_quantised(network, role)
    refuse_lora(network, role)
    name_of = f"of the {role} ({type(network).__name__})"
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        if tensor.is_meta:
            raise DataError(
                f"{name} {name_of} has a shape but no numbers (device meta); load the network's weights first."
            )
        if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
            raise DataError(
                f"{name} {name_of} is of {tensor.dtype}, which is for storing weights and not for computing with them; "
                "convert to bfloat16 or float32 first."
            )


def require_numbers(network: nn.Module, role: str) -> None:
    """Refuse a base that cannot be one, or whose parameters hold NaN or infinity; ``role`` is source or target.

    Raises:
        WiringError, DataError: names the layer or the tensor.
    """
    require_base(network, role)
    for name, parameter in network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DataError(
                f"{name} of the {role} ({type(network).__name__}) holds NaN or infinity; give a base whose weights are "
                "numbers."
            )


def require_inputs(batch: Any, what: str = "data") -> None:
    """Refuse a batch with tensors that have a shape and no numbers; ``what`` is how messages call the data."""
    if any(tensor.is_meta for tensor in iterate_tensors(batch)):
        raise DataError(
            f"The {what} hold a tensor that has a shape but no numbers (device meta); give inputs with numbers in them."
        )


def refuse_lora(network: nn.Module, role: str = "base") -> None:
    """Refuse a network with a LoRA, or another adapter of PEFT, on it."""
    factor = next((name for name in network.state_dict() if factor_of(name)), None)
    if factor is None:
        # Adapters that are no LoRA have no factors to know them by.
        factor = next(
            (
                f"{name or 'it'} is a {type(module).__name__} of PEFT"
                for name, module in network.named_modules()
                if type(module).__module__.startswith("peft.")
            ),
            None,
        )
    if factor is not None:
        raise DataError(
            f"The {role} has a LoRA on it ({factor}); give the network beneath (PEFT: model.unload()), or the one that "
            "it is merged into (model.merge_and_unload())."
        )


def refuse_quantised(network: nn.Module, role: str = "base") -> None:
    """Refuse a network whose weights are codes."""
    config = getattr(network, "config", None)
    why = next(
        (
            f"{name} is a {type(module).__module__.partition('.modules')[0]}.{type(module).__name__}"
            for name, module in network.named_modules()
            if ".quantized." in f"{type(module).__module__}."
        ),
        None,
    ) or next(
        (
            f"its parameter {name} holds {parameter.dtype} codes"
            for name, parameter in network.named_parameters()
            if not (parameter.is_floating_point() or parameter.is_complex())
        ),
        None,
    )
    if getattr(config, "quantization_config", None) is not None:
        why = "its configuration says so"
    if why is not None:
        raise WiringError(
            f"The {role} ({type(network).__name__}) is quantised ({why}), and codes have no updates; give the network "
            "that it was made from."
        )
