"""The check changes nothing that it is given, and refuses what it could only give a meaningless figure for."""

from __future__ import annotations

import math

import pytest
import torch
from tests.wiring.known_networks import generic, rows
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.wiring import wire
from interbasin.wiring.check import difference


def mlp() -> nn.Module:
    return generic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))


class Counting(nn.Module):
    """A network that writes into its buffers, its inputs and its own attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.kept: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.kept.append(len(x))
        x[:, 0] = 0
        return self.out(self.first(x).relu())


def test_neither_the_network_nor_its_inputs_are_changed() -> None:
    network, inputs = generic(Counting()), rows(4)
    wiring = wire(network, inputs)
    assert wiring.spaces["first"].describe() == "permutation of 8"
    assert wiring.check(network, inputs) < 1e-10
    assert network.calls == 0
    assert network.kept == []
    assert torch.equal(inputs, rows(4))


def test_inputs_that_do_not_fit_leave_the_network_as_it_was() -> None:
    network = generic(Counting())
    with pytest.raises(WiringError, match="example inputs do not fit Counting"):
        wire(network, rows(5))
    assert network.calls == 0


def test_infinities_that_stay_are_no_change() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.first(x).relu()).masked_fill(torch.tensor([True, False, False]), -math.inf)

    network = generic(Masked())
    assert wire(network, rows(4)).check(network, rows(4)) < 1e-10


def test_the_meta_device_by_default_is_refused_by_the_check_and_not_by_wiring() -> None:
    network, inputs = mlp(), rows(4)
    torch.set_default_device("meta")
    try:
        wiring = wire(network, inputs)
        with pytest.raises(WiringError, match=r"default device is meta.*torch\.set_default_device\('cpu'\)"):
            wiring.check(network, inputs)
    finally:
        torch.set_default_device(None)
    assert wiring.check(network, inputs) < 1e-10


def test_a_space_at_a_time_gives_a_figure_each() -> None:
    network = generic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)))
    figures = wire(network, rows(4)).check(network, rows(4), each=True)
    assert figures.keys() == {"0", "2"}
    assert max(figures.values()) < 1e-10


def test_networks_whose_outputs_have_other_shapes_differ_without_bound() -> None:
    assert difference(nn.Linear(4, 2).double(), nn.Linear(4, 3).double(), rows(4)) == math.inf


class Merging(nn.Module):
    """A low-rank update that is merged into the weight in evaluation, and taken out of it again in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 4))
        self.down, self.up = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(8, 2))
        self.out = nn.Linear(8, 3)
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            sign = -1 if mode else 1
            self.weight.data += sign * self.up.data @ self.down.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = x @ self.weight.mT
        if not self.merged:
            hidden = hidden + x @ self.down.mT @ self.up.mT
        return self.out(hidden.relu())


def test_a_network_whose_mode_rewrites_its_weights_is_wired_as_it_is_carried() -> None:
    network = generic(Merging().train()).train().eval()
    assert network.merged
    before = network.weight.clone()
    wiring = wire(network, rows(4))
    assert torch.equal(network.weight, before)
    assert {"weight", "down", "up"} <= wiring.tensors.keys()
    assert wiring.check(network, rows(4)) < 1e-10
    assert network.merged
