"""What a long command keeps beside OUTPUT until OUTPUT is there: one that was interrupted or killed goes on from it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class State:
    """A folder for what was done, and whether all is done that could be refused."""

    folder: Path
    is_complete: bool = False


@contextlib.contextmanager
def state_beside(output: Path, what: str = "was recorded and fitted") -> Iterator[State]:
    """A folder beside OUTPUT for what was done, for this process alone; it is gone when OUTPUT is there.

    Where the request was no good, what came of it is removed, and what an earlier run left stays. ``what`` is kept, for
    the message of an interrupt.
    """
    from interbasin.errors import FileError, InterbasinError
    from interbasin.storage.atomic import missing_parents, remove_empty
    from interbasin.storage.destination import cannot_write
    from interbasin.storage.interrupts import InterruptedAfterwards, hold_back_interrupts
    from interbasin.storage.lock import claim_folder, discard_folder, remove_stale, unfinished_folder

    destination = Path(os.path.realpath(output))
    folder = unfinished_folder(destination)
    state = folder / "state"
    progress = State(state)
    new = missing_parents(destination)
    kept = f"what {what} so far is kept beside OUTPUT: run the same command to go on."
    claim = None
    try:
        with hold_back_interrupts():
            claim = claim_folder(folder, str(output))
            remove_stale(destination.parent)
    except BaseException as error:
        if claim is not None:
            claim.release()
        remove_empty([folder, *new])
        raise cannot_write(output, error) if isinstance(error, OSError) else error from error
    before = set(state.iterdir()) if state.is_dir() else set()
    try:
        yield progress
    except KeyboardInterrupt as error:
        if isinstance(error, InterruptedAfterwards) and error.complete == output:
            discard_folder(folder)
        elif state.is_dir():
            raise KeyboardInterrupt(kept) from error
        raise
    except InterbasinError as error:
        if state.is_dir() and (progress.is_complete or isinstance(error, FileError)):
            raise type(error)(f"{str(error).rstrip('.')}; {kept}") from error
        if isinstance(error, FileError):
            raise
        for path in set(state.iterdir()) - before if state.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True)
        raise
    else:
        discard_folder(folder)
    finally:
        with hold_back_interrupts():
            remove_empty([state])
            if folder.exists() and not state.exists():
                discard_folder(folder)
                remove_empty(new)
            claim.release()
