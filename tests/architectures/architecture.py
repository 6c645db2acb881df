"""What an entry of the zoo is, and the small inputs that entries share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Sample = Callable[[], Inputs]

BATCH = 2
CLASSES = 7
VOCABULARY = 50


@dataclass(frozen=True)
class Architecture:
    """A small network with random weights, and something to feed it.

    Attributes:
        network: Makes the network from a configuration; nothing is downloaded.
        sample: Makes its inputs.
        answers: The names of the outputs that count, where not all do: some networks also hand out hidden states.
        listed: Whether the list of architectures that must be wired names it.
        traceable: Whether torch.export can follow it; the others branch on values, or replace their own weights.
    """

    network: Callable[[], nn.Module]
    sample: Sample
    answers: tuple[str, ...] = ()
    listed: bool = False
    traceable: bool = True

    def __call__(self, seed: int = 0) -> tuple[nn.Module, Inputs]:
        """The network, in evaluation mode, and its inputs; the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network().eval(), self.sample()

    def run(self, network: nn.Module, inputs: Inputs) -> tuple[Tensor, ...]:
        """The floating-point tensors that ``network`` answers to ``inputs``, of the outputs that count."""
        answer = run(network, inputs)
        return tuple(floats({name: answer[name] for name in self.answers} if self.answers else answer))


def run(network: nn.Module, inputs: Inputs) -> Any:
    """What ``network`` answers to ``inputs``, whichever way it takes them."""
    if isinstance(inputs, Mapping):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)


def floats(answer: Any) -> Iterator[Tensor]:
    """The floating-point tensors in what a network answered; caches and other objects are passed over."""
    if isinstance(answer, Tensor):
        if answer.is_floating_point():
            yield answer
    elif isinstance(answer, Mapping):
        for part in answer.values():
            yield from floats(part)
    elif isinstance(answer, tuple | list):
        for part in answer:
            yield from floats(part)


def image(size: int = 32, channels: int = 3) -> Sample:
    return lambda: torch.randn(BATCH, channels, size, size)


def rows(*shape: int) -> Sample:
    return lambda: torch.randn(BATCH, *shape)


def tokens(length: int = 7, *, masked: bool = False, **more: Sample) -> Sample:
    """Token ids, with the end of the last row masked if asked, and whatever else is named."""

    def sample() -> dict[str, Tensor]:
        inputs = {"input_ids": torch.randint(3, VOCABULARY, (BATCH, length))}
        if masked:
            inputs["attention_mask"] = torch.ones(BATCH, length, dtype=torch.long)
            inputs["attention_mask"][-1, -2:] = 0
        return inputs | {name: make() for name, make in more.items()}

    return sample


def named(**parts: Sample) -> Sample:
    return lambda: {name: make() for name, make in parts.items()}


def ids(length: int) -> Sample:
    return lambda: torch.randint(3, VOCABULARY, (BATCH, length))
