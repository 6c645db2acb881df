"""The one writer: shards and their index, tied weights once, under a temporary name until all of it is there.

Tensors whose dtypes and shapes are known before (`LazyTensors`) are written a chunk at a time, so that memory is needed
for a chunk; others are collected until a shard is full. Torch is needed for tensors in memory only.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from interbasin.checkpoints.checkpoint import CODES, Checkpoint, Entry, LazyTensors
from interbasin.checkpoints.folded import STEM as FOLDED_STEM
from interbasin.checkpoints.folded import FillersToWrite, FoldedFolder, refuse_to_transformers
from interbasin.checkpoints.links import copy_inside, place_inside
from interbasin.checkpoints.lora import CONFIGURATION, write_base
from interbasin.checkpoints.open import INDEX, open_checkpoint, weights_in
from interbasin.checkpoints.safetensors_files import MARK, mark_of
from interbasin.errors import CheckpointError, DataError, FileError
from interbasin.storage import FORMAT_PREFIX, READABLE, as_path, new_file, new_folder, write_document
from interbasin.text import list_names, plural, printable

if TYPE_CHECKING:
    from torch import Tensor

    from interbasin.checkpoints.checkpoint import Array

Tensors: TypeAlias = "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]"
# What is known of a tensor, and what gives its bytes, piece by piece.
Source: TypeAlias = "tuple[Entry, Callable[[], Iterable[Array]]]"
Listener: TypeAlias = "Callable[[Path, int], object]"

FORMAT, VERSION = FORMAT_PREFIX + "checkpoint", 1
SHARD = 5_000_000_000  # bytes, as the hub advises
STEM, ADAPTER_STEM = "model", "adapter_model"
REPORTED = 8 * 2**20  # bytes after which a listener hears how far a file has come
ALIGNMENT = 8  # bytes; the numbers of every file begin at a multiple
# What belongs beside the weights: configuration, tokenizer, licence. It is copied along, and never weights.
COMPANIONS = (
    "*config*.json",  # config, generation_config, tokenizer_config, preprocessor_config, adapter_config, ...
    *("tokenizer.*", "special_tokens_map.json", "added_tokens.json", "vocab*.json", "vocab*.txt", "merges.txt"),
    *("normalizer.json", "dict.txt", "bpe.codes", "*.tiktoken", "*.spm", "spiece.model", "sentencepiece*.model"),
    *("chat_template*", "modules.json"),
    "*.py",  # the code of networks that bring their own; copied, never run
    *("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*"),
)
MODULES = "modules.json"
TEMPLATES = "additional_chat_templates"
LARGEST = 1 << 30  # bytes; no vocabulary is as large


def write_checkpoint(
    path: str | os.PathLike[str],
    tensors: Tensors,
    *,
    like: Checkpoint | str | os.PathLike[str] | None = None,
    max_shard_bytes: int = SHARD,
    metadata: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] | None = None,
    force: bool = False,
    mode: int = READABLE,
) -> None:
    """Write weights to ``path``: all of them, or nothing at all.

    Names, dtypes, shapes and numbers are kept exactly. Tensors that are the same memory are written once, and
    `open_checkpoint` gives them back under all their names. Memory is needed for one tensor of a `Checkpoint` or other
    `LazyTensors`, and for one shard of anything else.

    Args:
        path: A name that ends in ``.safetensors`` becomes one file; any other a folder as ``transformers`` reads it.
        tensors: Names and tensors: a mapping, an open `Checkpoint`, or pairs as they come.
        like: Whose configuration, tokenizer and licence to copy into the folder: another folder, or a `Checkpoint` that
            was one. A name that it stores is stored here too, tied or not, so that what loads the one loads the other.
            A link that leaves that folder, other than into the hub's cache, is left out, with a warning.
        max_shard_bytes: A file is closed before it grows beyond this, and an index says which tensor is in which file.
            An adapter is always one file.
        metadata: Notes for the headers, text to text.
        base: Of an adapter (``like`` is one): the network that it belongs to, where that is no longer the one that it
            was trained on. An adapter that was carried belongs to the network that was carried likewise.
        force: Replace what this function wrote there. Anything else is never replaced.
        mode: Who may read and write the files, beside what the umask takes away.

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
    if target.suffix != ".safetensors":
        with new_folder(target, force=force, ours=is_our_folder, mode=lambda: mode) as temporary:
            write_into(
                temporary,
                tensors,
                like=like,
                max_shard_bytes=max_shard_bytes,
                metadata=metadata,
                base=base,
                destination=target,
            )
        for sentence in notes_on_companions(like):
            warnings.warn(printable(sentence), UserWarning, stacklevel=2)
        return
    template = _template(like)
    if base is not None:
        raise _no_configuration(base)
    notes = _checked_notes(metadata)
    require_shard_size(max_shard_bytes)
    with new_file(target, force=force, ours=is_our_file, mode=lambda: mode) as temporary:
        shards = _shards_of(tensors, template.stored, None, FillersToWrite(None))
        _write_shards(temporary.parent, lambda: temporary.stem, shards, notes, [], target)


