r"""Statistics of two spaces -> the map that carries an update from one into the other.

With :math:`H_A, H_B` the activations of the two base networks on the same inputs, Theseus [rinaldi:26] takes
:math:`T = \mathrm{polar}(H_A^\top H_B)`, which is `carry` with ``M = T.mT``. A space is recorded once, however many
modules read it, and behind its non-linearity: before it, activations are linear in what the layer reads, so that
their rank is at most that width, and the rest of the map would stay arbitrary for any number of samples.

The other rules are the seed's ablations: least squares for each space alone (``linear``), and the coupled least squares
of its equation 28 (``pinv``), where both sides are multiplied by :math:`(H_B^\top H_B)^\dagger H_B^\top H_A`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interbasin.activations import Tokens, record
from interbasin.activations.pairing import MaskOf
from interbasin.activations.places import axis_factors
from interbasin.batches import Progress, WithoutLabels
from interbasin.correspondence.pairs import Segment, expand
from interbasin.errors import WiringError
from interbasin.fit.matching import Dim, FreeSpace, Piece, Problem
from interbasin.fit.polar import polar
from interbasin.jobs.rebasin.weights import start
from interbasin.jobs.transport.bases import Bases, Pair, is_observable, writers_of
from interbasin.maps import Blocks, Identity, Linear, Map, Orthogonal, Permutation
from interbasin.maps.base import Group, Role
from interbasin.statistics import PairedMoments
from interbasin.wiring import Wiring
from interbasin.wiring.axes.spaces import Axis, In, Row, spaces_in

Unobserved = Literal["complete", "drop"]
# The ridge of the regularised rules, as a share of the mean eigenvalue of the Gram matrix.
RIDGE = 1e-2


@dataclass(frozen=True, eq=False)
class SpaceMap:
    """The map of a pair of spaces, and how far what was seen supports it.

    Attributes:
        map: For axes that write the space.
        reads: For axes that read it, where that is not the dual of ``map``.
        observed: The same map without the directions in which nothing was seen; ``map`` itself where all were.
        rank: How many directions were seen, of ``full``.
        scale: The factor beside the isometry.
        why: How it was found, as a clause.
    """

    map: Map
    rank: int
    full: int
    why: str
    reads: Map | None = None
    observed: Map | None = None
    scale: float = 1.0

    @property
    def seen(self) -> Map:
        return self.map if self.observed is None else self.observed

    @property
    def unscaled(self) -> Map:
        """The isometry beside the factor, of a space without heads."""
        if self.scale == 1.0:
            return self.map
        return Orthogonal._trusted(
            self.map.matrix / self.scale, self.full if self.map is not self.observed else self.rank
        )


# ---------------------------------------------------------------------- what is recorded


@dataclass(frozen=True)
class Sought:
    """The maps that are sought.

    Attributes:
        plain: Pairs of spaces without heads, each with what is recorded of it: itself, or for a stream all places
            where modules of both networks read it.
        heads: Pairs of spaces that are divided into heads, those of the same heads together.
        missing: Pairs that no activation shows, each with the reason.
    """

    plain: Mapping[Pair, tuple[Pair, ...]]
    heads: tuple[HeadCluster, ...]
    missing: Mapping[Pair, str]

    @property
    def recorded(self) -> list[Pair]:
        """What has to be recorded: spaces, and for heads that come in groups what modules put out."""
        places = [pair for places in self.plain.values() for pair in places]
        return list(dict.fromkeys([*places, *(pair for cluster in self.heads for pair in cluster.recorded)]))


def seek(bases: Bases) -> Sought:
    """Which maps two networks need."""
    carriers = {name for space in bases.wirings[0].spaces.values() for name in space.within}
    plain: dict[Pair, tuple[Pair, ...]] = {}
    inside: dict[Pair, list[Pair]] = {}
    missing: dict[Pair, str] = {}
    for entry in bases.correspondence.spaces:
        pair = (entry.source, entry.target)
        source, target = bases.spaces(pair)
        if bases.is_shared(pair) or pair[0] in carriers:
            continue
        if source.within and target.within:
            inside.setdefault((source.within[0], target.within[0]), []).append(pair)
            continue
        unseen = [
            f"no activation of the {side} shows the whole of {name!r}"
            for side, name, wiring in zip(("source", "target"), pair, bases.wirings, strict=True)
            if not is_observable(wiring, name)
        ]
        if unseen:
            missing[pair] = unseen[0]
        else:
            plain[pair] = _stream_places(bases, pair) or (pair,)
    clusters = [HeadCluster.of(bases, heads, pairs) for heads, pairs in inside.items()]
    for cluster in clusters:
        missing |= {pair: "no activation shows its heads" for pair in cluster.pairs if not cluster.recorded}
    return Sought(plain, tuple(cluster for cluster in clusters if cluster.recorded), missing)


def _stream_places(bases: Bases, pair: Pair) -> tuple[Pair, ...]:
    """Where modules that belong together read a space that several modules write.

    No single place shows a stream whole: early ones lack what later layers add, and behind a norm one direction is
    missing. All of them together do, before norms and behind them; where no gain tells which modules are norms, before
    whatever reads the stream and where recording would take it.
    """
    source, target = bases.spaces(pair)
    if min(len(writers_of(wiring, name)) for wiring, name in zip(bases.wirings, pair, strict=True)) < 2:
        return ()
    tensors = bases.correspondence.tensors
    for axes in ((source.scales, target.scales), (source.reads, target.reads)):
        names = [{axis.rpartition("[")[0] for axis in side} for side in axes]
        modules = dict.fromkeys(
            (entry.source.rpartition(".")[0], entry.target.rpartition(".")[0])
            for entry in tensors
            if entry.source in names[0] and entry.target in names[1]
        )
        places = tuple(
            (f"{a}:{side}", f"{b}:{side}")
            for a, b in modules
            for side in (("input", "output") if axes[0] is source.scales else ("input",))
            if _stands_at(bases.wirings[0], f"{a}:{side}:0", pair[0])
            and _stands_at(bases.wirings[1], f"{b}:{side}:0", pair[1])
        )
        if places:
            return places if axes[0] is source.scales else (pair, *places)
    return ()


def _stands_at(wiring: Wiring, place: str, space: str) -> bool:
    """Whether a space stands whole at a place, along the axis that recording takes for the width."""
    axes = wiring.activations.get(place, ())
    inside = [place for place, axis in enumerate(axes) if spaces_in([axis])]
    last = axes[inside[0]] if len(inside) == 1 else None
    return isinstance(last, In) and last.space == space and inside[0] in (1, len(axes) - 1)


def observe(
    bases: Bases,
    data: Any,
    pairs: Iterable[Pair],
    *,
    tokens: str | Tokens | None = None,
    mask: MaskOf = None,
    grams: bool,
    progress: Progress = None,
    state: Any = None,
) -> dict[Pair, PairedMoments]:
    """The moments of the base networks' activations in pairs of spaces (or at pairs of places).

    Rules other than `procrustes` need ``grams``.
    """
    pairs = list(pairs)
    if not pairs:
        return {}
    recorded = record(
        (bases.source, bases.target),
        WithoutLabels(data),
        pairs,
        wirings=bases.wirings if bases.source is not bases.target else (bases.wirings[0],),
        grams=grams,
        tokens=tokens,
        mask=mask,
        progress=progress,
        state=state,
    )
    return {pair: recorded.moments[pair] for pair in pairs}


# ---------------------------------------------------------------------- one space


@dataclass(frozen=True)
class Seen:
    """Second moments of two spaces, or of two blocks of them: what a rule makes a map of."""

    cross: Tensor  # (target, source)
    squares: tuple[Tensor, Tensor]  # of the units of source and target
    grams: tuple[Tensor, Tensor] | None  # of source and target, for rules that need them
    tolerance: float  # the share of the largest value below which a direction is round-off
    most: int  # the largest rank that the number of rows allows

    @classmethod
    def of(cls, moments: PairedMoments, *, centered: bool) -> Seen:
        cross = moments.cross(centered=centered)
        squares = moments.squares_source(centered=centered), moments.squares_target(centered=centered)
        grams = None
        if moments.has_grams:
            grams = moments.gram_source(centered=centered), moments.gram_target(centered=centered)
        tolerance = moments.rank_tolerance(max(cross.shape))
        return cls(cross, squares, grams, tolerance, moments.rank_bound(centered=centered))

    @classmethod
    def pooled(cls, parts: Sequence[Seen]) -> Seen:
        """What was seen of one space at several places, which count alike: each about its own means and in its size."""
        if len(parts) == 1:
            return parts[0]
        sizes = [part.sizes for part in parts]
        unit = [[1 / size if size else 0.0 for size in both] for both in sizes]
        mean = [
            sum(both[side] ** 2 for both in sizes) / len(parts) for side in (0, 1)
        ]  # sizes as they were, on average
        weights = [(a * math.sqrt(mean[0]), b * math.sqrt(mean[1])) for a, b in unit]
        return cls(
            _sum(part.cross * (a * b) for part, (a, b) in zip(parts, weights, strict=True)),
            (
                _sum(part.squares[0] * a * a for part, (a, _) in zip(parts, weights, strict=True)),
                _sum(part.squares[1] * b * b for part, (_, b) in zip(parts, weights, strict=True)),
            ),
            None
            if any(part.grams is None for part in parts)
            else (
                _sum(part.grams[0] * a * a for part, (a, _) in zip(parts, weights, strict=True) if part.grams),
                _sum(part.grams[1] * b * b for part, (_, b) in zip(parts, weights, strict=True) if part.grams),
            ),
            max(part.tolerance for part in parts),
            sum(part.most for part in parts),
        )

    def block(self, rows: slice, columns: slice) -> Seen:
        """What was seen of one block of the target and one of the source."""
        return Seen(
            self.cross[rows, columns],
            (self.squares[0][columns], self.squares[1][rows]),
            None if self.grams is None else (self.grams[0][columns, columns], self.grams[1][rows, rows]),
            self.tolerance,
            self.most,
        )

    @property
    def sizes(self) -> tuple[float, float]:
        """The root of the sum of squares, of source and target."""
        return math.sqrt(float(self.squares[0].sum())), math.sqrt(float(self.squares[1].sum()))

    @property
    def rms_ratio(self) -> float:
        """How much larger the target's activations are, per row, than the source's."""
        source, target = self.sizes
        return target / source if source > 0 and target > 0 else 1.0

    def gram(self, side: int) -> Tensor:
        assert self.grams is not None
        return self.grams[side]


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    return sum(others, first)


# What was seen -> the matrix for written axes, the one for read axes (None: the dual of the first), and the rank.
Rule = Callable[[Seen], tuple[Tensor, Tensor | None, int]]


def procrustes(seen: Seen) -> tuple[Tensor, Tensor | None, int]:
    """The isometry of largest correlation: the seed's rule. Its ``ortho`` is, as printed, the same map."""
    found = polar(seen.cross, rank_tolerance=seen.tolerance)
    return found.factor, None, min(int(found.rank), seen.most)


