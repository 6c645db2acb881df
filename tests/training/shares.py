"""Trainings for one process or two: what each of them should end with is the same."""

from __future__ import annotations

import os
from typing import Any

import torch
from tests.training.examples import COUNT, network, rows_and_labels
from torch import Tensor, nn

from interbasin.training import ShuffledRows, Training, train


def fit_line(*, batch_size: int = 5, **options: Any) -> dict[str, Tensor]:
    """A regression in float64, on batches of an odd size and a short last one.

    Beside it a number in float32 is fitted to the mean; and one tensor has no part in the loss.
    """
    inputs, labels = (tensor.double() for tensor in rows_and_labels())
    # Processes need not start alike: the main one's weights are taken.
    start = 0.1 + int(os.environ.get("RANK", "0"))
    weight = torch.full((3, 1), start, dtype=torch.float64, requires_grad=True)
    mean = torch.zeros(1, requires_grad=True)
    unused = torch.ones(2, dtype=torch.float64, requires_grad=True)
    groups = [{"params": [weight, unused], "rate": 0.03}, {"params": [mean], "rate": 0.01}]

    def loss(rows: Tensor, index: int) -> Tensor:
        error = (inputs[rows] @ weight - labels[rows]).square().mean()
        return error + (mean - labels[rows].float()).square().mean()

    train(groups, ShuffledRows(COUNT, batch_size, seed=2), loss, **options)
    return {"weight": weight.detach(), "mean": mean.detach(), "unused": unused.detach()}


def fit_with_dropout(*, stop_at: int | None = None, **options: Any) -> tuple[dict[str, Tensor], Training]:
    """Three epochs of a network with dropout and batch norm; breaks off at the batch ``stop_at``, counted over all."""
    inputs, labels = rows_and_labels()
    model, indices = network(), []

    def loss(rows: Tensor, index: int) -> Tensor:
        if len(indices) == stop_at:
            raise KeyboardInterrupt
        indices.append(index)
        return nn.functional.mse_loss(model(inputs[rows]), labels[rows])

    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            score = float((model(inputs) - labels).square().mean())
        model.train()
        return score

    training = train(
        model.parameters(),
        ShuffledRows(COUNT, 6, seed=2),
        loss,
        epochs=3,
        rate=0.02,
        seed=4,
        evaluate=evaluate,
        buffers=model.buffers(),
        **options,
    )
    return dict(model.state_dict()), training
