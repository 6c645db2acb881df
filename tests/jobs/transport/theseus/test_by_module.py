"""Theseus by module: the printed formula, computed by hand."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.transport.small import Attending, Plain, inputs, ready, task_of
from torch import nn
from torch.testing import assert_close

from interbasin.checkpoints.lora import Factors
from interbasin.extras import import_extra
from interbasin.jobs.transport.methods import theseus
from interbasin.jobs.transport.task import Options, Task
from interbasin.jobs.transport.updates.update import Update

CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def turn(ours, theirs, centered=True):
    """polar(H_A^T H_B), source x target."""
    if centered:
        ours, theirs = ours - ours.mean(0), theirs - theirs.mean(0)
    left, _, right = torch.linalg.svd(ours.T @ theirs, full_matrices=False)
    return left @ right


@pytest.mark.parametrize("widths", [(4, 7), (7, 4)])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_plain_network_follows_the_printed_formula(widths, centered, shared):
    source, target = ready(Plain(widths[0])), ready(Plain(widths[1], seed=1))
    outputs = "shared" if shared else "own"
    task = task_of(source, target, inputs(), options=Options(centered=centered), outputs=outputs)
    found = theseus(task, "modules")
    x = torch.cat(task.data)
    pre = [model.up(x) for model in (source, target)]
    behind = [torch.relu(each) for each in pre]
    up_out, down_in = turn(*pre, centered), turn(*behind, centered)
    down_out = torch.eye(3).double() if shared else turn(source(x), target(x), centered)
    tau = {name: task.update.tensor(name).double() for name in task.update}
    assert_close(found.update.tensor("up.weight").double(), up_out.T @ tau["up.weight"], **CLOSE)
    assert_close(found.update.tensor("up.bias").double(), tau["up.bias"] @ up_out, **CLOSE)
    assert_close(found.update.tensor("down.weight").double(), down_out.T @ tau["down.weight"] @ down_in, **CLOSE)
    assert_close(found.update.tensor("down.bias").double(), tau["down.bias"] @ down_out, **CLOSE)


def test_projections_that_are_fused_have_maps_of_their_own():
    data = inputs(width=4, tokens=3)
    apart = ready(Attending(6)), ready(Attending(8, heads=3, seed=1))
    fused = ready(Attending(6, fused=True)), ready(Attending(8, heads=3, fused=True, seed=1))
    for one, other in zip(apart, fused, strict=True):
        state = {name: tensor for name, tensor in one.state_dict().items() if name[0] not in "qkv"}
        for kind in ("weight", "bias"):
            state[f"qkv.{kind}"] = torch.cat([getattr(getattr(one, part), kind) for part in "qkv"])
        other.load_state_dict(state)
    # Behind a norm one direction is missing, and round-off would decide on its partner.
    options = Options(unobserved="drop")
    first = task_of(*apart, data, options=options)
    tuned = ready(Attending(6, fused=True))
    state = first.tuned.state_dict()
    whole = {f"qkv.{kind}": torch.cat([state[f"{part}.{kind}"] for part in "qkv"]) for kind in ("weight", "bias")}
    tuned.load_state_dict({name: tensor for name, tensor in state.items() if name[0] not in "qkv"} | whole)
    ways = [theseus(task, "modules").update for task in (first, task_of(*fused, data, tuned, options=options))]
    for kind in ("weight", "bias"):
        joined = torch.cat([ways[0].tensor(f"{part}.{kind}") for part in "qkv"])
        assert_close(ways[1].tensor(f"qkv.{kind}"), joined, **CLOSE)


def test_what_is_no_linear_layer_is_listed_as_skipped():
    task = task_of(ready(Attending(6)), ready(Attending(8, seed=1)), inputs(width=4, tokens=3))
    found = theseus(task, "modules")
    skipped = {row.source for row in found.moved if row.status == "skipped"}
    assert skipped == {"norm.weight", "norm.bias", "last.weight", "last.bias"}
    assert sum(row.share for row in found.moved) == pytest.approx(1)
    for name in set(task.update) - skipped:
        assert found.update.norm_of(name) == pytest.approx(task.update.norm_of(name))


def test_a_low_rank_update_stays_one():
    task = task_of(ready(Plain(4)), ready(Plain(7, seed=1)), inputs())
    drawn = torch.Generator().manual_seed(0)
    factors = Factors(*(torch.randn(size, generator=drawn, dtype=torch.float64) for size in ((2, 4), (3, 2))))
    low = Update(factors={"down.weight": factors})
    dense = Update(dense={"down.weight": factors.b @ factors.a})
    ways = [theseus(Task(task.bases, each, task.tuned, task.data), "modules").update for each in (low, dense)]
    assert ways[0].rank == 2 and not ways[1].is_low_rank
    assert_close(ways[0].tensor("down.weight"), ways[1].tensor("down.weight"), **CLOSE)


def test_tables_of_embeddings_move_by_what_they_put_out():
    class Reading(nn.Module):
        def __init__(self, width, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.table, self.head = nn.Embedding(7, width), nn.Linear(width, 3)

        def forward(self, ids):
            return self.head(torch.tanh(self.table(ids)))

    ids = [torch.randint(7, (8, 5), generator=torch.Generator().manual_seed(n)) for n in range(4)]
    task = task_of(ready(Reading(3, 0)), ready(Reading(5, 1)), ids)
    x = torch.cat(ids)
    shown = [model.table(x).flatten(0, 1) for model in (task.bases.source, task.bases.target)]
    goal = task.update.tensor("table.weight").double() @ turn(*shown)
    assert_close(theseus(task, "modules").update.tensor("table.weight").double(), goal, **CLOSE)


def test_scaled_maps_give_up_norms():
    tasks = [
        task_of(ready(Plain(4)), ready(Plain(7, seed=1)), inputs(), options=Options(scale=s)) for s in ("none", "rms")
    ]
    plain, scaled = (theseus(task, "modules").update.tensor("up.weight") for task in tasks)
    x = torch.cat(tasks[0].data)
    sizes = [(model.up(x) - model.up(x).mean(0)).norm() for model in (tasks[0].bases.source, tasks[0].bases.target)]
    assert_close(scaled, plain * (sizes[1] / sizes[0]).to(plain), **CLOSE)


def test_positions_are_not_moved_and_heads_may_differ_in_number():
    class Placed(nn.Module):
        def __init__(self, width, heads, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.table, self.places = nn.Embedding(7, width), nn.Embedding(5, width)
            self.rest = Attending(width, heads, seed=seed)
            self.rest.stem = nn.Linear(width, width)

        def forward(self, ids):
            return self.rest(self.table(ids) + self.places(torch.arange(ids.shape[1])[None]))

    ids = [torch.randint(7, (8, 5), generator=torch.Generator().manual_seed(n)) for n in range(4)]
    task = task_of(ready(Placed(6, 2, 0)), ready(Placed(9, 3, 1)), ids)
    assert task.bases.heads == "free"
    rows = {row.source: row for row in theseus(task, "modules").moved}
    assert rows["places.weight"].status == "skipped" and "for each input" in rows["places.weight"].reason
    assert rows["table.weight"].status == rows["rest.q.weight"].status == "moved"


@pytest.mark.slow
def test_maps_as_wide_as_modules_do_not_ask_whether_heads_are_matched():
    def bert(width, seed):
        torch.manual_seed(seed)
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
        config = transformers.BertConfig(**sizes, num_hidden_layers=1, vocab_size=11, max_position_embeddings=8)
        return ready(transformers.BertModel(config, add_pooling_layer=False))

    transformers = import_extra("transformers", "This test", "hf")
    data = [torch.randint(0, 11, (24, 8), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    networks = bert(8, 0), bert(12, 1)
    matched, free = (theseus(task_of(*networks, data, heads=heads), "modules") for heads in ("matched", "free"))
    # In a post-norm network the stream is fixed; its layers are moved all the same.
    moved = [{row.source for row in found.moved if row.status == "moved"} for found in (matched, free)]
    assert moved[0] == moved[1] >= {"embeddings.word_embeddings.weight", "encoder.layer.0.output.dense.weight"}
    for name in matched.update:
        assert_close(matched.update.tensor(name), free.update.tensor(name), **CLOSE)
