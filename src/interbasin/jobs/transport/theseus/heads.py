"""Maps that keep to heads: heads are assigned by what they have in common, and each has maps of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment

from interbasin.activations.places import axis_factors
from interbasin.correspondence.pairs import Segment, expand
from interbasin.errors import WiringError
from interbasin.fit.matching import Dim, FreeSpace, Piece, Problem
from interbasin.jobs.rebasin.weights import start
from interbasin.jobs.transport.bases import Bases, Pair, is_observable
from interbasin.jobs.transport.theseus.rules import MapFitter, SecondMoments, SpaceMap
from interbasin.maps import Blocks, Permutation
from interbasin.maps.base import Group, Role
from interbasin.wiring.axes.spaces import Axis, In, Row, spaces_in


@dataclass(frozen=True)
class _HeadPlace:
    """Where modules of both networks put out something of the same heads: the columns, and what they are made of."""

    pair: Pair
    columns: tuple[slice, slice]
    factors: tuple[Axis, ...]


@dataclass(frozen=True)
class HeadCluster:
    """Spaces that are divided into the same heads, which therefore change places together.

    Attributes:
        heads: The spaces that count the heads.
        pairs: The spaces inside.
        places: Where heads that come in groups (rotary positions, shared keys) are shown; empty for plain ones.
    """

    heads: Pair
    pairs: tuple[Pair, ...]
    places: tuple[_HeadPlace, ...] = ()

    @property
    def pairs_to_record(self) -> list[Pair]:
        """What has to be recorded: the spaces inside, or where modules put out heads that come in groups."""
        return list(dict.fromkeys(place.pair for place in self.places)) if self.places else list(self.pairs)

    @classmethod
    def of(cls, bases: Bases, heads: Pair, pairs: list[Pair]) -> HeadCluster:
        """The cluster, plain where a head is channels that any isometry may mix and that some activation shows."""
        spaces = [bases.spaces(pair) for pair in pairs]
        are_plain = all(
            len(space.within) == 1 and space.group in (Group.INVERTIBLE, Group.ORTHOGONAL)
            for both in spaces
            for space in both
        )
        are_observable = all(
            is_observable(wiring, name) for pair in pairs for name, wiring in zip(pair, bases.wirings, strict=True)
        )
        if are_plain and are_observable:
            return cls(heads, tuple(pairs))
        return cls(heads, tuple(pairs), tuple(_head_places(bases, {pair[0] for pair in pairs})))

    def fit(
        self, bases: Bases, second_moments: Mapping[Pair, SecondMoments], fitter: MapFitter
    ) -> dict[Pair, SpaceMap]:
        """Heads are assigned by what they have in common, then each pair of heads has maps of its own."""
        return self.fit_groups(bases, second_moments) if self.places else self._fit_plain(bases, second_moments, fitter)

    def _fit_plain(
        self, bases: Bases, second_moments: Mapping[Pair, SecondMoments], fitter: MapFitter
    ) -> dict[Pair, SpaceMap]:
        blocks: dict[Pair, list[list[SecondMoments]]] = {}
        scores = torch.zeros(1)
        for pair in self.pairs:
            source, target = bases.spaces(pair)
            blocks[pair] = [
                [
                    second_moments[pair].block(_block(i, target.size), _block(j, source.size))
                    for j in range(source.blocks)
                ]
                for i in range(target.blocks)
            ]
            scores = scores + torch.tensor([[_likeness(block) for block in row] for row in blocks[pair]])
        order = linear_sum_assignment(scores.numpy(), maximize=True)[1].tolist()
        maps = {
            pair: _join_heads([fitter.fit(table[i][j]) for i, j in enumerate(order)], order)
            for pair, table in blocks.items()
        }
        count = len(order)
        return {self.heads: SpaceMap(Permutation(order), count, count, "heads by what they have in common"), **maps}

    def fit_groups(self, bases: Bases, second_moments: Mapping[Pair, SecondMoments]) -> dict[Pair, SpaceMap]:
        """Isometries inside the groups of the wiring, as in re-basin by activations."""
        spaces = bases.wirings[0].spaces
        partners = {self.heads[0]: self.heads[1]}
        for pair in self.pairs:
            source, target = bases.spaces(pair)
            if source.size != target.size:
                raise WiringError(
                    f"Heads of {pair[0]!r} have {source.size} units that move together and those of {pair[1]!r} "
                    f"{target.size}, so that they cannot be matched one to one; take heads='free'."
                )
            partners |= dict(zip((*source.within, pair[0]), (*target.within, pair[1]), strict=True))
        free = [
            FreeSpace(name, spaces[name].size, spaces[name].within, spaces[name].blocks, spaces[name].group).isometric()
            for name in partners
            if not spaces[name].is_fixed
        ]
        pieces = []
        for place in self.places:
            cross = second_moments[place.pair].cross[place.columns[1], place.columns[0]]
            cross = cross / (float(cross.abs().max()) or 1.0)
            sizes = [factor.size for factor in place.factors]
            dims = tuple(
                Dim(factor.space, factor.role, 0) if isinstance(factor, In) else Dim(None, Role.WRITE, 0)
                for factor in place.factors
            )
            width = cross.shape[1]
            pieces.append(
                Piece(
                    place.pair[0],
                    torch.eye(width, dtype=torch.float64).reshape(*sizes, width),
                    cross.double().reshape(*sizes, width),
                    (*dims, Dim(None, Role.WRITE, 1)),
                )
            )
        problem = Problem(pieces, free, spaces)
        start(problem)
        return {
            (name, partners[name]): SpaceMap(
                group_map, group_map.rank, group_map.source_width, "inside the groups of its heads"
            )
            for name, group_map in problem.maps().items()
        }


def _head_places(bases: Bases, names: set[str]) -> Iterator[_HeadPlace]:
    """The outputs of modules that write some spaces, cut to the segment that lies in them."""
    source, target = bases.wirings
    for pair in expand(bases.correspondence.tensors, source, target):
        places = f"{pair.source.rpartition('.')[0]}:output", f"{pair.target.rpartition('.')[0]}:output"
        axes = source.activations.get(f"{places[0]}:0"), target.activations.get(f"{places[1]}:0")
        if not pair.source.endswith("weight") or axes[0] is None or axes[1] is None:
            continue
        ours, factors = _segment(axes[0][-1], pair.source_segment)
        theirs, others = _segment(axes[1][-1], pair.target_segment)
        if names & set(spaces_in(factors)) and len(factors) == len(others):
            yield _HeadPlace(places, (ours, theirs), factors)


def _segment(axis: Axis, segment: Segment | None) -> tuple[slice, tuple[Axis, ...]]:
    """The columns of a segment along an axis, and the factors that it is made of."""
    first = 0
    for part in axis.parts if isinstance(axis, Row) and segment is not None else ():
        if segment is not None and first == segment.start:
            return slice(first, first + part.size), axis_factors(part)
        first += part.size
    return slice(0, axis.size), axis_factors(axis)


def _block(number: int, size: int) -> slice:
    return slice(number * size, (number + 1) * size)


def _likeness(second_moments: SecondMoments) -> float:
    """The nuclear norm of what two heads have in common, divided by the most that it could be."""
    energy = math.prod(second_moments.sizes)
    return float(torch.linalg.matrix_norm(second_moments.cross, "nuc")) / energy if energy else 0.0


def _join_heads(maps: list[SpaceMap], order: list[int]) -> SpaceMap:
    """The maps of all heads as one, in the order of the source's heads, as an alignment holds them."""
    by_source = [maps[order.index(head)] for head in range(len(order))]
    reads = []
    if any(head_map.reads is not None for head_map in maps):  # a head whose factor happens to be 1 has none of its own
        reads = [head_map.map.dual() if head_map.reads is None else head_map.reads for head_map in by_source]
    return SpaceMap(
        Blocks([head_map.map for head_map in by_source]),
        sum(head_map.rank for head_map in maps),
        sum(head_map.full for head_map in maps),
        "head by head",
        Blocks(reads) if reads else None,
        Blocks([head_map.observed_map for head_map in by_source])
        if any(head_map.observed is not None for head_map in maps)
        else None,
        sum(head_map.scale for head_map in maps) / len(maps),
    )
