"""The wiring of a network some of whose spaces have other widths: what is behind maps that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from interbasin.errors import MapError, ShapeError
from interbasin.maps import Map
from interbasin.networks.wiring.spaces import Axis, Each, Grid, In, Row, Still

if TYPE_CHECKING:
    from interbasin.networks.wiring.wiring import Wiring

__all__ = ["behind"]


def behind(wiring: Wiring, maps: Mapping[str, Map]) -> Wiring:
    """The wiring of tensors that were carried through ``maps``: the same where these keep all widths.

    Raises:
        MapError: if a map changes the number of blocks that other spaces have maps for.
        ShapeError: if tensors would no longer fit together.
    """
    sizes = {}
    for name, one in maps.items():
        space = wiring.spaces[name]
        if one.target_width == space.width:
            continue
        inside = [other.name for other in wiring.spaces.values() if name in other.within]
        if inside:
            raise MapError(
                f"The map of space {name!r} changes the number of its blocks from {space.width} to {one.target_width}, "
                f"and {inside[0]!r} has a map for each of them; blocks can only change places here."
            )
        if one.target_width % space.blocks:
            raise MapError(
                f"The map of space {name!r} ends in width {one.target_width}, which {space.blocks} blocks do not share "
                "evenly; give each block a map to the same width."
            )
        sizes[name] = one.target_width // space.blocks
    if not sizes:
        return wiring
    tensors = {
        name: replace(tensor, axes=axes, shape=tuple(axis.size for axis in axes))
        for name, tensor in wiring.tensors.items()
        for axes in [tuple(_resized(axis, sizes, name) for axis in tensor.axes)]
    }
    return replace(
        wiring,
        spaces={name: replace(space, size=sizes.get(name, space.size)) for name, space in wiring.spaces.items()},
        tensors=tensors,
        activations={
            place: tuple(_resized(axis, sizes, place) for axis in axes) for place, axes in wiring.activations.items()
        },
    )


def _resized(axis: Axis, sizes: Mapping[str, int], where: str) -> Axis:
    if isinstance(axis, Still):
        return axis
    if isinstance(axis, In):
        return replace(axis, size=sizes.get(axis.space, axis.size))
    parts = tuple(_resized(part, sizes, where) for part in axis.parts)
    if isinstance(axis, Grid):
        return Grid(parts)
    if isinstance(axis, Row):
        return Row(parts, axis.key)
    if len({part.size for part in parts}) > 1:
        raise ShapeError(
            f"{where} has stretches beside which different spaces stand, and their maps end in different widths; give "
            "them maps to the same width."
        )
    return Each(axis.key, parts)
