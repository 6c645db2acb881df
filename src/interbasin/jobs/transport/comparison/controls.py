"""The controls that need more than transport has: labels, and the gradients of networks on them.

`distillation` holds the one that needs gradients alone. Rows with labels stand apart in every table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.hooks import RemovableHandle

from interbasin.activations.pairing import masks_of
from interbasin.batches import BATCH_SIZE, WithoutLabels, as_batches, device_of, outputs_of, split_batch
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.performance import Loss, mean_loss
from interbasin.jobs.rebasin import rebasin
from interbasin.jobs.transport.bases import Pair
from interbasin.jobs.transport.comparison.baselines import fit_last_layer, last_layer
from interbasin.jobs.transport.methods import direct, theseus
from interbasin.jobs.transport.regression.ridge import Sums
from interbasin.jobs.transport.rows import Watcher, input_rows, reading_at
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.theseus.by_module import carry_by_module, places_of
from interbasin.jobs.transport.theseus.carrier import Moved
from interbasin.jobs.transport.theseus.rules import SecondMoments
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update
from interbasin.statistics import PairedMoments
from interbasin.text import list_names
from interbasin.training import train
from interbasin.wiring.carry import carry
from interbasin.wiring.trace.copying import copied


def labelled_batches(data: Any, what: str) -> Iterator[tuple[int, Any, Any]]:
    """The batches of some data with their labels, numbered.

    Raises:
        DataError: If a batch has no labels, or there is no batch.
    """
    number = -1
    for number, batch in enumerate(as_batches(data, BATCH_SIZE)):
        inputs, labels = split_batch(batch)
        if labels is None:
            raise DataError(
                f"{what} needs labels, and batch {number} has none; give pairs (inputs, labels), or leave it out."
            )
        yield number, inputs, labels
    if number < 0:
        raise DataError(f"The data of {what} hold no batch at all; give some.")


def _loss_of(model: nn.Module, task: Task, number: int, inputs: Any, labels: Any, loss: Loss | None) -> Tensor:
    """The mean loss of one batch, of the logits where a read-out makes some."""
    outputs = outputs_of(model, inputs, number)
    if loss is None and task.readout is not None:
        outputs = task.readout(outputs)
    return mean_loss(outputs, labels, inputs, number, loss)


# ---------------------------------------------------------------------- the last layer, onto labels


def label_ridge(task: Task, variant: str, *, ridge: float | None = None) -> Transported:
    """The target with its last layer alone fitted to labels, by ridge regression from what it reads.

    What a label aims at is one in its own output and zero in the others. With a read-out it is the output, as large as
    the target's own, that the read-out takes for the label most surely. Tuned A has no part in this.

    Args:
        task: Whose data have labels, whole numbers, one for each row that the last layer reads.
        variant: There is one.
        ridge: Relative to the mean eigenvalue of the Gram matrix; None: by generalised cross-validation.
    """
    layer, target, sums = last_layer(task), task.bases.target, Sums()
    readings = [reading_at(f"{layer.target}:input"), reading_at(layer.output)]
    goals: Tensor | None = None
    for number, inputs, labels in labelled_batches(task.data, "label-ridge"):
        activations = Watcher(target, readings).run(inputs)
        rows = input_rows(target.get_submodule(layer.target), activations[readings[0]]).flatten(0, -2)
        outputs = activations[readings[1]].flatten(0, -2)
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.numel() != len(rows):
            raise ShapeError(
                f"label-ridge needs a whole number as label for each row that {layer.target} reads, found "
                f"{len(rows)} rows and {tuple(getattr(labels, 'shape', ()))} labels in batch {number}; leave it out."
            )
        if goals is None:
            goals = _outputs_of_classes(task.readout, outputs)
        if int(labels.min()) < 0 or int(labels.max()) >= len(goals):
            raise DataError(
                f"Batch {number} has labels from {int(labels.min())} to {int(labels.max())}, but there are "
                f"{len(goals)} classes; give labels from 0 on."
            )
        sums.add(rows, goals.to(rows.device)[labels.flatten().to(rows.device)])
    return fit_last_layer(task, layer, sums, ridge)


def _outputs_of_classes(readout: Callable[[Any], Tensor] | None, outputs: Tensor) -> Tensor:
    """For every class the output that stands for it, a row each."""
    width = outputs.shape[-1]
    if readout is None:
        return torch.eye(width, dtype=outputs.dtype, device=outputs.device)
    size = float(torch.linalg.vector_norm(outputs, dim=-1).mean()) or 1.0
    classes = readout(outputs[:1]).shape[-1]
    # A read-out is any function, so its best input is searched for, on the sphere of outputs as large as these.
    free = torch.zeros(classes, width, dtype=outputs.dtype, device=outputs.device)
    free += torch.eye(classes, width, dtype=outputs.dtype, device=outputs.device)
    free.requires_grad_(True)
    truth = torch.arange(classes, device=outputs.device)

    def surprise(step: Any, index: int) -> Tensor:
        return cross_entropy(readout(size * normalize(free, dim=-1)), truth)

    train([free], range(300), surprise, epochs=1, rate=0.05, what="the outputs that stand for labels")
    return size * normalize(free.detach(), dim=-1)


# ---------------------------------------------------------------------- signs of gradients


def gradfix(task: Task, variant: str, *, loss: Loss | None = None) -> Transported:
    """The update as it is, in the entries whose sign agrees with minus the target's gradient [rinaldi:26b].

    Args:
        task: With networks of equal shapes, and data with labels: a few will do.
        variant: There is one.
        loss: Of outputs and labels; by default cross-entropy, of the read-out's logits where there is one.
    """
    return _mask_by_gradient(task, direct(task, "copy"), loss)


def theseus_gradfix(task: Task, variant: str, *, loss: Loss | None = None) -> Transported:
    """What theseus makes of the update, in the entries whose sign agrees with minus the target's gradient."""
    return _mask_by_gradient(task, theseus(task, "spaces"), loss)


