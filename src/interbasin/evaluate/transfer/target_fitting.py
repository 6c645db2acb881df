r"""How far a predictor is from what could be known, and the bound that this completes.

Target fitting is :math:`KL(D(z' \mid u) \| p(z' \mid u))`, at most what Definition 6 of RECRAFT [tran:26] asks for, and
the theorem holds with it. :math:`D`, the distribution of labels at a feature, is not known. With the labels themselves
in its place the term would be the target's loss, and the bound would say nothing; so it is estimated by a logistic
probe on features, cross-fitted, with leave-one-out neighbours beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from interbasin.checks import require_finite
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.transfer.feature_alignment import sampling_floor, wasserstein
from interbasin.evaluate.transfer.label_distortion import Distortion, distortion, folds_of
from interbasin.randomness import generator_of

ENOUGH = 200  # samples, below which estimates of what could be known are rough
NEIGHBOURS = 10
FOLDS = 5
LEAST = 1e-6  # of an estimated probability
SUMS_TO_ONE = 1e-2  # what probabilities may miss it by, as half precision does


@dataclass(frozen=True)
class TransferBound:
    """The terms of the bound on the target's loss, in nats.

    Attributes:
        error_source: The source's loss on its own data.
        omega: How fast the source's loss changes with features: the 99th percentile of its gradient.
        distance: The Wasserstein distance of target and source features.
        floor: What that distance is between two parts of the source's features.
        distortion: See `Distortion`.
        fitting: How far the predictor is from what a probe finds to be known.
        fitting_by_neighbours: The same by leave-one-out neighbours.
        surprise: The mean entropy of the source's answers on target features: what stands in the place of the source's
            loss and the distance in the direct form.
        error_target: The target's loss, which the bound is for.
        notes: What a user should know.
    """

    error_source: float
    omega: float
    distance: float
    floor: float
    distortion: Distortion
    fitting: float
    fitting_by_neighbours: float
    surprise: float
    error_target: float
    notes: tuple[str, ...] = ()

    @property
    def alignment(self) -> float:
        """``omega`` times the distance (equation 14)."""
        return self.omega * self.distance

    @property
    def bound(self) -> float:
        """As the paper has it: ``err_source + FA + FLD + TF`` (Theorem 7)."""
        return self.error_source + self.alignment + self.distortion.soft + self.fitting

    @property
    def direct_bound(self) -> float:
        """Without a Lipschitz constant: ``E_target H(p_s) + FLD + TF``, under the proof's own assumption."""
        return self.surprise + self.distortion.soft + self.fitting

    def metrics(self) -> dict[str, float]:
        """Flat, by the names of the contract."""
        forms = asdict(self.distortion)
        return {
            "fa": self.alignment,
            "fa_floor": self.omega * self.floor,
            "fld": forms["soft"],
            "fld_hard": forms["hard"],
            "fld_crossed": forms["crossed"],
            "tf": self.fitting,
            "tf_neighbours": self.fitting_by_neighbours,
            "err_source": self.error_source,
            "err_target": self.error_target,
            "label_entropy": forms["labels"],
            "bound": self.bound,
            "bound_direct": self.direct_bound,
        }


def measure_bound(
    *,
    target_features: Tensor,
    target_labels: Tensor,
    target_answers: Tensor,
    source_answers: Tensor,
    source_features: Tensor,
    error_source: float,
    omega: float,
    seed: int = 0,
) -> TransferBound:
    """The bound and all its terms, for any network that was fine-tuned on another modality.

    Args:
        target_features: Of labelled target samples, ``(samples, width)``, in the space that the source's head reads.
            Distances are in units of these numbers, and so is ``omega``: what both are divided by plays no part.
        target_labels: One for each.
        target_answers: What the target's predictor says, probabilities ``(samples, target labels)``.
        source_answers: What the source's head says of the same features, probabilities ``(samples, source labels)``.
        source_features: Of source samples, in the same space.
        error_source: The source's loss on its own data.
        omega: The 99th percentile of the gradient of the source's loss.
        seed: Of folds and of the floor.

    Raises:
        ShapeError, DataError: if these do not fit together.
    """
    _require_fit(target_features, target_labels, target_answers, source_answers, source_features)
    target_labels, count = target_labels.long(), target_answers.shape[1]
    error_source = require_finite("error_source", error_source, least=0)
    omega = require_finite("omega", omega, least=0)
    answers = target_answers.detach().double().clamp(min=LEAST)
    answers = answers / answers.sum(1, keepdim=True)
    features = target_features.detach().double()
    by_probe = probe_answers(features, target_labels, count, seed)
    by_neighbours = neighbour_answers(features, target_labels, count)
    shares = source_answers.detach().double()
    notes: tuple[str, ...] = ()
    if len(target_labels) < ENOUGH:
        notes = (
            f"The term TF of the bound rests on {len(target_labels)} samples and is rough; with {ENOUGH} it is not.",
        )
    generator = generator_of(seed)
    return TransferBound(
        error_source=error_source,
        omega=omega,
        distance=float(wasserstein(features, source_features.detach().double())),
        floor=sampling_floor(source_features.detach().double(), len(features), generator),
        distortion=distortion(shares, target_labels, count, seed=seed),
        fitting=_divergence(by_probe, answers),
        fitting_by_neighbours=_divergence(by_neighbours, answers),
        surprise=float(-torch.special.xlogy(shares, shares).sum(1).mean()),
        error_target=float(-answers[torch.arange(len(answers)), target_labels].log().mean()),
        notes=notes,
    )


