"""Networks that are made alike have one wiring, and what could tell them apart is seen."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from interbasin.wiring.compatibility import made_alike


class Net(nn.Module):
    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("order", torch.arange(8))
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


class Settings:
    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.inner = {"rates": [0.5, heads]}


def test_other_weights_are_alike():
    assert made_alike(Net(heads=2, act=F.relu, config=Settings(2)), Net(heads=2, act=F.relu, config=Settings(2)))


def reordered() -> Net:
    net = Net()
    net.order.copy_(torch.arange(8).flip(0))
    return net


@pytest.mark.parametrize(
    "other",
    [
        lambda: Net(heads=3),
        lambda: Net(act=F.tanh),
        lambda: Net(config=Settings(3)),
        lambda: Net(two=nn.Linear(8, 3)),
        lambda: Net(two=nn.Sequential(nn.Linear(8, 2))),
        lambda: Net().train(),
        lambda: Net().double(),
        reordered,
        lambda: nn.Linear(4, 2),
    ],
)
def test_what_tells_networks_apart_is_seen(other):
    assert not made_alike(Net(heads=2, act=F.relu, config=Settings(2)).eval(), other())
    assert not made_alike(Net().eval(), other())


def test_what_cannot_be_compared_is_not_taken_for_alike():
    assert not made_alike(Net(act=functools.partial(F.gelu)), Net(act=functools.partial(F.gelu)))
    assert not made_alike(Net(act=lambda x: x), Net(act=lambda x: x))
