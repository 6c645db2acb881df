"""Networks that updates are carried between, each with another that is the same network seen through isometries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from tests.architectures.architecture import VOCABULARY, Inputs, floats, run
from tests.architectures.from_transformers import transformers
from tests.architectures.randomise import randomise
from tests.jobs.rebasin.networks_to_match import Residual, mlp
from tests.laws.strategies import gaussian, generator, orthonormal
from torch import Tensor, nn

import interbasin as ib
from interbasin.checkpoints.in_memory import HeldTensors
from interbasin.checkpoints.lora import Factors
from interbasin.jobs.transport.bases import Bases, relate
from interbasin.jobs.transport.task import Task
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update

WIDTH, HIDDEN, HEADS, LABELS = 16, 24, 2, 5
ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 12,
}
VISION = {**ENCODER, "image_size": 8, "patch_size": 2, "num_labels": LABELS}
del VISION["vocab_size"], VISION["max_position_embeddings"]
DECODER = {**ENCODER, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


class ResidualMLP(nn.Module):
    """Pre-norm residual blocks on rows."""

    def __init__(self, width: int = WIDTH, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(10, width), nn.Linear(width, LABELS)
        self.blocks = nn.ModuleList(ResidualBlock(width, hidden) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ResidualBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class PlainEncoder(nn.Module):
    """A class token, learned positions and torch's own encoder layers, with their attention."""

    def __init__(
        self, width: int = WIDTH, hidden: int = HIDDEN, *, norm_first: bool = True, last: bool = False
    ) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(10, width), nn.Linear(width, LABELS)
        self.first, self.positions = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(7, width))
        layer = nn.TransformerEncoderLayer(
            width, HEADS, hidden, 0.0, "gelu", batch_first=not last, norm_first=norm_first
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.last = nn.LayerNorm(width), last

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(x), 1, -1), self.stem(x)], 1) + self.positions
        x = self.blocks(x.transpose(0, 1)).transpose(0, 1) if self.last else self.blocks(x)
        return self.head(self.norm(x)[:, 0])


def rows(seed: int) -> Inputs:
    return gaussian(seed, 256, 10)


def series(seed: int) -> Inputs:
    return gaussian(seed, 48, 6, 10)


def images(seed: int) -> Inputs:
    return gaussian(seed, 24, 3, 8, 8)


def pixels(seed: int) -> Inputs:
    return {"pixel_values": gaussian(seed, 24, 3, 8, 8)}


def tokens(seed: int) -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY, (48, 9), generator=generator(seed))}


def two_texts(seed: int) -> Inputs:
    return {**tokens(seed), "decoder_input_ids": tokens(seed + 1)["input_ids"]}


def made(name: str, **options: Any) -> Callable[[], nn.Module]:
    """How a network of transformers is made."""
    return transformers(name, tokens, **options).network


@dataclass(frozen=True)
class Case:
    """A shape of network.

    Attributes:
        make: Makes it.
        inputs: One batch from a seed.
        tolerance: How near outputs come where the network computes in float64.
        folds: Whether norms can be folded.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    tolerance: float = 1e-9
    folds: bool = False


CASES: dict[str, Case] = {
    "relu mlp": Case(lambda: mlp(10, 16, 16, LABELS), rows),
    "gelu mlp": Case(lambda: mlp(10, 16, 16, LABELS, activation=nn.GELU), rows),
    "residual mlp": Case(ResidualMLP, rows, folds=True),
    "resnet": Case(Residual, images),
    "encoder": Case(PlainEncoder, series, folds=True),
    "post-norm encoder": Case(lambda: PlainEncoder(norm_first=False), series),
    "encoder, batch second": Case(lambda: PlainEncoder(last=True), series),
    "bert": Case(made("BertForSequenceClassification", **ENCODER, num_labels=LABELS), tokens),
    "gpt2": Case(
        made("GPT2LMHeadModel", vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=12),
        tokens,
        folds=True,
    ),
    "vit": Case(made("ViTForImageClassification", **VISION), pixels, folds=True),
    "clip": Case(made("CLIPVisionModelWithProjection", **VISION, projection_dim=6), pixels),
    "t5": Case(
        made(
            "T5ForConditionalGeneration",
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=8,
            d_ff=HIDDEN,
            num_layers=2,
            num_heads=HEADS,
            relative_attention_num_buckets=6,
            relative_attention_max_distance=10,
        ),
        two_texts,
        folds=True,
    ),
    # Their RMS norm computes in float32.
    "llama": Case(made("LlamaForCausalLM", **DECODER), tokens, 1e-6, folds=True),
    "qwen2": Case(made("Qwen2ForCausalLM", **DECODER, tie_word_embeddings=True), tokens, 1e-6, folds=True),
}


@dataclass(frozen=True, eq=False)
class Pair:
    """A network and its image, the fine-tune of the first, and what both are shown."""

    source: nn.Module
    target: nn.Module
    tuned: nn.Module
    data: list[Any]

    @cached_property
    def bases(self) -> Bases:
        return relate(self.source, self.target, self.data)

    @cached_property
    def task(self) -> Task:
        return Task(self.bases, Update.of(self.tuned, self.source), self.tuned, self.data)

    def error(self, update: Update, inputs: Any) -> float:
        """How far the target with an update is from the tuned source, relative to the latter's outputs."""
        return distance(self.tuned, update.added_to(self.target), inputs)


def distance(one: nn.Module, other: nn.Module, inputs: Any) -> float:
    with torch.no_grad():
        pairs = list(zip(floats(run(one, inputs)), floats(run(other, inputs)), strict=True))
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)