def linear(seen: Seen, *, ridge: float = 0.0) -> tuple[Tensor, Tensor | None, int]:
    """The least-squares map, with its dual for read axes: exact where the spaces differ by an invertible map."""
    matrix, rank = _divide(seen.cross, seen.gram(0), seen.tolerance, ridge)
    return matrix, None, rank


def linear_transposed(seen: Seen, *, ridge: float = 0.0) -> tuple[Tensor, Tensor | None, int]:
    """The least-squares map on both sides, as the seed's ``linear`` has it (its equation 30)."""
    matrix, _, rank = linear(seen, ridge=ridge)
    return matrix, matrix, rank


def linear_orthogonal(seen: Seen) -> tuple[Tensor, Tensor | None, int]:
    """The isometry nearest to the least-squares map."""
    matrix, _, rank = linear(seen)
    return polar(matrix).factor, None, rank


def pinv(seen: Seen, *, ridge: float = 0.0) -> tuple[Tensor, Tensor | None, int]:
    """The coupled least squares of the seed's equation 28."""
    matrix, rank = _divide(seen.cross.mT, seen.gram(1), seen.tolerance, ridge)
    return matrix.mT, matrix.mT, rank


def pinv_orthogonal(seen: Seen) -> tuple[Tensor, Tensor | None, int]:
    """The isometry nearest to the map of the coupled least squares."""
    matrix, _, rank = pinv(seen)
    return polar(matrix).factor, None, rank


