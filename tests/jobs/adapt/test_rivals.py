"""ORCA, PaRe and MoNA: what they give back, what they leave alone, and the laws of what they rest on."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from torch import Tensor, nn

from interbasin.evaluate.transfer import plan_pairs
from interbasin.jobs.adapt import METHODS, Fittings, Settings, Source
from interbasin.jobs.adapt.bank import MOST, TokenBank
from interbasin.jobs.adapt.fine_tuning import fine_tune
from interbasin.jobs.adapt.methods import trials_of
from interbasin.jobs.adapt.network import TargetNetwork, start_head
from interbasin.jobs.adapt.rivals.mona import LOOK_AHEAD, look_ahead, measure_knowledge, meta_learn
from interbasin.jobs.adapt.rivals.orca import (
    LabelledRows,
    align_embedder,
    classwise_distance,
    dataset_distance,
    label_distances,
    sample_classes,
)
from interbasin.jobs.adapt.rivals.pare import LARGEST_SHARE, PatchReplacement, share_at
from interbasin.jobs.adapt.samples import Samples
from interbasin.jobs.adapt.setup import Setup, prepare_setup
from interbasin.jobs.adapt.task import TargetTask
from interbasin.outcome import Stopwatch

pytestmark = pytest.mark.slow

RIVALS = ("orca", "pare", "mona")
WIDTH, TOKENS = 8, 6


class Tokens(nn.Module):
    """A class token and the pieces of a signal, at their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv1d(1, WIDTH, 4, 4)
        self.prefix = nn.Parameter(torch.randn(1, WIDTH))
        self.positions = nn.Parameter(torch.randn(TOKENS + 1, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.cut(inputs).mT
        return torch.cat([self.prefix.expand(len(inputs), 1, -1), tokens], 1) + self.positions


def token_source() -> tuple[Source, Tensor]:
    torch.manual_seed(0)
    embedder = Tokens()
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
    fittings = Fittings(prefix=embedder.prefix.detach(), positions=embedder.positions.detach())
    source = Source(embedder, layer, nn.Linear(WIDTH, 3), pool="first", skip=1, layout="tokens", fittings=fittings)
    return source, torch.randn(60, 1, 4 * TOKENS)


def map_source() -> tuple[Source, Tensor]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    return Source(nn.Conv2d(1, 4, 3, padding=1), body, nn.Linear(8, 3)), torch.randn(60, 1, 6, 6)


def vector_source() -> tuple[Source, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    return Source.of(model), torch.randn(60, 10)


SOURCES = {"tokens": token_source, "maps": map_source, "vectors": vector_source}


def make_setup(layout: str = "tokens", kind: str = "classification", **settings: Any) -> Setup:
    """A small task, with nothing aligned yet."""
    options = Settings(**{"steps": 4, "align_steps": 3, "batch_size": 8, "align_batch": 16, **settings})
    task, samples = make_task(kind)
    return replace(look_at(layout), task=task, samples=samples, settings=options, alignments={})


def make_task(kind: str) -> tuple[TargetTask, Samples]:
    inputs = torch.randn(24, 2, 16, generator=torch.Generator().manual_seed(1))
    labels = {
        "classification": torch.arange(24) % 3,
        "regression": inputs.mean((1, 2))[:, None] * torch.tensor([1.0, 2.0]),
        "dense": inputs.mean(1, keepdim=True),
    }[kind]
    task = TargetTask.of(kind, labels, discretise=3)
    return task, Samples(inputs, task.require(labels, "the training data"))


@lru_cache
def look_at(layout: str) -> Setup:
    """What does not depend on the task, once for each source."""
    source, proxy = SOURCES[layout]()
    task, samples = make_task("classification")
    return prepare_setup(
        source,
        (proxy, torch.arange(60) % 3),
        task,
        samples,
        unlabelled=None,
        settings=Settings(),
        embedder=None,
        seed=0,
        watch=Stopwatch(),
    )


# ---------------------------------------------------------------------- all three


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("tokens", "classification"),
        ("tokens", "dense"),
        ("vectors", "regression"),
        pytest.param("vectors", "dense", marks=pytest.mark.slow),
        pytest.param("maps", "classification", marks=pytest.mark.slow),
        pytest.param("maps", "dense", marks=pytest.mark.slow),
        pytest.param("tokens", "regression", marks=pytest.mark.slow),
    ],
)
def test_a_rival_gives_a_model_and_leaves_the_source_alone(method, layout, kind):
    setup = make_setup(layout, kind)
    before = copy.deepcopy([setup.source.body.state_dict(), setup.head.linear.state_dict(), setup.bank.body_inputs])
    trials = trials_of(method, setup)
    assert len(trials) == 2 and METHODS[method].traits["group"] == "align"
    rows = torch.arange(20)
    fitted = METHODS[method].function(setup, rows, trials[0])
    outputs = fitted.model(setup.samples.inputs)
    assert outputs.shape == (24, *setup.task.shape) and bool(torch.isfinite(outputs).all())
    assert fitted.steps == 4 + (0 if method == "pare" else 3) and not fitted.model.training
    after = [setup.source.body.state_dict(), setup.head.linear.state_dict()]
    for old, new in zip(before, after, strict=False):
        assert all(torch.equal(old[name], tensor) for name, tensor in new.items())
    assert torch.equal(before[2], setup.bank.body_inputs)
    naive = METHODS["naive"].function(setup, rows, trials[0]).model(setup.samples.inputs)
    assert not torch.equal(naive, outputs)  # it does something of its own
    again = make_setup(layout, kind)
    assert torch.equal(METHODS[method].function(again, rows, trials[0]).model(again.samples.inputs), outputs)


@pytest.mark.parametrize("method", RIVALS)
def test_a_frozen_body_stays_frozen(method):
    setup = make_setup(body="frozen")
    fitted = METHODS[method].function(setup, torch.arange(24), trials_of(method, setup)[0])
    trained: Any = fitted.model
    body = setup.source.body.state_dict()
    assert all(torch.equal(body[name], tensor) for name, tensor in trained.feature_map.body.state_dict().items())


@pytest.mark.parametrize("method", ["orca", "mona"])
def test_trials_share_an_alignment(method):
    setup = make_setup()
    first, second = (METHODS[method].function(setup, torch.arange(24), trial) for trial in trials_of(method, setup))
    assert len(setup.alignments) == 1 and first.seconds["alignment"] == second.seconds["alignment"]


# ---------------------------------------------------------------------- the distance of labelled sets


def labelled(seed: int, count: int, classes: int, width: int = 3) -> LabelledRows:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return LabelledRows.of(torch.randn(count, width, generator=generator) + 2 * labels[:, None], labels)


@given(seed=st.integers(0, 2**20), sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)), classes=st.integers(1, 4))
def test_the_distance_of_labelled_sets_is_symmetric_zero_for_equal_ones_and_no_less_than_without_labels(
    seed, sizes, classes
):
    first, second = labelled(seed, sizes[0], classes), labelled(seed + 1, sizes[1], classes)
    value = float(dataset_distance(first, second))
    assert float(dataset_distance(first, first)) == pytest.approx(0, abs=1e-6)
    assert float(dataset_distance(second, first)) == pytest.approx(value, rel=1e-6, abs=1e-6)
    cost = torch.cdist(first.rows, second.rows).square()
    rows, columns, mass = plan_pairs(cost)
    assert value >= float((mass * cost[rows, columns]).sum()) - 1e-6
    assert float(mass.sum()) == pytest.approx(1)


