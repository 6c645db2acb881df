"""The job: network A in the coordinates of network B."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from interbasin.activations.choose import standing
from interbasin.batch_norm import has_batch_norm, reset_batch_norm
from interbasin.batches import WithoutLabels, as_batches, describe_size, require_reiterable, split_batch
from interbasin.errors import DataError, WiringError
from interbasin.evaluate import Barrier, alignment_error, barrier, distance, self_change
from interbasin.evaluate.scores import Loss
from interbasin.evaluate.self_change import round_off
from interbasin.jobs.rebasin.comparing import common_wiring, is_folded, require_same_tensors
from interbasin.jobs.rebasin.finetuning import finetuned
from interbasin.jobs.rebasin.methods import chosen
from interbasin.jobs.rebasin.numbers import require_counts, require_sizes
from interbasin.jobs.rebasin.reach import kept_exact, nothing_moves
from interbasin.jobs.rebasin.task import Matched, Options, Task
from interbasin.randomness import generator_of
from interbasin.text import plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry
from interbasin.wiring.check import difference
from interbasin.wiring.folding import fold_norms

__all__ = ["Rebasin", "rebasin"]

COLLAPSE = 0.1  # share of right answers that an aligned network may lose without a word


@dataclass(frozen=True)
class Rebasin:
    """What re-basin gives.

    Attributes:
        model: The source in the target's coordinates (and fine-tuned, where that was asked).
        alignment: The maps it went through.
        metrics: Flat, JSON-able: ``distance_before``, ``distance_after``, ``objective``, ``exact``, ``converged``,
            ``output_change`` (the largest, on the inputs, relative to the largest output); with data
            ``alignment_error.<space>``; with labels ``delta_loss_self`` and ``delta_accuracy_self``.
        target: The network whose coordinates they are: the given one, or it with its norms folded.
        path: The objective on the way, the first before anything moved.
        runs: The objective of every restart.
        notes: What a user should know.
        curves: The way to the target without alignment, with it, and after fine-tuning, where ``points`` were asked.
        request: What was asked, defaults filled in.
        timings: Seconds by what they were spent on.
    """

    model: nn.Module
    alignment: Alignment
    metrics: Mapping[str, float]
    target: nn.Module
    path: tuple[float, ...]
    runs: tuple[float, ...]
    notes: tuple[str, ...]
    curves: Mapping[str, Barrier] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the outcome folder: the aligned checkpoint, the alignment, metrics and plots."""
        from interbasin.jobs.rebasin.leaving import leave

        leave(self, folder, force=force)

    def __repr__(self) -> str:
        told = ("distance_before", "distance_after", "delta_accuracy_self", "barrier_none", "barrier_original")
        figures = [f"{name}={self.metrics[name]:.4g}" for name in told if name in self.metrics]
        kind = "exact" if self.metrics.get("exact") else "approximate"
        how = [str(self.request[name]) for name in ("method", "variant") if name in self.request]
        notes = [plural(len(self.notes), "note")] if self.notes else []
        return f"Rebasin({type(self.model).__name__}, {', '.join([*how, kind, *figures, *notes])})"


