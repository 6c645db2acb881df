"""How wrong predictions are: the measures of NAS-Bench-360 and PDEBench [tu:22, takamoto:22], the smaller the better.

Each takes what a network puts out (logits, or values) and the labels, and gives one number for all samples together,
and a score for each sample, so that two networks can be compared sample by sample. Where a measure is no mean over
samples, scores are of another measure, which is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from interbasin.checks import require_choice
from interbasin.errors import DataError

Kind = Literal["classification", "multilabel", "regression", "dense"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEAST = 1e-150  # of what is divided by: nothing but zeros is below it, and squares of single precision are not
NO_SIZE = 1e-5  # of the usual size of fields: what is smaller has no size that an error could be relative to


@dataclass(frozen=True)
class ErrorMetric:
    """One measure.

    Attributes:
        name: As users write it.
        about: A line about it.
        kinds: Of tasks that it is for.
        measure: Outputs and labels -> one number.
        score: Outputs and labels -> one number per sample.
        compared_by: What scores are, where the measure is not their mean; else empty.
        sizes: Of errors that are relative to each field: fields -> their sizes, ``(samples, channels)``.
        usual: Of these: the size that is usual for each channel. Without, a field of zeros has a huge error.
    """

    name: str
    about: str
    kinds: tuple[Kind, ...]
    measure: Callable[[Tensor, Tensor], float]
    score: Callable[..., Tensor]
    compared_by: str = ""
    sizes: Callable[[Tensor], Tensor] | None = None
    usual: Tensor | None = field(default=None, compare=False)

    def for_fields(self, fields: Tensor) -> ErrorMetric:
        """The same measure, with the size that is usual among training fields.

        The error of a field that has nearly no size is relative to the usual size.
        """
        if self.sizes is None:
            return self
        usual = _usual_sizes(self.sizes(fields))
        score = partial(self.score, usual=usual)
        return replace(self, score=score, measure=_mean_of(score), usual=usual)

    def relative_sizes(self, fields: Tensor) -> Tensor | None:
        """The size of each field in units of the usual one, by its smallest channel; None where errors are absolute."""
        if self.sizes is None or self.usual is None:
            return None
        sizes = self.sizes(fields)
        return (sizes / self.usual.to(sizes)).amin(1)


def error_metric(kind: Kind, name: str | None = None) -> ErrorMetric:
    """The measure of that name, or the one that is usual for a kind of task.

    Raises:
        UnknownNameError: if there is none of that name for this kind.
    """
    known = {metric.name: metric for metric in METRICS if kind in metric.kinds}
    return next(iter(known.values())) if name is None else known[require_choice(f"metric of {kind}", name, known)]


def _are_wrong(outputs: Tensor, labels: Tensor) -> Tensor:
    """0 or 1; with several labels, the share of them that is wrong."""
    if labels.ndim == 1:
        return (outputs.argmax(1) != labels).double()
    return ((outputs > 0) != (labels > 0.5)).double().mean(1)


def _distances_by_spread(outputs: Tensor, labels: Tensor) -> Tensor:
    spread = labels.double().std(0, correction=0)
    spread = torch.where(spread > 0, spread, labels.double().abs().amax(0))  # what is always the same: over its size
    return ((outputs.double() - labels.double()).abs() / spread.clamp(min=LEAST)).mean(1)


def _distances(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.double() - labels.double()).abs().flatten(1).mean(1)


def _roots_of_fields(outputs: Tensor, labels: Tensor, usual: Tensor | None = None) -> Tensor:
    """As PDEBench has it: for every sample and channel, then the mean over channels."""
    squares = (outputs.double() - labels.double()).flatten(2).square().mean(2)
    return (squares / _own_or_usual(_mean_squares(labels), usual, 2)).sqrt().mean(1)


def _relative_distances(outputs: Tensor, labels: Tensor, usual: Tensor | None = None) -> Tensor:
    distances = _norms(outputs.double() - labels.double())
    return (distances / _own_or_usual(_norms(labels), usual, 1))[:, 0]


def _mean_squares(fields: Tensor) -> Tensor:
    return fields.double().flatten(2).square().mean(2)


def _root_mean_squares(fields: Tensor) -> Tensor:
    return _mean_squares(fields).sqrt()


def _norms(fields: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(fields.double().flatten(1), dim=1, keepdim=True)
    return norms


def _usual_sizes(sizes: Tensor) -> Tensor:
    """The median of each column, without zeros; a column of zeros has the largest of the others."""
    columns = [column[column > 0] for column in sizes.unbind(1)]
    usual = torch.stack([column.median() if len(column) else sizes.new_zeros(()) for column in columns])
    return torch.where(usual > 0, usual, usual.max()).clamp(min=LEAST)


def _own_or_usual(sizes: Tensor, usual: Tensor | None, power: int) -> Tensor:
    """What errors are divided by, of sizes to a power: a field's own size or, where it has none, the usual size."""
    if usual is None:
        return sizes.clamp(min=LEAST)
    usual = usual.to(sizes)
    return torch.where(sizes < (NO_SIZE * usual) ** power, usual**power, sizes)


