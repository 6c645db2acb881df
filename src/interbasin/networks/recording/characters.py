"""Text that two tokenizers cut differently: tokens that cover the same characters become one row.

Both tokenisations are cut at the characters where a token ends in each of them, the finest cut that both allow, and the
tokens of each piece are averaged. Ends decide, because tokenizers differ in whether a token owns the space before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.errors import DataError, ShapeError

__all__ = ["OFFSETS", "pieces", "pooled_pieces"]

OFFSETS = "offset_mapping"


def pieces(source: Tensor, target: Tensor, masks: Sequence[Tensor | None] = (None, None)) -> tuple[Tensor, Tensor, int]:
    """For each token of both sides the piece it belongs to, counted over the batch (-1: none), and how many there are.

    Args:
        source: ``(batch, tokens, 2)``, where each token starts and ends in its text. Empty ones (special tokens,
            padding) belong to no piece.
        target: The same of the target.
        masks: ``(batch, tokens)`` each, true for what counts.

    Example:
        >>> one = torch.tensor([[[0, 0], [0, 3], [3, 6], [6, 10]]])
        >>> other = torch.tensor([[[0, 6], [6, 8], [8, 10]]])
        >>> pieces(one, other)
        (tensor([[-1,  0,  0,  1]]), tensor([[0, 1, 1]]), 2)
    """
    sides = []
    for offsets, mask in zip((source, target), masks, strict=True):
        if offsets.ndim != 3 or offsets.shape[-1] != 2:
            raise ShapeError(
                f"Offsets must have shape (batch, tokens, 2), found {tuple(offsets.shape)}; take them from a tokenizer "
                "with return_offsets_mapping=True."
            )
        real = offsets[..., 1] > offsets[..., 0]
        sides.append((offsets[..., 1].cpu(), (real if mask is None else real & mask.to(real.device)).cpu()))
    (ends, real), (other_ends, other_real) = sides
    if len(ends) != len(other_ends):
        raise ShapeError(f"Offsets of {len(ends)} and {len(other_ends)} texts are not paired; give the same texts.")
    one, other = torch.full(ends.shape, -1), torch.full(other_ends.shape, -1)
    count = 0
    for row in range(len(ends)):
        shared = sorted(set(ends[row][real[row]].tolist()) & set(other_ends[row][other_real[row]].tolist()))
        cuts = torch.tensor(shared, dtype=ends.dtype)
        for which, at, kept in ((one, ends, real), (other, other_ends, other_real)):
            # A token belongs to the piece that its end lies in; what stands behind the last shared end has no partner.
            found = torch.searchsorted(cuts, at[row].contiguous())
            which[row] = torch.where(kept[row] & (found < len(shared)), found + count, -1)
        count += len(shared)
    return one, other, count


def pooled_pieces(seen: Tensor, belongs: Tensor, count: int) -> Tensor:
    """The mean of the tokens of each piece, ``(pieces, width)``."""
    if seen.ndim != 3 or seen.shape[:2] != belongs.shape:
        raise ShapeError(
            f"Offsets were given for tokens of shape {tuple(belongs.shape)}, the activation has rows of shape "
            f"{tuple(seen.shape[:-1])}; record spaces that have one row a token."
        )
    if not count:
        raise DataError("The two tokenisations end no token at the same character; are they of the same texts?")
    flat = seen.flatten(0, 1).to(working_dtype(seen.dtype))
    belongs = belongs.flatten().to(flat.device)
    kept = belongs >= 0
    sums = flat.new_zeros(count, flat.shape[1]).index_add_(0, belongs[kept], flat[kept])
    sizes = torch.bincount(belongs[kept], minlength=count)
    return sums / sizes[:, None].to(sums)
