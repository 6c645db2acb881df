r"""ORCA [shen:23]: the embedder is trained until its outputs lie where the source's do, labels considered; then
everything is fine-tuned.

The distance is that of two *labelled* sets, OTDD [alvarez:20]: optimal transport with the cost
:math:`\|u - u'\|^2 + W_2^2(z, z')`, where a label is the distribution of its own samples, here a Gaussian, so that the
second term has a closed form. ORCA takes it class by class (its algorithm 1): some samples of each class of the target
against all of the source, weighted by the class's share. That is what is done here, with ``align_batch`` samples of
each class at most, and without the paper's repeated sub-sampling.

Both follow the papers' descriptions. The space is ORCA's, not that of the bound: the embedder's output, averaged over
positions; tokens that are the same for every input, such as a class token, are left out. The body has no part in it.
Unlike the released code, the plan is exact, and its gradient is that of the cost with the plan and the classes'
covariances held fixed. Numbers and fields count as the classes that they are made into for the distortion.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasin.evaluate.transfer import plan_pairs
from interbasin.jobs.adapt.feature_map import SOURCE_ROWS, AlignmentStep, FeatureMap
from interbasin.jobs.adapt.fitting import Fitted, Trial, refine, share_alignment
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.stage_one import take_steps
from interbasin.randomness import generator_of


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows with classes, and each class's mean and spread.

    Attributes:
        rows: ``(rows, width)``, sorted by class.
        places: The class of each, counted from 0 without gaps.
        counts: Rows of each class.
        means: ``(classes, width)``.
        centred: Rows less their class's mean, over the root of its count: what a covariance is the product of.
    """

    rows: Tensor
    places: Tensor
    counts: list[int]
    means: Tensor
    centred: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor) -> LabelledRows:
        """Rows with these labels, whole numbers from 0 on; not all of them need be there."""
        order = labels.argsort(stable=True)
        rows = rows[order].double()
        places = torch.searchsorted(_classes(labels), labels[order])
        counts = torch.bincount(places)
        sums = torch.zeros(len(counts), rows.shape[1], dtype=rows.dtype, device=rows.device)
        means = sums.index_add(0, places, rows) / counts[:, None]
        centred = (rows - means[places]).detach() / counts[places, None].sqrt()
        return cls(rows, places, counts.tolist(), means, centred)


def _classes(labels: Tensor) -> Tensor:
    """Labels that there are, from low to high."""
    return torch.bincount(labels).nonzero()[:, 0]


def label_distances(first: LabelledRows, second: LabelledRows) -> Tensor:
    r"""Squared 2-Wasserstein distances between classes as Gaussians, ``(classes, classes)``; differentiated by means.

    With :math:`A^T A` and :math:`B^T B` for covariances, the part that couples them in the distance of Bures is twice
    the sum of the singular values of :math:`A B^T`.
    """
    with torch.no_grad():
        spreads, others = (
            torch.stack([part.square().sum() for part in torch.split(rows.centred, rows.counts)])
            for rows in (first, second)
        )
        coupled = torch.stack([_couple(part, second) for part in torch.split(first.centred, first.counts)])
        bures = (spreads[:, None] + others - 2 * coupled).clamp(min=0)
    return (first.means[:, None] - second.means).square().sum(2) + bures


def _couple(centred: Tensor, other: LabelledRows) -> Tensor:
    """Sums of singular values of products of one class with each of another set."""
    if len(centred) > centred.shape[1]:  # fewer rows with the same covariance
        centred = torch.linalg.qr(centred, mode="r").R
    products = torch.split(centred @ other.centred.mT, other.counts, dim=1)
    grams = torch.stack([product @ product.mT for product in products])
    values: Tensor = torch.linalg.eigvalsh(grams)
    return values.clamp(min=0).sqrt().sum(1)


def dataset_distance(first: LabelledRows, second: LabelledRows) -> Tensor:
    """The square of OTDD, to be differentiated by rows.

    Example:
        >>> rows, labels = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1])
        >>> same, shifted = LabelledRows.of(rows, labels), LabelledRows.of(rows + 1, labels)
        >>> float(dataset_distance(same, same)), float(dataset_distance(same, shifted))
        (0.0, 4.0)
    """
    classes = label_distances(first, second)
    with torch.no_grad():
        cost = torch.cdist(first.rows, second.rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        rows, columns, mass = plan_pairs(cost + classes[first.places][:, second.places])
    apart = (first.rows[rows] - second.rows[columns]).square().sum(1)
    return (mass * (apart + classes[first.places[rows], second.places[columns]])).sum()


def classwise_distance(rows: Tensor, labels: Tensor, other: LabelledRows, shares: Tensor) -> Tensor:
    """Each class against all of another set, weighted by its share (algorithm 1 of ORCA).

    Args:
        rows, labels: A sample of every class.
        other: The source's.
        shares: Of the classes among all samples.
    """
    parts = [
        shares[label] * dataset_distance(LabelledRows.of(rows[labels == label], labels[labels == label]), other)
        for label in _classes(labels).tolist()
    ]
    return torch.stack(parts).sum()


def sample_classes(labels: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Numbers of samples: so many of each class, at most."""
    shuffled = torch.randperm(len(labels), generator=generator).to(labels.device)
    classes = labels[shuffled]
    return torch.cat([shuffled[classes == label][:most] for label in _classes(labels).tolist()])


@torch.inference_mode(False)
def align_embedder(setup: Setup, rows: Tensor, feature_map: FeatureMap) -> tuple[AlignmentStep, ...]:
    """Train the embedder of a feature map in place; the one after the last step stays, as in the paper."""
    settings, source = setup.settings, setup.source
    generator = generator_of(setup.seed)
    inputs, labels = setup.samples.inputs[rows], setup.classes[rows]
    shares = torch.bincount(labels).double() / len(labels)
    drawn = torch.randperm(len(setup.embedding_means), generator=generator)[:SOURCE_ROWS].to(
        setup.embedding_means.device
    )
    other = LabelledRows.of(setup.embedding_means[drawn], setup.proxy_labels[drawn])
    feature_map.eval()
    optimiser = torch.optim.Adam(feature_map.embedder.parameters(), lr=settings.rival_rate)

    def take_step(number: int) -> float:
        chosen = sample_classes(labels, settings.align_batch, generator)
        means = source.mean_embedding(feature_map.embedder(inputs[chosen]))
        loss = classwise_distance(means, labels[chosen], other, shares)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    take_steps(
        take_step,
        settings.align_steps,
        optimiser=optimiser,
        trained=feature_map.embedder.state_dict(),
        generator=generator,
        places=setup.places_of_stage_one("orca", feature_map.embedder, rows),
    )
    return ()


def fit_orca(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    """Align the embedder's outputs by OTDD, then fine-tune everything."""
    return refine(
        setup, rows, trial, share_alignment(setup, "orca", rows, lambda new: align_embedder(setup, rows, new))
    )
