"""What all methods begin with: the source's features in one scale, its recalibrated head, and the target's samples.

Features are divided by the mean distance of two of the source's, so that distances and the head's slope mean the same
from one source to the next.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from interbasin.activations.recording import digest_of
from interbasin.batches import device_of
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.evaluate.transfer import mean_distance
from interbasin.jobs.adapt.bank import TokenBank
from interbasin.jobs.adapt.embedders import make_embedder
from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap
from interbasin.jobs.adapt.proxy import FAILURES, PASSED_ON, look_at_proxy, reason, source_linear
from interbasin.jobs.adapt.samples import Samples
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead, recalibrate
from interbasin.jobs.adapt.stage_one import Places
from interbasin.jobs.adapt.task import TargetTask
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.training import Checkpoint
from interbasin.training.monitor import Progress

LARGEST = 1e9  # of a feature of the target, where two of the source are 1 apart
DISTANCES = 2000  # features whose mean distance is the unit


@dataclass(frozen=True)
class TrainingPlaces:
    """Where trainings are kept while they last, and written about.

    Attributes:
        checkpoints: A folder in which each training has a folder of its own; None keeps nothing.
        tensorboard: A folder for TensorBoard's files, likewise.
        progress: Whether each training has a bar; or what is called after each step, see `train`.
    """

    checkpoints: Path | None = None
    tensorboard: Path | None = None
    progress: Progress = False

    def options(self, network: nn.Module, rows: Tensor, **more: Any) -> dict[str, Any]:
        """The arguments of `train` for one training, which first weights, samples and ``more`` tell from others."""
        options: dict[str, Any] = {"progress": self.progress or None}
        if self.checkpoints is None and self.tensorboard is None:
            return options
        identity = digest_of([list(network.state_dict().values()), rows, repr(more)])
        if self.checkpoints is not None:
            options["checkpoint"] = Checkpoint(self.checkpoints / f"training-{identity[:16]}", identity)
        if self.tensorboard is not None:
            options["tensorboard"] = self.tensorboard / identity[:8]
        return options


@dataclass(frozen=True, eq=False)
class EarlyStop:
    """When the supervised training of one model ends before its last step. Methods are compared without.

    Attributes:
        patience: Looks in a row without a lower loss on validation samples; the best look is kept.
        rows: Numbers of the validation samples.
    """

    patience: int
    rows: Tensor


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that a method is given.

    Attributes:
        source: The pre-trained model, in evaluation mode; methods that train its body copy it.
        features, proxy_labels: Of the proxy, in the unit scale.
        scale: What features are multiplied with.
        head: The source's, recalibrated, on features in the unit scale.
        body_inputs: What the body takes, for a few inputs of the proxy.
        embedding_means: Its mean over positions, for all inputs of the proxy; a row for each of ``features``.
        bank: What the body takes, for a sample of the proxy, with labels.
        task: What is to be learned.
        samples: The target's labelled samples.
        unlabelled: More of its inputs.
        settings: How methods are trained.
        embedder: The user's own, for the target; None to make one.
        seed: Of all that is drawn.
        notes: What a user should know.
        places: Where trainings are kept and written about.
        alignments: What stage 1 came to, by what it depends on: methods share it.
        stop: When supervised training ends early; None for never.
    """

    source: Source
    features: Tensor
    proxy_labels: Tensor
    scale: float
    head: SourceHead
    body_inputs: Tensor
    embedding_means: Tensor
    bank: TokenBank
    task: TargetTask
    samples: Samples
    unlabelled: Tensor | None
    settings: Settings
    embedder: nn.Module | None = None
    seed: int = 0
    notes: tuple[str, ...] = ()
    places: TrainingPlaces = field(default_factory=TrainingPlaces)
    alignments: dict[Any, tuple[dict[str, Tensor], tuple[AlignmentStep, ...], float]] = field(default_factory=dict)
    stop: EarlyStop | None = None

    @property
    def labels(self) -> Tensor:
        """Of the target's samples."""
        assert self.samples.labels is not None
        return self.samples.labels

    @cached_property
    def classes(self) -> Tensor:
        """Labels as whole numbers."""
        return self.task.classes_of(self.labels)

    def places_of_stage_one(self, method: str, embedder: nn.Module, rows: Tensor) -> Places:
        """Where stage 1 of a method on labelled samples of these numbers is seen and kept."""
        identity = {"stage_one": method, "settings": self.settings, "seed": self.seed}
        return Places(**self.places.options(embedder, rows, **identity))

    def new_map(self, *, own_body: bool = True, random_body: bool = False, seed: int | None = None) -> FeatureMap:
        """A feature map with a new embedder, on the source's body, a copy of it, or one with weights drawn anew.

        With a body drawn anew nothing that the source has learned is left in an embedder that is made here, either.
        """
        source = self.source
        if own_body or random_body:
            source = replace(source, body=copy.deepcopy(source.body))
        seed = self.seed if seed is None else seed
        if random_body:
            redraw(source.body, seed)
        if self.embedder is None:
            shape = tuple(self.samples.inputs.shape[1:])
            table = self.samples.inputs if len(shape) == 1 else None
            embedder = make_embedder(source, self.body_inputs, shape, seed, table=table).to(self.body_inputs.device)
            if random_body:
                redraw(embedder, seed)
        else:
            embedder = copy.deepcopy(self.embedder)
        return FeatureMap(source, embedder, self.scale)


