"""Networks with new blocks between their own, and transport to a deeper target by way of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import mlp
from tests.jobs.transport.examples import adapted
from tests.laws.strategies import gaussian
from tests.laws.transported import (
    CASES,
    ENCODER,
    LABELS,
    VOCABULARY,
    ResidualBlock,
    ResidualMLP,
    distance,
    low_rank,
    made,
    randomise,
    tuned_by,
)
from torch import Tensor, nn

import interbasin as ib
from interbasin.errors import DataError, WiringError
from interbasin.jobs.transport import PreparedTransport, plan_transport
from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.blocks import Filling, Lengthening, interpolate_blocks, spread
from interbasin.jobs.transport.methods import regression, theseus
from interbasin.jobs.transport.task import Task
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")
X = gaussian(0, 96, 10)
DEPTHS = [(2, 4), (3, 5), (2, 6), (1, 3), (2, 3)]


def deep(depth: int, seed: int = 0, width: int = 16) -> ResidualMLP:
    network = ResidualMLP(width)
    network.blocks = nn.ModuleList(ResidualBlock(width, 24) for _ in range(depth))
    return randomise(network.double().eval(), seed)  # type: ignore[return-value]


def names(depth: int) -> list[str]:
    return [f"blocks.{number}" for number in range(depth)]


# ---------------------------------------------------------------------- the deeper network


@pytest.mark.parametrize(("blocks", "depth"), [*DEPTHS, (12, 24), (5, 5), (4, 6), (7, 9)])
def test_new_blocks_are_spread(blocks: int, depth: int) -> None:
    places = spread(blocks, depth)
    assert len(places) == depth and places == sorted(places)
    assert [place for place in dict.fromkeys(places) if not place[1]] == [(block, 0.0) for block in range(blocks)]
    counts = [sum(block == own for own, _ in places) for block in range(blocks)]
    assert max(counts) - min(counts) <= 1
    if depth == 2 * blocks:  # as in the paper
        assert places == [(block, way) for block in range(blocks) for way in (0.0, 0.5 * (block < blocks - 1))]


def test_a_new_block_lies_halfway_and_the_last_is_a_copy() -> None:
    source = deep(2)
    before = copy.deepcopy(source.state_dict())
    deeper = interpolate_blocks(source, names(2), 4)
    own, new = source.blocks, deeper.blocks
    for name, tensor in own[0].state_dict().items():
        torch.testing.assert_close(new[1].state_dict()[name], (tensor + own[1].state_dict()[name]) / 2)
    for place, block in ((0, 0), (2, 1), (3, 1)):
        assert all(torch.equal(new[place].state_dict()[name], t) for name, t in own[block].state_dict().items())
    new[3].up.weight.data.zero_()
    assert new[2].up.weight.any()  # a copy, and not the same block twice
    assert all(torch.equal(source.state_dict()[name], tensor) for name, tensor in before.items())


def test_equal_blocks_stay_what_they_are() -> None:
    source = deep(1)
    deeper = interpolate_blocks(source, names(1), 3)
    twice = copy.deepcopy(source)
    twice.blocks = nn.ModuleList(source.blocks[0] for _ in range(3))
    assert distance(deeper, twice, X) == 0


def test_what_stands_around_blocks_in_a_container_stays() -> None:
    source = nn.Sequential(nn.Linear(10, 16), ResidualBlock(16, 24), ResidualBlock(16, 24), nn.Linear(16, LABELS))
    source = randomise(source.double().eval(), 0)
    deeper = interpolate_blocks(source, ["1", "2"], 3)
    assert [type(module) for module in deeper] == [nn.Linear, *[ResidualBlock] * 3, nn.Linear]
    update = Update.of(tuned_by(source, 3), source)
    longer = Lengthening(source, (Filling(("1", "2"), 3),)).update(update)
    assert torch.equal(longer.tensor("4.bias"), update.tensor("3.bias"))
    torch.testing.assert_close(
        longer.tensor("2.up.bias"), (update.tensor("1.up.bias") + update.tensor("2.up.bias")) / 2
    )


FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "bert": ("BertForSequenceClassification", {**ENCODER, "num_labels": LABELS}, {"num_hidden_layers": 4}),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12},
        {"n_layer": 3},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**ENCODER, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
        {"num_hidden_layers": 4},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
        | {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 10},
        {"num_layers": 3, "num_decoder_layers": 4},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(family, marks=pytest.mark.slow) for family in ("bert", "qwen2", "t5"))]
)
def test_a_deeper_network_of_transformers_is_one_of_its_configuration(family: str) -> None:
    name, options, deeper = FAMILIES[family]
    inputs = CASES[family].inputs(1)
    source, target = (
        randomise(made(name, **{**options, **more})().double().eval(), seed, inputs)
        for seed, more in enumerate(({}, deeper))
    )
    bases = relate(source, target, [inputs], depth="interpolate")
    longer: Any = bases.source
    fresh = type(longer)(longer.config).double().eval()
    fresh.load_state_dict(longer.state_dict())
    assert distance(fresh, longer, inputs) == 0
    numbers = [
        [module.layer_idx for module in network.modules() if getattr(module, "layer_idx", None) is not None]
        for network in (longer, fresh)
    ]
    assert numbers[0] == numbers[1]
    for count, depth in deeper.items():
        assert getattr(longer.config, count) == depth
        assert getattr(source.config, count) == 2


# ---------------------------------------------------------------------- the update


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "depth"), DEPTHS)
def test_the_longer_update_is_the_difference_of_the_longer_networks(blocks: int, depth: int) -> None:
    source, target = deep(blocks), deep(depth, 1)
    bases = relate(source, target, [X], depth="interpolate")
    tuned = tuned_by(source, 3)
    assert bases.lengthening is not None and bases.given_bases is not None
    longer = bases.lengthen(Update.of(tuned, source))
    assert distance(bases.lengthening.model(tuned), longer.added_to(bases.source), X) < 1e-12
    assert distance(bases.source, longer.added_to(bases.source), X) > 0.01
    assert bases.given_bases.source is source


def test_a_lora_stays_one_with_the_ranks_of_both_neighbours() -> None:
    source, target = deep(2), deep(4, 1)
    update = low_rank(source, 2, seed=5)
    bases = relate(source, target, [X], depth="interpolate")
    longer = bases.lengthen(update)
    assert {longer.factors[f"blocks.{block}.up.weight"].a.shape[0] for block in (0, 2, 3)} == {2}
    assert longer.factors["blocks.1.up.weight"].a.shape[0] == 4
    dense = bases.lengthen(update.as_dense())
    for name in dense:
        torch.testing.assert_close(longer.tensor(name), dense.tensor(name), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_an_adapter_of_peft_comes_to_a_deeper_target_as_one(tmp_path: Any) -> None:
    source, target = deep(2).float(), deep(4, 1).float()
    data = X.float()
    tuned = adapted(source, target_modules=["up", "down"])
    result = ib.transport(source, tuned, target, data, method="theseus", depth="interpolate")
    assert result.delta.is_low_rank and result.delta.rank == 4
    result.save(tmp_path / "moved")
    again = Update.of(tmp_path / "moved", target).added_to(target)
    torch.testing.assert_close(again(data), result.model(data), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- transport


def task_of(blocks: int, depth: int, how: Any) -> Task:
    source, target = deep(blocks), deep(depth, 1, width=20)
    tuned = tuned_by(source, 3)
    bases = relate(source, target, [X], depth=how)
    return Task(bases, bases.lengthen(Update.of(tuned, source)), tuned, [X])


def zero_in(update: Update, depth: int) -> list[str]:
    """Linear layers of blocks that got nothing."""
    layers = [f"blocks.{block}.{layer}.weight" for block in range(depth) for layer in ("up", "down")]
    return [name for name in layers if name not in update or not bool(update.tensor(name).any())]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cka", "even"])
@pytest.mark.parametrize(("blocks", "depth"), [(2, 4), (4, 2), (3, 5)])
def test_every_target_block_gets_an_update(how: str, blocks: int, depth: int) -> None:
    task = task_of(blocks, depth, how)
    assert not zero_in(theseus(task, "spaces").update, depth)
    assert not zero_in(regression(task, "tuned").update, depth)


@pytest.mark.parametrize(("blocks", "depth"), [(2, 4), pytest.param(3, 5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", ["spaces", "modules"])
def test_interpolated_blocks_reach_every_target_block(variant: str, blocks: int, depth: int) -> None:
    task = task_of(blocks, depth, "interpolate")
    moved = theseus(task, variant)
    assert not zero_in(moved.update, depth)
    partners = {row.source.split(".")[1]: row.target.split(".")[1] for row in moved.moved if "blocks" in row.source}  # type: ignore[union-attr]
    assert partners == {str(block): str(block) for block in range(depth)}


@pytest.mark.slow
def test_an_image_of_the_longer_source_gets_the_longer_update() -> None:
    source = deep(2)
    longer = interpolate_blocks(source, names(2), 4)
    target = ib.carry(longer, ib.wire(longer, X).sample(3, isometric=True))
    bases = relate(source, target, [X], depth="interpolate")
    tuned = tuned_by(source, 3)
    task = Task(bases, bases.lengthen(Update.of(tuned, source)), tuned, [X])
    update = theseus(task, "spaces").update
    assert distance(interpolate_blocks(tuned, names(2), 4), update.added_to(target), X) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["shared", pytest.param("own", marks=pytest.mark.slow)])
def test_a_transport_is_judged_by_tuned_a_as_it_is(outputs: Any) -> None:
    source, target = deep(2), deep(4, 1)
    tuned = tuned_by(source, 3)
    result = ib.transport(source, tuned, target, X, method="auto", depth="interpolate", outputs=outputs)
    assert set(result.candidates) == {"theseus", "direct"}  # the longer update has the target's shapes
    assert any("2 blocks behind blocks.0, blocks.1" in note for note in result.notes)
    assert any("regression could not be tried" in note for note in result.notes)
    assert result.metrics["share_moved"] == pytest.approx(1)
    rows = ["tuned-source", "head-ridge"]
    own = ib.transport(source, tuned, target, X, method="theseus", depth="interpolate", compare=rows)
    assert own.compared[0].effect == pytest.approx(1)
    assert own.compared[1].effect > 0


def test_equal_depths_need_no_new_blocks() -> None:
    source, target = deep(3), deep(3, 1)
    bases = relate(source, target, [X], depth="interpolate")
    assert bases.source is source and bases.lengthening is None and not bases.notes
    regression(Task(bases, Update.of(tuned_by(source, 3), source), tuned_by(source, 3), [X]), "tuned")


@pytest.mark.slow
def test_a_plan_is_of_the_longer_source() -> None:
    source, target = deep(2), deep(4, 1)
    tuned = tuned_by(source, 3)
    plan = plan_transport(source, tuned, target, X, depth="interpolate")
    result = ib.transport(source, tuned, target, X, method="theseus", depth="interpolate")
    account = [[(row.source, row.target, row.status) for row in each.moved] for each in (plan, result)]
    assert account[0] == account[1]
    assert "regression" not in plan.seconds
    with pytest.raises(WiringError, match="depth='cka'"):
        plan_transport(source, tuned, target, X, depth="interpolate", method="regression")


@pytest.mark.slow
def test_what_was_prepared_carries_fine_tunes_of_the_given_source(tmp_path: Any) -> None:
    source, target = deep(2), deep(4, 1)
    tuned = tuned_by(source, 3)
    prepared = ib.prepare_transport(source, target, X, depth="interpolate")
    update = prepared.apply(tuned).update
    expected = ib.transport(source, tuned, target, X, method="theseus", depth="interpolate").delta
    prepared.save(tmp_path / "prepared")
    again = PreparedTransport.load(tmp_path / "prepared", source, target).apply(tuned)
    assert any("depth='interpolate'" in note for note in again.notes)
    for name in update:
        torch.testing.assert_close(update.tensor(name), expected.tensor(name), rtol=1e-6, atol=1e-9)
        assert torch.equal(again.update.tensor(name), update.tensor(name))
    with pytest.raises(DataError, match="another source"):
        PreparedTransport.load(tmp_path / "prepared", deep(4), target)


# ---------------------------------------------------------------------- what cannot be


class Picky(ResidualMLP):
    """Runs the blocks that it knows of."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks[1](self.blocks[0](self.stem(x)))))


