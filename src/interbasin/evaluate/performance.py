"""Loss and accuracy of a network on data, and what alignment does to them.

Logits are the outputs, or what they hold under ``logits``, or their first floating-point tensor. Classes lie on their
last axis, ``(..., classes)`` against labels ``(...)``, or on the second as torch has it, ``(batch, classes, ...)``.
Labels of -100 do not count. Where integer labels are the network's own input tokens, wherever they count, the network
is a language model: its output at a token is compared with the next token, and padding does not count. Any other shift
is up to whoever made the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interbasin.arrays import working_dtype
from interbasin.batches import (
    BATCH_SIZE,
    Progress,
    as_batches,
    call_arguments,
    count_inputs,
    outputs_of,
    progress_bar,
    require_reiterable,
    split_batch,
)
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.evaluate.measured import Measured
from interbasin.text import one_line
from interbasin.wiring import Alignment
from interbasin.wiring.check import round_off
from interbasin.wiring.trace.calls import output_tensors
from interbasin.wiring.trace.copying import copy_for_evaluation

# Outputs and labels -> the mean loss of the batch, or one value per sample. Without labels, of the outputs alone.
Loss: TypeAlias = Callable[..., Any]

IGNORED = -100


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
        loss: Takes the outputs and the labels, and returns the mean over the batch, or one value per sample; for
            batches without labels, it takes the outputs alone. By default cross-entropy, also of tokens.
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
    return measure_performance(copy_for_evaluation(model), data, loss, batch_size, progress)


def loss(model: nn.Module, data: Any, loss: Loss | None = None, *, progress: Progress = None) -> float:
    """The mean loss of a network on data; see `performance`."""
    return performance(model, data, loss, progress=progress).loss


def accuracy(model: nn.Module, data: Any, *, progress: Progress = None) -> float:
    """The share of labels that a network meets; see `performance`.

    Raises:
        DataError: if there are no labels.
    """
    share = performance(model, data, progress=progress).accuracy
    assert share is not None  # cross-entropy has refused what has no classes
    return share


def self_change(
    source: nn.Module,
    aligned: nn.Module,
    data: Any,
    loss: Loss | None = None,
    *,
    alignment: Alignment | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress = None,
) -> Measured:
    """The residual alignment error: how loss and accuracy of a network change when it is aligned [adelfio:25].

    Args:
        source: The network before.
        aligned: The same network in other coordinates.
        data: Batches to iterate over, more than once: pairs (inputs, labels).
        loss: As `performance` takes it; by default cross-entropy.
        alignment: What it was carried through. If its maps are exact, the loss has to be the same to round-off.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches are done.

    Returns:
        ``delta_loss_self`` and ``delta_accuracy_self``, after minus before.

    Raises:
        WiringError: if the alignment is exact and the loss is another all the same.
    """
    require_reiterable(data, "The residual alignment error")
    before, after = (
        performance(network, data, loss, batch_size=batch_size, progress=progress) for network in (source, aligned)
    )
    change = after.loss - before.loss
    if alignment is not None and alignment.is_exact:
        allowed = round_off(source) * max(1.0, abs(before.loss))
        if math.isfinite(before.loss) and not abs(change) <= allowed:
            raise WiringError(
                f"The alignment is exact, so the loss should stay at {before.loss:.6g}, but it became {after.loss:.6g} "
                f"(more than {allowed:.1g} of round-off); the aligned network is not the source carried through this "
                "alignment, or the wiring is wrong: see wiring.check(model, inputs)."
            )
    metrics = {"delta_loss_self": change}
    if before.accuracy is not None and after.accuracy is not None:
        metrics["delta_accuracy_self"] = after.accuracy - before.accuracy
    return Measured(metrics)


def measure_performance(
    network: nn.Module, data: Any, loss: Loss | None, batch_size: int = BATCH_SIZE, progress: Progress = None
) -> Performance:
    """The performance of a network that is in evaluation mode, without a copy: the caller owns it."""
    if loss is not None and not callable(loss):
        raise DataError(f"loss must be a function of outputs and labels, or None, got a {type(loss).__name__}.")
    batches = as_batches(data, batch_size)
    scores, count = [], 0
    with progress_bar(progress, batches, silent=False, what="evaluating") as report, torch.inference_mode():
        for index, batch in enumerate(batches):
            inputs, labels = split_batch(batch)
            outputs = outputs_of(network, inputs, index)
            size = _batch_size(network, inputs, labels)
            scores.append(_score(outputs, labels, inputs, size, index, loss))
            count += size
            report(index + 1)
    if not scores:
        raise DataError("The data hold no batch at all, so there is nothing to evaluate on; give some.")
    weight = sum(score.weight for score in scores)
    if not weight:
        raise DataError("No label counts in any batch: all are -100, or the batches are empty; check the labels.")
    met = [score.met for score in scores if score.met is not None]
    counted = sum(score.labels for score in scores)
    share = sum(met) / counted if len(met) == len(scores) and counted else None
    return Performance(sum(score.loss for score in scores) / weight, share, count)


def losses_of_inputs(model: nn.Module, data: Any, loss: Loss | None = None) -> Tensor:
    """The loss of every input of labelled data, for intervals; the network is in evaluation mode, without a copy.

    A loss of your own that answers with one number for a batch is called input by input, with the outputs' first
    tensor.
    """
    values = []
    with torch.inference_mode():
        for index, batch in enumerate(as_batches(data, BATCH_SIZE)):
            inputs, labels = split_batch(batch)
            outputs = outputs_of(model, inputs, index)
            size = _batch_size(model, inputs, labels)
            if loss is None:
                each, _, classes = _cross_entropies(outputs, labels, inputs, index)
                values.append(_mean_of_inputs(each, classes, size))
                continue
            found = _call_loss(loss, outputs, labels, index).double()
            if found.ndim == 0:
                first = output_tensors(outputs)[0]
                found = torch.stack(
                    [_call_loss(loss, first[i : i + 1], labels[i : i + 1], index).double() for i in range(size)]
                )
            values.append(found.reshape(size, -1).mean(1))
    if not values:
        raise DataError("The data hold no batch at all, so there is nothing to evaluate on; give some.")
    losses = torch.cat(values)
    if not bool(torch.isfinite(losses).all()):
        count = int((~torch.isfinite(losses)).sum())
        raise DataError(
            f"The loss is not finite for {count} of {len(losses)} labelled inputs; check these inputs and the network."
        )
    return losses


@dataclass(frozen=True)
class BesideConstant:
    """For every input of labelled data, how a network does, and how one answer to all of them would do.

    That answer is the shares of the labels in these same data: the best that can be said without looking at inputs.

    Attributes:
        losses, constant_losses: Cross-entropies.
        met, constant_met: The share of an input's labels that is met; the constant answer meets the most usual label.
    """

    losses: Tensor
    constant_losses: Tensor
    met: Tensor
    constant_met: Tensor


def beside_constant(model: nn.Module, data: Any) -> BesideConstant | None:
    """A network beside one answer to all inputs, or None where all labels are the same.

    The network is in evaluation mode, without a copy. Labels are classes, as for cross-entropy.
    """
    losses, met, labels = [], [], []
    with torch.inference_mode():
        for index, batch in enumerate(as_batches(data, BATCH_SIZE)):
            inputs, targets = split_batch(batch)
            outputs = outputs_of(model, inputs, index)
            size = _batch_size(model, inputs, targets)
            each, logits, classes = _cross_entropies(outputs, targets, inputs, index)
            losses.append(_mean_of_inputs(each, classes, size))
            met.append(_mean_of_inputs(logits.argmax(-1) == classes, classes, size))
            labels.append((classes.cpu(), size))
    known = torch.cat([classes for classes, _ in labels])
    counts = known[known != IGNORED].bincount().double()
    if int((counts > 0).sum()) < 2:
        return None
    surprise = torch.where(counts > 0, -(counts / counts.sum()).log(), 0.0)
    usual = counts.argmax()
    constant_losses = [_mean_of_inputs(surprise[classes.clamp(min=0)], classes, size) for classes, size in labels]
    constant_met = [_mean_of_inputs(classes == usual, classes, size) for classes, size in labels]
    return BesideConstant(*(torch.cat(parts).cpu() for parts in (losses, constant_losses, met, constant_met)))


def _mean_of_inputs(values: Tensor, classes: Tensor, size: int) -> Tensor:
    """The mean over the labels of each input that count."""
    rows, counts = (part.reshape(size, -1) for part in (values.double(), classes != IGNORED))
    return (rows * counts).sum(1) / counts.sum(1).clamp(min=1)


def _batch_size(network: nn.Module, inputs: Any, labels: Any) -> int:
    """How many samples a batch holds."""
    size = count_inputs(*call_arguments(network, inputs, None))
    if size is None and isinstance(labels, Tensor) and labels.ndim:
        size = len(labels)
    return 1 if size is None else size


# ---------------------------------------------------------------------- one batch


@dataclass(frozen=True)
class _Score:
    """Sums over one batch: of losses and of what they are to be divided by; of labels met and of labels, or None."""

    loss: float
    weight: float
    met: int | None = None
    labels: int = 0


def _score(outputs: Any, labels: Any, inputs: Any, size: int, index: int, loss: Loss | None) -> _Score:
    """The score of one batch of so many inputs; ``index`` is its number, for messages."""
    if loss is not None:
        value = float(_call_loss(loss, outputs, labels, index).double().mean())
        aligned = _align_classes(outputs, labels, inputs)
        met, counted = (None, 0) if aligned is None else _count_met(*aligned)
        return _Score(value * size, size, met, counted)
    each, logits, classes = _cross_entropies(outputs, labels, inputs, index)
    met, counted = _count_met(logits, classes)
    return _Score(float(each.double().sum()), counted, met, counted)


def mean_loss(outputs: Any, labels: Any, inputs: Any, index: int, loss: Loss | None) -> Tensor:
    """The mean loss of one batch, to be differentiated."""
    if loss is not None:
        return _call_loss(loss, outputs, labels, index).mean()
    each, _, classes = _cross_entropies(outputs, labels, inputs, index)
    return each.sum() / (classes != IGNORED).sum().clamp(min=1)


def _call_loss(loss: Loss, outputs: Any, labels: Any, index: int) -> Tensor:
    """The caller's own loss of a batch."""
    if isinstance(labels, Tensor) and (tensors := output_tensors(outputs)):
        labels = labels.to(tensors[0].device)
    try:
        value = loss(outputs) if labels is None else loss(outputs, labels)
        return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        arguments = "the outputs alone" if labels is None else "the outputs and the labels"
        raise DataError(
            f"Batch {index}: the loss was called with {arguments} and failed ({type(error).__name__}: "
            f"{one_line(error)}); give loss(outputs, labels), or loss(outputs) for batches without labels."
        ) from error