def write_into(
    folder: Path,
    tensors: Tensors,
    *,
    like: Checkpoint | str | os.PathLike[str] | None = None,
    max_shard_bytes: int = SHARD,
    metadata: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] | None = None,
    destination: Path | None = None,
    listener: Listener | None = None,
) -> int:
    """Write weights into a folder that is being filled; how many files there are.

    Weights like those of a folded network get what `checkpoints.folded` says, for transformers or against it.

    Args:
        folder: Where to; see `write_checkpoint` for the others.
        destination: What messages call the folder.
        listener: Called now and then, and at the end, with a file and how many bytes it holds; it may read them.
    """
    folder = as_path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"Weights were to be written into {folder}, which is no folder; make it first.")
    notes = _checked_notes(metadata)
    require_shard_size(max_shard_bytes)
    template = _template(like)
    if base is not None and template.stem != ADAPTER_STEM:
        raise _no_configuration(base)
    copied = [] if template.folder is None else find_companions(template.folder)
    fillers = FillersToWrite(None if template.folder is None else FoldedFolder.read(template.folder))
    limit = None if template.stem == ADAPTER_STEM else max_shard_bytes
    shards = _shards_of(tensors, template.stored, limit, fillers)

    def stem() -> str:
        return FOLDED_STEM if fillers.keeps_away else template.stem

    count = _write_shards(folder, stem, shards, notes, copied, destination or folder, listener)
    if template.folder is not None:
        copy_companions(copied, template.folder, folder)
    if fillers.keeps_away:
        refuse_to_transformers(folder)
    if base is not None:
        write_base(folder, os.fspath(base))
    return count


def is_our_file(path: Path) -> bool:
    """Whether this writer wrote a file."""
    return mark_of(path).get("format") == FORMAT


def is_our_folder(folder: Path) -> bool:
    """Whether a folder holds what this writer put there and nothing else, so that replacing it loses nothing."""
    inside = list(folder.rglob("*"))
    files = {path.relative_to(folder).as_posix() for path in inside if not path.is_dir()}
    weights = {name for name in files if name.endswith(".safetensors") and "/" not in name}
    marks = [mark_of(folder / name) for name in weights]
    if not marks or any(mark.get("format") != FORMAT for mark in marks) or any(path.is_symlink() for path in inside):
        return False
    indices = {f"{stem}.safetensors{INDEX}" for stem in (STEM, FOLDED_STEM, ADAPTER_STEM)}
    copied = {str(name) for mark in marks for name in mark.get("copied", ())}
    return files <= weights | indices | copied


# ---------------------------------------------------------------------- what is written into which file


@dataclass(frozen=True)
class Shard:
    """What one file is to hold."""

    tensors: dict[str, Source] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)  # names that stand for another one, in this file or elsewhere