def prepare_setup(
    source: Source,
    proxy: Any,
    task: TargetTask,
    samples: Samples,
    *,
    unlabelled: Tensor | None,
    settings: Settings,
    embedder: nn.Module | None,
    seed: int,
    watch: Stopwatch,
) -> Setup:
    """Look at the proxy, recalibrate the source's head, and see that the target's inputs can be taken in.

    Raises:
        DataError, ShapeError, WiringError: if the proxy has no labels, or the parts do not fit together.
    """
    _require_parts(source, embedder, settings)
    source, notes = _ready_copy(source)
    if embedder is not None and not any(parameter.is_floating_point() for parameter in embedder.parameters()):
        raise DataError(
            f"The embedder ({type(embedder).__name__}) has no parameters, so that nothing in it can be aligned; put a "
            "layer behind it."
        )
    with watch("proxy"):
        bank = TokenBank(seed)
        source, body_inputs, means, features, labels = look_at_proxy(source, proxy, bank)
        drawn = torch.randperm(len(features), generator=generator_of(seed))[:DISTANCES]
        distance = mean_distance(features[drawn])
    if not distance:
        raise DataError("The source has the same features for all of the proxy; check the proxy's inputs.")
    scale = 1 / distance
    features = features * scale
    linear, more_notes = source_linear(source, features, labels, scale)
    with watch("recalibration"):
        # Which samples decide is the same for all seeds: the head is a property of the source and its proxy.
        head = recalibrate(linear, features, labels, omega=settings.omega, loss=settings.head_loss)
    device = device_of(source.body) or torch.device("cpu")
    samples = Samples(samples.inputs.to(device), None if samples.labels is None else samples.labels.to(device))
    setup = Setup(
        source,
        features,
        labels,
        scale,
        head,
        body_inputs,
        means,
        bank,
        task,
        samples,
        None if unlabelled is None else unlabelled.to(device),
        settings,
        None if embedder is None else copy.deepcopy(embedder).float().eval(),
        seed,
        notes + more_notes,
    )
    _try_embedder(setup)
    return setup


def _require_parts(source: Source, embedder: nn.Module | None, settings: Settings) -> None:
    """Refuse modules that cannot be copied and trained as they are."""
    parts = {
        "source's embedder": source.embedder,
        "body": source.body,
        "source's head": source.head,
        "embedder": embedder,
    }
    for part, module in parts.items():
        if isinstance(module, torch.jit.ScriptModule):
            raise WiringError(
                f"The {part} is compiled by torch.jit, so that it cannot be copied and trained; give the module "
                "that it was made from."
            )
        for name, layer in [] if module is None else module.named_modules():
            where = f"The {part} has a {type(layer).__name__}{f' ({name})' if name else ''}"
            if any(map(is_lazy, [*layer.parameters(recurse=False), *layer.buffers(recurse=False)])):
                raise WiringError(
                    f"{where} that has seen no input yet, so that its width is not known; call the model once first."
                )
            hooks = [type(hook).__name__ for hook in layer._forward_pre_hooks.values()]
            if {"WeightNorm", "SpectralNorm"} & set(hooks):
                raise WiringError(
                    f"{where} whose weight is computed by a hook of torch.nn.utils, which cannot be copied; use the "
                    "function of the same name in torch.nn.utils.parametrizations, or remove the hook."
                )
            if part == "body" and settings.body == "lora" and is_parametrized(layer):
                raise WiringError(
                    f'{where} whose weight is computed from others, to which body="lora" cannot add; use '
                    'body="everything", or torch.nn.utils.parametrize.remove_parametrizations.'
                )


def _ready_copy(source: Source) -> tuple[Source, tuple[str, ...]]:
    """A copy that nothing trains, in single precision: halves are too coarse for distances, and doubles take long."""
    kinds = {parameter.dtype for parameter in source.body.parameters() if parameter.is_floating_point()}
    others = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
    source = source.copy()
    for part in (source.embedder, source.body, source.head, source.fittings.patch, source.fittings.norm):
        if part is not None:
            part.float().eval().requires_grad_(False)
            for module in part.modules():  # what the body is given is kept, and read again
                if getattr(module, "inplace", None) is True:
                    module.inplace = False  # type: ignore[assignment]
    note = f"The source has weights in {' and '.join(others)}; the adapted model has float32."
    return source, (note,) if others else ()


