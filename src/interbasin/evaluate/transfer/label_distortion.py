r"""How much of the target's labels the source's labels leave open: feature-label distortion.

For each target input the source's head says which of *its* labels the input looks like, :math:`p_s(z \mid u)`. The
distortion is bounded by the entropy :math:`H[Z' \mid Z]` of target labels given these pseudo-labels (equations 16 to 21
of RECRAFT [tran:26]). It is 0 where the target's label is a function of the source's, and :math:`H[Z']` where the two
have nothing to do with each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError
from interbasin.randomness import generator_of

FOLDS = 5
SMOOTHING = 1.0  # pseudo-counts of a fold's table, shared among all labels of the target
LEAST = 1e-30  # of a share whose logarithm is taken
COLLAPSED = 0.1  # nats of pseudo-labels below which nearly all inputs look like one label of the source


@dataclass(frozen=True)
class Distortion:
    """The entropy of the target's labels given the source's pseudo-labels, in nats, in three forms.

    Attributes:
        soft: With the probabilities of the pseudo-labels as weights.
        hard: With the likeliest pseudo-label alone.
        crossed: On samples that had no part in the table: not flattered by small samples.
        labels: The entropy of the target's labels alone, which is what nothing at all would give.
        pseudo: The entropy of the pseudo-labels alone; near 0 all inputs look alike to the source.
    """

    soft: float
    hard: float
    crossed: float
    labels: float
    pseudo: float

    @property
    def is_collapsed(self) -> bool:
        """Whether nearly all inputs look like one label of the source, so that it tells nothing."""
        return self.pseudo < COLLAPSED


def joint_shares(probabilities: Tensor, labels: Tensor, count: int) -> Tensor:
    """``J(z, z')``: the share of samples that look like z and are z', ``(source labels, target labels)``.

    Args:
        probabilities: ``(samples, source labels)``; rows add up to one.
        labels: The target's, whole numbers below ``count``, one for each sample.
        count: How many labels the target has.
    """
    members = torch.nn.functional.one_hot(labels, count).to(probabilities)
    return probabilities.mT @ members / len(labels)


def entropy(shares: Tensor) -> Tensor:
    """Of shares that add up to one, in nats."""
    # At zero the logarithm has no slope that a gradient could use, and the product none that it should.
    return -(shares * shares.clamp(min=LEAST).log()).sum()


def conditional_entropy(joint: Tensor) -> Tensor:
    """``H[Z' | Z]`` of joint shares ``(z, z')`` (equation 21), to be differentiated; not negative but for rounding."""
    return entropy(joint) - entropy(joint.sum(1))


def distortion(probabilities: Tensor, labels: Tensor, count: int | None = None, *, seed: int = 0) -> Distortion:
    """The distortion of labelled target samples under the source's head.

    Args:
        probabilities: What the head answers, ``(samples, source labels)``.
        labels: The target's, one for each sample.
        count: How many labels the target has; by default as many as occur.
        seed: Of the folds.

    Raises:
        ShapeError, DataError: if there is not one label for each sample, or a row is no distribution.

    Example:
        >>> answers = torch.eye(3)[[0, 1, 2, 0, 1, 2]]
        >>> found = distortion(answers, torch.tensor([1, 0, 0, 1, 0, 0]))  # a function of the source's label
        >>> round(found.soft, 6), round(found.labels, 4)
        (0.0, 0.6365)
    """
    shares = _require_distributions(probabilities, labels)
    classes = int(labels.max()) + 1 if count is None else count
    if int(labels.max()) >= classes:
        raise DataError(f"Labels go up to {int(labels.max())}, and there are to be {classes}; give count= as many.")
    labels = labels.long()
    joint = joint_shares(shares, labels, classes)
    likeliest = torch.nn.functional.one_hot(shares.argmax(1), shares.shape[1]).to(shares)
    return Distortion(
        soft=max(0.0, float(conditional_entropy(joint))),
        hard=max(0.0, float(conditional_entropy(joint_shares(likeliest, labels, classes)))),
        crossed=_crossed(shares, labels, classes, seed),
        labels=float(entropy(joint.sum(0))),
        pseudo=float(entropy(joint.sum(1))),
    )


def transport_table(joint: Tensor, smoothing: float, samples: int) -> Tensor:
    """``Lambda(z' | z)`` of joint shares, shrunk towards the shares of the labels; each row adds up to one.

    Args:
        joint: ``(z, z')``.
        smoothing: How many samples the shares of the labels count for in each row.
        samples: How many there were.
    """
    labels = joint.sum(0)
    labels = labels / labels.sum()
    counts = joint * samples + smoothing * (labels + 1 / len(labels)) / 2
    return counts / counts.sum(1, keepdim=True)


def folds_of(count: int, folds: int, seed: int) -> list[Tensor]:
    """The numbers of samples in random parts of nearly equal size."""
    order = torch.randperm(count, generator=generator_of(seed))
    return [order[start::folds] for start in range(min(folds, count))]


def _crossed(shares: Tensor, labels: Tensor, classes: int, seed: int) -> float:
    """The mean of ``-log Lambda(z' | z)`` over samples that the table was not made of."""
    if len(labels) < 2:
        return math.nan
    total = 0.0
    for held in folds_of(len(labels), FOLDS, seed):
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[held] = False
        joint = joint_shares(shares[rest], labels[rest], classes)
        table = transport_table(joint, SMOOTHING, int(rest.sum()))
        total += float(-(shares[held] * table.log()[:, labels[held]].mT).sum())
    return total / len(labels)


def _require_distributions(probabilities: Tensor, labels: Tensor) -> Tensor:
    if probabilities.ndim != 2 or labels.ndim != 1 or len(probabilities) != len(labels) or not len(labels):
        raise ShapeError(
            f"Answers of shape {tuple(probabilities.shape)} and labels of shape {tuple(labels.shape)} do not pair; "
            "give a row of probabilities and a label for each sample."
        )
    if labels.is_floating_point() or int(labels.min()) < 0:
        raise DataError("Labels are whole numbers from 0 on; make classes of others first.")
    shares = probabilities.detach().double()
    sums = shares.sum(1)
    if not bool((shares >= 0).all()) or float((sums - 1).abs().max()) > 1e-3:
        raise DataError("A row of the source's answers is no distribution; give probabilities, as softmax makes them.")
    return shares / sums[:, None]