def rebasin(
    source: nn.Module,
    target: nn.Module,
    inputs: Any = None,
    method: str = "procrustes-weights",
    variant: str | None = None,
    data: Any = None,
    loss: Loss | None = None,
    finetune: int = 0,
    seed: int = 0,
    *,
    reach: str = "auto",
    stay_in_class: bool = True,
    restarts: int = 1,
    sweeps: int = 100,
    tolerance: float = 1e-6,
    centered: bool = True,
    epochs: int = 5,
    rate: float = 1e-4,
    reset: Any = True,
    test: Any = None,
    points: int = 0,
    progress: Callable[[str], object] | None = None,
) -> Rebasin:
    """Put the source into the target's coordinates, so that the two interpolate and merge.

    Args:
        source: The network to move. It stays as it is; the result is a new one.
        target: A network of the same architecture. It stays as it is.
        inputs: One batch to trace with: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
            By default the first batch of the data.
        method: ``"permutation-weights"``, ``"permutation-activations"``, ``"procrustes-weights"``,
            ``"procrustes-activations"``, ``"procrustes-weights+activations"``, ``"stiefel"`` or
            ``"straight-through"``; `interbasin.jobs.rebasin.METHODS` tells them apart.
        variant: Of the method; ``None`` for its default.
        data: Batches to look at, for methods that look at activations, for fine-tuning and for measures: anything that
            can be iterated over more than once. Batches with labels are pairs (inputs, labels).
        loss: Of outputs and labels; by default cross-entropy.
        finetune: Epochs of fine-tuning after alignment; the paper takes 2.
        seed: Of all that is drawn at random.
        reach: ``"exact"``: only maps that leave the function as it is. ``"orthogonal"``: orthogonal maps everywhere,
            approximate where the network does not allow them. ``"auto"``: what the method is known for; beyond the
            exact groups only in networks that have no exact rotation at all, as attention has, and in spaces without
            gains, as norms have. ``notes`` say where that kept a method to exact maps.
        stay_in_class: Keep the architecture as it is. If False, norms are folded first, in both networks where they
            are not yet, so that residual streams move by orthogonal maps; ``target`` of the result is then the folded
            target.
        restarts: Runs of weight matching in all, from different starts; the best is kept.
        sweeps: Sweeps at most; of a descent, tens of steps.
        tolerance: A sweep that gains less than this share of the objective is the last.
        centered: Whether activations are matched about their means.
        epochs: Passes of the straight-through method over the data.
        rate: Learning rate of fine-tuning.
        reset: Where networks have batch norms, their running statistics are estimated anew: at every point of a
            barrier between its ends, which keep their own, and in the aligned network if its maps are approximate.
            True: on ``data``, where they are given; batches: on those; False: not at all, so that statistics are
            interpolated like weights. ``notes`` and ``request`` tell what was done.
        test: Data to measure on; by default ``data``.
        points: Also measure the barrier over so many points, on ``test``, without alignment and with it: metrics
            ``barrier``, ``barrier_original`` and ``barrier_none``.
        progress: Called with a line of text as the work goes on.

    Raises:
        WiringError: if the networks cannot be traced, or are not of one architecture.
        ShapeError: if they are of different widths.
        DataError: if a method needs data that were not given, or a number is none that can be used.
        UnknownNameError: for a method, variant or reach that does not exist.

    Example:
        >>> import torch
        >>> from interbasin import carry, wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> inputs = torch.randn(5, 4)
        >>> other = carry(net, wire(net, inputs).sample(seed=1))
        >>> rebasin(other, net, inputs, method="permutation-weights").metrics["distance_after"]
        0.0
    """
    _require_networks(source, target)
    if points == 1:
        raise DataError("Asked for a barrier over 1 point; give at least two, the ends, or 0 for none.")
    require_counts(finetune=finetune, points=points, restarts=restarts, sweeps=sweeps, epochs=epochs)
    require_sizes(tolerance=tolerance, rate=rate)
    generator_of(seed)  # which refuses what is no seed, before long work
    require_reiterable(data, "Re-basin")
    require_reiterable(reset, "Re-basin with reset=")
    first = None if data is None else next(iter(as_batches(data, 128)), None)
    if data is not None and first is None:
        raise DataError("The data hold no batch at all; give some, or leave data= out.")
    has_labels = loss is not None or (first is not None and split_batch(first)[1] is not None)
    found, taken = chosen(method, variant, has_data=data is not None, has_labels=has_labels)
    for asked, what in ((finetune, "Fine-tuning"), (points, "A barrier")):
        if asked and (data is None or not has_labels):
            raise DataError(f"{what} needs data with labels; give batches that are pairs (inputs, labels).")
    if inputs is None:
        if first is None:
            raise DataError("Re-basin traces the networks on one batch; give inputs=, or data to take it from.")
        inputs = split_batch(first)[0]
    if stay_in_class or is_folded(source) is is_folded(target):
        require_same_tensors(source, target)
    if not stay_in_class:
        source, target = (one if is_folded(one) else fold_norms(one, inputs) for one in (source, target))
        require_same_tensors(source, target)
    timings: dict[str, float] = {}
    with _timed(timings, "wire"):
        wiring = common_wiring(source, target, inputs)
    options = Options(reach, restarts, sweeps, tolerance, centered, epochs)
    task = Task(
        source,
        target,
        wiring,
        data=WithoutLabels(data) if data is not None and method != "straight-through" else data,
        loss=loss,
        seed=seed,
        options=options,
        report=progress,
    )
    with _timed(timings, "match"):
        matched = found.find(task, taken)
    alignment = Alignment(wiring, matched.maps)
    with _timed(timings, "carry"):
        model = carry(source, alignment)
        changed = _change(source, model, alignment, inputs)
    notes = [*matched.notes, *(kept_exact(wiring, reach) if found.turns else ()), *nothing_moves(wiring)]
    resets = _resets(reset, data) if has_batch_norm(model) else None
    if not alignment.is_exact:
        notes.append("The maps are approximate: the aligned network is not the same function as the source.")
        if resets is not None:
            model = reset_batch_norm(model, resets)
    measure_on = data if test is None else test
    metrics = {"output_change": changed}
    with _timed(timings, "measure"):
        metrics |= _measured(task, matched, taken, alignment, model, measure_on, loss, has_labels)
    notes += _collapse(metrics)
    if has_batch_norm(model):
        used = None if resets is None else describe_size(data if reset is True else reset)
        notes += _about_statistics(used, reset is True, not alignment.is_exact, bool(points))
    curves: dict[str, Barrier] = {}

    def walk(name: str, start: nn.Module) -> Barrier:
        task.tell(f"barrier: {name}")
        ends = None if start is source else (source, target)
        with _timed(timings, "barrier"):
            curves[name] = barrier(start, target, measure_on, loss, points=points, ends=ends, reset=resets)
        return curves[name]

    if points:
        metrics["barrier_none"] = walk("none", source).metrics["barrier"]
        metrics |= walk(method, model).metrics
    if finetune:
        with _timed(timings, "fine-tune"):
            model = finetuned(model, data, loss, epochs=finetune, rate=rate, report=progress)
        tuned = dict(self_change(source, model, measure_on, loss).metrics)
        if points:
            tuned |= walk(f"{method}, fine-tuned", model).metrics
        metrics |= {f"{name}_finetuned": value for name, value in tuned.items()}
    request = {
        "method": method,
        "variant": taken,
        "reach": reach,
        "stay_in_class": stay_in_class,
        "restarts": restarts,
        "sweeps": sweeps,
        "tolerance": tolerance,
        "centered": centered,
        "epochs": epochs,
        "finetune": finetune,
        "rate": rate,
        "reset": resets is not None,
        "points": points,
        "seed": seed,
    }
    return Rebasin(
        model, alignment, metrics, target, matched.path, matched.runs, tuple(notes), curves, request, timings
    )


