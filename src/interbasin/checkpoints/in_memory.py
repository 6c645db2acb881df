"""Tensors in memory: as `LazyTensors`, and named one by one for the writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from interbasin.checkpoints.checkpoint import Entry, LazyTensors
from interbasin.checkpoints.write import Source, Tensors
from interbasin.errors import DataError, WiringError

if TYPE_CHECKING:
    from interbasin.checkpoints.checkpoint import Array, Bytes


class HeldTensors(LazyTensors):
    """The tensors of a network or a mapping; those that are the same memory are tied.

    What a network keeps beside its tensors (``get_extra_state``) is left out. ``label`` is how messages call it.
    """

    def __init__(self, source: nn.Module | Mapping[str, Any], label: str) -> None:
        self._label = label
        if isinstance(source, nn.Module):
            _refuse_codes(source, label)
            source = {name: value for name, value in source.state_dict().items() if isinstance(value, Tensor)}
        self.tensors: dict[str, Tensor] = {}
        self.entries, self.ties = {}, {}
        first: dict[object, str] = {}
        for name, tensor in source.items():
            _require_numbers(name, tensor, label)
            stored = first.setdefault(identity(tensor), name)
            if stored == name:
                self.tensors[name], self.entries[name] = tensor.detach(), Entry.of(tensor.dtype, tensor.shape)
            else:
                self.ties[name] = stored

    @property
    def label(self) -> str:
        return self._label

    def bytes_of(self, name: str) -> Bytes:
        return bytes_in(self.tensors[self.stored_name(name)])

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.stored_name(name)].clone()


def tensors_of(source: nn.Module | Mapping[str, Tensor], label: str) -> LazyTensors:
    """A network, mapping or checkpoint as `LazyTensors`; ``label`` is how messages call it."""
    if isinstance(source, LazyTensors):
        return source
    if not isinstance(source, nn.Module | Mapping):
        raise DataError(
            f"{label.capitalize()} is a network, a mapping of names to tensors or an open checkpoint, found a "
            f"{type(source).__name__}; open what lies on disk with open_checkpoint."
        )
    return HeldTensors(source, label)


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
    # A single number may have any stride, and bytes have to lie one after the other.
    stored: Bytes = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    return stored


def tensor_from(chunks: Iterable[Array], entry: Entry) -> Tensor:
    """The tensor whose bytes these are, piece by piece, in memory of its own."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    room, end = bytes_in(tensor), 0
    for chunk in chunks:
        room[end : end + chunk.nbytes] = chunk.reshape(-1).view(np.uint8)
        end += chunk.nbytes
    return tensor


def fault_of(tensor: Tensor) -> str | None:
    """What keeps the numbers of a tensor from being stored or added, and what helps; None if nothing does."""
    if tensor.is_nested:
        return "is a nested tensor; give its parts by name"
    if tensor.is_quantized:
        return f"is quantised by torch ({tensor.dtype}); call .dequantize() first"
    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout}); call .to_dense() first"
    return "has a shape but no numbers (device meta); load its numbers first" if tensor.is_meta else None


def _require_numbers(name: object, value: object, label: str) -> None:
    if not isinstance(name, str):
        raise DataError(f"Tensors go by their names, and {label} has the key {name!r}; name them as the network does.")
    if not isinstance(value, Tensor):
        raise DataError(f"{name} of {label} is a {type(value).__name__}, expected a tensor; leave it out.")
    fault = fault_of(value)
    if fault is not None:
        raise DataError(f"{name} of {label} has no numbers to add: it {fault}.")


def _refuse_codes(module: nn.Module, label: str) -> None:
    for name, parameter in module.named_parameters():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise WiringError(
                f"{label} ({type(module).__name__}) is quantised: its parameter {name} holds {parameter.dtype} codes, "
                "which cannot be added; give the network that it was made from."
            )


# ---------------------------------------------------------------------- for the writer


def tensors_and_ties(tensors: Tensors, stored: frozenset[str]) -> Iterator[tuple[str, Source | str]]:
    """Every name with its tensor or, if the same memory came before under another name, with the other name.

    ``stored`` are names to store even if they are tied; of tied names, one of these is kept.
    """
    names: set[str] = set()
    names_by_memory: dict[object, str] = {}
    # While something refers to a storage, even weakly, no other can be made where it was and be taken for it.
    alive: list[StorageWeakRef] = []
    for name, value in _pairs(tensors, stored):
        _check_name(name, names)
        names.add(name)
        _check_tensor(name, value)
        key = identity(value)
        if key in names_by_memory and name not in stored:
            yield name, names_by_memory[key]
            continue
        names_by_memory.setdefault(key, name)
        alive.append(StorageWeakRef(value.untyped_storage()))  # type: ignore[no-untyped-call]
        yield name, (Entry.of(value.dtype, value.shape), partial(_all_bytes, value))


def _all_bytes(tensor: Tensor) -> list[Bytes]:
    return [bytes_in(tensor)]


def _pairs(tensors: Tensors, stored: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tensors, nn.Module):
        raise DataError(
            f"A checkpoint is written from tensors by name, found the network itself ({type(tensors).__name__}); give "
            "its state_dict()."
        )
    if isinstance(tensors, str | bytes | Tensor) or not isinstance(tensors, Iterable):
        raise DataError(
            f"A checkpoint is written from a mapping of names to tensors, or pairs, found a {type(tensors).__name__}."
        )
    if isinstance(tensors, Mapping):
        # Of tied names the first is kept: that should be the one which the other checkpoint kept.
        yield from ((name, tensors[name]) for name in sorted(tensors, key=lambda name: name not in stored))
        return
    for position, pair in enumerate(tensors):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(
                f"Tensors come as pairs of a name and a tensor, and number {position} is a {type(pair).__name__}."
            )
        yield pair[0], pair[1]


def _check_name(name: object, names: set[str]) -> None:
    if not isinstance(name, str) or not name or name == "__metadata__":
        raise DataError(f"Tensors are stored by name, found {name!r}; give them names that are text, and not empty.")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"The name {name!r} cannot be written as UTF-8 ({error.reason}); rename the tensor.") from error
    if name in names:
        raise DataError(f"Two tensors are named {name!r}; give every tensor a name of its own.")


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise DataError(f"A checkpoint holds tensors, but {name} is a {type(value).__name__}; leave it out.")
    fault = fault_of(value)
    if fault is not None:
        raise DataError(f"{name} {fault}.")
