"""What all methods begin with: the source's features in one scale, its recalibrated head, and the target's samples.

Features are divided by the mean distance of two of the source's, so that distances and the head's slope mean the same
from one source to the next.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.data import DataLoader

from interbasin.activations.recording import digest_of
from interbasin.batches import as_batches, count_inputs, cut_inputs, device_of, split_batch
from interbasin.errors import DataError, InterbasinError, ShapeError, WiringError
from interbasin.evaluate.transfer import mean_distance
from interbasin.jobs.adapt.bank import TokenBank
from interbasin.jobs.adapt.embedders import make_embedder
from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead, fit_source_head, recalibrate
from interbasin.jobs.adapt.task import Samples, TargetTask, refuse_mask, refuse_text, require_range, to_single
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.training import Checkpoint

PROXY = "the proxy"  # as messages call it
PROXY_BATCH = 64
MOST_PROXY = 5000  # samples of the proxy that are looked at
LARGEST = 1e9  # of a feature of the target, where two of the source are 1 apart
DISTANCES = 2000  # features whose mean distance is the unit
FAILURES = (RuntimeError, IndexError, ValueError, TypeError)  # of a module that is given what it does not take
PASSED_ON = (InterbasinError, torch.OutOfMemoryError)  # errors that say enough


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

    @property
    def labels(self) -> Tensor:
        """Of the target's samples."""
        assert self.samples.labels is not None
        return self.samples.labels

    @cached_property
    def classes(self) -> Tensor:
        """Labels as whole numbers."""
        return self.task.classes_of(self.labels)

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
            embedder = make_embedder(source, self.body_inputs, shape, seed).to(self.body_inputs.device)
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
        source, body_inputs, means, features, labels = _look_at_proxy(source, proxy, bank)
        drawn = torch.randperm(len(features), generator=generator_of(seed))[:DISTANCES]
        distance = mean_distance(features[drawn])
    if not distance:
        raise DataError("The source has the same features for all of the proxy; check the proxy's inputs.")
    scale = 1 / distance
    features = features * scale
    linear, more_notes = _source_linear(source, features, labels, scale)
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
                f"The embedder failed on inputs of shape {tuple(largest.shape[1:])} ({_reason(error)}); give one that "
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
        f"body failed on that ({_reason(error)}); it was trained on {tuple(setup.body_inputs.shape[1:])}: {advice} an "
        "embedder of your own that puts out this shape."
    )


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason"])[0].rstrip(".")


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
                f"The body failed when gradients were asked of it ({_reason(error)}); give one that can be trained."
            ) from error
    for part, values in (("embedder", body_inputs), ("body", features)):
        if not values.requires_grad:
            raise WiringError(
                f"The {part} puts out a tensor without a gradient, so that nothing before it could be trained; take "
                "detach() and torch.no_grad() out of its forward."
            )


def _look_at_proxy(source: Source, proxy: Any, bank: TokenBank) -> tuple[Source, Tensor, Tensor, Tensor, Tensor]:
    """The source with its layout, what its body takes, the means of that, and features and labels of the proxy."""
    body_inputs: Tensor | None = None
    means, features, labels, count = [], [], [], 0
    for inputs, classes in _proxy_batches(proxy):
        classes = _class_labels(classes, count)
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            inputs = to_single(inputs, "the inputs of the proxy", count)
        if body_inputs is None:
            source = source.with_layout(inputs)
        with torch.no_grad():
            rows = source.embed(inputs)
            features.append(_read_features(source, rows))
            means.append(source.mean_embedding(rows).float())
        if len(classes) != len(rows):
            raise ShapeError(f"The proxy has {len(rows)} inputs and {len(classes)} labels; give one for each input.")
        bank.add(rows, classes)
        # Text comes in batches of several lengths; the longest tells how much the body can take.
        if body_inputs is None or rows.shape[1:].numel() > body_inputs.shape[1:].numel():
            body_inputs = rows[:2].clone()
        labels.append(classes)
        count += len(classes)
        if count >= MOST_PROXY:
            break
    if body_inputs is None:
        raise DataError("The proxy holds no samples at all; give data of the source's own modality, with labels.")
    known = torch.cat(labels).long().to(body_inputs.device)
    head = _linear_head(source)
    # A head of ten thousand classes may be shown a few of them.
    require_range(known, PROXY, known=head.out_features if isinstance(head, nn.Linear) else 0)
    whole = torch.cat(features)
    if not bool(torch.isfinite(whole).all()):
        raise DataError("The source's features of the proxy are NaN or infinite; check the proxy and the source.")
    return source, body_inputs, torch.cat(means), whole, known


