"""How good the outputs of one batch are: its loss, and how many of its labels were met.

Logits are the outputs, or what they hold under ``logits``, or their first floating-point tensor. Classes lie on their
last axis, ``(..., classes)`` against labels ``(...)``, or on the second as torch has it, ``(batch, classes, ...)``.
Labels of -100 do not count. Where integer labels are the network's own input tokens, wherever they count, the network
is a language model: what it says at a token is held against the next one, and padding does not count. Any other shift
is the business of whoever made the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.errors import DataError, ShapeError
from interbasin.wiring.trace.calls import output_tensors

# What a network gave and the labels -> the mean loss of the batch, or one a sample. Without labels, of outputs alone.
Loss: TypeAlias = Callable[..., Any]

IGNORED = -100


@dataclass(frozen=True)
class Score:
    """Sums over one batch: of losses and of what they are to be divided by; of labels met and of labels, or None."""

    loss: float
    weight: float
    met: int | None = None
    labels: int = 0


def score(outputs: Any, labels: Any, inputs: Any, size: int, index: int, loss: Loss | None) -> Score:
    """The score of one batch.

    Args:
        outputs: What the network gave.
        labels: What it should have, or None.
        inputs: What it was given.
        size: How many inputs that is.
        index: The number of the batch, for messages.
        loss: None for cross-entropy.
    """
    if loss is not None:
        value = float(_value(loss, outputs, labels, index).double().mean())
        aligned = _classes(outputs, labels, inputs)
        met, counted = (None, 0) if aligned is None else _met(*aligned)
        return Score(value * size, size, met, counted)
    each, logits, wanted = _cross_entropies(outputs, labels, inputs, index)
    met, counted = _met(logits, wanted)
    return Score(float(each.double().sum()), counted, met, counted)


def mean_loss(outputs: Any, labels: Any, inputs: Any, index: int, loss: Loss | None) -> Tensor:
    """The mean loss of one batch, to be differentiated."""
    if loss is not None:
        return _value(loss, outputs, labels, index).mean()
    each, _, wanted = _cross_entropies(outputs, labels, inputs, index)
    return each.sum() / (wanted != IGNORED).sum().clamp(min=1)


def _cross_entropies(outputs: Any, labels: Any, inputs: Any, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The cross-entropy of every label, 0 for those that do not count; logits and labels, row by row."""
    if labels is None:
        raise DataError(
            f"Batch {index} has no labels, and cross-entropy needs them; give batches that are pairs (inputs, labels), "
            "or a loss= of the outputs alone."
        )
    aligned = _classes(outputs, labels, inputs)
    if aligned is None:
        raise _no_classes(outputs, labels, index)
    logits, wanted = aligned
    outside = wanted[(wanted != IGNORED) & ((wanted < 0) | (wanted >= logits.shape[-1]))]
    if len(outside):
        raise DataError(
            f"Batch {index} has the label {int(outside[0])}, but the network tells {logits.shape[-1]} classes apart, "
            f"from 0; number the classes so, and mark what does not count by {IGNORED}."
        )
    each = F.cross_entropy(logits.to(working_dtype(logits.dtype)), wanted, ignore_index=IGNORED, reduction="none")
    return each, logits, wanted


def _value(loss: Loss, outputs: Any, labels: Any, index: int) -> Tensor:
    """What the caller's own loss says of a batch."""
    if isinstance(labels, Tensor) and (tensors := output_tensors(outputs)):
        labels = labels.to(tensors[0].device)
    try:
        value = loss(outputs) if labels is None else loss(outputs, labels)
        return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        given = "the outputs alone" if labels is None else "the outputs and the labels"
        raise DataError(
            f"Batch {index}: the loss was called with {given} and failed ({type(error).__name__}: {reason}); give a "
            "function loss(outputs, labels), or loss(outputs) for batches without labels, that returns the mean over "
            "the batch."
        ) from error


def _logits(outputs: Any) -> Tensor | None:
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(named, Tensor):
        return named
    tensors = output_tensors(outputs)
    return tensors[0] if tensors else None


def _classes(outputs: Any, labels: Any, inputs: Any) -> tuple[Tensor, Tensor] | None:
    """Logits ``(rows, classes)`` and as many labels, or None where these are no classes."""
    logits = _logits(outputs)
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


def _tokens(inputs: Any) -> Tensor | None:
    if isinstance(inputs, Mapping):
        inputs = None if "decoder_input_ids" in inputs else inputs.get("input_ids")
    elif isinstance(inputs, list | tuple) and inputs:
        inputs = inputs[0]
    return inputs if isinstance(inputs, Tensor) and not inputs.is_floating_point() else None


def _is_next_token(inputs: Any, labels: Tensor) -> bool:
    tokens = _tokens(inputs)
    if tokens is None or tokens.shape != labels.shape or labels.ndim != 2 or labels.shape[1] < 2:
        return False
    counts = labels != IGNORED
    return bool(counts.any()) and bool((labels == tokens.to(labels.device))[counts].all())


def _without_padding(inputs: Any, labels: Tensor) -> Tensor:
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if not isinstance(mask, Tensor) or mask.shape != labels.shape:
        return labels
    return labels.masked_fill(mask.to(labels.device) == 0, IGNORED)


def _met(logits: Tensor, labels: Tensor) -> tuple[int, int]:
    """How many labels were met, and how many there are. A row with NaN meets none."""
    counts = labels != IGNORED
    met = (logits.argmax(dim=-1) == labels) & counts & ~logits.isnan().any(dim=-1)
    return int(met.sum()), int(counts.sum())


def _no_classes(outputs: Any, labels: Any, index: int) -> Exception:
    logits = _logits(outputs)
    if logits is None:
        return DataError(
            f"Batch {index}: the network gave a {type(outputs).__name__} without a floating-point tensor, so there are "
            "no logits; pass a loss= of what it gives."
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype is torch.bool:
        found = str(labels.dtype) if isinstance(labels, Tensor) else type(labels).__name__
        return DataError(
            f"Batch {index}: cross-entropy takes classes, integers in a tensor, found labels of {found}; pass a loss= "
            "that takes these, for example torch.nn.functional.mse_loss."
        )
    return ShapeError(
        f"Batch {index}: labels of shape {tuple(labels.shape)} do not go with logits of shape {tuple(logits.shape)}; "
        "give one label for each row of logits, or pass a loss= that knows better."
    )
