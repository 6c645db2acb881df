"""Loss and accuracy of a network on data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.batches import (
    BATCH_SIZE,
    Progress,
    as_batches,
    call_arguments,
    count_inputs,
    outputs_of,
    progress_bar,
    split_batch,
)
from interbasin.errors import DataError
from interbasin.evaluate.scores import Loss, score
from interbasin.wiring.trace.copying import copy_for_evaluation


@dataclass(frozen=True)
class Performance:
    """How a network does.

    Attributes:
        loss: The mean over all samples; for cross-entropy, over all labels that count.
        accuracy: The share of labels that were met; None where there are none that could be.
        count: How many inputs there were.
    """

    loss: float
    accuracy: float | None
    count: int


def performance(
    model: nn.Module, data: Any, loss: Loss | None = None, *, batch_size: int = BATCH_SIZE, progress: Progress = None
) -> Performance:
    """Loss and accuracy of a network, in evaluation mode; it stays as it is.

    Args:
        model: The network.
        data: Batches to iterate over; those with labels are pairs (inputs, labels). Inputs are a tensor, a tuple of
            positional arguments or a mapping of keyword arguments.
        loss: Takes what the network gives and the labels, and returns the mean over the batch, or one value per sample;
            for batches without labels, it takes what the network gives alone. By default cross-entropy, also of tokens
            (`interbasin.evaluate.scores` says how labels are held against them).
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches are done.

    Raises:
        DataError, ShapeError: if there are no data, or no labels where the loss needs them; says in which batch.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = model.weight.data.copy_(torch.eye(2))
        >>> performance(model, [(torch.eye(2), torch.tensor([0, 0]))]).accuracy
        0.5
    """
    return measured(copy_for_evaluation(model), data, loss, batch_size, progress)


def loss(model: nn.Module, data: Any, loss: Loss | None = None, *, progress: Progress = None) -> float:
    """The mean loss of a network on data; see `performance`."""
    return performance(model, data, loss, progress=progress).loss


def accuracy(model: nn.Module, data: Any, *, progress: Progress = None) -> float:
    """The share of labels that a network meets; see `performance`.

    Raises:
        DataError: if there are no labels.
    """
    found = performance(model, data, progress=progress).accuracy
    assert found is not None  # cross-entropy has refused what has no classes
    return found


def measured(
    network: nn.Module, data: Any, loss: Loss | None, batch_size: int = BATCH_SIZE, progress: Progress = None
) -> Performance:
    """The same of a network that is in evaluation mode, and that nobody minds if it changes."""
    if loss is not None and not callable(loss):
        raise DataError(
            f"The loss is a function of what the network gives and the labels, found a {type(loss).__name__}; give "
            "one, or None for cross-entropy."
        )
    batches = as_batches(data, batch_size)
    losses, met = [], 0
    count = labels = weight = 0.0
    classes = True
    with progress_bar(progress, batches, silent=False, what="evaluating") as tell, torch.inference_mode():
        for index, batch in enumerate(batches):
            inputs, wanted = split_batch(batch)
            outputs = outputs_of(network, inputs, index)
            size = _size(network, inputs, wanted)
            one = score(outputs, wanted, inputs, size, index, loss)
            losses.append(one.loss)
            count, weight = count + size, weight + one.weight
            classes = classes and one.met is not None
            met, labels = met + (one.met or 0), labels + one.labels
            tell(index + 1)
    if not losses:
        raise DataError("The data hold no batch at all, so there is nothing to evaluate on; give some.")
    if not weight:
        raise DataError("No label counts in any batch: all are -100, or the batches are empty; check the labels.")
    return Performance(sum(losses) / weight, met / labels if classes and labels else None, int(count))


def _size(network: nn.Module, inputs: Any, labels: Any) -> int:
    """How many samples a batch holds."""
    held = count_inputs(*call_arguments(network, inputs, None))
    if held is None and isinstance(labels, Tensor) and labels.ndim:
        held = len(labels)
    return 1 if held is None else held
