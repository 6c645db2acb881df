"""How an adaptation is done: steps, rates and the rest, with what is usual; and the paper's own settings by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from interbasin.checks import require_choice, require_finite, require_whole
from interbasin.errors import DataError
from interbasin.evaluate.transfer.feature_alignment import Solver
from interbasin.jobs.adapt.feature_map import (
    BATCH,
    RATE,
    STEPS,
    AlignmentOptions,
    FeatureSpace,
    Schedule,
    Start,
)
from interbasin.jobs.adapt.source_head import SourceLoss

Predictor = Literal["auto", "transport", "head"]
Training = Literal["everything", "frozen", "lora"]
Optimiser = Literal["adamw", "adam", "sgd"]
LEAST_STEPS, MOST_STEPS, EPOCHS = 150, 2000, 10
PAPER_BATCH = 64  # of stage 1; the tables do not have it


@dataclass(frozen=True)
class Settings:
    """What every method is trained with; all methods alike.

    Attributes:
        steps: Of supervised training; by default ten passes over the samples, from 150 to 2000 steps.
        batch_size: Samples in each step.
        accumulate: Batches whose gradients make one step.
        optimiser: ``"adamw"``, ``"adam"`` or ``"sgd"``.
        rate: Of parts that are new (embedder and head); fields take it for the body too.
        body_rate: Of the body, where it was pre-trained.
        decay: Of weights.
        patience: End the final training after so many looks in a row without a lower loss on validation data, of which
            there have to be some, and keep the best look; it is looked at twenty times. None takes all steps.
        body: Whether the body is trained (``"everything"``), stays (``"frozen"``), or gets a LoRA (``"lora"``).
        rank: Of that LoRA.
        regularise: Weight of alignment and distortion during supervised training.
        predictor: Of methods that align: labels by way of the source's (``"transport"``), a new head (``"head"``), or
            whichever has the lower loss on held-out samples (``"auto"``).
        align_steps, align_rate, align_batch: Of stage 1.
        rival_rate: Of the alignment of orca and mona, in place of ``align_rate``.
        schedule: Of stage 1: ``"joint"``, or ``"sequential"`` as in the paper.
        distortion_steps: How many of the last steps of a sequential schedule are for the distortion; by default one in
            fifteen, and with a preset the paper's share.
        solver: Of the distance: ``"exact"`` or ``"sinkhorn"``.
        features: What stage 1 aligns: the pooled output of the body, which the bound speaks of, or the mean of the
            embedder's output, as the released code of the paper does (``"embedder"``).
        start: Where stage 1 begins: the rule's embedder (``"rule"``), one whose mean output at every position is the
            source's where that can be had (``"means"``), or ``"auto"``: such a one if positions correspond.
        omega: How fast the recalibrated source head may change; what it came to is measured.
        head_loss: The loss of that head whose change is meant: the entropy of its answers (``"entropy"``), as in the
            proof, or cross-entropy with the proxy's labels, one-hot (``"labels"``).
        transport_width: Of a hidden layer that bends the table of labels; 0 for one table.
        discretise: Classes that numbers and fields are made into, for the distortion.
        precision: ``"bf16"`` or ``"fp16"`` for mixed precision; needs the extra ``adapt``.
    """

    steps: int | None = None
    batch_size: int = 16
    accumulate: int = 1
    optimiser: Optimiser = "adamw"
    rate: float = 1e-3
    body_rate: float = 3e-4
    decay: float = 0.01
    patience: int | None = None
    body: Training = "everything"
    rank: int = 8
    regularise: float = 0.0
    predictor: Predictor = "auto"
    align_steps: int = STEPS
    align_rate: float = RATE
    align_batch: int = BATCH
    rival_rate: float = 3e-3
    schedule: Schedule = "joint"
    distortion_steps: int | None = None
    solver: Solver = "exact"
    features: FeatureSpace = "body"
    start: Start = "auto"
    omega: float = 0.3
    head_loss: SourceLoss = "entropy"
    transport_width: int = 0
    discretise: int = 10
    precision: Literal["bf16", "fp16"] | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "patience", "rank", "align_steps", "align_batch"):
            if getattr(self, name) is not None:
                self._keep(name, require_whole(name, getattr(self, name), least=1))
        if self.distortion_steps is not None:
            steps = require_whole("distortion_steps", self.distortion_steps, 1, self.align_steps)
            self._keep("distortion_steps", steps)
        self._keep("transport_width", require_whole("transport_width", self.transport_width, least=0))
        self._keep("discretise", require_whole("discretise", self.discretise, least=2))
        for name in ("rate", "body_rate", "align_rate", "rival_rate", "omega"):
            self._keep(name, require_finite(name, getattr(self, name), above=0))
        for name in ("regularise", "decay"):
            self._keep(name, require_finite(name, getattr(self, name), least=0))
        require_choice("predictor", self.predictor, get_args(Predictor))
        require_choice("body", self.body, get_args(Training))
        require_choice("optimiser", self.optimiser, get_args(Optimiser))
        require_choice("schedule", self.schedule, get_args(Schedule))
        require_choice("solver", self.solver, get_args(Solver))
        require_choice("features", self.features, get_args(FeatureSpace))
        require_choice("start", self.start, get_args(Start))
        require_choice("head_loss", self.head_loss, get_args(SourceLoss))
        if self.precision is not None:
            require_choice("precision", self.precision, ("bf16", "fp16"))

    def _keep(self, name: str, value: float) -> None:
        """Numbers of numpy become plain ones, which can be written as JSON."""
        object.__setattr__(self, name, value)

    def steps_for(self, samples: int) -> int:
        """How many supervised steps there are, for so many samples."""
        if self.steps is not None:
            return self.steps
        passes = EPOCHS * samples // (self.batch_size * self.accumulate)
        return max(LEAST_STEPS, min(MOST_STEPS, passes))

    def alignment(self, *, with_distortion: bool, seed: int) -> AlignmentOptions:
        """How stage 1 is done."""
        return AlignmentOptions(
            steps=self.align_steps,
            rate=self.align_rate,
            batch=self.align_batch,
            with_distortion=with_distortion,
            schedule=self.schedule,
            distortion_steps=self.distortion_steps,
            solver=self.solver,
            features=self.features,
            start=self.start,
            seed=seed,
        )


def make_settings(options: dict[str, Any], *, preset: str | None = None, samples: int) -> Settings:
    """Settings with some of them given; a preset fills in the paper's where nothing was.

    Raises:
        DataError: if there is no such setting.
        UnknownNameError: if there is no such preset.
    """
    known = {field.name for field in fields(Settings)}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DataError(f"adapt has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    chosen = {name: value for name, value in options.items() if value is not None}
    if preset is None:
        return Settings(**chosen)
    column = PRESETS[require_choice("preset", preset, PRESETS)]
    own = column.settings(samples)
    if "align_steps" in chosen and "distortion_steps" not in chosen:
        steps = require_whole("align_steps", chosen["align_steps"], least=1)
        share = column.distortion_epochs / (column.align_epochs + column.distortion_epochs)
        chosen["distortion_steps"] = max(1, round(share * steps))
    return replace(own, **chosen)


@dataclass(frozen=True)
class Preset:
    """A column of the paper's tables 8 (NAS-Bench-360) and 9 (PDEBench) [tran:26]."""

    backbone: str
    batch_size: int
    epochs: int
    accumulate: int
    optimiser: Optimiser
    rate: float
    decay: float
    omega: float
    align_epochs: int = 60
    distortion_epochs: int = 4

    def settings(self, samples: int) -> Settings:
        """These as settings, for so many training samples: one rate for all parts, the sequential schedule
        and the rule's embedder."""
        per_epoch = max(1, -(-samples // (self.batch_size * self.accumulate)))
        align_per_epoch = max(1, -(-samples // PAPER_BATCH))
        return Settings(
            steps=self.epochs * per_epoch,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            optimiser=self.optimiser,
            rate=self.rate,
            body_rate=self.rate,
            decay=self.decay,
            omega=self.omega,
            align_steps=(self.align_epochs + self.distortion_epochs) * align_per_epoch,
            align_batch=PAPER_BATCH,
            schedule="sequential",
            distortion_steps=self.distortion_epochs * align_per_epoch,
            start="rule",
        )


PRESETS: dict[str, Preset] = {
    # table 8
    "cifar100": Preset("swin", 32, 60, 32, "sgd", 1e-4, 1e-3, 0.3),
    "spherical": Preset("swin", 32, 60, 4, "adamw", 1e-4, 1e-1, 0.3),
    "ninapro": Preset("swin", 32, 60, 1, "adam", 1e-4, 1e-5, 0.3),
    "fsd50k": Preset("swin", 32, 100, 1, "adam", 1e-4, 5e-5, 0.3),
    "darcy": Preset("swin", 4, 100, 1, "adamw", 1e-3, 5e-3, 0.3),
    "psicov": Preset("roberta", 1, 10, 32, "adam", 5e-6, 1e-5, 0.5),
    "cosmic": Preset("swin", 4, 60, 1, "adamw", 1e-3, 0.0, 0.3),
    "ecg": Preset("roberta", 4, 15, 16, "sgd", 1e-6, 1e-1, 0.5, distortion_epochs=2),
    "satellite": Preset("roberta", 16, 60, 4, "adamw", 3e-5, 3e-6, 0.5),
    "deepsea": Preset("roberta", 16, 13, 1, "adam", 1e-5, 0.0, 0.5, distortion_epochs=2),
    # table 9
    "pde-advection": Preset("roberta", 4, 200, 1, "adam", 1e-4, 1e-5, 0.5),
    "pde-burgers": Preset("roberta", 4, 200, 1, "adam", 1e-5, 1e-5, 0.5),
    "pde-reaction-diffusion": Preset("roberta", 4, 200, 1, "sgd", 1e-3, 1e-5, 0.5),
    "pde-diffusion-sorption": Preset("swin", 4, 200, 1, "adamw", 1e-4, 0.0, 0.3),
    "pde-navier-stokes": Preset("roberta", 4, 200, 1, "adamw", 1e-4, 1e-3, 0.5),
    "pde-darcy": Preset("swin", 4, 100, 1, "adamw", 1e-4, 1e-5, 0.3),
    "pde-shallow-water": Preset("swin", 4, 200, 1, "adamw", 1e-4, 0.0, 0.3),
    "pde-reaction-diffusion-2d": Preset("swin", 4, 200, 1, "adam", 1e-4, 1e-3, 0.3),
}
