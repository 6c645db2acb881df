r"""How near the target comes to tuned A on inputs that nothing was fitted on: no labels are needed.

Where outputs are shared, the measure of an input is the divergence of the target's answer from tuned A's,
:math:`\mathrm{KL}(A_{\mathrm{tuned}} \| B)` of the logits, or the squared distance of outputs that are no logits.
Where each network has outputs of its own, it is the squared distance in the last space that both show, between the
target's activations and tuned A's in the target's coordinates. The *effect explained* is the share of that measure
which is gone: :math:`1 - \sum d(B_{\mathrm{new}}) / \sum d(B)`, 0 for the target as it was and 1 for tuned A's answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from interbasin.activations import Tokens
from interbasin.activations.pairing import Masks, masks_of
from interbasin.activations.places import Reading, choose_reading
from interbasin.activations.tokens import pool_tokens
from interbasin.batches import (
    WithoutLabels,
    device_of,
    inputs_in,
    outputs_of,
)
from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Interval
from interbasin.fit.polar import polar
from interbasin.jobs.transport.bases import Pair
from interbasin.jobs.transport.rows import Watcher, pair_rows, reading_at
from interbasin.jobs.transport.task import Task
from interbasin.jobs.transport.theseus.rules import SecondMoments
from interbasin.text import one_line
from interbasin.wiring.trace.calls import output_tensors

DRAWS = 1000


class Judge:
    """Compares networks with tuned A on held-out inputs.

    Args:
        task: The bases, tuned A, and how outputs become logits.
        held: Inputs that nothing is fitted on.
    """

    def __init__(self, task: Task, held: Any) -> None:
        self.task, self.held = task.as_given, WithoutLabels(held)

    @cached_property
    def before(self) -> np.ndarray[Any, Any]:
        """The measure of the target as it is."""
        losses = self.losses(self.task.bases.target)
        if not np.isfinite(losses).all():
            raise DataError(
                f"For {int((~np.isfinite(losses)).sum())} of {len(losses)} held-out inputs the answers of the target "
                "or of the tuned source hold NaN or infinity; repair the network, or leave these inputs out."
            )
        return losses

    @cached_property
    def unit(self) -> str:
        """What distances of answers are measured in."""
        inputs = self.held.first()
        with torch.no_grad():
            answer = _logits(outputs_of(self.task.tuned, inputs, 0), self.task.readout, inputs_in(inputs))
        return "squares" if answer is None else "nats"

    def losses(self, model: nn.Module) -> np.ndarray[Any, Any]:
        """The measure of a network, one value per input."""
        compare = self._by_outputs if self.task.bases.shares_outputs else self._by_last_space
        values = [compare(model, inputs, number) for number, inputs in enumerate(self.held)]
        if not values:
            raise DataError(
                "No input is left to judge by: too few were given to hold some out; give four at least, better some "
                "hundreds."
            )
        losses = np.concatenate([value.double().cpu().numpy() for value in values])
        # A network whose answers are no numbers is as far away as can be.
        return np.where(np.isnan(losses), np.inf, losses)

    def changed_answers(self, model: nn.Module) -> float | None:
        """The share of answers (the likeliest class, token by token) that are not tuned A's; None without logits."""
        changed = total = 0.0
        for number, inputs in enumerate(self.held):
            count = inputs_in(inputs)
            with torch.no_grad():
                networks = (model, self.task.tuned)
                logits = [_logits(outputs_of(each, inputs, number), self.task.readout, count) for each in networks]
            if logits[0] is None or logits[1] is None:
                return None
            differ = (logits[0].argmax(-1) != logits[1].argmax(-1)).double()
            masks = masks_of(inputs, self.task.options.mask, device_of(model))
            counts = None if masks is None or differ.ndim < 2 else masks.fitting("", differ.shape)
            weights = torch.ones_like(differ) if counts is None else counts.reshape(differ.shape).to(differ)
            changed, total = changed + float((differ * weights).sum()), total + float(weights.sum())
        return changed / total if total else None

    # ------------------------------------------------------------------ two measures

    def _by_outputs(self, model: nn.Module, inputs: Any, number: int) -> Tensor:
        # Not inference_mode: a readout may keep tensors that it makes here, and gradients may meet them later.
        with torch.no_grad():
            ours, theirs = (outputs_of(network, inputs, number) for network in (model, self.task.tuned))
            masks = masks_of(inputs, self.task.options.mask, device_of(model))
            return output_distance(ours, theirs, self.task.readout, inputs_in(inputs), masks)

    def _by_last_space(self, model: nn.Module, inputs: Any, number: int) -> Tensor:
        place, goal = self.last
        (theirs, ours), counts = place.rows(self.task, (self.task.tuned, model), inputs)
        return _mean_over_tokens((ours - goal(theirs)).square().mean(-1), len(ours), counts)

    @cached_property
    def last(self) -> tuple[Place, Callable[[Tensor], Tensor]]:
        """The last place that both networks show, and tuned A's rows there in the target's coordinates."""
        place = last_place(self.task)
        moments = self.task.moments[place.pair]
        second_moments = SecondMoments.of(moments, centered=True)
        matrix = second_moments.rms_ratio * polar(second_moments.cross).factor.double()
        return place, lambda rows: moments.mean_target + (rows - moments.mean_source) @ matrix.mT