def _read_features(source: Source, body_inputs: Tensor) -> Tensor:
    """Features of what the source's embedder puts out.

    Raises:
        WiringError: if the body does not take it, or gives something else than one row for each input.
    """
    shape = tuple(body_inputs.shape)
    try:
        features = source.pool_states(source.states(body_inputs)).float()
    except FAILURES as error:
        if isinstance(error, PASSED_ON):
            raise
        raise WiringError(
            f"The source's embedder puts out {shape}, and its body failed on that ({_reason(error)}); give parts that "
            "follow one another: the body takes what the embedder puts out."
        ) from error
    if features.ndim != 2 or len(features) != shape[0]:
        raise WiringError(
            f"The source's embedder puts out {shape}, and the pooled output of its body is {tuple(features.shape)}; "
            "one row of features for each input is needed: give a body that keeps the first axis."
        )
    return features


def _proxy_batches(proxy: Any) -> Iterator[tuple[Any, Tensor]]:
    is_pair = isinstance(proxy, tuple | list) and len(proxy) == 2 and not isinstance(proxy[0], tuple | list)
    if (is_pair and isinstance(proxy[0], Mapping | Tensor)) or (is_pair and hasattr(proxy[0], "__array__")):
        for part in proxy:
            refuse_mask(part, PROXY)
        inputs = proxy[0] if isinstance(proxy[0], Mapping) else torch.as_tensor(proxy[0])
        if proxy[1] is None:
            raise DataError(NO_LABELS)
        refuse_text(proxy[1], PROXY)
        labels = torch.as_tensor(proxy[1])
        count = count_inputs((), inputs) if isinstance(inputs, Mapping) else len(inputs)
        if count != len(labels):
            raise ShapeError(f"The proxy has {count} inputs and {len(labels)} labels; give one label for each input.")
        for first in range(0, len(labels), PROXY_BATCH):
            rows = slice(first, first + PROXY_BATCH)
            yield cut_inputs(inputs, rows, len(labels)), labels[rows]
        return
    if (
        hasattr(proxy, "__getitem__")
        and hasattr(proxy, "__len__")
        and not isinstance(proxy, Sequence | Mapping | Tensor)
    ):
        proxy = DataLoader(proxy, PROXY_BATCH)  # a Dataset
    for batch in as_batches(proxy, PROXY_BATCH):
        inputs, labels = split_batch(batch)
        if labels is None:
            raise DataError(NO_LABELS)
        refuse_text(labels, PROXY)
        refuse_mask(labels, PROXY)
        yield inputs, torch.as_tensor(labels)


NO_LABELS = (
    "The proxy has no labels; give pairs (inputs, labels) of the source's own modality: its labels say what the "
    "features mean."
)


def _class_labels(labels: Tensor, before: int) -> Tensor:
    """Labels of a batch of the proxy as whole numbers; so many samples came before."""
    if labels.ndim != 1:
        raise ShapeError(
            f"Labels of the proxy are classes, one for each sample, found shape {tuple(labels.shape)}; number the "
            "classes from 0 on."
        )
    whole = labels.long()
    wrong = ((whole < 0) | (whole != labels)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"Label {labels[row].item():g} in row {before + row} of the proxy is no class; number classes from 0 on."
        )
    return whole


def _source_linear(source: Source, features: Tensor, labels: Tensor, scale: float) -> tuple[nn.Linear, tuple[str, ...]]:
    """The head of the source as one linear layer on scaled features, or a new one where it has none."""
    head = _linear_head(source)
    if isinstance(head, nn.Linear):
        if not all(bool(torch.isfinite(parameter).all()) for parameter in head.parameters()):
            raise DataError(
                "The source's head has weights that are NaN or infinite; check the source, or give head=None."
            )
        if head.in_features != features.shape[1]:
            raise ShapeError(
                f"The source's head reads {head.in_features} numbers, and the pooled output of its body has "
                f"{features.shape[1]}; give the head that belongs to this body, or head=None."
            )
        if int(labels.max()) >= head.out_features:
            return fit_source_head(features, labels), (
                f"The source's head has {head.out_features} labels and the proxy {int(labels.max()) + 1}, so a head "
                "was trained on the proxy instead.",
            )
        return fit_source_head(features, labels, head, scale=scale), ()
    if head is not None:
        note = "The source's head is more than one linear layer, so a head was trained on the proxy instead."
        return fit_source_head(features, labels), (note,)
    return fit_source_head(features, labels), ()


def _linear_head(source: Source) -> nn.Module | None:
    """The head of the source, without layers around it that do nothing."""
    if isinstance(source.head, nn.Sequential):  # of timm: a norm that is often nothing, and the layer
        layers = [layer for layer in source.head if not isinstance(layer, nn.Identity | nn.Dropout)]
        return layers[0] if len(layers) == 1 else source.head
    return source.head


@torch.no_grad()
@torch.no_grad()
def redraw(part: nn.Module, seed: int) -> None:
    """Draw the weights of a part anew, as its modules begin; what has no beginning of its own is shuffled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in part.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            for parameter in module.parameters(recurse=False):
                order = torch.randperm(parameter.numel())
                parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