class Shared(ResidualMLP):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].up.weight = self.blocks[0].up.weight  # type: ignore[union-attr]


class Uneven(ResidualMLP):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([ResidualBlock(16, 24), ResidualBlock(16, 20)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: deep(6), "shallower target"),
        (lambda: mlp(10, 16, 16, LABELS).double().eval(), "the source has none"),
        (lambda: Picky().double().eval(), "does not run the blocks"),
        (lambda: Uneven().double().eval(), "up.weight is .24, 16. and .20, 16."),
    ],
)
def test_a_source_that_cannot_be_made_as_deep_is_refused(source: Any, words: str) -> None:
    with pytest.raises(WiringError, match=words) as refusal:
        relate(source(), deep(4, 1), [X], depth="interpolate")
    assert "'cka'" in str(refusal.value)


def test_other_requests_are_refused() -> None:
    source, target = deep(2), deep(4, 1)
    with pytest.raises(WiringError, match="one of the two"):
        relate(source, target, [X], depth="interpolate", correspondence={"stem.weight": "stem.weight"})
    with pytest.raises(WiringError, match="A regression aims at"):
        ib.transport(source, tuned_by(source, 3), target, X, method="regression", depth="interpolate")
    with pytest.raises(WiringError, match="deeper only"):
        interpolate_blocks(deep(4), names(4), 2)
    with pytest.raises(WiringError, match="are one tensor"):
        interpolate_blocks(Shared(), names(2), 4)
    for blocks in ([], ["stem", "norm"], ["blocks.0", "norm"], ["blocks.1", "blocks.0"]):
        with pytest.raises(WiringError, match="neighbours in one"):
            interpolate_blocks(source, blocks, 4)
