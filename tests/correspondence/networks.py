"""Small networks to be matched: wirings written as text, and networks that are traced."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interbasin.wiring import Group, Role, Space, TensorWiring, Wiring, wire
from interbasin.wiring.axes.spaces import Axis, In, Reason, Row, Still

KERNEL = Reason("kernel", "a kernel lies along it")
STEM = {"stem.weight": "stem <- input", "stem.bias": "stem"}
HEAD = {"head.weight": "output <- stem", "head.bias": "output"}


def wiring(lines: Mapping[str, str], widths: Mapping[str, int] | None = None) -> Wiring:
    """A wiring from lines such as ``"hidden <- input"``: tensor -> what it writes, and what it reads.

    Gains stand between bars, what follows the dual where it writes has a tilde, segments have a plus between them, and
    a number is an axis that stays. An axis that reads and comes first begins with ``<``.
    """
    widths = {} if widths is None else widths
    tensors: dict[str, TensorWiring] = {}
    places: dict[str, list[tuple[Role, str]]] = {}

    def axis(word: str, read: bool, place: str) -> Axis:
        if word.isdigit():
            return Still(int(word), KERNEL)
        if "+" in word:
            return Row(tuple(axis(part, read, place) for part in word.split("+")))
        space = word.strip("|~<")
        role = Role.SCALE if "|" in word else Role.READ if read or word[0] in "~<" else Role.WRITE
        places.setdefault(space, []).append((role, place))
        return In(space, role, widths.get(space, 4))

    for name, line in lines.items():
        left, _, right = line.partition("<- ")
        words = [*((word, False) for word in left.split()), *((word, True) for word in right.split())]
        axes = tuple(axis(*word, f"{name}[{place}]") for place, word in enumerate(words))
        tensors[name] = TensorWiring(tuple(axis.size for axis in axes), axes)
    spaces = {
        name: Space(
            name,
            widths.get(name, 4),
            (),
            1,
            Group.FIXED if name in ("input", "output") else Group.PERMUTATION,
            *(tuple(place for own, place in found if own is role) for role in (Role.WRITE, Role.READ, Role.SCALE)),
        )
        for name, found in places.items()
    }
    return Wiring(spaces, tensors)


def mlp(depth: int, prefix: str = "fc") -> Wiring:
    """A plain MLP of ``depth`` hidden layers."""
    hidden = [f"{prefix}{layer}" for layer in range(1, depth + 1)]
    lines = {}
    for layer, (before, after) in enumerate(zip(["input", *hidden], [*hidden, "output"], strict=True), start=1):
        lines |= {f"{prefix}{layer}.weight": f"{after} <- {before}", f"{prefix}{layer}.bias": after}
    return wiring(lines)


def blocks(depth: int, stack: str, up: str = "up", down: str = "down", bias: bool = True) -> dict[str, str]:
    """The lines of ``depth`` pre-norm residual blocks around a stream called ``stem``."""
    lines = {}
    for block in range(depth):
        name = f"{stack}.{block}"
        lines |= {f"{name}.norm.weight": "|stem|", f"{name}.norm.bias": "stem"}
        lines |= {f"{name}.{up}.weight": f"{name}.{up} <- stem", f"{name}.{down}.weight": f"stem <- {name}.{up}"}
        lines |= {f"{name}.{up}.bias": f"{name}.{up}", f"{name}.{down}.bias": "stem"} if bias else {}
    return lines


def residual(depth: int, stack: str = "blocks", up: str = "up", down: str = "down", bias: bool = True) -> Wiring:
    """A residual network of ``depth`` blocks."""
    return wiring({**STEM, **blocks(depth, stack, up, down, bias), **HEAD})


def flat_attention(depth: int, grouped: bool = False) -> Wiring:
    """A transformer whose heads are read flat: grouped queries make what is read another space than the values."""
    lines = {"embed.weight": "60 embed"}
    for block in range(depth):
        name = f"layers.{block}"
        values = f"{name}.o.input" if grouped else f"{name}.v"
        lines |= {f"{name}.{part}.weight": f"{name}.{part} <- embed" for part in ("q", "k", "v")}
        lines |= {f"{name}.o.weight": f"embed <- {values}", f"{name}.norm.weight": "|embed|"}
        lines |= {f"{name}.up.weight": f"{name}.up <- embed", f"{name}.down.weight": f"embed <- {name}.up"}
    return wiring(lines | {"head.weight": "output <- embed"})


def attention(depth: int, fused: bool = False) -> Wiring:
    """A transformer with one head, q, k and v in one tensor or apart, and weights stored (in, out) or (out, in)."""
    lines = {"embed.weight": "60 embed"}
    for block in range(depth):
        name = f"h.{block}"
        written = {"q": f"{name}.q", "k": f"~{name}.q", "v": f"{name}.v"}
        if fused:
            lines |= {f"{name}.qkv.weight": f"<embed {'+'.join(written.values())}"}
        else:
            lines |= {f"{name}.{part}.weight": f"{space} <- embed" for part, space in written.items()}
        lines |= {f"{name}.o.weight": f"embed <- {name}.v", f"{name}.norm.weight": "|embed|"}
    return wiring(lines)


# ---------------------------------------------------------------------- networks that are traced


class Fused(nn.Module):
    """`nn.TransformerEncoder`, with q, k and v in one tensor."""

    def __init__(self, width: int, heads: int, depth: int, hidden: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True, norm_first=True)
        self.stem = nn.Linear(12, width)
        self.pos = nn.Parameter(torch.randn(1, 5, width))
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.stem(x) + self.pos).mean(1))


class Attention(nn.Module):
    """Keys come first, so that the space of queries and keys is called after the keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.key, self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.key, self.query, self.value))
        attended = torch.softmax(q @ k.mT / k.shape[-1] ** 0.5, -1) @ v
        return self.out(attended.transpose(1, 2).flatten(2))


class Conv1D(nn.Module):
    """A linear layer that stores its weight (in, out), as GPT-2 does."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out)), nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Written(nn.Module):
    """The same function as `Fused`, written by hand: other names, order, shapes, and q, k and v apart."""

    def __init__(self, width: int, heads: int, depth: int, hidden: int) -> None:
        super().__init__()
        self.classify = nn.Linear(width, 3)
        self.final = nn.LayerNorm(width)
        self.trunk = nn.ModuleList(
            nn.ModuleDict(
                {
                    "up": Conv1D(width, hidden),
                    "down": Conv1D(hidden, width),
                    "attention": Attention(width, heads),
                    "before": nn.LayerNorm(width),
                    "between": nn.LayerNorm(width),
                }
            )
            for _ in range(depth)
        )
        self.positions = nn.Parameter(torch.randn(5, width))
        self.patches = nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x) + self.positions
        for block in self.trunk:
            x = x + block["attention"](block["before"](x))
            x = x + block["down"](F.relu(block["up"](block["between"](x))))
        return self.classify(self.final(x).mean(1))


def inputs() -> Tensor:
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))


@functools.cache
def traced(kind: type[nn.Module], width: int = 8, heads: int = 2, depth: int = 2, hidden: int = 12) -> Wiring:
    return wire(kind(width, heads, depth, hidden).eval(), inputs())
