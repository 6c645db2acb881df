"""The choice of a method is judged by queries that had no say in it."""

from __future__ import annotations

import numpy as np
import pytest

from interbasin.jobs.translate.audit.measures import choose_method


def test_a_method_that_all_queries_prefer_keeps_its_own_numbers():
    values = {"worse": np.zeros(20), "better": np.linspace(0.5, 1.0, 20)}
    found = choose_method(values, seed=0)
    assert found.method == "better" and found.best == pytest.approx(0.75) and not found.note
    np.testing.assert_array_equal(found.numbers, values["better"])


def test_methods_that_differ_by_chance_alone_gain_nothing_by_being_chosen():
    draws = np.random.default_rng(0)
    honest, own = [], []
    for trial in range(400):
        values = {str(one): draws.normal(size=50) for one in range(6)}
        found = choose_method(values, seed=trial)
        own.append(values[found.method].mean())
        honest.append(found.numbers.mean())
        assert own[-1] == max(one.mean() for one in values.values())
        assert found.best == own[-1] and (found.note == "") == (f"{found.numbers.mean():.3f}" == f"{own[-1]:.3f}")
    assert np.mean(own) > 0.15 and abs(np.mean(honest)) < 0.03
