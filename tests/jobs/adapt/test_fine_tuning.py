"""Supervised training: what moves, what stays to the bit, and what is drawn."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from tests.jobs.adapt.examples import bits, make_mlp, make_setup, one_recalibration, same_bits  # noqa: F401
from torch import nn

from interbasin.errors import DataError
from interbasin.jobs.adapt.fine_tuning import LOOKS, fine_tune, measure_loss, semantic_gap
from interbasin.jobs.adapt.network import TargetNetwork, start_head
from interbasin.jobs.adapt.setup import EarlyStop, Setup, TrainingPlaces
from interbasin.randomness import generator_of
from interbasin.training import checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_recalibration")]
ROWS = torch.arange(24)


def make_network(setup: Setup) -> TargetNetwork:
    network = TargetNetwork(setup.new_map(), setup.task, setup.samples.inputs).eval()
    start_head(network, setup.task, setup.samples.inputs, setup.labels)
    return network


def train(setup: Setup, network: TargetNetwork | None = None, rows: torch.Tensor = ROWS, **options) -> TargetNetwork:
    network = make_network(setup) if network is None else network
    fine_tune(network, setup, rows, steps=options.pop("steps", 3), rate=1e-2, body_rate=1e-2, **options)
    return network


def test_a_frozen_body_does_not_move_by_one_bit():
    setup = make_setup(make_mlp(norm=True))
    network = make_network(setup)
    body, embedder, head = (
        bits(part) for part in (network.feature_map.body, network.feature_map.embedder, network.head)
    )
    train(setup, network, body="frozen")
    assert same_bits(network.feature_map.body, body)
    assert not same_bits(network.feature_map.embedder, embedder) and not same_bits(network.head, head)
    train(setup, network, body="everything")
    assert not same_bits(network.feature_map.body, body)


def test_batch_norms_of_a_pre_trained_body_keep_their_statistics_and_new_ones_learn_them():
    setup = make_setup(make_mlp(norm=True))
    statistics = {name: value for name, value in bits(setup.source.body).items() if "running" in name}
    assert statistics
    after = train(setup).feature_map.body.state_dict()
    assert all(torch.equal(after[name], value) for name, value in statistics.items())
    after = train(setup, is_new_body=True).feature_map.body.state_dict()
    assert not any(torch.equal(after[name], value) for name, value in statistics.items())


def test_a_batch_of_one_sample_leaves_norms_as_they_are():
    setup = make_setup(make_mlp(norm=True), batch_size=1)
    before = {name: value for name, value in bits(setup.source.body).items() if "running" in name}
    after = train(setup, is_new_body=True).feature_map.body.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.slow
def test_a_lora_changes_linear_weights_by_its_rank_and_nothing_else():
    setup = make_setup(make_mlp(norm=True), rank=2)
    network = make_network(setup)
    before, modules = bits(network.feature_map.body), [type(module) for module in network.feature_map.body.modules()]
    state = torch.random.get_rng_state()
    train(setup, network, body="lora")
    assert torch.equal(torch.random.get_rng_state(), state)
    body = network.feature_map.body
    assert [type(module) for module in body.modules()] == modules and list(body.state_dict()) == list(before)
    moved = [name for name, value in body.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == [name for name, module in _weights(body) if isinstance(module, nn.Linear)]
    for name in moved:
        assert int(torch.linalg.matrix_rank(body.state_dict()[name] - before[name], rtol=1e-3)) == 2
    again = train(setup, body="lora")
    assert same_bits(again, bits(network))


def _weights(body: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{name}.weight", module) for name, module in body.named_modules() if hasattr(module, "weight")]


def test_a_lora_on_a_body_without_linear_layers_is_refused():
    torch.manual_seed(0)
    layers = [nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)]
    setup = make_setup(nn.Sequential(*layers), proxy=(torch.randn(40, 1, 9), torch.arange(40) % 3))
    with pytest.raises(DataError, match=r'body="lora" adds to linear layers.*"frozen"'):
        train(setup, body="lora")


@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd"])
def test_the_same_seed_trains_to_the_same_bits_and_leaves_the_global_generator_alone(optimiser):
    setup = make_setup(optimiser=optimiser, accumulate=2, batch_size=5)
    network, state = make_network(setup), torch.random.get_rng_state()
    train(setup, network)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    assert same_bits(train(setup), bits(network))
    assert not same_bits(train(make_setup(optimiser=optimiser, accumulate=2, batch_size=5, seed=1)), bits(network))
    assert not network.training and not any(parameter.requires_grad for parameter in network.parameters())


def test_accumulated_batches_make_the_step_of_one_large_batch():
    small = make_setup(optimiser="sgd", accumulate=3, batch_size=8)
    large = make_setup(optimiser="sgd", accumulate=1, batch_size=24)
    one, other = train(small, steps=1), train(large, steps=1)
    for value, expected in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss_on_its_own_samples_alone():
    setup = make_setup(batch_size=64)
    network = make_network(setup)
    with torch.no_grad():
        before = float(setup.task.loss(network(setup.samples.inputs[ROWS]), setup.labels[ROWS]))
    train(setup, network, steps=20)
    with torch.no_grad():
        assert float(setup.task.loss(network(setup.samples.inputs[ROWS]), setup.labels[ROWS])) < before
    changed = make_setup(batch_size=64)
    changed.samples.inputs[24:] = 100.0  # samples that it is not given do not matter
    other = TargetNetwork(changed.new_map(), changed.task, setup.samples.inputs).eval()
    other.load_state_dict(make_network(setup).state_dict())
    fine_tune(other, changed, ROWS, steps=20, rate=1e-2, body_rate=1e-2)
    assert same_bits(other, bits(network))


@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression"])
def test_the_semantic_gap_is_added_where_it_is_asked_for(kind):
    plain, regular = make_setup(kind=kind), make_setup(kind=kind, regularise=0.5)
    features = plain.new_map()(plain.samples.inputs[:8]).requires_grad_(True)
    gap = semantic_gap(regular, features, torch.arange(8), generator_of(0))
    assert float(gap.detach()) > 0 and torch.autograd.grad(gap, features)[0].isfinite().all()
    assert not same_bits(train(regular), bits(train(plain)))


# ---------------------------------------------------------------------- stopped early

HELD = torch.arange(24, 30)


def fit_until(setup: Setup, patience: int, *, steps: int = 400, network: TargetNetwork | None = None, **options):
    """A network on samples whose labels say nothing of those held out, so that their loss rises soon."""
    network = make_network(setup) if network is None else network
    stopping = dataclasses.replace(setup, stop=EarlyStop(patience, HELD))
    training = fine_tune(network, stopping, ROWS, steps=steps, rate=3e-2, body_rate=3e-2, **options)
    return network, training


def test_a_training_that_gets_no_better_ends_and_keeps_its_best_look():
    setup = make_setup()
    network, training = fit_until(setup, 2)
    every = 400 // LOOKS
    assert training.stopped_early and training.steps == every * (training.best + 2) < 400
    assert measure_loss(network, setup, HELD) == min(training.scores) == training.scores[training.best - 1]
    # All steps, with a look at each: the best of them is kept too, where patience does not run out.
    patient, whole = fit_until(setup, LOOKS + 1)
    assert whole.steps == 400 and not whole.stopped_early and whole.scores[: len(training.scores)] == training.scores
    assert measure_loss(patient, setup, HELD) == min(whole.scores)


def test_looks_change_nothing_of_a_training_but_where_it_ends():
    setup = make_setup(make_mlp(norm=True))
    plain = train(setup, steps=5, is_new_body=True)
    network = make_network(setup)
    stopping = dataclasses.replace(setup, stop=EarlyStop(9, HELD))
    fine_tune(network, stopping, ROWS, steps=5, rate=1e-2, body_rate=1e-2, is_new_body=True, may_stop=False)
    assert same_bits(network, bits(plain))
    before = [module.training for module in network.train().modules()]
    measure_loss(network, setup, HELD)
    assert [module.training for module in network.modules()] == before


def test_a_training_with_patience_that_was_killed_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    setup = make_setup()
    whole, training = fit_until(setup, 2)

    def kill(step: int, steps: int | None, loss: float) -> None:
        if step == training.steps - 5:  # behind the best look
            raise KeyboardInterrupt

    for listener in (kill, None):
        kept = dataclasses.replace(setup, places=TrainingPlaces(tmp_path, None, listener))
        with pytest.raises(KeyboardInterrupt) if listener else contextlib.nullcontext():
            network, again = fit_until(kept, 2)
    assert again == training and again.resumed_from == training.steps - 6
    assert same_bits(network, bits(whole))
