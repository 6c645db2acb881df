"""Two small networks, trained on the embedded digits from different seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from interbasin.datasets import load_digits
from interbasin.randomness import generator_of
from interbasin.training import train

WIDTH = 64
EPOCHS = 30
BATCH = 64


@dataclass(frozen=True)
class Pair:
    """Two networks and the data they were trained on, and those they were not."""

    source: nn.Sequential
    target: nn.Sequential
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def accuracy(self, logits: Tensor) -> float:
        """The share of test images whose largest logit is that of the label."""
        return float((logits.argmax(dim=-1) == self.test_labels).double().mean())

    @property
    def encoders(self) -> tuple[nn.Sequential, nn.Sequential]:
        """The two networks up to their hidden layers."""
        source, target = (nn.Sequential(*list(network)[:-1]) for network in (self.source, self.target))
        return source, target


def train_pair(seed: int, report: Callable[[int], object]) -> Pair:
    """Networks of the seed and of the next one; ``report`` gets the number of epochs done, of ``2 * EPOCHS``."""
    digits = load_digits()
    # About the mean image: with all inputs positive many hidden units die, and dead units cannot be matched.
    mean = digits.train_images.flatten(1).mean(dim=0)
    images, test = digits.train_images.flatten(1) - mean, digits.test_images.flatten(1) - mean
    epochs = iter(range(1, 2 * EPOCHS + 1))
    source, target = (
        _train(images, digits.train_labels, of, lambda _: report(next(epochs))) for of in (seed, seed + 1)
    )
    return Pair(source, target, images, digits.train_labels, test, digits.test_labels)


def _train(images: Tensor, labels: Tensor, seed: int, report: Callable[[str], object]) -> nn.Sequential:
    generator = generator_of(seed)
    # torch's own initialisation draws from the global generator, which a library leaves alone.
    first, last = (skip_init(nn.Linear, *widths) for widths in ((64, WIDTH), (WIDTH, 10)))  # type: ignore[no-untyped-call]
    network = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-1 / 8, 1 / 8, generator=generator)

    def loss(batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(network(batch[0]), batch[1])

    batches = _ShuffledBatches(images, labels, generator)
    train(network.parameters(), batches, loss, epochs=EPOCHS, rate=2e-3, report=report)
    return network.eval().requires_grad_(False)


@dataclass(frozen=True)
class _ShuffledBatches:
    """Batches in another order at each pass."""

    images: Tensor
    labels: Tensor
    generator: torch.Generator

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.split(torch.randperm(len(self.images), generator=self.generator), BATCH):
            yield self.images[rows], self.labels[rows]
