"""Models without a network, which every network has to beat: a linear map of the raw input, and the nearest sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from interbasin.jobs.adapt.network import fit_probe, fit_ridge
from interbasin.jobs.adapt.task import TargetTask

CHUNK = 512
SURE = 4.0  # logits of what the nearest sample says


class RawLinear(nn.Module):
    """A logistic or ridge regression on the raw input, standardised.

    Args:
        inputs, labels: To fit it to.
        task: What is to be learned.
        strength: Of the penalty.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, task: TargetTask, strength: float) -> None:
        super().__init__()
        rows = inputs.flatten(1)
        self.shape = task.shape
        self.mean: Tensor
        self.spread: Tensor
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("spread", rows.std().clamp(min=1e-8))
        self.register_buffer("shift", task.shift.clone())
        self.register_buffer("scale", task.scale.clone())
        if task.kind in ("classification", "multilabel"):
            weight, bias = fit_probe(self._standardise(inputs), labels, task, strength)
        else:
            wanted = ((labels - self.shift) / self.scale).flatten(1)
            weight, bias = fit_ridge(self._standardise(inputs), wanted, strength)
        self.linear = nn.Linear(*weight.T.shape)
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            self.linear.bias.copy_(bias)
        self.requires_grad_(False)

    def _standardise(self, inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) - self.mean) / self.spread

    def forward(self, inputs: Tensor) -> Tensor:
        values: Tensor = self.linear(self._standardise(inputs)).unflatten(-1, self.shape)
        return values * self.scale + self.shift


class Nearest(nn.Module):
    """The label of the nearest training sample, by the distance of raw inputs."""

    def __init__(self, inputs: Tensor, labels: Tensor, task: TargetTask) -> None:
        super().__init__()
        self.known: Tensor
        self.answers: Tensor
        self.register_buffer("known", inputs.flatten(1).clone())
        answers = labels.float()
        if task.kind == "classification":
            answers = SURE * torch.nn.functional.one_hot(labels, task.shape[0]).float()
        elif task.kind == "multilabel":
            answers = SURE * (2 * labels.float() - 1)
        self.register_buffer("answers", answers)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = torch.split(inputs.flatten(1), CHUNK)
        nearest = torch.cat([torch.cdist(part, self.known).argmin(1) for part in parts])
        return self.answers[nearest]
