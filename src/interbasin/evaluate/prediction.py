"""How wrong predictions are: the measures of NAS-Bench-360 and PDEBench [tu:22, takamoto:22], the smaller the better.

Each takes what a network puts out (logits, or values) and the labels, and gives one number for all samples together.
`score_samples` gives one number per sample, so that two networks can be compared sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from interbasin.checks import require_choice
from interbasin.errors import DataError

Kind = Literal["classification", "multilabel", "regression", "dense"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEAST = 1e-12  # of what is divided by


@dataclass(frozen=True)
class ErrorMetric:
    """One measure: its name, a line about it, what it is for, and what computes it."""

    name: str
    about: str
    kinds: tuple[Kind, ...]
    measure: Callable[[Tensor, Tensor], float]


def error_metric(kind: Kind, name: str | None = None) -> ErrorMetric:
    """The measure of that name, or the one that is usual for a kind of task.

    Raises:
        UnknownNameError: if there is none of that name for this kind.
    """
    known = {metric.name: metric for metric in METRICS if kind in metric.kinds}
    return next(iter(known.values())) if name is None else known[require_choice(f"metric of {kind}", name, known)]


def score_samples(kind: Kind, outputs: Tensor, labels: Tensor) -> Tensor:
    """One error per sample: 0 or 1, the share of labels that are wrong, or the distance relative to the labels' size.

    Example:
        >>> score_samples("classification", torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        tensor([0., 1.], dtype=torch.float64)
    """
    outputs = outputs.double()
    if kind == "classification":
        return (outputs.argmax(1) != labels).double()
    if kind == "multilabel":
        return ((outputs > 0) != (labels > 0.5)).double().mean(1)
    if kind == "dense":
        return _relative_distances(outputs, labels)
    spread = labels.double().std(0, correction=0).clamp(min=LEAST) if len(labels) > 1 else labels.double().abs()
    return ((outputs - labels.double()).abs() / spread.clamp(min=LEAST)).mean(1)


def _relative_distances(outputs: Tensor, labels: Tensor) -> Tensor:
    sizes = torch.linalg.vector_norm(labels.double().flatten(1), dim=1).clamp(min=LEAST)
    distances: Tensor = torch.linalg.vector_norm((outputs.double() - labels.double()).flatten(1), dim=1) / sizes
    return distances


def _zero_one(outputs: Tensor, labels: Tensor) -> float:
    return float(score_samples("classification", outputs, labels).mean())


def _hamming(outputs: Tensor, labels: Tensor) -> float:
    return float(score_samples("multilabel", outputs, labels).mean())


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
    squares = (outputs.double() - labels.double()).square().mean(0)
    spread = labels.double().var(0, correction=0).clamp(min=LEAST)
    return float((squares / spread).sqrt().mean())


def _rmse_of_fields(outputs: Tensor, labels: Tensor) -> float:
    """As PDEBench has it: for every sample and channel, then the mean."""
    squares = (outputs.double() - labels.double()).flatten(2).square().mean(2)
    return float((squares / labels.double().flatten(2).square().mean(2).clamp(min=LEAST)).sqrt().mean())


def _relative_l2(outputs: Tensor, labels: Tensor) -> float:
    return float(_relative_distances(outputs, labels).mean())


def _mean_absolute(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.double() - labels.double()).abs().mean())


METRICS: tuple[ErrorMetric, ...] = (
    ErrorMetric("error", "share of answers that are wrong", ("classification",), _zero_one),
    ErrorMetric("map", "1 - mean average precision", ("multilabel",), _one_minus_mean_precision),
    ErrorMetric("f1", "1 - F1, mean over labels", ("classification", "multilabel"), _one_minus_f1),
    ErrorMetric("auroc", "1 - area under the ROC curve", ("classification", "multilabel"), _one_minus_auroc),
    ErrorMetric("hamming", "share of labels that are wrong", ("multilabel",), _hamming),
    ErrorMetric("nrmse", "root mean square error over the labels' spread", ("regression",), _rmse_by_spread),
    ErrorMetric("nrmse", "root mean square error over the field's size", ("dense",), _rmse_of_fields),
    ErrorMetric("relative-l2", "distance over the field's size", ("dense",), _relative_l2),
    ErrorMetric("mae", "mean absolute error", ("regression", "dense"), _mean_absolute),
)
