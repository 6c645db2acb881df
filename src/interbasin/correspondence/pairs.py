"""What a correspondence is made of: pairs of spaces, pairs of tensors or their segments, and what has no partner."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from interbasin.wiring import TensorWiring, Wiring
from interbasin.wiring.axes.spaces import Axis, Grid, Row, narrow, spaces_in

Order = tuple[int | None, ...]
_TEXT = re.compile(r"(?P<name>.+)\[(?P<axes>(?::, )*)(?:(?P<blocks>\d+) x )?(?P<start>\d+):(?P<stop>\d+)\]")


@dataclass(frozen=True)
class Segment:
    """Some of the entries along one axis of a tensor, such as the queries of a fused projection.

    Attributes:
        axis: Of the tensor.
        start, stop: The entries, as in a slice.
        blocks: The axis is cut into so many blocks of equal length, and the slice is taken in each: projections that
            are fused within each head have one block per head.
    """

    axis: int
    start: int
    stop: int
    blocks: int = 1

    def cut(self, tensor: Tensor) -> Tensor:
        """The segment of ``tensor``.

        Example:
            >>> Segment(0, 1, 2, blocks=2).cut(torch.arange(6)).tolist()
            [1, 4]
        """
        return self._view(tensor.contiguous()).flatten(self.axis, self.axis + 1)

    def paste(self, tensor: Tensor, part: Tensor) -> Tensor:
        """A copy of ``tensor`` with ``part`` in place of the segment."""
        pasted = tensor.clone(memory_format=torch.contiguous_format)
        segment = self._view(pasted)
        segment.copy_(part.reshape(segment.shape))
        return pasted

    def _view(self, tensor: Tensor) -> Tensor:
        sizes = (*tensor.shape[: self.axis], self.blocks, -1, *tensor.shape[self.axis + 1 :])
        return tensor.view(sizes).narrow(self.axis + 1, self.start, self.stop - self.start)

    def __str__(self) -> str:
        blocks = f"{self.blocks} x " if self.blocks > 1 else ""
        return f"[{':, ' * self.axis}{blocks}{self.start}:{self.stop}]"


class Part(NamedTuple):
    """A space, a tensor, or a segment of a tensor, which is written as a slice: ``qkv.weight[0:32]``."""

    name: str
    segment: Segment | None = None

    def __str__(self) -> str:
        return f"{self.name}{self.segment or ''}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """The part that ``str`` wrote.

        Example:
            >>> Part.parse("qkv.weight[:, 4 x 0:8]").segment
            Segment(axis=1, start=0, stop=8, blocks=4)
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            return cls(text)
        axis, blocks = len(match["axes"]) // 3, int(match["blocks"] or 1)
        return cls(match["name"], Segment(axis, int(match["start"]), int(match["stop"]), blocks))


@dataclass(frozen=True)
class SpacePair:
    """A space of the source, a space of the target that does the same, and the share of the source that goes there."""

    source: str
    target: str
    share: float = 1.0

    @property
    def parts(self) -> tuple[Part, Part]:
        return Part(self.source), Part(self.target)


@dataclass(frozen=True)
class TensorPair:
    """A tensor of the source and a tensor of the target that does the same.

    Attributes:
        source, target: Their names. A source that is tied to another tensor can have its own partner.
        share: Of the squared norm of the source's update, how much goes to this target. The shares of each source
            sum to 1.
        source_segment, target_segment: Which part of them, where they are fused differently; None: all.
        order: For each axis of the target the axis of the source that belongs to it (None: a new axis of length 1).
            None where the axes correspond one by one.
    """

    source: str
    target: str
    share: float = 1.0
    source_segment: Segment | None = None
    target_segment: Segment | None = None
    order: Order | None = None

    @classmethod
    def of(cls, source: Part, target: Part, share: float = 1.0, order: Order | None = None) -> TensorPair:
        return cls(source.name, target.name, share, source.segment, target.segment, order)

    @property
    def parts(self) -> tuple[Part, Part]:
        return Part(self.source, self.source_segment), Part(self.target, self.target_segment)

    def cut(self, tensor: Tensor) -> Tensor:
        """What goes to the target of the source ``tensor``, with the axes in the target's order."""
        part = tensor if self.source_segment is None else self.source_segment.cut(tensor)
        if self.order is None:
            return part
        kept = [axis for axis in self.order if axis is not None]
        single = [axis for axis in range(part.ndim) if axis not in kept]
        sizes = [1 if axis is None else part.shape[axis] for axis in self.order]
        return part.permute(*kept, *single).reshape(sizes)

    def paste(self, tensor: Tensor, part: Tensor) -> Tensor:
        """A copy of the target ``tensor`` with ``part`` in its place."""
        return part.clone() if self.target_segment is None else self.target_segment.paste(tensor, part)


