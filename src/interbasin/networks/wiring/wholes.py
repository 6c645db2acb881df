"""The map of a space with its blocks where they go.

In an alignment a space inside blocks has a map for each block, in the source's order, and that the blocks change places
is said by the map of another space. What an activation of all blocks side by side goes through is both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin.errors import UnknownNameError
from interbasin.maps import Blocks, Identity, Map
from interbasin.networks.wiring.returning import block_order

if TYPE_CHECKING:
    from interbasin.networks.wiring.wiring import Alignment

__all__ = ["whole_map"]


def whole_map(alignment: Alignment, name: str) -> Map:
    """What rows of the whole space are mapped by.

    Raises:
        UnknownNameError: if there is no such space.
        MapError: if a space with a map for each block has another kind of map.
    """
    spaces = alignment.wiring.spaces
    if name not in spaces:
        raise UnknownNameError.of("space", name, spaces)
    space = spaces[name]
    one = alignment.maps.get(name, Identity(space.width))
    if not space.within:
        return one
    if isinstance(one, Identity):
        maps: list[Map] = [Identity(space.size)] * space.blocks
    else:
        assert isinstance(one, Blocks)  # which an Alignment sees to
        maps = list(one.maps)
    order = block_order(alignment.wiring, alignment.maps, space.within)
    if order == list(range(space.blocks)):
        return one
    return Blocks([maps[taken] for taken in order], order=order)
