"""All methods under one roof: each takes the setup and the numbers of some labelled samples, and gives a fitted model.

Every trained method has as many trials and as many supervised steps as every other. Those that align first take
`align_steps` more; ``warm`` is the control that takes as many more supervised ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from interbasin.errors import FitError
from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap, align_features
from interbasin.jobs.adapt.fitting import (
    Alignment,
    Clock,
    Fitted,
    Trial,
    refine,
    settle_norms,
    share_alignment,
    train_head_and_all,
)
from interbasin.jobs.adapt.label_transport import LabelTransport
from interbasin.jobs.adapt.matched_means import match_means
from interbasin.jobs.adapt.network import STRENGTHS, TargetNetwork, in_chunks, start_head
from interbasin.jobs.adapt.rivals import fit_mona, fit_orca, fit_pare
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.simple_models import Nearest, RawLinear
from interbasin.methods import Method, MethodTable

Group = Literal["simple", "scratch", "transfer", "align"]
FACTORS = (1.0, 3.0)  # of the rates: the two trials of a method that trains everything
SCRATCH_FACTORS = (1.0, 0.3)
NEW_PARTS_FIRST = 1 / 3  # of the steps of lp-ft


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
        return self.with_features(inputs)[0]

    def with_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and features, by one pass through the body."""
        features = self.features(inputs)
        return self.transport(features), features


# ---------------------------------------------------------------------- without a network


def _raw_linear(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    clock = Clock()
    model = RawLinear(setup.samples.inputs[rows], setup.labels[rows], setup.task, trial.options["strength"])
    clock.lap("fit")
    return Fitted(model.eval(), clock.seconds)


def _nearest(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return Fitted(Nearest(setup.samples.inputs[rows], setup.labels[rows], setup.task).eval(), {"fit": 0.0})


# ---------------------------------------------------------------------- frozen features


def _probe(setup: Setup, rows: Tensor, trial: Trial, *, random_body: bool) -> Fitted:
    clock = Clock()
    feature_map = setup.new_map(random_body=random_body)
    if random_body:
        settle_norms(feature_map, setup.samples.inputs[rows])
    network = TargetNetwork(feature_map, setup.task, setup.samples.inputs).eval()
    start_head(network, setup.task, setup.samples.inputs[rows], setup.labels[rows], trial.options["strength"])
    clock.lap("fit")
    return Fitted(network.requires_grad_(False), clock.seconds)


def _random_body(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _probe(setup, rows, trial, random_body=True)


def _linear_probe(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _probe(setup, rows, trial, random_body=False)


# ---------------------------------------------------------------------- supervised training


def _scratch(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(random_body=True), Clock(), is_new_body=True)


def _naive(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(), Clock())


def _lp_ft(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(), Clock(), new_parts_first=NEW_PARTS_FIRST)


def _warm(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return train_head_and_all(setup, rows, trial, setup.new_map(), Clock(), extra_steps=setup.settings.align_steps)


# ---------------------------------------------------------------------- aligned first


def align(setup: Setup, rows: Tensor, *, with_distortion: bool) -> Alignment:
    """Stage 1 of the paper on labelled samples of these numbers."""
    options = setup.settings.alignment(with_distortion=with_distortion, seed=setup.seed)
    source_rows = setup.features if options.features == "body" else setup.embedding_means
    name = "recraft" if with_distortion else "fa"

    def train(feature_map: FeatureMap) -> tuple[AlignmentStep, ...]:
        return align_features(
            feature_map,
            setup.head,
            source_rows,
            setup.samples.inputs[rows],
            setup.classes[rows],
            unlabelled=setup.unlabelled,
            body_inputs=setup.bank.body_inputs,
            options=options,
            places=setup.places_of_stage_one(name, feature_map.embedder, rows),
        )

    return share_alignment(setup, name, rows, train)


def match(setup: Setup, rows: Tensor) -> Alignment:
    """An embedder whose means are the source's, without stage 1.

    Raises:
        FitError: if the embedder is of a kind for which there is none.
    """
    feature_map, clock = setup.new_map(own_body=False), Clock()
    inputs = setup.samples.inputs[rows]
    mean_match = match_means(feature_map.embedder, inputs, setup.bank.body_inputs, setup.unlabelled)
    if mean_match is None:
        raise FitError(
            "means needs an embedder in which one convolution cuts inputs into positions and only sums stand behind "
            f"it. There is none for inputs of shape {tuple(inputs.shape[1:])} and this source; take another method."
        )
    mean_match.put_into(feature_map.embedder)
    clock.lap("alignment")
    return Alignment(feature_map, (), clock.seconds["alignment"], 0)


def _fit_aligned(setup: Setup, rows: Tensor, trial: Trial, alignment: Alignment) -> Fitted:
    if trial.options["predictor"] != "transport":
        return refine(setup, rows, trial, alignment)
    clock = Clock()
    features = in_chunks(alignment.feature_map, setup.samples.inputs[rows])
    width, count = setup.settings.transport_width, setup.task.shape[0]
    transport = LabelTransport.fit(setup.head, features, setup.labels[rows], count, width=width, seed=setup.seed)
    clock.lap("training")
    model = TransportNetwork(alignment.feature_map, transport).eval().requires_grad_(False)
    seconds = {"alignment": alignment.seconds, **clock.seconds}
    return Fitted(model, seconds, alignment.steps, alignment.looks)


def _means(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _fit_aligned(setup, rows, trial, match(setup, rows))


def _fa(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _fit_aligned(setup, rows, trial, align(setup, rows, with_distortion=False))


def _recraft(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    return _fit_aligned(setup, rows, trial, align(setup, rows, with_distortion=True))


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
            "random-body", "", "a linear head on features of a network drawn anew", _random_body, "scratch", "strength"
        ),
        _method("scratch", "", "everything trained, from a network drawn anew", _scratch, "scratch", "rate"),
        _method(
            "linear-probe", "", "a linear head on features of the source's body", _linear_probe, "transfer", "strength"
        ),
        _method("naive", "", "everything fine-tuned (NFT)", _naive, "transfer", "rate"),
        _method("lp-ft", "kumar:22", "new parts first, then everything", _lp_ft, "transfer", "rate"),
        _method("warm", "", "naive with as many more steps as aligning takes", _warm, "transfer", "rate"),
        _method(
            "means",
            "",
            "an embedder whose mean output at every position is the source's, then a predictor",
            _means,
            "align",
            "predictor",
        ),
        _method("fa", "tran:26", "features aligned by optimal transport, then a predictor", _fa, "align", "predictor"),
        _method(
            "orca",
            "shen:23",
            "the embedder's output aligned class by class, then everything fine-tuned",
            fit_orca,
            "align",
            "rate",
        ),
        _method(
            "pare",
            "cai:24",
            "everything fine-tuned, with ever fewer tokens of the source mixed in",
            fit_pare,
            "align",
            "rate",
        ),
        _method(
            "mona",
            "ma:24",
            "an embedder that lets the body keep what it knows, then everything fine-tuned",
            fit_mona,
            "align",
            "rate",
        ),
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
