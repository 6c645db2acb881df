"""The job: network A in the coordinates of network B."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from interbasin.errors import DataError, WiringError
from interbasin.evaluate import Barrier, alignment_error, barrier, distance, self_change
from interbasin.evaluate.scores import Loss
from interbasin.evaluate.self_change import round_off
from interbasin.jobs.rebasin.comparing import common_wiring, require_same_tensors
from interbasin.jobs.rebasin.finetuning import finetuned
from interbasin.jobs.rebasin.methods import chosen
from interbasin.jobs.rebasin.task import Matched, Options, Task
from interbasin.networks.folding import fold_norms
from interbasin.networks.labelled import InputsOnly, parted, refuse_once_only
from interbasin.networks.normalisation import reset_batch_norm
from interbasin.networks.recording.batches import batches_of
from interbasin.networks.wiring.carrying import carry
from interbasin.networks.wiring.checking import difference
from interbasin.networks.wiring.wiring import Alignment

__all__ = ["Rebasin", "rebasin"]


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

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the outcome folder: the aligned checkpoint, the alignment, metrics and plots."""
        from interbasin.jobs.rebasin.leaving import leave

        leave(self, folder, force=force)


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
    reset: bool = True,
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
            approximate where the network does not allow them. ``"auto"``: what the method is known for; exact for
            networks with attention.
        stay_in_class: Keep the architecture as it is. If False, norms are folded first, in both networks, so that
            residual streams move by orthogonal maps; ``target`` of the result is then the folded target.
        restarts: Runs of weight matching in all, from different starts; the best is kept.
        sweeps: Sweeps at most.
        tolerance: A sweep that gains less than this share of the objective is the last.
        centered: Whether activations are matched about their means.
        epochs: Passes of the straight-through method over the data.
        rate: Learning rate of fine-tuning.
        reset: Whether running statistics of batch norms are estimated anew where maps were approximate and data given.
        test: Data to measure on; by default ``data``.
        points: Also measure the barrier over so many points, on ``test``, without alignment and with it: metrics
            ``barrier``, ``barrier_original`` and ``barrier_none``.
        progress: Called with a line of text as the work goes on.

    Raises:
        WiringError: if the networks cannot be traced, or are not of one architecture.
        ShapeError: if they are of different widths.
        DataError: if a method needs data that were not given.
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
    _require_counts(finetune=finetune, points=points, restarts=restarts, sweeps=sweeps, epochs=epochs)
    refuse_once_only(data, "Re-basin")
    first = None if data is None else next(iter(batches_of(data, 128)), None)
    if data is not None and first is None:
        raise DataError("The data hold no batch at all; give some, or leave data= out.")
    has_labels = loss is not None or (first is not None and parted(first)[1] is not None)
    found, taken = chosen(method, variant, has_data=data is not None, has_labels=has_labels)
    for asked, what in ((finetune, "Fine-tuning"), (points, "A barrier")):
        if asked and (data is None or not has_labels):
            raise DataError(f"{what} needs data with labels; give batches that are pairs (inputs, labels).")
    if inputs is None:
        if first is None:
            raise DataError("Re-basin traces the networks on one batch; give inputs=, or data to take it from.")
        inputs = parted(first)[0]
    require_same_tensors(source, target)
    if not stay_in_class:
        source, target = (fold_norms(network, inputs) for network in (source, target))
    wiring = common_wiring(source, target, inputs)
    options = Options(reach, restarts, sweeps, tolerance, centered, epochs)
    task = Task(
        source,
        target,
        wiring,
        data=InputsOnly(data) if data is not None and method != "straight-through" else data,
        loss=loss,
        seed=seed,
        options=options,
        report=progress,
    )
    matched = found.find(task, taken)
    alignment = Alignment(wiring, matched.maps)
    model = carry(source, alignment)
    changed = _change(source, model, alignment, inputs)
    notes = list(matched.notes)
    if not alignment.is_exact:
        notes.append("The maps are approximate: the aligned network is not the same function as the source.")
        if reset and data is not None and _has_batch_norm(model):
            model = reset_batch_norm(model, InputsOnly(data))
    measure_on = data if test is None else test
    metrics = {"output_change": changed}
    metrics |= _measured(task, matched, taken, alignment, model, measure_on, loss, has_labels)
    curves: dict[str, Barrier] = {}

    def walk(name: str, start: nn.Module) -> Barrier:
        task.tell(f"barrier: {name}")
        resets = InputsOnly(data) if reset and data is not None and _has_batch_norm(start) else None
        ends = None if start is source else (source, target)
        curves[name] = barrier(start, target, measure_on, loss, points=points, ends=ends, reset=resets)
        return curves[name]

    if points:
        metrics["barrier_none"] = walk("none", source).metrics["barrier"]
        metrics |= walk(method, model).metrics
    if finetune:
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
        "finetune": finetune,
        "rate": rate,
        "seed": seed,
    }
    return Rebasin(model, alignment, metrics, target, matched.path, matched.runs, tuple(notes), curves, request)


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
    errors = alignment_error(task.source, task.target, alignment, data, at=at).metrics
    metrics |= {name: value for name, value in errors.items() if math.isfinite(value)}
    if labels:
        metrics |= self_change(task.source, model, data, loss, alignment=alignment).metrics
    return metrics


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _require_networks(source: object, target: object) -> None:
    for network, name in ((source, "source"), (target, "target")):
        if not isinstance(network, nn.Module):
            raise WiringError(f"The {name} of re-basin is a network, found a {type(network).__name__}; give a module.")


def _require_counts(**counts: object) -> None:
    for name, value in counts.items():
        least = 0 if name in ("finetune", "points") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"{name} is a whole number of at least {least}, found {value!r}.")
