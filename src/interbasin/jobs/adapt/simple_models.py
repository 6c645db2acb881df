"""Models without a network, which every network has to beat: a linear map of the raw input, and the nearest sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn

from interbasin.jobs.adapt.embedders import column_spreads
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
        is_table = inputs.ndim == 2  # whose columns have units of their own
        self.register_buffer("spread", column_spreads(rows) if is_table else rows.std().clamp(min=1e-8))
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

    @classmethod
    def of_shapes(cls, shapes: Mapping[str, tuple[int, ...]], outputs: tuple[int, ...]) -> Self:
        """A model that is not fitted, with tensors of these shapes, to load weights into."""
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model.shape = outputs
        for name in ("mean", "spread", "shift", "scale"):
            model.register_buffer(name, torch.zeros(shapes[name]))
        values, width = shapes["linear.weight"]
        model.linear = nn.Linear(width, values)
        return model

    def _standardise(self, inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) - self.mean) / self.spread

    def forward(self, inputs: Tensor) -> Tensor:
        values: Tensor = self.linear(self._standardise(inputs)).unflatten(-1, self.shape)
        return values * self.scale + self.shift


class Nearest(nn.Module):
    """The label of the nearest training sample, by the distance of raw inputs; columns of a table by their spread."""

    def __init__(self, inputs: Tensor, labels: Tensor, task: TargetTask) -> None:
        super().__init__()
        self.known: Tensor
        self.answers: Tensor
        self.spread: Tensor
        self.register_buffer(
            "spread", column_spreads(inputs) if inputs.ndim == 2 else torch.ones((), device=inputs.device)
        )
        self.register_buffer("known", inputs.flatten(1) / self.spread)
        answers = labels.float()
        if task.kind == "classification":
            answers = SURE * torch.nn.functional.one_hot(labels, task.shape[0]).float()
        elif task.kind == "multilabel":
            answers = SURE * (2 * labels.float() - 1)
        self.register_buffer("answers", answers)

    @classmethod
    def of_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> Self:
        """A model that knows nothing, with tensors of these shapes, to load them into."""
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        for name in ("spread", "known", "answers"):
            model.register_buffer(name, torch.zeros(shapes[name]))
        return model

    def forward(self, inputs: Tensor) -> Tensor:
        parts = torch.split(inputs.flatten(1) / self.spread, CHUNK)
        exact = "donot_use_mm_for_euclid_dist"  # products lose what is far from zero
        nearest = torch.cat([torch.cdist(part, self.known, compute_mode=exact).argmin(1) for part in parts])
        return self.answers[nearest]
