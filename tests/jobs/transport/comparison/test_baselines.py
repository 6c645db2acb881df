"""What transport is compared with, each row held to what it says of itself."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import Ridge
from tests.jobs.transport.small import Attending, Plain, inputs, ready, task_of, tuned
from torch.testing import assert_close

from interbasin.errors import WiringError
from interbasin.jobs.transport.comparison import baselines
from interbasin.jobs.transport.methods import theseus
from interbasin.jobs.transport.task import Options
from interbasin.maps import Linear
from interbasin.wiring import wire
from interbasin.wiring.carry import carry

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-7, "atol": 1e-8}


def pair(**more):
    return task_of(ready(Plain(6)), ready(Plain(9, seed=1)), inputs(), **more)


def test_none_leaves_the_target_as_it_is():
    task = pair()
    update = baselines.none(task, "").update
    assert len(update) == 0 and update.norm() == 0


def test_padded_puts_the_update_into_the_corner():
    task = pair()
    found = baselines.padded(task, "")
    up, down = found.update.tensor("up.weight"), found.update.tensor("down.weight")
    assert up.shape == (9, 5) and down.shape == (3, 9)
    assert_close(up[:6], task.update.tensor("up.weight"), check_dtype=False)
    assert_close(down[:, :6], task.update.tensor("down.weight"), check_dtype=False)
    assert not up[6:].any() and not down[:, 6:].any()
    assert [row.status for row in found.moved] == ["moved"] * 4
    assert sum(row.share for row in found.moved) == pytest.approx(1)


def test_padded_crops_where_the_target_is_narrower():
    task = task_of(ready(Plain(9)), ready(Plain(6, seed=1)), inputs())
    assert_close(baselines.padded(task, "").update.tensor("up.weight"), task.update.tensor("up.weight")[:6])


@pytest.mark.parametrize("fused", [False, True])
def test_random_keeps_the_norm_of_every_tensor(fused):
    data = inputs(width=4, tokens=3)
    task = task_of(ready(Attending(6, fused=fused)), ready(Attending(8, fused=fused, seed=1)), data)
    found = baselines.random(task, "").update
    for name in task.update:
        assert found.norm_of(name) == pytest.approx(task.update.norm_of(name))
    again = baselines.random(task, "").update
    assert all(torch.equal(found.tensor(name), again.tensor(name)) for name in found)


def test_random_through_maps_keeps_norms_into_a_wider_network():
    task = pair(options=Options(seed=5))
    found = baselines.random_through_maps(task, "")
    for name in task.update:
        assert found.update.norm_of(name) == pytest.approx(task.update.norm_of(name))
    assert found.maps


def test_ortho_is_theseus_and_says_so():
    task = pair()
    found, same = baselines.ortho(task, ""), theseus(task, "spaces")
    assert all(torch.equal(found.update.tensor(name), same.update.tensor(name)) for name in same.update)
    assert "theseus" in found.notes[0]


@pytest.mark.parametrize("seed", range(3))
def test_linear_recovers_an_update_through_maps_that_are_no_isometries(seed):
    # The scales of ReLU units: M is diagonal and permuted, and what reads the units moves by its inverse.
    data = inputs(256)
    source = ready(Plain(6))
    changed = tuned(source)
    drawn = torch.Generator().manual_seed(seed)
    scales = torch.rand(6, generator=drawn, dtype=torch.float64) + 0.5
    maps = {"up": Linear(torch.diag(scales)[torch.randperm(6, generator=drawn)])}
    wiring = wire(source, data[0])
    task = task_of(source, carry(source, wiring, maps), data, changed)
    goal = carry(changed, wiring, maps)
    found = baselines.through_linear(task, "dual").update.added_to(task.bases.target)
    for name, tensor in goal.state_dict().items():
        assert_close(found.state_dict()[name], tensor, **CLOSE)
    assert not torch.allclose(
        theseus(task, "spaces").update.added_to(task.bases.target).up.weight, goal.up.weight, rtol=1e-3
    )


def test_linear_recovers_an_update_through_invertible_maps_of_heads():
    data = inputs(256, width=4, tokens=3)
    source = ready(Attending(6))
    wiring = wire(source, data[0])
    heads = [name for name, space in wiring.spaces.items() if space.within]
    alignment = wiring.sample(1, heads)
    changed = tuned(source)
    task = task_of(source, carry(source, alignment), data, changed)
    found = baselines.through_linear(task, "dual").update.added_to(task.bases.target)
    goal = carry(changed, alignment)
    assert_close(found(data[0]), goal(data[0]), **CLOSE)


def test_the_transpose_of_linear_is_another_map():
    task = pair()
    dual, transpose = (baselines.through_linear(task, variant).update for variant in ("dual", "transpose"))
    assert not torch.allclose(dual.tensor("down.weight"), transpose.tensor("down.weight"))
    assert_close(dual.tensor("up.weight"), transpose.tensor("up.weight"))


@pytest.mark.parametrize(
    "rule", [baselines.through_linear_orthogonal, baselines.through_pinv_orthogonal], ids=["linear", "pinv"]
)
def test_maps_made_orthogonal_keep_norms(rule):
    task = pair()
    found = rule(task, "").update
    assert all(found.norm_of(name) == pytest.approx(task.update.norm_of(name)) for name in task.update)


def test_pinv_is_equation_28():
    task = pair()
    found = baselines.through_pinv(task, "").update
    x = torch.cat(task.data)
    source, target = (torch.relu(model.up(x)) for model in (task.bases.source, task.bases.target))
    source, target = source - source.mean(0), target - target.mean(0)
    matrix = torch.linalg.pinv(target.T @ target) @ target.T @ source
    assert_close(
        found.tensor("up.weight"), matrix @ task.update.tensor("up.weight").double(), **CLOSE, check_dtype=False
    )
    down = task.update.tensor("down.weight").double() @ matrix.T
    assert_close(found.tensor("down.weight"), down, **CLOSE, check_dtype=False)
    smaller = baselines.through_pinv_tikhonov(task, "").update
    assert smaller.norm() < found.norm()


def test_cross_lora_of_equal_bases_keeps_what_lies_in_their_subspaces():
    source = ready(Plain(6))
    task = task_of(source, source, inputs())
    found = baselines.cross_lora(task, "")
    left, _, right = torch.linalg.svd(source.up.weight, full_matrices=False)
    goal = left @ left.T @ task.update.tensor("up.weight").double() @ right.T @ right
    assert_close(found.update.tensor("up.weight").double(), goal, **CLOSE)
    skipped = [row for row in found.moved if row.status == "skipped"]
    assert [row.source for row in skipped] == ["up.bias", "down.bias"] and "no matrix" in skipped[0].reason


def test_cross_lora_fits_the_shapes_of_a_wider_target():
    task = pair()
    found = baselines.cross_lora(task, "").update
    assert found.shape("up.weight") == (9, 5) and found.norm() <= task.update.norm()


def test_the_row_of_tuned_a_is_tuned_a():
    task = pair()
    assert baselines.tuned_source(task, "").applied_to(task.bases.target) is task.tuned


@pytest.mark.parametrize("relative", [1e-3, 0.3])
def test_head_ridge_is_the_ridge_of_scikit_learn_towards_the_weight_it_had(relative):
    task = pair()
    target = task.bases.target
    found = baselines.head_ridge(task, "", ridge=relative).update.added_to(target)
    x = torch.cat(task.data)
    hidden, goal = torch.relu(target.up(x)), task.tuned(x)
    centred = hidden - hidden.mean(0)
    reference = Ridge(alpha=relative * float(centred.square().sum()) / hidden.shape[1])
    reference.fit(hidden.numpy(), (goal - hidden @ target.down.weight.T).numpy())
    assert_close(found.down.weight, target.down.weight + torch.from_numpy(reference.coef_), **CLOSE)
    assert_close(found.down.bias, torch.from_numpy(reference.intercept_), **CLOSE)
    assert torch.equal(found.up.weight, target.up.weight)


def test_head_ridge_comes_nearer_to_tuned_a_and_keeps_the_target_on_generic_inputs():
    generic = inputs(seed=8)
    alone, kept = pair(), pair(generic=generic)
    x, other = torch.cat(alone.data), torch.cat(generic)
    target = alone.bases.target
    found, keeping = (baselines.head_ridge(task, "").applied_to(target) for task in (alone, kept))
    assert (found(x) - alone.tuned(x)).norm() < (target(x) - alone.tuned(x)).norm()
    assert (keeping(other) - target(other)).norm() < (found(other) - target(other)).norm()


def test_head_ridge_refuses_outputs_that_are_not_shared():
    with pytest.raises(WiringError, match="outputs are their own"):
        baselines.head_ridge(pair(outputs="own"), "")


def test_head_ridge_refuses_a_head_that_is_tied():
    class Tied(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.table, self.mid = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(torch.tanh(self.mid(self.table(ids))))

    data = [torch.arange(7)[None], torch.arange(7).flip(0)[None]]
    with pytest.raises(WiringError, match="tied"):
        baselines.head_ridge(task_of(ready(Tied(0)), ready(Tied(1)), data), "")


def test_the_last_layer_is_found_where_heads_differ_in_number():
    data = inputs(width=4, tokens=3)
    task = task_of(ready(Attending(6)), ready(Attending(8, heads=3, seed=1)), data)
    assert task.bases.heads == "free"
    found = baselines.head_ridge(task, "").applied_to(task.bases.target)
    goal = task.tuned(data[0])
    assert (found(data[0]) - goal).norm() < (task.bases.target(data[0]) - goal).norm()


def test_the_last_layer_is_found_where_a_stream_that_is_read_is_put_out_as_well():
    class Showing(torch.nn.Module):
        def __init__(self, width, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.up, self.more = torch.nn.Linear(5, width), torch.nn.Linear(width, width)
            self.head = torch.nn.Linear(width, 3)

        def forward(self, x):
            stream = self.up(x)
            stream = stream + self.more(torch.tanh(stream))
            return {"logits": self.head(stream), "states": stream}

    task = task_of(ready(Showing(6, 0)), ready(Showing(9, 1)), inputs())
    found = baselines.head_ridge(task, "")
    assert "Only head was fitted" in found.notes[0]
    assert {name for name in found.update if found.update.norm_of(name)} == {"head.weight", "head.bias"}
