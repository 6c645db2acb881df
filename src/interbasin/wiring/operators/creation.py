"""Tensors made from nothing: the same all along, or plain positions."""

from __future__ import annotations

from typing import Any

from interbasin.wiring.axes.spaces import Same
from interbasin.wiring.interpret import Run, Value, constant, rule
from interbasin.wiring.operators.convolution import POSITION


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like",
      "full_like", "empty_like", "scalar_tensor", "fill", "zero")  # fmt: skip
def filled(run: Run, self: Value | None = None, value: Any = None, fill_value: Any = None, **_: Any) -> Value:
    """Of ``self`` only the shape counts; a number to fill it with may come as a tensor without axes."""
    return Value([Same(size) for size in run.shape])


@rule("arange", "linspace", "eye", "tril_indices", "triu_indices", "logspace")
def counted(run: Run, **_: Any) -> Value:
    return constant(run.shape, POSITION)
