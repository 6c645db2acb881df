"""The one writer: shards and their index, tied weights once, under a temporary name until all of it is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from interbasin.errors import CheckpointError, DataError
from interbasin.networks.checkpoints.checkpoint import Checkpoint, LazyTensors
from interbasin.networks.checkpoints.companions import companions, copy_companions
from interbasin.networks.checkpoints.dtypes import storable
from interbasin.networks.checkpoints.faults import one_line, path_of
from interbasin.networks.checkpoints.in_memory import identity
from interbasin.networks.checkpoints.layout import (
    ADAPTER_STEM,
    SHARD,
    STEM,
    headers,
    is_our_file,
    is_our_folder,
    name_files,
)
from interbasin.networks.checkpoints.lora import CONFIGURATION, write_base
from interbasin.networks.checkpoints.opening import open_checkpoint, weights_in
from interbasin.networks.checkpoints.safetensors_files import MARK
from interbasin.storage import as_path, new_file, new_folder

__all__ = ["Tensors", "is_our_file", "is_our_folder", "write_checkpoint", "write_into"]

Tensors: TypeAlias = "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]"


def write_checkpoint(
    path: str | os.PathLike[str],
    tensors: Tensors,
    *,
    like: Checkpoint | str | os.PathLike[str] | None = None,
    max_shard_bytes: int = SHARD,
    metadata: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> None:
    """Write weights to ``path``: all of them, or nothing at all.

    Names, dtypes, shapes and numbers are kept exactly. Tensors that are the same memory are written once, and
    `open_checkpoint` gives them back under all their names. Memory is needed for one shard.

    Args:
        path: A name that ends in ``.safetensors`` becomes one file; any other a folder as ``transformers`` reads it.
        tensors: Names and tensors: a mapping, an open `Checkpoint`, or pairs as they come.
        like: Whose configuration, tokenizer and licence to copy into the folder: another folder, or a `Checkpoint` that
            was one. A name that it stores is stored here too, tied or not, so that what loads the one loads the other.
        max_shard_bytes: A file is closed before it grows beyond this, and an index says which tensor is in which file.
            An adapter is always one file.
        metadata: Notes for the headers, text to text.
        base: Of an adapter (``like`` is one): the network that it belongs to, where that is no longer the one that it
            was trained on. An adapter that was carried belongs to the network that was carried likewise.
        force: Replace what this function wrote there. Anything else is never replaced.

    Raises:
        FileError: If ``path`` exists (and ``force`` is off, or it is not ours).
        CheckpointError: If it cannot be written; the disk may be full.
        DataError: If something is not a tensor that can be stored, or a name comes twice.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp() + "/model"
        >>> table = torch.randn(5, 2)
        >>> write_checkpoint(folder, {"embed.weight": table, "head.weight": table})
        >>> checkpoint = open_checkpoint(folder)
        >>> checkpoint.numel, dict(checkpoint.ties)
        (10, {'head.weight': 'embed.weight'})
    """
    target = as_path(path)
    _check_source(tensors)
    if target.suffix == ".safetensors":
        _check_arguments(max_shard_bytes, metadata)
        template = _template(like)
        if base is not None:
            raise _no_configuration(base)
        with new_file(target, force=force, ours=is_our_file) as temporary:
            shards = _Shards(temporary.parent, temporary.stem, None, target, _notes(metadata), [])
            shards.fill(tensors, template.stored)
        return
    with new_folder(target, force=force, ours=is_our_folder) as temporary:
        write_into(
            temporary,
            tensors,
            like=like,
            max_shard_bytes=max_shard_bytes,
            metadata=metadata,
            base=base,
            destination=target,
        )


def write_into(
    folder: Path,
    tensors: Tensors,
    *,
    like: Checkpoint | str | os.PathLike[str] | None = None,
    max_shard_bytes: int = SHARD,
    metadata: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] | None = None,
    destination: Path | None = None,
) -> None:
    """Write weights into a folder that is being filled; ``destination`` is what messages call it."""
    folder = as_path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"Weights were to be written into {folder}, which is no folder; make it first.")
    _check_source(tensors)
    _check_arguments(max_shard_bytes, metadata)
    template = _template(like)
    if base is not None and template.stem != ADAPTER_STEM:
        raise _no_configuration(base)
    copied = [] if template.folder is None else companions(template.folder)
    limit = None if template.stem == ADAPTER_STEM else max_shard_bytes
    shards = _Shards(folder, template.stem, limit, destination or folder, _notes(metadata), copied)
    shards.fill(tensors, template.stored)
    if template.folder is not None:
        copy_companions(copied, template.folder, folder)
    if base is not None:
        write_base(folder, os.fspath(base))


def _no_configuration(base: str | os.PathLike[str]) -> DataError:
    return DataError(
        f"base= names the network of an adapter (found {os.fspath(base)!r}), and what is written here is not the "
        "folder of one; give the adapter's folder as like=, or leave base= out."
    )


@dataclass(frozen=True)
class _Template:
    """What is to be kept of another checkpoint: its folder, the names it stores, what its file is called."""

    folder: Path | None = None
    stored: frozenset[str] = frozenset()
    stem: str = STEM


def _template(like: Checkpoint | str | os.PathLike[str] | None) -> _Template:
    if like is None:
        return _Template()
    if not isinstance(like, Checkpoint):
        folder = path_of(like, "The checkpoint to write alike (like=)")
        if folder.is_dir() and weights_in(folder) is None:  # a configuration alone
            return _Template(folder, stem=ADAPTER_STEM if (folder / CONFIGURATION).is_file() else STEM)
        like = open_checkpoint(folder)
    return _Template(like.folder, frozenset(like.sources), STEM if like.adapter is None else ADAPTER_STEM)


@dataclass
class _Shards:
    """Files that are filled one after the other, and get their final names when it is known how many they are."""

    folder: Path
    stem: str
    limit: int | None
    destination: Path
    notes: Mapping[str, str]
    copied: list[str]
    pending: dict[str, Tensor] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    size: int = 0
    total: int = 0
    written: list[list[str]] = field(default_factory=list)

    def fill(self, tensors: Tensors, stored: frozenset[str]) -> None:
        for name, value in _once(tensors, stored):
            if isinstance(value, str):
                self.ties[name] = value
                continue
            size = value.numel() * value.element_size()
            if self.limit is not None and self.pending and self.size + size > self.limit:
                self._write()
            self.pending[name] = value
            self.size += size
        self._write()
        self._name()

    def _write(self) -> None:
        marked = headers(self.notes, self.ties, self.copied)
        plain: dict[str, Tensor] = {}
        storages: set[int] = set()
        for name, tensor in self.pending.items():
            plain[name] = _plain(tensor, storages)
        try:
            save_file(plain, self._part(len(self.written)), metadata=marked)
        except SafetensorError as error:
            raise CheckpointError(
                f"Could not write {self.destination}: {one_line(error)}; is there room on the disk and leave to write "
                "there?"
            ) from error
        self.written.append(list(self.pending))
        self.total += self.size
        self.pending, self.ties, self.size = {}, {}, 0

    def _name(self) -> None:
        name_files(self.folder, self.stem, self._part, self.written, self.total)

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:05}"


def _once(tensors: Tensors, stored: frozenset[str]) -> Iterator[tuple[str, Tensor | str]]:
    """Every name with its tensor or, if that came before under another name, with the other name."""
    names: set[str] = set()
    seen: dict[object, str] = {}
    # While something refers to a storage, even weakly, no other can be made where it was and be taken for it.
    alive: list[StorageWeakRef] = []
    for name, value in _pairs(tensors, stored):
        _check_name(name, names)
        names.add(name)
        if isinstance(value, str):
            yield name, value
            continue
        _check_tensor(name, value)
        key = identity(value)
        if key in seen and name not in stored:
            yield name, seen[key]
            continue
        seen.setdefault(key, name)
        alive.append(StorageWeakRef(value.untyped_storage()))  # type: ignore[no-untyped-call]
        yield name, value


def _pairs(tensors: Tensors, stored: frozenset[str]) -> Iterator[tuple[str, Tensor | str]]:
    if not isinstance(tensors, Mapping):
        for position, pair in enumerate(tensors):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise DataError(
                    f"Tensors come as pairs of a name and a tensor, and number {position} is a {type(pair).__name__}; "
                    "give a mapping, or such pairs."
                )
            yield pair[0], pair[1]
        return
    # Of tied names the first is kept: that should be the one which the other checkpoint kept.
    for name in sorted(tensors, key=lambda name: name not in stored):
        if isinstance(tensors, LazyTensors) and name in tensors.ties and name not in stored:
            yield name, tensors.ties[name]
        else:
            yield name, tensors[name]


def _plain(tensor: Tensor, storages: set[int]) -> Tensor:
    """The tensor as safetensors wants it: on the CPU, contiguous, in memory that no other in this file shares."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.numel() and plain.untyped_storage()._cdata in storages:
        plain = plain.clone()
    storages.add(plain.untyped_storage()._cdata)
    return plain


