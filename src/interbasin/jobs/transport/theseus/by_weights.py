r"""Maps from the weights of the two base networks alone: no activation is looked at.

What both networks share, their inputs and, where they mean the same, their outputs, holds the two together. Every other
pair of spaces gets the isometry :math:`M` that brings the source's weights nearest to the target's,

.. math:: \min \sum_\ell \lVert B_\ell - M_{out} A_\ell M_{in}^\top \rVert^2 ,

a space at a time: each time the one of which most is seen through tensors whose other spaces are known. That is the
start of re-basin by weights (`start` there), and where networks differ by an isometry it is the end. The sweeps of
re-basin, in which every space is fitted anew to all others, bring the weights of networks that were trained apart
nearer and their functions further apart, so there are none.

Units behind a non-linearity are assigned one to one, a stream that several layers write is turned. Where widths differ,
the narrower tensors are filled up with zeros. That leaves the problem as it is: the part of the larger isometry that
lies in both spaces is the best one between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from interbasin.activations.places import axis_factors
from interbasin.fit.matching import Dim, FreeSpace, Piece, Problem
from interbasin.jobs.rebasin.weights import start
from interbasin.jobs.transport.bases import Bases, Pair, writers_of
from interbasin.jobs.transport.theseus.carrier import Way, ways
from interbasin.jobs.transport.theseus.rules import SpaceMap
from interbasin.maps import Blocks, Identity, Map, Orthogonal
from interbasin.maps.base import Group, Role
from interbasin.wiring.axes.spaces import Axis, In, Still

# Fitted once for each pair of bases, and forgotten with it.
_FITTED: WeakKeyDictionary[Bases, dict[Pair, SpaceMap]] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Shape:
    """A pair of spaces, both filled up to the larger of the two."""

    size: int
    within: tuple[str, ...]


def maps_by_weights(bases: Bases) -> dict[Pair, SpaceMap]:
    """The map of every pair of spaces, and the identity for what the networks share."""
    if bases not in _FITTED:
        _FITTED[bases] = _fit(bases)
    return dict(_FITTED[bases])


def _fit(bases: Bases) -> dict[Pair, SpaceMap]:
    maps: dict[Pair, SpaceMap] = {}
    pairs: dict[Pair, None] = {}
    for entry in bases.correspondence.spaces:
        pair = (entry.source, entry.target)
        source, target = bases.spaces(pair)
        if bases.is_shared(pair):
            maps[pair] = SpaceMap(Identity(source.width), source.width, source.width, "the networks share it")
        elif len(source.within) == len(target.within):
            pairs |= dict.fromkeys([*zip(source.within, target.within, strict=True), pair])
    shapes = {_key(pair): _shape(bases, pair) for pair in pairs}
    free = []
    for pair in pairs:
        shape, group = shapes[_key(pair)], _group(bases, pair)
        if group is not Group.FIXED:
            blocks = math.prod(shapes[name].size for name in shape.within)
            free.append(FreeSpace(_key(pair), shape.size, shape.within, blocks, group))
    problem = Problem(list(_pieces(bases, shapes)), free, shapes)
    start(problem)
    solved = problem.maps()
    for pair in pairs:
        if _key(pair) in solved:
            source, target = bases.spaces(pair)
            full = min(source.width, target.width)
            cut = _cut(solved[_key(pair)], source.size, target.size)
            maps[pair] = SpaceMap(cut, min(full, _rank(problem, _key(pair))), full, "by the weights of both networks")
    return maps


def _key(pair: Pair) -> str:
    return " -> ".join(pair)


def _shape(bases: Bases, pair: Pair) -> _Shape:
    source, target = bases.spaces(pair)
    within = tuple(_key(each) for each in zip(source.within, target.within, strict=False))
    return _Shape(max(source.size, target.size), within)


def _group(bases: Bases, pair: Pair) -> Group:
    """Among which isometries the map of a pair is sought."""
    spaces = bases.wirings[0].spaces
    space = spaces[pair[0]]
    if space.within or any(pair[0] in other.within for other in spaces.values()):
        return FreeSpace(space.name, space.size, (), 1, space.group).isometric().group
    # Of a stream the group may be as small, because of a gain; but units of a stream have no partners of their own.
    is_stream = min(len(writers_of(wiring, name)) for wiring, name in zip(bases.wirings, pair, strict=True)) > 1
    return space.group if space.group in (Group.PERMUTATION, Group.SIGNED) and not is_stream else Group.ORTHOGONAL


# ---------------------------------------------------------------------- the weights as a problem


def _pieces(bases: Bases, shapes: dict[str, _Shape]) -> Iterator[Piece]:
    """Tensors that belong together, each axis filled up to the larger of the two."""
    own, other = (dict(network.named_parameters()) for network in (bases.source, bases.target))
    for way in ways(bases):
        pair = way.pair
        dims = _dims(bases, way, shapes)
        if dims is None or pair.source not in own or pair.target not in other:
            continue
        source, target = own[pair.source].detach().double(), other[pair.target].detach().double()
        source = pair.cut(source)
        target = target if pair.target_segment is None else pair.target_segment.cut(target)
        sizes = [[both[side] for _, both in dims] for side in (0, 1)]
        whole = [max(both) for _, both in dims]
        yield Piece(
            pair.source,
            _fill_up(source.reshape(sizes[0]), whole),
            _fill_up(target.reshape(sizes[1]), whole),
            tuple(dim for dim, _ in dims),
        )


def _dims(bases: Bases, way: Way, shapes: dict[str, _Shape]) -> list[tuple[Dim, tuple[int, int]]] | None:
    """The axes of both tensors, unfolded, with their lengths in each; None where they are not made alike."""
    dims = []
    for place, origin in enumerate(way.order):
        theirs = axis_factors(way.target_axes[place])
        ours = axis_factors(way.source_axes[origin]) if origin is not None else theirs
        if len(ours) != len(theirs):
            return None
        for our_factor, their_factor in zip(ours, theirs, strict=True):
            dim = _dim(bases, our_factor, their_factor, place, shapes)
            if dim is None:
                return None
            dims.append((dim, (our_factor.size, their_factor.size)))
    return dims


def _dim(bases: Bases, ours: Axis, theirs: Axis, home: int, shapes: dict[str, _Shape]) -> Dim | None:
    if isinstance(ours, In) and isinstance(theirs, In):
        name = _key((ours.space, theirs.space))
        if name in shapes:
            return Dim(name, ours.role, home) if ours.role is theirs.role else None
        shared = bases.is_shared((ours.space, theirs.space))
        return Dim(None, Role.WRITE, home) if shared else None
    still = isinstance(ours, Still) and isinstance(theirs, Still) and ours.size == theirs.size
    return Dim(None, Role.WRITE, home) if still else None


def _fill_up(tensor: Tensor, sizes: list[int]) -> Tensor:
    missing = [(0, size - own) for size, own in zip(sizes, tensor.shape, strict=True)]
    return pad(tensor, [end for both in reversed(missing) for end in both])


# ---------------------------------------------------------------------- the maps


def _rank(problem: Problem, name: str) -> int:
    """How many directions of a space the weights show; units that are assigned need not be shown in all of them."""
    space, cross = problem.free[name], problem.correlations(name).without_gains
    if cross is None:
        return 0
    assigned = space.group in (Group.PERMUTATION, Group.SIGNED)
    return space.blocks * space.size if assigned else int(torch.linalg.matrix_rank(cross).sum())


def _cut(whole: Map, source: int, target: int) -> Map:
    """The part of a map between filled-up spaces that lies in both."""
    if isinstance(whole, Blocks):
        return Blocks([_cut(part, source, target) for part in whole.maps])
    if whole.source_width == source == target:
        return whole
    return Orthogonal._trusted(whole.matrix[:target, :source].double(), min(source, target))
