"""The one function that moves tensors: written axes by the map, read axes by its dual, gains by its size.

For a weight that is ``W' = M_out W M_in^-1``, the change of basis of re-basin and the rule of transport alike. An axis
that is a row of segments is cut, moved segment by segment and joined; one that is a grid is unfolded, moved factor by
factor and folded. Where a map differs from block to block, the blocks stand in the source's order: what is inside them
moves first, then they change places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from interbasin.arrays import has_arithmetic, narrowed, working_dtype
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.maps import Blocks, Identity, Linear, Map, Permutation, SignedPermutation
from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Role, Row, Space, narrow, parts_of, spaces_in

_STAYS = Permutation([0])
# The axes of a piece, each with the number of the axis of the whole tensor that it is a part of.
HomedAxes = list[tuple[int, Axis]]


class Mover:
    """Maps, one a space, ready to move any tensor whose axes are known. Spaces without a map stay as they are.

    Args:
        spaces: Of the tensors, by name.
        maps: Space -> map.
        reads: Space -> what read axes move by, where that is not to be the dual of the map.
    """

    def __init__(
        self, spaces: Mapping[str, Space], maps: Mapping[str, Map], reads: Mapping[str, Map] | None = None
    ) -> None:
        self.spaces = spaces
        self.reads = reads or {}
        self.maps = {name: mapping for name, mapping in maps.items() if not isinstance(mapping, Identity)}
        self._sided: dict[tuple[str, Role], Map] = {}
        self._stacked: dict[tuple[str, Role], Tensor] = {}

    def move(self, tensor: Tensor, axes: Sequence[Axis], name: str = "A tensor") -> Tensor:
        """The tensor in the new coordinates, in its own dtype; ``name`` is what messages call it."""
        if not self.touches(axes):
            return tensor.detach().clone()
        self._refuse_what_cannot_be_mixed(tensor, axes, name)
        wide = tensor.detach()
        if any(mapping.dtype is not None for mapping in self.maps.values()):
            wide = wide.to(working_dtype(tensor.dtype, torch.float64))  # entries that only move need no digits
        try:
            moved = map_pieces((wide,), list(enumerate(axes)), self._move_piece)
        except (ShapeError, WiringError) as error:
            raise type(error)(f"{name} cannot be carried: {error}") from None
        return narrowed(moved, tensor.dtype, f"{name}, once it is carried,").contiguous()

    def touches(self, axes: Sequence[Axis]) -> bool:
        """Whether any of the axes has a map to go through."""
        return any(self._touches(axis) for axis in axes)

    def _refuse_what_cannot_be_mixed(self, tensor: Tensor, axes: Sequence[Axis], name: str) -> None:
        require_numbers(tensor, name)
        if not has_arithmetic(tensor):
            raise DataError(
                f"{name} is of {tensor.dtype}, which is for storage and not to calculate with; convert it first, to "
                "bfloat16 for example."
            )
        if not tensor.is_floating_point():
            mixing = [space for space in spaces_in(axes) if not isinstance(self.maps.get(space, _STAYS), Permutation)]
            if mixing:
                raise DataError(
                    f"{name} is of {tensor.dtype}, and the map of space {min(mixing)!r} has coefficients, which would "
                    "be rounded; convert the tensor with .float() first, or leave it out."
                )

    def _touches(self, axis: Axis) -> bool:
        return any(isinstance(part, In) and part.space in self.maps for part in parts_of(axis))

    def _move_piece(self, pieces: tuple[Tensor, ...], axes: HomedAxes) -> Tensor:
        tensor = pieces[0]
        # What depends on others moves before them.
        for place in sorted(range(len(axes)), key=lambda place: -self._depth(axes[place][1])):
            home, axis = axes[place]
            if isinstance(axis, Each) and self._touches(axis):
                raise WiringError(
                    "it moves differently from segment to segment of an axis that it does not have, as the factor of "
                    "a low-rank update of a fused layer whose segments read different spaces. Carry the whole update."
                )
            if not isinstance(axis, In) or axis.space not in self.maps:
                continue
            beside = [_beside(axes, home, name) for name in self.spaces[axis.space].within]
            tensor = self._blockwise(tensor, axis, place, beside) if beside else self._whole(tensor, axis, place)
        return tensor

    def _depth(self, axis: Axis) -> int:
        if not isinstance(axis, In):
            return 0
        within = self.spaces[axis.space].within
        return 1 + max((self._depth(In(name, Role.WRITE, 1)) for name in within), default=0)

    def _whole(self, tensor: Tensor, axis: In[str], place: int) -> Tensor:
        mapping = self._side(axis.space, axis.role)
        if mapping.source_width != tensor.shape[place]:
            raise ShapeError(
                f"the map of space {axis.space!r} reads width {mapping.source_width}, and the tensor has "
                f"{tensor.shape[place]} units there; fit the map on this network."
            )
        return mapping(tensor.movedim(place, -1)).movedim(-1, place)

    def _blockwise(self, tensor: Tensor, axis: In[str], place: int, beside: list[int]) -> Tensor:
        order = [*beside, place]
        order += [other for other in range(tensor.ndim) if other not in order]
        front = tensor.permute(order)
        stack = self._stack(axis)
        blocks = front.flatten(0, len(beside) - 1)
        if stack.shape[0] != blocks.shape[0] or stack.shape[2] != blocks.shape[1]:
            raise ShapeError(
                f"the map of space {axis.space!r} has {stack.shape[0]} blocks of width {stack.shape[2]}, and the "
                f"tensor has {blocks.shape[0]} of width {blocks.shape[1]} there; fit the map on this network."
            )
        moved = torch.bmm(stack.to(blocks), blocks.reshape(*blocks.shape[:2], -1))
        back = moved.reshape(*front.shape[: len(beside)], stack.shape[1], *blocks.shape[2:])
        return back.permute([order.index(other) for other in range(tensor.ndim)])

    def _stack(self, axis: In[str]) -> Tensor:
        """The matrices of all blocks, ``(blocks, target, source)``."""
        known = (axis.space, axis.role)
        if known not in self._stacked:
            mapping = self._side(*known)
            assert isinstance(mapping, Blocks)  # which an Alignment sees to
            self._stacked[known] = torch.stack([block.matrix for block in mapping.maps])
        return self._stacked[known]

    def _side(self, space: str, role: Role) -> Map:
        if (space, role) not in self._sided:
            mapping = self.maps[space]
            if role is Role.READ:
                mapping = self.reads[space] if space in self.reads else mapping.dual()
            elif role is Role.SCALE:
                mapping = _size(mapping)
            self._sided[space, role] = mapping
        return self._sided[space, role]


def map_pieces(
    tensors: tuple[Tensor, ...], axes: HomedAxes, change: Callable[[tuple[Tensor, ...], HomedAxes], Tensor]
) -> Tensor:
    """The first of ``tensors``, put together from what ``change`` makes of its pieces.

    Axes that are a grid are unfolded, axes that are a row are cut, until each axis of a piece lies in one space or in
    none. ``change`` gets the same piece of all tensors, and its axes.
    """
    for place, (home, axis) in enumerate(axes):
        if isinstance(axis, Grid):
            sizes = [part.size for part in axis.parts]
            unfolded = tuple(tensor.unflatten(place, sizes) for tensor in tensors)  # type: ignore[no-untyped-call]
            factors = [(home, part) for part in axis.parts]
            changed = map_pieces(unfolded, [*axes[:place], *factors, *axes[place + 1 :]], change)
            return changed.flatten(place, place + len(sizes) - 1)
    for place, (home, axis) in enumerate(axes):
        if isinstance(axis, Row):
            sizes = [part.size for part in axis.parts]
            segments = zip(*(torch.split(tensor, sizes, place) for tensor in tensors), strict=True)
            changed_segments = []
            for position, segment in enumerate(segments):
                beside = [(other_home, narrow(other, axis.key, position)) for other_home, other in axes]
                beside[place] = (home, axis.parts[position])
                changed_segments.append(map_pieces(segment, beside, change))
            _refuse_different_widths(changed_segments, place)
            return torch.cat(changed_segments, place)
    return change(tensors, axes)


def require_numbers(tensor: Tensor, name: str) -> None:
    """Refuse a tensor whose entries are not numbers in memory."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise DataError(
            f"{name} is quantised or sparse ({tensor.dtype}, {tensor.layout}), and only dense tensors are carried; "
            "call .dequantize() or .to_dense() first."
        )
    if tensor.device.type == "meta":
        raise DataError(f"{name} has a shape but no numbers (device meta); load its numbers first.")