def test_classes_are_as_far_apart_as_gaussians_with_their_moments():
    first, second = labelled(0, 30, 2), labelled(1, 25, 3)
    found = label_distances(first, second)
    for place in range(2):
        for other in range(3):
            rows = [first.rows[first.places == place].numpy(), second.rows[second.places == other].numpy()]
            one, two = (np.cov(part.T, bias=True) for part in rows)
            root = sqrtm(one)
            coupled = np.real(np.trace(sqrtm(root @ two @ root)))
            expected = np.square(rows[0].mean(0) - rows[1].mean(0)).sum() + np.trace(one) + np.trace(two) - 2 * coupled
            assert float(found[place, other]) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_the_distance_is_that_of_costs_and_means_under_a_fixed_plan():
    other = labelled(1, 7, 2)
    labels, rows = torch.tensor([0, 0, 1, 1, 1]), torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    gradient = torch.autograd.grad(dataset_distance(LabelledRows.of(rows, labels), other), rows)[0]
    shift = torch.randn(3, dtype=torch.double)  # moves no class's spread, so that nothing is left out
    ends = [dataset_distance(LabelledRows.of(rows.detach() + step * shift, labels), other) for step in (1e-3, -1e-3)]
    assert float((gradient @ shift).sum()) == pytest.approx(float(ends[0] - ends[1]) / 2e-3, rel=1e-4)


