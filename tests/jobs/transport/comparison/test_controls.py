"""Controls with labels: each does what it says, and refuses what it cannot use."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.transport.small import Attending, Plain, inputs, ready, task_of, tuned
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from interbasin.errors import DataError, ShapeError
from interbasin.jobs.transport.comparison import controls
from interbasin.jobs.transport.methods import theseus
from interbasin.wiring import wire
from interbasin.wiring.carry import carry

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-7, "atol": 1e-8}


def with_labels(batches, classes=3, seed=2):
    drawn = torch.Generator().manual_seed(seed)
    return [(batch, torch.randint(classes, (len(batch),), generator=drawn)) for batch in batches]


def same(**more):
    return task_of(ready(Plain(6)), ready(Plain(6, seed=1)), with_labels(inputs()), **more)


def gradients(model, data):
    x, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    copy = Plain(6).double()
    copy.load_state_dict(model.state_dict())
    cross_entropy(copy(x), labels).backward()
    return {name: parameter.grad for name, parameter in copy.named_parameters()}


def test_gradfix_keeps_only_entries_that_lower_the_loss():
    task = same()
    found = controls.gradfix(task, "")
    for name, gradient in gradients(task.bases.target, task.data).items():
        update, kept = task.update.tensor(name).double(), found.update.tensor(name).double()
        agrees = update * gradient < 0
        assert_close(kept[agrees], update[agrees])
        assert not kept[~agrees].any()
        assert agrees.any() and not agrees.all()
    assert "agree with the gradient" in found.notes[0]


def test_gradfix_of_theseus_masks_what_theseus_made():
    task = same()
    whole, kept = theseus(task, "spaces").update, controls.theseus_gradfix(task, "").update
    for name, gradient in gradients(task.bases.target, task.data).items():
        goal = torch.where(whole.tensor(name) * gradient < 0, whole.tensor(name), 0)
        assert_close(kept.tensor(name), goal)


def test_gradfix_takes_another_loss():
    task = same()
    rising = controls.gradfix(task, "", loss=lambda out, labels: -cross_entropy(out, labels)).update
    falling = controls.gradfix(task, "").update
    assert not any(bool((rising.tensor(name) * falling.tensor(name)).any()) for name in falling)


def test_labels_are_asked_for():
    task = task_of(ready(Plain(6)), ready(Plain(6, seed=1)), inputs())
    for control in (controls.gradfix, controls.theseus_gradfix, controls.bico, controls.label_ridge):
        with pytest.raises(DataError, match="needs labels"):
            control(task, "")


def test_gradfix_and_transfusion_need_equal_shapes():
    task = task_of(ready(Plain(6)), ready(Plain(9, seed=1)), with_labels(inputs()))
    for control in (controls.gradfix, controls.transfusion):
        with pytest.raises(ShapeError, match="same tensors"):
            control(task, "")


def test_label_ridge_is_a_ridge_onto_one_hot_labels():
    task = same()
    target = task.bases.target
    found = controls.label_ridge(task, "", ridge=1e-8).applied_to(target)
    x, labels = (torch.cat(parts) for parts in zip(*task.data, strict=True))
    hidden = torch.cat([torch.relu(target.up(x)), torch.ones(len(x), 1).double()], 1)
    goal = torch.linalg.lstsq(hidden, one_hot(labels, 3).double()).solution
    assert_close(found.down.weight, goal[:-1].T, rtol=1e-5, atol=1e-6)
    assert_close(found.down.bias, goal[-1], rtol=1e-5, atol=1e-6)


def test_label_ridge_aims_at_what_the_readout_takes_for_a_label():
    embeddings = torch.nn.functional.normalize(
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=-1
    ).double()

    def readout(out):
        return 15 * torch.nn.functional.normalize(out, dim=-1) @ embeddings.T

    task = task_of(ready(Plain(6)), ready(Plain(40, seed=1)), with_labels(inputs(48), 4), readout=readout)
    found = controls.label_ridge(task, "", ridge=1e-6).applied_to(task.bases.target)
    x, labels = (torch.cat(parts) for parts in zip(*task.data, strict=True))
    right = [float((readout(model(x)).argmax(-1) == labels).double().mean()) for model in (task.bases.target, found)]
    assert right[1] > 0.75 > right[0]


def test_label_ridge_refuses_labels_that_are_no_classes():
    data = [(batch, labels + 1) for batch, labels in with_labels(inputs())]
    with pytest.raises(DataError, match="3 classes"):
        controls.label_ridge(task_of(ready(Plain(6)), ready(Plain(6, seed=1)), data), "")
    data = [(batch, labels.double()) for batch, labels in data]
    with pytest.raises(ShapeError, match="whole number"):
        controls.label_ridge(task_of(ready(Plain(6)), ready(Plain(6, seed=1)), data), "")


def test_bico_turns_outputs_by_gradients_and_inputs_by_activations():
    task = task_of(ready(Plain(4)), ready(Plain(7, seed=1)), with_labels(inputs()))
    found = controls.bico(task, "").update
    x, labels = (torch.cat(parts) for parts in zip(*task.data, strict=True))
    pre, behind = [], []
    for model in (task.bases.source, task.bases.target):
        hidden = model.up(x).requires_grad_(True)
        cross_entropy(model.down(torch.relu(hidden)), labels).backward()
        pre.append(hidden.grad)
        behind.append(torch.relu(hidden.detach()))

    def turn(ours, theirs):
        left, _, right = torch.linalg.svd(ours.T @ theirs, full_matrices=False)
        return left @ right

    up, down = (task.update.tensor(name).double() for name in ("up.weight", "down.weight"))
    assert_close(found.tensor("up.weight").double(), turn(*pre).T @ up, **CLOSE)
    assert_close(found.tensor("down.weight").double(), down @ turn(*behind), **CLOSE)


@pytest.mark.parametrize("kind", [Plain, Attending])
def test_transfusion_recovers_a_network_that_is_permuted(kind):
    data = inputs(width=5) if kind is Plain else inputs(width=4, tokens=3)
    source = ready(kind(6))
    wiring = wire(source, data[0])
    spaces = [name for name, space in wiring.spaces.items() if not space.within]
    alignment = wiring.sample(2, spaces, isometric=True)
    changed = tuned(source)
    task = task_of(source, carry(source, alignment), data, changed)
    found = controls.transfusion(task, "")
    assert_close(found.applied_to(task.bases.target)(data[0]), carry(changed, alignment)(data[0]), **CLOSE)
    assert "permutation-weights" in found.notes[0]