def _mask_by_gradient(task: Task, transported: Transported, loss: Loss | None) -> Transported:
    gradients = gradients_on(task.bases.target, task, loss)
    masked: dict[str, Tensor] = {}
    without = []
    entries = agreeing = 0
    for name in transported.update:
        if name not in gradients:
            without.append(name)
            continue
        tensor = transported.update.tensor(name)
        agrees = tensor.sign() * gradients[name].to(tensor).sign() < 0
        masked[name] = torch.where(agrees, tensor, 0)
        entries, agreeing = entries + agrees.numel(), agreeing + int(agrees.sum())
    notes = [*transported.notes, f"{agreeing / max(entries, 1):.0%} of the entries agree with the gradient's sign."]
    if without:
        notes.append(f"Without a gradient, and so left as they are in the target: {list_names(without)}.")
    moved = tuple(row for row in transported.moved if row.target is None or row.target.split("[")[0] not in without)
    update = Update(dense=masked, label="the masked update", kinds=kinds_of(task.bases.target))
    return Transported(update, moved, transported.maps, notes=tuple(notes))


def gradients_on(model: nn.Module, task: Task, loss: Loss | None) -> dict[str, Tensor]:
    """The gradient of the mean loss on the task's labelled data, by the names of parameters."""
    network = copied(model).eval().requires_grad_(True)
    number = 0
    for number, inputs, labels in labelled_batches(task.data, "gradfix"):
        _loss_of(network, task, number, inputs, labels, loss).backward()  # type: ignore[no-untyped-call]
    parameters = network.named_parameters()
    return {name: parameter.grad / (number + 1) for name, parameter in parameters if parameter.grad is not None}


# ---------------------------------------------------------------------- maps of gradients