def test_classes_are_weighted_by_their_shares_and_sampled_alike():
    other = labelled(1, 9, 2)
    rows, labels = torch.randn(6, 3), torch.tensor([0, 0, 2, 2, 2, 2])
    parts = [float(dataset_distance(LabelledRows.of(rows[labels == n], labels[labels == n]), other)) for n in (0, 2)]
    total = classwise_distance(rows, labels, other, torch.tensor([0.25, 0.0, 0.75]))
    assert float(total) == pytest.approx(0.25 * parts[0] + 0.75 * parts[1])
    chosen = sample_classes(labels, 2, torch.Generator().manual_seed(0))
    assert sorted(labels[chosen].tolist()) == [0, 0, 2, 2] and len(set(chosen.tolist())) == 4


def test_orca_brings_the_embedders_outputs_nearer_to_the_sources():
    setup = make_setup("vectors", align_steps=40, align_rate=1e-2)
    other = LabelledRows.of(setup.embedding_means, setup.proxy_labels)
    feature_map, rows = setup.new_map(own_body=False), torch.arange(24)

    def measure() -> float:
        with torch.no_grad():
            means = setup.source.mean_embedding(feature_map.embedder(setup.samples.inputs))
            return float(classwise_distance(means, setup.classes, other, torch.full((3,), 1 / 3)))

    before = measure()
    align_embedder(setup, rows, feature_map)
    assert measure() < 0.7 * before


# ---------------------------------------------------------------------- mixtures


@pytest.mark.parametrize("layout", SOURCES)
def test_a_mixture_has_the_share_of_the_sources_tokens_that_was_asked_for(layout):
    setup = make_setup(layout)
    replacement = PatchReplacement(setup)
    with torch.no_grad():
        target = setup.new_map().embedder(setup.samples.inputs[:5])
        source, _ = setup.bank.draw(5, torch.Generator().manual_seed(0))
        mixture, share = replacement.mix(target, source, 0.5)
        tokens, mixed, brought = (replacement._as_tokens(part) for part in (target, mixture, source))
    first = setup.source.prefix_length
    kept = (mixed == tokens).all(2)
    assert mixture.shape == target.shape and bool(kept[:, :first].all())
    count = int(0.5 * (tokens.shape[1] - first))
    assert share == count / (tokens.shape[1] - first)
    assert kept.sum(1).tolist() == [tokens.shape[1] - count] * 5
    for row, tokens_of, source_of in zip(kept, mixed, brought, strict=True):
        assert all(bool((source_of == token).all(1).any()) for token in tokens_of[~row])


