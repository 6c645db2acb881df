"""Every fit on the paired moments of two hidden layers, judged on images that neither networks nor fits have seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasin import fit
from interbasin.demo.networks import BATCH, Pair, share_right
from interbasin.errors import MissingExtraError
from interbasin.fit.registry import with_offset
from interbasin.maps import Map
from interbasin.statistics import PairedMoments, explained_variance, residual_energy, similarities

# The descent has to be given time to come to rest; six digits of it are more than the table shows.
OPTIONS: dict[str, dict[str, Any]] = {"stiefel": {"tolerance": 1e-6, "steps": 5000}}


@dataclass(frozen=True)
class Row:
    """One fit: how it does on the rows it saw (``residual``) and on those it did not (the rest)."""

    method: str
    map: str
    residual: float | None
    held_out_residual: float | None
    explained: float | None
    accuracy: float | None
    note: str = ""


def fits(pair: Pair) -> tuple[dict[str, float], tuple[Row, ...]]:
    """How alike the hidden layers are, and a row for each fit, below one for none."""
    seen = _moments(pair.source, pair.target, pair.train)
    held_out = _moments(pair.source, pair.target, pair.test)
    hidden = _hidden(pair.source, pair.test)
    rows = [_row(name, seen, held_out, hidden, pair.target, pair.test_labels) for name in fit.names()]
    baseline = Row("(none)", "identity", None, None, None, share_right(pair.target[-1](hidden), pair.test_labels))
    return similarities(seen), (baseline, *rows)


def _hidden(network: nn.Sequential, images: Tensor) -> Tensor:
    hidden: Tensor = network[:2](images)
    return hidden


def _moments(source: nn.Sequential, target: nn.Sequential, images: Tensor) -> PairedMoments:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in torch.split(images, BATCH):
            yield _hidden(source, batch), _hidden(target, batch)

    return PairedMoments.of_batches(batches(), grams=True)


def _row(
    name: str, seen: PairedMoments, held_out: PairedMoments, hidden: Tensor, target: nn.Sequential, labels: Tensor
) -> Row:
    try:
        found = fit.get(name)(seen, **OPTIONS.get(name, {}))
    except MissingExtraError as error:
        return Row(name, "-", None, None, None, None, note=str(error).rstrip("."))
    carrier = with_offset(found.map, seen)
    return Row(
        method=name,
        map=found.map.kind,
        residual=_relative_residual(seen, carrier),
        held_out_residual=_relative_residual(held_out, carrier),
        explained=explained_variance(held_out, carrier),
        accuracy=share_right(target[-1](carrier(hidden)), labels),
        note="" if found.status == "converged" else f"{found.status}: {found.message}",
    )


def _relative_residual(moments: PairedMoments, map: Map) -> float:
    energy = float(moments.squares_target(centered=False).sum())
    return math.sqrt(residual_energy(moments, map, centered=False) / energy)
