"""One map per block: the heads of an attention layer, the groups of a convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor

from interbasin.errors import MapError, ShapeError
from interbasin.maps.affine import Affine
from interbasin.maps.base import Map, require_floating, require_map
from interbasin.maps.permutation import Permutation
from interbasin.text import plural


@final
class Blocks(Map):
    """Target block ``i`` is ``maps[i]`` of source block ``order.index[i]``.

    The space is cut into consecutive blocks: those of the target are as wide as the maps' targets, in order; source
    block ``order.index[i]`` is as wide as the source of ``maps[i]``.

    Args:
        maps: A linear map for each block (no `Affine`).
        order: Which source block each target block takes; by default its own.

    Example:
        >>> from interbasin.maps import Identity
        >>> swap_heads = Blocks([Identity(2), Identity(2)], order=[1, 0])
        >>> swap_heads(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([3., 4., 1., 2.])
    """

    kind = "blocks"
    _maps: tuple[Map, ...]
    _order: Permutation
    _source_blocks: tuple[int, ...]

    def __init__(self, maps: Sequence[Map], order: Permutation | Sequence[int] | Tensor | None = None) -> None:
        if not isinstance(maps, Sequence) or len(maps) == 0:
            got = "an empty one" if isinstance(maps, Sequence) else type(maps).__name__
            raise ShapeError(f"Blocks needs a list of at least one map, got {got}.")
        for position, block in enumerate(maps):
            require_map(block, f"Block {position} of Blocks")
            if isinstance(block, Affine):
                raise MapError(f"Block {position} of Blocks is affine; compose the whole with one Affine instead.")
        permutation = _as_order(order, len(maps))
        widths = [0] * len(maps)
        for position, block in zip(permutation.index.tolist(), maps, strict=True):
            widths[position] = block.source_width
        self._set(_maps=tuple(maps), _order=permutation, _source_blocks=tuple(widths))
        self._set(source_width=sum(widths), target_width=sum(block.target_width for block in maps))

    @property
    def maps(self) -> tuple[Map, ...]:
        """The map of each target block."""
        return self._maps

    @property
    def order(self) -> Permutation:
        """Which source block each target block takes."""
        return self._order

    @property
    def source_blocks(self) -> tuple[int, ...]:
        """The widths of the source's blocks, in the source's order."""
        return self._source_blocks

    @property
    def target_blocks(self) -> tuple[int, ...]:
        """The widths of the target's blocks, in the target's order."""
        return tuple(block.target_width for block in self._maps)

    @property
    def matrix(self) -> Tensor:
        dense = torch.zeros(self.target_width, self.source_width, dtype=self.dtype or torch.float64)
        rows, columns = ([0, *accumulate(widths)] for widths in (self.target_blocks, self._source_blocks))
        for position, (taken, block) in enumerate(zip(self._order.index.tolist(), self._maps, strict=True)):
            dense[rows[position] : rows[position + 1], columns[taken] : columns[taken + 1]] = block.matrix
        return dense

    @property
    def rank(self) -> int:
        return sum(block.rank for block in self._maps)

    @property
    def is_isometric(self) -> bool:
        return all(block.is_isometric for block in self._maps)

    @property
    def dtype(self) -> torch.dtype | None:
        dtypes = [block.dtype for block in self._maps if block.dtype is not None]
        return reduce(torch.promote_types, dtypes) if dtypes else None

    def inverse(self) -> Blocks:
        back = self._order.inverse()
        return Blocks([self._maps[position].inverse() for position in back.index.tolist()], order=back)

    def dual(self) -> Blocks:
        return Blocks([block.dual() for block in self._maps], order=self._order)

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Blocks:
        return Blocks([block.to(dtype=dtype, device=device) for block in self._maps], order=self._order)

    def _act(self, x: Tensor) -> Tensor:
        if self.dtype is not None:
            require_floating(x)
        pieces = torch.split(x, list(self._source_blocks), dim=-1)
        return torch.cat(
            [block._act(pieces[taken]) for taken, block in zip(self._order.index.tolist(), self._maps, strict=True)],
            dim=-1,
        )

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        documents, tensors = [], {"order": self._order.index}
        for position, block in enumerate(self._maps):
            document, own = block._described()
            documents.append(document)
            tensors.update({f"{position}.{name}": tensor for name, tensor in own.items()})
        return {"maps": documents}, tensors

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Blocks:
        from interbasin.maps.files import restore

        maps = []
        for position, inner in enumerate(document["maps"]):
            prefix = f"{position}."
            own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            maps.append(restore(inner, own))
        return cls(maps, order=tensors["order"])

    def __repr__(self) -> str:
        return f"Blocks({self.target_width} <- {self.source_width}, {plural(len(self._maps), 'block')})"


def _as_order(order: Permutation | Sequence[int] | Tensor | None, blocks: int) -> Permutation:
    if order is None:
        return Permutation(torch.arange(blocks))
    permutation = order if isinstance(order, Permutation) else Permutation(order)
    if (permutation.source_width, permutation.rank, permutation.target_width) != (blocks, blocks, blocks):
        raise ShapeError(
            f"The order of {blocks} blocks must be a full permutation of {blocks}, got {permutation!r} with "
            f"{permutation.rank} matched."
        )
    return permutation
