r"""Theseus as printed: one pair of maps for each linear module, from what goes into it and what comes out of it.

For a weight :math:`\tau_A` (out, in) of two modules that belong together, with :math:`H_{in}, H_{out}` what the base
networks give the modules and get from them [rinaldi:26, algorithm 1],

.. math:: \tau_B = T_{out}^\top \tau_A T_{in}, \quad T = \mathrm{polar}(H_A^\top H_B) .

Maps are as wide as the module, so that those of queries and keys mix heads; of fused projections each has its own. What
a linear layer puts out is linear in what it reads: its rank is at most the width it reads, so that a part of
:math:`T_{out}` of a widening layer stays arbitrary for any number of inputs. Where the networks share what a module
reads or writes (pixels, tokens, common outputs), the map is the identity. Norms, convolutions, positions and whatever
else is no linear module is not moved, and listed so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from interbasin.checkpoints.lora import Factors
from interbasin.correspondence.pairs import Segment
from interbasin.fit.polar import polar
from interbasin.jobs.transport.bases import Bases, Pair
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.theseus.carrier import Carriage, Way, ways
from interbasin.jobs.transport.theseus.maps import observe
from interbasin.jobs.transport.theseus.pieces import change_pieces
from interbasin.jobs.transport.theseus.rules import SecondMoments
from interbasin.jobs.transport.updates.adapter import Kind, kinds_of
from interbasin.wiring.axes.spaces import Axis, spaces_in

_NO_LINEAR = "it belongs to no linear layer or embedding that is called as a module, and the paper moves nothing else"


def theseus_by_module(task: Task) -> Transported:
    """The update through the isometries of each module's inputs and outputs."""
    options = task.options
    places = list(places_of(task.bases))
    task.report("recording what modules read and write")
    moments = observe(task.bases, task.data, places, tokens=options.tokens, mask=options.mask, grams=False)
    second_moments = {pair: SecondMoments.of(each, centered=options.centered) for pair, each in moments.items()}
    carried = carry_by_module(task, second_moments)
    return Transported(carried.update, carried.moved)


def carry_by_module(task: Task, second_moments: Mapping[Pair, SecondMoments]) -> Carriage:
    """The update through the maps of each module, from the moments at ``"module:input"`` and ``"module:output"``."""
    maps = ModuleMaps(task.bases, second_moments, task.options)
    return change_pieces(task.bases, task.update, maps.change, maps.change_factors, label="the carried update")


def places_of(bases: Bases, sides: Iterable[str] = ("input", "output")) -> Iterator[Pair]:
    """Where the modules that belong together read and write, except for what the networks share."""
    sides, layers = list(sides), _Layers(bases)
    place_pairs: dict[Pair, None] = {}
    for way in ways(bases):
        for side, (ours, theirs) in (layers.ends(way) or {}).items():
            places = layers.places(way, side)
            if side in sides and places is not None and not layers.are_shared(ours, theirs):
                place_pairs[places] = None
    return iter(place_pairs)


@dataclass(frozen=True)
class _Layers:
    """The linear layers and embeddings of two networks: the axes of their weights and where they are shown."""

    bases: Bases

    @cached_property
    def kinds(self) -> tuple[dict[str, Kind], dict[str, Kind]]:
        return kinds_of(self.bases.source), kinds_of(self.bases.target)

    def is_upright(self, name: str, side: int) -> bool:
        """Whether a weight is stored (out, in)."""
        return self.kinds[side].get(name) == "linear"

    def ends(self, way: Way) -> dict[str, tuple[Axis, Axis]] | None:
        """The axes of source and target along which a module reads and writes; None for other tensors."""
        name, source = way.pair.target, way.pair.source
        weights = f"{source.rpartition('.')[0]}.weight", f"{name.rpartition('.')[0]}.weight"
        if any(kinds.get(weight) in (None, "convolution") for kinds, weight in zip(self.kinds, weights, strict=True)):
            return None
        if name.endswith(".bias"):
            return {"output": (way.source_axes[0], way.target_axes[0])}
        if name != weights[1] or len(way.target_axes) != 2:
            return None
        out, into = (0, 1) if self.is_upright(name, 1) else (1, 0)
        origin = way.order
        if origin[out] is None or origin[into] is None:
            return None
        ours = way.source_axes[origin[out] or 0], way.source_axes[origin[into] or 0]
        return {"output": (ours[0], way.target_axes[out]), "input": (ours[1], way.target_axes[into])}

    def places(self, way: Way, side: str) -> Pair | None:
        """Where both modules show what they read or write for each input; None if one of them does not.

        Some are not called as modules, and positions are looked up once for all inputs of a batch.
        """
        modules = way.pair.source.rpartition(".")[0], way.pair.target.rpartition(".")[0]
        pair = f"{modules[0]}:{side}", f"{modules[1]}:{side}"
        # A flattened wiring forgets where spaces that are fixed stand.
        for place, wiring in zip(pair, self.bases.with_heads.wirings, strict=True):
            axes = wiring.activations.get(f"{place}:0")
            if not axes or (axes[0].size == 1 and self.inputs > 1):
                return None
        return pair

    @cached_property
    def inputs(self) -> int:
        """How many inputs the networks were traced with, more than one if anything has more rows."""
        return max((axes[0].size for axes in self.bases.with_heads.wirings[0].activations.values() if axes), default=1)

    def are_shared(self, ours: Axis, theirs: Axis) -> bool:
        """Whether an axis means the same in both networks: inputs, tokens, shared outputs."""
        names = spaces_in([ours]), spaces_in([theirs])
        if ours.size != theirs.size or len(names[0]) != len(names[1]):
            return False
        return all(self.bases.is_shared(pair) for pair in zip(*names, strict=True))


