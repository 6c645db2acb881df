"""Files and folders that appear whole or not at all.

They are filled under a temporary name beside their destination and renamed when they are complete, so an interrupt or
a full disk leaves what was there before. What stands there already is exchanged with what is new in one step, looked at
once more, and only then removed: what somebody else put there in the last moment goes back to its place.

A writer that ends, well or badly, removes its temporary folder. Only SIGKILL, or a machine that stops, leaves one
behind, and the next writer beside it removes that (see `interbasin.storage.lock`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from interbasin.errors import FileError
from interbasin.storage.destination import cannot_write, is_ours, refuse_file_in_the_way, refuse_what_is_in_the_way
from interbasin.storage.interrupts import hold_back_interrupts
from interbasin.storage.lock import TEMPORARY, claim_temporary_folder, remove_stale

READABLE = 0o666  # by all whom the umask lets
LOOKS = 10  # at a destination where something comes and goes
CURRENT_FOLDER, NOREPLACE, EXCHANGE = -100, 1, 2  # AT_FDCWD, RENAME_NOREPLACE and RENAME_EXCHANGE of renameat2(2)


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str],
    holds: Collection[str] | None = None,
    *,
    force: bool = False,
    ours: Callable[[Path], bool] | None = None,
    mode: Callable[[], int] = lambda: READABLE,
) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` if the block ends well, and vanishes if it does not.

    Args:
        path: The destination. Missing parents are made.
        holds: The names of the records that such a folder may hold; by default any of this package.
        force: Replace a folder that holds such records and nothing else. Anything else is never replaced.
        ours: Says whether a folder may be replaced, where that is not a matter of records.
        mode: Who may read and write the files, beside what the umask takes away; asked when the block has ended.

    Raises:
        FileError: if ``path`` exists (and ``force`` is off, or it is not ours), or cannot be written.
    """
    refuse = partial(refuse_what_is_in_the_way, path, holds, force=force, ours=ours)
    refuse()
    # Behind a symbolic link the folder it names is replaced, and the link stays.
    destination = Path(os.path.realpath(path))
    is_replaceable = ours or partial(is_ours, holds=holds)
    with _temporary_folder(destination) as temporary:
        yield temporary
        flush_files(temporary, mode())
        # Filling it may have taken hours, in which someone else may have written there.
        with hold_back_interrupts(complete=Path(path)):
            put_in_place(temporary, destination, refuse, lambda old: not any(old.iterdir()) or is_replaceable(old))


@contextlib.contextmanager
def new_file(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    ours: Callable[[Path], bool] | None = None,
    refuse: Callable[[], object] | None = None,
    mode: Callable[[], int] = lambda: READABLE,
) -> Iterator[Path]:
    """A temporary name for a file that becomes ``path`` if the block ends well, and vanishes if it does not.

    Args:
        path: The destination. Missing parents are made.
        force: Replace a file that is ours. Anything else is never replaced.
        ours: Says whether a file is ours; by default none is.
        refuse: Raises what is in the way, where that is no matter of ``force`` and ``ours``.
        mode: As for `new_folder`.

    Raises:
        FileError: if ``path`` exists (and ``force`` is off, or it is not ours), or cannot be written.
    """
    refuse = refuse or partial(refuse_file_in_the_way, path, force=force, ours=ours)
    refuse()
    destination = Path(os.path.realpath(path))
    with _temporary_folder(destination) as folder:
        yield folder / destination.name
        flush_files(folder, mode())
        with hold_back_interrupts(complete=Path(path)):
            put_in_place(folder / destination.name, destination, refuse, ours)


@contextlib.contextmanager
def _temporary_folder(destination: Path) -> Iterator[Path]:
    """A folder beside the destination for as long as the block lasts; what the system refuses becomes a `FileError`."""
    claim = None
    with parents_made(destination):
        try:
            with hold_back_interrupts():
                remove_stale(destination.parent)
                claim = claim_temporary_folder(destination.parent)
            yield claim.folder
        except FileError:
            raise
        except OSError as error:
            raise cannot_write(destination, error) from error
        finally:
            if claim is not None:
                with hold_back_interrupts():
                    shutil.rmtree(claim.folder, ignore_errors=True)
                    claim.release()


