"""Maps from the weights alone: exact where networks differ by an isometry, and no data are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import mlp
from tests.jobs.transport.small import Attending, Plain, inputs, ready, tuned
from tests.laws.strategies import gaussian
from tests.laws.transported import CASES, WIDER, Pair, ResidualMLP, distance, low_rank, pair_of, tuned_by, wider
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.transport import PreparedTransport, plan_transport
from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.methods import theseus
from interbasin.jobs.transport.task import Options, Task
from interbasin.jobs.transport.theseus.by_weights import maps_by_weights
from interbasin.jobs.transport.theseus.carrier import Carrier
from interbasin.jobs.transport.updates.update import Update

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LATER = ("bert", "gpt2", "vit", "clip", "llama", "qwen2")
X = gaussian(0, 96, 10)


# ---------------------------------------------------------------------- networks of the same function


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        *((name, False) for name in ("relu mlp", "gelu mlp", "residual mlp", "resnet")),
        ("residual mlp", True),
        *(pytest.param(name, CASES[name].folds, marks=pytest.mark.slow) for name in LATER),
    ],
)
def test_an_isometry_is_found_from_the_weights(name: str, folded: bool) -> None:
    pair, fresh = pair_of(name, folded), CASES[name].inputs(99)
    found = theseus(pair.task, "weights")
    assert distance(pair.tuned, pair.source, fresh) > 0.05
    assert pair.error(found.update, fresh) < 1e-9
    assert not [row for row in found.moved if row.status == "skipped"]
    assert found.update.norm() == pytest.approx(pair.task.update.norm(), rel=1e-9)


@pytest.mark.parametrize("name", WIDER)
def test_a_wider_network_gets_the_same_update(name: str) -> None:
    source, target, data = wider(name)
    pair = Pair(source, target, tuned_by(source, 9), data)
    found = theseus(pair.task, "weights")
    assert pair.error(found.update, data[1]) < 1e-9
    assert found.update.norm() == pytest.approx(pair.task.update.norm(), rel=1e-9)


def test_low_rank_stays_low_rank() -> None:
    pair = pair_of("residual mlp")
    update, carrier = low_rank(pair.source, 2, seed=5), Carrier(pair.bases, maps_by_weights(pair.bases))
    found = carrier.carry(update).update
    assert found.rank == 2
    assert distance(update.added_to(pair.source), found.added_to(pair.target), X) < 1e-9


def test_too_few_anchors_do_not_tell_a_rotation() -> None:
    """Three inputs and two outputs show little of spaces that any rotation may turn."""
    source = nn.Sequential(nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(16, 2)).double().eval()
    for place, parameter in enumerate(source.parameters()):
        parameter.data.copy_(gaussian(place, *parameter.shape))
    data = gaussian(1, 64, 3)
    target = ib.carry(source, ib.wire(source, data).sample(3, isometric=True))
    pair = Pair(source, target, tuned_by(source, 5), [data])
    assert pair.error(theseus(pair.task, "weights").update, data) > 1e-2


# ---------------------------------------------------------------------- networks that were made apart


@pytest.mark.parametrize("widths", [(16, 24), (24, 16)])
def test_isometries_between_other_widths(widths: tuple[int, int]) -> None:
    source, target = (
        nn.Sequential(nn.Linear(10, width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 5))
        for width in widths
    )
    bases = relate(source.double().eval(), target.double().eval(), [X])
    maps = maps_by_weights(bases)
    for pair, found in maps.items():
        matrix = found.map.matrix.double()
        ours, theirs = bases.spaces(pair)
        assert matrix.shape == (theirs.width, ours.width)
        product = matrix.mT @ matrix if len(matrix) >= len(matrix.mT) else matrix @ matrix.mT
        torch.testing.assert_close(product, torch.eye(len(product), dtype=torch.float64))
    hidden = maps["1", "1"].map.matrix
    assert set(hidden.unique().tolist()) <= {0.0, 1.0}  # units behind a ReLU are assigned
    assert len(maps["0", "0"].map.matrix.unique()) > 2


def test_the_map_is_the_best_one_of_its_space() -> None:
    source, target = ready(Plain(6)), ready(Plain(9, seed=1))
    bases = relate(source, target, inputs())
    matrix = maps_by_weights(bases)["up", "up"].map.matrix.double()
    cross = target.up.weight @ source.up.weight.mT + torch.outer(target.up.bias, source.up.bias)
    cross = cross + target.down.weight.mT @ source.down.weight
    best = float((cross * matrix).sum())
    for seed in range(50):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:6]
        assert float(cross[order, torch.arange(6)].sum()) <= best + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_heads_of_other_numbers_and_sizes_are_mapped(fused: bool) -> None:
    source, data = ready(Attending(8, fused=fused)), inputs(width=4, tokens=3)
    for heads, size in ((2, 3), (2, 5), (3, 3)):
        target = ready(Attending(12, heads, size, seed=1, fused=fused))
        change = tuned(source)
        found = theseus(Task(relate(source, target, data), Update.of(change, source), change, data), "weights")
        assert not [row for row in found.moved if row.status == "skipped"]


def test_blocks_of_other_depths_are_mapped() -> None:
    source, target = ResidualMLP().double().eval(), ResidualMLP(20, 30).double().eval()
    target.blocks.append(type(target.blocks[0])(20, 30).double())  # type: ignore[call-overload]
    result = ib.transport(source, tuned_by(source, 3), target, X, method="theseus", variant="weights")
    assert {name.split(".")[1] for name in result.delta if name.startswith("blocks")} == {"0", "1", "2"}


# ---------------------------------------------------------------------- the job


def pair_of_plain() -> tuple[nn.Module, nn.Module, nn.Module]:
    source = ready(Plain(8))
    target = ib.carry(source, ib.wire(source, inputs()[0]).sample(1))
    return source, tuned(source), target


def test_data_only_judge() -> None:
    source, change, target = pair_of_plain()
    results = [
        ib.transport(source, change, target, inputs(seed=seed), method="theseus", variant="weights") for seed in (3, 4)
    ]
    for name in results[0].delta:
        assert torch.equal(results[0].delta.tensor(name), results[1].delta.tensor(name))
    assert all(result.metrics["effect_explained"] > 0.999 for result in results)
    assert all(row.cosine_after > 0.999 for row in results[0].spaces)


def test_a_table_has_a_row_of_it() -> None:
    source, change, target = pair_of_plain()
    result = ib.transport(source, change, target, inputs(), method="theseus", compare=["theseus"])
    rows = {row.method: row.effect for row in result.compared}
    assert rows["theseus, weights"] > 0.999


def test_the_size_of_activations_is_not_known() -> None:
    source, change, target = pair_of_plain()
    bases = relate(source, target, inputs())
    scaled, plain = (
        theseus(Task(bases, Update.of(change, source), change, None, options=Options(scale=scale)), "weights")
        for scale in ("rms", "none")
    )
    assert "scale='rms'" in scaled.notes[0] and not plain.notes
    assert torch.equal(scaled.update.tensor("up.weight"), plain.update.tensor("up.weight"))


def test_a_plan_shows_these_maps() -> None:
    source, change, target = pair_of_plain()
    plan = plan_transport(source, change, target, inputs(4), method="theseus", variant="weights")
    assert [(space.seen, space.full) for space in plan.spaces] == [(8, 8)]  # which four inputs could not show


def test_nothing_but_an_example_is_needed_to_prepare(tmp_path: Any) -> None:
    source, change, target = pair_of_plain()
    prepared = ib.prepare_transport(source, target, variant="weights", inputs=torch.zeros(2, 5, dtype=torch.float64))
    update = prepared.apply(change).update
    assert distance(change, update.added_to(target), inputs()[0]) < 1e-9
    prepared.save(tmp_path / "prepared")
    again = PreparedTransport.load(tmp_path / "prepared", source, target)
    assert torch.equal(again.apply(change).update.tensor("up.weight"), update.tensor("up.weight"))
    vector = ib.carry_vector(torch.arange(8.0, dtype=torch.float64), again, "up")
    torch.testing.assert_close(vector, prepared.maps["up", "up"].map(torch.arange(8.0, dtype=torch.float64)))
    with pytest.raises(DataError, match="means of activations"):
        ib.carry_probe(torch.ones(2, 8), None, again, "up")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, DataError, "need data"),
        ({"variant": "weights"}, DataError, "one batch as inputs="),
        ({"variant": "weights", "inputs": X, "depth": "cka"}, DataError, "depth='even'"),
        ({"variant": "sideways", "inputs": X}, UnknownNameError, "sideways"),
    ],
)
def test_what_needs_data_is_refused_without(options: dict[str, Any], error: Any, words: str) -> None:
    networks = [mlp(10, width, 5).double().eval() for width in (8, 12)]
    with pytest.raises(error, match=words):
        ib.prepare_transport(*networks, **options)