@contextmanager
def _timed(timings: dict[str, float], what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[what] = timings.get(what, 0.0) + time.perf_counter() - start


def _change(source: nn.Module, aligned: nn.Module, alignment: Alignment, inputs: Any) -> float:
    """How much the outputs changed; for exact maps, nothing beyond rounding.

    Raises:
        WiringError: if exact maps changed the function.
    """
    change = difference(source, aligned, inputs)
    allowed = 10 * round_off(source)
    if alignment.is_exact and not change <= allowed:
        raise WiringError(
            f"The maps that were found are exact, but the aligned network's outputs differ by {change:.1e} of their "
            f"size from the source's (up to {allowed:.1e} would be rounding): the wiring of {type(source).__name__} is "
            "wrong, or it computes at the edge of its precision. Look at wire(model, inputs).check(model, inputs), try "
            "the networks in float64, and please report it."
        )
    return change


def _measured(
    task: Task,
    matched: Matched,
    variant: str,
    alignment: Alignment,
    model: nn.Module,
    data: Any,
    loss: Loss | None,
    labels: bool,
) -> dict[str, float]:
    metrics = {
        "distance_before": distance(task.source, task.target)["distance"],
        "distance_after": distance(model, task.target)["distance"],
        "objective": float(matched.objective),
        "exact": float(alignment.is_exact),
        "converged": float(matched.converged),
    }
    if data is None:
        return metrics
    at: Literal["pre", "post"] = "pre" if variant == "pre" else "post"
    if alignment.maps.keys() & standing(task.wiring, at).keys():
        errors = alignment_error(task.source, task.target, alignment, data, at=at).metrics
        metrics |= {name: value for name, value in errors.items() if math.isfinite(value)}
    if labels:
        metrics |= self_change(task.source, model, data, loss, alignment=alignment).metrics
    return metrics


def _resets(reset: Any, data: Any) -> WithoutLabels | None:
    """What statistics of batch norms are estimated on."""
    if reset is False or reset is None or (reset is True and data is None):
        return None
    return WithoutLabels(data if reset is True else reset)


def _about_statistics(used: str | None, on_data: bool, aligned: bool, points: bool) -> list[str]:
    """Figures of networks with batch norms mean nothing to one who does not know whose statistics they stand on."""
    if not points and not (used and aligned):
        return []
    if used is None:
        return [
            "The networks have batch norms whose running statistics were interpolated like weights at every point of "
            "the barrier; networks in between do badly for that alone."
        ]
    where = ["in the aligned network"] if aligned else []
    where += ["at every point of the barrier between its ends, which keep their own"] if points else []
    return [
        f"The running statistics of batch norms were estimated anew {' and '.join(where)}, on "
        f"{used}{' of the data that maps were found with' if on_data else ''}; a merge has such figures only if its "
        "statistics are reset too (reset= of merge)."
    ]


def _collapse(metrics: Mapping[str, float]) -> list[str]:
    """A word where the aligned network is no longer of use by itself: a low barrier beside it means nothing."""
    lost = -metrics.get("delta_accuracy_self", 0.0)
    if not lost > COLLAPSE:
        return []
    return [
        f"The aligned network's accuracy is {100 * lost:.1f} points below the source's: these maps change the function "
        "too much. Judge by barrier_original, and try reach='exact', another method or fine-tuning (finetune=2)."
    ]


def _require_networks(source: object, target: object) -> None:
    for network, name in ((source, "source"), (target, "target")):
        if not isinstance(network, nn.Module):
            raise WiringError(f"The {name} of re-basin is a network, found a {type(network).__name__}; give a module.")
