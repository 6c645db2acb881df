r"""Sequential regression: the target's layers, one after the other, are fitted to what tuned A does on the same inputs.

In the order of the data, each layer of B is a ridge regression from what it now reads (the layers before it are changed
already) to a target made of tuned A's activations (`layers` says which). In a stream the target is

.. math:: \mu_B + s\,(h_{A,\mathrm{tuned}} - \mu_A)\,T ,

with :math:`T` the Procrustes map between the two *base* networks there and :math:`s` the ratio of their sizes. Inputs
of the kind that B was trained on may be mixed in, with B's own base activations as their target: B then learns A's
skill and keeps its own. Only Gram matrices are kept, so memory does not grow with the number of inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf, masks_of
from interbasin.batches import WithoutLabels, device_of, require_reiterable
from interbasin.checkpoints.lora import Factors
from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.jobs.transport.bases import Bases
from interbasin.jobs.transport.goals import Goal, find_goals
from interbasin.jobs.transport.layers import (
    Layer,
    Watcher,
    find_layers,
    input_rows,
    pair_rows,
    reading_at,
    set_weight,
    weight_of,
)
from interbasin.jobs.transport.ridge import Sums, reduced
from interbasin.wiring.trace.copying import copied, forget_what_was_derived

# Of generic rows there may be fewer than a layer has inputs, while all rows together are enough: what is kept then
# needs a larger ridge than cross-validation over all rows would take.
CAUTION = 1.5


@dataclass(frozen=True)
class Recipe:
    """How a regression is done.

    Attributes:
        generic_target: Where generic inputs aim: ``"keep"``, B's own base activations, or ``"tuned"``, tuned A's.
        generic_weight: The weight of all generic rows together, relative to that of all task rows.
        stream: ``"shared"``: one map of the stream for all places; ``"place"``: one for each.
        hidden: ``"units"``: units are matched one to one; ``"turn"``: a Procrustes map of the whole space.
        prior: ``"carried"``: layers are shrunk towards their Theseus-transported weights; ``"base"``; ``"zero"``.
        rest: What is not fitted (gains, tables, positions, tied heads): ``"carried"``, with the Theseus-transported
            update, or ``"base"``, the target's own.
        ridge: Relative; None: by generalised cross-validation.
        rank: Of every layer's update, by reduced-rank regression; None: as it comes. Layers further on make good what
            the truncation of earlier ones loses.
    """

    generic_target: str = "keep"
    generic_weight: float = 0.5
    stream: str = "shared"
    hidden: str = "units"
    prior: str = "carried"
    rest: str = "carried"
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

    Raises:
        DataError: If there are no data, or numbers are not finite.
        ShapeError: If ``tuned`` is not of the source's shapes or ``start`` not of the target's, or rows do not pair.
        WiringError: If there is no layer that could be fitted.
    """
    recipe = recipe or Recipe()
    _check(recipe)
    for each in (data, generic):
        require_reiterable(each, "A regression")
    tokens = Tokens(tokens) if isinstance(tokens, str) else tokens  # type: ignore[arg-type]
    task = WithoutLabels(data)
    layers, left_out = find_layers(bases, task.first())
    if not layers:
        raise WiringError("No linear layer of the target has a counterpart in the source that a regression could use.")
    _require_alike(tuned, bases.source, [layer.source for layer in layers], "The tuned network", "the source")
    if start is not None:
        _require_alike(start, bases.target, [layer.target for layer in layers], "The start", "the target")
    keeps = generic is not None and recipe.generic_target == "keep"
    seen = task if generic is None else _Chain(task, WithoutLabels(generic))
    goals = find_goals(bases, layers, seen, recipe, centered, tokens, mask, keeps)
    current = copied(bases.target).eval()
    if start is not None and recipe.rest == "carried":
        _take_rest(current, start, layers)
    feeds = [_Feed(current, bases.target, tuned, task, tokens, mask, is_task=True)]
    if generic is not None:
        own, others = recipe.generic_target == "keep", WithoutLabels(generic)
        others.first()  # or say that there is none
        feeds.append(_Feed(current, bases.target, tuned, others, tokens, mask, is_task=not own))
    fitted: list[Fitted] = []
    factors: dict[str, Factors] = {}
    for number, stage in enumerate(_stages(current, layers, task.first())):
        if report is not None:
            report(f"regression: {stage[0].target} ({number + 1})")
        fitted += _fit_stage(stage, goals, feeds, current, start or bases.target, bases.target, recipe, factors)
    return Regressed(current, tuple(fitted), left_out, factors)


def _check(recipe: Recipe) -> None:
    for name, known in (
        ("generic_target", ("keep", "tuned")),
        ("stream", ("shared", "place")),
        ("hidden", ("units", "turn")),
        ("prior", ("carried", "base", "zero")),
        ("rest", ("carried", "base")),
    ):
        require_choice(name, getattr(recipe, name), known)
    require_finite("generic_weight", recipe.generic_weight, least=0)
    if recipe.ridge is not None:
        require_finite("ridge", recipe.ridge, least=0)


def _require_alike(given: nn.Module, own: nn.Module, layers: Sequence[str], what: str, whose: str) -> None:
    """See that a network has the layers of another, in their shapes."""
    modules = dict(given.named_modules())
    for name in layers:
        expected = tuple(weight_of(own.get_submodule(name))[0].shape)
        found = tuple(weight_of(modules[name])[0].shape) if name in modules else None
        if found != expected:
            which = "has no such layer" if found is None else f"has {found}"
            raise ShapeError(
                f"{what} is not of {whose}'s shapes: {name} is {expected} (out, in) in {whose}, and {what.lower()} "
                f"{which}; give one that was made from {whose}."
            )


