"""What layers of a regression aim at: rows of tuned A, in the coordinates of the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.fit.polar import polar
from interbasin.jobs.transport.bases import Bases, Pair, is_observable
from interbasin.jobs.transport.regression.layers import Layer
from interbasin.jobs.transport.theseus.maps import observe, seek
from interbasin.jobs.transport.theseus.rules import SecondMoments
from interbasin.maps.base import Group
from interbasin.statistics import PairedMoments
from interbasin.wiring.axes.spaces import Grid, Reason, Still
from interbasin.wiring.mover import Mover

if TYPE_CHECKING:
    from interbasin.jobs.transport.regression.sequence import Recipe


@dataclass(frozen=True, eq=False)
class Goal:
    """Rows of tuned A -> rows that a layer is to write.

    Attributes:
        function: Rows of tuned A -> the same in the target's coordinates.
        width: Of the rows that the layer writes.
        kept_columns: Those that aim at the target's own base activations instead; None for none.
    """

    function: Callable[[Tensor], Tensor]
    width: int
    kept_columns: Tensor | None = None

    def __call__(self, rows: Tensor, is_task: bool) -> Tensor:
        """Of task inputs tuned A's rows in the target's coordinates; generic ones show the target's own."""
        return self.function(rows) if is_task else rows


def find_goals(
    bases: Bases,
    layers: Sequence[Layer],
    data: Any,
    recipe: Recipe,
    centered: bool,
    tokens: Tokens | None,
    mask: MaskOf,
    keeps_target: bool = False,
) -> dict[Layer, Goal]:
    """What each layer aims at, from the activations of the base networks on the data.

    With ``keeps_target`` generic inputs aim at the target's own activations.
    """
    moments = observe(bases, data, _pairs_to_observe(bases, layers), tokens=tokens, mask=mask, grams=False)
    isometries = _fit_stream_isometries(layers, moments, centered) if recipe.stream == "shared" else {}
    by_head = [layer for layer in layers if recipe.attention != "full" or layer.aim not in ("query", "key")]
    grouped = {pair[1] for cluster in seek(bases).heads if cluster.places for pair in cluster.pairs}
    plain = [layer for layer in by_head if layer.spaces[1] not in grouped]
    head_goals = _find_head_goals(bases, plain, moments, centered)
    head_goals |= _find_group_goals(bases, by_head, moments, centered)
    goals = {}
    for layer in layers:
        if layer.is_shared(bases):
            goals[layer] = Goal(lambda rows: rows, bases.wirings[1].spaces[layer.spaces[1]].width)
        elif layer in head_goals:
            goals[layer] = head_goals[layer]
        elif layer.aim == "hidden" and recipe.hidden == "units" and layer.spaces in moments:
            parts = [moments[space, layer.spaces[1]] for space, _ in layer.earlier]
            is_signed = bases.wirings[1].spaces[layer.spaces[1]].group is Group.SIGNED
            goals[layer] = _unit_goal(
                [*parts, moments[layer.spaces]], centered, keeps_target=keeps_target, is_signed=is_signed
            )
        else:
            goals[layer] = _isometry_goal(layer, moments[layer.at], isometries.get(layer.spaces), centered)
    return goals


def _pairs_to_observe(bases: Bases, layers: Sequence[Layer]) -> dict[Pair, None]:
    """The pairs of spaces and of places whose moments goals are made of."""
    pairs: dict[Pair, None] = {}
    for layer in layers:
        if layer.aim == "hidden" and all(map(is_observable, bases.wirings, layer.spaces)):
            pairs[layer.spaces] = None
        if not layer.is_shared(bases) and all(layer.at):
            pairs[layer.at] = None
    return pairs | dict.fromkeys((space, layer.spaces[1]) for layer in layers for space, _ in layer.earlier)


# ---------------------------------------------------------------------- isometries of whole spaces


def _fit_stream_isometries(
    layers: Sequence[Layer], moments: Mapping[Pair, PairedMoments], centered: bool
) -> dict[Pair, Tensor]:
    """One isometry for each pair of spaces, from all places where layers write it; places count alike."""
    crosses: dict[Pair, Tensor] = {}
    for layer in layers:
        if layer.aim in ("stream", "own", "taken") and all(layer.spaces) and layer.at in moments:
            cross = _normalised_cross(layer, moments[layer.at], centered)
            crosses[layer.spaces] = crosses[layer.spaces] + cross if layer.spaces in crosses else cross
    return {spaces: polar(cross).factor for spaces, cross in crosses.items()}