@contextlib.contextmanager
def parents_made(destination: Path) -> Iterator[None]:
    """Make the folders above a destination; if the block fails, those that were made go again."""
    made = missing_parents(destination)
    try:
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(destination, error) from error
        yield
    except BaseException:
        remove_empty(made)
        raise


def missing_parents(destination: Path) -> list[Path]:
    """The folders above a destination that are not there, the innermost first."""
    return [folder for folder in destination.parents if not folder.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, one after the other, up to the first that holds something."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def put_in_place(
    new: Path,
    destination: Path,
    refuse: Callable[[], object],
    is_replaceable: Callable[[Path], bool] | None = None,
) -> None:
    """Give a complete file or folder the name of its destination.

    Args:
        new: On the same file system.
        destination: What stands there ends up under the name of what is new; the caller removes it.
        refuse: Raises what stands at the destination and may not be replaced.
        is_replaceable: Says the same of what stood there, when it was taken away and nobody can change it any more.

    Raises:
        FileError: as ``refuse`` does; nothing has changed then.
        OSError: if the system does not allow it.
    """
    for _ in range(LOOKS):
        refuse()
        try:
            if not os.path.lexists(destination) or _is_empty_folder(destination):
                _rename_to_nothing(new, destination)
            elif not _exchange(new, destination):
                _replace_by_steps(new, destination)
            elif is_replaceable is not None and not is_replaceable(new):
                _exchange(new, destination)
                continue  # the next look says what it is
        except OSError as error:
            # Something came, or went, since it was looked at.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT) or not os.path.lexists(new):
                raise
            continue
        flush_name(destination)
        return
    raise FileError(f"Could not write {destination}: something there comes and goes; choose another name.")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _rename_to_nothing(new: Path, destination: Path) -> None:
    """Rename, or raise `FileExistsError` if there is something by now."""
    if new.is_dir():  # which no system renames over anything but an empty folder
        os.replace(new, destination)
    elif not _rename(new, destination, NOREPLACE):
        try:
            os.link(new, destination)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.replace(new, destination)
        else:
            new.unlink()


def _replace_by_steps(new: Path, destination: Path) -> None:
    """Where two names cannot be exchanged: a folder steps aside, and back if the new one fails."""
    if not new.is_dir():
        os.replace(new, destination)
        return
    aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=destination.parent))
    try:
        os.replace(destination, aside)
        os.replace(new, destination)
    except BaseException:
        if not destination.exists():
            os.replace(aside, destination)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Whether the two could be exchanged in one step (Linux); no moment then has neither in place."""
    return _rename(first, second, EXCHANGE)


def _rename(first: Path, second: Path, how: int) -> bool:
    """renameat2(2); whether there is such a call, and the file system knows this way of renaming.

    Raises:
        OSError: if it is known, and failed.
    """
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if rename(CURRENT_FOLDER, os.fsencode(first), CURRENT_FOLDER, os.fsencode(second), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(first), None, os.fspath(second))


def flush_files(folder: Path, mode: int = READABLE) -> None:
    """Have the files on the disk before their name says that they are, and readable by whom they may be."""
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_file() and not path.is_symlink():
            path.chmod(allowed(mode))  # safetensors makes private files
            flush(path)
    if sys.platform != "win32":  # where no folder can be opened
        for path in (*(path for path in paths if path.is_dir()), folder):
            flush(path)
    # A temporary folder is private; who may read the files may enter the folder.
    folder.chmod(allowed(mode) | (allowed(mode) & 0o444) >> 2 | stat.S_IRWXU)


def allowed(mode: int) -> int:
    """Who may read and write a file: its owner, and of others those that ``mode`` names and the umask lets."""
    return (mode | 0o600) & READABLE & ~_umask()


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_name(path: Path) -> None:
    """Have the new name of something on the disk, where the system can do that.

    It is complete and in its place by now, so a folder that cannot be flushed is no failure: all that may happen is
    that a machine which stops in the next seconds comes back without the name.
    """
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            flush(path.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
