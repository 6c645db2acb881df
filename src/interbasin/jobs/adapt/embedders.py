"""What takes a new modality in: inputs of any shape -> what the body of a source takes.

The rule, by what one input is and what the body takes:

- a signal ``(channels, length)`` for tokens: a convolution whose kernel and stride are the smallest divisor of the
  length that leaves at most as many tokens as the source has;
- a field ``(channels, height, width)`` for tokens: a patch convolution, likewise for each axis; the source's own patch
  kernel is repeated over the channels, resampled and rescaled where it has one;
- a signal for maps or grids: its tokens are laid out row by row in the smallest square that holds them, the rest zero;
- a field for maps: a convolution of three by three, so that every point has a place;
- a field for signals: its points are read row by row;
- a vector (a table's row) for tokens: one linear layer for each of a few tokens; for vectors: one linear layer. Columns
  of a table have units of their own, so each is standardised first, by the training inputs.

Positions, class tokens and the norm behind them are copied from the source; positions are resampled to the new number.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from interbasin.errors import DataError, ShapeError
from interbasin.jobs.adapt.source import Fittings, Source

TABLE_TOKENS = 8  # of a row of a table
LEAST_SPREAD = 1e-6  # of a column, relative to its largest number


def make_embedder(
    source: Source, body_inputs: Tensor, shape: tuple[int, ...], seed: int = 0, *, table: Tensor | None = None
) -> nn.Module:
    """A new embedder for inputs of a shape.

    Args:
        source: With its layout.
        body_inputs: What the source's body takes, for a batch of the source's own inputs.
        shape: Of one input of the target: ``(features,)``, ``(channels, length)`` or ``(channels, height, width)``.
        seed: Of weights that are drawn.
        table: Rows of a table, by whose columns inputs of shape ``(features,)`` are standardised. Without, they pass as
            they are, until weights are loaded.

    Raises:
        ShapeError: if inputs have another number of axes.
    """
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise ShapeError(
            f"Inputs of the target have shape {shape}; an embedder can be made for (features,), (channels, length) and "
            "(channels, height, width): reshape them, or give an embedder of your own."
        )
    if len(shape) == 1:
        columns = torch.zeros(2, *shape) if table is None else table
        return nn.Sequential(Standardise(columns), _make_embedder(source, body_inputs, shape, seed))
    return _make_embedder(source, body_inputs, shape, seed)


def _make_embedder(source: Source, body_inputs: Tensor, shape: tuple[int, ...], seed: int) -> nn.Module:
    layout, size = source.layout, tuple(body_inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if layout == "tokens":
            return TokenEmbedder(shape, size[0], size[1], source.fittings)
        if layout == "vectors":
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), size[0]))
        if layout == "signals":
            return SignalEmbedder(shape, size[0], size[1])
        if layout in ("maps", "grid"):
            channels, area = (size[0], size[1:]) if layout == "maps" else (size[-1], size[:-1])
            return MapEmbedder(shape, channels, (int(area[0]), int(area[1])), layout == "grid", source.fittings)
    raise DataError(f"What a body with layout {layout!r} takes is not known; give layout=, or an embedder of your own.")


def smallest_divisor(length: int, most: int) -> int:
    """The smallest number that divides ``length`` into at most ``most`` parts."""
    return next(step for step in range(1, length + 1) if length % step == 0 and length // step <= most)


def column_spreads(rows: Tensor) -> Tensor:
    """The standard deviation of each column; 1 for one whose values differ by no more than rounding."""
    spreads = rows.std(0, correction=0)
    return torch.where(spreads > LEAST_SPREAD * rows.abs().amax(0), spreads, torch.ones_like(spreads))


class Standardise(nn.Module):
    """Columns of a table less their means, in units of their standard deviations.

    Args:
        rows: Of the table, to take both from.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.mean: Tensor
        self.spread: Tensor
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("spread", column_spreads(rows))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.spread


