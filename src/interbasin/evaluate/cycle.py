r"""Cycle consistency, in two meanings.

``"return"``: align :math:`A` to :math:`B`, then the *result* back to :math:`A`, and compare it with :math:`A`
[adelfio:25]. ``"compose"``: fit :math:`A \to B` and :math:`B \to A` independently; the error of a space is
:math:`\|M_{BA} M_{AB} - I\|_F`. Only the second asks whether the two fits agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from interbasin.batches import BATCH_SIZE, require_reiterable
from interbasin.errors import DataError, UnknownNameError, WiringError
from interbasin.evaluate.distance import distance
from interbasin.evaluate.measured import Measured
from interbasin.evaluate.performance import Loss, performance
from interbasin.wiring import Alignment
from interbasin.wiring.alignment import whole_map

KINDS = ("return", "compose")


class Aligned(Protocol):
    """What aligning gives: the source in the target's coordinates, and the maps it went through."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def alignment(self) -> Alignment: ...


def cycle(
    a: nn.Module,
    b: nn.Module,
    align: Callable[[nn.Module, nn.Module], Aligned],
    data: Any = None,
    loss: Loss | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    batch_size: int = BATCH_SIZE,
) -> Measured:
    """Whether alignment there and back is no alignment at all.

    Args:
        a, b: Networks of one architecture.
        align: ``align(source, target)`` gives something with ``model`` and ``alignment``, as `interbasin.rebasin` does.
        data: Batches for loss and accuracy, pairs (inputs, labels); without them there are none.
        loss: As `performance` takes it; by default cross-entropy.
        kinds: Which meanings.
        batch_size: For data that are one tensor.

    Returns:
        For ``"return"``: ``cycle_loss`` and ``cycle_accuracy``, of the returned network minus the original's, and
        ``cycle_frne``, the relative Frobenius error of its weights. For ``"compose"``: ``cycle_error.<space>``, and
        ``cycle_error_relative.<space>``, divided by the norm of the identity.

    Raises:
        UnknownNameError: if there is no such meaning.
        WiringError: if ``align`` gives something else.
        DataError: if it is no function.
    """
    unknown = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UnknownNameError.of("kind of cycle (in a list of them)", unknown[0], KINDS)
    if not callable(align):
        raise DataError(f"align must be a function of source and target, as rebasin is, got a {type(align).__name__}.")
    require_reiterable(data, "Cycle consistency")
    there = align(a, b)
    metrics: dict[str, float] = {}
    if "return" in kinds:
        returned = _part(align(_part(there, "model", nn.Module), a), "model", nn.Module)
        if data is not None:
            before, after = (performance(network, data, loss, batch_size=batch_size) for network in (a, returned))
            metrics["cycle_loss"] = after.loss - before.loss
            if before.accuracy is not None and after.accuracy is not None:
                metrics["cycle_accuracy"] = after.accuracy - before.accuracy
        metrics["cycle_frne"] = distance(returned, a)["relative_distance"]
    if "compose" in kinds:
        first = _part(there, "alignment", Alignment)
        metrics |= cycle_errors(first, _part(align(b, a), "alignment", Alignment)).metrics
    return Measured(metrics)


def cycle_errors(there: Alignment, back: Alignment) -> Measured:
    """How far one alignment after the other is from the identity, per space."""
    metrics: dict[str, float] = {}
    for name in dict.fromkeys((*there.maps, *back.maps)):
        both = whole_map(back, name) @ whole_map(there, name)
        width = both.source_width
        matrix = both.matrix.double()
        error = float(torch.linalg.matrix_norm(matrix - torch.eye(width, dtype=torch.float64, device=matrix.device)))
        metrics[f"cycle_error.{name}"] = error
        metrics[f"cycle_error_relative.{name}"] = error / math.sqrt(width)
    return Measured(metrics)


def _part(result: Any, name: str, kind: type[Any]) -> Any:
    part = getattr(result, name, None)
    if not isinstance(part, kind):
        got = type(result).__name__ if part is None else f"a {type(part).__name__} there"
        raise WiringError(f"align must return something whose .{name} is of class {kind.__name__}, got {got}.")
    return part
