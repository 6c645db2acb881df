"""Folders that a killed process left half-filled, and how they are distinguished from those that are being filled now.

A writer that ends, well or badly, removes its temporary folder. Only SIGKILL, or a machine that stops, leaves one
behind, under a hidden name beside the destination. Each holds a file that its writer has locked; the system lifts that
lock with the process, so a folder whose lock can be had belongs to nobody.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from interbasin.storage.atomic import TEMPORARY

if sys.platform != "win32":  # which has no such locks: abandoned folders stay there
    import fcntl

LOCK = ".claimed"


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Mark a temporary folder as being filled for as long as the block, and this process, lasts."""
    if sys.platform == "win32":
        yield
        return
    # Locked before it has the name that a sweeper looks for, so that none ever finds it free.
    with (folder / f"{LOCK}-soon").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is ever swept there
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / f"{LOCK}-soon").rename(folder / LOCK)
        try:
            yield
        finally:
            for name in (LOCK, f"{LOCK}-soon"):
                (folder / name).unlink(missing_ok=True)


def sweep(parent: Path) -> int:
    """Remove the folders beside a destination that killed processes left half-filled; how many there were."""
    if sys.platform == "win32" or not parent.is_dir():
        return 0
    found = 0
    for lock in parent.glob(f"{TEMPORARY}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
            found += 1
    return found