def _cross_entropies(outputs: Any, labels: Any, inputs: Any, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The cross-entropy of every label, 0 for those that do not count; logits and labels, row by row."""
    if labels is None:
        raise DataError(
            f"Batch {index} has no labels; give a list of pairs, [(inputs, labels), ...], or a loss= without labels."
        )
    aligned = _align_classes(outputs, labels, inputs)
    if aligned is None:
        raise _explain_no_classes(outputs, labels, index)
    logits, classes = aligned
    outside = classes[(classes != IGNORED) & ((classes < 0) | (classes >= logits.shape[-1]))]
    if len(outside):
        raise DataError(
            f"Batch {index} has the label {int(outside[0])}, but there are {logits.shape[-1]} classes; mark labels "
            f"that do not count by {IGNORED}."
        )
    each = F.cross_entropy(logits.to(working_dtype(logits.dtype)), classes, ignore_index=IGNORED, reduction="none")
    return each, logits, classes


def find_logits(outputs: Any) -> Tensor | None:
    """The logits among a network's outputs, or else their first floating-point tensor."""
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(named, Tensor):
        return named
    tensors = output_tensors(outputs)
    return tensors[0] if tensors else None


def _align_classes(outputs: Any, labels: Any, inputs: Any) -> tuple[Tensor, Tensor] | None:
    """Logits ``(rows, classes)`` and as many labels, or None where these are no classes."""
    logits = find_logits(outputs)
    if logits is None or not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        return None
    if labels.dtype is torch.bool or not labels.ndim:
        return None
    if labels.shape == logits.shape[:-1]:
        if _is_next_token(inputs, labels):
            logits, labels = logits[:, :-1], _without_padding(inputs, labels)[:, 1:]
    elif logits.ndim > 2 and labels.shape == (logits.shape[0], *logits.shape[2:]):
        logits = logits.movedim(1, -1)
    else:
        return None
    return logits.flatten(0, -2), labels.flatten().to(logits.device, torch.int64)


def _is_next_token(inputs: Any, labels: Tensor) -> bool:
    if isinstance(inputs, Mapping):
        inputs = None if "decoder_input_ids" in inputs else inputs.get("input_ids")
    elif isinstance(inputs, list | tuple) and inputs:
        inputs = inputs[0]
    if not isinstance(inputs, Tensor) or inputs.is_floating_point() or inputs.shape != labels.shape:
        return False
    if labels.ndim != 2 or labels.shape[1] < 2:
        return False
    counts = labels != IGNORED
    return bool(counts.any()) and bool((labels == inputs.to(labels.device))[counts].all())


def _without_padding(inputs: Any, labels: Tensor) -> Tensor:
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if not isinstance(mask, Tensor) or mask.shape != labels.shape:
        return labels
    return labels.masked_fill(mask.to(labels.device) == 0, IGNORED)


def _count_met(logits: Tensor, labels: Tensor) -> tuple[int, int]:
    """How many labels were met, and how many there are. A row with NaN meets none."""
    counts = labels != IGNORED
    met = (logits.argmax(dim=-1) == labels) & counts & ~logits.isnan().any(dim=-1)
    return int(met.sum()), int(counts.sum())


def _explain_no_classes(outputs: Any, labels: Any, index: int) -> Exception:
    logits = find_logits(outputs)
    if logits is None:
        return DataError(
            f"Batch {index}: the outputs, a {type(outputs).__name__}, hold no logits; pass a loss= that takes them."
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype is torch.bool:
        got = str(labels.dtype) if isinstance(labels, Tensor) else type(labels).__name__
        return DataError(
            f"Batch {index}: cross-entropy takes classes, integers in a tensor, got labels of {got}; pass a loss= that "
            "takes these, for example torch.nn.functional.mse_loss."
        )
    return ShapeError(
        f"Batch {index}: labels of shape {tuple(labels.shape)} do not go with logits of shape {tuple(logits.shape)}; "
        "give one label for each row of logits, or pass a loss= of your own."
    )