def _check_source(tensors: object) -> None:
    if isinstance(tensors, nn.Module):
        raise DataError(
            f"A checkpoint is written from tensors by name, found the network itself ({type(tensors).__name__}); give "
            "its state_dict()."
        )
    if isinstance(tensors, str | bytes | Tensor) or not isinstance(tensors, Iterable):
        raise DataError(
            f"A checkpoint is written from a mapping of names to tensors, or pairs of them, found a "
            f"{type(tensors).__name__}; give a state dict."
        )


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
    if value.is_nested:
        raise DataError(f"{name} is a nested tensor, which a safetensors file cannot hold; store its parts by name.")
    if value.is_quantized or value.layout != torch.strided:
        raise DataError(
            f"{name} is quantised or sparse ({value.dtype}, {value.layout}), which a safetensors file cannot hold; "
            "call .dequantize() or .to_dense() first."
        )
    if not storable(value.dtype):
        raise DataError(f"{name} is of {value.dtype}, which a safetensors file cannot hold; convert it first.")
    if value.device.type == "meta":
        raise DataError(f"{name} has a shape but no numbers (device meta); load its numbers first.")


def _check_arguments(max_shard_bytes: int, metadata: Mapping[str, str] | None) -> None:
    if not isinstance(max_shard_bytes, int) or isinstance(max_shard_bytes, bool) or max_shard_bytes < 1:
        raise DataError(
            f"max_shard_bytes is a number of bytes, 1 or more, found {max_shard_bytes!r}; try 5_000_000_000."
        )
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DataError(f"Notes in a checkpoint are a mapping of text to text, found a {type(metadata).__name__}.")
    notes = metadata or {}
    wrong = [key for key, value in notes.items() if not _is_plain_text(key) or not _is_plain_text(value)]
    if wrong or MARK in notes:
        found = wrong[0] if wrong else MARK
        raise DataError(
            f"Notes in a checkpoint are text to text, and {MARK!r} is taken; found {found!r}: {notes[found]!r}. "
            "Convert or rename it."
        )


def _is_plain_text(value: object) -> bool:
    """Whether this is text, and whole: half a character can be held in Python, but not in a file."""
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def _notes(metadata: Mapping[str, str] | None) -> dict[str, str]:
    return {"format": "pt", **(metadata or {})}  # transformers loads no file without the first
