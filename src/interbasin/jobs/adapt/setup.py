"""What all methods begin with: the source's features in one scale, its recalibrated head, and the target's samples.

Features are divided by the mean distance of two of the source's, so that distances and the head's slope mean the same
from one source to the next.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations.recording import digest_of
from interbasin.batches import as_batches, count_inputs, cut_inputs, device_of, split_batch
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.transfer import mean_distance
from interbasin.jobs.adapt.embedders import make_embedder
from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap
from interbasin.jobs.adapt.network import in_chunks
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead, fit_source_head, recalibrate
from interbasin.jobs.adapt.task import Samples, TargetTask
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.training import Checkpoint

PROXY_BATCH = 64
MOST_PROXY = 5000  # samples of the proxy that are looked at
DISTANCES = 2000  # features whose mean distance is the unit


@dataclass(frozen=True)
class TrainingPlaces:
    """Where trainings are kept while they last, and written about.

    Attributes:
        checkpoints: A folder in which each training has a folder of its own; None keeps nothing.
        tensorboard: A folder for TensorBoard's files, likewise.
        progress: Whether each training has a bar.
    """

    checkpoints: Path | None = None
    tensorboard: Path | None = None
    progress: bool = False

    def options(self, network: nn.Module, rows: Tensor, *more: Any) -> dict[str, Any]:
        """What `train` is told about one training, which its first weights and its samples tell from others."""
        options: dict[str, Any] = {"progress": self.progress or None}
        if self.checkpoints is None and self.tensorboard is None:
            return options
        identity = digest_of([list(network.state_dict().values()), rows, repr(more[1:])])
        if self.checkpoints is not None:
            options["checkpoint"] = Checkpoint(self.checkpoints / f"training-{identity[:16]}", identity)
        if self.tensorboard is not None:
            options["tensorboard"] = self.tensorboard / identity[:8]
        return options


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that a method is given.

    Attributes:
        source: The pre-trained model, in evaluation mode; methods that train its body copy it.
        features, proxy_labels: Of the proxy, in the unit scale.
        scale: What features are multiplied with.
        head: The source's, recalibrated, on features in the unit scale.
        taken: What the body takes, for a few inputs of the proxy.
        task: What is to be learned.
        samples: The target's labelled samples.
        unlabelled: More of its inputs.
        settings: How methods are trained.
        embedder: The user's own, for the target; None to make one.
        seed: Of all that is drawn.
        notes: What a user should know.
        places: Where trainings are kept and written about.
        alignments: What stage 1 came to, by what it depends on: methods share it.
    """

    source: Source
    features: Tensor
    proxy_labels: Tensor
    scale: float
    head: SourceHead
    taken: Tensor
    task: TargetTask
    samples: Samples
    unlabelled: Tensor | None
    settings: Settings
    embedder: nn.Module | None = None
    seed: int = 0
    notes: tuple[str, ...] = ()
    places: TrainingPlaces = field(default_factory=TrainingPlaces)
    alignments: dict[Any, tuple[dict[str, Tensor], tuple[AlignmentStep, ...], float]] = field(default_factory=dict)

    @property
    def labels(self) -> Tensor:
        """Of the target's samples."""
        assert self.samples.labels is not None
        return self.samples.labels

    @property
    def classes(self) -> Tensor:
        """Labels as whole numbers."""
        return self.task.classes_of(self.labels)

    def new_map(self, *, own_body: bool = True, random_body: bool = False, seed: int | None = None) -> FeatureMap:
        """A feature map with a new embedder, on the source's body, a copy of it, or one with weights drawn anew."""
        source = self.source
        if own_body or random_body:
            source = replace(source, body=copy.deepcopy(source.body))
        seed = self.seed if seed is None else seed
        if random_body:
            redraw(source.body, seed)
        if self.embedder is None:
            shape = tuple(self.samples.inputs.shape[1:])
            embedder = make_embedder(source, self.taken, shape, seed).to(self.taken.device)
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
    source = source.copy()
    for part in (source.embedder, source.body, *([] if source.head is None else [source.head])):
        part.eval().requires_grad_(False)
    with watch("proxy"):
        source, taken, features, labels = _look_at_proxy(source, proxy)
        drawn = torch.randperm(len(features), generator=generator_of(seed))[:DISTANCES]
        distance = mean_distance(features[drawn])
    if not distance:
        raise DataError("The source has the same features for all of the proxy; check the proxy's inputs.")
    scale = 1 / distance
    features = features * scale
    linear, notes = _source_linear(source, features, labels, scale)
    with watch("recalibration"):
        head = recalibrate(linear, features, labels, omega=settings.omega)
    device = device_of(source.body) or torch.device("cpu")
    samples = Samples(samples.inputs.to(device), None if samples.labels is None else samples.labels.to(device))
    setup = Setup(
        source,
        features,
        labels,
        scale,
        head,
        taken,
        task,
        samples,
        None if unlabelled is None else unlabelled.to(device),
        settings,
        embedder,
        seed,
        notes,
    )
    _try_embedder(setup)
    return setup


