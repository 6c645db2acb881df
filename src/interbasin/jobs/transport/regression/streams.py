"""Whether what a layer puts out is added to a stream as it is, and at which positions.

The wiring says which tensors write a stream, and not whether something happens on the way. So outputs are shifted in a
copy of the network: where the stream moves by the same shift, they are added as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations.places import Place, width_axis
from interbasin.batches import cut_inputs, inputs_in
from interbasin.jobs.transport.rows import Watcher, reading_at

CLOSE = 0.05  # of a shift: what networks that calculate in half precision keep of it


def find_added_positions(network: nn.Module, output: str, at: str, inputs: Any) -> tuple[int, ...] | None:
    """The positions of the stream at a place to which an output is added as it is: None for all, () where it is not."""
    stream_reading, output_reading = reading_at(at), reading_at(output)
    before = Watcher(network, [output_reading, stream_reading]).run(inputs)
    stream, rows = before[stream_reading], before[output_reading]
    shift = make_shift(stream)
    module = network.get_submodule(Place.of(output).module)

    def add_shift(_: nn.Module, __: Any, outputs: Any) -> Any:
        first = outputs[0] if isinstance(outputs, tuple) else outputs  # attention gives its weights as well
        shape = [1] * first.ndim
        shape[width_axis(module, first.ndim)] = -1
        first = first + shift.reshape(shape)
        return (first, *outputs[1:]) if isinstance(outputs, tuple) else first

    hook = module.register_forward_hook(add_shift)
    try:
        after = Watcher(network, [stream_reading]).run(inputs)[stream_reading]
    finally:
        hook.remove()
    change = (after.double() - stream.double()).flatten(1, -2) if stream.ndim > 2 else after.double() - stream.double()
    if rows.shape[:-1] == stream.shape[:-1]:
        return None if is_shift(change, shift) else ()
    is_changed = change.abs().amax((0, -1)) > 0.1 * float(shift.max())
    positions = tuple(is_changed.nonzero().flatten().tolist())
    return positions if is_shift(change[:, is_changed], shift) and len(positions) == rows[0, ..., 0].numel() else ()


def first_inputs(inputs: Any, most: int) -> Any:
    """The first inputs of a batch."""
    return cut_inputs(inputs, slice(0, most), inputs_in(inputs))


def make_shift(stream: Tensor) -> Tensor:
    """A vector to shift a stream by: large enough to be seen beside it, with another value for every unit."""
    size = max(float(stream.double().square().mean().sqrt()), 1.0)
    return size * torch.linspace(0.5, 1.5, stream.shape[-1], dtype=stream.dtype, device=stream.device)


def is_shift(change: Tensor, shift: Tensor) -> bool:
    """Whether all rows of a change are the shift."""
    expected = shift.double().expand_as(change)
    return bool(torch.allclose(change, expected, rtol=CLOSE, atol=CLOSE * float(shift.max())))