def _divide(cross: Tensor, gram: Tensor, tolerance: float, ridge: float) -> tuple[Tensor, int]:
    """``cross @ gram^-1`` over the directions that were seen, and how many those are."""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > values[-1].clamp(min=0) * tolerance
    shrunk = values + ridge * float(values.clamp(min=0).mean())
    weights = torch.where(kept, 1 / torch.where(kept, shrunk, 1), 0)
    return ((cross @ vectors) * weights) @ vectors.mT, int(kept.sum())


def fit_maps(
    bases: Bases,
    sought: Sought,
    moments: Mapping[Pair, PairedMoments],
    rule: Rule = procrustes,
    *,
    centered: bool = True,
    unobserved: Unobserved = "complete",
    scale: bool = False,
) -> dict[Pair, SpaceMap]:
    """The map of every pair of spaces that was sought, and the identity for what the networks share.

    Args:
        bases: The networks.
        sought: Which maps.
        moments: Of what was recorded for them; with Gram matrices, unless the rule is `procrustes`.
        rule: What makes a map of what was seen.
        centered: Look at activations about their means.
        unobserved: ``"complete"``: directions that were not seen have an arbitrary partner, so that norms are kept;
            ``"drop"``: they are mapped to zero.
        scale: Multiply each map by how much larger the target's activations are. Norms are no longer kept.
    """
    maps: dict[Pair, SpaceMap] = {}
    for entry in bases.correspondence.spaces:
        if bases.is_shared(entry):
            width = bases.spaces(entry)[0].width
            maps[entry.source, entry.target] = SpaceMap(Identity(width), width, width, "the networks share it")
    how = _How(rule, unobserved, scale)
    seen = {pair: Seen.of(each, centered=centered) for pair, each in moments.items()}
    for pair, places in sought.plain.items():
        maps[pair] = how.map_of(Seen.pooled([seen[place] for place in places]))
    for cluster in sought.heads:
        maps |= cluster.fit(bases, {pair: seen[pair] for pair in cluster.recorded}, how)
    return maps