class TokenEmbedder(nn.Module):
    """Inputs as tokens, with the source's positions."""

    def __init__(self, shape: tuple[int, ...], most: int, width: int, fittings: Fittings) -> None:
        super().__init__()
        prefix, positions = fittings.prefix, fittings.positions
        extra = 0 if prefix is None else len(prefix)
        room = max(1, (most if positions is None else max(most, len(positions))) - extra)
        self.grid, self.cut = _cut_into_tokens(shape, room, width, fittings.patch)
        count = math.prod(self.grid)
        self.prefix = None if prefix is None else nn.Parameter(prefix.clone())
        self.positions = None
        if positions is not None:
            rest = _resample(positions[extra:], self.grid)
            self.positions = nn.Parameter(torch.cat([positions[:extra], rest]).clone())
        elif prefix is not None:
            self.positions = nn.Parameter(torch.zeros(extra + count, width))
        self.norm = None if fittings.norm is None else copy.deepcopy(fittings.norm)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.cut(inputs)
        if not isinstance(self.cut, _TableTokens):  # which are tokens already
            tokens = tokens.flatten(2).mT
        if self.prefix is not None:
            tokens = torch.cat([self.prefix.expand(len(tokens), -1, -1), tokens], 1)
        if self.positions is not None:
            tokens = tokens + self.positions
        return tokens if self.norm is None else self.norm(tokens)  # type: ignore[no-any-return]

    def cut_output_for(self, body_input: Tensor) -> Tensor | None:
        """What `cut` has to put out for the body to take this; None if only a norm knows."""
        if self.norm is not None:
            return None
        extra = 0 if self.prefix is None else len(self.prefix)
        tokens = _resample(body_input[extra:], self.grid)
        tokens = tokens if self.positions is None else tokens - self.positions[extra:]
        return tokens.mT


class _TableTokens(nn.Module):
    """A row of numbers as a few tokens, each a linear map of all numbers."""

    def __init__(self, features: int, tokens: int, width: int) -> None:
        super().__init__()
        self.linear, self.tokens = nn.Linear(features, tokens * width), tokens

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs).unflatten(-1, (self.tokens, -1))  # type: ignore[no-any-return]


class MapEmbedder(nn.Module):
    """Inputs as maps with channels second, or as grids with channels last."""

    def __init__(
        self, shape: tuple[int, ...], channels: int, area: tuple[int, int], is_grid: bool, fittings: Fittings
    ) -> None:
        super().__init__()
        self.is_grid, self.area = is_grid, area
        self.square: int | None = None
        self.grid: tuple[int, ...]
        self.cut: nn.Module
        if len(shape) == 3 and not is_grid:
            self.grid, self.cut = shape[1:], nn.Conv2d(shape[0], channels, 3, padding=1)
            _take_over(self.cut, fittings.patch)
        elif len(shape) == 3:
            self.grid, self.cut = _cut_field(shape, area, channels, fittings.patch)
        else:
            self.grid, self.cut = _cut_into_tokens(shape, math.prod(area), channels, None)
            self.square = math.ceil(math.sqrt(math.prod(self.grid)))
        self.norm = None if fittings.norm is None else copy.deepcopy(fittings.norm)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.cut(inputs)
        if self.square is not None:
            rows = maps.flatten(2) if not isinstance(self.cut, _TableTokens) else maps.mT
            maps = pad(rows, (0, self.square**2 - rows.shape[-1])).reshape(len(rows), -1, self.square, self.square)
        if not self.is_grid:
            return maps  # type: ignore[no-any-return]
        if tuple(maps.shape[2:]) != self.area:  # windows of attention count on the source's grid
            maps = interpolate(maps, self.area, mode="bilinear")
        grid = maps.movedim(1, -1)
        return grid if self.norm is None else self.norm(grid)  # type: ignore[no-any-return]

    def cut_output_for(self, body_input: Tensor) -> Tensor | None:
        """What `cut` has to put out for the body to take this; None if only a norm knows."""
        if self.norm is not None:
            return None
        maps = body_input.movedim(-1, 0) if self.is_grid else body_input
        if self.square is None:
            return interpolate(maps[None], self.grid, mode="bilinear", align_corners=False)[0]
        side = (self.square, self.square)
        return interpolate(maps[None], side, mode="bilinear", align_corners=False)[0].flatten(1)[:, : self.grid[0]]


