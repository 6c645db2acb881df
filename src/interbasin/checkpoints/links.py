"""Which links in the folder of a network are followed: those that stay inside, and those of the hub's cache.

What is copied along with weights is published with them. A folder that was downloaded or unpacked may hold a
``LICENSE.txt`` that is a link to somebody's credentials, or a shard that is a link to another network.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from interbasin.errors import CheckpointError

SNAPSHOTS, REPOSITORY, BLOBS = "snapshots", "models--", "blobs"


def place_inside(path: Path, folder: Path) -> Path | None:
    """The file behind ``path``, if it lies in ``folder`` or among the blobs that this folder of the cache links to.

    The cache of the hub holds ``models--OWNER--NAME/snapshots/REVISION/FILE``, links to files in
    ``models--OWNER--NAME/blobs``. None if the file lies elsewhere.
    """
    home, place = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    return place if place.is_relative_to(home) or place.parent == _blobs_of(home) else None


def _blobs_of(home: Path) -> Path | None:
    for revision in (home, *home.parents):
        repository = revision.parent.parent
        if revision.parent.name == SNAPSHOTS and repository.name.startswith(REPOSITORY):
            return repository / BLOBS
    return None


def require_inside(path: Path, folder: Path) -> None:
    """Refuse weights that are a link out of the folder that was opened.

    Raises:
        CheckpointError: names the link and where it leads.
    """
    if place_inside(path, folder) is None:
        raise CheckpointError(
            f"{path} is a link to {os.path.realpath(path)}, which is outside of its folder; links to weights are "
            "followed inside the folder and into the cache of the hub alone: put the file there, or open it by itself."
        )


def copy_inside(path: Path, folder: Path, target: Path) -> None:
    """Copy a file of ``folder``; a link that leaves the folder is not followed.

    Raises:
        CheckpointError: if it is such a link, or became one since it was listed.
    """
    place = place_inside(path, folder)
    # What lies there may be exchanged for a link after it was looked at: that is not followed either.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if place is None:
            raise OSError("it is a link that leaves the folder")
        with open(os.open(place, flags), "rb") as source, target.open("xb") as copy:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise OSError("it is no ordinary file")
            shutil.copyfileobj(source, copy, 1 << 20)
    except OSError as error:
        raise CheckpointError(
            f"{path} was to be copied along with the weights, and could not be: {error.strerror or error}; is it still "
            "there, and a file of that folder?"
        ) from error
