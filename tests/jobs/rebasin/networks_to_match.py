"""Small networks of several shapes, with weights, gains and biases that all differ."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["GENERIC", "Attention", "Residual", "generic", "mlp"]


def generic(network: nn.Module, seed: int) -> nn.Module:
    """Gains, biases and statistics that no two units share: a fresh network would hide mistakes."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in network.parameters():
            if tensor.ndim == 1:
                tensor.copy_(torch.rand(tensor.shape, generator=drawn) + 0.5)
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=drawn) / tensor[0].numel() ** 0.5)
        for name, tensor in network.named_buffers():
            if tensor.is_floating_point():
                spread = torch.rand(tensor.shape, generator=drawn)
                tensor.copy_(spread + 0.5 if "var" in name else spread)
    return network.eval()


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """A convolutional network with a skip, batch norms and a shortcut that changes the width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.one, self.one_norm = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.two, self.two_norm = nn.Conv2d(12, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.wide, self.shortcut = nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.Conv2d(8, 16, 1, stride=2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.two_norm(self.two(torch.relu(self.one_norm(self.one(x))))))
        x = torch.relu(self.wide(x) + self.shortcut(x))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """A pre-norm transformer of two blocks on tokens; RMS norms, so that it folds."""

    def __init__(self, heads: int = 4, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.blocks = nn.ModuleList(Block(heads, width) for _ in range(2))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 40, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.two(x))))


def _images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def _rows() -> Tensor:
    return torch.randn(6, 10, generator=torch.Generator().manual_seed(0))


def _tokens() -> Tensor:
    return torch.randint(0, 40, (2, 7), generator=torch.Generator().manual_seed(0))


# Name -> how to build it, and inputs.
GENERIC = {
    "mlp": (lambda: mlp(10, 24, 24, 5), _rows),
    "odd mlp": (lambda: mlp(10, 24, 24, 5, activation=nn.Tanh), _rows),
    "linear in the middle": (
        lambda: nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5)),
        _rows,
    ),
    "residual": (Residual, _images),
    "attention": (Attention, _tokens),
}
