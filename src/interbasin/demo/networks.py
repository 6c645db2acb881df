"""Two small networks, trained on the embedded digits from different seeds."""

from __future__ import annotations

import copy
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
    source = train_network(images, digits.train_labels, seed, report)
    target = train_network(images, digits.train_labels, seed + 1, lambda done: report(EPOCHS + done))
    return Pair(source, target, images, digits.train_labels, test, digits.test_labels)


def train_network(
    images: Tensor, labels: Tensor, seed: int, report: Callable[[int], object], width: int = WIDTH
) -> nn.Sequential:
    """A network of one hidden layer; ``report`` is called after each of `EPOCHS`."""
    generator = generator_of(seed)
    # torch's own initialisation draws from the global generator, which a library leaves alone.
    first, last = (skip_init(nn.Linear, *widths) for widths in ((64, width), (width, 10)))  # type: ignore[no-untyped-call]
    network = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-1 / 8, 1 / 8, generator=generator)
    return _fit(network, images, labels, generator, 2e-3, report)


def tune_network(
    network: nn.Sequential, images: Tensor, labels: Tensor, seed: int, report: Callable[[int], object]
) -> nn.Sequential:
    """A copy of a network, trained on with other images for as many epochs."""
    tuned = copy.deepcopy(network).requires_grad_(True)
    return _fit(tuned, images, labels, generator_of(seed), 1e-3, report)


def _fit(
    network: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    rate: float,
    report: Callable[[int], object],
) -> nn.Sequential:
    epochs = iter(range(1, EPOCHS + 1))

    def loss(batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(network(batch[0]), batch[1])

    batches = _ShuffledBatches(images, labels, generator)
    train(network.parameters(), batches, loss, epochs=EPOCHS, rate=rate, report=lambda _: report(next(epochs)))
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
