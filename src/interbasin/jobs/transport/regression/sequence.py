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
from interbasin.jobs.transport.regression.ridge import Solution, Sums, reduce_rank
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
class LayerFit:
    """What a regression found for one layer: the relative ridge, and the share of its goal's variance it explains."""

    layer: Layer
    ridge: float
    explained: float


@dataclass(frozen=True, eq=False)
class Regressed:
    """The target after a regression, layer by layer, and why some layers were left as they were."""

    model: nn.Module
    layers: tuple[LayerFit, ...]
    left_out: Mapping[str, str]
    factors: Mapping[str, Factors] = field(default_factory=dict)  # by the weight, where a rank was asked for


def regress(
    bases: Bases,
    tuned: nn.Module,
    data: Any,
    *,
    generic: Any = None,
    start: nn.Module | None = None,
    rest: nn.Module | None = None,
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
        rest: Where tensors that no layer fits are copied from; ``start`` by default.
        recipe: How it is done.
        centered: Look at activations about their means.
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
    _check_recipe(recipe)
    for batches in (data, generic):
        require_reiterable(batches, "A regression")
    tokens = Tokens(tokens) if isinstance(tokens, str) else tokens  # type: ignore[arg-type]
    task_inputs = WithoutLabels(data)
    generic_inputs = None if generic is None else WithoutLabels(generic)
    all_layers, left_out = find_layers(bases, task_inputs.first())
    keeps_target = generic is not None and recipe.generic_target == "keep"
    layers = _select_layers(bases.target, all_layers, left_out, recipe, keeps_target=keeps_target)
    _require_alike(tuned, bases.source, [layer.tensors[0] for layer in layers], "The tuned network", "the source")
    if start is not None:
        _require_alike(start, bases.target, [layer.tensors[1] for layer in layers], "The start", "the target")
    all_inputs = task_inputs if generic_inputs is None else Chain(task_inputs, generic_inputs)
    goals = find_goals(bases, layers, all_inputs, recipe, centered, tokens, mask, keeps_target)
    current = copied(bases.target).eval()
    rest = start if rest is None else rest
    if rest is not None and recipe.rest == "carried":
        _copy_rest(current, rest, all_layers if recipe.attention == "base" else layers)
    source = bases.source if recipe.aim == "shift" else None
    feeds = [Feed(current, bases.target, tuned, task_inputs, tokens, mask, is_task=True, source=source)]
    if generic_inputs is not None:
        generic_inputs.first()  # or say that there is none
        is_task = not keeps_target
        feeds.append(Feed(current, bases.target, tuned, generic_inputs, tokens, mask, is_task=is_task, source=source))
    fits: list[LayerFit] = []
    factors: dict[str, Factors] = {}
    stage_journal = None
    if journal is not None:
        networks = [bases.source, bases.target, tuned, start or bases.target, rest or bases.target]
        settings = {"recipe": recipe, "centered": centered, "tokens": tokens, "mask": mask}
        stage_journal = journal.stages(networks, [task_inputs, generic], current, factors, **settings)
    fitter = _StageFitter(goals, feeds, current, start or bases.target, bases.target, recipe, factors)
    for number, stage in enumerate(_group_into_stages(current, layers, task_inputs.first())):
        earlier_factors = set(factors)
        if stage_journal is not None and (stage_fits := stage_journal.restore(number, stage)) is not None:
            fits += stage_fits
            continue
        if report is not None:
            report(f"regression: {stage[0].tensors[1]} ({number + 1})")
        stage_fits = fitter.fit(stage)
        fits += stage_fits
        if stage_journal is not None:
            stage_journal.keep(number, stage, stage_fits, earlier_factors)
    fitted_layers = {fit.layer for fit in fits}
    why = "no input shows its rows apart from others"
    left_out |= {layer.tensors[1]: why for layer in layers if layer not in fitted_layers}
    return Regressed(current, tuple(fits), left_out, factors)


# ---------------------------------------------------------------------- which layers


def _select_layers(
    target: nn.Module, layers: Sequence[Layer], left_out: dict[str, str], recipe: Recipe, *, keeps_target: bool
) -> list[Layer]:
    """The layers that a recipe fits. Why it does not fit others is added to ``left_out``."""
    reasons = _attention_to_leave(layers, recipe)
    reasons |= _tables_to_leave([layer for layer in layers if layer.tensors[1] not in reasons], recipe, keeps_target)
    selected = [layer for layer in layers if layer.tensors[1] not in reasons]
    if recipe.rank is not None:
        kinds = kinds_of(target)
        without_factors = [layer for layer in selected if layer.is_table or layer.tensors[1] not in kinds]
        reasons |= {layer.tensors[1]: NO_FACTORS for layer in without_factors}
        selected = [replace(layer, beside=None) for layer in selected if layer.tensors[1] not in reasons]
    left_out |= reasons
    if not selected:
        raise WiringError("No linear layer of the target has a counterpart in the source that a regression could use.")
    return selected


def _check_recipe(recipe: Recipe) -> None:
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


def _attention_to_leave(layers: Sequence[Layer], recipe: Recipe) -> dict[str, str]:
    """The weights of queries and keys, where these are carried or stay as they are, with the reason."""
    if recipe.attention in ("heads", "full"):
        return {}
    attention = {layer.tensors[1] for layer in layers if layer.aim in ("query", "key")}
    fused = attention & {layer.tensors[1] for layer in layers if layer.aim not in ("query", "key")}
    if fused:
        raise WiringError(
            f"Queries and keys lie in one tensor with values, {list_names(sorted(fused))}, so that "
            f"attention={recipe.attention!r} cannot leave them out; take attention='heads' or 'full'."
        )
    why = f"queries and keys, with attention={recipe.attention!r}"
    return {layer.tensors[1]: why for layer in layers if layer.tensors[1] in attention}


def _tables_to_leave(layers: Sequence[Layer], recipe: Recipe, keeps_target: bool) -> dict[str, str]:
    """The tables that could be taken from tuned A and are not, with the reason."""
    reasons = {}
    for layer in layers:
        if layer.aim != "taken":
            continue
        if keeps_target or recipe.aim == "shift":
            reasons[layer.tensors[1]] = "what the target knew needs its own"
        elif recipe.tables == "carried" or (not any(layer.at) and recipe.attention != "heads"):
            reasons[layer.tensors[1]] = f"with tables={recipe.tables!r} and attention={recipe.attention!r}"
    return reasons


def _require_alike(network: nn.Module, base: nn.Module, tensors: Sequence[str], what: str, whose: str) -> None:
    """See that a network has the weights of its base, in their shapes."""
    state, base_state = network.state_dict(), base.state_dict()
    for name in tensors:
        expected = tuple(base_state[name].shape)
        shape = tuple(state[name].shape) if name in state else None
        if shape != expected:
            which = "has no such tensor" if shape is None else f"has {shape}"
            raise ShapeError(
                f"{what} is not of {whose}'s shapes: {name} is {expected} in {whose}, and {what.lower()} {which}; "
                f"give one that was made from {whose}."
            )


def _copy_rest(model: nn.Module, start: nn.Module, layers: Sequence[Layer]) -> None:
    """Copy the tensors that no layer fits from ``start``: layers are fitted to tuned A, which has its own there."""
    fitted_tensors = {name for layer in layers if not layer.is_table for name in layer.fitted_tensors}
    start_state = start.state_dict()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in fitted_tensors:
                tensor.copy_(start_state[name])
    forget_what_was_derived(model)


def _group_into_stages(model: nn.Module, layers: Sequence[Layer], inputs: Any) -> list[list[Layer]]:
    """Layers that read the same tensor, one after the other, are fitted in one pass."""
    readings = {layer: argument_at(layer.reads) for layer in layers if not layer.is_table}
    stages: list[list[Layer]] = []
    last: object = None
    rows_by_reading = Watcher(model, list(dict.fromkeys(readings.values()))).run(inputs)
    for layer in layers:
        rows = None if layer.is_table else rows_by_reading[readings[layer]]
        is_same = isinstance(last, Tensor) and rows is not None and last.shape == rows.shape and torch.equal(last, rows)
        if is_same and layer.aim != "stream":
            stages[-1].append(layer)
        else:
            stages.append([layer])
        last = rows
    return stages


# ---------------------------------------------------------------------- one stage


@dataclass
class _StageFitter:
    """Fits the layers of a stage and writes them into a network.

    Attributes:
        goals: What each layer aims at.
        feeds: The task inputs, and the generic ones if there are any.
        current: The network that layers are written into.
        start: The network whose weights layers are shrunk towards.
        base: The target as it was: low-rank updates are relative to it.
        recipe: How.
        factors: Of low-rank updates; those of each layer are added.
    """

    goals: Mapping[Layer, Goal]
    feeds: Sequence[Feed]
    current: nn.Module
    start: nn.Module
    base: nn.Module
    recipe: Recipe
    factors: dict[str, Factors]

    def fit(self, stage: Sequence[Layer]) -> list[LayerFit]:
        """What was found for each layer; nothing for a table of which the inputs show no row."""
        if stage[0].aim == "taken":
            return [self._take_table(stage[0])]
        totals = self._add_up(stage)
        return [self._fit_layer(layer, [sums[layer] for sums in totals]) for layer in stage if totals[0][layer].rows]

    def _take_table(self, layer: Layer) -> LayerFit:
        """Give a table the rows of tuned A, in the target's coordinates."""
        assert layer.axis is not None
        rows = table_rows(self.feeds[0].tuned.get_parameter(layer.tensors[0]), layer.axis)
        layer.write(self.current, self.goals[layer](rows.double(), True).mT, None)
        return LayerFit(layer, 0.0, 1.0)

    def _add_up(self, stage: Sequence[Layer]) -> list[dict[Layer, Sums]]:
        """For each feed, the sums of every layer over all batches."""
        totals = [{layer: Sums() for layer in stage} for _ in self.feeds]
        for feed, sums in zip(self.feeds, totals, strict=True):
            for inputs in feed.data:
                feed.add_batch(stage, self.goals, inputs, sums)
            if not all(each.rows for layer, each in sums.items() if not layer.is_table):
                which = "task" if feed is self.feeds[0] else "generic"
                raise DataError(
                    f"No row of the {which} inputs was left at {stage[0].target!r}: all batches are empty, or their "
                    "masks leave nothing; give some."
                )
        return totals

    def _fit_layer(self, layer: Layer, sums: Sequence[Sums]) -> LayerFit:
        """Fit a layer to the sums of each feed, and write it."""
        total = sums[0]
        for other in sums[1:]:
            total = total.plus(other, self.recipe.generic_weight * sums[0].count / max(other.count, 1e-12))
        solution = self._solve(layer, total)
        weight, bias = layer.weight_in(self.current)
        rows = layer.rows or slice(None)
        new_weight = weight.double().clone()
        new_weight[rows] = solution.weight
        new_bias = None
        if bias is not None and solution.bias is not None:
            new_bias = bias.double().clone()
            new_bias[rows] = solution.bias
        if self.recipe.rank is not None:
            new_weight = self._reduce_rank(layer, new_weight, total, self.recipe.rank)
        layer.write(self.current, new_weight, new_bias)
        return LayerFit(layer, solution.ridge, solution.explained)

    def _solve(self, layer: Layer, sums: Sums) -> Solution:
        weight, bias = layer.weight_in(self.current)
        prior, prior_bias = layer.weight_in(self.start)
        if self.recipe.prior == "base":
            prior, prior_bias = weight, bias
        elif self.recipe.prior == "zero":
            prior = torch.zeros_like(weight)
        caution = CAUTION if len(self.feeds) > 1 else 1.0
        if layer.beside is not None:
            return _solve_beside_table(sums, prior, bias, self.recipe.ridge, caution)
        rows = layer.rows or slice(None)
        layer_bias = None if bias is None or prior_bias is None else prior_bias[rows]
        return sums.solve(prior[rows], layer_bias, ridge=self.recipe.ridge, caution=caution)

    def _reduce_rank(self, layer: Layer, weight: Tensor, sums: Sums, rank: int) -> Tensor:
        """The weight whose difference from the base has that rank; keeps the factors of the difference."""
        base_weight = layer.weight_in(self.base)[0].double()
        pair = reduce_rank(weight - base_weight, sums, rank)
        module = self.current.get_submodule(layer.target)
        kernel = module.weight.shape[2:] if isinstance(module, nn.Conv2d) else ()
        self.factors[layer.tensors[1]] = Factors(
            pair.a.reshape(len(pair.a), -1, *kernel), pair.b.reshape(*pair.b.shape, *[1] * len(kernel)), pair.lost
        )
        return base_weight + pair.b @ pair.a


def _solve_beside_table(
    sums: Sums, prior: Tensor, bias: Tensor | None, ridge: float | None, caution: float
) -> Solution:
    """A layer that is fitted together with a table: what the rows of the table can explain is left to them."""
    width = prior.shape[1]
    solution = sums.partial_out(width).solve(prior, None, ridge=ridge, caution=caution)
    offset = None if bias is None else (sums.y - solution.weight @ sums.x[:width]) / sums.count
    return replace(solution, bias=offset)
