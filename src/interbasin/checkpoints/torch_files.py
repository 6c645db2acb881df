"""Files of ``torch.save``, read with ``weights_only=True``: tensors, numbers and text, and nothing that could run."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interbasin.checkpoints.checkpoint import Entry, StoredFile, damage_error, head_of, kind_of, stamp_of
from interbasin.checkpoints.in_memory import fault_of, identity
from interbasin.checkpoints.torch_archive import Record, TorchArchive, open_archive
from interbasin.errors import CheckpointError, UnknownNameError
from interbasin.text import list_names

# Where training programs keep the weights, in the order in which timm looks for them: averaged ones first.
PARTS = (
    *("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict", "net", "module"),
    *("params_ema", "params"),
)
# What DataParallel and torch.compile put before every name.
PREFIXES = ("module.", "_orig_mod.")
ZIP, PICKLE = b"PK", b"\x80"
# Bytes that a tensor may take more of than the file has for it: one number that is repeated may stand for any size.
MOST_REPEATED = 2**28


@dataclass(frozen=True, eq=False, repr=False)
class TorchFile(StoredFile):
    """A file whose tensors lie in a private mapping of it; a read copies one of them out.

    A file of the format before torch 1.6 cannot be mapped: it is in memory from the beginning, and has no checksums.

    Attributes:
        tensors: The tensors, by name.
        archive: The archive that they are in.
        records: For a tensor with numbers, the record that these are in.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    archive: TorchArchive | None = None
    records: Mapping[str, Record] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        self.require_unchanged()
        if self.archive is not None and name in self.records:
            self.archive.check(self.records[name])
        return self.tensors[name].detach().clone(memory_format=torch.contiguous_format)


def open_torch(path: Path, part: str | None = None) -> TorchFile:
    """The weights in a torch file: a state dict, or the one inside what a training program saved, under ``part``."""
    stamp = stamp_of(path)
    archive = _archive_of(path)
    content, places = _load(path, archive)
    part, weights = _weights_in(path, content, part)
    prefix = _prefix_of([name for name, value in weights.items() if isinstance(value, Tensor)])
    tensors = {name.removeprefix(prefix): value for name, value in weights.items() if isinstance(value, Tensor)}
    left_out = tuple(name for name, value in weights.items() if not isinstance(value, Tensor))
    ties: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in tensors.items():
        fault = fault_of(tensor)
        if fault is not None:
            raise CheckpointError(f"{name} in {path} {fault}, and save it again.")
        _refuse_repeated(path, name, tensor)
        stored = first.setdefault(identity(tensor), name)
        if stored != name:
            ties[name] = stored
    entries = {name: Entry.of(tensor.dtype, tensor.shape) for name, tensor in tensors.items() if name not in ties}
    addresses = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items() if tensor.numel()}
    records = {name: places[address] for name, address in addresses.items() if address in places}
    return TorchFile(
        path,
        entries,
        ties,
        stamp,
        part=part,
        prefix=prefix,
        left_out=left_out,
        tensors=tensors,
        archive=archive,
        records=records,
    )


