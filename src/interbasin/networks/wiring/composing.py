"""One alignment after another, as one.

A map inside blocks stands in the order of its source. The later alignment found the blocks where the first had put
them: its map for place ``i`` acts on what the first one's map for block ``order[i]`` gave, and stands there in the
composition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin.errors import ShapeError, UnknownNameError
from interbasin.maps import Blocks, Identity, Map
from interbasin.networks.wiring.returning import block_order

if TYPE_CHECKING:
    from interbasin.networks.wiring.wiring import Alignment

__all__ = ["composed"]


def composed(later: Alignment, first: Alignment) -> dict[str, Map]:
    """The maps that do what ``first`` does and then what ``later`` does.

    Raises:
        UnknownNameError: if ``later`` moves a space that ``first`` does not know.
        ShapeError: if a space is not as wide where ``later`` begins as where ``first`` ends.
        MapError: if a space with a map for each block has another kind of map.
    """
    wiring = first.wiring
    for name in later.maps:
        if name not in wiring.spaces:
            raise UnknownNameError.of("space in the first alignment", name, wiring.spaces)
    both: dict[str, Map] = {}
    for name, space in wiring.spaces.items():
        one, other = first.maps.get(name), later.maps.get(name)
        width = space.width if one is None else one.target_width
        if name in later.wiring.spaces and later.wiring.spaces[name].width != width:
            raise ShapeError(
                f"Space {name!r} is {width} wide behind the first alignment and {later.wiring.spaces[name].width} "
                "where the second begins; b @ a does a first."
            )
        if other is None or isinstance(other, Identity):
            if one is not None:
                both[name] = one
        elif space.within:
            both[name] = _blockwise(later, first, name)
        else:
            both[name] = other if one is None else other @ one
    return both


def _blockwise(later: Alignment, first: Alignment, name: str) -> Map:
    wiring = first.wiring
    space = wiring.spaces[name]
    one, other = first.maps.get(name, Identity(space.width)), later.maps[name]
    before, after = _maps(one, space.size, space.blocks), _maps(other, space.size, space.blocks)
    maps: list[Map] = [*before]
    for place, taken in enumerate(block_order(wiring, first.maps, space.within)):
        maps[taken] = after[place] @ before[taken]
    return Blocks(maps)


def _maps(one: Map, size: int, blocks: int) -> list[Map]:
    return list(one.maps) if isinstance(one, Blocks) else [Identity(size)] * blocks
