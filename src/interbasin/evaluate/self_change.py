"""The residual alignment error: what alignment does to the network that was aligned [adelfio:25]."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from interbasin.batches import BATCH_SIZE, Progress, require_reiterable
from interbasin.errors import WiringError
from interbasin.evaluate.measured import Measured
from interbasin.evaluate.performance import performance
from interbasin.evaluate.scores import Loss
from interbasin.wiring import Alignment
from interbasin.wiring.check import round_off


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
    """Loss and accuracy of a network after alignment minus before: ``delta_loss_self`` and ``delta_accuracy_self``.

    Args:
        source: The network before.
        aligned: The same network in other coordinates.
        data: Batches to iterate over, more than once: pairs (inputs, labels).
        loss: As `performance` takes it; by default cross-entropy.
        alignment: What it was carried through. If its maps are exact, the loss has to be the same to round-off.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches are done.

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
