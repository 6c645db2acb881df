"""The job: check the request, wire, match, carry, measure, and repair if asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from interbasin.activations import standing
from interbasin.batch_norm import has_batch_norm, reset_batch_norm
from interbasin.batches import WithoutLabels, as_batches, describe_size, outputs_of, require_reiterable, split_batch
from interbasin.checks import require_choice, require_finite, require_whole
from interbasin.errors import DataError, WiringError
from interbasin.evaluate import Barrier, alignment_error, barrier, distance, self_change
from interbasin.evaluate.performance import Loss, mean_loss
from interbasin.fit.matching import FreeSpace
from interbasin.jobs.rebasin.methods import METHODS
from interbasin.jobs.rebasin.result import Rebasin
from interbasin.jobs.rebasin.task import Match, Options, Task
from interbasin.maps.base import Group
from interbasin.methods import Method
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.text import list_names, plural
from interbasin.training import train
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry
from interbasin.wiring.check import difference, round_off
from interbasin.wiring.compatibility import common_wiring, is_folded, require_same_tensors
from interbasin.wiring.folding import fold_norms
from interbasin.wiring.trace.copying import copied
from interbasin.wiring.wiring import Wiring

COLLAPSE = 0.1  # the share of right answers that an aligned network may lose without a note
REACHES = ("auto", "exact", "orthogonal")
_PERMUTATIONS = (Group.PERMUTATION, Group.SIGNED)

Model = TypeVar("Model", bound=nn.Module)


def rebasin(
    source: nn.Module,
    target: nn.Module,
    inputs: Any = None,
    method: str = "procrustes-weights",
    variant: str | None = None,
    data: Any = None,
    loss: Loss | None = None,
    finetune: int = 0,
    seed: int = 0,
    *,
    reach: str = "auto",
    stay_in_class: bool = True,
    restarts: int = 1,
    sweeps: int = 100,
    tolerance: float = 1e-6,
    centered: bool = True,
    epochs: int = 5,
    rate: float = 1e-4,
    reset: Any = True,
    test: Any = None,
    points: int = 0,
    progress: Callable[[str], object] | None = None,
) -> Rebasin:
    """Put the source into the target's coordinates, so that the two interpolate and merge.

    Args:
        source: The network to move. It stays as it is; the result is a new one.
        target: A network of the same architecture. It stays as it is.
        inputs: One batch to trace with: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
            By default the first batch of the data.
        method: ``"permutation-weights"``, ``"permutation-activations"``, ``"procrustes-weights"``,
            ``"procrustes-activations"``, ``"procrustes-weights+activations"``, ``"stiefel"`` or
            ``"straight-through"``; `interbasin.jobs.rebasin.METHODS` describes each.
        variant: Of the method; ``None`` for its default.
        data: Batches to look at, for methods that look at activations, for fine-tuning and for measures: anything that
            can be iterated over more than once. Batches with labels are pairs (inputs, labels).
        loss: Of outputs and labels; by default cross-entropy.
        finetune: Epochs of fine-tuning after alignment; the paper takes 2.
        seed: Of all that is drawn at random.
        reach: ``"exact"``: only maps that leave the function as it is. ``"orthogonal"``: orthogonal maps everywhere,
            approximate where the network does not allow them. ``"auto"``: what the method is known for, see
            `free_spaces`; ``notes`` say where that kept a method to exact maps.
        stay_in_class: Keep the architecture as it is. If False, the norms of both networks are folded first, unless
            they are already, so that residual streams move by orthogonal maps; ``target`` of the result is then the
            folded target.
        restarts: How many runs of weight matching, from different starts; the best is kept.
        sweeps: The limit of sweeps; for a descent, the limit of steps in tens.
        tolerance: A sweep that gains less than this share of the objective is the last.
        centered: Whether activations are matched about their means.
        epochs: Passes of the straight-through method over the data.
        rate: Learning rate of fine-tuning.
        reset: Where networks have batch norms, estimate their running statistics anew, at every point of a barrier
            between its ends and in an aligned network with approximate maps. True: on ``data``, if there are any;
            batches: on those; False: not at all, so that statistics are interpolated like weights.
        test: Data to measure on; by default ``data``.
        points: Also measure the barrier over this many points, on ``test``, without alignment and with it: metrics
            ``barrier``, ``barrier_original`` and ``barrier_none``.
        progress: Called with a line of text as the work goes on.

    Raises:
        WiringError: if the networks cannot be traced, or are not of one architecture.
        ShapeError: if they are of different widths.
        DataError: if a method needs data that were not given, or a number is out of range.
        UnknownNameError: for a method, variant or reach that does not exist.

    Example:
        >>> import torch
        >>> from interbasin import carry, wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> inputs = torch.randn(5, 4)
        >>> other = carry(net, wire(net, inputs).sample(seed=1))
        >>> rebasin(other, net, inputs, method="permutation-weights").metrics["distance_after"]
        0.0
    """
    # What was asked, refused before long work if it cannot be.
    generator_of(seed)
    if points == 1:
        raise DataError("Asked for a barrier over 1 point; give at least two, the ends, or 0 for none.")
    for name, value, least in (
        ("finetune", finetune, 0),
        ("points", points, 0),
        ("restarts", restarts, 1),
        ("sweeps", sweeps, 1),
        ("epochs", epochs, 1),
    ):
        require_whole(name, value, least)
    require_finite("tolerance", tolerance, least=0)
    require_finite("rate", rate, least=0)
    require_reiterable(data, "Re-basin")
    require_reiterable(reset, "Re-basin with reset=")
    first = None if data is None else next(iter(as_batches(data, 128)), None)
    if data is not None and first is None:
        raise DataError("The data hold no batch at all; give some, or leave data= out.")
    has_labels = loss is not None or (first is not None and split_batch(first)[1] is not None)
    chosen, variant = choose_method(method, variant, has_data=data is not None, has_labels=has_labels)
    for wanted, what in ((finetune, "Fine-tuning"), (points, "A barrier")):
        if wanted and (data is None or not has_labels):
            raise DataError(f"{what} needs data with labels; give batches that are pairs (inputs, labels).")
    if inputs is None:
        if first is None:
            raise DataError("Re-basin traces the networks on one batch; give inputs=, or data to take it from.")
        inputs = split_batch(first)[0]
    if stay_in_class or is_folded(source) is is_folded(target):
        require_same_tensors(source, target)
    if not stay_in_class:
        source, target = (net if is_folded(net) else fold_norms(net, inputs) for net in (source, target))
        require_same_tensors(source, target)

    # The spaces, the method's maps between them, and the source carried through the maps.
    watch = Stopwatch()
    with watch("wire"):
        wiring = common_wiring(source, target, inputs)
    turns = bool(chosen.traits.get("turns"))
    task = Task(
        source,
        target,
        wiring,
        free_spaces(wiring, reach, turns=turns),
        data=data if data is None or "labels" in chosen.needs else WithoutLabels(data),
        loss=loss,
        seed=seed,
        options=Options(restarts, sweeps, tolerance, centered, epochs),
        report=progress or (lambda text: None),
    )
    with watch("match"):
        match = chosen.function(task, variant)
    alignment = Alignment(wiring, match.maps)
    with watch("carry"):
        model = carry(source, alignment)
        metrics = {"output_change": _output_change(source, model, alignment, inputs)}

    # What that changed: batch norms, figures, barriers, and the repair by fine-tuning.
    notes = [*match.notes, *notes_on_reach(wiring, reach, turns=turns)]
    if not alignment.is_exact:
        notes.append("The maps are approximate: the aligned network is not the same function as the source.")
    reset_on = data if reset is True else None if reset is False else reset
    has_norms = (data is not None or reset_on is not None) and has_batch_norm(model)
    resets = WithoutLabels(reset_on) if has_norms and reset_on is not None else None
    if resets is not None and not alignment.is_exact:
        model = reset_batch_norm(model, resets)
    measure_on = data if test is None else test
    with watch("measure"):
        metrics |= _measure(task, match, variant, alignment, model, measure_on, has_labels)
    notes += _note_collapse(metrics)
    if has_norms:
        used = None if resets is None else describe_size(reset_on)
        notes += _note_statistics(used, reset is True, not alignment.is_exact, bool(points))
    curves: dict[str, Barrier] = {}

    def measure_barrier(name: str, begin: nn.Module) -> Mapping[str, float]:
        task.report(f"barrier: {name}")
        ends = None if begin is source else (source, target)
        with watch("barrier"):
            curves[name] = barrier(begin, target, measure_on, loss, points=points, ends=ends, reset=resets)
        return curves[name].metrics

    if points:
        metrics["barrier_none"] = measure_barrier("none", source)["barrier"]
        metrics |= measure_barrier(chosen.name, model)
    if finetune:
        with watch("fine-tune"):
            model = finetune_model(model, data, loss, epochs=finetune, rate=rate, report=progress)
        tuned = dict(self_change(source, model, measure_on, loss).metrics)
        if points:
            tuned |= measure_barrier(f"{chosen.name}, fine-tuned", model)
        metrics |= {f"{name}_finetuned": value for name, value in tuned.items()}
    request = {
        "method": chosen.name,
        "variant": variant,
        "reach": reach,
        "stay_in_class": stay_in_class,
        "restarts": restarts,
        "sweeps": sweeps,
        "tolerance": tolerance,
        "centered": centered,
        "epochs": epochs,
        "finetune": finetune,
        "rate": rate,
        "reset": resets is not None,
        "points": points,
        "seed": seed,
    }
    return Rebasin(
        model=model,
        alignment=alignment,
        target=target,
        path=match.path,
        runs=match.runs,
        curves=curves,
        metrics=metrics,
        notes=tuple(notes),
        timings=watch.timings,
        request=request,
    )


def choose_method(
    name: str, variant: str | None, *, has_data: bool, has_labels: bool
) -> tuple[Method[Callable[[Task, str], Match]], str]:
    """The method of that name, and its variant.

    Raises:
        UnknownNameError: if there is no such method or variant.
        DataError: if it needs data or labels, and there are none.
    """
    method = METHODS[name]
    variant = method.variant(variant)
    if method.needs and not has_data:
        without = ", ".join(other.name for other in METHODS.values() if not other.needs)
        raise DataError(
            f"{method.name} looks at {'the loss on' if 'labels' in method.needs else 'activations on'} data, and there "
            f"are none; pass data=, or choose a method that needs none: {without}."
        )
    if "labels" in method.needs and not has_labels:
        raise DataError(f"{method.name} needs labels; give pairs (inputs, labels), or a loss= of the outputs alone.")
    return method, variant


# ---------------------------------------------------------------------- how far maps may reach


def free_spaces(wiring: Wiring, reach: str = "auto", *, turns: bool = True) -> tuple[FreeSpace, ...]:
    """The spaces whose maps are sought, and the group of each to seek in.

    A space's exact group leaves the network's function as it is. The papers' orthogonal maps reach beyond it: behind a
    ReLU they change the function, in exchange for a closer match.

    - ``"exact"``: in every space its own group.
    - ``"orthogonal"``: orthogonal maps wherever the exact group is a smaller one; approximate, and reported as such.
    - ``"auto"``: beyond the groups only in networks that have no exact rotation at all (plain MLPs and the like, as in
      the papers), and there only in spaces without gains, which follow no rotation. Networks with attention have exact
      rotations in their heads and, when norms are folded, in their streams: they stay exact.

    Spaces that are divided into blocks (heads) move by permutations in any case. ``turns`` says whether the method is
    for orthogonal maps; ``"auto"`` keeps others exact.
    """
    require_choice("reach", reach, REACHES)
    divided = {outer for space in wiring.spaces.values() for outer in space.within}
    moving = {name: space for name, space in wiring.spaces.items() if not space.is_fixed}
    plain = all(space.group in _PERMUTATIONS for space in moving.values())
    beyond = reach == "orthogonal" or (reach == "auto" and turns and plain)
    free = []
    for name, space in moving.items():
        group = space.group
        if name in divided:
            group = Group.PERMUTATION
        elif beyond and group in _PERMUTATIONS and (reach == "orthogonal" or not space.scales):
            group = Group.ORTHOGONAL
        free.append(FreeSpace(name, space.size, space.within, space.blocks, group))
    return tuple(free)


def notes_on_reach(wiring: Wiring, reach: str, *, turns: bool) -> list[str]:
    """Where ``"auto"`` kept a method for orthogonal maps to exact ones, and whether anything can move at all."""
    if all(space.is_fixed for space in wiring.spaces.values()):
        return ["No space of these networks can move without changing what they compute; they were left as they are."]
    if reach != "auto" or not turns:
        return []
    both = zip(free_spaces(wiring, "auto"), free_spaces(wiring, "orthogonal"), strict=True)
    kept = [space.name for space, turned in both if space.group is not turned.group]
    if not kept:
        return []
    gains = all(wiring.spaces[name].scales for name in kept)
    why = "norm gains scale them, and follow no rotation" if gains else "the network has exact rotations elsewhere"
    return [
        f"In {plural(len(kept), 'space')} ({list_names(kept)}) only exact maps, such as permutations, were sought, "
        f"because {why}; reach='orthogonal' turns all spaces, and changes the function."
    ]


# ---------------------------------------------------------------------- repair, figures and notes


@torch.inference_mode(False)  # what is trained must not be of inference mode
def finetune_model(
    model: Model,
    data: Any,
    loss: Loss | None = None,
    *,
    epochs: int = 2,
    rate: float = 1e-4,
    report: Callable[[str], object] | None = None,
) -> Model:
    """A copy of ``model`` after some epochs of Adam, in the order in which the data come.

    Two epochs at 1e-4 undo what approximate maps cost [adelfio:25, section 4]. Batch norms and dropout stay in
    evaluation mode: only the weights are repaired, and the statistics are reset separately.

    Raises:
        DataError: if there are no labels and no loss that works without, or the loss is not finite.
    """
    network = copied(model).eval()
    network.requires_grad_(True)

    def batch_loss(batch: Any, index: int) -> Tensor:
        inputs, labels = split_batch(batch)
        return mean_loss(outputs_of(network, inputs, index), labels, inputs, index, loss)

    parameters = [parameter for parameter in network.parameters() if parameter.is_floating_point()]
    train(parameters, data, batch_loss, epochs=epochs, rate=rate, what="fine-tuning", report=report)
    required = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(required[name])
        parameter.grad = None
    for module, original in zip(network.modules(), model.modules(), strict=True):
        module.training = original.training
    return network


def _output_change(source: nn.Module, aligned: nn.Module, alignment: Alignment, inputs: Any) -> float:
    """How much the outputs changed; more than rounding is an error if the maps are exact."""
    change = difference(source, aligned, inputs)
    allowed = 10 * round_off(source)
    if alignment.is_exact and not change <= allowed:
        raise WiringError(
            f"The maps are exact, but the aligned network's outputs differ by {change:.1e} of their size from the "
            f"source's (up to {allowed:.1e} would be rounding): the wiring of {type(source).__name__} is wrong, or it "
            "computes at the edge of its precision. Look at wire(model, inputs).check(model, inputs), try the networks "
            "in float64, and please report it."
        )
    return change


def _measure(
    task: Task, match: Match, variant: str, alignment: Alignment, model: nn.Module, data: Any, has_labels: bool
) -> dict[str, float]:
    metrics = {
        "distance_before": distance(task.source, task.target).metrics["distance"],
        "distance_after": distance(model, task.target).metrics["distance"],
        "objective": float(match.objective),
        "exact": float(alignment.is_exact),
        "converged": float(match.converged),
    }
    if data is None:
        return metrics
    at: Literal["pre", "post"] = "pre" if variant == "pre" else "post"
    if alignment.maps.keys() & standing(task.wiring, at).keys():
        errors = alignment_error(task.source, task.target, alignment, data, at=at).metrics
        metrics |= {name: value for name, value in errors.items() if math.isfinite(value)}
    if has_labels:
        metrics |= self_change(task.source, model, data, task.loss, alignment=alignment).metrics
    return metrics


def _note_statistics(used: str | None, on_data: bool, aligned: bool, points: bool) -> list[str]:
    """Whose statistics the figures of networks with batch norms stand on; without that they mean nothing."""
    if not points and not (used and aligned):
        return []
    if used is None:
        return [
            "The networks have batch norms whose running statistics were interpolated like weights at every point of "
            "the barrier; networks in between do badly for that alone."
        ]
    where = ["in the aligned network"] if aligned else []
    where += ["at every point of the barrier between its ends, which keep their own"] if points else []
    return [
        f"The running statistics of batch norms were estimated anew {' and '.join(where)}, on "
        f"{used}{' of the data that maps were found with' if on_data else ''}; a merge has such figures only if its "
        "statistics are reset too (reset= of merge)."
    ]


def _note_collapse(metrics: Mapping[str, float]) -> list[str]:
    """A warning where the aligned network itself no longer works: a low barrier beside it means nothing."""
    lost = -metrics.get("delta_accuracy_self", 0.0)
    if not lost > COLLAPSE:
        return []
    return [
        f"The aligned network's accuracy is {100 * lost:.1f} points below the source's: these maps change the function "
        "too much. Judge by barrier_original, and try reach='exact', another method or fine-tuning (finetune=2)."
    ]