def _mean_of(score: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], float]:
    return lambda outputs, labels: float(score(outputs, labels).mean())


def _one_minus_f1(outputs: Tensor, labels: Tensor) -> float:
    from sklearn.metrics import f1_score

    if labels.ndim == 1:
        return 1 - float(f1_score(labels.cpu(), outputs.argmax(1).cpu(), average="macro", zero_division=0))
    wanted, answers = (labels > 0.5).int().cpu(), (outputs > 0).int().cpu()
    return 1 - float(f1_score(wanted, answers, average="macro", zero_division=0))


def _one_minus_auroc(outputs: Tensor, labels: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    members, scores = _members(outputs, labels)
    known = [place for place in range(members.shape[1]) if 0 < int(members[:, place].sum()) < len(members)]
    if not known:
        raise DataError("AUROC needs samples with a label and samples without it; the labels here are all alike.")
    values = [roc_auc_score(members[:, place].cpu(), scores[:, place].cpu()) for place in known]
    return 1 - float(sum(values) / len(values))


def _one_minus_mean_precision(outputs: Tensor, labels: Tensor) -> float:
    from sklearn.metrics import average_precision_score

    members, scores = _members(outputs, labels)
    known = [place for place in range(members.shape[1]) if int(members[:, place].sum())]
    if not known:
        raise DataError("Mean average precision needs samples that have a label; none here has one.")
    values = [average_precision_score(members[:, place].cpu(), scores[:, place].cpu()) for place in known]
    return 1 - float(sum(values) / len(values))


def _members(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which sample has which label, and how sure the network is of it; both ``(samples, labels)``."""
    if labels.ndim == 2:
        return (labels > 0.5).int(), outputs
    return torch.nn.functional.one_hot(labels, outputs.shape[1]).int(), outputs.softmax(1)


def _rmse_by_spread(outputs: Tensor, labels: Tensor) -> float:
    """The mean over columns; those that are always the same have no spread, and do not count."""
    squares = (outputs.double() - labels.double()).square().mean(0)
    spread = labels.double().var(0, correction=0)
    if not bool((spread > 0).any()):
        raise DataError('nRMSE is relative to the labels\' spread, and all labels here are alike; use metric="mae".')
    return float((squares / spread)[spread > 0].sqrt().mean())


MANY: tuple[Kind, ...] = ("classification", "multilabel")
WRONG = "the share of answers that are wrong"

METRICS: tuple[ErrorMetric, ...] = (
    ErrorMetric("error", "share of answers that are wrong", ("classification",), _mean_of(_are_wrong), _are_wrong),
    ErrorMetric("map", "1 - mean average precision", ("multilabel",), _one_minus_mean_precision, _are_wrong, WRONG),
    ErrorMetric("f1", "1 - F1, mean over labels", MANY, _one_minus_f1, _are_wrong, WRONG),
    ErrorMetric("auroc", "1 - area under the ROC curve", MANY, _one_minus_auroc, _are_wrong, WRONG),
    ErrorMetric("hamming", "share of labels that are wrong", ("multilabel",), _mean_of(_are_wrong), _are_wrong),
    ErrorMetric(
        "nrmse",
        "root mean square error over the labels' standard deviation",
        ("regression",),
        _rmse_by_spread,
        _distances_by_spread,
        "the mean absolute error over the labels' standard deviation",
    ),
    ErrorMetric(
        "nrmse",
        "root mean square error over the field's root mean square, mean over samples",
        ("dense",),
        _mean_of(_roots_of_fields),
        _roots_of_fields,
        sizes=_root_mean_squares,
    ),
    ErrorMetric(
        "relative-l2",
        "distance over the field's size, mean over samples",
        ("dense",),
        _mean_of(_relative_distances),
        _relative_distances,
        sizes=_norms,
    ),
    ErrorMetric("mae", "mean absolute error", ("regression", "dense"), _mean_of(_distances), _distances),
)