class ModuleMaps:
    """The maps of each module, from the moments of what it reads and writes, as a rule for `change_pieces`."""

    def __init__(self, bases: Bases, second_moments: Mapping[Pair, SecondMoments], options: Options) -> None:
        self.layers = _Layers(bases)
        self.second_moments = second_moments
        self.options = options
        self._matrices: dict[tuple[Pair, Segment | None, Segment | None], Tensor] = {}

    def change(self, piece: Tensor, way: Way) -> tuple[Tensor, str] | str:
        ends = self.layers.ends(way)
        if ends is None:
            return _NO_LINEAR
        maps = {side: self._map(way, side, axes) for side, axes in ends.items()}
        for side_map in maps.values():
            if isinstance(side_map, str):
                return side_map
        upright = self.layers.is_upright(way.pair.target, 1) or piece.ndim < 2
        moved = piece.double() if upright else piece.double().mT
        for side, side_map in maps.items():
            if isinstance(side_map, Tensor):
                moved = side_map @ moved if side == "output" else moved @ side_map.mT
        return (moved if upright else moved.mT).to(piece.dtype), self._describe(maps)

    def change_factors(self, factors: Factors, way: Way) -> tuple[Factors, str] | None:
        ends = self.layers.ends(way)
        maps = {side: self._map(way, side, axes) for side, axes in (ends or {}).items()}
        if "input" not in maps or any(isinstance(side_map, str) for side_map in maps.values()):
            return None
        a, b = factors.a, factors.b
        into, out = maps["input"], maps["output"]
        a = (a.double() @ into.mT).to(a.dtype) if isinstance(into, Tensor) else a
        b = (out @ b.double()).to(b.dtype) if isinstance(out, Tensor) else b
        return Factors(a, b), self._describe(maps)

    def _describe(self, maps: Mapping[str, object]) -> str:
        through = [f"its {side}" for side, side_map in maps.items() if side_map is not None]
        return f"through the maps of {' and '.join(through)}" if through else "the networks share both of its sides"

    def _map(self, way: Way, side: str, axes: tuple[Axis, Axis]) -> Tensor | str | None:
        """The matrix (target, source) for one side of a module; None for the identity; a reason if there is none."""
        if self.layers.are_shared(*axes):
            return None
        places = self.layers.places(way, side)
        if places is None or places not in self.second_moments:
            return f"what its module {'reads' if side == 'input' else 'puts out'} is not shown for each input"
        segments = self._segment(way, side, 0), self._segment(way, side, 1)
        if (places, *segments) not in self._matrices:
            second_moments = _cut(self.second_moments[places], *segments)
            if second_moments.cross.shape != (axes[1].size, axes[0].size):
                return f"what its module {'reads' if side == 'input' else 'puts out'} is not as wide as the weight"
            decomposition = polar(
                second_moments.cross, rank_tolerance=second_moments.tolerance, unobserved=self.options.unobserved
            )
            scale = second_moments.rms_ratio if self.options.scale == "rms" else 1.0
            self._matrices[places, *segments] = scale * decomposition.factor.double()
        return self._matrices[places, *segments]

    def _segment(self, way: Way, side: str, network: int) -> Segment | None:
        """The columns of a module's input or output that belong to a segment of its weight."""
        segment = (way.pair.source_segment, way.pair.target_segment)[network]
        name = (way.pair.source, way.pair.target)[network]
        out = 0 if name.endswith(".bias") or self.layers.is_upright(name, network) else 1
        if segment is None or (segment.axis == out) != (side == "output"):
            return None
        return replace(segment, axis=0)


def _cut(second_moments: SecondMoments, source: Segment | None, target: Segment | None) -> SecondMoments:
    """The moments of a segment of each of two places."""
    if source is None and target is None:
        return second_moments
    columns, rows = (
        torch.arange(width) if segment is None else segment.cut(torch.arange(width))
        for segment, width in ((source, second_moments.cross.shape[1]), (target, second_moments.cross.shape[0]))
    )
    return replace(
        second_moments,
        cross=second_moments.cross[rows][:, columns],
        squares=(second_moments.squares[0][columns], second_moments.squares[1][rows]),
        grams=None,
    )