class SignalEmbedder(nn.Module):
    """Inputs as signals with channels second, of the length that the body takes."""

    def __init__(self, shape: tuple[int, ...], channels: int, length: int) -> None:
        super().__init__()
        self.length, self.is_table = length, len(shape) == 1
        self.points = math.prod(shape if self.is_table else shape[1:])
        self.cut = nn.Conv1d(1 if self.is_table else shape[0], channels, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        signal = self.cut(inputs[:, None] if self.is_table else inputs.flatten(2))
        return interpolate(signal, self.length, mode="linear") if signal.shape[-1] != self.length else signal

    def cut_output_for(self, body_input: Tensor) -> Tensor | None:
        """What `cut` has to put out for the body to take this."""
        return interpolate(body_input[None], self.points, mode="linear", align_corners=False)[0]


# ---------------------------------------------------------------------- parts


def _cut_into_tokens(
    shape: tuple[int, ...], most: int, width: int, patch: nn.Conv2d | None
) -> tuple[tuple[int, ...], nn.Module]:
    """How many tokens there are along each axis, and what cuts inputs into them."""
    if len(shape) == 1:
        count = min(TABLE_TOKENS, most)
        return (count,), _TableTokens(shape[0], count, width)
    if len(shape) == 2:
        step = smallest_divisor(shape[1], most)
        return (shape[1] // step,), nn.Conv1d(shape[0], width, step, step)
    side = max(1, math.isqrt(most))
    steps = [smallest_divisor(length, side) for length in shape[1:]]
    field = nn.Conv2d(shape[0], width, (steps[0], steps[1]), (steps[0], steps[1]))
    _take_over(field, patch)
    return (shape[1] // steps[0], shape[2] // steps[1]), field


def _cut_field(
    shape: tuple[int, ...], area: tuple[int, int], width: int, patch: nn.Conv2d | None
) -> tuple[tuple[int, ...], nn.Conv2d]:
    steps = [smallest_divisor(length, most) for length, most in zip(shape[1:], area, strict=True)]
    field = nn.Conv2d(shape[0], width, (steps[0], steps[1]), (steps[0], steps[1]))
    _take_over(field, patch)
    return (shape[1] // steps[0], shape[2] // steps[1]), field


def _take_over(field: nn.Conv2d, patch: nn.Conv2d | None) -> None:
    """Give a convolution the source's kernel: its mean over channels, for every channel, resampled and rescaled."""
    if patch is None or patch.weight.shape[0] != field.weight.shape[0]:
        return
    with torch.no_grad():
        kernel = patch.weight.detach().mean(1, keepdim=True)
        kernel = interpolate(kernel, tuple(field.weight.shape[2:]), mode="bilinear", align_corners=False)
        kernel = kernel.expand_as(field.weight)
        size = field.weight.shape[1:].numel() / patch.weight.shape[1:].numel()
        wanted = patch.weight.norm() / math.sqrt(size)
        field.weight.copy_(kernel * (wanted / kernel.norm().clamp(min=1e-12)))
        if field.bias is not None:
            field.bias.copy_(patch.bias.detach() if patch.bias is not None else torch.zeros_like(field.bias))


def _resample(positions: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Positions for another grid, ``(tokens, width)``: over two axes where both are grids, else along the sequence."""
    side = math.isqrt(len(positions))
    if len(grid) == 2 and side * side == len(positions):
        if grid == (side, side):
            return positions
        table = positions.mT.reshape(1, -1, side, side)
        return interpolate(table, (grid[0], grid[1]), mode="bilinear", align_corners=False)[0].flatten(1).mT
    count = math.prod(grid)
    if count <= len(positions) and len(grid) == 1:
        return positions[:count]  # a sequence has its first ones
    return interpolate(positions.mT[None], count, mode="linear", align_corners=False)[0].mT
