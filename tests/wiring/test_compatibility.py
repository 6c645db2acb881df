"""Networks that are made alike have one wiring, and what could tell them apart is seen."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import interbasin as ib
from interbasin.errors import WiringError
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


class Functional(nn.Module):
    """Two layers with an activation that no module shows."""

    def __init__(self, bend=torch.relu) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)
        self.settings = {"bend": bend}  # which is not looked into

    def forward(self, x):
        return self.two(self.settings["bend"](self.one(x)))


def between(activation: nn.Module, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 2), *more)


class Squashing(nn.Module):
    def forward(self, x):
        return x / (1 + x.abs())


class SameAsRelu(nn.Module):
    def forward(self, x):
        return x.clamp(min=0)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (nn.ReLU(), nn.GELU(), r"1 is ReLU\(\) in one and GELU\(approximate='none'\) in the other"),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), r"1 is LeakyReLU\(negative_slope=0.1\) in one"),
        (nn.ReLU(), Squashing(), r"1 is ReLU\(\) in one and Squashing\(\) in the other"),
    ],
)
def test_networks_with_other_activations_are_not_one_architecture(one, other, words):
    a, b, x = between(one), between(other), torch.randn(16, 4)
    for action in (lambda: ib.interpolate(a, b, 0.5), lambda: ib.merge([a, b]), lambda: ib.rebasin(a, b, x)):
        with pytest.raises(WiringError, match=words):
            action()
    with pytest.raises(WiringError, match=words):
        ib.evaluate.barrier(a, b, [(x, torch.zeros(16, dtype=torch.long))], points=3)


def test_activations_that_compute_the_same_may_have_several_names():
    from transformers.activations import ACT2FN

    x = torch.randn(16, 4)
    pairs = [
        (nn.ReLU(), SameAsRelu()),
        (nn.ReLU(), nn.ReLU(inplace=True)),
        (nn.GELU(), nn.GELU(approximate="tanh")),
        (ACT2FN["gelu_new"], ACT2FN["gelu_pytorch_tanh"]),
        (nn.Dropout(0.5), nn.Identity()),
    ]
    for one, other in pairs:
        a, b = between(one).eval(), between(other).eval()
        a, b = (nn.Sequential(nn.Linear(4, 4), net, nn.ReLU(), nn.Linear(2, 2)).eval() for net in (a, b))
        ib.interpolate(a, b, 0.5)
        ib.merge([a, b])
        ib.rebasin(a, b, x)


def test_functions_that_modules_hold_are_compared():
    layers = [nn.TransformerEncoderLayer(8, 2, 16, activation=bend, batch_first=True) for bend in (F.relu, F.gelu)]
    with pytest.raises(WiringError, match="activation is relu in one and gelu in the other"):
        ib.interpolate(*layers, 0.5)


def test_what_a_forward_calls_by_itself_is_seen_where_networks_are_run():
    x = torch.randn(64, 4)
    with pytest.raises(WiringError, match=r"the target gives other outputs than the source \(by \d+% of their"):
        ib.rebasin(Functional(torch.relu), Functional(F.gelu), x)
    ib.rebasin(Functional(torch.relu), Functional(F.relu), x)
    ib.rebasin(Functional(F.gelu), Functional(lambda numbers: F.gelu(numbers, approximate="tanh")), x)
