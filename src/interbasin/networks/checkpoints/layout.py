"""What a checkpoint of ours looks like on disk: the names of its files, the mark in their headers, the index.

Both writers keep to it, that of whole tensors and that which streams.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from interbasin.networks.checkpoints.opening import INDEX
from interbasin.networks.checkpoints.safetensors_files import MARK, mark_of
from interbasin.storage import FORMAT_PREFIX, write_document

__all__ = [
    "ADAPTER_STEM",
    "FORMAT",
    "SHARD",
    "STEM",
    "headers",
    "is_our_file",
    "is_our_folder",
    "name_files",
]

FORMAT, VERSION = FORMAT_PREFIX + "checkpoint", 1
SHARD = 5_000_000_000  # bytes, as the hub advises
STEM, ADAPTER_STEM = "model", "adapter_model"


def headers(notes: Mapping[str, str], ties: Mapping[str, str], copied: Sequence[str]) -> dict[str, str]:
    """The notes in the header of a file: the caller's, and what tells our files from others.

    Args:
        notes: Text to text.
        ties: Names that are not stored -> the name, in this file or another, that they stand for.
        copied: The other files of the folder, those that are no weights.
    """
    mark = {"format": FORMAT, "version": VERSION, "copied": list(copied), "ties": dict(ties)}
    return {**notes, MARK: json.dumps(mark)}


def name_files(
    folder: Path, stem: str, part: Callable[[int], Path], written: Sequence[Sequence[str]], total: int
) -> None:
    """Give files their final names, once it is known how many they are; several get an index.

    Args:
        folder: Where they are.
        stem: What the names begin with.
        part: Number of a file -> the name it has until now.
        written: The tensors in every file.
        total: How many bytes they are.
    """
    count = len(written)
    if count == 1:
        os.replace(part(0), folder / f"{stem}.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(written):
        file = f"{stem}-{number + 1:05}-of-{count:05}.safetensors"
        os.replace(part(number), folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_document(folder / f"{stem}.safetensors{INDEX}", index)


def is_our_file(path: Path) -> bool:
    """Whether a writer of ours wrote this file."""
    return mark_of(path).get("format") == FORMAT


def is_our_folder(folder: Path) -> bool:
    """Whether a folder holds what a writer of ours put there and nothing else, so that replacing it loses nothing."""
    inside = list(folder.rglob("*"))
    files = {one.relative_to(folder).as_posix() for one in inside if not one.is_dir()}
    weights = {name for name in files if name.endswith(".safetensors") and "/" not in name}
    marks = [mark_of(folder / name) for name in weights]
    if not marks or any(mark.get("format") != FORMAT for mark in marks) or any(one.is_symlink() for one in inside):
        return False
    indices = {f"{stem}.safetensors{INDEX}" for stem in (STEM, ADAPTER_STEM)}
    copied = {str(name) for mark in marks for name in mark.get("copied", ())}
    return files <= weights | indices | copied