def _try_embedder(setup: Setup) -> None:
    """See that the largest inputs of the target go through embedder and body, and that gradients come back."""
    features = require_features(setup, setup.samples.inputs, "the target")
    if features.shape[1:] != setup.features.shape[1:]:
        raise ShapeError(
            f"Features of the target have {tuple(features.shape[1:])} numbers and those of the source "
            f"{tuple(setup.features.shape[1:])}; the embedder has to put out what the body takes."
        )
    if setup.unlabelled is not None and len(setup.unlabelled):
        require_features(setup, setup.unlabelled, "the unlabelled data")
    _require_gradients(setup)


def require_features(setup: Setup, inputs: Tensor, name: str) -> Tensor:
    """Features of the largest inputs, which fail first; refuse inputs whose features mean nothing.

    Raises:
        ShapeError: if the embedder, or the body behind it, fails on them.
        DataError: if features are not finite, or far too large; names the row.
    """
    sizes = inputs.flatten(1).abs().amax(1)
    rows = sizes.topk(min(2, len(sizes))).indices
    largest = inputs[rows].to(setup.samples.inputs.device)
    with torch.no_grad():
        try:
            feature_map = setup.new_map(own_body=False)
            body_inputs = feature_map.embedder(largest)
        except FAILURES as error:
            if isinstance(error, PASSED_ON):
                raise
            raise ShapeError(
                f"The embedder failed on inputs of shape {tuple(largest.shape[1:])} ({reason(error)}); give one that "
                "takes them."
            ) from error
        if not isinstance(body_inputs, Tensor):
            raise DataError(
                f"The embedder puts out no tensor, but a {type(body_inputs).__name__}; wrap it in a module that does."
            )
        try:
            features = feature_map.features_of(body_inputs)
        except FAILURES as error:
            if isinstance(error, PASSED_ON):
                raise
            raise _no_room(setup, largest, body_inputs, error) from error
    is_small = (features.abs() < LARGEST).flatten(1).all(1)  # NaN is not below it either
    if not bool(is_small.all()):
        row = int(rows[int((~is_small).nonzero()[0])])
        raise DataError(
            f"Row {row} of the inputs of {name} holds numbers as large as {float(sizes[row]):.3g}, and its features "
            f"are not finite, or {LARGEST:.0e} times as large as the source's; divide the inputs by their spread first."
        )
    return features


def _no_room(setup: Setup, inputs: Tensor, body_inputs: Tensor, error: Exception) -> ShapeError:
    """The error for a body that fails on what an embedder puts out: there is too much of it, too little, or neither."""
    size, usual = body_inputs.shape[1:].numel(), setup.body_inputs.shape[1:].numel()
    advice = "give shorter inputs, or" if size > usual else "give longer inputs, or" if size < usual else "give"
    return ShapeError(
        f"Inputs of shape {tuple(inputs.shape[1:])} became {tuple(body_inputs.shape[1:])} in the embedder, and the "
        f"body failed on that ({reason(error)}); it was trained on {tuple(setup.body_inputs.shape[1:])}: {advice} an "
        "embedder of your own that puts out this shape."
    )


def _require_gradients(setup: Setup) -> None:
    """Refuse parts through which no gradient comes back: what lies before them would stay as it is, unnoticed."""
    feature_map = setup.new_map(own_body=False)
    for parameter in feature_map.embedder.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    with torch.enable_grad():
        body_inputs = feature_map.embedder(setup.samples.inputs[:2])
        try:
            features = feature_map.features_of(body_inputs)
        except FAILURES as error:
            if isinstance(error, PASSED_ON):
                raise
            raise WiringError(
                f"The body failed when gradients were asked of it ({reason(error)}); give one that can be trained."
            ) from error
    for part, values in (("embedder", body_inputs), ("body", features)):
        if not values.requires_grad:
            raise WiringError(
                f"The {part} puts out a tensor without a gradient, so that nothing before it could be trained; take "
                "detach() and torch.no_grad() out of its forward."
            )


@torch.no_grad()
def redraw(part: nn.Module, seed: int) -> None:
    """Draw the weights of a part anew, as its modules begin; what has no beginning of its own is shuffled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in part.modules():
            own = list(module.parameters(recurse=False))
            reset = getattr(module, "reset_parameters", None)
            before = [parameter.clone() for parameter in own]
            with suppress(TypeError):  # one that wants arguments is not torch's
                if callable(reset):
                    reset()
            for parameter, old in zip(own, before, strict=True):
                if torch.equal(parameter, old):
                    # A reset that touches it not is left its part of the sequence of random numbers.
                    order = torch.randperm(parameter.numel(), generator=generator_of(seed) if callable(reset) else None)
                    parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
