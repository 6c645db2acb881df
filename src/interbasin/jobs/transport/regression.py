r"""Sequential regression: the target's layers, one after the other, are fitted to what tuned A does on the same inputs.

In the order of the data, each layer of B is a ridge regression from what it now reads (the layers before it are changed
already) to a target made of tuned A's activations (`layers` says which). In a stream the target is

.. math:: \mu_B + s\,(h_{A,\mathrm{tuned}} - \mu_A)\,T ,

with :math:`T` the Procrustes map between the two *base* networks there and :math:`s` the ratio of their sizes. Inputs
of the kind that B was trained on may be mixed in, with B's own base activations as their target: B then learns A's
skill and keeps its own. Only Gram matrices are kept, so memory does not grow with the number of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf, masks_of
from interbasin.activations.tokens import match_tokens
from interbasin.batches import WithoutLabels, device_of
from interbasin.checkpoints.lora import Factors
from interbasin.errors import ShapeError, WiringError
from interbasin.fit.polar import polar
from interbasin.jobs.transport.bases import Bases, Pair, is_observable
from interbasin.jobs.transport.layers import Layer, Watcher, find_layers, input_rows, reading_at, set_weight, weight_of
from interbasin.jobs.transport.maps import observe
from interbasin.jobs.transport.ridge import Sums, reduced
from interbasin.statistics import PairedMoments
from interbasin.wiring.trace.copying import copied


@dataclass(frozen=True)
class Recipe:
    """How a regression is done.

    Attributes:
        generic_target: Where generic inputs aim: ``"keep"``, B's own base activations, or ``"tuned"``, tuned A's.
        generic_weight: The weight of all generic rows together, relative to that of all task rows.
        stream: ``"shared"``: one map of the stream for all places; ``"place"``: one for each.
        hidden: ``"units"``: units are matched one to one; ``"turn"``: a Procrustes map of the whole space.
        prior: ``"carried"``: layers are shrunk towards their Theseus-transported weights; ``"base"``; ``"zero"``.
        ridge: Relative; None: by generalised cross-validation.
        rank: Of every layer's update, by reduced-rank regression; None: as it comes. Layers further on make good what
            the truncation of earlier ones loses.
    """

    generic_target: str = "keep"
    generic_weight: float = 1.0
    stream: str = "shared"
    hidden: str = "units"
    prior: str = "carried"
    ridge: float | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Fitted:
    """What a regression found for one layer."""

    layer: Layer
    ridge: float
    explained: float
    columns: int | None


@dataclass(frozen=True, eq=False)
class Regressed:
    """The target after a regression, layer by layer, and why some layers were left as they were."""

    model: nn.Module
    layers: tuple[Fitted, ...]
    left_out: Mapping[str, str]
    factors: Mapping[str, Factors] = field(default_factory=dict)  # by the weight, where a rank was asked for


def regress(
    bases: Bases,
    tuned: nn.Module,
    data: Any,
    *,
    generic: Any = None,
    start: nn.Module | None = None,
    recipe: Recipe | None = None,
    centered: bool = True,
    tokens: str | Tokens | None = None,
    mask: MaskOf = None,
    report: Callable[[str], object] | None = None,
) -> Regressed:
    """The target, fitted to ``tuned`` on the data.

    Args:
        bases: The base networks, with heads as the wirings have them (not flattened).
        tuned: The source after fine-tuning.
        data: Task inputs.
        generic: Inputs of the kind that the target was trained on.
        start: The target with the update carried to it: what layers are shrunk towards.
        recipe: How.
        centered: Maps of what was seen about the means.
        tokens: Where the networks cut inputs into different numbers of tokens.
        mask: Which tokens count.
        report: Called with a line of text on the way.
    """
    recipe = recipe or Recipe()
    tokens = Tokens(tokens) if isinstance(tokens, str) else tokens  # type: ignore[arg-type]
    task = WithoutLabels(data)
    layers, left_out = find_layers(bases, task.first())
    if not layers:
        raise WiringError("No linear layer of the target has a counterpart in the source that a regression could use.")
    goals = _find_goals(bases, layers, task, recipe, centered, tokens, mask)
    current = copied(bases.target).eval()
    feeds = [_Feed(current, bases.target, tuned, task, tokens, mask, is_task=True)]
    if generic is not None:
        own = recipe.generic_target == "keep"
        feeds.append(_Feed(current, bases.target, tuned, WithoutLabels(generic), tokens, mask, is_task=not own))
    fitted: list[Fitted] = []
    factors: dict[str, Factors] = {}
    for number, stage in enumerate(_stages(current, layers, task.first())):
        if report is not None:
            report(f"regression: {stage[0].target} ({number + 1})")
        fitted += _fit_stage(stage, goals, feeds, current, start or bases.target, bases.target, recipe, factors)
    return Regressed(current, tuple(fitted), left_out, factors)


def _stages(model: nn.Module, layers: Sequence[Layer], inputs: Any) -> list[list[Layer]]:
    """Layers that read the same tensor, one after the other, are fitted in one pass."""
    readings = {layer: reading_at(f"{layer.target}:input") for layer in layers}
    stages: list[list[Layer]] = []
    last: object = None
    shown = Watcher(model, list(dict.fromkeys(readings.values()))).run(inputs)
    for layer in layers:
        rows = shown[readings[layer]]
        same = isinstance(last, Tensor) and last.shape == rows.shape and torch.equal(last, rows)
        if same and layer.aim != "stream":
            stages[-1].append(layer)
        else:
            stages.append([layer])
        last = rows
    return stages


# ---------------------------------------------------------------------- one stage


@dataclass
class _Feed:
    """Batches of one kind: task inputs, which aim at tuned A, or generic ones, which may aim at the base itself."""

    current: nn.Module
    base: nn.Module
    tuned: nn.Module
    data: Iterable[Any]
    tokens: Tokens | None
    mask: MaskOf
    is_task: bool
    count: int = 0


def _fit_stage(
    stage: Sequence[Layer],
    goals: Mapping[Layer, Goal],
    feeds: Sequence[_Feed],
    current: nn.Module,
    start: nn.Module,
    base: nn.Module,
    recipe: Recipe,
    factors: dict[str, Factors],
) -> list[Fitted]:
    totals = [{layer: Sums() for layer in stage} for _ in feeds]
    for feed, sums in zip(feeds, totals, strict=True):
        for inputs in feed.data:
            _add_batch(stage, goals, feed, inputs, sums)
    fitted = []
    for layer in stage:
        task = totals[0][layer]
        joined = task
        for other in (sums[layer] for sums in totals[1:]):
            joined = _joined(joined, other, recipe.generic_weight * task.count / max(other.count, 1e-12))
        module = current.get_submodule(layer.target)
        weight, bias = weight_of(module)
        prior, prior_bias = weight_of(start.get_submodule(layer.target))
        if recipe.prior == "base":
            prior, prior_bias = weight, bias
        elif recipe.prior == "zero":
            prior = torch.zeros_like(weight)
        goal, part = goals[layer], layer.columns[1] or slice(None)
        columns = None if goal.columns is None else goal.columns
        solution = joined.solve(
            prior[part],
            None if bias is None or prior_bias is None else prior_bias[part],
            columns=columns,
            ridge=recipe.ridge,
        )
        chosen = torch.arange(solution.weight.shape[0]) if columns is None else columns
        rows = torch.arange(len(weight))[part][chosen]
        whole = weight.double().clone()
        whole[rows] = solution.weight[chosen]
        offset = None
        if bias is not None and solution.bias is not None:
            offset = bias.double().clone()
            offset[rows] = solution.bias[chosen]
        if recipe.rank is not None:
            change = whole - weight_of(base.get_submodule(layer.target))[0].double()
            pair = reduced(change, joined, recipe.rank)
            factors[f"{layer.target}.weight"] = pair
            whole = weight_of(base.get_submodule(layer.target))[0].double() + pair.b @ pair.a
        set_weight(module, whole, offset)
        fitted.append(Fitted(layer, solution.ridge, solution.explained, None if columns is None else len(columns)))
    return fitted


def _joined(first: Sums, second: Sums, weight: float) -> Sums:
    """The sums of both, the second with a weight."""
    if not second.rows:
        return first
    return Sums(
        first.count + weight * second.count,
        first.rows + second.rows,
        first.x + weight * second.x,
        first.y + weight * second.y,
        first.xx + weight * second.xx,
        first.xy + weight * second.xy,
        first.yy + weight * second.yy,
    )


def _add_batch(
    stage: Sequence[Layer], goals: Mapping[Layer, Goal], feed: _Feed, inputs: Any, sums: Mapping[Layer, Sums]
) -> None:
    enters = {layer: reading_at(f"{layer.target}:input") for layer in stage}
    outputs = {layer: reading_at(layer.output) for layer in stage if layer.aim == "stream"}
    shown = {layer: reading_at(layer.at[1]) for layer in stage}
    wanted = dict.fromkeys([*enters.values(), *outputs.values(), *(shown[layer] for layer in outputs)])
    now = Watcher(feed.current, list(wanted)).run(inputs)
    if feed.is_task:
        sources = {layer: reading_at(layer.at[0]) for layer in stage}
        aims = Watcher(feed.tuned, list(dict.fromkeys(sources.values()))).run(inputs)
    else:
        sources = shown
        aims = Watcher(feed.base, list(dict.fromkeys(sources.values()))).run(inputs)
    masks = masks_of(inputs, feed.mask, device_of(feed.current))
    for layer in stage:
        module = feed.current.get_submodule(layer.target)
        rows = input_rows(module, now[enters[layer]])
        aim = aims[sources[layer]]
        part = layer.columns[0 if feed.is_task else 1]
        aim = aim if part is None or layer.aim == "stream" else aim[..., part]
        counts = None if masks is None else masks.fitting(layer.target, rows.shape[:-1])
        if layer.aim == "stream":
            stream, output = now[shown[layer]], now[outputs[layer]]
            stream, aim = _at_positions(stream, layer), _at_positions(aim, layer)
            output = output.flatten(1, -2) if output.ndim > stream.ndim else output
            rest = stream.double() - output.reshape(stream.shape).double()
            rows = rows.reshape(*stream.shape[:-1], -1)
            rows, aim, rest = _paired([rows, aim.double(), rest], feed)
            target = goals[layer](aim, feed.is_task) - rest
        else:
            rows = rows.flatten(1, -2) if rows.ndim > 3 else rows
            aim = aim.flatten(1, -2) if aim.ndim > 3 else aim
            rows, aim = _paired([rows, aim.double()], feed)
            target = goals[layer](aim, feed.is_task)
            target = target if goals[layer].columns is None else _spread(target, goals[layer])
        flat = [each.flatten(0, -2) for each in (rows, target)]
        if counts is not None:
            flat = [each[counts.flatten().to(each.device)] for each in flat]
        sums[layer].add(flat[0], flat[1])


def _at_positions(rows: Tensor, layer: Layer) -> Tensor:
    if layer.positions is None:
        return rows
    return rows.flatten(1, -2)[:, list(layer.positions)]


def _paired(layers: list[Tensor], feed: _Feed) -> list[Tensor]:
    """Rows of the target, of what it aims at, and again of the target, in equal numbers."""
    shapes = {tuple(each.shape[:-1]) for each in layers}
    if len(shapes) == 1:
        return layers
    if feed.tokens is None or any(each.ndim != 3 for each in layers):
        raise ShapeError(
            f"What the two networks show does not pair: rows of shapes {' and '.join(map(str, shapes))}; if they cut "
            "inputs into different numbers of tokens, pass tokens='interpolate2d', 'interpolate' or 'mean'."
        )
    if feed.tokens.mode == "mean":
        return [each.mean(1, keepdim=True) for each in layers]
    return match_tokens(layers, [1, 0, 1][: len(layers)], feed.tokens)


def _spread(target: Tensor, goal: Goal) -> Tensor:
    """Targets of some columns, with zeros where there is none."""
    assert goal.columns is not None
    whole = target.new_zeros(*target.shape[:-1], goal.width)
    whole[..., goal.columns] = target
    return whole


# ---------------------------------------------------------------------- what layers aim at


@dataclass(frozen=True, eq=False)
class Goal:
    """Rows of tuned A -> rows that a layer is to write (``columns`` of them, where not all have a goal)."""

    function: Callable[[Tensor], Tensor]
    width: int
    columns: Tensor | None = None

    def __call__(self, rows: Tensor, is_task: bool) -> Tensor:
        """Of task inputs tuned A's rows in the target's coordinates; generic ones show the target's own."""
        if is_task:
            return self.function(rows)
        return rows if self.columns is None else rows[..., self.columns]


