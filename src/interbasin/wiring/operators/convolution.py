"""Convolutions, pooling and resampling: channels move, positions and kernels do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, Reason, Same, Still, Term
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.contraction import contract
from interbasin.wiring.operators.elementwise import add_like

KERNEL = Reason("kernel", "a kernel lies along it")
POSITION = Reason("position", "positions lie along it")


def positions(run: Run, shape: Sequence[int]) -> list[Term]:
    """Fresh axes of positions."""
    return [Still(size, POSITION) if size > 1 else Same(size) for size in shape]


def fix_positions(run: Run, terms: Sequence[Term]) -> None:
    for term in terms:
        run.axes.restrict(term, Group.FIXED, POSITION)


@rule("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
def convolution(
    run: Run,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    groups: int = 1,
    transposed: bool = False,
    **_: Any,
) -> Value:
    if transposed:
        return _convolved(run, input, weight, bias, groups, inward=0)
    return _convolved(run, input, weight, bias, groups, inward=1)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(run: Run, input: Value, weight: Value, bias: Value | None = None, groups: int = 1, **_: Any) -> Value:
    return _convolved(run, input, weight, bias, groups, inward=0)


def _convolved(run: Run, input: Value, weight: Value, bias: Value | None, groups: int, inward: int) -> Value:
    """The result of a convolution whose weight reads along axis ``inward`` and writes along the other of the first two.

    With groups, one of the two axes of the weight holds the groups as its outer factor: for an upright convolution the
    one that writes, for a transposed one the one that reads.
    """
    kernel = len(weight.dims) - 2
    lead = len(input.dims) - 1 - kernel
    channels, own = input.dims[lead], list(weight.dims[:2])
    for term in weight.dims[2:]:
        run.axes.restrict(term, Group.FIXED, KERNEL)
    fix_positions(run, input.dims[lead + 1 :])
    result = run.shape
    if groups == 1:
        taken = Value([*input.dims[:lead], channels], input.learned)
        batch = "ab"[:lead]
        moved = contract(run, taken, batch + "y", Value(own, weight.learned), "zy" if inward else "yz", batch + "z")
    else:
        followed = _grouped(run, input, lead, weight, groups, inward)
        if followed is None:
            return Value(run.given_up(Value([*input.dims, *weight.dims]), result))
        moved = followed
    found = Value([*moved.dims, *positions(run, result[lead + 1 :])], moved.learned)
    if bias is None:
        return found
    spread = Value([bias.dims[0], *(Same(1) for _ in range(kernel))], bias.learned)
    return add_like(run, found, spread)


def _grouped(run: Run, input: Value, lead: int, weight: Value, groups: int, inward: int) -> Value | None:
    axes = run.axes
    channels = axes.split(input.dims[lead], [groups, input.shape[lead] // groups])
    holder = weight.dims[0]
    blocks = axes.split(holder, [groups, holder.size // groups])
    if channels is None or blocks is None:
        return None
    other = weight.dims[1]
    own = [*blocks, other]  # groups, then what the first axis is inside a group, then the second axis
    batch = "ab"[:lead]
    letters = "gzy" if inward else "gyz"
    taken = Value([*input.dims[:lead], *channels], input.learned)
    moved = contract(run, taken, batch + "gy", Value(own, weight.learned), letters, batch + "gz")
    dims = [*moved.dims[:lead], axes.resolve(Grid(tuple(moved.dims[lead:])))]
    return Value(dims, moved.learned)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "_adaptive_avg_pool2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d",
      "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
      "_upsample_bicubic2d_aa", "_upsample_nearest_exact2d", "_upsample_nearest_exact1d", "reflection_pad1d",
      "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
      "reflection_pad3d")  # fmt: skip
def resampled(run: Run, self: Value | None = None, input: Value | None = None, **_: Any) -> Value:
    """Averages and interpolations over positions are linear: whatever acts on the channels passes through."""
    value = self if self is not None else input
    assert value is not None
    return _along_positions(run, value)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
      "max_pool2d_with_indices", "lp_pool2d")  # fmt: skip
def max_pool(run: Run, self: Value, **_: Any) -> Any:
    for term in self.dims:
        run.axes.restrict(term, Group.PERMUTATION, run.why("a maximum over positions bends it"))
    pooled = _along_positions(run, self)
    return pooled if len(run.shapes) == 1 else [pooled, Value(list(pooled.dims))]


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(run: Run, input: Value, grid: Value, **_: Any) -> Value:
    run.fix(grid, run.why("it says where to look"))
    # Each of the batch is looked at in places of its own.
    fix_positions(run, [input.dims[0], *input.dims[2:]])
    return run.made([*positions(run, run.shape[:1]), input.dims[1], *positions(run, run.shape[2:])])


@rule("im2col")
def im2col(run: Run, self: Value, kernel_size: Sequence[int], **_: Any) -> Value:
    """Patches as columns: channels by kernel positions, then places."""
    fix_positions(run, self.dims[-2:])
    *lead, channels = self.dims[:-2]
    inside = self.shape[-3]
    column = Grid((channels, *positions(run, [run.shape[-2] // inside])))
    return run.made([*lead, column, *positions(run, run.shape[-1:])], self)


@rule("col2im")
def col2im(run: Run, self: Value, **_: Any) -> Value:
    channels = run.shape[-3]
    factors = run.axes.split(self.dims[-2], [channels, self.shape[-2] // channels])
    if factors is None:
        return Value(run.given_up(self, run.shape))
    fix_positions(run, [factors[1], self.dims[-1]])
    return run.made([*self.dims[:-2], factors[0], *positions(run, run.shape[-2:])])


def _along_positions(run: Run, value: Value) -> Value:
    """Axes whose size changed, and those behind the first such one, are positions."""
    rank = len(run.shape)
    # The operator says by its name how many of the last axes it works on.
    count = next((int(digit) for digit in run.operator if digit in "123"), rank - 2)
    fix_positions(run, value.dims[rank - count :])
    return run.made([*value.dims[: rank - count], *positions(run, run.shape[rank - count :])])
