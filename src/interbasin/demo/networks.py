"""Two small networks, trained on the embedded digits from different seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from interbasin.datasets import load_digits
from interbasin.randomness import generator_of

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


def trained_pair(seed: int, report: Callable[[int], object]) -> Pair:
    """Networks of the seed and of the next one; ``report`` gets the number of epochs done, of ``2 * EPOCHS``."""
    digits = load_digits()
    # About the mean image: with all inputs positive many hidden units die, and dead units cannot be matched.
    mean = digits.train_images.flatten(1).mean(dim=0)
    train, test = digits.train_images.flatten(1) - mean, digits.test_images.flatten(1) - mean
    source = _trained(train, digits.train_labels, seed, lambda epoch: report(epoch))
    target = _trained(train, digits.train_labels, seed + 1, lambda epoch: report(EPOCHS + epoch))
    return Pair(source, target, train, digits.train_labels, test, digits.test_labels)


def share_right(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit is that of the label."""
    return float((logits.argmax(dim=-1) == labels).double().mean())


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
