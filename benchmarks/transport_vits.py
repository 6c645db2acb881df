"""Small vision transformers, trained as the networks of `transport_workload.py` are, and the pairs made of them.

28 x 28 images are cut into 7 x 7 pixels (a 4 x 4 grid) or into 4 x 4 pixels (a 7 x 7 grid); the embedded digits of the
quick form have 8 x 8 pixels and are cut into 2 x 2. Class token, learned positions, pre-norm, GELU, hidden width twice
the stream's. Narrow networks see the first half of the images and wide ones the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from transport_workload import FULL, OUTPUTS, QUICK, Pair, Shape


@dataclass(frozen=True)
class VitShape(Shape):
    """How large a vision transformer is, and how it cuts images."""

    depth: int = 2
    heads: int = 4
    patch: int = 7

    @property
    def name(self) -> str:
        return f"w{self.width}-d{self.depth}-h{self.heads}-p{self.patch}"

    def build(self, pixels: int, seed: int = 0) -> Vit:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Vit(math.isqrt(pixels), self)


class VitBlock(nn.Module):
    """Attention, then a layer of hidden units, each behind a norm and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, stream: Tensor, count: int | None = None) -> Tensor:
        """The stream behind the block, of the first so many tokens or of all."""
        read = self.norm1(stream)
        parts = self.q(read[:, :count]), self.k(read), self.v(read)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        stream = stream[:, :count] + self.o(mixed.transpose(1, 2).flatten(2))
        return stream + self.fc2(gelu(self.fc1(self.norm2(stream))))


class Vit(nn.Module):
    """Rows of pixels to a vector that is compared with the class embeddings."""

    def __init__(self, side: int, shape: VitShape) -> None:
        super().__init__()
        self.grid, self.patch, width = side // shape.patch, shape.patch, shape.width
        self.patches = nn.Linear(shape.patch**2, width)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + self.grid**2, width))
        self.blocks = nn.ModuleList(VitBlock(width, shape.heads) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.run(pixels, is_short=self.head.weight.requires_grad)

    def answer(self, pixels: Tensor) -> Tensor:
        """What `forward` gives, for tests, where nobody looks at activations."""
        return self.run(pixels, is_short=True)

    def run(self, pixels: Tensor, *, is_short: bool) -> Tensor:
        """In the last block of all tokens, or only of the class token, which is all that is read: in training too."""
        cut = pixels.reshape(-1, self.grid, self.patch, self.grid, self.patch).transpose(2, 3)
        patches = self.patches(cut.reshape(len(pixels), self.grid**2, -1))
        stream = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], 1) + self.positions
        for number, block in enumerate(self.blocks, start=1):
            stream = block(stream, 1) if is_short and number == len(self.blocks) else block(stream)
        return self.head(self.norm(stream[:, 0]))


VITS = replace(FULL, name="vit", widths=(64, 96))
QUICK_VITS = replace(QUICK, name="quick-vit")
NARROW, WIDE = VitShape(64), VitShape(96)
MORE_HEADS, DEEPER, FINER = replace(WIDE, heads=6), replace(WIDE, depth=4), replace(NARROW, patch=4)
# The pairs by name, for a seed. Wide to narrow, the networks are the same, the other way round.
VIT_PAIRS: dict[str, Callable[[int], Pair]] = {
    "vit-wider": partial(VITS.pair, shapes=(NARROW, WIDE)),
    "vit-narrower": partial(VITS.pair, shapes=(WIDE, NARROW), sides=("B", "A")),
    "vit-more-heads": partial(VITS.pair, shapes=(NARROW, MORE_HEADS)),
    "vit-deeper": partial(VITS.pair, shapes=(NARROW, DEEPER)),
    "vit-finer": partial(VITS.pair, shapes=(NARROW, FINER)),
    "vit-quick": partial(QUICK_VITS.pair, shapes=(VitShape(32, patch=2), VitShape(48, patch=2))),
}