@dataclass(frozen=True)
class _How:
    """How a map is made of what was seen."""

    rule: Rule
    unobserved: Unobserved
    scale: bool

    def map_of(self, seen: Seen) -> SpaceMap:
        matrix, reads, rank = self.rule(seen)
        full = min(matrix.shape)
        # Least squares has the size of activations in it already.
        factor = seen.rms_ratio if self.scale and self.rule in _ISOMETRIC else 1.0
        observed = None
        if rank < full and self.rule is procrustes:
            observed = _as_map(_without_unseen(matrix, seen.cross, rank), factor, rank)
        whole = observed if observed is not None and self.unobserved == "drop" else None
        if whole is None:
            whole = _as_map(matrix, factor, full) if self.rule in _ISOMETRIC else Linear(matrix * factor)
        # The factor multiplies both sides: divided out of what reads a space, it would be gone again.
        read = Linear(reads * factor) if reads is not None else whole if factor != 1.0 else None
        return SpaceMap(whole, rank, full, "by what both networks show there", read, observed, factor)


_ISOMETRIC = (procrustes, linear_orthogonal, pinv_orthogonal)


def _without_unseen(factor: Tensor, cross: Tensor, rank: int) -> Tensor:
    """The isometry on the ``rank`` strongest directions alone: `polar` with ``unobserved="drop"``, without its SVD.

    The symmetric factor of the polar decomposition has the singular values for its eigenvalues.
    """
    tall = factor.shape[0] >= factor.shape[1]
    product = factor.mT @ cross if tall else cross @ factor.mT
    kept: Tensor = torch.linalg.eigh(product + product.mT).eigenvectors[:, product.shape[0] - rank :]
    return (factor @ kept) @ kept.mT if tall else kept @ (kept.mT @ factor)


