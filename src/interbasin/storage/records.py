"""Records: a pair ``NAME.json`` and ``NAME.safetensors`` in a folder, with checksums and one mark in both files.

The JSON names its format and the version of that format, and has a checksum of the tensors and one of itself: the seal.
The mark says that there is a seal, so that a damaged file is not taken for one of an earlier version, which had none.
Nothing in a record is meant to be edited: its numbers decide results. Equal contents give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from interbasin.errors import FileError
from interbasin.storage.destination import FORMAT_PREFIX, as_path, read_text

if TYPE_CHECKING:  # torch takes longer to import than many a checkpoint to merge: what needs no tensors goes without
    import torch

# A reader that meets a writer between its two files looks again this often.
READS = 5
LONGEST_HEADER = 16 * 2**20  # bytes: one that is made to be slow costs the library minutes
SEAL = "seal"  # the key of a JSON file's own checksum
SEALED = "sealed-"  # what the mark of a record that has one begins with


def write_record(
    folder: Path,
    name: str,
    format: str,
    version: int,
    document: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Write ``name.json`` and ``name.safetensors`` into ``folder`` (one that `new_folder` made)."""
    from safetensors.torch import save_file

    # safetensors refuses views that share memory or are not contiguous: a copy of each is what belongs in a file.
    plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    head = {"format": FORMAT_PREFIX + format, "version": version, "mark": "", "checksum": _checksum(plain)}
    whole = json.loads(_to_json({**head, **document}, f"{name}.json"))
    # The same mark in both files, so that a reader never takes one of an old record and one of a new. It is a hash of
    # all that is in them; and it stands alone in the tensors' file, because safetensors puts two keys in random order.
    whole["mark"] = SEALED + hashlib.sha256(_sorted_words(whole)).hexdigest()[:16]
    whole[SEAL] = seal_of(whole)
    try:
        save_file(plain, folder / f"{name}.safetensors", metadata={"mark": whole["mark"]})
    except SafetensorError as error:
        raise FileError(f"Could not write {name}.safetensors ({error}); is there room on the disk?") from error
    write_document(folder / f"{name}.json", whole)


def seal_of(document: Mapping[str, Any]) -> str:
    """What changes when anything in a JSON document does, but the order of its keys."""
    return f"{zlib.crc32(_sorted_words({key: value for key, value in document.items() if key != SEAL})):08x}"


def _sorted_words(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """What changes when a number of the tensors does: safetensors itself notices only a wrong length."""
    import torch

    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(name.encode("utf-8", "surrogatepass"), checksum)
        checksum = zlib.crc32(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write one JSON file, readable by people, in one go."""
    path.write_text(_to_json(document, path.name), encoding="utf-8")


def _to_json(document: Mapping[str, Any], name: str) -> str:
    try:
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise FileError(
            f"{name} cannot be written as JSON ({error}); notes take numbers, text, lists and mappings."
        ) from error


def read_record(
    folder: str | os.PathLike[str], name: str, format: str, version: int, *, sealed: bool = False
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The JSON document and the tensors of a record, after checking that it is one of this format and version.

    Raises:
        FileError: if a file is missing, damaged, edited, of another format or of a later version; if it must be
            ``sealed`` and is not, as files of earlier versions.
    """
    folder = as_path(folder)
    for attempt in range(READS):
        if not os.path.isdir(folder):
            fault = "it is a file" if os.path.lexists(folder) else "there is nothing there"
            raise FileError(
                f"Expected a folder with a saved {format} at {folder}, but {fault}; give the folder it was saved to."
            )
        document = read_document(folder / f"{name}.json", format, version, sealed=sealed)
        mark, tensors = _read_tensors(folder / f"{name}.safetensors")
        if mark == document.get("mark"):
            if document.get("checksum", None) not in (None, _checksum(tensors)):  # files of earlier versions have none
                raise FileError(
                    f"{folder / name}.safetensors is damaged: its numbers are not those that were saved; copy it again "
                    "or make it anew."
                )
            if (mark or "").startswith(SEALED) and SEAL not in document:
                raise _edited(folder / f"{name}.json")
            return document, tensors
        time.sleep(0.01 * (attempt + 1))
    raise FileError(f"{name}.json and {name}.safetensors in {folder} do not belong together; copy both again.")


def read_document(path: Path, format: str, version: int, *, sealed: bool = False) -> dict[str, Any]:
    """What one JSON file of ours holds, after checking that it is of this format and version.

    Raises:
        FileError: if it is missing, damaged, edited, of another format or of a later version; if it must be ``sealed``
            and is not.
    """
    try:
        document = json.loads(read_text(path))
    except FileError:
        raise
    except FileNotFoundError as error:
        raise FileError(
            f"There is no saved {format} in {path.parent}: {path.name} is missing; give the folder it was saved to."
        ) from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}; copy it again or make it anew.") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is damaged or cut off ({error}); copy it again or make it anew.") from error
    if not isinstance(document, dict):
        raise FileError(
            f"{path} is not a saved {format}: it holds a JSON {type(document).__name__}, expected an object; "
            f"give a folder that a {format} was saved to."
        )
    _check_version(document, path, format, version)
    if (sealed or SEAL in document) and document.get(SEAL) != seal_of(document):
        raise _edited(path)
    return document


def _edited(path: Path) -> FileError:
    return FileError(f"{path} is damaged or was edited: it does not say what was saved; copy it again or make it anew.")


def _check_version(document: Mapping[str, Any], path: Path, format: str, version: int) -> None:
    if document.get("format") != FORMAT_PREFIX + format:
        raise FileError(
            f"{path} is not a saved {format}: its format is {document.get('format')!r}, expected "
            f"{FORMAT_PREFIX + format!r}; give a folder that a {format} was saved to."
        )
    written = document.get("version")
    if not isinstance(written, int) or not 1 <= written <= version:
        raise FileError(
            f"{path} has format version {written!r} and this program reads versions 1 to {version}; "
            "update interbasin, or save the file again with the version that wrote it."
        )


def _read_tensors(path: Path) -> tuple[str | None, dict[str, torch.Tensor]]:
    from interbasin.arrays import copy_row_major

    if not path.is_file():
        raise FileError(f"{path} is missing beside {path.stem}.json; copy the whole folder again.")
    try:
        with path.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
        if LONGEST_HEADER < length <= path.stat().st_size:  # of a longer one the library says so at once
            raise FileError(
                f"{path} is damaged: its header would have {length:,} bytes, and none of ours is as long; copy it "
                "again or make it anew."
            )
        with safe_open(path, framework="pt") as file:
            tensors = {key: copy_row_major(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
            return (file.metadata() or {}).get("mark"), tensors
    except FileError:
        raise
    except (SafetensorError, OSError, RuntimeError) as error:
        raise FileError(f"{path} is damaged or cut off ({error}); copy it again or make it anew.") from error