def _normalised_cross(layer: Layer, moments: PairedMoments, centered: bool) -> Tensor:
    energies = _energies(layer, moments, centered)
    return _cut_cross(moments.cross(centered=centered), layer) / (math.sqrt(energies[0] * energies[1]) or 1.0)


def _isometry_goal(layer: Layer, moments: PairedMoments, isometry: Tensor | None, centered: bool) -> Goal:
    """``mean_B + s (rows - mean_A) T``; with the Procrustes map of these moments for T where no isometry is given."""
    if isometry is None:
        isometry = polar(_cut_cross(moments.cross(centered=centered), layer)).factor
    matrix = _size_ratio(*_energies(layer, moments, centered)) * isometry.double()
    mean_source, mean_target = _means(layer, moments)
    return Goal(lambda rows: mean_target + (rows - mean_source) @ matrix.mT, len(mean_target))


def _matrix_goal(matrix: Tensor) -> Goal:
    return Goal(lambda rows: rows @ matrix.mT, len(matrix))


def _means(layer: Layer, moments: PairedMoments) -> tuple[Tensor, Tensor]:
    """The mean rows where a layer aims, of source and target."""
    return (
        _cut_columns(moments.mean_source, layer.columns[0]).double(),
        _cut_columns(moments.mean_target, layer.columns[1]).double(),
    )


def _squares(layer: Layer, moments: PairedMoments, centered: bool) -> tuple[Tensor, Tensor]:
    """The sums of squares of every unit where a layer aims, of source and target."""
    return (
        _cut_columns(moments.squares_source(centered=centered), layer.columns[0]),
        _cut_columns(moments.squares_target(centered=centered), layer.columns[1]),
    )


def _energies(layer: Layer, moments: PairedMoments, centered: bool) -> tuple[float, float]:
    """The sums of squares where a layer aims, of source and target."""
    source, target = _squares(layer, moments, centered)
    return float(source.sum()), float(target.sum())


def _size_ratio(source_energy: float, target_energy: float) -> float:
    """How much larger the target's activations are than the source's."""
    return math.sqrt(target_energy / source_energy) if min(source_energy, target_energy) > 0 else 1.0


def _cut_cross(cross: Tensor, layer: Layer) -> Tensor:
    return cross[layer.columns[1] or slice(None), layer.columns[0] or slice(None)]


def _cut_columns(values: Tensor, columns: slice | None) -> Tensor:
    return values if columns is None else values[columns]


# ---------------------------------------------------------------------- hidden units, one to one


def _unit_goal(moments: Sequence[PairedMoments], centered: bool, *, keeps_target: bool, is_signed: bool) -> Goal:
    """Units one to one, by the correlation of their activations: their goal is their partner's value.

    Where several layers of the source lead to one, their units stand side by side. Units of the target that are left
    over copy the unit most like them or, where the target is to keep what it knows, aim at what they were. Behind an
    odd function a partner may have the other sign (``is_signed``).
    """
    correlation = torch.cat([_correlation(each, centered) for each in moments], dim=1)
    likeness = correlation.abs() if is_signed else correlation
    partners, matched_units = _match(likeness)
    width = moments[0].target_width
    signs = torch.ones(width, dtype=torch.float64)
    if is_signed:
        signs = torch.where(correlation[torch.arange(width), partners] < 0, -signs, signs)
    is_left_over = torch.ones(width, dtype=torch.bool)
    is_left_over[matched_units] = False
    kept_columns = is_left_over.nonzero().flatten() if keeps_target and len(matched_units) < width else None
    return Goal(lambda rows: signs.to(rows) * rows[..., partners], width, kept_columns)


def _correlation(moments: PairedMoments, centered: bool) -> Tensor:
    deviations = [squares(centered=centered).sqrt() for squares in (moments.squares_target, moments.squares_source)]
    safe = [torch.where(each > 0, each, torch.inf) for each in deviations]
    return moments.cross(centered=centered) / safe[0][:, None] / safe[1]


def _match(scores: Tensor) -> tuple[Tensor, Tensor]:
    """For every row its column, by the best assignment; rows that are left over take the column of their largest score.

    The second tensor holds the rows that were assigned.
    """
    rows, columns = (torch.from_numpy(each).long() for each in linear_sum_assignment(scores.numpy(), maximize=True))
    partners = scores.argmax(1)
    partners[rows] = columns
    return partners, rows


# ---------------------------------------------------------------------- heads that come in groups


