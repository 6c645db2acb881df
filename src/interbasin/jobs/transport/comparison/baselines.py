"""What a method of transport is compared with: rules without gradients and without labels.

Some show that a gain is no accident (nothing, padding, noise), some are the seed's ablations of its map, and some ask
whether the update had to be carried at all (tuned A itself, B's last layer fitted to tuned A).
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from interbasin.activations.pairing import masks_of
from interbasin.batches import WithoutLabels, device_of
from interbasin.errors import ShapeError, WiringError
from interbasin.jobs.transport.methods import as_update, theseus
from interbasin.jobs.transport.regression.layers import Layer, find_layers, set_weight, weight_of
from interbasin.jobs.transport.regression.ridge import Sums
from interbasin.jobs.transport.rows import Watcher, input_rows, reading_at
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.theseus.carrier import Way
from interbasin.jobs.transport.theseus.pieces import change_pieces, shape_of, target_piece_of
from interbasin.jobs.transport.theseus.rules import (
    RIDGE,
    Rule,
    linear,
    linear_orthogonal,
    linear_transposed,
    pinv,
    pinv_orthogonal,
)
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update
from interbasin.randomness import generator_of
from interbasin.text import list_names
from interbasin.wiring.trace.copying import copied

# The most singular directions that Cross-LoRA looks at, as in its paper.
SUBSPACE = 320


# ---------------------------------------------------------------------- nothing, padding, noise


def none(task: Task, variant: str) -> Transported:
    """The target as it is."""
    return Transported(Update(label="no update", kinds=kinds_of(task.bases.target)))


def padded(task: Task, variant: str) -> Transported:
    """Each tensor of the update in the corner of the target's, with zeros around it, or cropped."""

    def change(piece: Tensor, way: Way) -> tuple[Tensor, str] | str:
        shape = shape_of(way, task.bases)
        if piece.ndim != len(shape):
            return f"it has {piece.ndim} axes, and {len(shape)} in the target"
        whole = piece.new_zeros(shape)
        corner = tuple(slice(min(ours, theirs)) for ours, theirs in zip(piece.shape, shape, strict=True))
        whole[corner] = piece[corner]
        return whole, "copied" if piece.shape == whole.shape else "padded with zeros, or cropped"

    carried = change_pieces(task.bases, task.update, change, label="the padded update")
    return Transported(carried.update, carried.moved)


def random(task: Task, variant: str) -> Transported:
    """Noise in the target, of the norm that the update of each tensor has in the source."""
    generator = generator_of(task.options.seed)

    def change(piece: Tensor, way: Way) -> tuple[Tensor, str]:
        return _noise(shape_of(way, task.bases), piece, generator), "noise of the same norm"

    carried = change_pieces(task.bases, task.update, change, label="a random update")
    return Transported(carried.update, carried.moved)


def random_through_maps(task: Task, variant: str) -> Transported:
    """Noise in the source, of the update's norm in each tensor, through the maps that the update would take."""
    generator = generator_of(task.options.seed)
    noise = {name: _noise(task.update.shape(name), task.update.tensor(name), generator) for name in task.update}
    maps = task.maps()
    carried = task.carrier(maps).carry(Update(dense=noise, label="a random update", kinds=task.update.kinds))
    return Transported(carried.update, carried.moved, maps)


