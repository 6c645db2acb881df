"""The matrix of CKA between the layers of two networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from interbasin.activations import Tokens, record, standing
from interbasin.batches import BATCH_SIZE, Progress, WithoutLabels, require_reiterable
from interbasin.wiring import Wiring, wire
from interbasin.wiring.trace.copying import copy_for_evaluation


@dataclass(frozen=True)
class LayerSimilarity:
    """Linear CKA of every layer with every other: ``matrix[i, j]`` is that of ``sources[i]`` and ``targets[j]``."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    matrix: Tensor


def cka(
    source: nn.Module,
    target: nn.Module,
    data: Any,
    layers: Sequence[Any] | None = None,
    *,
    wirings: tuple[Wiring, Wiring] | None = None,
    at: Literal["post", "pre"] = "post",
    pool: Literal["mean", "first", "last"] | None = None,
    tokens: str | Tokens | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress = None,
) -> LayerSimilarity:
    """How alike the layers of two networks are, all with all, by linear CKA [kornblith:19]; statistics alone are kept.

    Args:
        source, target: The networks; of any two architectures, or the same twice.
        data: Batches to iterate over, labels and all if they have some, or a tensor to be cut into batches.
        layers: Names of spaces or places, for both, or a pair of lists; by default all spaces that move and stand
            somewhere whole.
        wirings: Of the two, if they are known; else found by tracing the first batch.
        at: ``"post"``: where a space is read, non-linearities and all; ``"pre"``: where it is written.
        pool: One row an input; needed where layers have different numbers of positions, as in CNNs.
        tokens: What to do where the networks have different numbers of tokens, as `interbasin.record` takes it.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches are done.
    """
    if wirings is None:
        require_reiterable(data, "CKA without wirings=")
    copies = copy_for_evaluation(source), copy_for_evaluation(target)
    inputs = WithoutLabels(data, batch_size)
    if wirings is None:
        first = inputs.first()
        wirings = wire(copies[0], first), wire(copies[1], first)
    if layers is None:
        layers = [list(standing(wiring, at)) for wiring in wirings]
    recording = record(
        copies,
        inputs,
        layers,
        wirings=wirings,
        at=at,
        statistics="layerwise",
        pool=pool,
        tokens=tokens,
        progress=progress,
    )
    moments = recording.layerwise
    assert moments is not None
    return LayerSimilarity(moments.sources, moments.targets, moments.cka())
