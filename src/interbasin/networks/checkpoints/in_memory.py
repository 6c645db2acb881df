"""Tensors in memory, as `LazyTensors`: those of a network, or of any mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, WiringError
from interbasin.networks.checkpoints.checkpoint import Entry, LazyTensors
from interbasin.networks.checkpoints.dtypes import kind_of_dtype

if TYPE_CHECKING:
    from interbasin.networks.checkpoints.checkpoint import Bytes

__all__ = ["HeldTensors", "bytes_in", "entry_of", "identity", "tensor_from", "tensors_of"]


class HeldTensors(LazyTensors):
    """The tensors of a network or a mapping; those that are the same memory are tied.

    What a network keeps beside its tensors (``get_extra_state``) is left out.

    Args:
        given: A network, or a mapping of names to tensors.
        label: How messages call it.

    Raises:
        DataError: If something is no tensor, or has no numbers to add: sparse, quantised or on the meta device.
        WiringError: If parameters of the network are whole numbers, the codes of a quantised one.
    """

    def __init__(self, given: nn.Module | Mapping[str, Any], label: str) -> None:
        self._label = label
        if isinstance(given, nn.Module):
            _refuse_codes(given, label)
            given = {name: value for name, value in given.state_dict().items() if isinstance(value, Tensor)}
        self.tensors: dict[str, Tensor] = {}
        self.entries, self.ties = {}, {}
        first: dict[object, str] = {}
        for name, tensor in given.items():
            _require_numbers(name, tensor, label)
            stored = first.setdefault(identity(tensor), name)
            if stored == name:
                self.tensors[name], self.entries[name] = tensor.detach(), entry_of(tensor)
            else:
                self.ties[name] = stored

    @property
    def label(self) -> str:
        return self._label

    def bytes_of(self, name: str) -> Bytes:
        return bytes_in(self.tensors[self.stored_name(name)])

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.stored_name(name)].clone()


def tensors_of(given: nn.Module | Mapping[str, Tensor], label: str) -> LazyTensors:
    """What was given as tensors that are read when they are asked for; ``label`` is how messages call it.

    Raises:
        DataError: If it is neither a network, a mapping nor an open checkpoint; or see `HeldTensors`.
    """
    if isinstance(given, LazyTensors):
        return given
    if not isinstance(given, nn.Module | Mapping):
        raise DataError(
            f"{label.capitalize()} is a network, a mapping of names to tensors or an open checkpoint, found a "
            f"{type(given).__name__}; open what lies on disk with open_checkpoint."
        )
    return HeldTensors(given, label)


def entry_of(tensor: Tensor) -> Entry:
    """Dtype and shape of a tensor."""
    return Entry(kind_of_dtype(tensor.dtype), tuple(tensor.shape), tensor.element_size())


def identity(tensor: Tensor) -> object:
    """Equal for two tensors that are the same numbers in the same memory, while both are alive."""
    storage = tensor.untyped_storage()
    # Tensors without numbers have no memory to share.
    return (
        (storage._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel()
        else object()
    )


def bytes_in(tensor: Tensor) -> Bytes:
    """The numbers of a tensor, row by row, as they are stored; a view of it where that is possible."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    stored: Bytes = plain.reshape(-1).view(torch.uint8).numpy()
    return stored


def tensor_from(stored: Bytes, entry: Entry) -> Tensor:
    """The tensor whose bytes these are; a view of them."""
    return torch.from_numpy(stored).view(entry.dtype).reshape(entry.shape)


def _require_numbers(name: object, value: object, label: str) -> None:
    if not isinstance(name, str):
        raise DataError(f"Tensors go by their names, and {label} has the key {name!r}; name them as the network does.")
    if not isinstance(value, Tensor):
        raise DataError(f"{name} of {label} is a {type(value).__name__}, expected a tensor; leave it out.")
    if value.is_quantized or value.layout != torch.strided or value.device.type == "meta":
        raise DataError(
            f"{name} of {label} has no numbers to add ({value.dtype}, {value.layout}, device {value.device.type}); "
            "give the network as it was before it was quantised, or its tensors dense and loaded."
        )


def _refuse_codes(module: nn.Module, label: str) -> None:
    for name, parameter in module.named_parameters():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise WiringError(
                f"{label} ({type(module).__name__}) is quantised: its parameter {name} holds {parameter.dtype} codes, "
                "which cannot be added; give the network that it was made from."
            )
