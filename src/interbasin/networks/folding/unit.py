"""Norms without a gain, and norms whose gain is a layer of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SpelledNorm", "UnitNorm"]


class UnitNorm(nn.Module):
    r"""``x / sqrt(mean(x**2) + eps)`` along one axis, the last or that of channels: turns with its input.

    It stands where a norm with a gain stood, in networks that look at that norm: ``weight`` is there for its dtype and
    device and is not used, and ``eps`` equals nothing, because torch's fused encoder layers compare it before they
    pass the norm by.
    """

    weight: Tensor

    def __init__(self, width: int, epsilon: float, like: Tensor | None = None, axis: int = -1) -> None:
        super().__init__()
        self.width, self.epsilon, self.axis = width, epsilon, axis
        self.eps = float("nan")
        made = torch.ones(width) if like is None else torch.ones(width, dtype=like.dtype, device=like.device)
        self.register_buffer("weight", made, persistent=False)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.movedim(self.axis, -1), (self.width,), None, self.epsilon).movedim(-1, self.axis)

    def extra_repr(self) -> str:
        return f"{self.width}, epsilon={self.epsilon}"


class SpelledNorm(nn.Module):
    """A norm without a gain, and its gain and bias as a linear layer behind it: what reads it sees no difference."""

    def __init__(self, norm: nn.Module, gain: nn.Linear, axis: int = -1) -> None:
        super().__init__()
        self.norm, self.gain, self.axis = norm, gain, axis
        self.eps = float("nan")  # as in UnitNorm

    @property
    def weight(self) -> Tensor:
        """For its dtype and device."""
        return self.gain.weight.diagonal()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.gain(self.norm(x.movedim(self.axis, -1)))
        return found.movedim(-1, self.axis)
