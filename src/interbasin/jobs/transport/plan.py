"""What a transport would do, before anything is chosen or written: what moves, what was seen, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.batches import WithoutLabels, reporter_of, require_reiterable
from interbasin.correspondence import Correspondence
from interbasin.errors import InterbasinError
from interbasin.jobs.transport.bases import Bases, Depth, Heads, Outputs, Pair, relate
from interbasin.jobs.transport.choice import ALPHAS, SCALED
from interbasin.jobs.transport.figures import note_unmatched
from interbasin.jobs.transport.held_out import HELD_OUT, count_repeats
from interbasin.jobs.transport.methods import METHODS, direct, refuse_new_blocks
from interbasin.jobs.transport.networks import require_inputs, require_numbers
from interbasin.jobs.transport.regression.layers import Layer, find_layers
from interbasin.jobs.transport.task import Options, Task
from interbasin.jobs.transport.theseus.by_weights import maps_by_weights
from interbasin.jobs.transport.theseus.carrier import Carrier, Moved
from interbasin.jobs.transport.theseus.rules import SpaceMap, Unobserved
from interbasin.jobs.transport.updates.answers import refuse_other_answers
from interbasin.jobs.transport.updates.fine_tunes import read_fine_tune
from interbasin.jobs.transport.updates.ties import copy_untied, names_apart
from interbasin.maps import Identity
from interbasin.statistics import PairedMoments
from interbasin.text import list_names
from interbasin.wiring.trace.copying import leaving_buffers

AUTO = "auto"
NUMBER = 8  # bytes of a float64, in which statistics are kept
CARRYING = 24  # bytes for each number of a tensor while it is carried, some of them in float64


@dataclass(frozen=True)
class PlannedSpace:
    """How many directions of a pair of spaces the inputs show, of those that a map has."""

    source: str
    target: str
    widths: tuple[int, int]
    seen: int
    full: int


@dataclass(frozen=True)
class Plan:
    """What a transport would do.

    Attributes:
        moved: What would become of each tensor of the source's update.
        spaces: What the inputs show of each pair of spaces.
        seconds: About how long each method would take, with what is chosen and measured around it.
        memory: About how many bytes of networks, updates and statistics are held at once, beside a batch's activations.
        shares_outputs: Whether outputs are taken to mean the same in both networks.
        heads: Whether heads are matched one to one, or mixed.
        notes: What a user should know.
    """

    moved: tuple[Moved, ...]
    spaces: tuple[PlannedSpace, ...]
    seconds: Mapping[str, float]
    memory: int
    shares_outputs: bool
    heads: str
    notes: tuple[str, ...] = ()

    def share(self, status: str) -> float:
        """How much of the update's squared norm would be moved, kept or skipped."""
        return sum(row.share for row in self.moved if row.status == status)


@leaving_buffers
def plan_transport(
    source: nn.Module,
    tuned: Any,
    target: nn.Module,
    data: Any,
    *,
    method: str = AUTO,
    variant: str | None = None,
    outputs: Outputs = "auto",
    generic: Any = None,
    centered: bool = True,
    tokens: str | Tokens | None = "interpolate2d",
    mask: MaskOf = None,
    unobserved: Unobserved = "complete",
    heads: Heads = "auto",
    depth: Depth = "auto",
    correspondence: Correspondence | Mapping[str, Any] | None = None,
    merge: str = "task-arithmetic",
    merge_weights: Sequence[float] | None = None,
    density: float | None = None,
    seed: int = 0,
    progress: Callable[[str], object] | bool | None = None,
) -> Plan:
    """What `transport` would do with the same arguments: both base networks see the inputs once, and nothing is fitted.

    The account is that of the method; of ``method="auto"`` that of theseus, and a note says what a regression would
    fit.

    Raises:
        WiringError, DataError, ShapeError, UnknownNameError: As `transport` does.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> wide = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
        >>> plan = plan_transport(net, {"2.weight": torch.ones(2, 8)}, wide, torch.randn(64, 4))
        >>> [(row.source, row.status) for row in plan.moved]
        [('2.weight', 'moved')]
        >>> plan.spaces[0].widths
        (8, 12)
    """
    report = reporter_of(progress)
    options = Options(centered=centered, unobserved=unobserved, tokens=tokens, mask=mask, seed=seed).check()
    if method != AUTO:
        METHODS[method].variant(variant)
    for name, value in (("data", data), ("generic", generic)):
        require_reiterable(value, f"Transport with {name}=")
    require_numbers(source, "source")
    require_numbers(target, "target")
    inputs = WithoutLabels(data).first()
    require_inputs(inputs)
    count_repeats(data)  # refuses data whose inputs are all the same one
    update = read_fine_tune(tuned, source, merge=merge, weights=merge_weights, density=density)
    not_compared = refuse_other_answers(tuned, source, inputs)
    apart = names_apart(update, source)
    if apart:
        source, target = copy_untied(source, apart), copy_untied(target)
    report("tracing both networks")
    began = time.perf_counter()
    bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
    update = bases.lengthen(update)
    wiring_seconds = time.perf_counter() - began
    # Tuned A is not run on the data, so that it need not be kept.
    task = Task(bases, update, bases.source, data, generic, None, options, report)
    began = time.perf_counter()
    moments = task.moments
    pass_seconds = time.perf_counter() - began
    began = time.perf_counter()
    by_weights = method == "theseus" and variant == "weights"
    maps = maps_by_weights(bases) if by_weights else task.maps()
    carried = (Carrier(bases, maps) if by_weights else task.carrier(maps)).carry(update)
    carry_seconds = time.perf_counter() - began
    layers, left_out, obstacle = _layers(bases, data)
    moved, notes = carried.moved, [*update.notes, *not_compared, *bases.notes, *note_unmatched(bases)]
    if method == "regression":
        if obstacle:
            raise obstacle
        moved = _account(task, layers, left_out)
    elif method == "direct":
        moved = direct(task, "copy").moved
    elif method == AUTO:
        notes.append(_note_regression(layers, left_out, obstacle))
    shapes = {name: tuple(tensor.shape) for name, tensor in target.state_dict().items()}
    unfit = () if all(shapes.get(name) == update.shape(name) for name in update) else ("direct",)
    # The spaces are measured, and all is fitted once more at the end.
    common_seconds = wiring_seconds + pass_seconds * (1 + HELD_OUT)
    seconds = {
        name: common_seconds + (2 - HELD_OUT) * cost
        for name, cost in _costs(layers, generic, data, pass_seconds, carry_seconds).items()
        if method == name or (method == AUTO and not (name in unfit or (obstacle and name == "regression")))
    }
    if method == AUTO:
        seconds = {**seconds, AUTO: sum(seconds.values()) - (len(seconds) - 1) * common_seconds}
    return Plan(
        moved,
        tuple(_spaces(bases, maps)),
        seconds,
        _memory(bases, moments, maps, regression="regression" in seconds),
        bases.shares_outputs,
        bases.heads,
        tuple(dict.fromkeys(notes)),
    )


