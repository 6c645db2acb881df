"""Measures of a ranking against scikit-learn and by hand, and labels that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from interbasin.errors import ShapeError
from interbasin.evaluate.retrieval import Labels, ndcg, overlap, recall, reciprocal_rank

ROWS = np.array([[3, 1, 0], [2, 0, 1], [4, 3, 2]])


def test_measures_by_hand():
    labels = Labels.of([[1, 4], 2, []], queries=3, documents=5)
    assert recall(ROWS, labels, 3)[:2].tolist() == [0.5, 1.0]
    assert recall(ROWS, labels, 1)[:2].tolist() == [0.0, 1.0]
    assert reciprocal_rank(ROWS, labels, 3)[:2].tolist() == [0.5, 1.0]
    assert reciprocal_rank(ROWS, labels, 1)[:2].tolist() == [0.0, 1.0]
    for measure in (recall, reciprocal_rank, ndcg):
        assert np.isnan(measure(ROWS, labels, 3)[2])
    assert labels.known.tolist() == [True, True, False]


def test_recall_is_capped_at_what_the_first_places_can_hold():
    # All ten places are right, of eighty right documents: no search could find more.
    labels = Labels.of([np.arange(80), [3]], queries=2, documents=100)
    rows = np.array([np.arange(10), np.arange(10)])
    assert recall(rows, labels, 10).tolist() == [1.0, 1.0]
    assert recall(rows + 75, labels, 10).tolist() == [0.5, 0.0]
    assert labels.ceiling(10) == pytest.approx((10 / 80 + 1) / 2) and labels.ceiling(80) == 1.0


@given(seed=st.integers(0, 2**16), k=st.integers(1, 12))
def test_discounted_gain_is_that_of_scikit_learn(seed, k):
    draws = np.random.default_rng(seed)
    order = np.stack([draws.permutation(12) for _ in range(4)])
    relevant = [draws.choice(12, draws.integers(1, 6), replace=False) for _ in range(4)]
    wanted = np.zeros((4, 12))
    for row, one in zip(wanted, relevant, strict=True):
        row[one] = 1
    scores = np.zeros((4, 12))
    np.put_along_axis(scores, order, -np.arange(12.0)[None], axis=1)
    found = ndcg(order[:, :k], Labels.of(relevant, 4, 12), k)
    assert found.mean() == pytest.approx(ndcg_score(wanted, scores, k=k))


@given(seed=st.integers(0, 2**16), k=st.integers(1, 8))
def test_the_overlap_is_symmetric_and_one_with_itself(seed, k):
    draws = np.random.default_rng(seed)
    one, other = (np.stack([draws.permutation(20)[:8] for _ in range(5)]) for _ in range(2))
    assert np.array_equal(overlap(one, other, k), overlap(other, one, k))
    assert (overlap(one, one, k) == 1).all()
    by_sets = [len(set(a[:k]) & set(b[:k])) / k for a, b in zip(one, other, strict=True)]
    assert np.allclose(overlap(one, other, k), by_sets)


def test_places_without_a_document_are_no_hits():
    rows = np.array([[0, -1, -1]])
    assert overlap(rows, rows, 3).tolist() == [1.0]
    assert recall(np.array([[1, -1]]), Labels.of({0: 0}, 1, 2), 2).tolist() == [0.0]


def test_rankings_of_other_numbers_of_queries_are_refused():
    labels = Labels.of([0, 1], 2, 5)
    assert Labels.of(labels, 2, 5) is labels
    with pytest.raises(ShapeError, match="There are labels for 2 queries and a ranking of 3"):
        recall(ROWS, labels, 2)
    with pytest.raises(ShapeError, match="Rankings of 3 and of 1 queries cannot be compared"):
        overlap(ROWS, ROWS[:1], 2)
