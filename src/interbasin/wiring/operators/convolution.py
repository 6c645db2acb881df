"""Operators along positions: convolutions, pooling, resampling, Fourier transforms. Channels move, positions do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, Reason, Same, Term
from interbasin.wiring.interpret import Interpreter, Value, rule, still
from interbasin.wiring.operators.contraction import contract
from interbasin.wiring.operators.elementwise import add_like, pointwise

KERNEL = Reason("kernel", "a kernel lies along it")
POSITION = Reason("position", "positions lie along it")


def position(size: int) -> Term:
    """A fresh axis of positions."""
    return still(size, POSITION)


def positions(shape: Sequence[int]) -> list[Term]:
    return [position(size) for size in shape]


def fix_positions(run: Interpreter, terms: Sequence[Term]) -> None:
    for term in terms:
        run.axes.restrict(term, Group.FIXED, POSITION)


@rule("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d", "conv_transpose2d",
      "conv_transpose3d")  # fmt: skip
def convolution(
    run: Interpreter, input: Value, weight: Value, bias: Value | None = None, groups: int = 1, transposed: bool = False,
    **_: Any,
) -> Value:  # fmt: skip
    """The weight reads along one of its first two axes and writes along the other.

    With groups, its first axis holds them as the outer factor: upright the one that writes, transposed the one that
    reads.
    """
    upright = not (transposed or "transpose" in run.operator)
    kernel = len(weight.dims) - 2
    lead = len(input.dims) - 1 - kernel
    for term in weight.dims[2:]:
        run.axes.restrict(term, Group.FIXED, KERNEL)
    fix_positions(run, input.dims[lead + 1 :])
    channels, own, letters = input.dims[lead : lead + 1], weight.dims[:2], ""
    if groups > 1:
        inner = run.axes.split(channels[0], [groups, input.shape[lead] // groups])
        blocks = run.axes.split(own[0], [groups, weight.shape[0] // groups])
        if inner is None or blocks is None:
            return Value(run.give_up(Value([*input.dims, *weight.dims]), run.shape))
        channels, own, letters = inner, [*blocks, own[1]], "g"
    batch = "ab"[:lead] + letters
    taken = Value([*input.dims[:lead], *channels], input.learned)
    order = "zy" if upright else "yz"
    moved = contract(run, taken, batch + "y", Value(own, weight.learned), letters + order, batch + "z")
    written = run.axes.resolve(Grid(tuple(moved.dims[lead:]))) if letters else moved.dims[lead]
    convolved = Value([*moved.dims[:lead], written, *positions(run.shape[lead + 1 :])], moved.learned)
    if bias is None:
        return convolved
    return add_like(run, convolved, Value([bias.dims[0], *(Same(1) for _ in range(kernel))], bias.learned))


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "_adaptive_avg_pool2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d",
      "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
      "_upsample_bicubic2d_aa", "_upsample_nearest_exact2d", "_upsample_nearest_exact1d", "reflection_pad1d",
      "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
      "reflection_pad3d")  # fmt: skip
def resampled(run: Interpreter, self: Value | None = None, input: Value | None = None, **_: Any) -> Value:
    """Averages and interpolations over positions are linear: whatever acts on the channels passes through."""
    value = self if self is not None else input
    assert value is not None
    return _along_positions(run, value)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
      "max_pool2d_with_indices", "lp_pool2d")  # fmt: skip
def max_pool(run: Interpreter, self: Value, **_: Any) -> Any:
    run.restrict(self.dims, Group.PERMUTATION, "a maximum over positions bends it")
    pooled = _along_positions(run, self)
    return pooled if len(run.shapes) == 1 else [pooled, Value(list(pooled.dims))]


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(run: Interpreter, input: Value, grid: Value, **_: Any) -> Value:
    run.fix(grid, run.why("it says where to look"))
    # Each of the batch is looked at in places of its own.
    fix_positions(run, [input.dims[0], *input.dims[2:]])
    return run.result([*positions(run.shape[:1]), input.dims[1], *positions(run.shape[2:])])


@rule("im2col")
def im2col(run: Interpreter, self: Value, kernel_size: Sequence[int], **_: Any) -> Value:
    """Patches as columns: channels by kernel positions, then places."""
    fix_positions(run, self.dims[-2:])
    *lead, channels = self.dims[:-2]
    inside = self.shape[-3]
    column = Grid((channels, *positions([run.shape[-2] // inside])))
    return run.result([*lead, column, *positions(run.shape[-1:])], self)


@rule("col2im")
def col2im(run: Interpreter, self: Value, **_: Any) -> Value:
    channels = run.shape[-3]
    factors = run.axes.split(self.dims[-2], [channels, self.shape[-2] // channels])
    if factors is None:
        return Value(run.give_up(self, run.shape))
    fix_positions(run, [factors[1], self.dims[-1]])
    return run.result([*self.dims[:-2], factors[0], *positions(run.shape[-2:])])


def _along_positions(run: Interpreter, value: Value) -> Value:
    """Axes whose size changed, and those behind the first such one, are positions."""
    rank = len(run.shape)
    # The operator says by its name how many of the last axes it works on.
    count = next((int(digit) for digit in run.operator if digit in "123"), rank - 2)
    fix_positions(run, value.dims[rank - count :])
    return run.result([*value.dims[: rank - count], *positions(run.shape[rank - count :])])


# ---------------------------------------------------------------------- Fourier transforms and complex numbers


@rule("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft", "_fft_r2c", "_fft_c2r", "_fft_c2c",
      "fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2", "fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn",
      "fft_fftshift", "fft_ifftshift")  # fmt: skip
def transformed(run: Interpreter, self: Value, s: Sequence[int] | None = None, dim: Any = None, **_: Any) -> Value:
    """Linear over the reals, so real maps beside the transformed axes pass."""
    if dim is None and re.search(r"fftn|shift", run.operator):
        # Along all axes; sizes without axes are those of the last ones.
        dim = range(len(self.dims)) if s is None else range(-len(s), 0)
    elif dim is None:
        dim = (-2, -1) if "fft2" in run.operator else (-1,)
    dims = list(self.dims)
    for axis in [dim] if isinstance(dim, int) else dim:
        run.axes.restrict(dims[axis], Group.FIXED, run.why("a Fourier transform runs along it"))
        dims[axis] = position(run.shape[axis])
    return run.result(dims, self)


@rule("view_as_complex", "view_as_complex_copy")
def view_as_complex(run: Interpreter, self: Value) -> Value:
    """The last axis holds real and imaginary parts, which a real map cannot mix."""
    run.axes.restrict(self.dims[-1], Group.FIXED, run.why("it holds real and imaginary parts"))
    return run.result(self.dims[:-1], self)


@rule("view_as_real", "view_as_real_copy")
def view_as_real(run: Interpreter, self: Value) -> Value:
    return run.result([*self.dims, *positions([2])], self)


@rule("real", "imag", "conj", "_conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg")
def part(run: Interpreter, self: Value) -> Value:
    return run.result(self.dims, self)


@rule("complex")
def made_complex(run: Interpreter, real: Value, imag: Value) -> Value:
    return add_like(run, real, imag)


@rule("polar")
def polar(run: Interpreter, abs: Value, angle: Value) -> Value:
    return pointwise(run, abs, angle)
