"""All measures of two networks of one architecture at once, and the folder that they are written to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from interbasin.activations import standing
from interbasin.batch_norm import has_batch_norm
from interbasin.batches import WithoutLabels, as_batches, describe_size, require_reiterable, split_batch
from interbasin.errors import InterbasinError, WiringError
from interbasin.evaluate.alignment_error import MEASURES, AlignmentError, alignment_error
from interbasin.evaluate.barrier import Barrier, barrier
from interbasin.evaluate.cycle import Aligned, cycle
from interbasin.evaluate.distance import distance
from interbasin.evaluate.layers import Coordinates, LayerSimilarity, cka, pca
from interbasin.evaluate.performance import Loss
from interbasin.outcome import Draft, Result, Stages
from interbasin.outcome.plots import bar_chart, heat_map, line_chart, scatter_chart
from interbasin.wiring import Alignment, Wiring, wire
from interbasin.wiring.trace.preflight import named_tensors

PICTURES = 4  # spaces whose activations are drawn along their principal directions


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(Result):
    """The measures of two networks; ``metrics`` hold all figures by name.

    Attributes:
        barrier: The curve between them; None without labels.
        errors: The alignment error by space; None where the networks cannot be wired.
        similarity: CKA of all layers of the one with all of the other; likewise.
        coordinates: Activations of a few spaces along their principal directions.
    """

    barrier: Barrier | None = None
    errors: AlignmentError | None = None
    similarity: LayerSimilarity | None = None
    coordinates: Mapping[str, Coordinates] = field(default_factory=dict)

    job = "evaluate"
    headline = ("barrier", "barrier_original", "distance")

    def write(self, draft: Draft) -> None:
        """Add the curves and matrices as tables, and plots of them."""
        self._draw_barrier(draft)
        self._draw_errors(draft)
        self._draw_similarity(draft)
        self._draw_coordinates(draft)

    def _draw_barrier(self, draft: Draft) -> None:
        if self.barrier is None:
            return
        curve = self.barrier.curve
        draft.table("path", curve)
        t, note = curve["t"], f"{self.barrier.path}, {len(curve['t'])} points, barrier {float(self.barrier):.4g}"
        for measure in ("loss", "accuracy"):
            first, last = (getattr(end, measure) for end in self.barrier.ends)
            if measure in curve and first is not None and last is not None:
                chord = [(1 - point) * first + point * last for point in t]
                chart = line_chart(
                    {"between the networks": (t, curve[measure]), "chord": (t, chord)},
                    title=f"{measure.capitalize()} on the way from A to B",
                    x_label="t (0 = A, 1 = B)",
                    y_label=measure,
                    note=note if measure == "loss" else self.barrier.path,
                )
                draft.plot(measure, chart)

    def _draw_errors(self, draft: Draft) -> None:
        if self.errors is None or not self.errors.spaces:
            return
        spaces = self.errors.spaces
        columns = {
            column: [math.nan if (value := getattr(error, name)) is None else float(value) for error in spaces.values()]
            for column, name in (MEASURES | {"rows": "count"}).items()
        }
        draft.table("spaces", {"space": list(spaces), **columns})
        chart = bar_chart(
            dict(zip(spaces, columns["alignment_error_relative"], strict=True)),
            title="Alignment error per space",
            x_label="relative to the energy of B's activations",
        )
        draft.plot("alignment-error", chart)

    def _draw_similarity(self, draft: Draft) -> None:
        if self.similarity is None:
            return
        rows, columns, matrix = self.similarity.sources, self.similarity.targets, self.similarity.matrix.tolist()
        table = {
            "a": [row for row in rows for _ in columns],
            "b": [column for _ in rows for column in columns],
            "cka": [value for row in matrix for value in row],
        }
        draft.table("layers", table)
        chart = heat_map(
            matrix,
            rows=rows,
            columns=columns,
            title="Similarity of layers (linear CKA)",
            x_label="layers of B",
            y_label="layers of A",
            low=0.0,
            high=1.0,
        )
        draft.plot("cka", chart)

    def _draw_coordinates(self, draft: Draft) -> None:
        for number, (space, plane) in enumerate(self.coordinates.items(), start=1):
            shares = " and ".join(f"{share:.0%}" for share in plane.explained)
            points = {network: rows.tolist() for network, rows in plane.coordinates.items()}
            table = {
                "network": [network for network, rows in points.items() for _ in rows],
                "first": [row[0] for rows in points.values() for row in rows],
                "second": [row[1] for rows in points.values() for row in rows],
            }
            draft.table(f"activations-{number}-points", table)
            chart = scatter_chart(
                points,
                title=f"Activations of space {space}",
                x_label="first principal direction",
                y_label="second",
                note=f"{shares} of the variance of all networks",
            )
            draft.plot(f"activations-{number}", chart)


def compare_networks(
    a: nn.Module,
    b: nn.Module,
    data: Any,
    loss: Loss | None = None,
    *,
    points: int = 25,
    path: str = "lerp",
    original: nn.Module | None = None,
    alignment: Alignment | None = None,
    align: Callable[[nn.Module, nn.Module], Aligned] | None = None,
    reset: Any = None,
    inputs: Any = None,
    progress: Callable[[float], object] | None = None,
) -> Comparison:
    """Barrier, distance, alignment error per space, CKA and, if asked, cycle consistency of two networks.

    Args:
        a: A network, usually aligned already. It stays as it is.
        b: One of the same architecture. It stays as it is.
        data: Batches to iterate over, more than once; those with labels are pairs (inputs, labels). Without labels, and
            without a loss of outputs alone, there is no barrier.
        loss: Of outputs and labels; by default cross-entropy.
        points: Points of the path, both ends among them.
        path: ``"lerp"`` or ``"slerp"``.
        original: What ``a`` was before it was aligned: gives ``barrier_original``, and its loss and accuracy.
        alignment: What carried ``original`` to ``a``: then errors are those of its maps, from ``original`` to ``b``.
            Without, they are those of ``a`` as it stands.
        align: For cycle consistency: ``align(source, target)``, as `interbasin.rebasin` does.
        reset: Batches to estimate the statistics of batch norms on, at every point between the ends, which keep their
            own; ``notes`` say so.
        inputs: One batch to trace with; by default the first of the data.
        progress: Called with what share is done, from 0 to 1.

    Raises:
        WiringError, ShapeError: if the networks are not of one architecture, or the alignment is of another one.
        DataError: if the data cannot be used.

    Example:
        >>> import torch
        >>> a, b = (nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
        >>> data = [(torch.randn(16, 3), torch.randint(2, (16,)))]
        >>> result = compare_networks(a, b, data, points=3)
        >>> sorted(result.metrics)[:3], len(result.barrier.t), result.similarity.matrix.shape
        (['accuracy_a', 'accuracy_b', 'alignment_error.0'], 3, torch.Size([1, 1]))
    """
    require_reiterable(data, "Evaluating two networks")
    if alignment is not None:
        _require_own_alignment(original or a, alignment)
    work = Stages(progress, 4 if align is None else 5)
    metrics: dict[str, float] = dict(distance(a, b).metrics)
    first = next(iter(as_batches(data, 128)), None)
    if inputs is None:
        inputs = WithoutLabels(data).first()
    curve: Barrier | None = None
    if loss is not None or (first is not None and split_batch(first)[1] is not None):
        with work.stage("barrier") as report:
            ends = None if original is None else (original, b)
            count = points if original is None else points + 2
            share = None if report is None else lambda done: report(min(1.0, done / max(1, count)))
            curve = barrier(a, b, data, loss, points, path, ends, reset=reset, progress=share)
        metrics |= curve.metrics
        metrics |= _ends(curve, original is not None)
    else:
        work.notes.append("The data have no labels, so no loss, accuracy or barrier was measured.")
    if curve is not None and has_batch_norm(a):
        work.notes.append(
            "The networks have batch norms whose statistics were interpolated like weights; networks in between do "
            "badly for that alone (reset= estimates them anew)."
            if reset is None
            else "The running statistics of batch norms were estimated anew at every point between the ends, on "
            f"{describe_size(reset)}; the ends keep their own, and a merge has the figures of the curve only if its "
            "statistics are reset too (reset= of merge)."
        )
    wiring = _wire(a, inputs, work)
    errors: AlignmentError | None = None
    similarity: LayerSimilarity | None = None
    coordinates: dict[str, Coordinates] = {}
    if wiring is not None:
        source, maps = (a, Alignment(wiring, {})) if alignment is None else (original or a, alignment)
        names = list(standing(maps.wiring)) if alignment is None else None
        with _attempt(work, "alignment error"):
            errors = alignment_error(source, b, maps, data, spaces=names)
            metrics |= errors.metrics
        with _attempt(work, "CKA"):
            similarity = cka(a, b, data, wirings=(wiring, wiring), pool="mean")
        with _attempt(work, "PCA"):
            coordinates = _coordinates(original, a, b, data, wiring)
    if align is not None:
        with work.stage("cycle"):
            metrics |= cycle(original or a, b, align, data if curve is not None else None, loss).metrics
    work.finish()
    request = {"points": points, "path": path, "reset": reset is not None}
    return Comparison(
        metrics=metrics,
        barrier=curve,
        errors=errors,
        similarity=similarity,
        coordinates=coordinates,
        timings=work.timings,
        notes=tuple(work.notes),
        request=request,
    )


def _require_own_alignment(network: nn.Module, alignment: Alignment) -> None:
    own = named_tensors(network)
    for name, tensor in alignment.wiring.tensors.items():
        if name not in own or tuple(own[name].shape) != tuple(tensor.shape):
            own_shape = f"has it in shape {tuple(own[name].shape)}" if name in own else "does not have it"
            raise WiringError(
                f"The alignment moves {name} in shape {tuple(tensor.shape)}, and {type(network).__name__} {own_shape}; "
                "give the network that was aligned as the original, or leave alignment= out."
            )


def _ends(curve: Barrier, is_original: bool) -> dict[str, float]:
    """Loss and accuracy of the networks themselves."""
    figures = {"loss_a": curve.loss[0], "loss_b": curve.loss[-1]}
    if curve.accuracy is not None:
        figures |= {"accuracy_a": curve.accuracy[0], "accuracy_b": curve.accuracy[-1]}
    if is_original:
        figures["loss_original"] = curve.ends[0].loss
        if curve.ends[0].accuracy is not None:
            figures["accuracy_original"] = curve.ends[0].accuracy
    return figures


def _wire(a: nn.Module, inputs: Any, work: Stages) -> Wiring | None:
    try:
        wiring = wire(a, inputs)
    except WiringError as error:
        work.notes.append(f"Spaces were not compared, because the network cannot be wired: {error}")
        return None
    if not standing(wiring):
        work.notes.append("Spaces were not compared, because none of them moves and stands somewhere whole.")
        return None
    return wiring


def _coordinates(
    original: nn.Module | None, a: nn.Module, b: nn.Module, data: Any, wiring: Wiring
) -> dict[str, Coordinates]:
    """Of a few spaces, evenly from the first to the last."""
    names = list(standing(wiring))
    count = min(PICTURES, len(names))
    chosen = [names[round(place * (len(names) - 1) / max(1, count - 1))] for place in range(count)]
    networks = {"A": a, "B": b} if original is None else {"A before": original, "A": a, "B": b}
    # A space one unit wide has no second direction.
    wide = [name for name in dict.fromkeys(chosen) if wiring.spaces[name].width > 1]
    return pca(networks, data, wide, wiring=wiring, pool="mean") if wide else {}


@contextlib.contextmanager
def _attempt(work: Stages, measure: str) -> Iterator[None]:
    """One stage of the work; where these networks do not have the measure, a note says so."""
    with work.stage(measure.lower()):
        try:
            yield
        except InterbasinError as error:
            work.notes.append(f"{measure} was not measured: {error}")
