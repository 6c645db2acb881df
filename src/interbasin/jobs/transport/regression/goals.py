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

    Columns that are ``kept`` aim at the target's own base activations instead.
    """

    function: Callable[[Tensor], Tensor]
    width: int
    kept: Tensor | None = None

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
    keeps: bool = False,
) -> dict[Layer, Goal]:
    """What each layer aims at, from what the base networks show on the data; ``keeps``: generic inputs aim at B."""
    wanted: dict[Pair, None] = {}
    for layer in layers:
        if layer.aim == "hidden" and all(map(is_observable, bases.wirings, layer.spaces)):
            wanted[layer.spaces] = None
        if not layer.is_shared(bases) and all(layer.at):
            wanted[layer.at] = None
    wanted |= dict.fromkeys((space, layer.spaces[1]) for layer in layers for space, _ in layer.earlier)
    moments = observe(bases, data, wanted, tokens=tokens, mask=mask, grams=False)
    crosses: dict[Pair, Tensor] = {}
    for layer in layers if recipe.stream == "shared" else ():
        if layer.aim in ("stream", "own", "taken") and all(layer.spaces) and layer.at in moments:
            cross = _unit_cross(layer, moments[layer.at], centered)
            crosses[layer.spaces] = crosses[layer.spaces] + cross if layer.spaces in crosses else cross
    shared = {spaces: polar(cross).factor for spaces, cross in crosses.items()}
    by_head = [layer for layer in layers if recipe.attention != "full" or layer.aim not in ("query", "key")]
    grouped = _match_groups(bases, by_head, moments, centered)
    rotary = {pair[1] for cluster in seek(bases).heads if cluster.places for pair in cluster.pairs}
    heads = _match_all_heads(bases, [layer for layer in by_head if layer.spaces[1] not in rotary], moments, centered)
    goals = {}
    for layer in layers:
        seen = moments.get(layer.at)
        if layer.is_shared(bases):
            goals[layer] = Goal(lambda rows: rows, bases.wirings[1].spaces[layer.spaces[1]].width)
        elif layer in grouped or layer in heads:
            goals[layer] = grouped[layer] if layer in grouped else heads[layer]
        elif layer.aim == "hidden" and recipe.hidden == "units" and layer.spaces in moments:
            parts = [moments[space, layer.spaces[1]] for space, _ in layer.earlier]
            signed = bases.wirings[1].spaces[layer.spaces[1]].group is Group.SIGNED
            goals[layer] = _match_units([*parts, moments[layer.spaces]], centered, keeps=keeps, signed=signed)
        else:
            assert seen is not None
            goals[layer] = _turn(layer, seen, shared.get(layer.spaces), centered)
    return goals


def _unit_cross(layer: Layer, moments: PairedMoments, centered: bool) -> Tensor:
    energies = _energies(layer, moments, centered)
    return _cut(moments.cross(centered=centered), layer) / (math.sqrt(energies[0] * energies[1]) or 1.0)


def _turn(layer: Layer, moments: PairedMoments, turn: Tensor | None, centered: bool) -> Goal:
    """``mean_B + s (rows - mean_A) T``; without a ``turn``, by the Procrustes map of what was seen there."""
    if turn is None:
        turn = polar(_cut(moments.cross(centered=centered), layer)).factor
    energies = _energies(layer, moments, centered)
    matrix = (math.sqrt(energies[1] / energies[0]) if min(energies) > 0 else 1.0) * turn.double()
    source, target = (
        _cut_vector(mean, layer.columns[side]).double()
        for side, mean in enumerate((moments.mean_source, moments.mean_target))
    )
    return Goal(lambda rows: target + (rows - source) @ matrix.mT, len(target))


def _energies(layer: Layer, moments: PairedMoments, centered: bool) -> tuple[float, float]:
    """The sums of squares where a layer aims, of source and target."""
    source, target = (
        float(_cut_vector(squares(centered=centered), layer.columns[side]).sum())
        for side, squares in enumerate((moments.squares_source, moments.squares_target))
    )
    return source, target


def _match_units(moments: Sequence[PairedMoments], centered: bool, *, keeps: bool, signed: bool = False) -> Goal:
    """Units one to one, by the correlation of their activations: their goal is their partner's value.

    Where several layers of the source lead to one, their units stand side by side. Units of the target that are left
    over copy the unit most like them or, where the target is to keep what it knows, aim at what they were. Behind an
    odd function a partner may have the other sign (``signed``).
    """
    correlation = torch.cat([_correlation(each, centered) for each in moments], dim=1)
    likeness = correlation.abs() if signed else correlation
    ours, theirs = (torch.from_numpy(each).long() for each in linear_sum_assignment(likeness.numpy(), maximize=True))
    width = moments[0].target_width
    partner = likeness.argmax(1)
    partner[ours] = theirs
    signs = torch.ones(width, dtype=torch.float64)
    if signed:
        signs = torch.where(correlation[torch.arange(width), partner] < 0, -signs, signs)
    left = torch.ones(width, dtype=torch.bool)
    left[ours] = False
    kept = left.nonzero().flatten() if keeps and len(ours) < width else None
    return Goal(lambda rows: signs.to(rows) * rows[..., partner], width, kept=kept)


def _correlation(moments: PairedMoments, centered: bool) -> Tensor:
    deviations = [squares(centered=centered).sqrt() for squares in (moments.squares_target, moments.squares_source)]
    safe = [torch.where(each > 0, each, torch.inf) for each in deviations]
    return moments.cross(centered=centered) / safe[0][:, None] / safe[1]


def _match_all_heads(
    bases: Bases, layers: Sequence[Layer], moments: Mapping[Pair, PairedMoments], centered: bool
) -> dict[Layer, Goal]:
    """Goals of queries, keys and values, head by head."""
    clusters: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.aim in ("query", "key", "value"):
            clusters.setdefault(bases.wirings[1].spaces[layer.spaces[1]].within[0], []).append(layer)
    goals: dict[Layer, Goal] = {}
    for heads, cluster in clusters.items():
        of = _match_heads(bases, cluster, moments, centered, goals)
        for layer in layers:
            if layer.aim == "taken" and layer.spaces[1] == heads:
                goals[layer] = Goal(lambda rows, of=of: rows[..., of], len(of))  # type: ignore[misc]
    return goals


def _match_groups(
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
        if not all(pair in moments for pair in cluster.recorded):
            continue
        seen = {pair: SecondMoments.of(moments[pair], centered=centered) for pair in cluster.recorded}
        maps = {pair[0]: found.map for pair, found in cluster.fit_groups(bases, seen).items()}
        mover = Mover(bases.wirings[0].spaces, maps)
        for place in cluster.places:
            axis = place.factors[0] if len(place.factors) == 1 else Grid(place.factors)
            matrix = mover.move(torch.eye(axis.size, dtype=torch.float64), (Still(axis.size, _ROWS), axis)).mT
            for layer in layers:
                if layer.at == place.pair and (layer.columns[0] or place.columns[0]) == place.columns[0]:
                    if layer.aim == "value":
                        goals[layer] = _turn(layer, moments[place.pair], matrix, centered)
                    else:
                        goals[layer] = _product(matrix)
    return goals


def _product(matrix: Tensor) -> Goal:
    return Goal(lambda rows: rows @ matrix.mT, len(matrix))


_ROWS = Reason("structure", "rows lie along it")


def _match_heads(
    bases: Bases,
    cluster: Sequence[Layer],
    moments: Mapping[Pair, PairedMoments],
    centered: bool,
    goals: dict[Layer, Goal],
) -> list[int]:
    """Add the goals of layers that share their heads, and give the source's head for each head of the target."""
    source, target = bases.wirings
    counts = [
        wiring.spaces[wiring.spaces[cluster[0].spaces[side]].within[0]].size
        for side, wiring in enumerate((source, target))
    ]
    crosses: dict[Layer, list[list[tuple[Tensor, float, float]]]] = {}
    score = torch.zeros(counts[1], counts[0], dtype=torch.float64)
    for layer in cluster:
        seen = moments[layer.at]
        cross = _cut(seen.cross(centered=centered), layer)
        squares = [
            _cut_vector(values(centered=centered), layer.columns[side])
            for side, values in enumerate((seen.squares_source, seen.squares_target))
        ]
        sizes = [len(squares[side]) // counts[side] for side in (0, 1)]
        table = []
        for i in range(counts[1]):
            row = []
            for j in range(counts[0]):
                ours, theirs = slice(i * sizes[1], (i + 1) * sizes[1]), slice(j * sizes[0], (j + 1) * sizes[0])
                a, b = float(squares[0][theirs].sum()), float(squares[1][ours].sum())
                block = cross[ours, theirs]
                row.append((block, a, b))
                score[i, j] += torch.linalg.matrix_norm(block, "nuc") / (math.sqrt(a * b) or 1.0)
            table.append(row)
        crosses[layer] = table
    # Surplus heads copy the one that is most like them.
    partner = score.argmax(1)
    ours, theirs = linear_sum_assignment(score.numpy(), maximize=True)
    partner[torch.from_numpy(ours)] = torch.from_numpy(theirs)
    of = partner.tolist()
    # Several attentions may share their heads, as those of T5 do; each has a turn of its own.
    compared: dict[str, list[Layer]] = {}
    for layer in cluster:
        if layer.aim in ("query", "key"):
            compared.setdefault(layer.spaces[1], []).append(layer)
    turns = {space: [_common_turn(pair, crosses, i, j) for i, j in enumerate(of)] for space, pair in compared.items()}
    for layer in cluster:
        seen = moments[layer.at]
        width = sum(len(row[0][0]) for row in crosses[layer])
        if layer.aim == "value":
            goals[layer] = _value_goal(layer, seen, crosses[layer], of, width)
        else:
            together, own = compared[layer.spaces[1]], turns[layer.spaces[1]]
            goals[layer] = _query_goal(bases, layer, together, crosses, own, of, width)
    return of


def _common_turn(layers: Sequence[Layer], crosses: Any, i: int, j: int) -> Tensor:
    """The turn of head j of the source into head i of the target that suits queries and keys alike."""
    parts = [crosses[layer][i][j] for layer in layers]
    return polar(sum(block / (math.sqrt(a * b) or 1.0) for block, a, b in parts)).factor


def _value_goal(layer: Layer, seen: PairedMoments, table: Any, of: list[int], width: int) -> Goal:
    means = [
        _cut_vector(mean, layer.columns[side]).double()
        for side, mean in enumerate((seen.mean_source, seen.mean_target))
    ]
    parts = []
    for i, j in enumerate(of):
        block, a, b = table[i][j]
        scale = math.sqrt(b / a) if min(a, b) > 0 else 1.0
        parts.append(scale * polar(block).factor.double())
    sizes = parts[0].shape

    def goal(rows: Tensor) -> Tensor:
        moved = [
            (rows[..., j * sizes[1] : (j + 1) * sizes[1]] - means[0][j * sizes[1] : (j + 1) * sizes[1]]) @ part.mT
            for part, j in zip(parts, of, strict=True)
        ]
        return torch.cat(moved, -1) + means[1]

    return Goal(goal, width)


def _query_goal(
    bases: Bases,
    layer: Layer,
    compared: Sequence[Layer],
    crosses: Any,
    turns: Sequence[Tensor],
    of: list[int],
    width: int,
) -> Goal:
    """Tuned A's queries (or keys), turned, so that their products with the keys are tuned A's attention logits."""
    others = {other.aim: other for other in compared}
    parts = []
    for i, j in enumerate(of):
        turn = turns[i].double()
        scales = [
            _logit_scale(network, name, len_of_head)
            for network, name, len_of_head in (
                (bases.source, layer.source, turn.shape[1]),
                (bases.target, layer.target, turn.shape[0]),
            )
        ]
        both = scales[0] / scales[1]
        ratios = {}
        for aim, other in others.items():
            _, a, b = crosses[other][i][j]
            ratios[aim] = math.sqrt(b / a) if min(a, b) > 0 else 1.0
        share = ratios.get("query", 1.0) / (ratios.get("key", 1.0) or 1.0)
        factor = math.sqrt(both * share) if layer.aim == "query" else math.sqrt(both / share)
        parts.append(factor * turn)
    size = parts[0].shape[1]

    def goal(rows: Tensor) -> Tensor:
        return torch.cat(
            [rows[..., j * size : (j + 1) * size] @ part.mT for part, j in zip(parts, of, strict=True)], -1
        )

    return Goal(goal, width)


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


def _cut(cross: Tensor, layer: Layer) -> Tensor:
    return cross[layer.columns[1] or slice(None), layer.columns[0] or slice(None)]


def _cut_vector(values: Tensor, columns: slice | None) -> Tensor:
    return values if columns is None else values[columns]
