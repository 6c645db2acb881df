"""Places: what goes into a module or comes out of it, by name.

``"blocks.0.mlp.fc1"`` is what the module gives back, ``"blocks.0.mlp.fc1:input"`` what it is given. Inside attention
(`torch.nn.MultiheadAttention`) there are also ``"attn:q"``, ``"attn:k"`` and ``"attn:v"``. A third part counts
the calls of a module that is used more than once in a forward pass (``"act:output:1"`` is the second), and ``[1]`` at
the end says which axis is the width where the module's class does not tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from interbasin.errors import UnknownNameError, WiringError

__all__ = ["QKV", "Place", "is_place", "module_at", "tells_width", "width_axis"]

Side = Literal["input", "output", "q", "k", "v"]
QKV: tuple[Side, ...] = ("q", "k", "v")
_PATTERN = re.compile(r"(?P<module>[^:\[\]]*)(:(?P<side>input|output|q|k|v))?(:(?P<call>\d+))?(\[(?P<axis>-?\d+)\])?")

# Classes whose channels stand on axis 1, whatever follows.
_CHANNELS_FIRST = (
    _ConvNd,
    _NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
# Classes whose width stands on the last axis.
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention)


@dataclass(frozen=True)
class Place:
    """One side of one call of one module; ``axis`` is the width, where it was said."""

    module: str
    side: Side
    call: int = 0
    axis: int | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """The place that ``text`` names.

        Example:
            >>> Place.of("encoder.act:output:1")
            Place(module='encoder.act', side='output', call=1, axis=None)
        """
        found = _PATTERN.fullmatch(text)
        if found is None or (found["call"] and not found["side"]) or (found["axis"] and found["side"] in QKV):
            raise WiringError(
                f"Asked to record at {text!r}, which names no place; write a module's path, then ':input' or "
                "':output' (of attention also ':q', ':k' or ':v'), then ':1' for its second call, then '[1]' for the "
                "axis of the width."
            )
        axis = None if found["axis"] is None else int(found["axis"])
        return cls(found["module"], cast(Side, found["side"] or "output"), int(found["call"] or 0), axis)

    def __str__(self) -> str:
        return f"{self.module}:{self.side}:{self.call}"


def is_place(text: str) -> bool:
    """Whether a name says by itself that it is a place, and not a space or a module."""
    return ":" in text or "[" in text


def module_at(model: nn.Module, place: Place) -> nn.Module:
    """The module of a place.

    Raises:
        UnknownNameError: if the network has no such module.
    """
    try:
        return model.get_submodule(place.module)
    except AttributeError as error:
        known = (name for name, _ in model.named_modules() if name)
        raise UnknownNameError.of(f"module of {type(model).__name__}", place.module, known) from error


def width_axis(module: nn.Module, ndim: int) -> int:
    """The axis of the width: the channels of convolutions and of what goes with them, else the last."""
    return 1 if isinstance(module, _CHANNELS_FIRST) and ndim > 2 else ndim - 1


def tells_width(module: nn.Module) -> bool:
    """Whether a module's class says which axis is the width."""
    return isinstance(module, (*_CHANNELS_FIRST, *_CHANNELS_LAST))
