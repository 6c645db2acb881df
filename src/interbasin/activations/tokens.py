"""Unequal token counts: two networks that cut the same input into different numbers of tokens, made to agree.

Networks that see an image as 14 x 14 and as 16 x 16 patches have no rows in common. The modes are those of the paper
(arXiv:2602.12952v2, appendix E.1): ``interpolate2d`` resamples the grid of patches bilinearly, ``interpolate`` the
sequence linearly, ``mean`` averages each input's tokens. The side with fewer tokens is resampled to the other's (its
algorithm 1; its released code always resamples the source), with the outer edges of the two grids in the same place.

``offsets`` is for text that two tokenizers cut differently: tokens that cover the same characters become one row. Both
tokenisations are cut at the characters where a token ends in each of them, the finest cut that both allow, and the
tokens of each piece are averaged. Ends decide, because tokenizers differ in whether a token owns the space before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.batches import OFFSETS
from interbasin.errors import DataError, ShapeError, UnknownNameError

Mode = Literal["interpolate2d", "interpolate", "mean", "offsets"]
MODES = ("interpolate2d", "interpolate", "mean", "offsets")
POOLS = ("mean", "first", "last")


@dataclass(frozen=True)
class Tokens:
    """What to do where two networks have different numbers of tokens.

    Attributes:
        mode: ``"interpolate2d"``, ``"interpolate"``, ``"mean"`` or ``"offsets"``.
        prefix: Tokens before the patches (class and registers), of the source and of the target. They are kept apart,
            and paired as far as both networks have them. Registers that a wiring knows to have no order are no rows of
            a space and do not count. By default what is left over from the largest square, and none for
            ``"interpolate"``.
        grid: Height and width in patches, of the source and of the target. By default square.
    """

    mode: Mode
    prefix: tuple[int, int] | None = None
    grid: tuple[tuple[int, int], tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError.of("token mode", self.mode, MODES)
        if self.prefix is not None and not _two_counts(self.prefix):
            raise DataError(f"prefix must be two numbers of tokens, as (1, 1), found {self.prefix!r}.")
        if self.grid is not None and not (_is_pair(self.grid) and all(map(_two_counts, self.grid))):
            raise DataError(f"grid must be two sizes, as ((14, 14), (16, 16)), found {self.grid!r}.")


def _is_pair(values: object) -> bool:
    return isinstance(values, tuple | list) and len(values) == 2


def _two_counts(values: Any) -> bool:
    if not _is_pair(values):
        return False
    is_whole = (isinstance(value, int | np.integer) and type(value) is not bool for value in values)
    return all(is_whole) and min(values) >= 0


def pool_tokens(activation: Tensor, how: str | None, mask: Tensor | None) -> Tensor:
    """One row per input instead of one per token: ``"mean"``, the ``"first"`` token or the ``"last"``, padding apart.

    Of an activation ``(batch, positions..., width)``; the mask is true for what counts. None: no pooling.
    """
    if how is None or activation.ndim == 2:
        return activation
    if how not in POOLS:
        raise UnknownNameError.of("way to pool", how, POOLS)
    if how == "mean":
        return _mean(activation, mask)
    if activation.ndim != 3:
        raise ShapeError(
            f"There is no {how} token in positions of shape {tuple(activation.shape[1:-1])}; use pool='mean'."
        )
    if mask is None:
        return activation[:, 0 if how == "first" else -1]
    position = mask.int().argmax(dim=1)
    if how == "last":
        position = mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)
    return activation.take_along_dim(position[:, None, None], dim=1)[:, 0]


def _mean(activation: Tensor, mask: Tensor | None) -> Tensor:
    flat = activation.flatten(1, -2).to(working_dtype(activation.dtype))
    if mask is None:
        return flat.mean(dim=1)
    weights = mask.to(flat).flatten(1)
    return (flat * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


def match_tokens(activations: Sequence[Tensor], sides: Sequence[int], tokens: Tokens) -> list[Tensor]:
    """The same activations, interpolated to equal numbers of tokens: ``(batch, tokens, width)``.

    For each of them ``sides`` says whether it is the source's (0) or the target's (1).
    """
    laid = [_lay_out(layer, side, tokens) for layer, side in zip(activations, sides, strict=True)]
    kept = min(prefix.shape[1] for prefix, _ in laid)
    # The finest grid wins; of several, the last, which is the target's.
    height, width = max((tuple(grid.shape[2:]) for _, grid in reversed(laid)), key=math.prod)
    matched = []
    for prefix, grid in laid:
        patches = _resample(grid, (height, width)).flatten(2).mT
        matched.append(torch.cat([prefix[:, :kept].to(patches.dtype), patches], dim=1) if kept else patches)
    return matched


def _lay_out(activation: Tensor, side: int, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Tokens that stand before the patches, ``(batch, tokens, width)``, and the patches, ``(batch, width, h, w)``."""
    if activation.ndim == 2:
        activation = activation[:, None]
    shape = tuple(activation.shape[1:-1])
    flat = activation.flatten(1, -2)
    if tokens.mode == "interpolate":
        prefix = tokens.prefix[side] if tokens.prefix and len(shape) == 1 else 0
        height, width = 1, flat.shape[1] - prefix
    elif len(shape) == 2:
        prefix, (height, width) = 0, shape
    elif len(shape) == 1:
        prefix, height, width = _grid(shape[0], side, tokens)
    else:
        raise ShapeError(
            f"interpolate2d works on one or two axes of positions, found {shape}; use tokens='mean' for these spaces."
        )
    if prefix < 0 or prefix + height * width != flat.shape[1] or width < 1:
        raise ShapeError(
            f"{flat.shape[1]} tokens are not {prefix} and then {height} x {width} patches; say what they are with "
            "tokens=Tokens(mode, prefix=(source, target), grid=((height, width), (height, width)))."
        )
    patches = flat[:, prefix:].mT.reshape(flat.shape[0], flat.shape[-1], height, width)
    return flat[:, :prefix], patches


