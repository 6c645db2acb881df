"""Unequal token counts: two networks that cut the same input into different numbers of tokens, made to agree.

Networks that see an image as 14 x 14 and as 16 x 16 patches have no rows in common. The modes are those of the paper
(arXiv:2602.12952v2, appendix E.1): ``interpolate2d`` resamples the grid of patches bilinearly, ``interpolate`` the
sequence linearly, ``mean`` averages each input's tokens. The side with fewer tokens is resampled to the other's (its
algorithm 1; its released code always resamples the source), with the outer edges of the two grids in the same place.
``offsets`` is for text in two tokenisations: `interbasin.networks.recording.characters`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.batches import whole_number
from interbasin.errors import DataError, ShapeError, UnknownNameError

__all__ = ["Tokens", "as_tokens", "matched", "pooled", "token_shape"]

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
            a space and do not count. By default what is left over from the largest square, and
            none for ``"interpolate"``.
        grid: Height and width in patches, of the source and of the target. By default square.
    """

    mode: Mode
    prefix: tuple[int, int] | None = None
    grid: tuple[tuple[int, int], tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError.of("token mode", self.mode, MODES)
        if self.prefix is not None and not _two_counts(self.prefix):
            raise DataError(
                f"The prefix is a number of tokens for the source and one for the target, found {self.prefix!r}; give "
                "prefix=(1, 1), or leave it out."
            )
        if self.grid is not None and not (
            isinstance(self.grid, tuple | list) and len(self.grid) == 2 and all(map(_two_counts, self.grid))
        ):
            raise DataError(
                f"The grid is height and width for the source and for the target, found {self.grid!r}; give "
                "grid=((14, 14), (16, 16)), or leave it out."
            )


def as_tokens(given: str | Tokens | None) -> Tokens | None:
    """What was asked for, by name or in full."""
    if given is None or isinstance(given, Tokens):
        return given
    return Tokens(given)  # type: ignore[arg-type]


def _two_counts(given: object) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(whole_number(one) >= 0 for one in given)


def token_shape(seen: Tensor) -> tuple[int, ...]:
    """The axes between the batch and the width."""
    return tuple(seen.shape[1:-1])


def pooled(seen: Tensor, how: str | None, mask: Tensor | None) -> Tensor:
    """One row an input instead of one a token: ``"mean"``, the ``"first"`` token or the ``"last"``, padding apart.

    Args:
        seen: ``(batch, positions..., width)``.
        how: None for no pooling.
        mask: ``(batch, tokens)``, true for what counts.
    """
    if how is None or seen.ndim == 2:
        return seen
    if how not in POOLS:
        raise UnknownNameError.of("way to pool", how, POOLS)
    if how == "mean":
        return _mean(seen, mask)
    if seen.ndim != 3:
        raise ShapeError(
            f"Asked for the {how} token, found positions of shape {token_shape(seen)}, which have no order; use "
            "pool='mean'."
        )
    if mask is None:
        return seen[:, 0 if how == "first" else -1]
    position = mask.int().argmax(dim=1)
    if how == "last":
        position = mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)
    return seen.take_along_dim(position[:, None, None], dim=1)[:, 0]


def _mean(seen: Tensor, mask: Tensor | None) -> Tensor:
    flat = seen.flatten(1, -2).to(working_dtype(seen.dtype))
    if mask is None:
        return flat.mean(dim=1)
    weights = mask.to(flat).flatten(1)
    return (flat * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


def matched(seen: Sequence[Tensor], sides: Sequence[int], tokens: Tokens) -> list[Tensor]:
    """The same activations with equal numbers of tokens.

    Args:
        seen: Each ``(batch, positions..., width)``.
        sides: For each, 0 if it is the source's and 1 if it is the target's.
        tokens: How; not ``"offsets"``.

    Returns:
        Each ``(batch, tokens, width)``, or ``(batch, width)`` for ``"mean"``.
    """
    if tokens.mode == "mean":
        return [pooled(one, "mean", None) for one in seen]
    laid = [_laid_out(one, side, tokens) for one, side in zip(seen, sides, strict=True)]
    kept = min(prefix.shape[1] for prefix, _ in laid)
    # The finest grid wins; of several, the last, which is the target's.
    height, width = max((tuple(grid.shape[2:]) for _, grid in reversed(laid)), key=math.prod)
    resampled = []
    for prefix, grid in laid:
        fine = _resampled(grid, (height, width)).flatten(2).mT
        resampled.append(_after(prefix[:, :kept], fine))
    return resampled


def _after(prefix: Tensor, patches: Tensor) -> Tensor:
    return torch.cat([prefix.to(patches.dtype), patches], dim=1) if prefix.shape[1] else patches


def _laid_out(seen: Tensor, side: int, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Tokens that stand before the patches, ``(batch, tokens, width)``, and the patches, ``(batch, width, h, w)``."""
    if seen.ndim == 2:
        seen = seen[:, None]
    shape = token_shape(seen)
    flat = seen.flatten(1, -2)
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


def _resampled(grid: Tensor, size: tuple[int, int]) -> Tensor:
    grid = grid.to(working_dtype(grid.dtype))
    if tuple(grid.shape[2:]) == size:
        return grid
    if grid.shape[2] == size[0] == 1:
        return F.interpolate(grid[:, :, 0], size=size[1], mode="linear", align_corners=False)[:, :, None]
    return F.interpolate(grid, size=size, mode="bilinear", align_corners=False)