def _require_fit(features: Tensor, labels: Tensor, answers: Tensor, source_answers: Tensor, sources: Tensor) -> None:
    """Refuse arguments of `measure_bound` that do not belong together, or are no probabilities."""
    named = {"target_features": features, "target_labels": labels, "target_answers": answers}
    for name, part in {**named, "source_answers": source_answers, "source_features": sources}.items():
        if not isinstance(part, Tensor):
            raise DataError(f"{name} are a tensor, found {type(part).__name__}; use torch.as_tensor.")
    if labels.ndim != 1 or not len(labels) or labels.is_floating_point() or int(labels.min()) < 0:
        raise DataError(
            f"target_labels are whole numbers from 0 on, one for each sample, found {labels.dtype} of shape "
            f"{tuple(labels.shape)}; make classes of others first."
        )
    count = len(labels)
    if answers.ndim != 2 or len(answers) != count or int(labels.max()) >= answers.shape[1]:
        raise ShapeError(
            f"The predictor's answers have shape {tuple(answers.shape)}, for {count} labels up to "
            f"{int(labels.max())}; give a row for each sample and a column for each label."
        )
    if features.ndim != 2 or len(features) != count:
        raise ShapeError(
            f"target_features have shape {tuple(features.shape)}, for {count} labels; give one row for each sample."
        )
    if sources.ndim != 2 or sources.shape[1] != features.shape[1]:
        raise ShapeError(
            f"source_features have shape {tuple(sources.shape)} and target_features {tuple(features.shape)}; give rows "
            "of one space."
        )
    if source_answers.ndim != 2 or len(source_answers) != count:
        raise ShapeError(
            f"source_answers have shape {tuple(source_answers.shape)}, for {count} labels; give what the source's head "
            "says of target_features, one row for each."
        )
    for name, shares in (("target_answers", answers), ("source_answers", source_answers)):
        sums = shares.detach().double().sum(1)
        if not bool((shares >= 0).all() and ((sums - 1).abs() < SUMS_TO_ONE).all()):
            raise DataError(
                f"{name} are probabilities, and rows that are negative or do not sum to 1 were found (the first sums "
                f"to {float(sums[0]):.3g}); give logits as logits.softmax(1)."
            )
    for name, rows in (("target_features", features), ("source_features", sources)):
        if not bool(torch.isfinite(rows).all()):
            raise DataError(f"{name} hold NaN or infinity; take such rows out.")


def probe_answers(features: Tensor, labels: Tensor, count: int, seed: int) -> Tensor:
    """Probabilities of the labels by a logistic regression on features that each sample had no part in."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rows, classes = features.cpu().numpy(), labels.cpu().numpy()
    answers = np.zeros((len(rows), count))
    for held in folds_of(len(rows), FOLDS, seed):
        rest = np.setdiff1d(np.arange(len(rows)), held.numpy())
        known = np.unique(classes[rest])
        if len(known) < 2:
            answers[held.numpy()[:, None], known] = 1.0
            continue
        scaler = StandardScaler().fit(rows[rest])
        probe = LogisticRegression(C=0.1, max_iter=500).fit(scaler.transform(rows[rest]), classes[rest])
        answers[held.numpy()[:, None], probe.classes_] = probe.predict_proba(scaler.transform(rows[held.numpy()]))
    return _smooth(torch.from_numpy(answers), labels, count)


def neighbour_answers(features: Tensor, labels: Tensor, count: int) -> Tensor:
    """Probabilities of the labels by those of the nearest other samples."""
    if len(features) < 2:
        raise DataError("TF is estimated from other samples, and there is one; give more.")
    distances = torch.cdist(features, features).fill_diagonal_(torch.inf)
    nearest = distances.topk(min(NEIGHBOURS, len(features) - 1), largest=False).indices
    members = torch.nn.functional.one_hot(labels, count).double()
    return _smooth(members[nearest].mean(1), labels, count)


def _smooth(answers: Tensor, labels: Tensor, count: int) -> Tensor:
    """Answers that leave a little to every label, as its share has it."""
    shares = torch.bincount(labels, minlength=count).double() + 1 / count
    shares = shares / shares.sum()
    mixed = 0.99 * answers.double() + 0.01 * shares
    return mixed / mixed.sum(1, keepdim=True)


def _divergence(known: Tensor, answers: Tensor) -> float:
    return float((torch.special.xlogy(known, known) - known * answers.log()).sum(1).mean())