def _as_map(matrix: Tensor, factor: float, rank: int) -> Map:
    return Orthogonal._trusted(matrix, rank) if factor == 1.0 else Linear(matrix * factor)


# ---------------------------------------------------------------------- heads


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
    def recorded(self) -> list[Pair]:
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
        seen = all(
            is_observable(wiring, name) for pair in pairs for name, wiring in zip(pair, bases.wirings, strict=True)
        )
        if are_plain and seen:
            return cls(heads, tuple(pairs))
        return cls(heads, tuple(pairs), tuple(_head_places(bases, {pair[0] for pair in pairs})))

    def fit(self, bases: Bases, seen: Mapping[Pair, Seen], how: _How) -> dict[Pair, SpaceMap]:
        """Heads are assigned by what they have in common, then each pair of heads has maps of its own."""
        return self.fit_groups(bases, seen) if self.places else self._fit_plain(bases, seen, how)

    def _fit_plain(self, bases: Bases, seen: Mapping[Pair, Seen], how: _How) -> dict[Pair, SpaceMap]:
        blocks: dict[Pair, list[list[Seen]]] = {}
        scores = torch.zeros(1)
        for pair in self.pairs:
            source, target = bases.spaces(pair)
            blocks[pair] = [
                [seen[pair].block(_block(i, target.size), _block(j, source.size)) for j in range(source.blocks)]
                for i in range(target.blocks)
            ]
            scores = scores + torch.tensor([[_likeness(block) for block in row] for row in blocks[pair]])
        order = linear_sum_assignment(scores.numpy(), maximize=True)[1].tolist()
        maps = {
            pair: _joined([how.map_of(table[i][j]) for i, j in enumerate(order)], order)
            for pair, table in blocks.items()
        }
        count = len(order)
        return {self.heads: SpaceMap(Permutation(order), count, count, "heads by what they have in common"), **maps}

    def fit_groups(self, bases: Bases, seen: Mapping[Pair, Seen]) -> dict[Pair, SpaceMap]:
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
            cross = seen[place.pair].cross[place.columns[1], place.columns[0]]
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
            (name, partners[name]): SpaceMap(found, found.rank, found.source_width, "inside the groups of its heads")
            for name, found in problem.maps().items()
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


def _likeness(seen: Seen) -> float:
    """The nuclear norm of what two heads have in common, divided by the most that it could be."""
    energy = math.prod(seen.sizes)
    return float(torch.linalg.matrix_norm(seen.cross, "nuc")) / energy if energy else 0.0


def _joined(maps: list[SpaceMap], order: list[int]) -> SpaceMap:
    """The maps of all heads as one, in the order of the source's heads, as an alignment holds them."""
    by_source = [maps[order.index(head)] for head in range(len(order))]
    reads = []
    if any(found.reads is not None for found in maps):  # a head whose factor happens to be 1 has none of its own
        reads = [found.map.dual() if found.reads is None else found.reads for found in by_source]
    return SpaceMap(
        Blocks([found.map for found in by_source]),
        sum(found.rank for found in maps),
        sum(found.full for found in maps),
        "head by head",
        Blocks(reads) if reads else None,
        Blocks([found.seen for found in by_source]) if any(found.observed is not None for found in maps) else None,
        sum(found.scale for found in maps) / len(maps),
    )
