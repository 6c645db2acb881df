"""Small networks whose groups are known by hand, written as their authors would write them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, CHANNELS, LENGTH = 12, 3, 4, 5


class Written(nn.Module):
    """A network from its layers and the code that runs them."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.code = forward
        for name, layer in layers.items():
            setattr(self, name, layer)
        generic(self)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.code(self, *inputs)


def generic(network: nn.Module, seed: int = 0) -> nn.Module:
    """Weights, gains, biases and statistics that are neither zero nor one, in float64 and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    network.double().eval()
    with torch.no_grad():
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                positive = name.endswith("running_var")
                tensor.copy_(0.5 + noise.abs() if positive else noise / math.sqrt(max(tensor.shape[-1:], default=1)))
    return network


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(*shape))


def between(function: Callable[[Tensor], Tensor], inside: int = 4, hidden: int = 8) -> Written:
    """Two layers with something between them."""
    return Written(
        lambda self, x: self.second(function(self.first(x))),
        first=nn.Linear(inside, hidden),
        second=nn.Linear(hidden, 2),
    )


def normed(norm: nn.Module, inside: int = 4, hidden: int = 8) -> Written:
    return Written(
        lambda self, x: self.second(self.norm(self.first(x))),
        first=nn.Linear(inside, hidden, bias=False),
        norm=norm,
        second=nn.Linear(hidden, 2),
    )


def attention(
    *, shared: int = 1, turn: Callable[[Tensor], Tensor] | None = None, norm: bool = False, spelled: bool = False
) -> Written:
    """Attention with separate projections; ``shared`` query heads to a key-value head."""
    heads = HEADS * shared

    def run(self: Written, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, CHANNELS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if turn is not None:
            q, k = turn(q), turn(k)
        if shared > 1:
            k, v = (one[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2) for one in (k, v))
        mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v if spelled else F.scaled_dot_product_attention(q, k, v)
        return self.o(mixed.transpose(1, 2).flatten(2))

    layers: dict[str, nn.Module] = {
        "q": nn.Linear(WIDTH, heads * CHANNELS),
        "k": nn.Linear(WIDTH, HEADS * CHANNELS),
        "v": nn.Linear(WIDTH, HEADS * CHANNELS),
        "o": nn.Linear(heads * CHANNELS, 2),
    }
    if norm:
        layers |= {"q_norm": nn.RMSNorm(CHANNELS), "k_norm": nn.RMSNorm(CHANNELS)}
    return Written(run, **layers)


def fused_attention(layout: str) -> Written:
    """Attention with queries, keys and values from one projection, laid out in one of the usual ways."""

    def run(self: Written, x: Tensor) -> Tensor:
        fused = self.qkv(x)
        if layout == "3 heads channels":
            q, k, v = fused.unflatten(-1, (3, HEADS, CHANNELS)).permute(2, 0, 3, 1, 4).unbind(0)
        elif layout == "heads 3 channels":
            q, k, v = fused.unflatten(-1, (HEADS, 3, CHANNELS)).permute(3, 0, 2, 1, 4).unbind(0)
        elif layout == "heads channels 3":
            q, k, v = fused.unflatten(-1, (HEADS, CHANNELS, 3)).permute(4, 0, 2, 1, 3).unbind(0)
        else:
            q, k, v = (part.unflatten(-1, (HEADS, CHANNELS)).transpose(1, 2) for part in fused.chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return Written(run, qkv=nn.Linear(WIDTH, 3 * HEADS * CHANNELS), o=nn.Linear(HEADS * CHANNELS, 2))


def _angles(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.arange(x.shape[-2])[:, None] / 3.0 ** torch.arange(half, dtype=x.dtype)


def rotary_halves(x: Tensor) -> Tensor:
    angles = torch.cat([_angles(x)] * 2, -1)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def rotary_pairs(x: Tensor) -> Tensor:
    angles = _angles(x).repeat_interleave(2, -1)
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * angles.cos() + turned * angles.sin()


def tokens(length: int = LENGTH, vocabulary: int = 10) -> Tensor:
    return torch.arange(2 * length).reshape(2, length) % vocabulary


def rows(*shape: int) -> Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
