"""Random small networks: the steps they are made of, and how one is drawn.

Each step has two halves. ``plan`` looks at what there is by now, chooses operands, sizes and weights, or says that it
does not fit; the other half is the computation, as a network's author would write it. Sizes are few and small, so that
axes of equal length meet by chance as often as they can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tests.wiring.programs import STEPS, Choose, Draft, Plan, Program, Run, Step
from torch import Tensor

SIZES = (2, 3, 4, 6, 8, 12)
VOCABULARY = 5


def step(plan: Plan) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        STEPS[run.__name__] = (plan, run)
        return run

    return register


def network(choose: Choose, steps: int) -> Program:
    """A network of up to ``steps`` steps, and a last one that reads what is left."""
    shape = [2, *(choose_of(choose, SIZES) for _ in range(1 + choose(3)))]
    generator = torch.Generator().manual_seed(choose(1000))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, VOCABULARY, (2, 3), generator=generator)
    draft = Draft(choose, x, tokens)
    names = [name for name in STEPS if name != "read_out"]
    for _ in range(4 * steps):
        if len(draft.steps) >= steps:
            break
        planned = STEPS[choose_of(choose, names)][0](draft)
        if planned is not None:
            draft.add(planned)
    end = STEPS["read_out"][0](draft)
    assert end is not None
    draft.add(end, last=True)
    return Program(draft.steps, draft.kinds, (x, tokens))


def choose_of(choose: Choose, options: Sequence[Any]) -> Any:
    return options[choose(len(options))]


def rank(least: int, most: int = 6) -> Callable[[Tensor], bool]:
    return lambda value: least <= value.ndim <= most


def divisors(number: int) -> list[int]:
    return [one for one in range(2, number) if number % one == 0]


def axis_of(draft: Draft, value: Tensor, fits: Callable[[int], bool] = lambda size: size > 1) -> int | None:
    axes = [axis for axis, size in enumerate(value.shape) if fits(size)]
    return None if not axes else draft.pick(axes[::-1])


# ---------------------------------------------------------------------- linear layers


def _width(draft: Draft) -> int:
    """A new width, or one that is there already."""
    there = [value.shape[-1] for _, value in draft.made() if value.ndim and 1 < value.shape[-1] <= 12]
    return int(draft.pick(there)) if there and draft.flag() else int(draft.pick(SIZES))


def _plan_linear(draft: Draft) -> Step | None:
    found = draft.value(rank(1))
    if found is None or found[1].shape[-1] > 48:
        return None
    width, inside = _width(draft), found[1].shape[-1]
    form = draft.pick(("linear", "matmul", "einsum", "bias", "normed"))
    shape = (inside, width) if form in ("matmul", "einsum") else (width, inside)
    turned = [name for name, one in draft.kinds.items() if one == ("matrix", shape[::-1])]
    if turned and draft.flag():
        return Step("linear", (found[0],), (form, True), (draft.pick(turned), draft.weight((width,), "vector")))
    return Step("linear", (found[0],), (form, False), (draft.weight(shape), draft.weight((width,), "vector")))


@step(_plan_linear)
def linear(x: Tensor, weight: Tensor, bias: Tensor, form: str, turned: bool) -> Tensor:
    weight = weight.t() if turned else weight
    if form == "matmul":
        return x @ weight
    if form == "einsum":
        return torch.einsum("...i,io->...o", x, weight)
    if form == "normed":
        return F.linear(x, weight / weight.norm(dim=1, keepdim=True), bias)
    return F.linear(x, weight, bias if form == "bias" else None)


def _plan_inner(draft: Draft) -> Step | None:
    """A layer along an axis that is not the last."""
    found = draft.value(rank(2, 4))
    if found is None:
        return None
    axis = draft.choose(found[1].ndim - 1)
    return Step("inner_linear", (found[0],), (axis,), (draft.weight((_width(draft), found[1].shape[axis])),))


@step(_plan_inner)
def inner_linear(x: Tensor, weight: Tensor, axis: int) -> Tensor:
    return F.linear(x.movedim(axis, -1), weight).movedim(-1, axis)


def _plan_heads(draft: Draft) -> Step | None:
    found = draft.value(rank(2, 4))
    if found is None or found[1].shape[-2] > 8 or found[1].shape[-1] > 12:
        return None
    heads, inside = found[1].shape[-2:]
    return Step("per_head", (found[0],), (), (draft.weight((heads, inside, _width(draft))),))


@step(_plan_heads)
def per_head(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("...hd,hde->...he", x, weight)


def _plan_convolution(draft: Draft) -> Step | None:
    found = draft.value(lambda value: value.ndim in (3, 4) and 1 < value.shape[1] <= 24)
    if found is None:
        return None
    channels, places = found[1].shape[1], found[1].shape[2:]
    groups = draft.pick([1, 1, channels, *divisors(channels)])
    width = groups * draft.pick((1, 2, 3)) if groups > 1 else _width(draft)
    turned = draft.choose(5) == 4
    kernel = [draft.pick((1, 3)) if turned else min(size, draft.pick((1, 3))) for size in places]
    shape = (channels, width // groups, *kernel) if turned else (width, channels // groups, *kernel)
    weights = (draft.weight(shape), draft.weight((width,), "vector"))
    return Step("convolution", (found[0],), (groups, turned, draft.flag()), weights)


@step(_plan_convolution)
def convolution(x: Tensor, weight: Tensor, bias: Tensor, groups: int, turned: bool, padded: bool) -> Tensor:
    function = {3: (F.conv1d, F.conv_transpose1d), 4: (F.conv2d, F.conv_transpose2d)}[x.ndim][turned]
    padding = [size // 2 for size in weight.shape[2:]] if padded and not turned else 0
    return function(x, weight, bias, padding=padding, groups=groups)


def _plan_embedding(draft: Draft) -> Step | None:
    return Step("embedding", ((-1, 1),), (), (draft.weight((VOCABULARY, _width(draft))),))


@step(_plan_embedding)
def embedding(tokens: Tensor, table: Tensor) -> Tensor:
    return F.embedding(tokens, table)


def _plan_tied(draft: Draft) -> Step | None:
    tables = [name for name, (kind, shape) in draft.kinds.items() if kind == "matrix" and len(shape) == 2]
    if not tables:
        return None
    table = draft.pick(tables)
    found = draft.value(lambda value: value.ndim > 1 and value.shape[-1] == draft.kinds[table][1][1])
    return None if found is None else Step("tied", (found[0],), (), (table,))


@step(_plan_tied)
def tied(x: Tensor, table: Tensor) -> Tensor:
    return x @ table.t()


# ---------------------------------------------------------------------- layout


def _plan_split(draft: Draft) -> Step | None:
    found = draft.value(lambda value: value.ndim < 5 and any(divisors(size) for size in value.shape))
    if found is None:
        return None
    axis = axis_of(draft, found[1], lambda size: bool(divisors(size)))
    outer = draft.pick(divisors(found[1].shape[axis]))
    return Step("split_axis", (found[0],), (axis, outer))


@step(_plan_split)
def split_axis(x: Tensor, axis: int, outer: int) -> Tensor:
    return x.unflatten(axis, (outer, -1))


def _plan_merge(draft: Draft) -> Step | None:
    found = draft.value(rank(2))
    return None if found is None else Step("merge", (found[0],), (draft.choose(found[1].ndim - 1), draft.flag()))


@step(_plan_merge)
def merge(x: Tensor, axis: int, crossed: bool) -> Tensor:
    return x.transpose(axis, axis + 1).flatten(axis, axis + 1) if crossed else x.flatten(axis, axis + 1)


def _plan_regroup(draft: Draft) -> Step | None:
    """Two axes laid out as two others: (4, 6) as (3, 8)."""
    found = draft.value(rank(2))
    if found is None:
        return None
    axis = draft.choose(found[1].ndim - 1)
    options = divisors(found[1].shape[axis] * found[1].shape[axis + 1])
    return None if not options else Step("regroup", (found[0],), (axis, draft.pick(options)))


@step(_plan_regroup)
def regroup(x: Tensor, axis: int, outer: int) -> Tensor:
    return x.reshape(*x.shape[:axis], outer, -1, *x.shape[axis + 2 :])


def _plan_permute(draft: Draft) -> Step | None:
    found = draft.value(rank(2))
    if found is None:
        return None
    left = list(range(found[1].ndim))
    order = [left.pop(draft.choose(len(left))) for _ in range(found[1].ndim)]
    return Step("permute", (found[0],), (tuple(order),))


@step(_plan_permute)
def permute(x: Tensor, order: tuple[int, ...]) -> Tensor:
    return x.permute(order)


def _plan_shuffle(draft: Draft) -> Step | None:
    found = draft.value(lambda value: value.ndim > 2 and bool(divisors(value.shape[1])))
    if found is None:
        return None
    return Step("shuffle", (found[0],), (draft.pick(divisors(found[1].shape[1])), draft.flag()))


@step(_plan_shuffle)
def shuffle(x: Tensor, groups: int, spelled: bool) -> Tensor:
    if spelled or x.ndim != 4:
        return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    return F.channel_shuffle(x, groups)


def _plan_pixels(draft: Draft) -> Step | None:
    up = draft.value(lambda value: value.ndim == 4 and value.shape[1] % 4 == 0)
    down = draft.value(lambda value: value.ndim == 4 and value.shape[2] % 2 == value.shape[3] % 2 == 0)
    found, name = (up, "up") if draft.flag() else (down, "down")
    return None if found is None else Step("pixels", (found[0],), (name,))


@step(_plan_pixels)
def pixels(x: Tensor, way: str) -> Tensor:
    return F.pixel_shuffle(x, 2) if way == "up" else F.pixel_unshuffle(x, 2)


def _plan_one(draft: Draft) -> Step | None:
    found = draft.value(rank(1, 4))
    return None if found is None else Step("unsqueeze", (found[0],), (draft.choose(found[1].ndim + 1),))


@step(_plan_one)
def unsqueeze(x: Tensor, axis: int) -> Tensor:
    return x.unsqueeze(axis)


def _plan_squeeze(draft: Draft) -> Step | None:
    found = draft.value(lambda value: 1 in value.shape)
    return None if found is None else Step("squeeze", (found[0],))


@step(_plan_squeeze)
def squeeze(x: Tensor) -> Tensor:
    return x.squeeze()


def _plan_repeat(draft: Draft) -> Step | None:
    found = draft.value(rank(1, 4))
    if found is None:
        return None
    form = draft.pick(("interleave", "tile", "expand", "expand in front"))
    return Step("repeat", (found[0],), (draft.choose(found[1].ndim), draft.pick((2, 3)), form))


@step(_plan_repeat)
def repeat(x: Tensor, axis: int, times: int, form: str) -> Tensor:
    if form == "interleave":
        return x.repeat_interleave(times, axis)
    if form == "tile":
        return x.repeat(*(times if place == axis else 1 for place in range(x.ndim)))
    place = axis if form == "expand in front" else axis + 1
    return x.unsqueeze(place).expand(*x.shape[:place], times, *x.shape[place:]).flatten(axis, axis + 1)


def _plan_pad(draft: Draft) -> Step | None:
    found = draft.value(rank(1, 4))
    if found is None:
        return None
    axis = draft.choose(found[1].ndim)
    edges = (draft.choose(3), draft.choose(3))
    return None if edges == (0, 0) else Step("pad", (found[0],), (axis, edges, draft.pick((0.0, 0.0, 0.5))))


@step(_plan_pad)
def pad(x: Tensor, axis: int, edges: tuple[int, int], number: float) -> Tensor:
    return F.pad(x, [0, 0] * (x.ndim - 1 - axis) + list(edges), value=number)


# ---------------------------------------------------------------------- pieces


def _plan_pieces(draft: Draft) -> Step | None:
    found = draft.value()
    if found is None:
        return None
    axis = axis_of(draft, found[1])
    if axis is None:
        return None
    size = found[1].shape[axis]
    form = draft.pick(("chunk", "split", "slice", "select", "unbind", "stride", "narrow"))
    if form == "chunk":
        number: Any = draft.pick((2, 3))
    elif form == "split":
        first = 1 + draft.choose(size - 1)
        number = (first, size - first)
    elif form in ("slice", "narrow"):
        start = draft.choose(size)
        number = (start, start + 1 + draft.choose(size - start))
    elif form == "stride":
        number = (draft.choose(2), draft.pick((2, 3)))
    else:
        number = draft.choose(size)
    return Step("pieces", (found[0],), (axis, form, number))


@step(_plan_pieces)
def pieces(x: Tensor, axis: int, form: str, number: Any) -> Tensor | Sequence[Tensor]:
    if form == "chunk":
        return x.chunk(number, axis)
    if form == "split":
        return x.split(list(number), axis)
    if form == "narrow":
        return x.narrow(axis, number[0], number[1] - number[0])
    if form == "select":
        return x.select(axis, number)
    if form == "unbind":
        return x.unbind(axis)
    where = slice(*number) if form == "slice" else slice(number[0], None, number[1])
    return x[(*(slice(None),) * axis, where)]


def _plan_join(draft: Draft) -> Step | None:
    first = draft.value(rank(1, 4))
    if first is None:
        return None
    axis = draft.choose(first[1].ndim)
    stacked = draft.choose(3) == 2

    def beside(value: Tensor) -> bool:
        if stacked or value.ndim != first[1].ndim:
            return value.shape == first[1].shape
        return all(one == other for place, (one, other) in enumerate(zip(value.shape, first[1].shape, strict=True))
                   if place != axis)  # fmt: skip

    others = [draft.value(beside) for _ in range(draft.pick((1, 1, 2)))]
    return Step("join", (first[0], *(other[0] for other in others if other)), (axis, stacked, draft.flag()))


@step(_plan_join)
def join(*parts: Any) -> Tensor:
    *values, axis, stacked, turned = parts
    if turned:
        values[0] = -values[0]
    return torch.stack(values, axis) if stacked else torch.cat(values, axis)


def _plan_write(draft: Draft) -> Step | None:
    first = draft.value(rank(2, 4))
    if first is None or first[1].shape[-1] < 2:
        return None
    size = 1 + draft.choose(first[1].shape[-1] - 1)
    other = draft.value(
        lambda value: value.ndim == first[1].ndim and value[..., :size].shape == first[1][..., :size].shape
    )
    return None if other is None else Step("write_into", (first[0], other[0]), (size, draft.flag()))


@step(_plan_write)
def write_into(x: Tensor, other: Tensor, size: int, added: bool) -> Tensor:
    copied = x.clone()
    if added:
        copied[..., :size] += other[..., :size]
    else:
        copied[..., :size] = other[..., :size]
    return copied


# ---------------------------------------------------------------------- entry by entry


ODD = {"tanh": torch.tanh, "sin": torch.sin, "cube": lambda x: x**3, "neg": torch.neg, "sign": lambda x: x * x.abs(),
       "clamp": lambda x: x.clamp(-1, 1)}  # fmt: skip
OTHER = {"relu": torch.relu, "gelu": F.gelu, "sigmoid": torch.sigmoid, "softplus": F.softplus, "silu": F.silu,
         "leaky": F.leaky_relu, "add one": lambda x: x + 1, "one minus": lambda x: 1 - x,
         "clamp above": lambda x: x.clamp(max=1), "whole": lambda x: (3 * x).to(torch.int64).to(torch.float64),
         "step": lambda x: torch.where(x > 0, 1.0, 0.5).to(torch.float64)}  # fmt: skip
EVEN = {"abs": torch.abs, "cos": torch.cos, "square": lambda x: x**2, "product with itself": lambda x: x * x}
FUNCTIONS = {**ODD, **OTHER, **EVEN}


def _plan_bend(draft: Draft) -> Step | None:
    found = draft.value()
    return None if found is None else Step("bend", (found[0],), (draft.pick(list(FUNCTIONS)),))


@step(_plan_bend)
def bend(x: Tensor, name: str) -> Tensor:
    return FUNCTIONS[name](x)


def _plan_add(draft: Draft) -> Step | None:
    first = draft.value()
    if first is None:
        return None

    def meets(value: Tensor) -> bool:
        ends = zip(reversed(value.shape), reversed(first[1].shape), strict=False)
        return all(a == b or 1 in (a, b) for a, b in ends)

    second = draft.value(meets)
    form = draft.pick(("add", "add", "sub", "mul", "maximum", "where", "lerp", "addcmul", "divide"))
    return None if second is None else Step("two", (first[0], second[0]), (form,))


@step(_plan_add)
def two(x: Tensor, y: Tensor, form: str) -> Tensor:
    if form == "where":
        return torch.where(x > 0, x, y)
    if form == "lerp":
        return torch.lerp(*torch.broadcast_tensors(x, y), 0.3)
    if form == "addcmul":
        return torch.addcmul(x, x, y)
    if form == "divide":
        return x / (1 + y.abs())
    return {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum}[form](x, y)


def _plan_vector(draft: Draft) -> Step | None:
    """A gain or a bias over the last axis, or over some of the axes."""
    found = draft.value(rank(1, 4))
    if found is None:
        return None
    form = draft.pick(("gain", "bias", "one plus", "divide", "prelu", "lerp"))
    if draft.flag():
        shape = tuple(found[1].shape[-1:])
    else:
        start = draft.choose(found[1].ndim)
        shape = tuple(size if draft.flag() else 1 for size in found[1].shape[start:])
    return Step("vector", (found[0],), (form,), (draft.weight(shape, "vector" if form == "bias" else "gain"),))


@step(_plan_vector)
def vector(x: Tensor, weight: Tensor, form: str) -> Tensor:
    if form == "bias":
        return x + weight
    if form == "divide":
        return x / weight
    if form == "lerp":
        return torch.lerp(*torch.broadcast_tensors(x, x.cos(), weight))
    if form == "prelu":
        return torch.where(x > 0, x, x * weight)
    return x * (1 + weight if form == "one plus" else weight)


def _plan_constant(draft: Draft) -> Step | None:
    found = draft.value(rank(1, 4))
    if found is None:
        return None
    axis = axis_of(draft, found[1])
    form = draft.pick(("add", "mul", "flip", "roll", "look up", "cumsum", "triangle"))
    return None if axis is None else Step("constant", (found[0],), (axis, form))


@step(_plan_constant)
def constant(x: Tensor, axis: int, form: str) -> Tensor:
    """Something that tells the entries of an axis apart."""
    if form == "flip":
        return x.flip(axis)
    if form == "roll":
        return x.roll(1, axis)
    if form == "cumsum":
        return x.cumsum(axis)
    if form == "triangle":
        return x.tril() if x.ndim > 1 else x
    counted = torch.arange(x.shape[axis], dtype=torch.float64)
    if form == "look up":
        return x.index_select(axis, torch.arange(x.shape[axis] - 1, -1, -1))
    counted = (1 + counted).reshape(-1, *[1] * (x.ndim - 1 - axis)).cos()
    return x + counted if form == "add" else x * counted


# ---------------------------------------------------------------------- taking together


def _plan_reduce(draft: Draft) -> Step | None:
    found = draft.value(rank(2))
    if found is None:
        return None
    form = draft.pick(("mean", "sum", "amax", "var", "softmax", "squares", "squares of all", "logsumexp"))
    return Step("reduce", (found[0],), (draft.choose(found[1].ndim), form, draft.flag()))


@step(_plan_reduce)
def reduce(x: Tensor, axis: int, form: str, kept: bool) -> Tensor:
    if form == "softmax":
        return x.softmax(axis)
    if form == "squares":
        return x.pow(2).sum(axis, keepdim=kept)
    if form == "squares of all":
        return (x * x).mean(tuple(range(1, x.ndim)), keepdim=kept)
    if form == "var":
        return x.var(axis, correction=0, keepdim=kept)
    return getattr(x, form)(axis, keepdim=kept)


def _plan_norm(draft: Draft) -> Step | None:
    found = draft.value(rank(2, 4))
    if found is None:
        return None
    shape = found[1].shape
    form = draft.pick(("layer", "layer over two", "rms", "rms spelled", "length", "layer spelled", "group", "batch"))
    if form in ("group", "batch"):
        if len(shape) < 3 or shape[1] < 2:
            return None
        groups = draft.pick([1, *divisors(shape[1])])
        kinds = ("gain", "vector", "mean", "variance")[: 4 if form == "batch" else 2]
        return Step("norm", (found[0],), (form, groups), tuple(draft.weight((shape[1],), kind) for kind in kinds))
    if shape[-1] < 3:
        return None
    own = tuple(shape[-2:] if form == "layer over two" else shape[-1:])
    weights = () if draft.flag() else (draft.weight(own, "gain"), draft.weight(own, "vector"))
    return Step("norm", (found[0],), (form, 1), weights)


@step(_plan_norm)
def norm(x: Tensor, *rest: Any) -> Tensor:
    *weights, form, groups = rest
    if form == "batch":
        gain, bias, mean, variance = weights
        return F.batch_norm(x, mean, variance, gain, bias)
    gain, bias = weights or (None, None)
    if form == "group":
        return F.group_norm(x, groups, gain, bias)
    if form in ("layer", "layer over two"):
        return F.layer_norm(x, x.shape[-2:] if form == "layer over two" else x.shape[-1:], gain, bias)
    if form == "rms":
        return F.rms_norm(x, x.shape[-1:], gain, eps=1e-6)
    if form == "length":
        normed = F.normalize(x, dim=-1)
    elif form == "layer spelled":
        normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    else:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return normed if gain is None else gain * normed


# ---------------------------------------------------------------------- products of values


def _plan_product(draft: Draft) -> Step | None:
    first = draft.value(rank(2, 4))
    if first is None:
        return None
    second = draft.value(lambda value: value.ndim == first[1].ndim and value.shape[:-2] == first[1].shape[:-2]
                         and value.shape[-1] == first[1].shape[-1])  # fmt: skip
    return None if second is None else Step("scores", (first[0], second[0]))


@step(_plan_product)
def scores(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.mT


def _plan_mix(draft: Draft) -> Step | None:
    first = draft.value(rank(2, 4))
    if first is None:
        return None
    second = draft.value(lambda value: value.ndim == first[1].ndim and value.shape[:-1] == first[1].shape[:-2]
                         + first[1].shape[-1:])  # fmt: skip
    return None if second is None else Step("mix", (first[0], second[0]))


@step(_plan_mix)
def mix(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def _plan_glu(draft: Draft) -> Step | None:
    found = draft.value(lambda value: value.ndim > 0 and value.shape[-1] % 2 == 0)
    return None if found is None else Step("glu", (found[0],), (draft.flag(),))


@step(_plan_glu)
def glu(x: Tensor, spelled: bool) -> Tensor:
    if not spelled:
        return F.glu(x, -1)
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


def _plan_rotary(draft: Draft) -> Step | None:
    found = draft.value(lambda value: value.ndim > 1 and value.shape[-1] in (2, 4, 6, 8))
    return None if found is None else Step("rotary", (found[0],), (draft.pick(("halves", "pairs", "part")),))


@step(_plan_rotary)
def rotary(x: Tensor, layout: str) -> Tensor:
    if layout == "part":
        if x.shape[-1] < 4 or x.shape[-1] % 4:
            return x
        turned, rest = x.split(x.shape[-1] // 2, -1)
        return torch.cat([rotary(turned, "halves"), rest], -1)
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] / 3 ** torch.arange(half, dtype=torch.float64)
    if layout == "halves":
        first, second = x.chunk(2, -1)
        both = torch.cat([angles, angles], -1)
        return x * both.cos() + torch.cat([-second, first], -1) * both.sin()
    both = angles.repeat_interleave(2, -1)
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * both.cos() + turned * both.sin()


def _plan_attention(draft: Draft) -> Step | None:
    found = draft.value(lambda value: value.ndim == 3 and value.shape[1] <= 8 and value.shape[2] <= 24)
    if found is None:
        return None
    width = found[1].shape[2]
    heads, size = draft.pick((2, 4)), draft.pick((2, 4))
    shared = draft.pick([1, 1, 2, heads])
    layout = draft.pick(("split", "thirds", "(3 h d)", "(h 3 d)", "chunks"))
    if layout == "split":
        weights = [draft.weight((heads * size, width))]
        weights += [draft.weight((heads // shared * size, width)) for _ in range(2)]
    else:
        shared = 1
        weights = [draft.weight((3 * heads * size, width))]
        if draft.flag():
            weights.append(draft.weight((3 * heads * size,), "vector"))
    weights.append(draft.weight((width, heads * size)))
    turn = draft.pick(("none", "none", "halves", "pairs", "norm", "gain"))
    how = (heads, shared, layout, turn, draft.pick(("sdpa", "spelled", "gqa", "causal")), draft.flag())
    return Step("attention", (found[0],), how, tuple(weights))


@step(_plan_attention)
def attention(x: Tensor, *rest: Any) -> Tensor:
    *weights, heads, shared, layout, turn, form, residual = rest
    batch, length, _ = x.shape
    out = weights.pop()
    if layout == "split":
        q, k, v = ((x @ weight.t()).view(batch, length, own, -1).transpose(1, 2)
                   for weight, own in zip(weights, (heads, heads // shared, heads // shared), strict=True))  # fmt: skip
    else:
        fused = F.linear(x, weights[0], weights[1] if len(weights) > 1 else None)
        if layout == "(3 h d)":
            q, k, v = fused.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        elif layout == "(h 3 d)":
            q, k, v = fused.view(batch, length, heads, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)
        elif layout == "thirds":
            third = fused.shape[-1] // 3
            cuts = (fused[..., :third], fused[..., third : 2 * third], fused[..., 2 * third :])
            q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in cuts)
        else:
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in fused.chunk(3, -1))
    if turn in ("halves", "pairs"):
        q, k = rotary(q, turn), rotary(k, turn)
    elif turn in ("norm", "gain"):
        q, k = F.rms_norm(q, q.shape[-1:], eps=1e-6), F.rms_norm(k, k.shape[-1:], eps=1e-6)
    if form == "gqa":
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    else:
        if shared > 1 and form == "spelled":
            k, v = (one[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2) for one in (k, v))
        elif shared > 1:
            k, v = (one.repeat_interleave(shared, 1) for one in (k, v))
        if form == "spelled":
            mixed = ((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=form == "causal")
    mixed = F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), out)
    return x + mixed if residual else mixed


# ---------------------------------------------------------------------- the end


def _plan_read_out(draft: Draft) -> Step | None:
    """Layers that read the values nothing else has read, the latest first."""
    read = {one for planned in draft.steps for one in planned.of}
    left = [(one, value) for one, value in draft.made() if one not in read][:4] or [next(draft.made())]
    forms, weights = [], []
    for _, value in left:
        form = draft.pick(("flat", "last", "mean", "flat")) if value.ndim > 1 else "flat"
        inside = value.shape[-1] if form != "flat" else value[:1].numel() if value.ndim > 1 else value.numel()
        forms.append(form)
        weights.append(draft.weight((2, inside)))
    return Step("read_out", tuple(one for one, _ in left), (tuple(forms),), tuple(weights))


@step(_plan_read_out)
def read_out(*parts: Any) -> Tensor:
    *both, forms = parts
    values, weights = both[: len(forms)], both[len(forms) :]
    return torch.cat([_read(*one).flatten() for one in zip(values, weights, forms, strict=True)])


def _read(x: Tensor, weight: Tensor, form: str) -> Tensor:
    if form == "flat":
        return F.linear(x.flatten(1) if x.ndim > 1 else x.flatten(), weight)
    return F.linear(x.mean(tuple(range(1, x.ndim - 1))) if form == "mean" and x.ndim > 2 else x, weight)
