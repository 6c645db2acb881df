"""What methods that train share: a trial, what was fitted, supervised training after a probe, and stage 1 done once."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap
from interbasin.jobs.adapt.fine_tuning import fine_tune
from interbasin.jobs.adapt.network import TargetNetwork, in_chunks, start_head
from interbasin.jobs.adapt.setup import Setup

NORM_CHUNK = 256  # inputs whose statistics are averaged: in few batches, so that a small last one counts little


@dataclass(frozen=True)
class Trial:
    """One way to run a method, to be chosen among by held-out loss."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that was fitted.

    Attributes:
        model: Inputs -> logits or values, in evaluation mode; one with features has ``features(inputs)``.
        seconds: By stage.
        steps: Of gradients that it took, both stages together.
        looks: At stage 1, where there was one.
        stopped_at: The step at which supervised training ended early; None if it did not.
    """

    model: nn.Module
    seconds: Mapping[str, float]
    steps: int = 0
    looks: tuple[AlignmentStep, ...] = ()
    stopped_at: int | None = None


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def train_head_and_all(
    setup: Setup,
    rows: Tensor,
    trial: Trial,
    feature_map: FeatureMap,
    clock: Clock,
    *,
    is_new_body: bool = False,
    extra_steps: int = 0,
    new_parts_first: float = 0.0,
    **options: Any,
) -> Fitted:
    """A network on a feature map, its head begun with a probe, trained on labelled samples."""
    settings, task = setup.settings, setup.task
    inputs, labels = setup.samples.inputs[rows], setup.labels[rows]
    if is_new_body:
        settle_norms(feature_map, inputs)
    network = TargetNetwork(feature_map, task, setup.samples.inputs).eval()
    start_head(network, task, inputs, labels)
    factor = trial.options.get("factor", 1.0)
    rate = settings.rate * factor
    body_rate = rate if is_new_body or task.kind == "dense" else settings.body_rate * factor
    steps = settings.steps_for(len(setup.samples)) + extra_steps
    first = int(steps * new_parts_first)
    if first:
        new_parts = {"body": "frozen", "may_stop": False, **options}
        fine_tune(network, setup, rows, steps=first, rate=rate, body_rate=body_rate, **new_parts)
    training = fine_tune(
        network, setup, rows, steps=steps - first, rate=rate, body_rate=body_rate, is_new_body=is_new_body, **options
    )
    clock.lap("training")
    taken = first + training.steps
    return Fitted(network, clock.seconds, taken, stopped_at=taken if training.stopped_early else None)


@torch.no_grad()
def settle_norms(feature_map: FeatureMap, inputs: Tensor) -> None:
    """Give batch norms that were drawn anew the statistics of some inputs."""
    norms = [module for module in feature_map.body.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # a plain mean over batches
        norm.train()
    in_chunks(feature_map, inputs, NORM_CHUNK)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


# ---------------------------------------------------------------------- aligned first


@dataclass(frozen=True, eq=False)
class Alignment:
    """What stage 1 came to.

    Attributes:
        feature_map: With the embedder that was trained, on the source's own body.
        looks: At it, where there were some.
        seconds: That it took.
        steps: That it took.
    """

    feature_map: FeatureMap
    looks: tuple[AlignmentStep, ...]
    seconds: float
    steps: int


def share_alignment(
    setup: Setup, name: str, rows: Tensor, train: Callable[[FeatureMap], tuple[AlignmentStep, ...]]
) -> Alignment:
    """Stage 1 of a method on labelled samples of these numbers.

    What was aligned once is not aligned again: the trials of a method share it.

    Args:
        setup: What all methods begin with.
        name: Of the way to align.
        rows: Numbers of samples.
        train: Trains the embedder of a new feature map in place.
    """
    feature_map = setup.new_map(own_body=False)
    key = (name, tuple(rows.tolist()))
    if key not in setup.alignments:
        began = time.perf_counter()
        looks = train(feature_map)
        state = {name: tensor.detach().clone() for name, tensor in feature_map.embedder.state_dict().items()}
        setup.alignments[key] = state, looks, time.perf_counter() - began
    state, looks, seconds = setup.alignments[key]
    feature_map.embedder.load_state_dict(state)
    return Alignment(feature_map, looks, seconds, looks[-1].step if looks else setup.settings.align_steps)


def refine(setup: Setup, rows: Tensor, trial: Trial, alignment: Alignment) -> Fitted:
    """Everything fine-tuned, from an embedder that was aligned."""
    fitted = train_head_and_all(setup, rows, trial, with_own_body(alignment.feature_map), Clock())
    return replace(
        fitted,
        seconds={"alignment": alignment.seconds, **fitted.seconds},
        steps=fitted.steps + alignment.steps,
        looks=alignment.looks,
    )


def with_own_body(feature_map: FeatureMap) -> FeatureMap:
    """The same feature map, with a body that may be trained."""
    source = replace(feature_map.source, body=copy.deepcopy(feature_map.source.body))
    return FeatureMap(source, feature_map.embedder, feature_map.scale)
