"""Norms are known by what they compute, not by what they are called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from interbasin.models.folding import UnitNorm
from interbasin.wiring.folding.plan import recognise


class OffsetRms(nn.Module):
    """A gain stored as its difference from one, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.variance_epsilon = 1e-5
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return ((1 + self.weight) * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5))).type_as(x)


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma.view(1, -1, 1, 1)


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


@pytest.mark.parametrize(
    ("module", "kind", "eps", "axis"),
    [
        (nn.LayerNorm(7, eps=1e-3), "layer", 1e-3, -1),
        (nn.LayerNorm(7, bias=False), "layer", 1e-5, -1),
        (nn.RMSNorm(7, eps=1e-4), "rms", 1e-4, -1),
        (OffsetRms(7), "rms", 1e-5, -1),
        (Scale(7), "scale", 0.0, -1),
        (ChannelNorm(7), "layer", 1e-5, 1),
        (ChannelScale(7), "scale", 0.0, 1),
    ],
)
def test_a_formula_is_recognised_with_its_gain(module: nn.Module, kind: str, eps: float, axis: int) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    found = recognise(module)
    assert found is not None
    assert (found.kind, found.eps, found.axis) == (kind, eps, axis)
    stored = next(module.parameters()).double()
    torch.testing.assert_close(found.gain, 1 + stored if isinstance(module, OffsetRms) else stored)
    assert (found.bias is None) == (not any(name == "bias" for name, _ in module.named_parameters()))


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(7, 7),
        nn.BatchNorm1d(7).eval(),
        nn.GroupNorm(7, 7),
        nn.BatchNorm2d(7).eval(),
        nn.PReLU(7),
        nn.Sequential(nn.LayerNorm(7)),
        nn.ReLU(),
        nn.LayerNorm(7, elementwise_affine=False),
        UnitNorm(7, 1e-6),
        nn.Embedding(3, 7),
    ],
)
def test_other_modules_are_not(module: nn.Module) -> None:
    assert recognise(module) is None