def _noise(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    norms = [float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in (like, drawn)]
    return (drawn * (norms[0] / norms[1] if norms[1] else 0.0)).to(like)


# ---------------------------------------------------------------------- other maps


def _through(task: Task, rule: Rule) -> Transported:
    maps = task.maps(rule)
    carried = task.carrier(maps).carry(task.update)
    grouped = [cluster.heads[0] for cluster in task.needed_maps.heads if cluster.places]
    notes: tuple[str, ...] = ()
    if grouped:
        notes = (
            f"The heads of {list_names(grouped)} come in groups, whose maps are isometries inside these groups under "
            "every rule.",
        )
    return Transported(carried.update, carried.moved, maps, notes=notes)


def through_pinv(task: Task, variant: str) -> Transported:
    """Through the coupled least squares [rinaldi:26, eq. 28]."""
    return _through(task, pinv)


def through_pinv_tikhonov(task: Task, variant: str) -> Transported:
    """Through the coupled least squares with a ridge, a hundredth of the Gram matrices' mean eigenvalue."""
    return _through(task, partial(pinv, ridge=RIDGE))


def through_pinv_orthogonal(task: Task, variant: str) -> Transported:
    """Through the isometry nearest to the map of the coupled least squares."""
    return _through(task, pinv_orthogonal)


def through_linear(task: Task, variant: str) -> Transported:
    """Through the least-squares map of each space.

    ``"dual"`` multiplies read axes by its dual: exact where the spaces differ by an invertible map.
    ``"transpose"`` is the paper's, which multiplies both sides by the map itself [rinaldi:26, eq. 30].
    """
    return _through(task, linear_transposed if variant == "transpose" else linear)


def through_linear_ridge(task: Task, variant: str) -> Transported:
    """The same with a ridge, a hundredth of the Gram matrix's mean eigenvalue."""
    return _through(task, partial(linear_transposed if variant == "transpose" else linear, ridge=RIDGE))


def through_linear_orthogonal(task: Task, variant: str) -> Transported:
    """Through the isometry nearest to the least-squares map."""
    return _through(task, linear_orthogonal)


def ortho(task: Task, variant: str) -> Transported:
    """The paper's decoupled isometry. As printed it is the map of Theseus, and so is this."""
    transported = theseus(task, "spaces")
    note = "As printed, ortho is the same map as theseus; this row is theseus."
    return Transported(transported.update, transported.moved, transported.maps, notes=(note,))


# ---------------------------------------------------------------------- weights alone


def cross_lora(task: Task, variant: str) -> Transported:
    r"""From weights alone: the update seen in the leading singular directions of the two base weights [xia:25].

    With :math:`W_A = U_A S_A V_A^\top` and :math:`W_B` likewise, cut to the leading directions, the transformations
    that bring :math:`U_A` and :math:`V_A` nearest to :math:`U_B` and :math:`V_B` in the Frobenius norm are
    :math:`P = U_A^\top U_B` and :math:`Q = V_A^\top V_B`, and the update of the target is
    :math:`U_B P^\top U_A^\top \tau_A V_A Q V_B^\top`. Where widths differ, the directions of the narrower network are
    padded with zeros: the paper leaves that open. It knows nothing of how units correspond, and vectors (biases, gains)
    have no such directions: they are not moved.
    """
    networks = task.bases.source.state_dict(), task.bases.target.state_dict()

    def change(piece: Tensor, way: Way) -> tuple[Tensor, str] | str:
        shape = shape_of(way, task.bases)
        if piece.ndim < 2 or piece.ndim != len(shape) or piece.shape[2:] != shape[2:]:
            return "it is no matrix, or another kind of one in the target"
        bases = way.pair.cut(networks[0][way.pair.source]), target_piece_of(networks[1][way.pair.target], way)
        (left, right), (left_target, right_target) = (_leading(base) for base in bases)
        inner = left.mT @ piece.double().flatten(1) @ right
        inner = _overlap(left, left_target).mT @ inner @ _overlap(right, right_target)
        moved = left_target @ inner @ right_target.mT
        return moved.reshape(shape).to(piece.dtype), f"through {left.shape[1]} singular directions of its weight"

    carried = change_pieces(task.bases, task.update, change, label="the update by singular directions")
    return Transported(carried.update, carried.moved)


def _leading(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The leading left and right singular directions of a weight, as columns."""
    left, _, right = torch.linalg.svd(weight.detach().double().flatten(1), full_matrices=False)
    return left[:, :SUBSPACE], right[:SUBSPACE].mT


def _overlap(source: Tensor, target: Tensor) -> Tensor:
    rows = min(len(source), len(target))
    return source[:rows].mT @ target[:rows]


# ---------------------------------------------------------------------- tuned A, and the last layer alone


def tuned_source(task: Task, variant: str) -> Transported:
    """Tuned A itself: what B has to be better than, on the task or on what B could do before."""
    note = "This row is tuned A: no update, and nothing of the target."
    return Transported(none(task, variant).update, notes=(note,), model=task.tuned)


def head_ridge(task: Task, variant: str, *, ridge: float | None = None) -> Transported:
    """The target with its last layer alone fitted to tuned A's outputs, by ridge regression from what it reads.

    Generic inputs, where given, aim at the target's own outputs (or at tuned A's: ``generic_target``).

    Args:
        task: With outputs that the networks share.
        variant: There is one.
        ridge: Relative to the mean eigenvalue of the Gram matrix; None: by generalised cross-validation.

    Raises:
        WiringError: If outputs are not shared, or the last layer is not one linear layer with a weight of its own.
    """
    if not task.bases.shares_outputs:
        raise WiringError(
            "The last layer can only be fitted to tuned A's outputs where they mean the same in the target, and the "
            "networks' outputs are their own; leave head-ridge out, or say outputs='shared'."
        )
    task = task.as_given
    layer = last_layer(task)
    target = task.bases.target
    sums = _sum_rows(task, layer, task.tuned, layer.at[0], task.data)
    if task.generic is not None:
        keeps_target = task.options.generic_target == "keep"
        network, place = (target, layer.output) if keeps_target else (task.tuned, layer.at[0])
        generic = _sum_rows(task, layer, network, place, task.generic)
        sums = sums.plus(generic, task.options.generic_weight * sums.count / max(generic.count, 1e-12))
    return fit_last_layer(task, layer, sums, ridge)


def last_layer(task: Task) -> Layer:
    """The one linear layer that writes the target's outputs."""
    bases = task.bases.with_heads
    wiring = bases.wirings[1]
    layers, left_out = find_layers(bases, WithoutLabels(task.data).first())
    # A stream that is also put out, as the encoder's states of an encoder-decoder are, is read on the way: no end.
    ends = [
        layer
        for layer in layers
        if (space := wiring.spaces.get(layer.spaces[1])) and _is_output(space.because) and not space.reads
    ]
    weights = [f"{layer.target}.weight" for layer in ends]
    tied = [name for name, first in wiring.tied.items() if not weights or {name, first} & set(weights)]
    if len(ends) != 1 or tied:
        why = [f"{name}: {reason}" for name, reason in left_out.items()] + [f"{name} is tied" for name in tied]
        reasons = f" ({list_names(why)})" if why else ""
        raise WiringError(
            f"Asked to fit the target's last layer, found {len(ends)} linear layers that write its outputs{reasons}; "
            "leave this row out, or end both networks in one linear layer with a weight of its own."
        )
    return ends[0]


def _is_output(reason: object) -> bool:
    return getattr(reason, "kind", None) == "output"


def _sum_rows(task: Task, layer: Layer, model: nn.Module, place: str, data: object) -> Sums:
    """The sums of what the last layer reads in the target, and of what another network shows at a place."""
    sums = Sums()
    target = task.bases.target
    reading, aim = reading_at(f"{layer.target}:input"), reading_at(place)
    for inputs in WithoutLabels(data):
        rows = input_rows(target.get_submodule(layer.target), Watcher(target, [reading]).run(inputs)[reading])
        goal = Watcher(model, [aim]).run(inputs)[aim]
        if rows.ndim > 3 or goal.ndim > 3:
            rows, goal = rows.flatten(1, -2), goal.flatten(1, -2)
        if rows.shape[:-1] != goal.shape[:-1]:
            raise ShapeError(
                f"What {layer.target} reads has rows {tuple(rows.shape[:-1])}, and tuned A's outputs "
                f"{tuple(goal.shape[:-1])}: the last layer can only be fitted where outputs pair one by one."
            )
        masks = masks_of(inputs, task.options.mask, device_of(target))
        row_mask = None if masks is None else masks.fitting(layer.target, rows.shape[:-1])
        x, y = rows.flatten(0, -2), goal.flatten(0, -2)
        if row_mask is not None:
            x, y = x[row_mask.flatten().to(x.device)], y[row_mask.flatten().to(y.device)]
        sums.add(x, y.to(x.device))
    return sums


def fit_last_layer(task: Task, layer: Layer, sums: Sums, ridge: float | None) -> Transported:
    """The target with its last layer solved for, shrunk towards the weight that it had."""
    model = copied(task.bases.target).eval()
    module = model.get_submodule(layer.target)
    solution = sums.solve(*weight_of(module), ridge=ridge)
    set_weight(module, solution.weight, solution.bias)
    explained = "" if math.isnan(solution.explained) else f", which explains {solution.explained:.0%} of its target"
    return Transported(
        as_update(model, task.bases.target),
        notes=(f"Only {layer.target} was fitted{explained} (relative ridge {solution.ridge:.1g}).",),
    )