def _take_rest(model: nn.Module, start: nn.Module, layers: Sequence[Layer]) -> None:
    """Give ``model`` the tensors of ``start`` that no layer fits: these need them around them as tuned A has them."""
    fitted = {f"{layer.target}.{kind}" for layer in layers for kind in ("weight", "bias")}
    given = start.state_dict()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in fitted:
                tensor.copy_(given[name])
    forget_what_was_derived(model)


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


class _Chain:
    """The batches of several data, one after the other."""

    def __init__(self, *parts: Iterable[Any]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._parts)


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
        if not all(each.rows for each in sums.values()):
            which = "task" if feed is feeds[0] else "generic"
            raise DataError(
                f"No row of the {which} inputs was left at {stage[0].target!r}: all batches are empty, or their masks "
                "leave nothing; give some."
            )
    fitted = []
    for layer in stage:
        task = totals[0][layer]
        joined = task
        for other in (sums[layer] for sums in totals[1:]):
            joined = joined.plus(other, recipe.generic_weight * task.count / max(other.count, 1e-12))
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
            caution=CAUTION if len(feeds) > 1 else 1.0,
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
            kernel = module.weight.shape[2:] if isinstance(module, nn.Conv2d) else ()
            factors[f"{layer.target}.weight"] = Factors(
                pair.a.reshape(len(pair.a), -1, *kernel), pair.b.reshape(*pair.b.shape, *[1] * len(kernel)), pair.lost
            )
            whole = weight_of(base.get_submodule(layer.target))[0].double() + pair.b @ pair.a
        set_weight(module, whole, offset)
        fitted.append(Fitted(layer, solution.ridge, solution.explained, None if columns is None else len(columns)))
    return fitted


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
    for layer in stage if feed.is_task else ():
        for _, place in layer.earlier:
            sources_of = reading_at(place)
            if sources_of not in aims:
                aims |= Watcher(feed.tuned, [sources_of]).run(inputs)
    own = [shown[layer] for layer in stage if feed.is_task and goals[layer].kept is not None]
    base = Watcher(feed.base, list(dict.fromkeys(own))).run(inputs) if own else {}
    masks = masks_of(inputs, feed.mask, device_of(feed.current))
    for layer in stage:
        module = feed.current.get_submodule(layer.target)
        rows = input_rows(module, now[enters[layer]])
        aim = aims[sources[layer]]
        part = layer.columns[0 if feed.is_task else 1]
        aim = aim if part is None or layer.aim == "stream" else aim[..., part]
        if feed.is_task and layer.earlier:
            aim = torch.cat([*(aims[reading_at(place)] for _, place in layer.earlier), aim], -1)
        counts = None if masks is None else masks.fitting(layer.target, rows.shape[:-1])
        if layer.aim == "stream":
            stream, output = now[shown[layer]], now[outputs[layer]]
            stream, aim = _at_positions(stream, layer), _at_positions(aim, layer)
            output = output.flatten(1, -2) if output.ndim > stream.ndim else output
            rest = stream.double() - output.reshape(stream.shape).double()
            rows = rows.reshape(*stream.shape[:-1], -1)
            rows, aim, rest = pair_rows([rows, aim.double(), rest], (1, 0, 1), feed.tokens)
            target = goals[layer](aim, feed.is_task) - rest
        else:
            rows = rows.flatten(1, -2) if rows.ndim > 3 else rows
            aim = aim.flatten(1, -2) if aim.ndim > 3 else aim
            rows, aim = pair_rows([rows, aim.double()], (1, 0), feed.tokens)
            target = goals[layer](aim, feed.is_task)
            target = target if goals[layer].columns is None else _spread(target, goals[layer])
            kept = goals[layer].kept
            if kept is not None and feed.is_task:
                mine = base[shown[layer]].double()
                mine = mine.flatten(1, -2) if mine.ndim > 3 else mine
                mine = pair_rows([rows, mine], (1, 1), feed.tokens)[1]
                target = target.clone()
                target[..., kept] = mine[..., kept]
        flat = [each.flatten(0, -2) for each in (rows, target)]
        if counts is not None:
            flat = [each[counts.flatten().to(each.device)] for each in flat]
        _require_numbers(layer, feed, flat)
        sums[layer].add(flat[0], flat[1])


def _require_numbers(layer: Layer, feed: _Feed, flat: Sequence[Tensor]) -> None:
    if all(bool(each.isfinite().all()) for each in flat):
        return
    inputs = "task" if feed.is_task else "generic"
    who = "the target" if not bool(flat[0].isfinite().all()) else "the tuned source" if feed.is_task else "the target"
    raise DataError(
        f"On {inputs} inputs {who} shows NaN or infinity at {layer.target!r}, so that it cannot be fitted; remove such "
        "inputs, or repair the network."
    )


def _at_positions(rows: Tensor, layer: Layer) -> Tensor:
    if layer.positions is None:
        return rows
    return rows.flatten(1, -2)[:, list(layer.positions)]


def _spread(target: Tensor, goal: Goal) -> Tensor:
    """Targets of some columns, with zeros where there is none."""
    assert goal.columns is not None
    whole = target.new_zeros(*target.shape[:-1], goal.width)
    whole[..., goal.columns] = target
    return whole