def test_the_sources_share_falls_to_nothing_and_the_model_needs_none_of_it():
    setup = make_setup()
    shares: list[float] = []

    class Watched(PatchReplacement):
        def mix(self, target: Tensor, source: Tensor, share: float) -> tuple[Tensor, float]:
            mixture, real = super().mix(target, source, share)
            shares.append(real)
            assert share or mixture is target
            return mixture, real

    network = TargetNetwork(setup.new_map(), setup.task, setup.samples.inputs).eval()
    extra = Watched(setup)
    gate = extra.gate.weight.detach().clone()
    fine_tune(network, setup, torch.arange(24), steps=12, rate=1e-3, body_rate=1e-3, extra=extra)
    assert shares[0] == LARGEST_SHARE and shares[-1] == 0 and shares == sorted(shares, reverse=True)
    assert share_at(1.0) == 0
    assert not torch.equal(gate, extra.gate.weight)  # it learns
    assert not any("gate" in name for name in network.state_dict())


def test_a_bank_is_a_sample_of_all_batches_of_one_length():
    bank = TokenBank(seed=0)
    for number in range(10):
        bank.add(torch.full((64, 3, 2), float(number)), torch.full((64,), number))
        bank.add(torch.zeros(4, 5, 2), torch.zeros(4))  # of another length
    counts = torch.bincount(bank.labels, minlength=10)
    assert bank.body_inputs.shape == (MOST, 3, 2) and int(counts.min()) > 10
    assert bool((bank.body_inputs[:, 0, 0] == bank.labels).all())
    body_inputs, labels = bank.draw(2 * MOST, torch.Generator().manual_seed(0))
    assert len(body_inputs) == len(labels) == 2 * MOST


# ---------------------------------------------------------------------- two loops


def test_features_that_are_told_apart_count_as_knowledge():
    centres, labels = torch.eye(4), torch.arange(40) % 4
    noise = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    values = [float(measure_knowledge(centres[labels] + scale * noise, labels)) for scale in (0.01, 0.3, 3.0)]
    assert values == sorted(values)
    assert float(measure_knowledge(torch.ones(6, 3), torch.arange(6))) == pytest.approx(0)  # all alike: no uniformity


@pytest.mark.parametrize("layout", ["tokens", "vectors"])
def test_the_outer_loop_lowers_its_objective_through_the_inner_step(layout):
    setup = make_setup(layout, align_steps=25, body_rate=1e-2)
    feature_map, rows = setup.new_map(own_body=False), torch.arange(24)
    network = TargetNetwork(feature_map, setup.task, setup.samples.inputs).eval()
    start_head(network, setup.task, setup.samples.inputs, setup.labels)
    source = setup.bank.body_inputs, setup.bank.labels

    def measure(length: float = LOOK_AHEAD * 1e-2) -> Tensor:
        return look_ahead(network, setup, (setup.samples.inputs, setup.labels), source, length).loss

    before = float(measure().detach())
    parameters = list(feature_map.embedder.parameters())
    here, nowhere = (torch.autograd.grad(measure(*args), parameters)[0] for args in ((), (0.0,)))
    assert not torch.allclose(here, nowhere)  # second derivatives have a part in it
    meta_learn(setup, rows, feature_map)
    start_head(network, setup.task, setup.samples.inputs, setup.labels)
    assert float(measure().detach()) < before


def test_the_gradient_of_the_outer_loop_matches_finite_differences():
    setup = make_setup("vectors")
    feature_map = setup.new_map(own_body=False)
    network = TargetNetwork(feature_map, setup.task, setup.samples.inputs).eval()
    start_head(network, setup.task, setup.samples.inputs, setup.labels)
    network = copy.deepcopy(network).double()  # its body is the one that all tests here share
    feature_map = network.feature_map
    feature_map.embedder.requires_grad_(True)
    batch = setup.samples.inputs.double(), setup.labels
    source = setup.bank.body_inputs.double(), setup.bank.labels
    weight = next(feature_map.embedder.parameters())

    def measure() -> Tensor:
        return look_ahead(network, setup, batch, source, 0.05).loss

    gradient = torch.autograd.grad(measure(), weight)[0]
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    ends = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight += step * direction
        ends.append(float(measure().detach()))
        with torch.no_grad():
            weight -= step * direction
    assert float((gradient * direction).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)