def _refuse_different_widths(pieces: Sequence[Tensor], place: int) -> None:
    beside = [[size for axis, size in enumerate(piece.shape) if axis != place] for piece in pieces]
    if any(sizes != beside[0] for sizes in beside):
        raise ShapeError(
            f"different spaces stand beside its segments, and their maps end in different widths ({beside}); give them "
            "maps to the same width."
        )


def _beside(axes: list[tuple[int, Axis]], home: int, space: str) -> int:
    """Where the blocks stand: on the same original axis if they do, else on another one."""
    places = [place for place, (_, axis) in enumerate(axes) if isinstance(axis, In) and axis.space == space]
    if not places:
        raise WiringError(
            f"it moves differently from block to block of {space!r}, and does not have these blocks, as the factor of "
            "a low-rank update of a grouped layer. Carry the whole update."
        )
    return next((place for place in places if axes[place][0] == home), places[0])


def _size(mapping: Map) -> Map:
    r"""What gains follow: the diagonal of :math:`M \mathrm{diag}(g) M^{-1}` is :math:`(M \odot M^{-\top}) g`.

    For a signed permutation that is the permutation without signs, exactly; for other maps the nearest a gain can do.
    """
    if isinstance(mapping, Permutation):
        return mapping
    if isinstance(mapping, SignedPermutation):
        return Permutation(mapping.index, source_width=mapping.source_width)
    if isinstance(mapping, Blocks):
        return Blocks([_size(block) for block in mapping.maps], order=mapping.order)
    return Linear(mapping.matrix * mapping.dual().matrix)
