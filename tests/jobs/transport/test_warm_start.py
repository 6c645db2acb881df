"""Training from where a transport ends: as many steps as asked for, both curves, and when the warm start caught up."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.jobs.transport.test_job import mlp, rows, tuned_of

import interbasin as ib
from interbasin.errors import DataError
from interbasin.jobs.transport import Finetuned, WarmStart, train_on


def pairs(count: int = 64, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    inputs = rows(count, seed)
    return [(inputs, tuned_of(mlp(16, 1))(inputs).argmax(-1))]


@pytest.mark.parametrize(("steps", "every", "expected"), [(5, 2, (0, 2, 4, 5)), (4, 2, (0, 2, 4)), (3, 10, (0, 3))])
def test_as_many_steps_are_taken_as_were_asked_for(steps, every, expected):
    calls = []

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad:
            calls.append(len(outputs))
        return torch.nn.functional.cross_entropy(outputs, labels)

    lines: list[str] = []
    run = ib.finetune(mlp(16, 1), pairs(), pairs(seed=1), steps=steps, every=every, loss=loss, progress=lines.append)
    assert run.steps == expected and len(calls) == steps
    assert len(lines) == len(expected) - 1 and lines[-1].startswith(f"step {steps} of {steps}: loss ")
    assert "on validation data" in lines[-1]


def test_the_warm_start_reaches_the_cold_one(tmp_path):
    source, tuned = mlp(16, 1), tuned_of(mlp(16, 1))
    target = ib.carry(source, ib.wire(source, rows(8)).sample(seed=4))
    result = ib.transport(source, tuned, target, rows(), method="theseus")
    told: list[tuple[str, int]] = []
    trained = result.with_training(
        pairs(), pairs(seed=1), steps=6, every=2, progress=lambda start, done, text: told.append((start, done))
    )
    assert told == [("warm", 2), ("warm", 4), ("warm", 6), ("cold", 2), ("cold", 4), ("cold", 6)]
    assert trained.trained.reached == 0 and "at step 0" in str(trained.trained)
    assert result.trained is None and "train" in trained.timings
    outcome = trained.save(tmp_path / "out")
    assert outcome.metrics["step_reached"] == 0 and outcome.metrics["loss_warm"] < outcome.metrics["loss_cold"]
    assert outcome.table("warm-start")["step"] == [0, 2, 4, 6]
    assert "at step 0" in (tmp_path / "out" / "warm-start.svg").read_text()


def test_a_warm_start_that_is_worse_is_said_to_be():
    def curve(*losses: float) -> Finetuned:
        return Finetuned(
            model=mlp(4, 0), steps=(0, 1, 2), losses_valid=losses, metrics={"loss": 0.0, "loss_valid": losses[-1]}
        )

    start = WarmStart(curve(3.0, 2.5, 2.0), curve(4.0, 2.0, 1.0))
    assert start.reached is None and "never came below" in str(start) and "step_reached" not in start.metrics
    assert WarmStart(curve(3.0, 1.0, 2.0), curve(4.0, 2.0, 1.0)).reached == 1


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DataError, match="validation data"):
        train_on(mlp(4, 0), mlp(4, 1), pairs(), None)
    with pytest.raises(DataError, match="steps"):
        train_on(mlp(4, 0), mlp(4, 1), pairs(), pairs(), steps=0)
    with pytest.raises(DataError, match="Batch 1 of the validation data is trained on"):
        train_on(mlp(4, 0), mlp(4, 1), pairs(), pairs(seed=1) + copy.deepcopy(pairs()), steps=2)
    with pytest.raises(DataError, match="more than once"):
        train_on(mlp(4, 0), mlp(4, 1), iter(pairs()), pairs())


def test_frozen_parameters_stay_unless_all_are_frozen():
    network = mlp(8, 1).requires_grad_(True)
    network[0].requires_grad_(False)
    trained = ib.finetune(network, pairs(), steps=3).model
    assert torch.equal(trained[0].weight, network[0].weight) and not trained[0].weight.requires_grad
    assert not torch.equal(trained[2].weight, network[2].weight)
    whole = ib.finetune(network.requires_grad_(False), pairs(), steps=3).model
    assert not torch.equal(whole[0].weight, network[0].weight) and not whole[0].weight.requires_grad


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_it_trains_where_gradients_are_switched_off(off):
    data = pairs()
    usual = ib.finetune(mlp(8, 1), data, steps=3).model
    with off():
        trained = ib.finetune(mlp(8, 1), data, steps=3).model
    assert torch.equal(trained[0].weight, usual[0].weight)