def _find_goals(
    bases: Bases,
    layers: Sequence[Layer],
    data: Any,
    recipe: Recipe,
    centered: bool,
    tokens: Tokens | None,
    mask: MaskOf,
) -> dict[Layer, Goal]:
    wanted: dict[Pair, None] = {}
    for layer in layers:
        if layer.aim == "hidden" and all(map(is_observable, bases.wirings, layer.spaces)):
            wanted[layer.spaces] = None
        if layer.aim != "output":
            wanted[layer.at] = None
    moments = observe(bases, data, wanted, tokens=tokens, mask=mask, grams=False)
    crosses: dict[Pair, Tensor] = {}
    for layer in layers if recipe.stream == "shared" else ():
        if layer.aim == "stream":
            cross = _unit_cross(moments[layer.at], centered)
            crosses[layer.spaces] = crosses[layer.spaces] + cross if layer.spaces in crosses else cross
    shared = {spaces: polar(cross).factor for spaces, cross in crosses.items()}
    heads = _match_all_heads(bases, layers, moments, centered)
    goals = {}
    for layer in layers:
        seen = moments.get(layer.at)
        if layer.aim == "output":
            goals[layer] = Goal(lambda rows: rows, bases.wirings[1].spaces[layer.spaces[1]].width)
        elif layer.aim in ("query", "key", "value"):
            goals[layer] = heads[layer]
        elif layer.aim == "hidden" and recipe.hidden == "units" and layer.spaces in moments:
            goals[layer] = _match_units(moments[layer.spaces], centered)
        else:
            assert seen is not None
            goals[layer] = _turn(seen, shared.get(layer.spaces) if layer.aim == "stream" else None, centered)
    return goals