def output_distance(
    ours: Any, theirs: Any, readout: Callable[[Any], Tensor] | None, count: int, masks: Masks | None = None
) -> Tensor:
    """How far answers are from those of tuned A, one value per input: a divergence of logits, or squares.

    Of answers that come token by token, padding does not count.
    """
    logits = [_logits(outputs, readout, count) for outputs in (ours, theirs)]
    if logits[0] is not None and logits[1] is not None:
        if logits[0].shape != logits[1].shape:
            raise _shape_error(tuple(logits[0].shape), tuple(logits[1].shape))
        new, tuned = (log_softmax(each.double(), -1) for each in logits if each is not None)
        # Classes that tuned A excludes (logits of minus infinity) have no part in the divergence.
        terms = torch.where(tuned == -math.inf, 0, tuned.exp() * (tuned - new))
        return _mean_over_tokens(terms.sum(-1), count, _counts(masks, terms.shape[:-1]))
    tensors = [output_tensors(outputs) for outputs in (ours, theirs)]
    if not tensors[0] or not tensors[1] or tensors[0][0].shape != tensors[1][0].shape:
        raise _shape_error(*(tuple(each[0].shape) if each else "nothing" for each in tensors))
    squares = (tensors[0][0].double() - tensors[1][0].double()).square()
    values = squares.mean(-1) if squares.ndim > 1 else squares
    return _mean_over_tokens(values, count, _counts(masks, values.shape))


def _shape_error(ours: object, theirs: object) -> DataError:
    return DataError(
        f"Outputs were taken as shared, and the networks put out {ours} and {theirs}; say outputs='own', or give "
        "readout=."
    )


def _counts(masks: Masks | None, shape: torch.Size, module: str = "") -> Tensor | None:
    """Which of the tokens that are seen at a module, or in the outputs, are no padding; None: all."""
    return None if masks is None or len(shape) < 2 else masks.fitting(module, shape)


def _mean_over_tokens(values: Tensor, count: int, counts: Tensor | None) -> Tensor:
    values = values.reshape(count, -1)
    if counts is None:
        return values.mean(1)
    weights = counts.to(values).reshape(count, -1)
    return torch.where(weights > 0, values, 0).sum(1) / weights.sum(1).clamp(min=1)


def _logits(outputs: Any, readout: Callable[[Any], Tensor] | None, count: int) -> Tensor | None:
    if readout is None:
        named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
        return named if isinstance(named, Tensor) else None
    try:
        logits = readout(outputs)
    # Whatever a function of the user's does, it is not our error to explain.
    except Exception as error:
        raise DataError(
            f"readout was called with the network's outputs ({type(outputs).__name__}) and failed "
            f"({type(error).__name__}: {one_line(error)}); give a function from outputs to logits."
        ) from error
    is_right = isinstance(logits, Tensor) and logits.is_floating_point() and logits.ndim > 1
    if not is_right or len(logits) != count or not logits.shape[-1]:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise DataError(
            f"readout gave {shape} for {count} inputs; it has to give logits, a tensor of shape (inputs, ..., classes)."
        )
    return logits


def relative_gain(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], seed: int = 0) -> Interval:
    """``1 - sum(after) / sum(before)``, with the bounds of a paired bootstrap over the inputs."""
    total = float(before.sum())
    if total <= 0:
        return Interval(0.0, 0.0, 0.0)
    if not np.isfinite(after).all():
        return Interval(-math.inf, -math.inf, -math.inf)
    draws = np.random.default_rng(seed).integers(len(before), size=(DRAWS, len(before)))
    sums = before[draws].sum(1)
    ratios = 1 - after[draws].sum(1) / np.where(sums > 0, sums, np.inf)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Interval(1 - float(after.sum()) / total, float(low), float(high))


# ---------------------------------------------------------------------- whether two networks are akin


@dataclass(frozen=True)
class Place:
    """Where both networks show a pair of spaces that was recorded."""

    pair: Pair
    readings: tuple[Reading, Reading]

    def rows(
        self, task: Task, networks: tuple[nn.Module, nn.Module], inputs: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """``(inputs, positions..., width)`` of a source and of a target, paired, in float64, and which rows count.

        Where tokens do not pair one by one, each network's own padding is left out before they are averaged.
        """
        tokens = task.options.tokens
        how = Tokens(tokens) if isinstance(tokens, str) else tokens  # type: ignore[arg-type]
        shown, counts = [], []
        for network, reading in zip(networks, self.readings, strict=True):
            rows = Watcher(network, [reading]).run(inputs)[reading].double()
            masks = masks_of(inputs, task.options.mask, device_of(network))
            shown.append(rows)
            counts.append(_counts(masks, rows.shape[:-1], reading.place.module))
        if shown[0].shape[:-1] == shown[1].shape[:-1]:
            return shown, counts[1]
        if how is not None and how.mode == "mean":
            return [pool_tokens(rows, "mean", mask)[:, None] for rows, mask in zip(shown, counts, strict=True)], None
        return pair_rows(shown, (0, 1), how), None


def last_place(task: Task) -> Place:
    """The last place, in the order of the target's data, where both networks show a space of their own."""
    order = list(task.bases.wirings[1].activations)
    places_by_order: dict[int, Place] = {}
    for pair in (pair for places in task.needed_maps.plain.values() for pair in places):
        readings = tuple(
            reading_at(name) if ":" in name else choose_reading(wiring, name)
            for name, wiring in zip(pair, task.bases.wirings, strict=True)
        )
        at = str(readings[1].place)
        places_by_order[order.index(at) if at in order else -1] = Place(pair, (readings[0], readings[1]))
    if not places_by_order:
        raise DataError("The two networks show no space in common, so that nothing can be measured between them.")
    return places_by_order[max(places_by_order)]
