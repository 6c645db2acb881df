r"""Sequential regression: the target's layers, one after the other, are fitted to what tuned A does on the same inputs.

In the order of the data, each layer of B is a ridge regression from what it now reads (the layers before it are changed
already) to a target made of tuned A's activations (`layers` says which). In a stream the target is

.. math:: \mu_B + s\,(h_{A,\mathrm{tuned}} - \mu_A)\,T ,

with :math:`T` the Procrustes map between the two *base* networks there and :math:`s` the ratio of their sizes. Inputs
of the kind that B was trained on may be mixed in, with B's own base activations as their target: B then learns A's
skill and keeps its own. Only Gram matrices are kept, so memory does not grow with the number of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.batches import WithoutLabels, require_reiterable
from interbasin.checkpoints.lora import Factors
from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.jobs.transport.bases import Bases
from interbasin.jobs.transport.journal import Journal
from interbasin.jobs.transport.regression.feeds import Chain, Feed
from interbasin.jobs.transport.regression.goals import Goal, find_goals
from interbasin.jobs.transport.regression.layers import Layer, find_layers
from interbasin.jobs.transport.regression.ridge import Solution, Sums, reduced
from interbasin.jobs.transport.regression.tables import table_rows
from interbasin.jobs.transport.rows import Watcher, argument_at
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.text import list_names
from interbasin.wiring.trace.copying import copied, forget_what_was_derived

# Of generic rows there may be fewer than a layer has inputs, while all rows together are enough: what is kept then
# needs a larger ridge than cross-validation over all rows would take.
CAUTION = 1.5
NO_FACTORS = "an adapter has no factors for it"


@dataclass(frozen=True)
class Recipe:
    """How a regression is done.

    Attributes:
        generic_target: Where generic inputs aim: ``"keep"``, B's own base activations, or ``"tuned"``, tuned A's.
        generic_weight: The weight of all generic rows together, relative to that of all task rows.
        stream: ``"shared"``: one map of the stream for all places; ``"place"``: one for each.
        hidden: ``"units"``: units are matched one to one; ``"turn"``: a Procrustes map of the whole space.
        attention: What becomes of queries and keys: ``"heads"``: they are fitted to tuned A's attention, head by head;
            ``"full"``: to one Procrustes map of all heads together; ``"carried"``: they have the Theseus-transported
            update; ``"base"``: they stay as they are.
        prior: ``"carried"``: layers are shrunk towards their Theseus-transported weights; ``"base"``; ``"zero"``.
        aim: What layers before the last aim at on task inputs: ``"tuned"``, tuned A's activations in B's coordinates;
            ``"shift"``, B's own activations and the change that fine-tuning made in A's, which asks less of them where
            generic inputs are to be kept.
        tables: Tables of tokens, and what attention adds for each head: ``"taken"`` from tuned A, in the target's
            coordinates, or ``"carried"``. Where generic inputs or shifts aim at B's own activations they are always
            carried: B's own are needed.
        rest: What is not fitted (gains, tied heads): ``"carried"``, with the Theseus-transported update, or ``"base"``,
            the target's own.
        ridge: Relative; None: by generalised cross-validation.
        rank: Of every layer's update, by reduced-rank regression; None: as it comes. Layers further on make good what
            the truncation of earlier ones loses. What an adapter has no factors for (tables, the inside of torch's
            attention) is then not fitted.
    """

    generic_target: str = "keep"
    generic_weight: float = 0.5
    stream: str = "shared"
    hidden: str = "units"
    attention: str = "heads"
    prior: str = "carried"
    aim: str = "tuned"
    tables: str = "taken"
    rest: str = "carried"
    ridge: float | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Fitted:
    """What a regression found for one layer."""

    layer: Layer
    ridge: float
    explained: float


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
    journal: Journal | None = None,
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
        journal: Where layers that were fitted are kept, and taken from.

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
    every, left_out = find_layers(bases, task.first())
    layers = every if recipe.attention in ("heads", "full") else _without_attention(every, recipe)
    why = f"queries and keys, with attention={recipe.attention!r}"
    left_out |= {layer.tensors[1]: why for layer in every if layer not in layers}
    keeps = generic is not None and recipe.generic_target == "keep"
    layers, left_out = _without_own_tables(layers, left_out, recipe, keeps=keeps)
    if recipe.rank is not None:
        layers, left_out = _with_factors(bases.target, layers, left_out)
    if not layers:
        raise WiringError("No linear layer of the target has a counterpart in the source that a regression could use.")
    _require_alike(tuned, bases.source, [layer.tensors[0] for layer in layers], "The tuned network", "the source")
    if start is not None:
        _require_alike(start, bases.target, [layer.tensors[1] for layer in layers], "The start", "the target")
    inputs = task if generic is None else Chain(task, WithoutLabels(generic))
    goals = find_goals(bases, layers, inputs, recipe, centered, tokens, mask, keeps)
    current = copied(bases.target).eval()
    if start is not None and recipe.rest == "carried":
        _take_rest(current, start, every if recipe.attention == "base" else layers)
    before = bases.source if recipe.aim == "shift" else None
    feeds = [Feed(current, bases.target, tuned, task, tokens, mask, is_task=True, source=before)]
    if generic is not None:
        own, others = recipe.generic_target == "keep", WithoutLabels(generic)
        others.first()  # or say that there is none
        feeds.append(Feed(current, bases.target, tuned, others, tokens, mask, is_task=not own, source=before))
    fitted: list[Fitted] = []
    factors: dict[str, Factors] = {}
    kept = None
    if journal is not None:
        networks = [bases.source, bases.target, tuned, start or bases.target]
        asked = {"recipe": recipe, "centered": centered, "tokens": tokens, "mask": mask}
        kept = journal.stages(networks, [task, generic], current, factors, **asked)
    for number, stage in enumerate(_stages(current, layers, task.first())):
        known_factors = set(factors)
        if kept is not None and (known := kept.restore(number, stage)) is not None:
            fitted += known
            continue
        if report is not None:
            report(f"regression: {stage[0].tensors[1]} ({number + 1})")
        fresh = _fit_stage(stage, goals, feeds, current, start or bases.target, bases.target, recipe, factors)
        fitted += fresh
        if kept is not None:
            kept.keep(number, stage, fresh, known_factors)
    seen = {fit.layer for fit in fitted}
    left_out |= {layer.tensors[1]: "no input shows its rows apart from others" for layer in layers if layer not in seen}
    return Regressed(current, tuple(fitted), left_out, factors)


def _with_factors(
    model: nn.Module, layers: Sequence[Layer], left_out: Mapping[str, str]
) -> tuple[list[Layer], dict[str, str]]:
    """The layers that an adapter can hold an update of."""
    held = kinds_of(model)
    others = {layer.tensors[1]: NO_FACTORS for layer in layers if layer.is_table or layer.tensors[1] not in held}
    kept = [replace(layer, beside=None) for layer in layers if layer.tensors[1] not in others]
    return kept, {**left_out, **others}


def _check(recipe: Recipe) -> None:
    for name, known in (
        ("generic_target", ("keep", "tuned")),
        ("stream", ("shared", "place")),
        ("hidden", ("units", "turn")),
        ("attention", ("heads", "full", "carried", "base")),
        ("prior", ("carried", "base", "zero")),
        ("aim", ("tuned", "shift")),
        ("tables", ("taken", "carried")),
        ("rest", ("carried", "base")),
    ):
        require_choice(name, getattr(recipe, name), known)
    require_finite("generic_weight", recipe.generic_weight, least=0)
    if recipe.ridge is not None:
        require_finite("ridge", recipe.ridge, least=0)


def _without_attention(layers: Sequence[Layer], recipe: Recipe) -> list[Layer]:
    """The layers but those of queries and keys, which are carried or stay as they are."""
    apart = {layer.tensors[1] for layer in layers if layer.aim in ("query", "key")}
    fused = apart & {layer.tensors[1] for layer in layers if layer.aim not in ("query", "key")}
    if fused:
        raise WiringError(
            f"Queries and keys lie in one tensor with values, {list_names(sorted(fused))}, so that "
            f"attention={recipe.attention!r} cannot leave them out; take attention='heads' or 'full'."
        )
    return [layer for layer in layers if layer.tensors[1] not in apart]


def _without_own_tables(
    layers: Sequence[Layer], left_out: Mapping[str, str], recipe: Recipe, *, keeps: bool
) -> tuple[list[Layer], dict[str, str]]:
    """The layers but the tables that are not to be tuned A's."""
    others = {}
    for layer in layers:
        if layer.aim != "taken":
            continue
        if keeps or recipe.aim == "shift":
            others[layer.tensors[1]] = "what the target knew needs its own"
        elif recipe.tables == "carried" or (not any(layer.at) and recipe.attention != "heads"):
            others[layer.tensors[1]] = f"with tables={recipe.tables!r} and attention={recipe.attention!r}"
    return [layer for layer in layers if layer.tensors[1] not in others], {**left_out, **others}