def _shards_of(tensors: Tensors, stored: frozenset[str], limit: int | None, fillers: FillersToWrite) -> Iterator[Shard]:
    """What goes into each file: tensors are collected until it is full; ``stored`` are stored even if tied."""
    named: Iterable[tuple[str, Source | str]]
    if isinstance(tensors, LazyTensors):
        # Ties stand in one header; a reader gathers those of all files.
        ties = {name: other for name, other in tensors.ties.items() if name not in stored}
        rest = ((name, (tensors.entry(name), partial(tensors.chunks, name))) for name in tensors if name not in ties)
        named = itertools.chain(ties.items(), rest)
    else:
        from interbasin.checkpoints.in_memory import tensors_and_ties

        named = tensors_and_ties(tensors, stored)
    # What is still to be filled in is known when all tensors have passed.
    filled = ((name, (entry, partial(_one_chunk, numbers))) for name, entry, numbers in fillers.rest())
    shard, size = Shard(), 0
    for name, source in itertools.chain(named, filled):
        if isinstance(source, str):
            shard.ties[name] = source
            continue
        entry, _ = source
        fillers.follow(name, entry)
        if entry.kind not in CODES:
            raise DataError(f"{name} is of {entry.kind}, which a safetensors file cannot hold; convert it first.")
        if limit is not None and shard.tensors and size + entry.nbytes > limit:
            yield shard
            shard, size = Shard(), 0
        shard.tensors[name] = source
        size += entry.nbytes
    yield shard


def _one_chunk(numbers: Array) -> list[Array]:
    return [numbers]


def _write_shards(
    folder: Path,
    stem_of: Callable[[], str],
    shards: Iterable[Shard],
    notes: Mapping[str, str],
    copied: Sequence[str],
    destination: Path,
    listener: Listener | None = None,
) -> int:
    """Write every shard to a file, and give the files their names once it is known what and how many they are."""
    files: dict[Path, list[str]] = {}
    total = 0
    for shard in shards:
        part = folder / f"part-{len(files):05}"
        mark = {"format": FORMAT, "version": VERSION, "copied": list(copied), "ties": shard.ties}
        try:
            _write_file(part, shard, {**notes, MARK: json.dumps(mark)}, listener)
        except OSError as error:
            if isinstance(error, FileError):
                raise
            raise CheckpointError(
                f"Could not write {destination}: {error.strerror or error}; is there room on the disk and leave to "
                "write there?"
            ) from error
        files[part] = list(shard.tensors)
        total += sum(entry.nbytes for entry, _ in shard.tensors.values())
    weight_map: dict[str, str] = {}
    stem = stem_of()
    for number, (part, names) in enumerate(files.items(), 1):
        name = f"{stem}.safetensors" if len(files) == 1 else f"{stem}-{number:05}-of-{len(files):05}.safetensors"
        os.replace(part, folder / name)
        weight_map |= dict.fromkeys(names, name)
    if len(files) == 1:
        return 1
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_document(folder / f"{stem}.safetensors{INDEX}", index)
    return len(files)


def _write_file(path: Path, shard: Shard, notes: Mapping[str, str], listener: Listener | None) -> None:
    """Write one file: a header that says what is in it, then the numbers."""
    # Tensors of longer numbers first, so that all lie aligned.
    tensors = dict(sorted(shard.tensors.items(), key=lambda item: -item[1][0].itemsize))
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    end = 0
    for name, (entry, _) in tensors.items():
        span = [end, end + entry.nbytes]
        header[name] = {"dtype": CODES[entry.kind], "shape": list(entry.shape), "data_offsets": span}
        end += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("xb") as file:
        size, reported = file.write(len(text).to_bytes(8, "little") + text), 0
        for name, (entry, chunks) in tensors.items():
            count = 0
            for chunk in chunks():
                file.write(chunk.reshape(-1).view(np.uint8).data)
                count += chunk.nbytes
                if listener is not None and size + count >= reported + REPORTED:
                    file.flush()
                    reported = size + count
                    listener(path, reported)
            if count != entry.nbytes:
                raise CheckpointError(f"{name} was announced with {entry.nbytes:,} bytes, and {count:,} came.")
            size += count
        file.flush()
        if listener is not None:
            listener(path, size)


# ---------------------------------------------------------------------- what belongs beside the weights


def find_companions(folder: Path) -> list[str]:
    """The names, relative to ``folder``, of the files to copy along with its weights."""
    return [name for name in _companions(folder) if place_inside(folder / name, folder) is not None]