def _find_group_goals(
    bases: Bases, layers: Sequence[Layer], moments: Mapping[Pair, PairedMoments], centered: bool
) -> dict[Layer, Goal]:
    """Goals of heads that come in groups (rotary positions, shared keys), by the maps that their wiring allows.

    Nothing else leaves the products of queries and keys tuned A's at every distance. Networks whose heads are not alike
    have no such maps, and get no goals here.
    """
    goals: dict[Layer, Goal] = {}
    for cluster in seek(bases).heads:
        both = [bases.spaces(pair) for pair in (cluster.heads, *cluster.pairs)]
        if not cluster.places or any((a.size, a.blocks) != (b.size, b.blocks) for a, b in both):
            continue
        if not all(pair in moments for pair in cluster.pairs_to_record):
            continue
        second_moments = {pair: SecondMoments.of(moments[pair], centered=centered) for pair in cluster.pairs_to_record}
        maps = {pair[0]: space_map.map for pair, space_map in cluster.fit_groups(bases, second_moments).items()}
        mover = Mover(bases.wirings[0].spaces, maps)
        for place in cluster.places:
            axis = place.factors[0] if len(place.factors) == 1 else Grid(place.factors)
            matrix = mover.move(torch.eye(axis.size, dtype=torch.float64), (Still(axis.size, _ROWS), axis)).mT
            for layer in layers:
                if layer.at == place.pair and (layer.columns[0] or place.columns[0]) == place.columns[0]:
                    if layer.aim == "value":
                        goals[layer] = _isometry_goal(layer, moments[place.pair], matrix, centered)
                    else:
                        goals[layer] = _matrix_goal(matrix)
    return goals


_ROWS = Reason("structure", "rows lie along it")


# ---------------------------------------------------------------------- other heads, one to one


@dataclass(frozen=True)
class _HeadPair:
    """Second moments of a head of the target and a head of the source: cross-products, and sums of squares."""

    cross: Tensor
    source_energy: float
    target_energy: float

    @property
    def normalised_cross(self) -> Tensor:
        return self.cross / self._norm

    @property
    def likeness(self) -> float:
        """The nuclear norm of the cross-products, divided by the most that it could be."""
        return float(torch.linalg.matrix_norm(self.cross, "nuc") / self._norm)

    @property
    def size_ratio(self) -> float:
        return _size_ratio(self.source_energy, self.target_energy)

    @property
    def _norm(self) -> float:
        return math.sqrt(self.source_energy * self.target_energy) or 1.0


def _find_head_goals(
    bases: Bases, layers: Sequence[Layer], moments: Mapping[Pair, PairedMoments], centered: bool
) -> dict[Layer, Goal]:
    """Goals of queries, keys and values, and of what attention adds for each head, head by head."""
    clusters: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.aim in ("query", "key", "value"):
            clusters.setdefault(bases.wirings[1].spaces[layer.spaces[1]].within[0], []).append(layer)
    goals: dict[Layer, Goal] = {}
    for heads, cluster in clusters.items():
        source_count, target_count = (
            wiring.spaces[wiring.spaces[space].within[0]].size
            for wiring, space in zip(bases.wirings, cluster[0].spaces, strict=True)
        )
        tables = {
            layer: _compare_heads(layer, moments[layer.at], source_count, target_count, centered) for layer in cluster
        }
        scores = torch.zeros(target_count, source_count, dtype=torch.float64)
        for table in tables.values():
            scores += torch.tensor([[pair.likeness for pair in row] for row in table], dtype=torch.float64)
        partners: list[int] = _match(scores)[0].tolist()
        head_pairs = {layer: [table[i][j] for i, j in enumerate(partners)] for layer, table in tables.items()}
        goals |= _find_cluster_goals(bases, head_pairs, moments, partners)
        for layer in layers:
            if layer.aim == "taken" and layer.spaces[1] == heads:
                goals[layer] = Goal(lambda rows, heads=partners: rows[..., heads], len(partners))  # type: ignore[misc]
    return goals


def _compare_heads(
    layer: Layer, moments: PairedMoments, source_count: int, target_count: int, centered: bool
) -> list[list[_HeadPair]]:
    """Each head of the target with each head of the source, where a layer writes them."""
    cross = _cut_cross(moments.cross(centered=centered), layer)
    source_squares, target_squares = _squares(layer, moments, centered)
    return [
        [
            _HeadPair(cross[ours, theirs], float(source_squares[theirs].sum()), float(target_squares[ours].sum()))
            for theirs in _head_slices(source_count, len(source_squares))
        ]
        for ours in _head_slices(target_count, len(target_squares))
    ]


