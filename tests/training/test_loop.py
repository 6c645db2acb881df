"""One training loop: what it minimises, what it keeps, when it stops, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from interbasin.errors import DataError
from interbasin.training import Checkpoint, train

DATA = [torch.tensor([1.0]), torch.tensor([3.0])]


def squares(weight: torch.Tensor):
    return lambda batch, index: (weight - batch).square().sum()


def test_the_loss_falls_and_is_the_mean_over_batches():
    weight = torch.zeros(1, requires_grad=True)
    training = train([weight], DATA, squares(weight), epochs=60, rate=0.05)
    assert training.losses[0] == pytest.approx((1 + 9) / 2, abs=0.2)
    assert training.losses[-1] < 1.1 and len(training.losses) == 60
    assert training.scores == () and training.best == 0 and not training.stopped_early


def test_the_same_data_give_the_same_weights():
    ends = []
    for _ in range(2):
        weight = torch.zeros(1, requires_grad=True)
        train([weight], DATA, squares(weight), epochs=5, rate=0.1)
        ends.append(weight.detach().clone())
    assert torch.equal(*ends)


def test_the_batch_number_counts_from_zero_in_each_epoch():
    weight, numbers = torch.zeros(1, requires_grad=True), []
    train([weight], DATA, lambda batch, index: numbers.append(index) or weight.sum(), epochs=2, rate=0.1)
    assert numbers == [0, 1, 0, 1]


def test_a_tensor_is_cut_into_batches():
    weight, sizes = torch.zeros(1, requires_grad=True), []
    rows = torch.ones(5, 2)
    train([weight], rows, lambda batch, _: sizes.append(len(batch)) or weight.sum(), epochs=1, rate=0.1, batch_size=2)
    assert sizes == [2, 2, 1]


def test_every_better_epoch_is_kept_and_the_best_is_named():
    weight, kept, scores = torch.zeros(1, requires_grad=True), [], iter([5.0, 3.0, 4.0, 2.0])
    training = train(
        [weight],
        DATA,
        squares(weight),
        epochs=4,
        rate=0.1,
        evaluate=lambda: next(scores),
        bar=4.5,
        keep=lambda: kept.append(weight.item()),
    )
    assert training.scores == (5.0, 3.0, 4.0, 2.0) and training.best == 4
    assert len(kept) == 2 and kept[-1] == weight.item()


def test_no_epoch_is_best_where_none_is_below_the_bar():
    weight = torch.zeros(1, requires_grad=True)
    training = train([weight], DATA, squares(weight), epochs=2, rate=0.1, evaluate=lambda: 1.0, bar=1.0)
    assert training.best == 0 and training.scores == (1.0, 1.0)


def test_patience_ends_a_training_that_no_longer_improves():
    weight, scores = torch.zeros(1, requires_grad=True), iter([3.0, 2.0, 2.5, 2.5, 1.0])
    training = train([weight], DATA, squares(weight), epochs=5, rate=0.1, evaluate=lambda: next(scores), patience=2)
    assert training.stopped_early and training.best == 2 and len(training.losses) == 4


def test_patience_that_runs_out_with_the_epochs_is_no_early_stop():
    weight, scores = torch.zeros(1, requires_grad=True), iter([1.0, 2.0, 2.0])
    training = train([weight], DATA, squares(weight), epochs=3, rate=0.1, evaluate=lambda: next(scores), patience=2)
    assert not training.stopped_early and len(training.losses) == 3


def test_each_epoch_is_reported_in_a_line():
    weight, lines = torch.zeros(1, requires_grad=True), []
    train([weight], DATA, squares(weight), epochs=1, rate=0.0, what="fitting", report=lines.append)
    train([weight], DATA, squares(weight), epochs=1, rate=0.0, evaluate=lambda: 0.25, report=lines.append)
    assert lines == ["fitting, epoch 1: loss 5", "training, epoch 1: loss 5, score 0.25"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(bad):
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(DataError, match=rf"loss of fitting is {bad} in batch 0 of epoch 1; check the data"):
        train([weight], DATA, lambda batch, _: weight.sum() + bad, epochs=1, rate=0.1, what="fitting")
    assert weight.item() == 0


def test_data_without_batches_are_refused():
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(DataError, match="hold no batch at all"):
        train([weight], [], squares(weight), epochs=1, rate=0.1)


def test_one_cycle_of_adamw_rises_and_falls():
    ends = []
    for one_cycle in (None, 40):
        weight = torch.zeros(1, requires_grad=True)
        train([weight], [torch.tensor([1.0])] * 40, squares(weight), epochs=1, rate=0.1, one_cycle=one_cycle)
        ends.append(float(weight.detach()))
    weight = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.AdamW([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=40)
    for _ in range(40):
        optimiser.zero_grad()
        (weight - 1).square().sum().backward()
        optimiser.step()
        schedule.step()
    assert ends[1] == float(weight.detach()) != ends[0]


# ---------------------------------------------------------------------- steps in place of epochs


def test_steps_repeat_the_data_and_look_every_so_often():
    weight, batches, lines = torch.zeros(1, requires_grad=True), [], []

    def loss(batch, index):
        batches.append((float(batch), index))
        return (weight - batch).square().sum()

    training = train([weight], DATA, loss, steps=5, every=2, rate=0.1, evaluate=lambda: 1.0, report=lines.append)
    assert batches == [(1, 0), (3, 1), (1, 0), (3, 1), (1, 0)]
    assert training.steps == 5 and len(training.losses) == len(training.scores) == 3  # the end is looked at, too
    assert [line.partition(":")[0] for line in lines] == [f"training, step {step}" for step in (2, 4, 5)]


def test_steps_without_looks_in_between_end_with_one():
    weight = torch.zeros(1, requires_grad=True)
    training = train([weight], DATA, squares(weight), steps=3, rate=0.0)
    assert training.losses == pytest.approx([(1 + 9 + 1) / 3]) and training.steps == 3


@pytest.mark.parametrize("schedule", ["constant", "one-cycle", "cosine"])
@pytest.mark.parametrize("length", [{"epochs": 0}, {"steps": 0}])
def test_a_training_of_no_length_changes_nothing(length, schedule):
    weight = torch.zeros(1, requires_grad=True)
    training = train([weight], DATA, squares(weight), rate=0.1, schedule=schedule, **length)
    assert weight.item() == 0 and training.losses == () and training.steps == 0


def test_patience_counts_looks():
    weight, scores = torch.zeros(1, requires_grad=True), iter([3.0, 2.0, 2.5, 2.5, 1.0])
    options = {"steps": 50, "every": 3, "evaluate": lambda: next(scores), "patience": 2}
    training = train([weight], DATA, squares(weight), rate=0.1, **options)
    assert training.stopped_early and training.best == 2 and training.steps == 12


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ({}, "lasts for epochs= or for steps="),
        ({"epochs": 1, "steps": 1}, "lasts for epochs= or for steps="),
        ({"epochs": 1, "every": 1}, "With epochs= each epoch ends with a look"),
        ({"steps": 2, "every": 0}, "every must be a whole number"),
        ({"epochs": -1}, "epochs must be a whole number"),
        ({"epochs": 1, "patience": -1}, "patience must be a whole number"),
        (
            {"steps": 2, "one_cycle": 2, "schedule": "cosine"},
            "one_cycle= is a schedule, and schedule='cosine' is another",
        ),
    ],
)
def test_a_length_that_cannot_be_understood_is_refused(length, words):
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(DataError, match=words):
        train([weight], DATA, squares(weight), rate=0.1, **length)


# ---------------------------------------------------------------------- nothing global changes


def noisy(weight: torch.Tensor):
    return lambda batch, index: (weight - batch + torch.randn(1)).square().sum()


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    ends = []
    for _ in range(2):
        weight = torch.zeros(1, requires_grad=True)
        before = torch.get_rng_state()
        train([weight], DATA, noisy(weight), epochs=3, rate=0.1, seed=11)
        assert torch.equal(before, torch.get_rng_state())
        ends.append(float(weight.detach()))
        torch.rand(3)
    assert ends[0] == ends[1]
    weight = torch.zeros(1, requires_grad=True)
    train([weight], DATA, noisy(weight), epochs=3, rate=0.1, seed=12)
    assert float(weight.detach()) != ends[0]


def test_a_checkpoint_leaves_the_global_generator_alone(tmp_path):
    before = torch.get_rng_state()
    for _ in range(2):  # the second time it is taken up
        weight = torch.zeros(1, requires_grad=True)
        train([weight], DATA, noisy(weight), epochs=3, rate=0.1, checkpoint=Checkpoint(tmp_path / "c", steps=1))
        assert torch.equal(before, torch.get_rng_state())


def test_an_error_leaves_the_global_generator_alone():
    weight, before = torch.zeros(1, requires_grad=True), torch.get_rng_state()
    with pytest.raises(DataError):
        train([weight], DATA, lambda batch, _: torch.randn(1) * math.nan, epochs=1, rate=0.1, seed=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_training_works_in_every_mode_of_gradients_and_leaves_it_as_it_is(mode):
    weight = torch.zeros(1, requires_grad=True)
    with mode():
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        train([weight], DATA, squares(weight), epochs=1, rate=0.1)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes
    assert weight.item() != 0


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5])
def test_what_can_be_no_seed_is_refused(seed):
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(DataError, match="seed must be a whole number"):
        train([weight], DATA, squares(weight), epochs=1, rate=0.1, seed=seed)