def notes_on_companions(like: Checkpoint | str | os.PathLike[str] | None) -> list[str]:
    """A sentence on the files that are not copied along from ``like``, as they are links that leave its folder."""
    folder = like.folder if isinstance(like, Checkpoint) else None if like is None else as_path(like)
    if folder is None or not folder.is_dir():
        return []
    outside = [name for name in _companions(folder) if place_inside(folder / name, folder) is None]
    if not outside:
        return []
    # The folder by its name: notes stand on the card of a merge, where nobody's paths belong.
    are = "is a link that leaves" if len(outside) == 1 else "are links that leave"
    return [
        f"{plural(len(outside), 'file')} of {folder.name} {'was' if len(outside) == 1 else 'were'} not copied along: "
        f"{list_names(outside)} {are} the folder, to what need not be yours to pass on. Put into the folder what "
        "belongs to the network."
    ]


def copy_companions(names: list[str], source: Path, target: Path) -> None:
    """Copy the named files; links are followed inside the folder and, as the cache of the hub is made of them, there.

    Raises:
        CheckpointError: if a file cannot be read, or is a link that leaves the folder.
    """
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        copy_inside(source / name, source, target / name)


def _companions(folder: Path) -> list[str]:
    paths = [path for path in folder.iterdir() if _belongs(path)]
    for below in _subfolders(folder):
        if below.is_dir() and not below.is_symlink():
            paths += [
                path for path in below.iterdir() if _belongs(path) or (path.suffix == ".jinja" and path.is_file())
            ]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _belongs(path: Path) -> bool:
    return (
        any(fnmatch(path.name, pattern) for pattern in COMPANIONS)
        and not path.name.endswith((".index.json", ".bin", ".safetensors", ".pt"))
        and path.is_file()
        and path.stat().st_size < LARGEST
    )


def _subfolders(folder: Path) -> list[Path]:
    """Those that sentence-transformers names in ``modules.json``, and the one for templates."""
    names = [TEMPLATES]
    if (folder / MODULES).is_file():
        modules = _modules(folder / MODULES)
        names += [name for name in modules if name and "/" not in name and "\\" not in name and name != ".."]
    return [folder / name for name in dict.fromkeys(names)]


def _modules(path: Path) -> list[str]:
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    modules = modules if isinstance(modules, list) else []
    return [str(module.get("path", "")) for module in modules if isinstance(module, dict)]


# ---------------------------------------------------------------------- what was asked


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
        folder = as_path(like, "The checkpoint to write alike (like=)", CheckpointError)
        if folder.is_dir() and weights_in(folder) is None:  # a configuration alone
            return _Template(folder, stem=ADAPTER_STEM if (folder / CONFIGURATION).is_file() else STEM)
        like = open_checkpoint(folder)
    return _Template(like.folder, frozenset(like.sources), STEM if like.adapter is None else ADAPTER_STEM)


def _no_configuration(base: str | os.PathLike[str]) -> DataError:
    return DataError(
        f"base= names the network of an adapter (found {os.fspath(base)!r}), and what is written here is not the "
        "folder of one; give the adapter's folder as like=, or leave base= out."
    )


def require_shard_size(size: object) -> None:
    """Refuse what is no number of bytes."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise DataError(f"max_shard_bytes must be a whole number of at least 1, got {size!r}; try 5_000_000_000.")


def _checked_notes(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """The notes for a header, with the one without which transformers loads no file."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DataError(f"Notes in a checkpoint are a mapping of text to text, found a {type(metadata).__name__}.")
    notes = metadata or {}
    wrong = [key for key, value in notes.items() if not _is_whole_text(key) or not _is_whole_text(value)]
    if wrong or MARK in notes:
        key = wrong[0] if wrong else MARK
        raise DataError(
            f"Notes in a checkpoint are text to text, and {MARK!r} is taken; found {key!r}: {notes[key]!r}."
        )
    return {"format": "pt", **notes}


def _is_whole_text(value: object) -> bool:
    """Whether this is text, and whole: half a character can be held in Python, but not in a file."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)
