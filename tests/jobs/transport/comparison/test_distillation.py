"""Distillation brings the target nearer to tuned A, and keeps it near itself where it is asked to."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.transport.small import Plain, inputs, ready, task_of
from torch.nn.functional import kl_div, log_softmax

from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.jobs.transport.comparison.distillation import distil
from interbasin.jobs.transport.task import Options

FEW = {"steps": 60, "rate": 2e-2}


def readout(outputs):
    return 3 * outputs


def pair(**more):
    return task_of(ready(Plain(6)), ready(Plain(9, seed=1)), inputs(), readout=readout, **more)


def divergence(model, task, data, teacher=None):
    x = torch.cat(data)
    ours, theirs = (log_softmax(readout(each(x)), -1) for each in (model, teacher or task.tuned))
    return float(kl_div(ours, theirs, log_target=True, reduction="batchmean"))


@pytest.mark.parametrize("variant", ["cold", "transported"])
def test_the_divergence_from_tuned_a_falls(variant):
    task = pair()
    found = distil(task, variant, **FEW)
    before = divergence(task.bases.target, task, task.data)
    assert divergence(found.applied_to(task.bases.target), task, task.data) < before / 4
    assert "60 steps" in found.notes[0]


def test_the_same_seed_gives_the_same_update_and_nothing_that_was_given_changes():
    task = pair(options=Options(seed=4))
    before = {name: tensor.clone() for name, tensor in task.bases.target.state_dict().items()}
    first, second = (distil(task, "cold", steps=5).update for _ in range(2))
    assert all(torch.equal(first.tensor(name), second.tensor(name)) for name in first)
    assert all(torch.equal(before[name], tensor) for name, tensor in task.bases.target.state_dict().items())
    assert not any(parameter.requires_grad for parameter in task.bases.target.parameters())


def test_generic_inputs_keep_the_target_near_its_base():
    generic = inputs(seed=11)
    tasks = pair(), pair(generic=generic)
    target = tasks[0].bases.target
    alone, kept = (distil(task, "cold", **FEW).applied_to(target) for task in tasks)
    assert divergence(kept, tasks[1], generic, target) < divergence(alone, tasks[0], generic, target)


def test_without_a_readout_outputs_are_brought_together_as_they_are():
    task = task_of(ready(Plain(6)), ready(Plain(9, seed=1)), inputs())
    found = distil(task, "cold", **FEW).applied_to(task.bases.target)
    x = torch.cat(task.data)
    assert (found(x) - task.tuned(x)).norm() < (task.bases.target(x) - task.tuned(x)).norm() / 2


def test_batches_that_cannot_be_stacked_are_taken_one_at_a_time():
    data = [torch.randn(4, length, 5, generator=torch.Generator().manual_seed(length)).double() for length in (2, 3)]
    task = task_of(ready(Plain(6)), ready(Plain(9, seed=1)), data, readout=readout)
    found = distil(task, "cold", **FEW).applied_to(task.bases.target)
    for batch in data:
        assert divergence(found, task, [batch.flatten(0, 1)]) < divergence(
            task.bases.target, task, [batch.flatten(0, 1)]
        )


def test_inputs_by_name_are_stacked_with_their_mask():
    class Named(Plain):
        def forward(self, x, attention_mask):
            return super().forward(x)

    rows = torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(0)).double()
    data = [{"x": part, "attention_mask": torch.tensor([[1, 1, 0]] * 4)} for part in rows.split(4)]
    task = task_of(ready(Named(6)), ready(Named(9, seed=1)), data, readout=readout)
    found = distil(task, "cold", **FEW).applied_to(task.bases.target)
    x, mask = rows[:, :2], None
    nearer = [(readout(model(x, mask)) - readout(task.tuned(x, mask))).norm() for model in (found, task.bases.target)]
    assert nearer[0] < nearer[1]


def test_what_cannot_be_distilled_is_refused():
    with pytest.raises(WiringError, match="their own"):
        distil(pair(outputs="own"), "cold", steps=1)
    with pytest.raises(UnknownNameError, match="start of a distillation"):
        distil(pair(), "warm")
    task = task_of(
        ready(Plain(6)), ready(Plain(9, seed=1)), inputs(), readout=lambda out: out[:, : 2 + out.requires_grad]
    )
    with pytest.raises(ShapeError, match="taken as shared"):
        distil(task, "cold", steps=1)