def _layers(bases: Bases, data: Any) -> tuple[list[Layer], dict[str, str], InterbasinError | None]:
    """What a regression would fit and what it would leave, or why it cannot be done at all."""
    try:
        refuse_new_blocks(bases)
        return *find_layers(bases.with_heads, WithoutLabels(data).first()), None
    except InterbasinError as error:
        return [], {}, error


def _account(task: Task, layers: list[Layer], left_out: Mapping[str, str]) -> tuple[Moved, ...]:
    """What would become of each tensor of the update by regression."""
    fitted_tensors = {name for layer in layers for name in layer.fitted_tensors}
    partners: dict[str, list[str]] = {}
    for pair in task.bases.with_heads.correspondence.tensors:
        partners.setdefault(pair.source, []).append(pair.target)
    rows, total = [], task.update.norm() ** 2 or 1.0
    for name in task.update:
        targets = partners.get(name, [])
        share = task.update.norm_of(name) ** 2 / total / max(len(targets), 1)
        if not targets:
            rows.append(Moved(name, None, "skipped", "it has no counterpart in the target", share))
        for target in targets:
            if target in fitted_tensors:
                rows.append(Moved(name, target, "moved", "fitted to what the tuned source does", share))
            else:
                why = left_out.get(target, "no layer that a regression fits; the target's own stays")
                rows.append(Moved(name, target, "skipped", why, share))
    return tuple(rows)


def _note_regression(layers: list[Layer], left_out: Mapping[str, str], obstacle: InterbasinError | None) -> str:
    if obstacle:
        return f"A regression could not be tried: {obstacle}"
    beside = f", and leave {list_names(left_out)} as they are" if left_out else ""
    return f"A regression would fit {len({layer.target for layer in layers})} layers of the target{beside}."


def _spaces(bases: Bases, maps: Mapping[Pair, SpaceMap]) -> list[PlannedSpace]:
    rows = []
    for pair, space_map in maps.items():
        if not isinstance(space_map.map, Identity):
            source, target = bases.spaces(pair)
            rows.append(PlannedSpace(*pair, (source.width, target.width), space_map.rank, space_map.full))
    return rows


def _costs(layers: list[Layer], generic: Any, data: Any, pass_seconds: float, carry_seconds: float) -> dict[str, float]:
    """Seconds that each method takes once, from those that one pass and one carrying took."""
    batches = [0 if each is None else sum(1 for _ in WithoutLabels(each)) for each in (data, generic)]
    # Every value of alpha is tried on the held-out inputs; a regression runs both networks again for every layer.
    search = len(ALPHAS) * HELD_OUT * pass_seconds
    theseus = pass_seconds + carry_seconds
    stages = len({layer.target for layer in layers})
    return {
        name: {
            "theseus": theseus,
            "regression": theseus + stages * pass_seconds * sum(batches) / max(batches[0], 1),
        }.get(name, 0.0)
        + (search if name in SCALED else HELD_OUT * pass_seconds)
        for name in METHODS.names
    }


def _memory(
    bases: Bases, moments: Mapping[Pair, PairedMoments], maps: Mapping[Pair, SpaceMap], *, regression: bool
) -> int:
    """Bytes that are held at once: networks and copies of them, updates, statistics and maps.

    The factors were measured (tests/jobs/transport/test_plan.py holds them to a factor of 3): each stands for what is
    there when most is there, on the data without the held-out inputs and on all of them.
    """
    source, target = (network.state_dict().values() for network in (bases.source, bases.target))
    largest = max((tensor.numel() for tensor in target), default=0)
    crosses = sum(NUMBER * each.source_width * each.target_width for each in moments.values())
    widest = max((each.target_width for each in moments.values()), default=0)
    map_bytes = sum(
        NUMBER * each.map.source_width * each.map.target_width
        for each in maps.values()
        if not isinstance(each.map, Identity)
    )
    source_bytes, target_bytes = (sum(map(_bytes, tensors)) for tensors in (source, target))
    total = 3 * source_bytes + 6 * target_bytes + CARRYING * largest + 2 * crosses + 7 * map_bytes
    if regression:  # what it starts from, what it has fitted, and the Gram matrices of a layer
        total += 2 * target_bytes + CARRYING // 2 * largest + 6 * NUMBER * widest**2
    return total


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
