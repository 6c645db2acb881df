"""What the layers of networks show: how alike they are, and activations in two dimensions on axes that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interbasin.activations import record, standing
from interbasin.activations.forward import Call, listen
from interbasin.activations.pairing import masks_of
from interbasin.activations.places import Reading, choose_reading
from interbasin.activations.tokens import Tokens, pool_tokens
from interbasin.batches import (
    BATCH_SIZE,
    Progress,
    WithoutLabels,
    as_batches,
    call_arguments,
    device_of,
    require_reiterable,
    split_batch,
)
from interbasin.checks import require_whole
from interbasin.errors import DataError
from interbasin.statistics import PairedMoments
from interbasin.wiring import Wiring, wire
from interbasin.wiring.trace.copying import copy_for_evaluation

DIMENSIONS = 2


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
        pool: One row per input; needed where layers have different numbers of positions, as in CNNs.
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
    recording = record(
        copies,
        inputs,
        [list(standing(wiring, at)) for wiring in wirings] if layers is None else layers,
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


@dataclass(frozen=True)
class Coordinates:
    """One space of several networks in two dimensions.

    Attributes:
        coordinates: Of each network, one row per sample: ``(samples, 2)``. Row ``i`` belongs to the same input in all.
        center: What was subtracted: the mean over all rows of all networks.
        axes: The two directions of largest variance, ``(2, width)``, with their largest entry positive.
        explained: The share of the variance of all rows that lies along each.
        labels: Of each sample, where the data have one integer label per input.
    """

    coordinates: Mapping[str, Tensor]
    center: Tensor
    axes: Tensor
    explained: tuple[float, ...]
    labels: Tensor | None = None


def pca(
    networks: Mapping[str, nn.Module],
    data: Any,
    spaces: Sequence[str] | None = None,
    *,
    wiring: Wiring | None = None,
    at: Literal["post", "pre"] = "post",
    pool: Literal["mean", "first", "last"] | None = None,
    samples: int = 500,
    batch_size: int = BATCH_SIZE,
    progress: Progress = None,
) -> dict[str, Coordinates]:
    """Principal components of the activations of several networks together.

    The axes come from moments of all data, which stream; then a bounded number of samples is laid along them.

    Args:
        networks: By name, of one architecture: ``{"source": a, "aligned": result.model, "target": b}``.
        data: Batches to iterate over, more than once; labels are kept beside the samples.
        spaces: Which; by default all that move and stand somewhere whole.
        wiring: Of the networks, if it is known; else found by tracing the first on the first batch.
        at: ``"post"``: where a space is read, non-linearities and all; ``"pre"``: where it is written.
        pool: One row per input instead of one per token or position.
        samples: At most so many rows of each network, from the first batches, evenly over each batch.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches of a network are done.

    Returns:
        Space -> `Coordinates`.
    """
    if not isinstance(networks, Mapping) or not networks:
        got = "none" if isinstance(networks, Mapping) else type(networks).__name__
        raise DataError(f"networks must be given by name, such as {{'source': a, 'target': b}}, got {got}.")
    require_whole("samples", samples, least=1)
    require_reiterable(data, "PCA")
    copies = {name: copy_for_evaluation(network) for name, network in networks.items()}
    inputs = WithoutLabels(data, batch_size)
    known = wire(next(iter(copies.values())), inputs.first()) if wiring is None else wiring
    names = list(standing(known, at)) if spaces is None else list(spaces)
    moments = {
        name: record(copy, inputs, names, wirings=known, at=at, grams=True, pool=pool, progress=progress).moments
        for name, copy in copies.items()
    }
    readings = {space: choose_reading(known, space, at) for space in names}
    rows, labels = _sample_rows(copies, data, batch_size, readings, pool, samples)
    result = {}
    for space in names:
        center, axes, explained = _principal_axes([moments[name][space, space] for name in copies])
        coordinates = {name: (rows[name, space] - center) @ axes.mT for name in copies}
        result[space] = Coordinates(coordinates, center, axes, explained, labels.get(space))
    return result


def _principal_axes(moments: Sequence[PairedMoments]) -> tuple[Tensor, Tensor, tuple[float, ...]]:
    """The mean of all rows, the directions of largest variance, and their shares of it."""
    count = sum(network.count for network in moments)
    center = sum((network.mean_source.cpu() * (network.count / count) for network in moments), torch.zeros(()))
    scatter = torch.zeros((), dtype=torch.float64)
    for network in moments:
        apart = network.mean_source.cpu() - center
        scatter = scatter + network.gram_source().cpu() + network.count * torch.outer(apart, apart)
    values, vectors = torch.linalg.eigh(scatter)
    values, axes = values.clamp(min=0).flip(0), vectors.flip(1)[:, :DIMENSIONS].mT
    largest = axes.take_along_dim(axes.abs().argmax(dim=1, keepdim=True), dim=1)
    total = float(values.sum())
    shares = tuple(float(value) / total if total else 0.0 for value in values[:DIMENSIONS])
    return center, axes * torch.where(largest < 0, -1.0, 1.0), shares


def _sample_rows(
    networks: Mapping[str, nn.Module],
    data: Any,
    batch_size: int,
    readings: Mapping[str, Reading],
    pool: str | None,
    samples: int,
) -> tuple[dict[tuple[str, str], Tensor], dict[str, Tensor]]:
    """Rows of the first batches, of every network and space, and the labels that go with them, by space."""
    taken: dict[tuple[str, str], list[Tensor]] = {(name, space): [] for name in networks for space in readings}
    labels: dict[str, list[Tensor]] = {space: [] for space in readings}
    first = next(iter(networks))
    left = dict.fromkeys(readings, samples)
    for batch in as_batches(data, batch_size):
        inputs, wanted = split_batch(batch)
        chosen: dict[str, Tensor] = {}
        for name, network in networks.items():
            for space, (rows, counting) in _read_rows(network, inputs, readings, pool, name).items():
                evenly = torch.linspace(0, len(counting) - 1, min(len(counting), left[space])).long()
                chosen[space] = counting[evenly]
                taken[name, space].append(rows[chosen[space].to(rows.device)].cpu().double())
                if isinstance(wanted, Tensor) and wanted.ndim == 1 and len(wanted) and name == first:
                    # Where an input has several rows, they stand together.
                    labels[space].append(wanted.cpu()[chosen[space] // max(1, len(rows) // len(wanted))])
        for space, which in chosen.items():
            left[space] -= len(which)
        if not any(left.values()):
            break
    joined = {key: torch.cat(rows) for key, rows in taken.items()}
    whole = {space: torch.cat(parts) for space, parts in labels.items() if parts}
    return joined, {space: parts for space, parts in whole.items() if len(parts) == len(joined[first, space])}


def _read_rows(
    network: nn.Module, inputs: Any, readings: Mapping[str, Reading], pool: str | None, name: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """All rows of a batch by space, and the numbers of those that count."""
    device = device_of(network)
    masks = masks_of(inputs, None, device)
    spaces = {reading: space for space, reading in readings.items()}
    result: dict[str, tuple[Tensor, Tensor]] = {}

    def take(reading: Reading, values: Tensor) -> None:
        mask = None if masks is None else masks.fitting(reading.place.module, values.shape[:-1])
        if pool is not None:
            values = pool_tokens(values, pool, mask)
            mask = None if mask is None else mask.flatten(1).any(dim=1)
        rows = values.flatten(0, -2).clone()  # the network may overwrite its outputs
        counting = torch.arange(len(rows)) if mask is None else mask.flatten().nonzero().flatten().cpu()
        result[spaces[reading]] = (rows, counting)

    with listen(network, spaces, take, f"{type(network).__name__} ({name})") as listener:
        listener.forward(Call(inputs, *call_arguments(network, inputs, device)))
    return result
