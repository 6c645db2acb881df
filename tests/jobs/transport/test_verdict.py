"""The verdict on a transport: with labels, what the target gains is held against what fine-tuning gained itself."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.jobs.transport.test_job import mlp, rows

import interbasin as ib
from interbasin.evaluate.bootstrap import Interval
from interbasin.jobs.transport.verdict import Evidence, judge


def near(value: float) -> Interval:
    return Interval(value, value - 0.01, value + 0.01)


@pytest.mark.parametrize(
    ("worth", "gain", "choice"), [(0.2, 0.2, "transport"), (0.2, 0.12, "transport"), (0.9, 0.4, "train")]
)
def test_half_of_what_fine_tuning_gains_by_labels_is_enough(worth, gain, choice):
    verdict = judge(Evidence("theseus", 1.0, near(0.8), worth=near(worth), gain=near(gain)))
    assert verdict.choice == choice
    assert f"{100 * gain:.0f} %" in verdict.reason and f"{100 * worth:.0f} %" in verdict.reason
    assert "move away" not in verdict.reason


@pytest.mark.parametrize(("shared", "what"), [(True, "answers"), (False, "activations")])
def test_labels_that_get_better_while_answers_move_away_are_no_whole_story(shared, what):
    verdict = judge(Evidence("theseus", 1.0, near(-0.7), shared, worth=near(0.2), gain=near(0.2)))
    assert verdict.choice == "transport"
    assert f"its {what}" in verdict.reason and "move away" in verdict.reason and "-70 %" in verdict.reason


def test_a_perfect_transport_of_a_small_gain_is_no_start_for_training():
    source, inputs = mlp(16, 1), rows(200, seed=7)
    source[4].bias -= source(inputs).mean(0)  # so that no class is the usual one
    tuned = copy.deepcopy(source)
    tuned[4].weight *= 1.3
    tuned[4].bias *= 1.3
    labelled = [(inputs, source(inputs).argmax(-1))]
    result = ib.transport(
        source, tuned, source, rows(), validate=labelled, method="direct", alpha=1.0, readout=lambda outputs: outputs
    )
    assert result.metrics["effect_explained"] == 1 and result.verdict.figures["gain"].value < 0.5
    assert torch.equal(result.model[4].weight, tuned[4].weight)
    assert result.verdict.choice == "copy"


def test_a_fine_tune_that_answers_alike_to_all_inputs_is_worth_nothing():
    # A base that is sure of wrong answers: any flat answer lowers its loss.
    source, target = mlp(16, 1), mlp(24, 2)
    source[4].weight *= 30
    target[4].weight *= 30
    inputs = rows(200, seed=7)
    labelled = [(inputs, torch.arange(200) % 3)]
    flat = copy.deepcopy(source)
    flat[4].weight.zero_()
    flat[4].bias.zero_()
    result = ib.transport(source, flat, target, rows(), validate=labelled, readout=lambda outputs: outputs)
    assert result.verdict.figures["worth"].low > 0.1  # by the loss alone it would be worth much
    assert result.verdict.choice == "do-not" and "one answer to all inputs" in str(result.verdict)


@pytest.mark.parametrize(
    ("source", "target", "choice"),
    [(False, True, "do-not"), (True, False, "train"), (True, True, "transport"), (None, None, "transport")],
)
def test_what_is_no_better_than_one_answer_is_not_transported(source, target, choice):
    evidence = Evidence(
        "theseus",
        1.0,
        near(0.8),
        worth=near(0.5),
        gain=near(0.5),
        source_beyond_constant=source,
        target_beyond_constant=target,
    )
    assert judge(evidence).choice == choice


def test_without_generic_inputs_the_verdict_says_that_forgetting_was_not_measured():
    words = "what else it could do was not measured"
    assert words in judge(Evidence("theseus", 1.0, near(0.8), has_generic=False)).reason
    assert words not in judge(Evidence("theseus", 1.0, near(0.8))).reason
