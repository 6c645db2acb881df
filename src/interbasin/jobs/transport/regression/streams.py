"""Whether what a layer puts out is added to a stream as it is, and at which positions.

The wiring says which tensors write a stream, and not whether something happens on the way. So they are shifted, in a
copy of the network, and what the stream shows is looked at.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations.places import Place, width_axis
from interbasin.batches import cut_inputs, inputs_in
from interbasin.jobs.transport.rows import Watcher, reading_at

CLOSE = 0.05  # of a shift: what networks that calculate in half precision keep of it


def added_positions(network: nn.Module, output: str, at: str, inputs: Any) -> tuple[int, ...] | None:
    """The positions of the stream at a place to which an output is added as it is: None for all, () where it is not."""
    stream_at, own = reading_at(at), reading_at(output)
    before = Watcher(network, [own, stream_at]).run(inputs)
    stream, rows = before[stream_at], before[own]
    shift = shift_of(stream)
    module = network.get_submodule(Place.of(output).module)

    def add(_: nn.Module, __: Any, given: Any) -> Any:
        first = given[0] if isinstance(given, tuple) else given  # attention gives its weights as well
        axes = [1] * first.ndim
        axes[width_axis(module, first.ndim)] = -1
        moved = first + shift.reshape(axes)
        return (moved, *given[1:]) if isinstance(given, tuple) else moved

    hook = module.register_forward_hook(add)
    try:
        after = Watcher(network, [stream_at]).run(inputs)[stream_at]
    finally:
        hook.remove()
    change = (after.double() - stream.double()).flatten(1, -2) if stream.ndim > 2 else after.double() - stream.double()
    if rows.shape[:-1] == stream.shape[:-1]:
        return None if is_close(change, shift) else ()
    moved = change.abs().amax((0, -1)) > 0.1 * float(shift.max())
    positions = tuple(moved.nonzero().flatten().tolist())
    return positions if is_close(change[:, moved], shift) and len(positions) == rows[0, ..., 0].numel() else ()


def few(inputs: Any, most: int) -> Any:
    """The first inputs of a batch."""
    return cut_inputs(inputs, slice(0, most), inputs_in(inputs))


def shift_of(stream: Tensor) -> Tensor:
    """A vector to shift a stream by that shows beside it."""
    size = max(float(stream.double().square().mean().sqrt()), 1.0)
    return size * torch.linspace(0.5, 1.5, stream.shape[-1], dtype=stream.dtype, device=stream.device)


def is_close(change: Tensor, shift: Tensor) -> bool:
    """Whether all rows of a change are the shift."""
    expected = shift.double().expand_as(change)
    return bool(torch.allclose(change, expected, rtol=CLOSE, atol=CLOSE * float(shift.max())))