def _try_embedder(setup: Setup) -> None:
    inputs = setup.samples.inputs[:2]
    try:
        features = in_chunks(setup.new_map(own_body=False), inputs)
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, DataError | ShapeError):
            raise
        reason = (str(error).strip().splitlines() or ["no reason"])[0]
        raise ShapeError(
            f"Inputs of shape {tuple(inputs.shape[1:])} went through the embedder, and the body failed on what came "
            f"out ({reason}); it was trained on {tuple(setup.taken.shape[1:])}: give shorter inputs, or an embedder of "
            "your own that puts out this shape."
        ) from error
    if features.shape[1:] != setup.features.shape[1:]:
        raise ShapeError(
            f"Features of the target have {tuple(features.shape[1:])} numbers and those of the source "
            f"{tuple(setup.features.shape[1:])}; the embedder has to put out what the body takes."
        )
    if not bool(torch.isfinite(features).all()):
        raise DataError("Features of the target are NaN or infinite before any training; check the inputs' scale.")


def _look_at_proxy(source: Source, proxy: Any) -> tuple[Source, Tensor, Tensor, Tensor]:
    """The source with its layout, what its body takes, and features and labels of the proxy."""
    taken: Tensor | None = None
    features, labels, count = [], [], 0
    for inputs, classes in _proxy_batches(proxy):
        if taken is None:
            source = source.with_layout(inputs)
        with torch.no_grad():
            rows = source.taken(inputs)
            features.append(source.pooled(source.states(rows)).float())
        # Text comes in batches of several lengths; the longest tells how much the body can take.
        if taken is None or rows.shape[1:].numel() > taken.shape[1:].numel():
            taken = rows[:2].clone()
        labels.append(classes)
        count += len(classes)
        if count >= MOST_PROXY:
            break
    if taken is None:
        raise DataError("The proxy holds no samples at all; give data of the source's own modality, with labels.")
    known = torch.cat(labels).long().to(taken.device)
    whole = torch.cat(features)
    if not bool(torch.isfinite(whole).all()):
        raise DataError("The source's features of the proxy are NaN or infinite; check the proxy and the source.")
    if int(known.min()) < 0:
        raise DataError(f"Label {int(known.min())} of the proxy is out of range; number its classes from 0 on.")
    return source, taken, whole, known


def _proxy_batches(proxy: Any) -> Iterator[tuple[Any, Tensor]]:
    is_pair = isinstance(proxy, tuple | list) and len(proxy) == 2 and not isinstance(proxy[0], tuple | list)
    if (is_pair and isinstance(proxy[0], Mapping | Tensor)) or (is_pair and hasattr(proxy[0], "__array__")):
        inputs = proxy[0] if isinstance(proxy[0], Mapping) else torch.as_tensor(proxy[0])
        if proxy[1] is None:
            raise DataError(NO_LABELS)
        labels = torch.as_tensor(proxy[1])
        count = count_inputs((), inputs) if isinstance(inputs, Mapping) else len(inputs)
        if count != len(labels):
            raise ShapeError(f"The proxy has {count} inputs and {len(labels)} labels; give one label for each input.")
        for first in range(0, len(labels), PROXY_BATCH):
            rows = slice(first, first + PROXY_BATCH)
            yield cut_inputs(inputs, rows, len(labels)), _class_labels(labels[rows])
        return
    for batch in as_batches(proxy, PROXY_BATCH):
        inputs, labels = split_batch(batch)
        if labels is None:
            raise DataError(NO_LABELS)
        yield inputs, _class_labels(torch.as_tensor(labels))


NO_LABELS = (
    "The proxy has no labels; give pairs (inputs, labels) of the source's own modality: its labels say what the "
    "features mean."
)


def _class_labels(labels: Tensor) -> Tensor:
    if labels.ndim != 1:
        raise ShapeError(f"Labels of the proxy are classes, one per sample; found shape {tuple(labels.shape)}.")
    return labels


def _source_linear(source: Source, features: Tensor, labels: Tensor, scale: float) -> tuple[nn.Linear, tuple[str, ...]]:
    """The head of the source as one linear layer on scaled features, or a new one where it has none."""
    head = source.head
    if isinstance(head, nn.Sequential):  # of timm: a norm that is often nothing, and the layer
        layers = [layer for layer in head if not isinstance(layer, nn.Identity | nn.Dropout)]
        head = layers[0] if len(layers) == 1 else head
    if isinstance(head, nn.Linear):
        if int(labels.max()) >= head.out_features:
            return fit_source_head(features, labels), (
                f"The source's head has {head.out_features} labels and the proxy {int(labels.max()) + 1}, so a head "
                "was trained on the proxy instead.",
            )
        linear = fit_source_head(features, labels, head)
        with torch.no_grad():
            linear.weight /= scale
        return linear, ()
    if head is not None:
        note = "The source's head is more than one linear layer, so a head was trained on the proxy instead."
        return fit_source_head(features, labels), (note,)
    return fit_source_head(features, labels), ()


@torch.no_grad()
def redraw(body: nn.Module, seed: int) -> None:
    """Draw the weights of a body anew, as its modules begin; what has no beginning of its own is shuffled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in body.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            for parameter in module.parameters(recurse=False):
                order = torch.randperm(parameter.numel())
                parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