def bico(task: Task, variant: str, *, loss: Loss | None = None) -> Transported:
    r"""Through the isometries of each module's input activations and output gradients [son:26].

    An update of a weight is a sum of products of output gradients and inputs, so that its axes are aligned in those two
    spaces: :math:`\tau_B = T_g^\top \tau_A T_h`, with :math:`T_h` from what the modules of the base networks read and
    :math:`T_g` from the gradients of their losses by what they put out. Products of means are part of the sum, so
    nothing is centred. Built from the paper's abstract: details may differ.

    Args:
        task: Whose data have labels that both networks can be asked for.
        variant: There is one.
        loss: Of outputs and labels; by default cross-entropy, of the read-out's logits where there is one.
    """
    inputs, outputs = list(places_of(task.bases, ["input"])), list(places_of(task.bases, ["output"]))
    moments: dict[Pair, PairedMoments] = {pair: PairedMoments() for pair in (*inputs, *outputs)}
    networks = [copied(model).eval().requires_grad_(True) for model in (task.bases.source, task.bases.target)]
    for number, batch, labels in labelled_batches(task.data, "bico"):
        rows_by_place = [
            _record_inputs_and_gradients(network, task, number, batch, labels, loss, [pair[side] for pair in moments])
            for side, network in enumerate(networks)
        ]
        masks = masks_of(batch, task.options.mask, device_of(networks[1]))
        for pair, pair_moments in moments.items():
            if not all(place in rows for place, rows in zip(pair, rows_by_place, strict=True)):
                continue
            ours, theirs = (rows[place] for place, rows in zip(pair, rows_by_place, strict=True))
            if ours.shape[:-1] != theirs.shape[:-1]:
                raise ShapeError(
                    f"What the networks show at {pair[0]} and {pair[1]} does not pair: rows {tuple(ours.shape[:-1])} "
                    f"and {tuple(theirs.shape[:-1])}; bico needs as many tokens in both, so leave it out."
                )
            row_mask = None if masks is None else masks.fitting(pair[1].rpartition(":")[0], theirs.shape[:-1])
            if row_mask is not None:
                ours, theirs = ours[row_mask.to(ours.device)], theirs[row_mask.to(theirs.device)]
            pair_moments.update(ours.flatten(0, -2), theirs.flatten(0, -2))
    second_moments = {
        pair: SecondMoments.of(pair_moments, centered=False)
        for pair, pair_moments in moments.items()
        if pair_moments.batches
    }
    carried = carry_by_module(task, second_moments)
    return Transported(carried.update, carried.moved)


def _record_inputs_and_gradients(
    network: nn.Module, task: Task, number: int, inputs: Any, labels: Any, loss: Loss | None, places: Sequence[str]
) -> dict[str, Tensor]:
    """What modules read (``"module:input"``), and the gradients of the loss by what they put out."""
    read: dict[str, Tensor] = {}
    written: dict[str, Tensor] = {}
    hooks: list[RemovableHandle] = []

    def listen(place: str, module: nn.Module) -> None:
        def hear(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if place.endswith(":input"):
                if place not in read and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                    read[place] = args[0].detach()
            elif place not in written and isinstance(output, Tensor) and output.requires_grad:
                output.retain_grad()
                written[place] = output

        hooks.append(module.register_forward_hook(hear))

    for place in dict.fromkeys(places):
        listen(place, network.get_submodule(place.rpartition(":")[0]))
    try:
        value = _loss_of(network, task, number, inputs, labels, loss)
        value.backward()  # type: ignore[no-untyped-call]
    finally:
        for hook in hooks:
            hook.remove()
        network.zero_grad()
    # Of the sum over the batch, so that batches of any size count by their inputs.
    return read | {place: len(out) * out.grad for place, out in written.items() if out.grad is not None}


# ---------------------------------------------------------------------- equal shapes: permutations


def transfusion(task: Task, variant: str) -> Transported:
    """Through permutations that bring the base weights closest, heads and what is inside them [rinaldi:25].

    The paper assigns heads by the distance of their singular values, then rows within them. This is
    ``permutation-weights`` of re-basin: the same two levels, by the distance of the weights themselves, in the exact
    groups of the wiring.
    """
    source, target = task.bases.source, task.bases.target
    shapes = [{name: tuple(each.shape) for name, each in model.state_dict().items()} for model in (source, target)]
    if shapes[0] != shapes[1]:
        differing = [name for name in shapes[0].keys() | shapes[1].keys() if shapes[0].get(name) != shapes[1].get(name)]
        raise ShapeError(
            f"Permutations need networks of the same tensors, and {list_names(sorted(differing))} differ; leave "
            "transfusion out."
        )
    first = WithoutLabels(task.data).first()
    rebasin_result = rebasin(source, target, first, method="permutation-weights", seed=task.options.seed, reset=False)
    whole: Mapping[str, Tensor] = {name: task.update.tensor(name) for name in task.update}
    moved = carry(dict(whole), rebasin_result.alignment, partial=True)
    total = task.update.norm() ** 2 or 1.0
    rows = tuple(
        Moved(name, name, "moved", "through permutations of units and heads", task.update.norm_of(name) ** 2 / total)
        for name in task.update
    )
    note = "Heads and rows are matched by re-basin's permutation-weights, not by singular values as in the paper."
    update = Update(dense=moved, label="the permuted update", kinds=kinds_of(target))
    return Transported(update, rows, notes=(note,))
