"""The methods of transport by name. A new method is a function ``(task, variant) -> Transported`` and a row here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from interbasin.checkpoints.delta import difference
from interbasin.errors import ShapeError, WiringError
from interbasin.jobs.transport.bases import Bases
from interbasin.jobs.transport.regression.sequence import Recipe, Regressed, regress
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.theseus.by_module import theseus_by_module
from interbasin.jobs.transport.theseus.by_weights import maps_by_weights
from interbasin.jobs.transport.theseus.carrier import Carrier, Moved
from interbasin.jobs.transport.updates.update import Update
from interbasin.methods import Method, MethodTable
from interbasin.text import list_names
from interbasin.wiring.trace.copying import remember_buffers


def theseus(task: Task, variant: str) -> Transported:
    """The update through an isometry of each space, or of each module's two sides as the paper has it [rinaldi:26].

    Isometries come from activations, or from the weights of the base networks alone.
    """
    if variant == "modules":
        return theseus_by_module(task)
    if variant == "weights":
        maps = maps_by_weights(task.bases)
        carried = Carrier(task.bases, maps).carry(task.update)
        notes = ("Weights do not show how large activations are: scale='rms' has no part in maps from them.",)
        return Transported(carried.update, carried.moved, maps, notes=notes if task.options.scale == "rms" else ())
    maps = task.maps()
    carried = task.carrier(maps).carry(task.update)
    return Transported(carried.update, carried.moved, maps)


def regression(task: Task, variant: str) -> Transported:
    """The target's layers, one after the other, fitted to what tuned A does; see `regression`.

    Layers before the last aim at tuned A's activations, or (``"shift"``) at the target's own and what fine-tuning
    changed in A's.
    """
    refuse_new_blocks(task.bases)
    carried = task.carrier(task.maps(scale=True)).carry(task.update)
    start = carried_rest = carried.update.added_to(task.bases.target)
    if task.options.rank is not None:
        # What is not fitted has factors as well in the end: layers are to be fitted to what they will meet then.
        cut = carried.update.truncated(task.options.rank, task.bases.target)[0]
        carried_rest = cut.added_to(task.bases.target)
    # Fitting runs the networks, which may write their buffers then: that is no part of the update.
    restore = remember_buffers(task.bases.target, start, carried_rest)
    options = task.options
    result = regress(
        task.bases.with_heads,
        task.tuned,
        task.data,
        generic=task.generic,
        start=start,
        rest=carried_rest,
        recipe=Recipe(
            generic_target=options.generic_target,
            generic_weight=options.generic_weight,
            attention=options.attention,
            aim=variant,
            rank=options.rank,
        ),
        centered=options.centered,
        tokens=options.tokens,
        mask=options.mask,
        report=task.report,
        journal=task.journal,
    )
    restore()
    fitted_tensors = {name for fit in result.layers for name in fit.layer.fitted_tensors}
    for name, buffer in copy.deepcopy(dict(start.named_buffers(remove_duplicate=False))).items():
        if name not in fitted_tensors:
            module, _, buffer_name = name.rpartition(".")
            result.model.get_submodule(module)._buffers[buffer_name] = buffer
    notes: tuple[str, ...] = ()
    if result.left_out:
        names = list_names(f"{name} ({why})" for name, why in result.left_out.items())
        notes = (f"Carried by theseus, and not fitted: {names}.",)
    update = as_update(result.model, task.bases.target)
    if result.factors:
        rest = {name: update.tensor(name) for name in update if name not in result.factors}
        update = replace(
            update,
            dense={name: tensor for name, tensor in rest.items() if bool(tensor.any())},
            factors=result.factors,
            transposed=frozenset(name for name in result.factors if update.kinds.get(name) == "conv1d"),
        )
    return Transported(update, _account(result, carried.moved), layers=result.layers, notes=notes)


def refuse_new_blocks(bases: Bases) -> None:
    """A regression runs tuned A."""
    if bases.lengthening is not None:
        raise WiringError(
            "A regression aims at what the tuned source does, and with new blocks between its own it does so no longer "
            "(depth='interpolate'); take depth='cka', or method='theseus'."
        )


def _account(result: Regressed, carried: Sequence[Moved]) -> tuple[Moved, ...]:
    """What became of each tensor of the source's update: fitted, or carried, where no layer holds it."""
    reasons = {
        name: "the tuned source's rows" if fit.layer.aim == "taken" else f"fitted; explains {fit.explained:.0%}"
        for fit in result.layers
        for name in fit.layer.fitted_tensors
    }
    rows = []
    for row in carried:
        tensor = (row.target or "").partition("[")[0]
        why = result.left_out.get(tensor)
        if tensor in reasons:
            row = replace(row, status="moved", reason=reasons[tensor], unobserved=0.0)
        elif why is not None:
            row = replace(row, reason=f"{row.reason}; not fitted: {why}")
        rows.append(row)
    return tuple(rows)


def direct(task: Task, variant: str) -> Transported:
    """The update as it is: for bases of one lineage nothing is better [cao:25]."""
    shapes = {name: tuple(tensor.shape) for name, tensor in task.bases.target.state_dict().items()}
    rows = []
    total = task.update.norm() ** 2 or 1.0
    for name in task.update:
        if shapes.get(name) != task.update.shape(name):
            raise ShapeError(
                f"A direct copy needs networks of the same tensors: {name} is {task.update.shape(name)} in the source "
                f"and {shapes.get(name, 'not there')} in the target; take theseus or regression."
            )
        rows.append(Moved(name, name, "kept", "copied as it is", task.update.norm_of(name) ** 2 / total))
    return Transported(task.update, tuple(rows))


def as_update(model: nn.Module, base: nn.Module) -> Update:
    """What makes ``base`` into ``model``."""
    return Update.of(dict(difference(model, base)), base)


METHODS: MethodTable[Callable[[Task, str], Transported]] = MethodTable(
    "method of transport",
    [
        Method(
            "theseus",
            "rinaldi:26",
            "the update through an isometry of each space, from what the base models show on the same inputs (weights: "
            "from their weights alone); keeps norms and the rank of a LoRA",
            theseus,
            needs=frozenset({"data"}),
            variants=("spaces", "modules", "weights"),
        ),
        Method(
            "regression",
            "interbasin",
            "the target's layers, one after the other, fitted in closed form to what the tuned source does; dense",
            regression,
            needs=frozenset({"data", "tuned"}),
            variants=("tuned", "shift"),
        ),
        Method(
            "direct",
            "cao:25",
            "the update as it is, for base models of the same shapes and one lineage",
            direct,
            variants=("copy",),
        ),
    ],
)
