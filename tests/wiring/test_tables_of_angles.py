"""Tables of angles are constants of an architecture, statistics are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from interbasin.wiring import wire


class Rotary(nn.Module):
    """Queries and keys turned by angles from a buffer that the checkpoint holds; the table is kept after one call."""

    def __init__(self, guarded: bool) -> None:
        super().__init__()
        self.guarded = guarded
        self.register_buffer("frequencies", torch.tensor([1.0, 0.3, 0.1]))
        self.inward, self.query, self.key = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(5, 6)
        self.head = nn.Linear(5, 2)
        self.kept: Tensor | None = None

    def table(self, count: int) -> Tensor:
        angles = torch.arange(count)[:, None] * self.frequencies
        return torch.stack([torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        if self.kept is None:
            if self.guarded:
                with torch.no_grad():
                    self.kept = self.table(x.shape[1])
            else:
                self.kept = self.table(x.shape[1])
        cos, sin = self.kept

        def turned(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat((-second, first), -1) * sin

        weights = torch.softmax(turned(self.query(x)) @ turned(self.key(x)).mT, -1)
        return self.head(weights @ x)


@pytest.mark.parametrize("guarded", [False, True])
def test_frequencies_stay_although_the_checkpoint_holds_them(guarded: bool) -> None:
    network, x = Rotary(guarded).double().eval(), torch.randn(2, 7, 4, dtype=torch.float64)
    wiring = wire(network, x)
    assert "frequencies" not in wiring.tensors
    assert wiring.check(network, x) < 1e-10
    assert network.kept is None  # the check's own calls leave nothing behind
    network(x)
    assert network.kept is not None
    assert wiring.check(network, x) < 1e-10  # with the table that the call left behind


def test_running_statistics_move() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    wiring = wire(network, torch.randn(3, 4))
    assert {"1.running_mean", "1.running_var"} <= set(wiring.tensors)
    assert "1.running_var[0]" in wiring.spaces["0"].scales