def _grid(count: int, side: int, tokens: Tokens) -> tuple[int, int, int]:
    """The number of tokens before the patches, and the patches' height and width."""
    if tokens.grid is not None:
        height, width = tokens.grid[side]
        return (tokens.prefix[side] if tokens.prefix else count - height * width), height, width
    prefix = tokens.prefix[side] if tokens.prefix else count - math.isqrt(count) ** 2
    edge = math.isqrt(max(count - prefix, 0))
    return prefix, edge, edge


def _resample(grid: Tensor, size: tuple[int, int]) -> Tensor:
    grid = grid.to(working_dtype(grid.dtype))
    if tuple(grid.shape[2:]) == size:
        return grid
    if grid.shape[2] == size[0] == 1:
        return F.interpolate(grid[:, :, 0], size=size[1], mode="linear", align_corners=False)[:, :, None]
    return F.interpolate(grid, size=size, mode="bilinear", align_corners=False)


# ---------------------------------------------------------------------- texts


def char_offsets(offsets: object) -> Tensor:
    """Where each token starts and ends in its text, as a batch holds it."""
    try:
        return torch.as_tensor(offsets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{OFFSETS} should be numbers of shape (batch, tokens, 2), found a {type(offsets).__name__} that is no "
            f"tensor ({error}); have the tokenizer pad it, with return_tensors='pt'."
        ) from error


def match_texts(
    source: Tensor, target: Tensor, masks: Sequence[Tensor | None] = (None, None)
) -> tuple[Tensor, Tensor, int]:
    """For each token of both sides the piece it belongs to, counted over the batch (-1: none), and how many there are.

    Source and target say where each token starts and ends in its text, ``(batch, tokens, 2)``. Empty ones (special
    tokens, padding) belong to no piece. The masks, ``(batch, tokens)``, are true for what counts.

    Example:
        >>> source = torch.tensor([[[0, 0], [0, 3], [3, 6], [6, 10]]])
        >>> target = torch.tensor([[[0, 6], [6, 8], [8, 10]]])
        >>> match_texts(source, target)
        (tensor([[-1,  0,  0,  1]]), tensor([[0, 1, 1]]), 2)
    """
    sides = []
    for offsets, mask in zip((source, target), masks, strict=True):
        if offsets.ndim != 3 or offsets.shape[-1] != 2:
            raise ShapeError(f"Offsets must have shape (batch, tokens, 2), found {tuple(offsets.shape)}.")
        real = offsets[..., 1] > offsets[..., 0]
        sides.append((offsets[..., 1].cpu(), (real if mask is None else real & mask.to(real.device)).cpu()))
    texts, other_texts = (len(ends) for ends, _ in sides)
    if texts != other_texts:
        raise ShapeError(f"Offsets of {texts} and {other_texts} texts are not paired; give the same texts.")
    pieces = [torch.full(ends.shape, -1) for ends, _ in sides]
    count = 0
    for row in range(texts):
        shared = sorted(set.intersection(*(set(ends[row][real[row]].tolist()) for ends, real in sides)))
        for piece, (ends, real) in zip(pieces, sides, strict=True):
            # A token belongs to the piece that its end lies in; what stands behind the last shared end has no partner.
            position = torch.searchsorted(torch.tensor(shared, dtype=ends.dtype), ends[row].contiguous())
            piece[row] = torch.where(real[row] & (position < len(shared)), position + count, -1)
        count += len(shared)
    return pieces[0], pieces[1], count


def pool_pieces(activation: Tensor, belongs: Tensor, count: int) -> Tensor:
    """The mean of the tokens of each piece, ``(pieces, width)``."""
    if activation.ndim != 3 or activation.shape[:2] != belongs.shape:
        raise ShapeError(
            f"Offsets were given for tokens of shape {tuple(belongs.shape)}, the activation has rows of shape "
            f"{tuple(activation.shape[:-1])}; record spaces that have one row per token."
        )
    if not count:
        raise DataError("The two tokenisations end no token at the same character; are they of the same texts?")
    flat = activation.flatten(0, 1).to(working_dtype(activation.dtype))
    belongs = belongs.flatten().to(flat.device)
    kept = belongs >= 0
    sums = flat.new_zeros(count, flat.shape[1]).index_add_(0, belongs[kept], flat[kept])
    sizes = torch.bincount(belongs[kept], minlength=count)
    return sums / sizes[:, None].to(sums)
