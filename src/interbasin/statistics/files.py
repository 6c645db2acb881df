"""Statistics in files, so that a run can stop and go on: ``moments.safetensors`` and ``moments.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from interbasin.errors import FileError
from interbasin.statistics.accumulation import Accumulator, Side, named_sides
from interbasin.storage import new_folder, read_record, write_record

FORMAT, VERSION, NAME = "moments", 1, "moments"
HOLDS = ("moments",)


def save_accumulator(
    state: Accumulator, folder: str | os.PathLike[str], *, force: bool = False, notes: Mapping[str, Any] | None = None
) -> None:
    """Write the sums to ``folder``, whole or not at all; ``notes`` are kept beside them."""
    with new_folder(folder, HOLDS, force=force) as temporary:
        write_into(temporary, state, notes)


def write_into(folder: Path, state: Accumulator, notes: Mapping[str, Any] | None = None) -> None:
    """Write the sums into a folder that is being filled."""
    document = {
        "count": state.count,
        "batches": state.batches,
        "precision": state.precision,
        "grams": state.grams,
        "sources": list(state.sources),
        "targets": list(state.targets),
        "notes": dict(notes or {}),
    }
    tensors = dict(named_sides(state.sources, "source")) | dict(named_sides(state.targets, "target"))
    for i, source in enumerate(state.sources):
        for j, target in enumerate(state.targets):
            tensors[f"cross.{i}.{j}"] = state.crosses[source, target]
    write_record(folder, NAME, FORMAT, VERSION, document, tensors)


def load_accumulator(folder: str | os.PathLike[str]) -> tuple[Accumulator, dict[str, Any]]:
    """The sums that were saved to ``folder``, exactly, and the notes beside them."""
    document, tensors = read_record(folder, NAME, FORMAT, VERSION)
    try:
        state = restored(document, tensors)
        notes = dict(document["notes"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"The statistics in {folder} are damaged ({error}); copy the folder again or collect them anew."
        ) from error
    return state, notes


def restored(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Accumulator:
    """The sums that a document and its tensors tell of.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: if they do not fit together.
    """
    grams, count, batches = bool(document["grams"]), int(document["count"]), int(document["batches"])
    if count < 0 or batches < 0 or (count == 0) != (not document["sources"]) or (count == 0) != (batches == 0):
        raise ValueError(f"{count} rows in {batches} batches of {len(document['sources'])} source layers")
    odd = next((name for name, tensor in tensors.items() if not tensor.is_floating_point()), None)
    if odd is not None or count >= 2**63:
        raise ValueError(f"{count} rows" if odd is None else f"{odd} is of {tensors[odd].dtype}")
    sources = {name: _side(tensors, f"source.{i}", grams) for i, name in enumerate(document["sources"])}
    targets = {name: _side(tensors, f"target.{i}", grams) for i, name in enumerate(document["targets"])}
    crosses = {}
    for i, (source, x) in enumerate(sources.items()):
        for j, (target, y) in enumerate(targets.items()):
            cross = crosses[source, target] = tensors[f"cross.{i}.{j}"]
            if cross.shape != (y.width, x.width):
                raise ValueError(f"cross.{i}.{j} has shape {tuple(cross.shape)}, expected {(y.width, x.width)}")
    return Accumulator(grams, count, batches, float(document["precision"]), sources, targets, crosses)


def _side(tensors: Mapping[str, Tensor], prefix: str, gram: bool) -> Side:
    side = Side(tensors[f"{prefix}.origin"], tensors[f"{prefix}.total"], tensors[f"{prefix}.square"])
    expected = (side.width, side.width) if gram else (side.width,)
    if side.origin.ndim != 1 or side.total.shape != (side.width,) or side.square.shape != expected:
        raise ValueError(
            f"{prefix} holds shapes {tuple(side.total.shape)} and {tuple(side.square.shape)} for width {side.width}"
        )
    return side
