"""Statistics of two files of vectors, however large, that survive an interrupt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interbasin.errors import DataError, FileError
from interbasin.statistics import PairedMoments
from interbasin.statistics.files import HOLDS
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
    if keep is not None:
        moments = _resume(keep, inputs, moments)
    batch_rows = default_rows_per_batch(source.width, target.width) if rows_per_batch is None else rows_per_batch
    batches = paired_batches(source, target, batch_rows, start=moments.count)
    if progress is not None:
        progress(moments.count)
    saved, kept = time.monotonic(), moments.count
    try:
        for x, y in batches:
            _update(moments, x, y, source, target)
            if progress is not None:
                progress(moments.count)
            if keep is not None and time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                _save(moments, keep, inputs)
                saved, kept = time.monotonic(), moments.count
    finally:
        # Nothing new, nothing written: runs that only read can share a folder.
        if keep is not None and moments.count > kept:
            _save(moments, keep, inputs)
    return moments


def _update(moments: PairedMoments, x: Any, y: Any, source: Vectors, target: Vectors) -> None:
    try:
        moments.update(x, y)
    except DataError as error:
        # Below, nobody knows files. Rows are counted from the start there, so they are the rows of the file.
        raise DataError(f"In {source.path} (source) and {target.path} (target): {error}") from error


def _save(moments: PairedMoments, keep: str | os.PathLike[str], inputs: dict[str, Any]) -> None:
    moments.save(keep, force=True, notes={"inputs": inputs})


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


def _fingerprint(vectors: Vectors) -> dict[str, Any]:
    return {
        **file_fingerprint(vectors.path),
        "column": vectors.column,
        "rows": vectors.rows,
        "width": vectors.width,
    }
