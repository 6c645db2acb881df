r"""The alignment error of a space: how far the mapped activations of one network are from those of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from interbasin.activations import record, standing
from interbasin.batches import BATCH_SIZE, Progress, WithoutLabels
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.measured import Measured
from interbasin.maps import Map
from interbasin.statistics import PairedMoments, mean_cosine, residual_energy
from interbasin.wiring import Alignment, Wiring
from interbasin.wiring.alignment import whole_map
from interbasin.wiring.trace.copying import copy_for_evaluation

# The names of metrics -> the fields of a `SpaceError`.
MEASURES = {
    "alignment_error": "absolute",
    "alignment_error_relative": "relative",
    "cosine_before": "cosine_before",
    "cosine_after": "cosine_after",
}


@dataclass(frozen=True)
class SpaceError:
    """The error of one space.

    Attributes:
        absolute: The mean square of what mapped rows miss.
        relative: The same, divided by the mean square of the target's rows; None where those are all zero.
        cosine_before, cosine_after: Between paired rows about their means, weighted by their energies, without the map
            and with it; None where rows do not vary or widths differ.
        count: How many rows there were.
    """

    absolute: float
    relative: float | None
    cosine_before: float | None
    cosine_after: float | None
    count: int


@dataclass(frozen=True)
class AlignmentError(Measured):
    """Errors by space; ``metrics`` hold ``alignment_error.<space>`` and the others under such names."""

    spaces: Mapping[str, SpaceError]


def alignment_error(
    source: nn.Module,
    target: nn.Module,
    alignment: Alignment,
    data: Any,
    *,
    spaces: Sequence[str] | None = None,
    wiring: Wiring | None = None,
    at: Literal["post", "pre"] = "post",
    pool: Literal["mean", "first", "last"] | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress = None,
) -> AlignmentError:
    r""":math:`E_x \|M h_A(x) - h_B(x)\|^2` in each space, from statistics that stream; nothing is stored.

    As a difference of sums it cannot show less than the rounding of their products: about 1e-7 of the target's energy
    in float32, 1e-16 in float64.

    Args:
        source: The network before alignment.
        target: The network it was aligned to.
        alignment: The maps from one to the other.
        data: Batches to iterate over, labels and all if they have some, or a tensor to be cut into batches.
        spaces: Which; by default all that have a map and stand somewhere whole.
        wiring: Of the target, if it is of another architecture than the source.
        at: ``"post"``: where a space is read, non-linearities and all; ``"pre"``: where it is written.
        pool: One row per input instead of one per token.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches are done.

    Returns:
        ``alignment_error.<space>``, ``alignment_error_relative.<space>`` (divided by the energy of the target's rows),
        ``cosine_before.<space>`` and ``cosine_after.<space>``.

    Raises:
        DataError: if there are no data, or no space to measure.
        UnknownNameError: if there is no such space.
    """
    standing_in = standing(alignment.wiring, at)
    names = [name for name in alignment.maps if name in standing_in] if spaces is None else list(spaces)
    if not names:
        raise DataError("No space of the alignment stands anywhere whole, so none can be measured; align other spaces.")
    maps = {name: whole_map(alignment, name) for name in names}
    grams = not all(map.is_isometric and map.is_exact_inverse for map in maps.values())
    recording = record(
        (copy_for_evaluation(source), copy_for_evaluation(target)),
        WithoutLabels(data, batch_size),
        names,
        wirings=(alignment.wiring, alignment.wiring if wiring is None else wiring),
        at=at,
        grams=grams,
        pool=pool,
        progress=progress,
    )
    errors = {name: _measure_space(recording.moments[name, name], maps[name]) for name in names}
    metrics = {
        f"{measure}.{name}": value
        for name, error in errors.items()
        for measure, field in MEASURES.items()
        if (value := getattr(error, field)) is not None
    }
    return AlignmentError(metrics, errors)


def _measure_space(moments: PairedMoments, map: Map) -> SpaceError:
    missed = residual_energy(moments, map, centered=False)
    energy = float(moments.squares_target(centered=False).sum())
    return SpaceError(
        absolute=missed / moments.count,
        relative=missed / energy if energy else None,
        cosine_before=_cosine(moments, None),
        cosine_after=_cosine(moments, map),
        count=moments.count,
    )


def _cosine(moments: PairedMoments, map: Map | None) -> float | None:
    try:
        return mean_cosine(moments, map)
    except (DataError, ShapeError):  # rows that do not vary, or widths that differ
        return None