def _unit_cross(moments: PairedMoments, centered: bool) -> Tensor:
    sizes = [float(squares(centered=centered).sum()) for squares in (moments.squares_source, moments.squares_target)]
    return moments.cross(centered=centered) / (math.sqrt(sizes[0] * sizes[1]) or 1.0)


def _turn(moments: PairedMoments, matrix: Tensor | None, centered: bool) -> Goal:
    """``mean_B + s (rows - mean_A) T``."""
    turn = polar(moments.cross(centered=centered)).factor if matrix is None else matrix
    energies = [float(squares(centered=centered).sum()) for squares in (moments.squares_source, moments.squares_target)]
    scale = math.sqrt(energies[1] / energies[0]) if min(energies) > 0 else 1.0
    mean_source, mean_target = moments.mean_source.double(), moments.mean_target.double()
    matrix = scale * turn.double()
    return Goal(lambda rows: mean_target + (rows - mean_source) @ matrix.mT, len(mean_target))


def _match_units(moments: PairedMoments, centered: bool) -> Goal:
    """Units one to one, by the correlation of their activations: their goal is their partner's value."""
    deviations = [squares(centered=centered).sqrt() for squares in (moments.squares_target, moments.squares_source)]
    safe = [torch.where(each > 0, each, torch.inf) for each in deviations]
    correlation = moments.cross(centered=centered) / safe[0][:, None] / safe[1]
    ours, theirs = (torch.from_numpy(each).long() for each in linear_sum_assignment(correlation.numpy(), maximize=True))
    width = moments.target_width
    columns = None if len(ours) == width else ours
    return Goal(lambda rows: rows[..., theirs], width, columns)


