"""The front: what is learned and what is forgotten over several weights of generic inputs."""

from __future__ import annotations

import math

import pytest
import torch
from tests.jobs.transport.test_job import mlp, rows, tuned_of

import interbasin as ib
from interbasin.errors import DataError
from interbasin.jobs.transport.front import WEIGHTS
from interbasin.jobs.transport.methods import METHODS
from interbasin.outcome import Outcome


def asked(**more):
    source, target = mlp(16, 1), mlp(24, 2)
    tuned = tuned_of(source)
    given = {"generic": rows(256, seed=2) - 3, "readout": lambda outputs: outputs, "method": "regression"}
    return ib.transport(source, tuned, target, rows() + 3, **(given | more))


@pytest.fixture(scope="module")
def front():
    labelled = rows(64, seed=5) + 3
    validate = [(labelled, tuned_of(mlp(16, 1))(labelled).argmax(-1))]
    return asked(front=True, validate=validate)


@pytest.mark.slow
def test_more_weight_keeps_more_and_learns_less(front):
    curve = [row for row in front.front if row.generic_weight is not None]
    assert tuple(row.generic_weight for row in curve) == WEIGHTS
    assert curve[0].forgotten > curve[-1].forgotten and curve[0].effect > curve[-1].effect
    assert [row.forgotten for row in curve] == sorted((row.forgotten for row in curve), reverse=True)


def test_the_target_the_tuned_source_and_what_was_chosen_stand_beside_it(front):
    points = {row.point: row for row in front.front if row.generic_weight is None}
    assert points["target"].effect == points["target"].forgotten == 0
    assert points["tuned source"].effect == pytest.approx(1)
    assert points["tuned source"].forgotten == pytest.approx(front.metrics["forgotten_source"])
    chosen = points["chosen: regression, generic weight 0.5"]
    assert chosen.effect == front.metrics["effect_explained"] and chosen.forgotten == front.metrics["forgotten"]
    same = next(row for row in front.front if row.generic_weight == 0.5)
    assert (same.effect, same.forgotten) == (chosen.effect, chosen.forgotten)
    assert points["tuned source"].accuracy == 1 and all(row.accuracy is not None for row in front.front)


def test_a_point_is_what_a_regression_with_that_weight_gives(front):
    alone = asked(generic_weight=3.0)
    point = next(row for row in front.front if row.generic_weight == 3)
    assert point.effect == pytest.approx(alone.metrics["effect_explained"])
    assert point.forgotten == pytest.approx(alone.metrics["forgotten"])


def test_a_table_and_a_plot_are_written(front, tmp_path):
    front.save(tmp_path / "out")
    outcome = Outcome.load(tmp_path / "out")
    outcome.verify()
    table = outcome.table("front")
    assert len(table["point"]) == len(WEIGHTS) + 3 and "accuracy" in table
    assert math.isnan(table["generic_weight"][0]) and table["generic_weight"][2:8] == list(WEIGHTS)
    svg = (tmp_path / "out" / "front.svg").read_text()
    assert "tuned source" in svg and all(f">{weight:g}<" in svg for weight in WEIGHTS) and "nats" in svg


@pytest.mark.slow
def test_the_regression_that_was_tried_is_not_fitted_again(monkeypatch):
    calls = []
    regression = METHODS["regression"].function

    def counted(task, variant):
        calls.append(task.options.generic_weight)
        return regression(task, variant)

    object.__setattr__(METHODS["regression"], "function", counted)
    try:
        found = asked(front=[4, 0.5], as_lora=3)
    finally:
        object.__setattr__(METHODS["regression"], "function", regression)
    assert calls.count(4.0) == 1
    # Once to choose, once on all inputs, once for what the rank loses.
    assert calls.count(0.5) == 3
    weights = [row.generic_weight for row in found.front if row.generic_weight is not None]
    assert weights == [0.5, 4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generic": None}, r"give generic=, or leave out front="),
        ({"generic_target": "tuned"}, "keeps"),
        ({"front": []}, r"\[0.1, 1, 10\]"),
        ({"front": "0.1,1"}, r"\[0.1, 1, 10\]"),
        ({"front": [0.0]}, "weight of the front"),
        ({"front": [torch.inf]}, "weight of the front"),
        ({"outputs": "own"}, "outputs='shared'"),
    ],
)
def test_what_no_front_can_be_drawn_over_is_refused(change, words):
    with pytest.raises(DataError, match=words):
        asked(**({"front": True} | change))
