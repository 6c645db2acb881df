"""Statistics of two files of vectors, however large, that survive an interrupt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interbasin.errors import DataError, FileError
from interbasin.statistics import PairedMoments
from interbasin.statistics.accumulation import HOLDS
from interbasin.storage import refuse_what_is_in_the_way
from interbasin.vectors.files import Vectors, default_rows_per_batch, paired_batches
from interbasin.vectors.files.base import file_fingerprint

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
        rows_per_batch: By default about 64 MiB per batch.
        keep: A folder for the statistics. They are saved there every half minute, on an interrupt and at the end; if it
            holds the statistics of the same two files already, reading goes on where it stopped.
        progress: Called with the number of rows that are done.

    Raises:
        ShapeError, DataError, FileError: as the readers and `PairedMoments.update` do; the message then says in which
        rows.
    """
    inputs = {
        side: {**file_fingerprint(file.path), "column": file.column, "rows": file.rows, "width": file.width}
        for side, file in (("source", source), ("target", target))
    }
    moments = PairedMoments(grams=grams)
    if keep is not None:
        moments = _resume(keep, inputs, moments)
    batch_rows = default_rows_per_batch(source.width, target.width) if rows_per_batch is None else rows_per_batch
    batches = paired_batches(source, target, batch_rows, start=moments.count)
    if progress is not None:
        progress(moments.count)
    saved, kept = time.monotonic(), moments.count
    try:
        for x, y in batches:
            try:
                moments.update(x, y)
            except DataError as error:
                # Statistics know no files. They count rows from the start, so these are the rows of the file.
                raise DataError(f"In {source.path} (source) and {target.path} (target): {error}") from error
            if progress is not None:
                progress(moments.count)
            if keep is not None and time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                moments.save(keep, force=True, notes={"inputs": inputs})
                saved, kept = time.monotonic(), moments.count
    finally:
        # Nothing new, nothing written: runs that only read can share a folder.
        if keep is not None and moments.count > kept:
            moments.save(keep, force=True, notes={"inputs": inputs})
    return moments


def _resume(keep: str | os.PathLike[str], inputs: dict[str, Any], empty: PairedMoments) -> PairedMoments:
    """The moments to go on from: those kept in the folder, or empty ones if there is nothing yet."""
    if not os.path.exists(os.path.join(keep, "moments.json")):
        if os.path.isdir(keep) and any(Path(keep).iterdir()):
            raise FileError(f"Asked to keep statistics in {keep}, but that folder holds other things; choose another.")
        refuse_what_is_in_the_way(keep, HOLDS, force=True)
        return empty
    moments, notes = PairedMoments.load_with_notes(keep)
    if notes.get("inputs") != inputs:
        raise DataError(
            f"The statistics in {keep} are of other files, or of files that have changed since; "
            "choose another folder, or remove it to start anew."
        )
    if empty.has_grams and not moments.has_grams:
        raise DataError(
            f"The statistics in {keep} were collected without Gram matrices, which are needed now; "
            "remove the folder to start anew."
        )
    refuse_what_is_in_the_way(keep, HOLDS, force=True)
    return moments