def _refuse_repeated(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is far larger than its numbers in the file: it was expanded, or its shape is damaged."""
    size, stored = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
    if size > max(stored, MOST_REPEATED):
        raise CheckpointError(
            f"{name} in {path} would take {size:,} bytes, and the file has {stored:,} for it, which are repeated; "
            "save it again with .contiguous(), or as the few numbers that it is made of."
        )


def load_harmless(path: Path) -> Any:
    """What a torch file holds, loaded without running any of it; an error says why not, and how to convert it."""
    archive = _archive_of(path)
    if archive is not None:
        archive.check_all(numbers=True)
    return _load(path, archive)[0]


def _archive_of(path: Path) -> TorchArchive | None:
    """The archive that a torch file is, its small records checked; None for a file of the format before torch 1.6."""
    head = head_of(path)
    if not head.startswith((ZIP, PICKLE)):
        raise CheckpointError(
            f"{path} was to be read as a file of torch.save, but it is {kind_of(head)}; rename it to what it is."
        )
    if not head.startswith(ZIP):
        return None
    archive = open_archive(path)
    archive.check_all(numbers=False)
    return archive


def _load(path: Path, archive: TorchArchive | None) -> tuple[Any, dict[int, Record]]:
    """What a torch file holds, and the record of every storage in it, by address."""
    storages: list[tuple[int, int]] = []

    def note(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        storages.append((storage.data_ptr(), storage.nbytes()))
        return storage  # which is on the CPU, wherever it was when it was saved

    try:
        # Programs of timm keep their command line in the file: a Namespace is a dictionary by another name.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # about TorchScript, which is refused, and about storages of quantised ones
            content = torch.load(path, map_location=note, weights_only=True, mmap=archive is not None)  # type: ignore[arg-type]
        return content, {} if archive is None else archive.find(storages)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise _pickle_error(path, str(error)) from error
    # Damaged bytes can make the unpickler raise nearly anything.
    except Exception as error:
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{path} is a TorchScript program, which is not loaded because that could run code; where you trust it "
                f"convert it: torch.save(torch.jit.load({path.name!r}).state_dict(), 'weights.pt')."
            ) from error
        raise damage_error(path, error) from error


def _pickle_error(path: Path, reason: str) -> CheckpointError:
    culprit = re.search(r"GLOBAL ([\w.]+)", reason)
    if culprit is None:
        return damage_error(path, reason.rpartition("WeightsUnpickler error:")[2] or reason)
    loaded = f"torch.load({path.name!r}, weights_only=False)"
    whole = _mentions_a_module(path)
    what = "a whole network, pickled as Python objects" if whole else "pickled Python objects beside the weights"
    convert = f"{loaded}.state_dict()" if whole else f"{loaded}['state_dict']"
    return CheckpointError(
        f"{path} holds {what} ({culprit[1]}), which are not loaded because loading them can run code; where you trust "
        f"it, convert it: torch.save({convert}, 'weights.pt')."
    )


def _mentions_a_module(path: Path) -> bool:
    """Whether the pickle has the words in which every nn.Module keeps its state. Nothing is executed."""
    with path.open("rb") as file:
        beginning = file.read(1 << 20)  # the pickle comes first, in files old and new
    return b"_parameters" in beginning and b"_modules" in beginning


def _weights_in(path: Path, content: Any, part: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """The weights, and under which name they were."""
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, expected a state dict; save model.state_dict() there."
        )
    inside = {str(name): value for name, value in content.items() if _is_state(value)}
    if part is not None:
        if part not in inside:
            raise UnknownNameError.of(f"state dict in {path}", part, inside)
        return part, inside[part]
    for name in PARTS:
        if name in inside:
            return name, inside[name]
    if _is_state(content):
        return None, content
    if len(inside) == 1:
        return next(iter(inside.items()))
    if inside:
        raise CheckpointError(
            f"{path} holds several state dicts ({list_names(inside)}) and none was chosen; say which with part=."
        )
    what = list_names(map(str, content)) or "nothing at all"
    raise CheckpointError(f"{path} holds no tensors by name, but {what}; save model.state_dict() there.")


def _is_state(value: Any) -> bool:
    """Whether this is a mapping of names, with tensors among what it holds."""
    return (
        isinstance(value, Mapping)
        and any(isinstance(tensor, Tensor) for tensor in value.values())
        and all(isinstance(name, str) for name in value)
    )


def _prefix_of(names: list[str]) -> str:
    """What a wrapper put before every name; nothing, if one name lacks it."""
    prefix = ""
    while True:
        more = next((part for part in PREFIXES if all(name.startswith(prefix + part) for name in names)), None)
        if more is None or any(name == prefix + more for name in names):
            return prefix
        prefix += more
