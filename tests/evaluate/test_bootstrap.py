"""Intervals that hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from interbasin.evaluate import bootstrap
from interbasin.evaluate.bootstrap import Bootstrap, Interval


def test_the_truth_lies_within_about_as_often_as_promised():
    held = 0
    for seed in range(200):
        values = np.random.default_rng(seed).random(150) < 0.3
        found = Bootstrap(150, draws=300, seed=seed).interval(values)
        held += found.low <= 0.3 <= found.high
    assert 0.90 <= held / 200 <= 0.985


def test_differences_are_paired():
    draws = np.random.default_rng(0)
    hard = draws.normal(0, 1, 300)
    one, other = hard + 0.1 + draws.normal(0, 0.05, 300), hard + draws.normal(0, 0.05, 300)
    first, second, gain = Bootstrap(300).intervals(np.stack([one, other, one - other], 1))
    assert first.low < second.high and gain.low > 0.08  # apart they say nothing, together all


def test_the_same_seed_gives_the_same_bounds_and_blocks_do_not_matter(monkeypatch):
    values = np.random.default_rng(0).random((60, 2))
    found = Bootstrap(60, draws=50, seed=3).intervals(values)
    assert found == Bootstrap(60, draws=50, seed=3).intervals(values)
    assert found != Bootstrap(60, draws=50, seed=4).intervals(values)
    monkeypatch.setattr(bootstrap, "AT_ONCE", 60 * 7)
    again = Bootstrap(60, draws=50, seed=3).intervals(values)
    assert [one.low for one in again] == pytest.approx([one.low for one in found])


def test_an_interval_reads_well():
    assert str(Interval(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"
    assert f"{Interval(0.5, 0.25, 0.75):.2f}" == "0.50 [0.25, 0.75]"
