"""The demonstration: what there is, small, on the embedded data.

Two networks are trained on digits from different seeds. The paired moments of their hidden layers are streamed, every
fit makes a map from them, and each map is judged on images that neither the networks nor the fits have seen: by its
residual, and by what the second network's head makes of the first network's hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from interbasin import fit
from interbasin.data import load_digits
from interbasin.errors import MissingExtraError
from interbasin.fit.registry import with_offset
from interbasin.maps import Map
from interbasin.randomness import generator_of
from interbasin.statistics import PairedMoments, explained_variance, residual_energy, similarities

__all__ = ["EPOCHS", "Demo", "Row", "run_demo"]

WIDTH = 64
EPOCHS = 30
BATCH = 64


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


@dataclass(frozen=True)
class Demo:
    """What the demonstration found."""

    seed: int
    width: int
    train_rows: int
    test_rows: int
    source_accuracy: float
    target_accuracy: float
    similarities: dict[str, float]
    rows: tuple[Row, ...]

    def summary(self) -> dict[str, Any]:
        """The same as plain data, JSON-able."""
        return asdict(self)


def run_demo(*, seed: int = 0, progress: Callable[[int], object] | None = None) -> Demo:
    """Train, collect, fit, compare.

    Args:
        seed: Of the first network; the second has the next one.
        progress: Called with the number of epochs that are done, of ``2 * EPOCHS``.
    """
    digits = load_digits()
    # About the mean image: with all inputs positive many hidden units die, and dead units cannot be matched.
    mean = digits.train_images.flatten(1).mean(dim=0)
    train, test = digits.train_images.flatten(1) - mean, digits.test_images.flatten(1) - mean
    report = progress or (lambda done: None)
    source = _trained(train, digits.train_labels, seed, lambda epoch: report(epoch))
    target = _trained(train, digits.train_labels, seed + 1, lambda epoch: report(EPOCHS + epoch))
    seen, held_out = _moments(source, target, train), _moments(source, target, test)

    hidden = _hidden(source, test)
    rows = [_row(name, seen, held_out, hidden, target, digits.test_labels) for name in fit.names()]
    baseline = Row("(none)", "identity", None, None, None, _accuracy(target[-1](hidden), digits.test_labels))
    return Demo(
        seed=seed,
        width=WIDTH,
        train_rows=len(train),
        test_rows=len(test),
        source_accuracy=_accuracy(source(test), digits.test_labels),
        target_accuracy=_accuracy(target(test), digits.test_labels),
        similarities=similarities(seen),
        rows=(baseline, *rows),
    )


def _trained(images: Tensor, labels: Tensor, seed: int, report: Callable[[int], object]) -> nn.Sequential:
    generator = generator_of(seed)
    first, last = (_undrawn(*widths) for widths in ((64, WIDTH), (WIDTH, 10)))
    network = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        for parameter in network.parameters():
            bound = 1 / math.sqrt(64)
            parameter.uniform_(-bound, bound, generator=generator)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(images), generator=generator), BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        report(epoch + 1)
    return network.eval().requires_grad_(False)


def _undrawn(source: int, target: int) -> nn.Linear:
    # torch's own initialisation draws from the global generator, which a library leaves alone.
    layer: nn.Linear = skip_init(nn.Linear, source, target)  # type: ignore[no-untyped-call]
    return layer


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
        found = fit.get(name)(seen)
    except MissingExtraError as error:
        return Row(name, "-", None, None, None, None, note=str(error).rstrip("."))
    carrier = with_offset(found.map, seen)
    return Row(
        method=name,
        map=found.map.kind,
        residual=_relative_residual(seen, carrier),
        held_out_residual=_relative_residual(held_out, carrier),
        explained=explained_variance(held_out, carrier),
        accuracy=_accuracy(target[-1](carrier(hidden)), labels),
        note="" if found.status == "converged" else f"{found.status}: {found.message}",
    )


def _relative_residual(moments: PairedMoments, map: Map) -> float:
    energy = float(moments.squares_target(centered=False).sum())
    return math.sqrt(residual_energy(moments, map, centered=False) / energy)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=-1) == labels).double().mean())