def tuned_by(network: nn.Module, seed: int, size: float = 0.1) -> nn.Module:
    """A copy of a network whose every parameter and running mean has changed."""
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for place, parameter in enumerate(moved.parameters()):
            parameter += size * parameter.std(correction=0).clamp(min=0.1) * gaussian(seed + place, *parameter.shape)
        for place, (name, buffer) in enumerate(moved.named_buffers()):
            if name.endswith("running_mean"):
                buffer += size * gaussian(seed - place, *buffer.shape)
            elif name.endswith("running_var"):
                buffer *= 1 + size * gaussian(seed - place, *buffer.shape).clamp(-2, 2)
    return moved


@cache
def pair_of(name: str, folded: bool = False, seed: int = 0) -> Pair:
    """The pair of a case; its networks must not be changed."""
    case = CASES[name]
    data = [case.inputs(seed + number) for number in (1, 2)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = randomise(case.make().double().eval(), seed, data[0])
    tuned = tuned_by(source, seed + 7)
    if folded:
        # The update of a folded network is the difference of two: its stream has no mean before or after.
        source, tuned = ib.fold_norms(source, data[0]), ib.fold_norms(tuned, data[0])
    wiring = ib.wire(source, data[0])
    return Pair(source, ib.carry(source, wiring.sample(seed + 3, isometric=True)), tuned, data)


def low_rank(network: nn.Module, rank: int, seed: int) -> Update:
    """An update with factors for every weight that can have them, tables and convolutions too."""
    kinds, tensors = kinds_of(network), network.state_dict()
    tied = HeldTensors(network, "the network").ties
    factors = {}
    for place, (name, kind) in enumerate(kinds.items()):
        if name in tied:
            continue
        tensor = tensors[name].mT if kind in ("conv1d", "table") else tensors[name]
        a = gaussian(seed + 2 * place, rank, *tensor.shape[1:])
        b = gaussian(seed + 2 * place + 1, len(tensor), rank, *(1 for _ in tensor.shape[2:]))
        factors[name] = Factors(0.1 * a, 0.2 * b)
    return Update(
        factors=factors,
        transposed=frozenset(name for name in factors if kinds[name] in ("conv1d", "table")),
        tables=frozenset(name for name in factors if kinds[name] == "table"),
        kinds=kinds,
    )


# ---------------------------------------------------------------------- wider networks of the same function


class Wide(nn.Module):
    """A pre-norm transformer on rows of numbers whose widths are all free; its gains are made to stay."""

    def __init__(self, width: int, heads: int, hidden: int, gain: float = 1.0, eps: float = 1e-5) -> None:
        super().__init__()
        self.heads, self.gain, self.eps = heads, gain, eps
        self.stem, self.head = nn.Linear(10, width), nn.Linear(width, LABELS)
        self.q, self.k, self.v = (nn.Linear(width, 4 * heads) for _ in range(3))
        self.o = nn.Linear(4 * heads, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def norm(self, x: Tensor) -> Tensor:
        return self.gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(self.norm(x))


class Channels(nn.Module):
    """Convolutions and a batch norm."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first)
        self.two, self.head = nn.Conv2d(first, second, 3, padding=1), nn.Linear(second, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.two(torch.relu(self.norm(self.one(x))))).mean((2, 3)))


def written_into(target: nn.Module, source: nn.Module, maps: Mapping[int, Tensor]) -> nn.Module:
    """``target`` with the tensors of ``source``, every axis of a length that has a map (wide, narrow) going through it.

    What is new is dead: nothing is written to it, and nothing is read from it.
    """
    tensors = {}
    for name, tensor in source.state_dict().items():
        for axis, size in enumerate(tensor.shape):
            if size in maps:
                tensor = torch.tensordot(tensor, maps[size], dims=([axis], [1])).movedim(-1, axis)
        tensors[name] = torch.where(tensor == 0, 1, tensor) if name.endswith("running_var") else tensor
    target.double().eval().load_state_dict(tensors)
    return target


def units(seed: int, wide: int, narrow: int) -> Tensor:
    """Each unit of the narrow space at a place of its own in the wide one."""
    return torch.eye(wide, dtype=torch.float64)[torch.randperm(wide, generator=generator(seed))[:narrow]].mT


def wider(name: str, seed: int = 0) -> tuple[nn.Module, nn.Module, list[Any]]:
    """A network, a wider one of the same function, and data: of `WIDER`."""
    made: tuple[nn.Module, nn.Module]
    maps: dict[int, Tensor]
    if name == "hidden units":
        made, inputs = (mlp(10, 16, 24, LABELS), mlp(10, 21, 30, LABELS)), rows
        maps = {16: units(seed, 21, 16), 24: units(seed + 1, 30, 24)}
    elif name == "channels":
        made, inputs = (Channels(8, 12), Channels(11, 15)), images
        maps = {8: units(seed, 11, 8), 12: units(seed + 1, 15, 12)}
    else:
        heads = 3 if name == "stream, heads and hidden units" else 2
        # The mean square is over more units, and the factor in the norm makes up for it.
        wide = Wide(18, heads, 30, gain=(12 / 18) ** 0.5, eps=1e-5 * 12 / 18)
        made, inputs = (Wide(12, 2, 24), wide), series
        maps = {12: orthonormal(seed, 18, 12), 24: units(seed + 1, 30, 24)}
        maps |= {8: torch.eye(12, 8, dtype=torch.float64)} if heads == 3 else {}
    source = randomise(made[0].double().eval(), seed, inputs(seed))
    return source, written_into(made[1], source, maps), [inputs(seed + 1), inputs(seed + 2)]


WIDER = ("hidden units", "channels", "stream and hidden units", "stream, heads and hidden units")
