"""What is to be learned: the kind of the target's labels, their loss, and how samples are divided.

Validation is always taken from the *training* samples: below 500 of them in five folds, so that every sample is held
out once; from 500 on one fifth is held out. Test samples are looked at once, at the end.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from interbasin.checks import require_choice, require_whole
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.prediction import KINDS, ErrorMetric, Kind, error_metric
from interbasin.jobs.adapt.samples import require_range
from interbasin.randomness import generator_of

FOLDS = 5
TEMPERATURES = (-5.0, 5.0)  # powers of e that logits may be multiplied with
FEW = 500  # labelled samples below which all of them are cross-validated
MOST_SINGLE = 20  # classes that there may be, if half of the samples are the only ones of theirs
LEAST_SPREAD = 1e-6  # of labels, relative to their size, or to the spread of others
LEAST_VALID = 2
COMPONENTS = 10  # principal ones of dense labels, before they are made into classes


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
            different = int((counts > 0).sum())
            if different > max(MOST_SINGLE, len(labels) / 2):
                raise DataError(
                    f"{len(labels)} training samples have {different} different labels, too many to be classes; use "
                    'task="regression" if they are numbers, or give several samples of each class.'
                )
            if different < 2:
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

    def tempered_loss(self, outputs: Tensor, labels: Tensor) -> float:
        """The loss of logits at the temperature that suits them best; of numbers and fields, the loss.

        A network that was fine-tuned on a few samples is far too sure of itself. That costs loss, and no errors.
        """
        loss = float(self.loss(outputs, labels))
        if self.kind not in ("classification", "multilabel") or not math.isfinite(loss):
            return loss
        best = minimize_scalar(
            lambda power: float(self.loss(outputs * math.exp(power), labels)),
            bounds=TEMPERATURES,
            method="bounded",
            options={"xatol": 1e-6},
        )
        return min(loss, float(best.fun))

    def error(self, outputs: Tensor, labels: Tensor) -> float:
        """How wrong outputs are, by the metric; NaN where they are not finite."""
        return self.metric.measure(outputs, labels) if bool(torch.isfinite(outputs).all()) else math.nan

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One error per sample, by which two networks are compared."""
        return self.metric.score(outputs.double(), labels)

    def constant_answer(self, labels: Tensor) -> Tensor:
        """What to put out for every sample, knowing the labels of some and no input: shares as logits, or the mean."""
        if self.kind == "classification":
            return torch.bincount(labels, minlength=self.shape[0]).double().log()
        mean = labels.double().mean(0)
        return mean.logit() if self.kind == "multilabel" else mean

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
