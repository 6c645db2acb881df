"""What a network shows at some places, batch by batch, and inside `torch.nn.MultiheadAttention` too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, unfold

from interbasin.activations import Tokens
from interbasin.activations.forward import Call, listen
from interbasin.activations.places import QKV, ModuleReading, Place, Reading
from interbasin.activations.tokens import match_tokens
from interbasin.batches import call_arguments, device_of
from interbasin.errors import ShapeError
from interbasin.wiring.trace.calls import observe_calls
from interbasin.wiring.trace.copying import copied

OUT = ".out_proj"  # of attention, which takes its weight and does not call it


class _Enough(BaseException):
    """Ends a forward pass that has shown all that was asked for."""


@dataclass(frozen=True)
class Projected(ModuleReading):
    """q, k or v inside attention, and not the argument that they are made from."""

    def rows(self, activation: Tensor, module: nn.Module) -> Tensor:
        """``(batch, positions..., width)``."""
        assert isinstance(module, nn.MultiheadAttention)
        return linear(super().rows(activation, module), *projection(module, self.place.side))


def reading_at(place: str) -> ModuleReading:
    """How what stands at a place is read; of attention ``"attn:q"`` means the queries."""
    named = Place.of(place)
    return Projected(named) if named.side in QKV else ModuleReading(named)


def argument_at(place: str) -> ModuleReading:
    """How what a layer reads is taken; of attention ``"attn:q"`` means the argument that queries are made from."""
    return ModuleReading(Place.of(place))


def projection(module: nn.MultiheadAttention, side: str) -> tuple[Tensor, Tensor | None]:
    """The weight and bias that make queries, keys or values."""
    third = [*QKV].index(side)  # type: ignore[arg-type]
    fused = module._qkv_same_embed_dim
    weight = module.in_proj_weight.chunk(3)[third] if fused else getattr(module, f"{side}_proj_weight")
    return weight.detach(), None if module.in_proj_bias is None else module.in_proj_bias.detach().chunk(3)[third]


def attention_around(model: nn.Module, module: str) -> nn.MultiheadAttention | None:
    """The attention that a module is the output projection of, if it is one."""
    around = model.get_submodule(module.removesuffix(OUT)) if module.endswith(OUT) else None
    return around if isinstance(around, nn.MultiheadAttention) else None


@dataclass
class Watcher:
    """Runs a network as far as some places, and hands over the rows that pass there."""

    model: nn.Module
    readings: Sequence[Reading]

    def run(self, inputs: Any) -> dict[Reading, Tensor]:
        """``(batch, positions..., width)`` at each place, for one batch."""
        rows_by_reading: dict[Reading, Tensor] = {}
        waiting = set(self.readings)

        def take(reading: Reading, rows: Tensor) -> None:
            if reading in rows_by_reading:
                return
            rows_by_reading[reading] = rows.clone()
            waiting.discard(reading)
            if not waiting:
                raise _Enough

        args, kwargs = call_arguments(self.model, inputs, device_of(self.model))
        contexts = {
            reading: attention
            for reading in self.readings
            if reading.place.side == "input"
            and (attention := attention_around(self.model, reading.place.module)) is not None
        }
        heard = [reading for reading in self.readings if reading not in contexts]
        with contextlib.ExitStack() as stack:
            for reading, attention in contexts.items():
                stack.enter_context(_context(attention, lambda rows, reading=reading: take(reading, rows)))
            listener = stack.enter_context(listen(self.model, heard, take, type(self.model).__name__))
            try:
                listener.forward(Call(inputs, args, kwargs))
            except _Enough:
                listener.thread = None
        return rows_by_reading


@contextlib.contextmanager
def _context(attention: nn.MultiheadAttention, take: Any) -> Iterator[None]:
    """A block in which ``take`` gets what the output projection reads: what attention gives where that is the identity.

    Attention reads the weight of its output projection without calling it, so that no hook sees what goes in.
    """
    twin = copied(attention, sharing=True)
    weight = attention.out_proj.weight
    identity = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    twin.out_proj.weight = nn.Parameter(identity, requires_grad=False)
    twin.out_proj.bias = None  # type: ignore[assignment]

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        take(twin(*args, **kwargs)[0])

    stop = observe_calls(attention, enter=enter)
    try:
        yield
    finally:
        stop()


# ---------------------------------------------------------------------- rows that belong together


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies rows, or the patches of an image, with a weight."""
    plain = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return plain or (isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros")


def input_rows(module: nn.Module, rows: Tensor) -> Tensor:
    """What a layer multiplies its weight with: ``(batch, positions..., in)``; patches for a convolution."""
    if not isinstance(module, nn.Conv2d):
        return rows
    assert not isinstance(module.padding, str)
    patches = unfold(
        rows.movedim(-1, 1), module.kernel_size, dilation=module.dilation, padding=module.padding, stride=module.stride
    )
    return patches.mT


def pair_rows(rows: Sequence[Tensor], sides: Sequence[int], tokens: Tokens | None) -> list[Tensor]:
    """Rows of both networks, ``(inputs, positions..., width)``, in equal numbers; side 0 is the source, 1 the target.

    Raises:
        ShapeError: if they do not pair, and nothing says how tokens are to be matched.
    """
    shapes = {tuple(each.shape[:-1]) for each in rows}
    if len(shapes) == 1:
        return list(rows)
    if tokens is None or any(each.ndim != 3 for each in rows):
        raise ShapeError(
            f"What the two networks show does not pair: rows of shapes {' and '.join(map(str, shapes))}; if they cut "
            "inputs into different numbers of tokens, pass tokens='interpolate2d', 'interpolate' or 'mean'."
        )
    if tokens.mode == "mean":
        return [each.mean(1, keepdim=True) for each in rows]
    return match_tokens(rows, sides, tokens)