def _head_slices(count: int, width: int) -> list[slice]:
    """The columns of each of ``count`` heads, one after the other."""
    size = width // count
    return [slice(head * size, (head + 1) * size) for head in range(count)]


def _find_cluster_goals(
    bases: Bases,
    head_pairs: Mapping[Layer, Sequence[_HeadPair]],
    moments: Mapping[Pair, PairedMoments],
    partners: Sequence[int],
) -> dict[Layer, Goal]:
    """The goals of layers that share their heads, from the pairs of heads that were matched."""
    # Several attentions may share their heads, as those of T5 do; each has isometries of its own.
    attentions: dict[str, list[Layer]] = {}
    for layer in head_pairs:
        if layer.aim in ("query", "key"):
            attentions.setdefault(layer.spaces[1], []).append(layer)
    isometries = {
        space: [_common_isometry(pairs) for pairs in zip(*(head_pairs[layer] for layer in layers), strict=True)]
        for space, layers in attentions.items()
    }
    goals = {}
    for layer, pairs in head_pairs.items():
        space = layer.spaces[1]
        if layer.aim == "value":
            goals[layer] = _value_goal(*_means(layer, moments[layer.at]), pairs, partners)
        else:
            ratios: dict[str, list[float]] = {
                each.aim: [pair.size_ratio for pair in head_pairs[each]] for each in attentions[space]
            }
            goals[layer] = _query_goal(bases, layer, isometries[space], ratios, partners)
    return goals


def _common_isometry(pairs: Sequence[_HeadPair]) -> Tensor:
    """The isometry of one head that suits queries and keys alike."""
    first, *others = (pair.normalised_cross for pair in pairs)
    return polar(sum(others, first)).factor


def _value_goal(mean_source: Tensor, mean_target: Tensor, pairs: Sequence[_HeadPair], partners: Sequence[int]) -> Goal:
    """Tuned A's values about their means, through an isometry for each head, and in the target's sizes."""
    matrices = [pair.size_ratio * polar(pair.cross).factor.double() for pair in pairs]
    means = _pick_heads(mean_source, matrices, partners)

    def move_heads(rows: Tensor) -> Tensor:
        heads = _pick_heads(rows, matrices, partners)
        return _multiply([head - mean for head, mean in zip(heads, means, strict=True)], matrices) + mean_target

    return Goal(move_heads, len(mean_target))


def _query_goal(
    bases: Bases,
    layer: Layer,
    isometries: Sequence[Tensor],
    ratios: Mapping[str, Sequence[float]],
    partners: Sequence[int],
) -> Goal:
    """Tuned A's queries (or keys), so that their products with the keys are tuned A's attention logits.

    Args:
        bases: The networks.
        layer: What makes queries or keys.
        isometries: For each head of the target.
        ratios: How much larger the target's queries and keys are, for each head.
        partners: For each head of the target the source's.
    """
    matrices = []
    for head, isometry in enumerate(isometries):
        source_scale = _logit_scale(bases.source, layer.source, isometry.shape[1])
        target_scale = _logit_scale(bases.target, layer.target, isometry.shape[0])
        scale = source_scale / target_scale
        query_ratio, key_ratio = (ratios[aim][head] if aim in ratios else 1.0 for aim in ("query", "key"))
        balance = query_ratio / (key_ratio or 1.0)
        factor = math.sqrt(scale * balance) if layer.aim == "query" else math.sqrt(scale / balance)
        matrices.append(factor * isometry.double())
    return Goal(lambda rows: _multiply(_pick_heads(rows, matrices, partners), matrices), sum(map(len, matrices)))


def _pick_heads(rows: Tensor, matrices: Sequence[Tensor], partners: Sequence[int]) -> list[Tensor]:
    """For each head of the target the columns of its partner in the source."""
    size = matrices[0].shape[1]
    return [rows[..., head * size : (head + 1) * size] for head in partners]


def _multiply(heads: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """The rows of each head times its matrix (target, source), side by side."""
    return torch.cat([rows @ matrix.mT for rows, matrix in zip(heads, matrices, strict=True)], -1)


def _logit_scale(network: nn.Module, projection: str, width: int) -> float:
    """What attention multiplies the products of queries and keys with.

    As the module around the projection says (``scaling`` in transformers, ``scale`` in timm), which for T5 is 1; else
    one over the root of the head's width.
    """
    around = network.get_submodule(projection.rpartition(".")[0])
    for name in ("scaling", "scale"):
        value = getattr(around, name, None)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return 1 / math.sqrt(width)
