"""Fitting tensors to batches by gradient descent: one plain loop, in one process, that needs nothing but torch.

The caller says what the loss of a batch is, so a whole network, an adapter or free weights that a network follows are
trained alike. Modes such as evaluation, and which tensors require gradients, are for the caller to set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interbasin.batches import BATCH_SIZE, as_batches
from interbasin.errors import DataError


@dataclass(frozen=True)
class Training:
    """How a training went.

    Attributes:
        losses: The mean loss over the batches of each epoch.
        scores: What ``evaluate`` returned after each epoch; empty without it.
        best: The number of the epoch with the lowest score, counted from 1; 0 where none was below the bar.
        stopped_early: Whether patience ran out before the last epoch.
    """

    losses: tuple[float, ...]
    scores: tuple[float, ...]
    best: int
    stopped_early: bool


@torch.inference_mode(False)  # callers may have switched gradients off
def train(
    parameters: Iterable[Tensor],
    data: Any,
    loss: Callable[[Any, int], Tensor],
    *,
    epochs: int,
    rate: float,
    batch_size: int = BATCH_SIZE,
    evaluate: Callable[[], float] | None = None,
    bar: float = math.inf,
    keep: Callable[[], object] | None = None,
    patience: int | None = None,
    one_cycle: int | None = None,
    what: str = "training",
    report: Callable[[str], object] | None = None,
) -> Training:
    """Change ``parameters`` in place by Adam, in the order in which the batches come; or by AdamW in one cycle.

    Args:
        parameters: Leaf tensors that require gradients.
        data: Batches to iterate over once per epoch.
        loss: The loss of a batch, given the batch and its number, to be differentiated.
        epochs: Passes over the data.
        rate: Learning rate.
        batch_size: For data that are one tensor.
        evaluate: What epochs are judged by, after each of them; the smaller the better.
        bar: What the first score has to be below to count as better, such as the score before training.
        keep: Called after each epoch that is better than all before it: the moment to copy or save its weights.
        patience: Stop after this many epochs in a row without a better score; None never stops early.
        one_cycle: The number of all steps: the rate rises to ``rate`` and falls to nothing over them, and weights
            decay as AdamW has it. None: a constant rate, without decay.
        what: What is going on, for messages.
        report: Called with a line of text after each epoch.

    Raises:
        DataError: if there are no batches, or a loss is not finite.

    Example:
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> data = [torch.tensor([1.0])]
        >>> training = train([weight], data, lambda x, _: (weight - x).square().sum(), epochs=9, rate=0.1)
        >>> training.losses[0], training.losses[-1] < 0.1
        (1.0, True)
    """
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.OneCycleLR | None = None
    if one_cycle is None:
        optimiser = torch.optim.Adam(list(parameters), lr=rate)
    else:
        optimiser = torch.optim.AdamW(list(parameters), lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=one_cycle)
    losses: list[float] = []
    scores: list[float] = []
    best = 0
    for epoch in range(1, epochs + 1):
        values = []
        for index, batch in enumerate(as_batches(data, batch_size)):
            value = loss(batch, index)
            values.append(float(value.detach()))
            if not math.isfinite(values[-1]):
                raise DataError(
                    f"The loss of {what} is {values[-1]} in batch {index} of epoch {epoch}; check the data and the "
                    "networks, or lower the learning rate."
                )
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if schedule is not None:
                schedule.step()
        if not values:
            raise DataError(f"The data of {what} hold no batch at all; give some.")
        losses.append(sum(values) / len(values))
        words = f"{what}, epoch {epoch}: loss {losses[-1]:.4g}"
        if evaluate is not None:
            scores.append(evaluate())
            words += f", score {scores[-1]:.4g}"
            if scores[-1] < bar:
                best, bar = epoch, scores[-1]
                if keep is not None:
                    keep()
        if report is not None:
            report(words)
        if patience is not None and evaluate is not None and epoch - best >= patience and epoch < epochs:
            return Training(tuple(losses), tuple(scores), best, True)
    return Training(tuple(losses), tuple(scores), best, False)
