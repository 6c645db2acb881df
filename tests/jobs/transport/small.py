"""Small networks for the tests of transport: plain ones, attention, and tasks made of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.task import Options, Task
from interbasin.jobs.transport.updates.update import Update


class Plain(nn.Module):
    """Two layers and a ReLU between them."""

    def __init__(self, width: int, seed: int = 0, inputs: int = 5, outputs: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Attending(nn.Module):
    """One attention layer with its own q, k, v on a pre-norm stream, and a block behind it."""

    def __init__(self, width: int, heads: int = 2, size: int = 3, seed: int = 0, *, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.size, self.fused = heads, size, fused
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem = nn.Linear(4, width)
            self.norm = nn.LayerNorm(width)
            if fused:
                self.qkv = nn.Linear(width, 3 * heads * size)
            else:
                self.q, self.k, self.v = (nn.Linear(width, heads * size) for _ in range(3))
            self.o = nn.Linear(heads * size, width)
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 3)
            for norm in (self.norm, self.last):
                norm.weight.data.uniform_(0.5, 1.5)
                norm.bias.data.normal_(0, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        read = self.norm(stream)
        each = self.qkv(read).chunk(3, -1) if self.fused else (self.q(read), self.k(read), self.v(read))
        q, k, v = (part.unflatten(-1, (self.heads, self.size)).transpose(1, 2) for part in each)
        mixed = torch.softmax(q @ k.mT / self.size**0.5, -1) @ v
        stream = stream + self.o(mixed.transpose(1, 2).flatten(2))
        return self.head(self.last(stream))


def ready(model: nn.Module) -> Any:
    return model.double().eval().requires_grad_(False)


def tuned(model: nn.Module, size: float = 0.1, seed: int = 9) -> Any:
    """The network with a random update of every tensor."""
    changed, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return changed


def inputs(count: int = 64, width: int = 5, seed: int = 3, tokens: int | None = None) -> list[Tensor]:
    """Batches of 16."""
    shape = (count, width) if tokens is None else (count, tokens, width)
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return list(rows.split(16))


def task_of(source: nn.Module, target: nn.Module, data: Any, update: nn.Module | None = None, **more: Any) -> Task:
    """The task of giving the target what tuning (by default a random update) did to the source."""
    changed = tuned(source) if update is None else update
    options = more.pop("options", Options())
    outputs = more.pop("outputs", "auto")
    heads = more.pop("heads", "auto")
    bases = relate(source, target, data, outputs=outputs, heads=heads)
    return Task(bases, Update.of(changed, source), changed, data, options=options, **more)
