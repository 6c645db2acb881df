"""What becomes of each tensor of an update."""

from __future__ import annotations

import math

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import generic, mlp
from tests.laws.strategies import gaussian, generator
from tests.laws.transported import CASES, ENCODER, VISION, Pair, ResidualBlock, ResidualMLP, made, pair_of, tuned_by
from torch import Tensor, nn

from interbasin.errors import ShapeError
from interbasin.jobs.transport.methods import direct, theseus
from interbasin.jobs.transport.task import Options, Task
from interbasin.jobs.transport.theseus.carrier import Carriage
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")
X = gaussian(0, 64, 10)


class Table(nn.Module):
    """A table of tokens that is the head too, something unused, and a constant."""

    def __init__(self, tokens: int = 20, width: int = 8) -> None:
        super().__init__()
        self.table, self.mid = nn.Embedding(tokens, width), nn.Linear(width, width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.table(ids))))


def ids(tokens: int = 20) -> Tensor:
    return torch.randint(0, tokens, (40, 5), generator=generator(0))


def pair(source: nn.Module, target: nn.Module, data: object) -> Pair:
    source, target = generic(source, 0).double().eval(), generic(target, 1).double().eval()
    return Pair(source, target, tuned_by(source, 3), [data])


def carried(one: Pair) -> Carriage:
    return one.task.carrier().carry(one.task.update)


def test_tied_tensors_go_once() -> None:
    one = pair(Table(), Table(width=12), ids())
    found = carried(one)
    rows = [row for row in found.moved if row.source in ("table.weight", "head.weight")]
    assert [row.status for row in rows] == ["moved"]
    tuned = found.update.added_to(one.target)
    assert torch.equal(tuned.head.weight, tuned.table.weight)


def test_what_is_not_used_is_skipped_and_says_why() -> None:
    one = pair(Table(), Table(width=12), ids())
    found = carried(one)
    skipped = {row.source: row.reason for row in found.moved if row.status == "skipped"}
    assert skipped.keys() == {"unused.weight", "unused.bias"}
    assert "does not use it" in skipped["unused.weight"]
    assert found.share("skipped") == pytest.approx(
        (one.task.update.norm_of("unused.weight") ** 2 + one.task.update.norm_of("unused.bias") ** 2)
        / one.task.update.norm() ** 2
    )
    assert math.fsum(found.share(status) for status in ("moved", "kept", "skipped")) == pytest.approx(1)


def test_tables_of_other_lengths_stay() -> None:
    one = pair(Table(20), Table(30, 12), ids())
    found = carried(one)
    reasons = {row.source: row.reason for row in found.moved if row.status == "skipped"}
    assert "20" in reasons["table.weight"] and "30" in reasons["table.weight"]
    assert "table.weight" not in found.update


def test_positions_and_patches_of_other_sizes_stay() -> None:
    target = made("ViTForImageClassification", **{**VISION, "num_hidden_layers": 1, "patch_size": 4})
    source = made("ViTForImageClassification", **{**VISION, "num_hidden_layers": 1})
    one = pair(source(), target(), CASES["vit"].inputs(0))
    task = Task(one.bases, Update.of(one.tuned, one.source), one.tuned, one.data, options=Options(tokens="mean"))
    skipped = {row.source: row.reason for row in theseus(task, "spaces").moved if row.status == "skipped"}
    assert "17 long, and 5" in skipped["vit.embeddings.position_embeddings"]
    assert "2 long, and 4" in skipped["vit.embeddings.patch_embeddings.projection.weight"]
    assert len(skipped) == 2


def test_a_layer_for_several_gives_each_its_share() -> None:
    deep = ResidualMLP()
    deep.blocks = nn.ModuleList(ResidualBlock(16, 24) for _ in range(4))
    one = pair(ResidualMLP(), deep, X)
    found = carried(one)
    ups = [row for row in found.moved if row.source == "blocks.0.up.weight"]
    assert len(ups) > 1
    assert "of it" in ups[0].reason
    assert math.fsum(row.share for row in found.moved) == pytest.approx(1)
    assert {f"blocks.{block}.up.weight" for block in range(4)} <= set(found.update)
    # The networks are equally wide: a norm that is divided among several is kept as a whole.
    served = [found.update.norm_of(row.target) for row in ups if row.target is not None]
    assert math.hypot(*served) == pytest.approx(one.task.update.norm_of("blocks.0.up.weight"))


def test_an_update_of_nothing_is_carried_to_nothing() -> None:
    one = pair(mlp(10, 16, 5), mlp(10, 24, 5), X)
    found = one.task.carrier().carry(Update.of(one.source, one.source))
    assert found.update.does_nothing
    assert {row.share for row in found.moved} <= {0.0}


def test_carrying_is_linear() -> None:
    one = pair_of("residual mlp")
    carrier = one.task.carrier()
    other = Update.of(tuned_by(one.source, 77), one.source)
    both = carrier.carry(Update.combined([one.task.update, other], [2.0, -0.5])).update
    parts = [carrier.carry(update).update for update in (one.task.update, other)]
    for name in both:
        expected = 2 * parts[0].tensor(name) - 0.5 * parts[1].tensor(name)
        torch.testing.assert_close(both.tensor(name), expected, rtol=1e-9, atol=1e-9)


def test_an_update_of_another_shape_is_refused() -> None:
    one = pair(mlp(10, 16, 5), mlp(10, 24, 5), X)
    with pytest.raises(ShapeError, match=r"0\.weight"):
        one.task.carrier().carry(Update(dense={"0.weight": gaussian(0, 7, 10)}))


def test_networks_stay_as_they_are() -> None:
    one = pair(mlp(10, 16, 5), mlp(10, 24, 5), X)
    before = [{name: tensor.clone() for name, tensor in net.state_dict().items()} for net in (one.source, one.target)]
    theseus(one.task, "spaces")
    for net, held in zip((one.source, one.target), before, strict=True):
        assert all(torch.equal(tensor, held[name]) for name, tensor in net.state_dict().items())


def test_a_direct_copy_needs_equal_shapes() -> None:
    same, other = pair(mlp(10, 16, 5), mlp(10, 16, 5), X), pair(mlp(10, 16, 5), mlp(10, 24, 5), X)
    found = direct(same.task, "copy")
    assert found.update is same.task.update
    assert math.fsum(row.share for row in found.moved) == pytest.approx(1)
    with pytest.raises(ShapeError, match="theseus or regression"):
        direct(other.task, "copy")


@pytest.mark.slow
def test_padding_does_not_count() -> None:
    inputs = dict(CASES["bert"].inputs(0))
    mask = torch.ones_like(inputs["input_ids"])
    mask[:, -3:] = 0
    options = {**ENCODER, "num_hidden_layers": 1, "num_labels": 3}
    source, target = (made("BertForSequenceClassification", **options)() for _ in range(2))
    updates = []
    for filler in (5, 9):
        padded = {"input_ids": torch.where(mask == 1, inputs["input_ids"], filler), "attention_mask": mask}
        updates.append(theseus(pair(source, target, padded).task, "spaces").update)
    for name in updates[0]:
        torch.testing.assert_close(updates[0].tensor(name), updates[1].tensor(name), rtol=1e-6, atol=1e-8)