@dataclass(frozen=True)
class Unmatched:
    """A space or a tensor (or a segment of one) without a partner, and why. ``kind`` is ``"space"`` or ``"tensor"``."""

    kind: str
    name: str
    reason: str
    segment: Segment | None = None

    @classmethod
    def of(cls, kind: str, part: Part, reason: str) -> Unmatched:
        return cls(kind, part.name, reason, part.segment)

    @property
    def part(self) -> Part:
        return Part(self.name, self.segment)


# ---------------------------------------------------------------------- fused tensors


def tensor_of(wiring: Wiring, name: str) -> TensorWiring:
    """The tensor of a wiring that goes by ``name``, tied names included."""
    return wiring.tensors[wiring.tied.get(name, name)]


def split(tensor: TensorWiring) -> list[tuple[Segment | None, tuple[Axis, ...]]]:
    """The segments of a fused tensor, each with what its axes are made of; one, the whole, of any other tensor."""
    fused = [(axis, cut) for axis, term in enumerate(tensor.axes) if (cut := _row(term, tensor.axes)) is not None]
    if len(fused) != 1:
        return [(None, tensor.axes)]
    axis, (row, before, after) = fused[0]
    blocks, inner = math.prod(part.size for part in before), math.prod(part.size for part in after)
    segments: list[tuple[Segment | None, tuple[Axis, ...]]] = []
    start = 0
    for place, part in enumerate(row.parts):
        stop = start + part.size
        own = Grid((*before, part, *after)) if before or after else part
        axes = (own if position == axis else term for position, term in enumerate(tensor.axes))
        beside = tuple(narrow(term, row.key, place) for term in axes)
        segments.append((Segment(axis, start * inner, stop * inner, blocks), beside))
        start = stop
    return segments


def _row(axis: Axis, axes: Sequence[Axis]) -> tuple[Row[Axis, int], tuple[Axis, ...], tuple[Axis, ...]] | None:
    """The row in which an axis lists several segments, and the factors of a grid that stand before and after it."""
    parts: tuple[Axis, ...] = axis.parts if isinstance(axis, Grid) else (axis,)
    rows = [(place, part) for place, part in enumerate(parts) if isinstance(part, Row)]
    if len(rows) != 1:
        return None
    place, row = rows[0]
    # Something that stands still beside one space, as a class token does beside patches, is no segment of its own.
    moving = [part for part in row.parts if spaces_in([part])]
    differ = any(len({narrow(term, row.key, part) for part in range(len(row.parts))}) > 1 for term in (*axes, *parts))
    return (row, parts[:place], parts[place + 1 :]) if len(moving) > 1 or differ else None


def expand(pairs: Iterable[TensorPair], source: Wiring, target: Wiring) -> list[TensorPair]:
    """The same pairs, with one per segment where both tensors are fused in the same way."""
    expanded = []
    for pair in pairs:
        whole = pair.source_segment is None and pair.target_segment is None
        segments = _fused_alike(pair, source, target) if whole else []
        expanded += [replace(pair, source_segment=ours, target_segment=theirs) for ours, theirs in segments] or [pair]
    return expanded


def merge(pairs: Iterable[TensorPair], source: Wiring, target: Wiring) -> list[TensorPair]:
    """The inverse of `expand`: one pair where all segments of two tensors correspond in their order."""
    together: dict[tuple[object, ...], list[TensorPair]] = {}
    for pair in pairs:
        together.setdefault((pair.source, pair.target, pair.share, pair.order), []).append(pair)
    merged = []
    for group in together.values():
        segments = {(pair.source_segment, pair.target_segment) for pair in group}
        whole = segments == set(_fused_alike(group[0], source, target))
        merged += [replace(group[0], source_segment=None, target_segment=None)] if whole else group
    return merged


def _fused_alike(pair: TensorPair, source: Wiring, target: Wiring) -> list[tuple[Segment | None, Segment | None]]:
    """The pairs of segments of two tensors that are fused in the same way; none of any others."""
    ours = [segment for segment, _ in split(tensor_of(source, pair.source))]
    theirs = [segment for segment, _ in split(tensor_of(target, pair.target))]
    return list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) > 1 else []


# ---------------------------------------------------------------------- orders of axes


def plain_order(pair: TensorPair, source: Wiring, target: Wiring) -> Order | None:
    """The order of the axes, None where they correspond one by one."""
    ours, theirs = tensor_of(source, pair.source).shape, tensor_of(target, pair.target).shape
    if pair.order is None or len(ours) != len(theirs):
        return pair.order
    same = (
        origin == axis or (origin is None and ours[axis] == theirs[axis] == 1) for axis, origin in enumerate(pair.order)
    )
    return None if all(same) else pair.order


def inverse_order(pair: TensorPair, source: Wiring) -> Order | None:
    if pair.order is None:
        return None
    places = {origin: axis for axis, origin in enumerate(pair.order) if origin is not None}
    return tuple(places.get(axis) for axis in range(len(tensor_of(source, pair.source).shape)))


def compose_orders(first: Order | None, second: Order | None) -> Order | None:
    if first is None or second is None:
        return first or second
    return tuple(None if middle is None else first[middle] for middle in second)
