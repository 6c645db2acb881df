"""How this package puts things on disk: numbers in safetensors, the rest in JSON, whole or not at all.

A *record* is a pair ``NAME.json`` and ``NAME.safetensors`` in a folder. The JSON names its format and the version of
that format. Folders are filled under a temporary name beside their destination and renamed when they are complete, so
an interrupt or a full disk leaves what was there before.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from interbasin.errors import FileError

if TYPE_CHECKING:  # torch takes longer to import than many a checkpoint to merge: what needs no tensors goes without
    import torch

__all__ = [
    "as_path",
    "is_ours",
    "new_file",
    "new_folder",
    "read_document",
    "read_record",
    "refuse_file_in_the_way",
    "refuse_what_is_in_the_way",
    "write_document",
    "write_record",
]

FORMAT_PREFIX = "interbasin."
# Short, so that whatever name the destination may have, the temporary one may be had as well.
TEMPORARY = ".interbasin-"
# A reader that meets a writer between its two files looks again this often.
READS = 5


def as_path(given: object) -> Path:
    """``given`` as a path.

    Raises:
        FileError: if it cannot be one.
    """
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(path, str):
        raise FileError(
            f"A file or a folder is named by text or a pathlib.Path, found a {type(given).__name__}; give its name."
        )
    return Path(path)


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str],
    holds: Collection[str] | None = None,
    *,
    force: bool = False,
    ours: Callable[[Path], bool] | None = None,
) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` if the block ends well, and vanishes if it does not.

    Args:
        path: The destination. Missing parents are made.
        holds: The names of the records that such a folder may hold; by default any of this package.
        force: Replace a folder that holds such records and nothing else. Anything else is never replaced.
        ours: Says whether a folder may be replaced, where that is not a matter of records.

    Raises:
        FileError: if ``path`` exists (and ``force`` is off, or it is not ours), or cannot be written.
    """
    refuse_what_is_in_the_way(path, holds, force=force, ours=ours)
    # Behind a symbolic link the folder it names is replaced, and the link stays.
    destination = Path(os.path.realpath(path))
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=destination.parent))
    except OSError as error:
        raise _cannot_write(destination, error) from error
    try:
        yield temporary
        # mkdtemp makes private folders; what we leave behind follows the user's umask like any other folder.
        temporary.chmod(0o777 & ~_umask())
        _flush(temporary)
        # Filling it may have taken hours, in which someone else may have written there.
        refuse_what_is_in_the_way(path, holds, force=force, ours=ours)
        _move_into_place(temporary, destination)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise _cannot_write(destination, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def new_file(
    path: str | os.PathLike[str], *, force: bool = False, ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """A temporary name for a file that becomes ``path`` if the block ends well, and vanishes if it does not.

    Args:
        path: The destination. Missing parents are made.
        force: Replace a file that is ours. Anything else is never replaced.
        ours: Says whether a file is ours; by default none is.

    Raises:
        FileError: if ``path`` exists (and ``force`` is off, or it is not ours), or cannot be written.
    """
    refuse_file_in_the_way(path, force=force, ours=ours)
    destination = Path(os.path.realpath(path))
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=destination.parent))
    except OSError as error:
        raise _cannot_write(destination, error) from error
    try:
        yield folder / destination.name
        _flush(folder)
        refuse_file_in_the_way(path, force=force, ours=ours)
        os.replace(folder / destination.name, destination)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise _cannot_write(destination, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_record(
    folder: Path, name: str, format: str, version: int, document: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Write ``name.json`` and ``name.safetensors`` into ``folder`` (one that `new_folder` made)."""
    from safetensors.torch import save_file

    # safetensors refuses views that share memory or are not contiguous: a copy of each is what belongs in a file.
    plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    # The same mark in both files, so that a reader never takes one of an old record and one of a new.
    mark = secrets.token_hex(8)
    try:
        save_file(plain, folder / f"{name}.safetensors", metadata={"mark": mark})
    except SafetensorError as error:
        raise FileError(
            f"Could not write {name}.safetensors ({error}); is there room on the disk and leave to write?"
        ) from error
    head = {"format": FORMAT_PREFIX + format, "version": version, "mark": mark, "checksum": _checksum(plain)}
    write_document(folder / f"{name}.json", {**head, **document})


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """What changes when a number of the tensors does: safetensors itself notices only a wrong length."""
    import torch

    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(name.encode("utf-8", "surrogatepass"), found)
        found = zlib.crc32(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write one JSON file, readable by people, in one go."""
    try:
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise FileError(
            f"{path.name} cannot be written as JSON ({error}); notes take numbers, text, lists and mappings."
        ) from error
    path.write_text(text, encoding="utf-8")


def read_record(
    folder: str | os.PathLike[str], name: str, format: str, version: int
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The JSON document and the tensors of a record, after checking that it is one of this format and version.

    Raises:
        FileError: if a file is missing, damaged, of another format or of a later version.
    """
    folder = as_path(folder)
    for attempt in range(READS):
        if not os.path.isdir(folder):
            found = "it is a file" if os.path.lexists(folder) else "there is nothing there"
            raise FileError(
                f"Expected a folder with a saved {format} at {folder}, but {found}; give the folder it was saved to."
            )
        document = read_document(folder / f"{name}.json", format, version)
        mark, tensors = _read_tensors(folder / f"{name}.safetensors")
        if mark == document.get("mark"):
            if document.get("checksum", None) not in (None, _checksum(tensors)):  # files of earlier versions have none
                raise FileError(
                    f"{folder / name}.safetensors is damaged: its numbers are not those that were saved; copy it again "
                    "or make it anew."
                )
            return document, tensors
        time.sleep(0.01 * (attempt + 1))
    raise FileError(
        f"{name}.json and {name}.safetensors in {folder} do not belong together; copy the whole folder again."
    )


def read_document(path: Path, format: str, version: int) -> dict[str, Any]:
    """What one JSON file of ours holds, after checking that it is of this format and version.

    Raises:
        FileError: if it is missing, damaged, of another format or of a later version.
    """
    document = _read_document(path, format)
    _check_version(document, path, format, version)
    return document


def _check_version(document: Mapping[str, Any], path: Path, format: str, version: int) -> None:
    if document.get("format") != FORMAT_PREFIX + format:
        raise FileError(
            f"{path} is not a saved {format}: its format is {document.get('format')!r}, expected "
            f"{FORMAT_PREFIX + format!r}; give a folder that a {format} was saved to."
        )
    found = document.get("version")
    if not isinstance(found, int) or not 1 <= found <= version:
        raise FileError(
            f"{path} has format version {found!r} and this program reads versions 1 to {version}; "
            "update interbasin, or save the file again with the version that wrote it."
        )


def _read_tensors(path: Path) -> tuple[str | None, dict[str, torch.Tensor]]:
    from interbasin.arrays import copy_row_major

    if not path.is_file():
        raise FileError(f"{path} is missing beside {path.stem}.json; copy the whole folder again.")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: copy_row_major(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
            return (file.metadata() or {}).get("mark"), tensors
    except (SafetensorError, OSError, RuntimeError) as error:
        raise FileError(f"{path} is damaged or cut off ({error}); copy it again or make it anew.") from error


def is_ours(folder: Path, holds: Collection[str] | None = None) -> bool:
    """Whether a folder holds the named records of this package and nothing else, so that replacing it loses nothing."""
    paths = sorted(folder.iterdir())
    ours = {path.stem for path in paths if path.suffix == ".json" and _names_our_format(path)}
    return (
        bool(ours)
        and (holds is None or ours <= set(holds))
        and all(path.suffix in (".json", ".safetensors") and path.stem in ours for path in paths)
    )


def _names_our_format(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("format", "")).startswith(FORMAT_PREFIX)


def _read_document(path: Path, format: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
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
    return document


def refuse_what_is_in_the_way(
    path: str | os.PathLike[str],
    holds: Collection[str] | None = None,
    *,
    force: bool,
    ours: Callable[[Path], bool] | None = None,
) -> None:
    """Raise the `FileError` that writing a folder to ``path`` would, so that long work can fail before it starts."""
    destination = as_path(path)
    try:
        entries = sorted(destination.iterdir())
    except FileNotFoundError as error:
        if os.path.lexists(destination):
            raise FileError(
                f"Asked to write a folder at {destination}, which is a link to nothing; choose another name."
            ) from error
        _refuse_what_is_above(destination)
        return
    except NotADirectoryError as error:
        if os.path.lexists(destination):
            raise FileError(
                f"Asked to write a folder at {destination}, but a file of that name exists; choose another name."
            ) from error
        _refuse_what_is_above(destination)
        return
    except OSError as error:
        raise _cannot_write(destination, error) from error
    except ValueError as error:
        raise FileError(f"{destination!r} cannot be the name of a folder ({error}); choose another.") from error
    if os.path.samefile(destination, "."):
        raise FileError("Asked to write to the current folder, which would be replaced by a new one; give a new name.")
    if not entries:
        return
    if not force:
        raise FileError(
            f"{destination} exists already and nothing is overwritten unasked; choose another name, or ask for it with "
            "force=True (--force)."
        )
    if not (is_ours(destination, holds) if ours is None else ours(destination)):
        raise FileError(
            f"Asked to replace {destination}, but that folder holds files that this command did not write; "
            "choose another name, or remove the folder yourself."
        )


def refuse_file_in_the_way(
    path: str | os.PathLike[str], *, force: bool, ours: Callable[[Path], bool] | None = None
) -> None:
    """Raise the `FileError` that writing a file to ``path`` would, so that long work can fail before it starts."""
    destination = as_path(path)
    try:
        os.lstat(destination)
    except (FileNotFoundError, NotADirectoryError):
        _refuse_what_is_above(destination, "file")
        return
    except OSError as error:
        raise _cannot_write(destination, error) from error
    except ValueError as error:
        raise FileError(f"{destination!r} cannot be the name of a file ({error}); choose another.") from error
    if not destination.is_file():
        found = "a folder of that name exists" if destination.is_dir() else "that is no ordinary file"
        raise FileError(f"Asked to write a file at {destination}, but {found}; choose another name.")
    if not force:
        raise FileError(
            f"{destination} exists already and nothing is overwritten unasked; choose another name, or ask for it with "
            "force=True (--force)."
        )
    if ours is None or not ours(destination):
        raise FileError(
            f"Asked to replace {destination}, but this command did not write that file; choose another name, or remove "
            "the file yourself."
        )


def _refuse_what_is_above(destination: Path, what: str = "folder") -> None:
    """Refuse a destination below a file, or below a folder that cannot be written to."""
    above = next(parent for parent in Path(os.path.abspath(destination)).parents if os.path.lexists(parent))
    if not above.is_dir():
        raise FileError(f"Asked to write a {what} at {destination}, but {above} is not a folder; choose another name.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise FileError(f"Asked to write a {what} at {destination}, but {above} is not yours to write; choose another.")


def _move_into_place(temporary: Path, destination: Path) -> None:
    if not destination.exists() or not any(destination.iterdir()):
        os.replace(temporary, destination)
    elif not _exchanged(temporary, destination):
        # Elsewhere a folder cannot be renamed over a full one: step the old one aside, and back again if that fails.
        aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=destination.parent))
        try:
            os.replace(destination, aside)
            os.replace(temporary, destination)
        except BaseException:
            if not destination.exists():
                os.replace(aside, destination)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the two folders could be exchanged in one step (Linux); no moment then has neither in place."""
    current_folder, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(current_folder, os.fsencode(one), current_folder, os.fsencode(other), exchange) == 0)


def _flush(folder: Path) -> None:
    """Have the files on the disk before their name says that they are."""
    for path in folder.rglob("*"):
        if path.is_dir():
            continue
        path.chmod(0o666 & ~_umask())  # safetensors makes private files
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(destination: Path, error: OSError) -> FileError:
    reason = error.strerror or str(error)
    return FileError(f"Could not write {destination}: {reason}; is there room on the disk and leave to write there?")