def _require_alike(given: nn.Module, own: nn.Module, tensors: Sequence[str], what: str, whose: str) -> None:
    """See that a network has the weights of another, in their shapes."""
    theirs, ours = given.state_dict(), own.state_dict()
    for name in tensors:
        expected = tuple(ours[name].shape)
        shape = tuple(theirs[name].shape) if name in theirs else None
        if shape != expected:
            which = "has no such tensor" if shape is None else f"has {shape}"
            raise ShapeError(
                f"{what} is not of {whose}'s shapes: {name} is {expected} in {whose}, and {what.lower()} {which}; "
                f"give one that was made from {whose}."
            )


def _take_rest(model: nn.Module, start: nn.Module, layers: Sequence[Layer]) -> None:
    """Give ``model`` the tensors of ``start`` that no layer fits: these need them around them as tuned A has them."""
    fitted = {name for layer in layers if not layer.is_table for name in layer.stored}
    given = start.state_dict()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in fitted:
                tensor.copy_(given[name])
    forget_what_was_derived(model)


def _stages(model: nn.Module, layers: Sequence[Layer], inputs: Any) -> list[list[Layer]]:
    """Layers that read the same tensor, one after the other, are fitted in one pass."""
    readings = {layer: argument_at(layer.reads) for layer in layers if not layer.is_table}
    stages: list[list[Layer]] = []
    last: object = None
    shown = Watcher(model, list(dict.fromkeys(readings.values()))).run(inputs)
    for layer in layers:
        rows = None if layer.is_table else shown[readings[layer]]
        same = isinstance(last, Tensor) and rows is not None and last.shape == rows.shape and torch.equal(last, rows)
        if same and layer.aim != "stream":
            stages[-1].append(layer)
        else:
            stages.append([layer])
        last = rows
    return stages


