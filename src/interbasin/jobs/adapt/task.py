"""What is to be learned: the target's samples as tensors, their kind, their loss, and how they are divided.

Validation is always taken from the *training* samples: below 500 of them in five folds, so that every sample is held
out once; from 500 on one fifth is held out. Test samples are looked at once, at the end.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from interbasin.batches import as_batches, split_batch
from interbasin.checks import require_choice, require_whole
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.prediction import KINDS, ErrorMetric, Kind, error_metric
from interbasin.randomness import generator_of

FOLDS = 5
FEW = 500  # labelled samples below which all of them are cross-validated
LEAST_SPREAD = 1e-6  # of labels, relative to their size, or to the spread of others
LARGEST_SINGLE = torch.finfo(torch.float32).max
LARGEST_INPUT = 1e17  # so that squares of as many numbers as an input may have can be added
MOST_UNSEEN = 1000  # classes that there may be, however few samples
LEAST_VALID = 2
COMPONENTS = 10  # principal ones of dense labels, before they are made into classes


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs, and labels where there are some, one row for each sample."""

    inputs: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)


def read_samples(data: Any, name: str, *, labelled: bool = True) -> Samples:
    """Data of the target as tensors: a pair (inputs, labels), a Dataset of such pairs, or batches of them.

    Args:
        data: What was given.
        name: How messages call it.
        labelled: Whether labels are needed; without, they are left out.

    Raises:
        DataError, ShapeError: if there are no samples, no labels, values that are not finite, or shapes that differ.
    """
    inputs, labels = _tensors(data, name, labelled)
    if not len(inputs):
        raise DataError(f"There are no samples at all in {name}; give some.")
    if inputs.ndim < 2:
        raise ShapeError(
            f"Inputs of {name} have shape {tuple(inputs.shape)}; give a row of numbers, a signal or a field for each "
            "sample: a single feature has shape (samples, 1)."
        )
    if labelled and labels is None:
        raise DataError(f"There are no labels in {name}; give pairs (inputs, labels).")
    if labels is not None and len(labels) != len(inputs):
        raise ShapeError(
            f"There are {len(inputs)} inputs and {len(labels)} labels in {name}; give one label for each input."
        )
    inputs = to_single(inputs.detach(), f"the inputs of {name}")
    _require_squares(inputs, f"the inputs of {name}")
    if not labelled or labels is None:
        return Samples(inputs)
    labels = labels.detach()
    to_single(labels, f"the labels of {name}")
    return Samples(inputs, labels)


def to_single(values: Tensor, what: str, before: int | None = None) -> Tensor:
    """Numbers in single precision.

    Args:
        values: One row for each sample.
        what: How messages call them.
        before: How many rows came before, where these are a batch of more.

    Raises:
        DataError: names the first row that holds NaN or infinity, or a number that is too large for single precision.
    """
    single = values.float()
    bad = (~torch.isfinite(single.reshape(len(single), -1))).any(1).nonzero()
    if not len(bad):
        return single
    first = int(bad[0])
    row = f"Row {first + (before or 0)} of {what}"
    if bool(torch.isfinite(values[first]).all()):
        largest = float(values[first].abs().max())
        raise DataError(
            f"{row} holds numbers as large as {largest:.3g}, and float32 ends at {LARGEST_SINGLE:.3g}; divide them by "
            "their spread first."
        )
    share = f" ({len(bad)} of {len(values)} rows do)" if before is None else ""
    raise DataError(f"{row} holds NaN or infinity{share}; take such rows out, or fill them.")


def _require_squares(inputs: Tensor, what: str) -> None:
    """Refuse inputs whose squares are infinite in single precision: they have no distances and no spread."""
    sizes = inputs.reshape(len(inputs), -1).abs().amax(1)
    row = int(sizes.argmax())
    if float(sizes[row]) > LARGEST_INPUT:
        raise DataError(
            f"Row {row} of {what} holds numbers as large as {float(sizes[row]):.3g}, whose squares are infinite in "
            "float32; divide the inputs by their spread first."
        )


def refuse_text(labels: Any, name: str) -> None:
    """Refuse labels that are names of classes, in an array, a list, or alone.

    Raises:
        DataError: shows the first of them.
    """
    first = labels.ravel()[:1].tolist() if isinstance(labels, np.ndarray) else labels
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if isinstance(first, str | bytes):
        raise DataError(
            f"Labels of {name} are whole numbers, one for each class, found strings ({str(first)!r}); number the "
            "classes from 0 on."
        )


