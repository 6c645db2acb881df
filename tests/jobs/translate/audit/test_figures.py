"""The choice of a method is judged by queries that had no say in it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.jobs.translate.audit.worlds import world

from interbasin.jobs.translate.audit import audit
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


@pytest.fixture(scope="module")
def many_labels():
    """Twenty subjects of eighty documents; all of a subject's are right for a query. The old model hardly sees them."""
    draws = np.random.default_rng(0)
    subjects, subject = draws.normal(size=(20, 16)), np.repeat(np.arange(20), 80)
    meaning = subjects[subject] + 2.2 * draws.normal(size=(1600, 16))
    asked = draws.integers(20, size=150)
    questions = subjects[asked] + 2.2 * draws.normal(size=(150, 16))
    turn = draws.normal(size=(16, 24))
    see_old = draws.normal(size=(16, 3)) @ draws.normal(size=(3, 24))
    pairs = draws.choice(1600, 400, replace=False)
    old, new = meaning @ see_old + 3 * draws.normal(size=(1600, 24)), meaning @ turn
    return audit(
        pairs=(old[pairs], new[pairs]),
        queries=(questions @ see_old + 3 * draws.normal(size=(150, 24)), questions @ turn),
        documents=old,
        new_documents=new,
        labels=[np.flatnonzero(subject == wanted) for wanted in asked],
        methods=["ridge"],
        draws=200,
        curve=[30, 60, 150],
    )


def test_with_many_labels_per_query_recall_is_capped_and_the_ceiling_named(many_labels):
    assert many_labels.metrics["recall_ceiling"] == pytest.approx(10 / 80)
    # Without the cap nothing could exceed 0.125.
    assert many_labels.metrics["recall.reembed"] > 0.15
    assert many_labels.measures["recall"] == "capped recall at 10"
    [note] = [note for note in many_labels.notes if "capped" in note]
    assert "Up to 80 documents are right for a query" in note and "it could not exceed 0.125 here" in note


def test_with_many_labels_per_query_what_re_embedding_gains_is_not_called_nothing(many_labels):
    gain = many_labels.verdict.differences["reembed - keep"]
    assert gain.low > 0 and "no better" not in many_labels.verdict.text
    assert many_labels.verdict.advice in ("re-embed", "translate first")
    best = max(way.figures["recall"].value for way in many_labels.table)
    assert many_labels.metrics["margin"] == pytest.approx(0.05 * best)


def test_fewer_pairs_are_enough_only_where_little_of_what_all_bring_is_lost():
    # Most labels are of documents that no search finds, so all find little. Half of it is small, and half all the same.
    little = world("turned", documents=600, queries=600, pairs=300)
    little.labels[9:] = (little.new_queries[9:] @ little.new.T).argmin(1)
    curve = audit(**little.arguments(methods=["ridge"], curve=[8])).curve
    fewer, every = (interval.value for interval in curve.values)
    assert fewer < 0.7 * every and curve.losses[0].high < 0.02
    assert curve.enough is None and curve.margin == pytest.approx(0.05 * every)


def test_nothing_is_enough_where_all_pairs_bring_nothing():
    lost = world("turned", documents=600, queries=60, pairs=300)
    lost.new_queries *= -1  # so that the nearest documents are the wrong ones
    curve = audit(**lost.arguments(methods=["ridge"], curve=[100], margin=0.2)).curve
    assert curve.values[-1].value == 0 and curve.enough is None
