"""All methods under one roof: each takes the setup and the numbers of some labelled samples, and gives a fitted model.

Every trained method has as many trials and as many supervised steps as every other. Those that align first take
`align_steps` more; ``warm`` is the control that takes as many more supervised ones.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from interbasin.jobs.adapt.feature_map import AlignmentOptions, AlignmentStep, FeatureMap, align_features
from interbasin.jobs.adapt.fine_tuning import fine_tune
from interbasin.jobs.adapt.label_transport import LabelTransport
from interbasin.jobs.adapt.network import STRENGTHS, TargetNetwork, in_chunks, start_head
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.simple_models import Nearest, RawLinear
from interbasin.methods import Method, MethodTable

Group = Literal["simple", "scratch", "transfer", "align"]
FACTORS = (1.0, 3.0)  # of the rates: the two trials of a method that trains everything
SCRATCH_FACTORS = (1.0, 0.3)
NEW_PARTS_FIRST = 1 / 3  # of the steps of lp-ft


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
    """

    model: nn.Module
    seconds: Mapping[str, float]
    steps: int = 0
    looks: tuple[AlignmentStep, ...] = ()


FitMethod = Callable[[Setup, Tensor, Trial], Fitted]


class TransportNetwork(nn.Module):
    """Inputs -> logarithms of the target's labels, by way of the source's (equation 23)."""

    def __init__(self, feature_map: FeatureMap, transport: LabelTransport) -> None:
        super().__init__()
        self.feature_map, self.transport = feature_map, transport

    def features(self, inputs: Tensor) -> Tensor:
        """Pooled features, scaled as those of the source."""
        features: Tensor = self.feature_map(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        logs: Tensor = self.transport(self.features(inputs))
        return logs


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


# ---------------------------------------------------------------------- without a network


def _raw_linear(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    clock = _Clock()
    model = RawLinear(setup.samples.inputs[rows], setup.labels[rows], setup.task, trial.options["strength"])
    clock.lap("fit")
    return Fitted(model.eval(), clock.seconds)


def _nearest(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return Fitted(Nearest(setup.samples.inputs[rows], setup.labels[rows], setup.task).eval(), {"fit": 0.0})


# ---------------------------------------------------------------------- frozen features


def _probe(setup: Setup, rows: Tensor, trial: Trial, *, random_body: bool) -> Fitted:
    clock = _Clock()
    feature_map = setup.new_map(random_body=random_body)
    if random_body:
        _settle_norms(feature_map, setup.samples.inputs[rows])
    network = TargetNetwork(feature_map, setup.task, setup.samples.inputs).eval()
    start_head(network, setup.task, setup.samples.inputs[rows], setup.labels[rows], trial.options["strength"])
    clock.lap("fit")
    return Fitted(network.requires_grad_(False), clock.seconds)


def _random_body(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _probe(setup, rows, trial, random_body=True)


def _linear_probe(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _probe(setup, rows, trial, random_body=False)


@torch.no_grad()
def _settle_norms(feature_map: FeatureMap, inputs: Tensor) -> None:
    """Give batch norms that were drawn anew the statistics of some inputs."""
    norms = [module for module in feature_map.body.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # a plain mean over batches
        norm.train()
    in_chunks(feature_map, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


# ---------------------------------------------------------------------- supervised training


def train_head_and_all(
    setup: Setup,
    rows: Tensor,
    trial: Trial,
    feature_map: FeatureMap,
    clock: _Clock,
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
        _settle_norms(feature_map, inputs)
    network = TargetNetwork(feature_map, task, setup.samples.inputs).eval()
    start_head(network, task, inputs, labels)
    factor = trial.options.get("factor", 1.0)
    rate = settings.rate * factor
    body_rate = rate if is_new_body or task.kind == "dense" else settings.body_rate * factor
    steps = settings.steps_for(len(setup.samples)) + extra_steps
    first = int(steps * new_parts_first)
    if first:
        fine_tune(network, setup, rows, steps=first, rate=rate, body_rate=body_rate, body="frozen", **options)
    fine_tune(
        network, setup, rows, steps=steps - first, rate=rate, body_rate=body_rate, is_new_body=is_new_body, **options
    )
    clock.lap("training")
    return Fitted(network, clock.seconds, steps)


def _scratch(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(random_body=True), _Clock(), is_new_body=True)


def _naive(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(), _Clock())


def _lp_ft(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(), _Clock(), new_parts_first=NEW_PARTS_FIRST)


def _warm(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(), _Clock(), extra_steps=setup.settings.align_steps)


# ---------------------------------------------------------------------- aligned first


def align(setup: Setup, rows: Tensor, *, with_distortion: bool) -> tuple[FeatureMap, tuple[AlignmentStep, ...], float]:
    """Stage 1 on labelled samples of these numbers: the feature map, the looks at it, and its seconds.

    What was aligned once is not aligned again: the trials of a method share it.
    """
    feature_map = setup.new_map(own_body=False)
    key = (with_distortion, tuple(rows.tolist()))
    if key not in setup.alignments:
        settings = setup.settings
        began = time.perf_counter()
        options = AlignmentOptions(
            steps=settings.align_steps,
            rate=settings.align_rate,
            batch=settings.align_batch,
            with_distortion=with_distortion,
            schedule=settings.schedule,
            solver=settings.solver,
            seed=setup.seed,
        )
        looks = align_features(
            feature_map,
            setup.head,
            setup.features,
            setup.samples.inputs[rows],
            setup.classes[rows],
            unlabelled=setup.unlabelled,
            options=options,
        )
        state = {name: tensor.detach().clone() for name, tensor in feature_map.embedder.state_dict().items()}
        setup.alignments[key] = state, looks, time.perf_counter() - began
    state, looks, seconds = setup.alignments[key]
    feature_map.embedder.load_state_dict(state)
    return feature_map, looks, seconds


def _aligned(setup: Setup, rows: Tensor, trial: Trial, *, with_distortion: bool) -> Fitted:
    feature_map, looks, seconds = align(setup, rows, with_distortion=with_distortion)
    steps = setup.settings.align_steps
    clock = _Clock()
    if trial.options["predictor"] == "transport":
        features = in_chunks(feature_map, setup.samples.inputs[rows])
        transport = LabelTransport.fit(
            setup.head, features, setup.labels[rows], setup.task.shape[0], width=setup.settings.transport_width
        )
        clock.lap("training")
        model = TransportNetwork(feature_map, transport).eval().requires_grad_(False)
        return Fitted(model, {"alignment": seconds, **clock.seconds}, steps, looks)
    fitted = train_head_and_all(setup, rows, trial, with_own_body(feature_map), clock)
    return replace(fitted, seconds={"alignment": seconds, **fitted.seconds}, steps=fitted.steps + steps, looks=looks)


def with_own_body(feature_map: FeatureMap) -> FeatureMap:
    """The same feature map, with a body that may be trained."""
    source = replace(feature_map.source, body=copy.deepcopy(feature_map.source.body))
    return FeatureMap(source, feature_map.embedder, feature_map.scale)


def _fa(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _aligned(setup, rows, trial, with_distortion=False)


def _recraft(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _aligned(setup, rows, trial, with_distortion=True)


# ---------------------------------------------------------------------- trials


def trials_of(name: str, setup: Setup) -> tuple[Trial, ...]:
    """What a method is tried with."""
    traits = METHODS[name].traits
    kind = traits["trials"]
    if kind == "predictor" and setup.task.kind == "classification":
        predictor = setup.settings.predictor
        names = ("transport", "head") if predictor == "auto" else (predictor,)
        return tuple(Trial(name, {"predictor": name}) for name in names)
    if kind == "strength":
        return tuple(Trial(f"penalty {value:g}", {"strength": value}) for value in STRENGTHS)
    if kind == "none":
        return (Trial("as it is"),)
    factors = SCRATCH_FACTORS if traits["group"] == "scratch" else FACTORS
    return tuple(Trial(f"rate x{factor:g}", {"factor": factor, "predictor": "head"}) for factor in factors)


def _method(
    name: str, reference: str, summary: str, function: FitMethod, group: Group, trials: str
) -> Method[FitMethod]:
    return Method(name, reference, summary, function, traits={"group": group, "trials": trials})


METHODS: MethodTable[FitMethod] = MethodTable(
    "method of adapt",
    [
        _method(
            "raw-linear", "hoerl:70", "ridge or logistic regression on the raw input", _raw_linear, "simple", "strength"
        ),
        _method("nearest", "cover:67", "the label of the nearest training sample", _nearest, "simple", "none"),
        _method(
            "random-body", "", "a linear head on features of a body drawn anew", _random_body, "scratch", "strength"
        ),
        _method("scratch", "", "everything trained, from a body drawn anew", _scratch, "scratch", "rate"),
        _method(
            "linear-probe", "", "a linear head on features of the source's body", _linear_probe, "transfer", "strength"
        ),
        _method("naive", "", "everything fine-tuned (NFT)", _naive, "transfer", "rate"),
        _method("lp-ft", "kumar:22", "new parts first, then everything", _lp_ft, "transfer", "rate"),
        _method("warm", "", "naive with as many more steps as aligning takes", _warm, "transfer", "rate"),
        _method("fa", "tran:26", "features aligned by optimal transport, then a predictor", _fa, "align", "predictor"),
        _method(
            "recraft",
            "tran:26",
            "features aligned and labels kept apart, then a predictor",
            _recraft,
            "align",
            "predictor",
        ),
    ],
)
