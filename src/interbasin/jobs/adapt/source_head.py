r"""The source's head, recalibrated so that its loss does not change fast with the features.

Feature alignment bounds how much the source's loss can change between source and target features by
:math:`\omega W_1`, where :math:`\omega` is how fast that loss changes. The last layer is refitted on the proxy data
with cross-entropy and :math:`\rho\,\mathrm{mean}\,\mathrm{relu}(\|\nabla_u \ell\| - \omega)^2` (equation 13 and
appendix F of RECRAFT [tran:26]; the cross-entropy is ours, for equation 13 alone is minimised by a head that says
nothing), as far as cross-entropy rises by at most five per cent. The omega that counts is the 99th percentile that is
measured at the end.

In the proof the labels of the source are drawn from the head itself, so that its loss at a feature is the entropy of
its answer, which is a function of the feature alone. That form is the default. With the labels that were drawn
(``loss="labels"``) the few samples that are answered wrongly decide, and an omega below 1 can hardly be reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError

SourceLoss = Literal["entropy", "labels"]
ALLOWED = 0.05  # by which cross-entropy on the proxy may rise
WEIGHTS = tuple(10.0 ** (power / 2) for power in range(-8, 5))  # of the penalty, from light to heavy
STEPS = 60  # of L-BFGS
PERCENTILE = 0.99
DECAY = 1e-4  # of the weights of a head that is trained here


@dataclass(frozen=True, eq=False)
class SourceHead:
    """A head on features, and how it does on the proxy data.

    Attributes:
        linear: Features (in their own scale) -> logits; frozen.
        omega: The 99th percentile of the gradient of its loss by features, in the scale of the features.
        omega_before: The same before.
        loss: Cross-entropy on the proxy data.
        loss_before: The same before.
        accuracy: On the proxy data.
    """

    linear: nn.Linear
    omega: float
    omega_before: float
    loss: float
    loss_before: float
    accuracy: float

    def probabilities(self, features: Tensor) -> Tensor:
        """``p_s(z | u)``, a row for each feature."""
        answers: Tensor = self.linear(features).softmax(-1)
        return answers


def fit_source_head(features: Tensor, labels: Tensor, linear: nn.Linear | None = None) -> nn.Linear:
    """A head for a source that has none: a logistic regression on the proxy's features, or a copy of the given one.

    Raises:
        DataError: if the proxy has fewer than two labels.
    """
    if linear is not None:
        return _copy(linear)
    classes = int(labels.max()) + 1
    if int(labels.min()) == int(labels.max()):
        raise DataError("A source head is trained on the proxy's labels, and all are the same; give other proxy data.")
    head = nn.Linear(features.shape[1], classes).to(features)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    _minimise(head, lambda: cross_entropy(head(features), labels) + DECAY * head.weight.square().sum())
    return head.requires_grad_(False)


def recalibrate(
    head: nn.Linear,
    features: Tensor,
    labels: Tensor,
    *,
    omega: float = 0.3,
    loss: SourceLoss = "entropy",
    allowed: float = ALLOWED,
) -> SourceHead:
    """The head with a loss that changes more slowly, as far as its cross-entropy allows.

    Args:
        head: The last layer; it stays as it is.
        features: Of the proxy data, ``(samples, width)``.
        labels: Of the proxy data.
        omega: The gradient that is aimed at.
        loss: Whose gradient: the entropy of the answers, or the cross-entropy with the labels.
        allowed: By which share cross-entropy may rise.

    Raises:
        DataError: if ``omega`` is no positive number.
    """
    require_finite("omega", omega, above=0)
    require_choice("loss", loss, get_args(SourceLoss))
    with torch.no_grad():
        before = float(cross_entropy(head(features), labels))
        omega_before = _percentile(_gradients(head, features, labels, loss))
    best = _copy(head)
    for weight in WEIGHTS:
        candidate = _copy(best).requires_grad_(True)

        def objective(head: nn.Linear = candidate, weight: float = weight) -> Tensor:
            excess = (_gradients(head, features, labels, loss).norm(dim=1) - omega).relu()
            total: Tensor = cross_entropy(head(features), labels) + weight * excess.square().mean()
            return total

        _minimise(candidate, objective)
        with torch.no_grad():
            found = float(cross_entropy(candidate(features), labels))
        if not math.isfinite(found) or found > before * (1 + allowed):
            break
        best = candidate
    best.requires_grad_(False)
    with torch.no_grad():
        logits = best(features)
        return SourceHead(
            best,
            _percentile(_gradients(best, features, labels, loss)),
            omega_before,
            float(cross_entropy(logits, labels)),
            before,
            float((logits.argmax(1) == labels).float().mean()),
        )


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


def _percentile(gradients: Tensor) -> float:
    return float(gradients.norm(dim=1).double().quantile(PERCENTILE))


def _minimise(head: nn.Linear, objective: object) -> None:
    """Bring an objective of a head down by L-BFGS."""
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value: Tensor = objective()  # type: ignore[operator]
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