def _match_all_heads(
    bases: Bases, layers: Sequence[Layer], moments: Mapping[Pair, PairedMoments], centered: bool
) -> dict[Layer, Goal]:
    """Goals of queries, keys and values, head by head."""
    clusters: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.aim in ("query", "key", "value"):
            clusters.setdefault(bases.wirings[1].spaces[layer.spaces[1]].within[0], []).append(layer)
    goals: dict[Layer, Goal] = {}
    for cluster in clusters.values():
        goals |= _match_heads(bases, cluster, moments, centered)
    return goals


def _match_heads(
    bases: Bases, cluster: Sequence[Layer], moments: Mapping[Pair, PairedMoments], centered: bool
) -> dict[Layer, Goal]:
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
    compared = [layer for layer in cluster if layer.aim in ("query", "key")]
    turns = []
    for i, j in enumerate(of):
        total = sum(
            crosses[layer][i][j][0] / (math.sqrt(crosses[layer][i][j][1] * crosses[layer][i][j][2]) or 1.0)
            for layer in compared
        )
        turns.append(polar(total).factor if compared else None)
    goals = {}
    for layer in cluster:
        seen = moments[layer.at]
        width = sum(len(row[0][0]) for row in crosses[layer])
        if layer.aim == "value":
            goals[layer] = _value_goal(layer, seen, crosses[layer], of, width)
        else:
            goals[layer] = _query_goal(layer, cluster, crosses, turns, of, width)
    return goals


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
    layer: Layer, cluster: Sequence[Layer], crosses: Any, turns: list[Any], of: list[int], width: int
) -> Goal:
    """Tuned A's queries (or keys), turned, so that their products with the keys are tuned A's attention logits."""
    others = {other.aim: other for other in cluster if other.aim in ("query", "key")}
    parts = []
    for i, j in enumerate(of):
        turn = turns[i].double()
        both = math.sqrt(turn.shape[0] / turn.shape[1])  # logits are divided by the root of the head's width
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


def _cut(cross: Tensor, layer: Layer) -> Tensor:
    return cross[layer.columns[1] or slice(None), layer.columns[0] or slice(None)]


def _cut_vector(values: Tensor, columns: slice | None) -> Tensor:
    return values if columns is None else values[columns]
