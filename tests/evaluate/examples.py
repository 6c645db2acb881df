"""Small networks and data, and measures by plain loops."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import interbasin as ib

CLOSE = {"rtol": 1e-9, "atol": 1e-10}  # float64 sums of some hundred products


def mlp(seed: int = 0, hidden: int = 6, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 4), nn.Tanh(), nn.Linear(4, 3))
    for tensor in made.parameters():  # random gains and biases, so that ends differ
        nn.init.normal_(tensor)
    return made.to(dtype).requires_grad_(False)


def cnn(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return (
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)
        )
        .double()
        .requires_grad_(False)
    )


@functools.cache
def wiring(hidden: int = 6, dtype: torch.dtype = torch.float64) -> ib.Wiring:
    """That of every `mlp` of this width."""
    return ib.wire(mlp(hidden=hidden, dtype=dtype), torch.zeros(2, 5, dtype=dtype))


def labelled(sizes: Sequence[int] = (7, 4, 9), seed: int = 0, shape: tuple[int, ...] = (5,)) -> list[Any]:
    """Batches of unequal sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, *shape, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in sizes
    ]


def whole(data: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])


def plainly(model: nn.Module, data: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Loss and accuracy over all samples at once."""
    x, y = whole(data)
    was = model.training
    with torch.no_grad():
        logits = model.eval()(x)
    model.train(was)
    return float(F.cross_entropy(logits, y)), float((logits.argmax(1) == y).double().mean())


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_unchanged(model: nn.Module, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
