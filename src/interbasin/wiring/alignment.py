"""Alignment: a map per space, the way back, one after another, and what the maps make of widths and blocks.

A space inside blocks (the channels of heads) has one map per block, in the order of the source; the map of another
space says how the blocks change places. Carrying moves what is inside the blocks first, and the blocks after that. So
behind an alignment whose blocks are reordered by ``index`` (target block ``i`` is source block ``index[i]``), what was
done to block ``index[i]`` stands at place ``i``: the way back and a second alignment find it there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasin.errors import MapError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Affine, Blocks, Identity, Map, Permutation
from interbasin.maps.base import require_map
from interbasin.maps.batched import BatchedPermutation, block_order
from interbasin.maps.files import restore
from interbasin.storage import as_path, new_folder, read_record, write_record
from interbasin.wiring.axes.groups import belongs, is_blockwise, is_plane
from interbasin.wiring.axes.spaces import Axis, Each, In, Space, rebuild
from interbasin.wiring.wiring import VERSION, Wiring, read_back


@dataclass(frozen=True)
class Alignment:
    """A map for each space that moves, and the wiring that says where they act. Spaces without a map stay.

    Raises:
        WiringError: if ``wiring`` is no wiring, or ``maps`` no mapping.
        UnknownNameError, ShapeError, MapError: for a map of a space that is not there, that reads another width, or
            that cannot act on its space: an affine one, or one that does not keep to the blocks of the space.
    """

    wiring: Wiring
    maps: Mapping[str, Map]

    def __post_init__(self) -> None:
        if not isinstance(self.wiring, Wiring):
            raise WiringError(
                f"An alignment belongs to a wiring, found {type(self.wiring).__name__}; make one with wire(model, "
                "inputs)."
            )
        if not isinstance(self.maps, Mapping):
            raise WiringError(f"maps must be a dict {{space: Map}}, got {type(self.maps).__name__}.")
        for name, mapping in self.maps.items():
            if name not in self.wiring.spaces:
                raise UnknownNameError.of("space", name, self.wiring.spaces)
            _require_fit(self.wiring.spaces[name], mapping)

    @property
    def is_exact(self) -> bool:
        """Whether every map is of a kind that its space's group holds, so that the function stays the same."""
        spaces = self.wiring.spaces
        return all(belongs(mapping, spaces[name].group, spaces[name].blocks) for name, mapping in self.maps.items())

    def inverse(self) -> Alignment:
        """The way back: the inverse of every map, block by block where blocks change places.

        A map onto another width has its pseudo-inverse (for a semi-orthogonal one, the transpose), and the way back
        belongs to the wiring of those widths: into a wider space and back nothing is lost, through a narrower one what
        it had no room for is.
        """
        back: dict[str, Map] = {}
        for name, mapping in self.maps.items():
            space = self.wiring.spaces[name]
            if not space.within or isinstance(mapping, Identity):
                back[name] = mapping.inverse()
            else:
                blocks = _block_maps(mapping, space)
                order = _blocks_before(self, space)
                back[name] = Blocks([blocks[taken].inverse() for taken in order])
        return Alignment(resize(self.wiring, self.maps), back)

    def __matmul__(self, first: Alignment) -> Alignment:
        """``b @ a``: first ``a``, then ``b``, space by space by their names.

        Raises:
            UnknownNameError: if ``b`` moves a space that ``a`` does not know.
            ShapeError: if a space is not as wide where ``b`` begins as where ``a`` ends.
            MapError: if blocks do not change places as wholes.
        """
        if not isinstance(first, Alignment):
            return NotImplemented
        for name in self.maps:
            if name not in first.wiring.spaces:
                raise UnknownNameError.of("space in the first alignment", name, first.wiring.spaces)
        both: dict[str, Map] = {}
        for name, space in first.wiring.spaces.items():
            before, after = first.maps.get(name), self.maps.get(name)
            width = space.width if before is None else before.target_width
            if name in self.wiring.spaces and self.wiring.spaces[name].width != width:
                raise ShapeError(
                    f"Space {name!r} is {width} wide behind the first alignment and {self.wiring.spaces[name].width} "
                    "where the second begins; b @ a does a first."
                )
            if after is None or isinstance(after, Identity):
                if before is not None:
                    both[name] = before
            elif space.within:
                both[name] = _compose_blocks(after, first, space)
            else:
                both[name] = after if before is None else after @ before
        return Alignment(first.wiring, both)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write ``alignment.json`` and ``alignment.safetensors``, exactly, whole or not at all."""
        documents, tensors = {}, {}
        for place, (name, mapping) in enumerate(self.maps.items()):
            document, own = mapping._described()
            documents[name] = {"place": place, **document}
            tensors.update({f"{place}.{key}": tensor for key, tensor in own.items()})
        with new_folder(folder, ("alignment",), force=force) as temporary:
            content = {"maps": documents, "wiring": self.wiring.to_json()}
            write_record(temporary, "alignment", "alignment", VERSION, content, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Alignment:
        """The alignment that was saved to ``folder``, or that a job left in its outcome there."""
        where = as_path(folder)
        if not (where / "alignment.json").exists() and (where / "alignment" / "alignment.json").exists():
            folder = where / "alignment"
        document, tensors = read_record(folder, "alignment", "alignment", VERSION)

        def build() -> Alignment:
            maps = {}
            for name, content in document["maps"].items():
                prefix = f"{content['place']}."
                own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
                maps[name] = restore(content, own)
            return cls(Wiring.from_json(document["wiring"]), maps)

        return read_back(build, "alignment", folder)


def _require_fit(space: Space, mapping: object) -> None:
    """Refuse a map that cannot act on the space, or whose outcome no network could have."""
    name = space.name
    mapping = require_map(mapping, f"The map of space {name!r}")
    if isinstance(mapping, Affine):
        raise MapError(
            f"The map of space {name!r} is affine, and tensors are carried by linear maps; give its linear part "
            "(map.linear), or fit without affine=True."
        )
    if mapping.source_width != space.width:
        raise ShapeError(
            f"Space {name!r} is {space.width} wide and its map reads width {mapping.source_width}; fit the map on this "
            "network."
        )
    if space.within and not isinstance(mapping, Identity):
        _require_blocks(space, mapping)
    if is_plane(space.group) and mapping.target_width != space.width:
        raise MapError(
            f"The map of space {name!r} changes its width from {space.width} to {mapping.target_width}, where rotary "
            "positions turn pairs of channels; give each pair a map onto a pair, or take wiring.flattened() for heads "
            "of another width."
        )


def _require_blocks(space: Space, mapping: Map) -> None:
    if not is_blockwise(mapping, space.blocks):
        heads = " and ".join(map(repr, space.within))
        raise MapError(
            f"Space {space.name!r} has one map for each of its {space.blocks} blocks of {space.size}, found "
            f"{mapping!r}; fit one in each block and give Blocks([...]) of them, in the order of the source: the "
            f"blocks change places by the map of {heads}. For one map of all blocks together, take wiring.flattened()."
        )
    widths = sorted(set(mapping.target_blocks))
    if len(widths) > 1:
        raise MapError(
            f"The maps in the blocks of space {space.name!r} end in widths {' and '.join(map(str, widths))}, and no "
            "network has heads or groups of several widths; give each block a map to the same width."
        )


# ---------------------------------------------------------------------- blocks that change places


def whole_map(alignment: Alignment, name: str) -> Map:
    """What rows of the whole space are mapped by: the map of each block, and the blocks where they go.

    Raises:
        UnknownNameError: if there is no such space.
        MapError: if blocks do not change places as wholes.
    """
    spaces = alignment.wiring.spaces
    if name not in spaces:
        raise UnknownNameError.of("space", name, spaces)
    space = spaces[name]
    mapping = alignment.maps.get(name, Identity(space.width))
    if not space.within:
        return mapping
    order = _blocks_before(alignment, space)
    if order == list(range(space.blocks)):
        return mapping
    blocks = _block_maps(mapping, space)
    return Blocks([blocks[taken] for taken in order], order=order)


def _blocks_before(alignment: Alignment, space: Space) -> list[int]:
    """For each block of ``space`` behind the alignment, which block it was before."""
    spaces, maps = alignment.wiring.spaces, alignment.maps
    moves = {}
    for name in space.within:
        if name in maps and not isinstance(maps[name], Identity):
            blocks = _block_maps(maps[name], spaces[name]) if spaces[name].within else [maps[name]]
            stays = torch.arange(spaces[name].size)
            index = [stays if isinstance(block, Identity) else _require_permutation(block, name) for block in blocks]
            moves[name] = BatchedPermutation(torch.stack(index))
    order: list[int] = block_order(spaces, space.within, moves).tolist()
    return order


def _require_permutation(mapping: Map, name: str) -> Tensor:
    if not isinstance(mapping, Permutation):
        raise MapError(f"The blocks of space {name!r} can only change places; its map is {mapping!r}.")
    return mapping.index


def _compose_blocks(after: Map, first: Alignment, space: Space) -> Map:
    """``after`` behind the map of ``space`` in ``first``: its map for place ``i`` finds block ``order[i]`` there."""
    before, later = _block_maps(first.maps.get(space.name), space), _block_maps(after, space)
    maps = [*before]
    for place, taken in enumerate(_blocks_before(first, space)):
        maps[taken] = later[place] @ before[taken]
    return Blocks(maps)


def _block_maps(mapping: Map | None, space: Space) -> list[Map]:
    """The map of each block, in the order of the source."""
    if mapping is None or isinstance(mapping, Identity):
        return [Identity(space.size)] * space.blocks
    assert isinstance(mapping, Blocks)  # an Alignment sees to that
    return list(mapping.maps)


# ---------------------------------------------------------------------- other widths


def resize(wiring: Wiring, maps: Mapping[str, Map]) -> Wiring:
    """The wiring of tensors that were carried through ``maps``: the same where these keep all widths.

    Raises:
        MapError: if a map changes the number of blocks that other spaces have maps for.
        ShapeError: if tensors would no longer fit together.
    """
    sizes = {}
    for name, mapping in maps.items():
        space = wiring.spaces[name]
        if mapping.target_width == space.width:
            continue
        inside = [other.name for other in wiring.spaces.values() if name in other.within]
        if inside:
            raise MapError(
                f"The map of space {name!r} changes the number of its blocks from {space.width} to "
                f"{mapping.target_width}, and {inside[0]!r} has a map for each of them; blocks can only change places "
                "here. For another number of heads take wiring.flattened()."
            )
        sizes[name] = mapping.target_width // space.blocks
    if not sizes:
        return wiring
    tensors = {
        name: replace(tensor, axes=axes, shape=tuple(axis.size for axis in axes))
        for name, tensor in wiring.tensors.items()
        for axes in [tuple(_resize_axis(axis, sizes, name) for axis in tensor.axes)]
    }
    return replace(
        wiring,
        spaces={name: replace(space, size=sizes.get(name, space.size)) for name, space in wiring.spaces.items()},
        tensors=tensors,
        activations={
            place: tuple(_resize_axis(axis, sizes, place) for axis in axes)
            for place, axes in wiring.activations.items()
        },
    )


def _resize_axis(axis: Axis, sizes: Mapping[str, int], where: str) -> Axis:
    if isinstance(axis, In):
        return replace(axis, size=sizes.get(axis.space, axis.size))
    resized = rebuild(axis, lambda part: _resize_axis(part, sizes, where))
    if isinstance(resized, Each) and len({part.size for part in resized.parts}) > 1:
        raise ShapeError(
            f"Different spaces stand beside the segments of {where}, and their maps end in different widths; give them "
            "maps to the same width."
        )
    return resized
