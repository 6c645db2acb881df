r"""The source's head, recalibrated so that its loss does not change fast with the features.

Feature alignment bounds how much the source's loss can change between source and target features by
:math:`\omega W_1`, where :math:`\omega` is how fast that loss changes. The last layer is refitted on the proxy data
with cross-entropy and :math:`\rho\,\mathrm{mean}\,\mathrm{relu}(\|\nabla_u \ell\| - \omega)^2` (equation 13 and
appendix F of RECRAFT [tran:26]; the cross-entropy is ours, for equation 13 alone is minimised by a head that says
nothing), as far as cross-entropy rises by at most five per cent. The omega that counts is the 99th percentile that is
measured at the end.

A third of the proxy data has no part in the fit, and decides: which head is taken, what its cross-entropy and its omega
are. A last layer of some hundred numbers can fit a few thousand samples by growing sharp, so that all of them lie where
its answers are sure and its gradient is nothing; between them, where target features will lie, the gradient is then
large. On samples that were held back this shows. For the same reason the size of the weights is penalised.

In the proof the labels of the source are drawn from the head itself, so that its loss at a feature is the entropy of
its answer, which is a function of the feature alone. That form is the default. With the labels that were drawn
(``loss="labels"``) the few samples that are answered wrongly decide, and an omega below 1 can hardly be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError
from interbasin.randomness import generator_of

SourceLoss = Literal["entropy", "labels"]
ALLOWED = 0.05  # by which cross-entropy on the proxy may rise
WEIGHTS = (1e-2, 1e-1, 1.0)  # of the penalty on gradients
DECAYS = (1e-5, 1e-4, 1e-3)  # of the penalty on weights, for features of which two are 1 apart on average
SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the way from the head to a refitted one
STEPS = 60  # of L-BFGS
PERCENTILE = 0.99
HELD = 1 / 3  # of the proxy, which decides
LEAST_HELD = 20  # samples; with fewer all of them fit and decide


@dataclass(frozen=True, eq=False)
class SourceHead:
    """A head on features, and how it does on proxy data that it was not fitted to.

    Attributes:
        linear: Features (in their own scale) -> logits; frozen.
        omega: The 99th percentile of the gradient of its loss by features, in the scale of the features.
        omega_before: The same before.
        loss: Cross-entropy.
        loss_before: The same before.
        accuracy: The share of right answers.
        held: The numbers of the proxy samples on which all this was measured.
    """

    linear: nn.Linear
    omega: float
    omega_before: float
    loss: float
    loss_before: float
    accuracy: float
    held: Tensor

    def probabilities(self, features: Tensor) -> Tensor:
        """``p_s(z | u)``, a row for each feature."""
        answers: Tensor = self.linear(features).softmax(-1)
        return answers


def fit_source_head(
    features: Tensor, labels: Tensor, linear: nn.Linear | None = None, *, scale: float = 1.0
) -> nn.Linear:
    """A head for a source that has none: a logistic regression on the proxy's features, or a copy of the given one.

    Args:
        features: Of the proxy data, ``(samples, width)``.
        labels: Of the proxy data.
        linear: A head of the source's features as they are.
        scale: What features were multiplied with since; the copy answers as the given one did.

    Raises:
        DataError: if the proxy has fewer than two labels.
    """
    if linear is not None:
        head = _copy(linear)
        head.weight.div_(scale)
        return head
    classes = int(labels.max()) + 1
    if int(labels.min()) == int(labels.max()):
        raise DataError("A source head is trained on the proxy's labels, and all are the same; give other proxy data.")
    head = nn.Linear(features.shape[1], classes).to(features)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    _minimise(head, lambda: cross_entropy(head(features), labels) + DECAYS[1] * head.weight.square().sum())
    return head.requires_grad_(False)


def recalibrate(
    head: nn.Linear,
    features: Tensor,
    labels: Tensor,
    *,
    omega: float = 0.3,
    loss: SourceLoss = "entropy",
    allowed: float = ALLOWED,
    seed: int = 0,
) -> SourceHead:
    """The head with a loss that changes more slowly, as far as its cross-entropy allows.

    Args:
        head: The last layer; it stays as it is.
        features: Of the proxy data, ``(samples, width)``.
        labels: Of the proxy data.
        omega: The gradient that is aimed at.
        loss: Whose gradient: the entropy of the answers, or the cross-entropy with the labels.
        allowed: By which share cross-entropy may rise, on the samples that decide and on all.
        seed: Of the choice of the samples that decide.

    Raises:
        DataError: if ``omega`` is no positive number.
    """
    require_finite("omega", omega, above=0)
    require_choice("loss", loss, get_args(SourceLoss))
    order = torch.randperm(len(labels), generator=generator_of(seed)).to(labels.device)
    count = int(HELD * len(labels))
    held, rest = (order[:count], order[count:]) if count >= LEAST_HELD else (order, order)

    def measure(candidate: nn.Linear) -> tuple[float, float, float]:
        """Cross-entropy on all samples and on those that decide, and omega on these."""
        with torch.no_grad():
            losses = cross_entropy(candidate(features), labels, reduction="none")
        slope = measure_omega(candidate, features[held], labels[held], loss)
        return float(losses.mean()), float(losses[held].mean()), slope

    before = measure(head)
    best, best_measures = _copy(head), before
    for decay in DECAYS:
        candidate = _copy(head)
        for weight in WEIGHTS:
            candidate = _refit(candidate, features[rest], labels[rest], omega, loss, weight, decay)
            for share in SHARES:
                between = _mix(head, candidate, share)
                measures = measure(between)
                is_allowed = all(after <= (1 + allowed) * old for after, old in zip(measures, before[:2], strict=False))
                if is_allowed and measures[2] < best_measures[2]:
                    best, best_measures = between, measures
    with torch.no_grad():
        accuracy = float((best(features[held]).argmax(1) == labels[held]).float().mean())
    return SourceHead(best, best_measures[2], before[2], best_measures[1], before[1], accuracy, held)


def _mix(head: nn.Linear, other: nn.Linear, share: float) -> nn.Linear:
    """A head on the way to another; along it cross-entropy is convex."""
    mixture = _copy(head)
    mixture.weight.lerp_(other.weight, share)
    mixture.bias.lerp_(other.bias, share)
    return mixture


def _refit(
    head: nn.Linear, features: Tensor, labels: Tensor, omega: float, loss: SourceLoss, weight: float, decay: float
) -> nn.Linear:
    """A head from which cross-entropy, the excess of gradients over omega and the size of the weights were reduced."""
    candidate = _copy(head).requires_grad_(True)

    def objective() -> Tensor:
        excess = (_gradients(candidate, features, labels, loss).norm(dim=1) - omega).relu()
        size = candidate.weight.square().sum()
        total: Tensor = cross_entropy(candidate(features), labels) + weight * excess.square().mean() + decay * size
        return total

    _minimise(candidate, objective)
    return candidate.requires_grad_(False)


def _gradients(head: nn.Linear, features: Tensor, labels: Tensor, loss: SourceLoss) -> Tensor:
    """The gradient of the loss by each feature, in closed form: a linear map of the gradient by the logits."""
    logs = head(features).log_softmax(1)
    shares = logs.exp()
    if loss == "labels":
        by_logits = shares - torch.nn.functional.one_hot(labels, shares.shape[1])
    else:
        entropies = -(shares * logs).sum(1, keepdim=True)
        by_logits = -shares * (logs + entropies)
    gradients: Tensor = by_logits @ head.weight
    return gradients


@torch.no_grad()
def measure_omega(head: nn.Linear, features: Tensor, labels: Tensor, loss: SourceLoss = "entropy") -> float:
    """How fast the loss of a head changes with features: the 99th percentile of its gradient's length."""
    return float(_gradients(head, features, labels, loss).norm(dim=1).double().quantile(PERCENTILE))


def _minimise(head: nn.Linear, objective: Callable[[], Tensor]) -> None:
    """Bring an objective of a head down by L-BFGS."""
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = objective()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.inference_mode(False):
        optimiser.step(closure)  # type: ignore[no-untyped-call]


def _copy(head: nn.Linear) -> nn.Linear:
    other = nn.Linear(head.in_features, head.out_features).to(head.weight)
    with torch.no_grad():
        other.weight.copy_(head.weight)
        other.bias.copy_(torch.zeros_like(other.bias) if head.bias is None else head.bias)
    return other.requires_grad_(False)