def require_range(labels: Tensor, name: str, known: int = 0) -> None:
    """Refuse classes with numbers far beyond what so many samples can have; ``known`` classes there are for sure.

    Raises:
        DataError: names the largest.
    """
    largest = int(labels.max())
    if largest >= max(MOST_UNSEEN, 10 * len(labels), known):  # a year, or an identifier
        raise DataError(
            f"Label {largest} in row {int(labels.argmax())} of {name} is out of range for {len(labels)} samples; "
            "number the classes from 0 on."
        )


def _tensors(data: Any, name: str, labelled: bool) -> tuple[Tensor, Tensor | None]:
    """Inputs, and labels where there are some, as one tensor each."""
    if isinstance(data, Tensor | np.ndarray):
        return _tensor(data, name), None
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    if labelled and is_pair and isinstance(data[0], Tensor | np.ndarray):
        refuse_text(data[1], name)
    # A list of two inputs without labels is two batches.
    if (
        is_pair
        and all(isinstance(part, Tensor | np.ndarray) for part in data)
        and (labelled or isinstance(data, tuple))
    ):
        return _tensor(data[0], name), _tensor(data[1], name)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence | Mapping):
        samples = [_split(data[place]) for place in range(len(data))]  # a Dataset: one sample at a time
        return _stack([inputs for inputs, _ in samples], name), _stack_labels([label for _, label in samples], name)
    batches = [_split(batch) for batch in as_batches(data, 256)]
    if not batches:
        return torch.zeros(0), None
    labels = [label for _, label in batches]
    refuse_text(labels, name)
    if all(isinstance(label, int | float) or getattr(label, "ndim", None) == 0 for label in labels):
        return _stack([inputs for inputs, _ in batches], name), _stack_labels(labels, name)  # a sample at a time
    for number, (inputs, label) in enumerate(batches):
        counts = [len(part) for part in (inputs, label) if isinstance(part, Tensor | np.ndarray) and part.ndim]
        if len(set(counts)) > 1:
            raise ShapeError(
                f"Batch {number} of {name} has {counts[0]} inputs and {counts[1]} labels; give one label for each "
                "input."
            )
    return _concatenate([inputs for inputs, _ in batches], name), (
        None if any(label is None for label in labels) else _concatenate(labels, name)
    )


