"""The way back through an alignment.

Carrying moves what is inside blocks first and then the blocks themselves. Backwards, the blocks have already changed
places, so the inverse of a map inside them stands where its block went: with blocks reordered by ``index`` (target
block ``i`` is source block ``index[i]``), block ``i`` of the way back is the inverse of map ``index[i]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from interbasin.errors import MapError
from interbasin.maps import Blocks, Identity, Map, Permutation

if TYPE_CHECKING:
    from interbasin.networks.wiring.wiring import Wiring

__all__ = ["block_order", "returned"]


def returned(wiring: Wiring, maps: Mapping[str, Map]) -> dict[str, Map]:
    """The inverse of each map, in the order of blocks that the way there left behind."""
    back: dict[str, Map] = {}
    for name, one in maps.items():
        space = wiring.spaces[name]
        if not space.within or isinstance(one, Identity):
            back[name] = one.inverse()
            continue
        assert isinstance(one, Blocks)  # which an Alignment sees to
        order = block_order(wiring, maps, space.within)
        back[name] = Blocks([one.maps[taken].inverse() for taken in order])
    return back


def block_order(wiring: Wiring, maps: Mapping[str, Map], within: tuple[str, ...]) -> list[int]:
    """For each block after the move, by its place among the spaces of ``within``, which block it was before."""
    sizes = [wiring.spaces[name].size for name in within]
    order = []
    for places in product(*(range(size) for size in sizes)):
        # Outer blocks first: which of their own blocks the inner ones used depends on where the outer came from.
        sources: dict[str, int] = {}
        for name, place in sorted(
            zip(within, places, strict=True), key=lambda pair: len(wiring.spaces[pair[0]].within)
        ):
            sources[name] = _source(wiring, maps, name, place, sources)
        flat = 0
        for name, size in zip(within, sizes, strict=True):
            flat = flat * size + sources[name]
        order.append(flat)
    return order


def _source(wiring: Wiring, maps: Mapping[str, Map], name: str, place: int, outer: Mapping[str, int]) -> int:
    one = maps.get(name)
    if one is None or isinstance(one, Identity):
        return place
    space = wiring.spaces[name]
    if space.within:
        assert isinstance(one, Blocks)
        flat = 0
        for above in space.within:
            flat = flat * wiring.spaces[above].size + outer[above]
        one = one.maps[flat]
    if isinstance(one, Identity):
        return place
    if not isinstance(one, Permutation):
        raise MapError(f"The blocks of space {name!r} can only change places; its map is {one!r}.")
    return int(one.index[place])
