"""Statistics of two files of vectors, however large, that survive an interrupt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interbasin.data.vectors import Vectors, default_rows_per_batch, paired_batches
from interbasin.errors import DataError, InterbasinError
from interbasin.statistics import PairedMoments
from interbasin.storage import is_ours

__all__ = ["moments_of_files"]

SECONDS_BETWEEN_SAVES = 30.0


def moments_of_files(
    source: Vectors,
    target: Vectors,
    *,
    grams: bool = True,
    rows_per_batch: int | None = None,
    keep: str | os.PathLike[str] | None = None,
    progress: Callable[[int], object] | None = None,
) -> PairedMoments:
    """The paired moments of two files whose rows belong together, read once and in batches.

    Args:
        source: The source's vectors.
        target: The target's vectors.
        grams: Also collect the Gram matrices.
        rows_per_batch: By default about 64 MiB a batch.
        keep: A folder for the statistics. They are saved there every half minute, on an interrupt and at the end; if it
            holds the statistics of the same two files already, reading goes on where it stopped.
        progress: Called with the number of rows that are done.

    Raises:
        ShapeError, DataError, FileError: as the readers and `PairedMoments.update` do; the message then says in which
        rows.
    """
    inputs = {"source": _fingerprint(source), "target": _fingerprint(target)}
    moments = PairedMoments(grams=grams)
    if keep is not None and Path(keep).exists() and (not Path(keep).is_dir() or any(Path(keep).iterdir())):
        moments = _resume(keep, inputs, grams)
    batch_rows = rows_per_batch or default_rows_per_batch(source.width, target.width)
    batches = paired_batches(source, target, batch_rows, start=moments.count)
    if progress is not None:
        progress(moments.count)
    saved = time.monotonic()
    try:
        for x, y in batches:
            _update(moments, x, y, source, target)
            if progress is not None:
                progress(moments.count)
            if keep is not None and time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                _save(moments, keep, inputs)
                saved = time.monotonic()
    finally:
        if keep is not None and moments.count:
            _save(moments, keep, inputs)
    return moments


def _update(moments: PairedMoments, x: Any, y: Any, source: Vectors, target: Vectors) -> None:
    first = moments.count
    try:
        moments.update(x, y)
    except DataError as error:
        # Below, nobody knows files: say where in them the batch lies.
        where = f"rows {first} to {first + len(x) - 1} of {source.path} (source) and {target.path} (target)"
        raise DataError(f"In {where}: {error}") from error


def _save(moments: PairedMoments, keep: str | os.PathLike[str], inputs: dict[str, Any]) -> None:
    moments.save(keep, force=True, notes={"inputs": inputs})


def _resume(keep: str | os.PathLike[str], inputs: dict[str, Any], grams: bool) -> PairedMoments:
    if Path(keep).is_dir() and not is_ours(Path(keep)):
        raise DataError(f"Asked to keep statistics in {keep}, but that folder holds other things; choose another.")
    moments, notes = PairedMoments.load_with_notes(keep)
    if notes.get("inputs") != inputs:
        raise DataError(
            f"The statistics in {keep} are of other files, or of files that have changed since; "
            "choose another folder, or remove it to start anew."
        )
    if grams and not moments.has_grams:
        raise DataError(
            f"The statistics in {keep} were collected without Gram matrices, which are needed now; remove the folder "
            f"to start anew."
        )
    return moments


def _fingerprint(vectors: Vectors) -> dict[str, Any]:
    try:
        status = vectors.path.stat()
    except OSError as error:
        raise InterbasinError(f"{vectors.path} cannot be read any more: {error.strerror}.") from error
    return {
        "file": vectors.path.name,
        "bytes": status.st_size,
        "modified": status.st_mtime_ns,
        "column": vectors.column,
        "rows": vectors.rows,
        "width": vectors.width,
    }