# ---------------------------------------------------------------------- one stage


def _fit_stage(
    stage: Sequence[Layer],
    goals: Mapping[Layer, Goal],
    feeds: Sequence[Feed],
    current: nn.Module,
    start: nn.Module,
    base: nn.Module,
    recipe: Recipe,
    factors: dict[str, Factors],
) -> list[Fitted]:
    if stage[0].aim == "taken":
        return [_take(stage[0], goals[stage[0]], feeds[0].tuned, current)]
    totals = [{layer: Sums() for layer in stage} for _ in feeds]
    for feed, sums in zip(feeds, totals, strict=True):
        for inputs in feed.data:
            feed.add_batch(stage, goals, inputs, sums)
        if not all(each.rows for layer, each in sums.items() if not layer.is_table):
            which = "task" if feed is feeds[0] else "generic"
            raise DataError(
                f"No row of the {which} inputs was left at {stage[0].target!r}: all batches are empty, or their masks "
                "leave nothing; give some."
            )
    fitted = []
    for layer in stage:
        task = totals[0][layer]
        if not task.rows:
            continue  # a table none of whose rows was seen
        joined = task
        for other in (sums[layer] for sums in totals[1:]):
            joined = joined.plus(other, recipe.generic_weight * task.count / max(other.count, 1e-12))
        weight, bias = layer.weight_in(current)
        prior, prior_bias = layer.weight_in(start)
        if recipe.prior == "base":
            prior, prior_bias = weight, bias
        elif recipe.prior == "zero":
            prior = torch.zeros_like(weight)
        part = layer.rows or slice(None)
        caution = CAUTION if len(feeds) > 1 else 1.0
        if layer.beside is not None:
            solution = _solve_beside(joined, prior, bias, recipe.ridge, caution)
        else:
            own_bias = None if bias is None or prior_bias is None else prior_bias[part]
            solution = joined.solve(prior[part], own_bias, ridge=recipe.ridge, caution=caution)
        whole = weight.double().clone()
        whole[part] = solution.weight
        offset = None
        if bias is not None and solution.bias is not None:
            offset = bias.double().clone()
            offset[part] = solution.bias
        if recipe.rank is not None:
            original = layer.weight_in(base)[0].double()
            pair = reduced(whole - original, joined, recipe.rank)
            module = current.get_submodule(layer.target)
            kernel = module.weight.shape[2:] if isinstance(module, nn.Conv2d) else ()
            factors[layer.tensors[1]] = Factors(
                pair.a.reshape(len(pair.a), -1, *kernel), pair.b.reshape(*pair.b.shape, *[1] * len(kernel)), pair.lost
            )
            whole = original + pair.b @ pair.a
        layer.write(current, whole, offset)
        fitted.append(Fitted(layer, solution.ridge, solution.explained))
    return fitted


def _take(layer: Layer, goal: Goal, tuned: nn.Module, current: nn.Module) -> Fitted:
    """Give a table the rows of tuned A, in the target's coordinates."""
    assert layer.axis is not None
    rows = table_rows(tuned.get_parameter(layer.tensors[0]), layer.axis)
    layer.write(current, goal(rows.double(), True).mT, None)
    return Fitted(layer, 0.0, 1.0)


def _solve_beside(sums: Sums, prior: Tensor, bias: Tensor | None, ridge: float | None, caution: float) -> Solution:
    """A layer that is fitted together with a table: what the rows of the table can explain is left to them."""
    width = prior.shape[1]
    solution = sums.without(width).solve(prior, None, ridge=ridge, caution=caution)
    offset = None if bias is None else (sums.y - solution.weight @ sums.x[:width]) / sums.count
    return replace(solution, bias=offset)