def _split(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels of a batch or sample; data sets without labels put their inputs into a tuple of one."""
    return (batch[0], None) if isinstance(batch, tuple | list) and len(batch) == 1 else split_batch(batch)


def _stack_labels(labels: Sequence[Any], name: str) -> Tensor | None:
    refuse_text(labels, name)
    return None if any(label is None for label in labels) else _stack(labels, name)


def _stack(parts: Sequence[Any], name: str) -> Tensor:
    return _concatenate([_tensor(part, name)[None] for part in parts], name)


def _concatenate(parts: Sequence[Any], name: str) -> Tensor:
    tensors = [_tensor(part, name) for part in parts]
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise ShapeError(f"Samples of {name} have shapes {first} and {second}; give all in one shape.")
    return torch.cat(tensors) if tensors else torch.zeros(0)


def refuse_mask(part: Any, name: str) -> None:
    """Refuse numpy's masked arrays, alone or in a list.

    Raises:
        DataError: says what to do with what is masked.
    """
    if any(isinstance(array, np.ma.MaskedArray) for array in (part if isinstance(part, list | tuple) else [part])):
        raise DataError(
            f"Inputs and labels of {name} are plain arrays, found a masked array, whose mask would be lost; use "
            ".filled(value), or leave those rows out."
        )


def _tensor(part: Any, name: str) -> Tensor:
    refuse_mask(part, name)
    try:
        tensor = torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"Inputs and labels of {name} are numbers, found {type(part).__name__}; give tensors or arrays of numbers."
        ) from error
    if tensor.is_complex():
        raise DataError(f"Numbers of {name} are complex; give real and imaginary part as two channels.")
    return tensor


@dataclass(frozen=True, eq=False)
class TargetTask:
    """The kind of answer that is wanted.

    Attributes:
        kind: ``"classification"``, ``"multilabel"``, ``"regression"`` or ``"dense"``.
        shape: Of what a network puts out for one sample: ``(classes,)``, ``(targets,)`` or the field's.
        metric: What errors are measured by.
        shift, scale: Of labels that are numbers: their mean and spread in training, by which the loss is divided.
        codebook: Centres of the classes that numbers and fields are made into, for the distortion.
        axes: Principal axes of fields, ``(values, components)``, in which the centres lie.
    """

    kind: Kind
    shape: tuple[int, ...]
    metric: ErrorMetric
    shift: Tensor
    scale: Tensor
    codebook: Tensor | None = None
    axes: Tensor | None = None

    @classmethod
    def of(
        cls, kind: str, labels: Tensor, *, metric: str | None = None, discretise: int = 10, seed: int = 0
    ) -> TargetTask:
        """The task that training labels make.

        Raises:
            DataError, ShapeError: if the labels are not of that kind, or all are alike.
        """
        kind = cast(Kind, require_choice("task", kind, KINDS))
        labels = _require_kind(kind, labels, "the training data")
        chosen = error_metric(kind, metric)
        if kind == "classification":
            require_range(labels, "the training data")
            counts = torch.bincount(labels)
            if int((counts > 0).sum()) < 2:
                raise DataError(
                    f"All {len(labels)} training labels are {int(labels[0])}, so there is nothing to tell apart; give "
                    "samples of at least two classes."
                )
            return cls(kind, (len(counts),), chosen, torch.zeros(()), torch.ones(()))
        chosen = chosen.for_fields(labels) if kind == "dense" else chosen
        values = labels.double().flatten(1)
        centred = values - values.mean(0)
        if float(centred.abs().max()) <= LEAST_SPREAD * float(values.abs().max()):
            raise DataError("All training labels are alike, so there is nothing to learn; give samples that differ.")
        axes = None
        if kind == "dense" and values.shape[1] > COMPONENTS:
            axes = torch.linalg.svd(centred, full_matrices=False)[2][:COMPONENTS].mT
        codebook = _find_centres(values if axes is None else values @ axes, discretise, seed)
        if kind == "multilabel":
            return cls(kind, tuple(labels.shape[1:]), chosen, torch.zeros(()), torch.ones(()), codebook, axes)
        # One spread for a field, so that its points keep their proportions; one for each of several numbers.
        over: tuple[int, ...] = (0,) if kind == "regression" else (0, *range(2, labels.ndim))
        shift = labels.double().mean(over, keepdim=True)[0]
        scale = (labels.double() - shift).square().mean(over, keepdim=True)[0].sqrt()
        scale = torch.where(scale > LEAST_SPREAD * scale.max(), scale, scale.max())  # some may always be the same
        return cls(kind, tuple(labels.shape[1:]), chosen, shift.float(), scale.float(), codebook, axes)

    @property
    def count(self) -> int:
        """How many numbers a network puts out for one sample."""
        return int(np.prod(self.shape))

    @property
    def class_count(self) -> int:
        """How many classes `classes_of` tells apart."""
        return self.shape[0] if self.codebook is None else len(self.codebook)

    def require(self, labels: Tensor, name: str) -> Tensor:
        """Labels of other data as this task has them.

        Raises:
            DataError, ShapeError: if they are of another kind, shape, or out of range.
        """
        labels = _require_kind(self.kind, labels, name)
        if self.kind == "classification":
            wrong = (labels >= self.shape[0]).nonzero()
            if len(wrong):
                raise DataError(
                    f"Label {int(labels[wrong[0]])} in row {int(wrong[0])} of {name} is out of range: the training "
                    f"labels go from 0 to {self.shape[0] - 1}. Add samples of it to the training data."
                )
        elif tuple(labels.shape[1:]) != self.shape:
            raise ShapeError(
                f"Labels of {name} have shape {tuple(labels.shape[1:])} and those of the training data {self.shape}; "
                "give both in one shape."
            )
        return labels

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample: nats, or squares in units of the labels' spread."""
        if self.kind == "classification":
            return cross_entropy(outputs, labels, reduction="none")
        if self.kind == "multilabel":
            return binary_cross_entropy_with_logits(outputs, labels.to(outputs), reduction="none").mean(1)
        differences = (outputs - labels.to(outputs)) / self.scale.to(outputs)
        return differences.square().flatten(1).mean(1)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean of `losses`, to be differentiated."""
        return self.losses(outputs, labels).mean()

    def error(self, outputs: Tensor, labels: Tensor) -> float:
        """How wrong outputs are, by the metric; NaN where they are not finite."""
        return self.metric.measure(outputs, labels) if bool(torch.isfinite(outputs).all()) else math.nan

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One error per sample, by which two networks are compared."""
        return self.metric.score(outputs.double(), labels)

    def classes_of(self, labels: Tensor) -> Tensor:
        """Labels as whole numbers, for the distortion: numbers and fields take the number of the nearest centre."""
        if self.codebook is None:
            return labels
        return self.distances(labels).argmin(1)

    def distances(self, values: Tensor) -> Tensor:
        """How far numbers or fields are from each centre, ``(samples, centres)``."""
        assert self.codebook is not None
        rows = values.double().flatten(1)
        rows = rows if self.axes is None else rows @ self.axes.to(rows)
        return torch.cdist(rows, self.codebook.to(rows))


def _require_kind(kind: str, labels: Tensor, name: str) -> Tensor:
    if kind == "classification":
        if labels.ndim != 1:
            raise ShapeError(
                f"A class for each sample was expected, and labels of {name} have shape {tuple(labels.shape)}; use "
                'task="multilabel", task="regression" or task="dense" for these.'
            )
        whole = labels.long()
        if labels.is_floating_point() and not bool((labels == whole).all()):
            raise DataError(f'Labels of {name} are no whole numbers; use task="regression", or number the classes.')
        low = int(whole.argmin())
        if int(whole[low]) < 0:
            raise DataError(
                f"Label {int(whole[low])} in row {low} of {name} is out of range; number the classes from 0 on."
            )
        return whole
    numbers = labels.float()
    if kind == "dense":
        if numbers.ndim not in (3, 4):
            raise ShapeError(
                f"Fields were expected, (samples, channels, points) or (samples, channels, height, width), and labels "
                f'of {name} have shape {tuple(labels.shape)}; add the axis of channels, or use task="regression".'
            )
        return numbers
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    if numbers.ndim != 2:
        raise ShapeError(
            f"A row of numbers for each sample was expected, and labels of {name} have shape {tuple(labels.shape)}; "
            'use task="dense" for fields.'
        )
    if kind == "multilabel" and not bool(((numbers == 0) | (numbers == 1)).all()):
        raise DataError(f'Labels of {name} are not all 0 or 1; use task="regression" for numbers.')
    return numbers


def _find_centres(values: Tensor, count: int, seed: int) -> Tensor:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    count = min(count, len(torch.unique(values, dim=0)))
    with warnings.catch_warnings():  # values that differ by rounding alone make fewer centres
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(count, n_init=4, random_state=seed % 2**32).fit(values.numpy())
    return torch.from_numpy(fitted.cluster_centers_).double()


@dataclass(frozen=True, eq=False)
class Fold:
    """Numbers of samples to train on, and of samples that are held out."""

    train: Tensor
    held: Tensor


def divide(classes: Tensor, *, seed: int, valid: int = 0, folds: int = FOLDS) -> tuple[Fold, ...]:
    """Folds in which every class has its share.

    Args:
        classes: Of all samples; the last ``valid`` of them were given as validation data.
        seed: Of the division.
        valid: How many were; then these are held out, and there is one fold.
        folds: How many parts there are.

    Raises:
        DataError: if there are too few samples.
    """
    count = len(classes) - require_whole("valid", valid, least=0)
    rows = torch.arange(len(classes))
    if valid:
        if valid < LEAST_VALID:
            raise DataError(
                f"{valid} validation sample tells nothing; give at least {LEAST_VALID}, or none at all, so that parts "
                "of the training data are held out."
            )
        return (Fold(rows[:count], rows[count:]),)
    if count < 2 * folds:
        raise DataError(
            f"{count} labelled samples are too few to hold some of them out in {folds} folds; give at least "
            f"{2 * folds}."
        )
    shuffled = torch.randperm(count, generator=generator_of(seed))
    # Dealt out class by class, so that each part gets its share of every class.
    dealt = shuffled[torch.argsort(classes[shuffled], stable=True)]
    parts = [dealt[place::folds].sort().values for place in range(folds)]
    members = torch.ones(count, dtype=torch.bool)
    divided = []
    for part in parts if count < FEW else parts[:1]:
        members[part] = False
        divided.append(Fold(members.nonzero()[:, 0], part))
        members[part] = True
    return tuple(divided)
