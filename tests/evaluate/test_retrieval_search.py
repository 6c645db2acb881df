"""Exact search against scikit-learn, in blocks of any size, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from tests.profiles import at_most

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.evaluate import retrieval
from interbasin.evaluate.retrieval import METRICS, Nearest, nearest, reranked, similarity


def drawn(seed: int, queries: int, documents: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    return draws.normal(size=(queries, width)), draws.normal(size=(documents, width)) * draws.uniform(
        0.5, 2, (documents, 1)
    )


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_the_nearest_are_those_of_scikit_learn(metric):
    queries, documents = drawn(0, 17, 300, 9)
    reference = NearestNeighbors(n_neighbors=7, metric={"l2": "euclidean"}.get(metric, metric), algorithm="brute")
    assert np.array_equal(
        nearest(queries, documents, 7, metric).rows, reference.fit(documents).kneighbors(queries, return_distance=False)
    )


def test_the_nearest_by_dot_product_are_the_largest_products():
    queries, documents = drawn(1, 11, 200, 5)
    found = nearest(queries, documents, 6, "dot")
    products = queries @ documents.T
    assert np.array_equal(found.rows, np.argsort(-products, axis=1)[:, :6])
    assert np.allclose(found.scores, -np.sort(-products, axis=1)[:, :6])


@at_most(30)
@given(
    seed=st.integers(0, 2**16),
    metric=st.sampled_from(METRICS),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    k=st.integers(1, 30),
)
def test_blocks_of_any_size_find_the_same(seed, metric, sizes, k):
    # Small whole numbers: sums are exact, and many documents are exactly as near as others.
    draws = np.random.default_rng(seed)
    queries, documents = draws.integers(-2, 3, (4, 3)).astype(float), draws.integers(-2, 3, (sum(sizes), 3)) * 1.0
    if metric == "cosine":
        queries, documents = np.sign(queries), np.sign(documents)
    parts = Nearest(queries, k, metric)
    for part in np.split(documents, np.cumsum(sizes)[:-1]):
        parts.update(part)
    found = parts.ranking()
    whole = nearest(queries, documents, k, metric)
    assert found.rows.shape == (4, k)
    if metric == "cosine":  # lengths are roots, so that what is as near may differ in its last digit
        np.testing.assert_allclose(found.scores, whole.scores, atol=1e-12)
    else:
        assert np.array_equal(found.rows, whole.rows)
    if metric == "dot":  # exact, so that ties are ties: the earlier row first
        order = np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :k]
        assert np.array_equal(found.rows[:, : order.shape[1]], order)
    assert (found.rows[:, sum(sizes) :] == -1).all()


def test_queries_that_do_not_fit_into_memory_at_once_find_the_same(monkeypatch):
    queries, documents = drawn(2, 50, 90, 6)
    whole = nearest(queries, documents, 5)
    monkeypatch.setattr(retrieval, "SCORES", 200)
    monkeypatch.setattr(retrieval, "BLOCK_BYTES", 4 * 6 * 10)
    assert np.array_equal(nearest(queries, documents, 5).rows, whole.rows)


@pytest.mark.slow
def test_memory_stays_flat(tmp_path):
    import tracemalloc

    documents = np.lib.format.open_memmap(tmp_path / "d.npy", mode="w+", dtype=np.float32, shape=(100_000, 64))
    documents[:] = np.random.default_rng(0).normal(size=(1, 64))
    documents.flush()
    tracemalloc.start()
    nearest(np.ones((8, 64), np.float32), np.load(tmp_path / "d.npy", mmap_mode="r"), 3)
    assert tracemalloc.get_traced_memory()[1] < 20e6  # the file has 25.6
    tracemalloc.stop()


def test_a_row_of_zeros_is_as_near_as_anything_at_a_right_angle():
    assert nearest([[1.0, 0.0]], [[-1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], 3).rows.tolist() == [[2, 1, 0]]


def test_scores_of_pairs():
    one, other = [[3.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, -1.0]]
    assert similarity(one, other).tolist() == [1.0, -1.0]
    assert similarity(one, other, "dot").tolist() == [3.0, -2.0]
    assert similarity(one, other, "l2").tolist() == [-2.0, -3.0]


def test_what_cannot_be_scored_is_said():
    with pytest.raises(UnknownNameError, match="cosine"):
        similarity([[1.0]], [[1.0]], "x")
    with pytest.raises(ShapeError, match="pairs of rows"):
        similarity([[1.0]], [[1.0], [2.0]])


def test_rows_that_are_not_finite_are_named(monkeypatch):
    monkeypatch.setattr(retrieval, "BLOCK_BYTES", 1)
    documents = np.ones((200, 2))
    documents[[70, 130]] = np.nan, np.inf
    with pytest.raises(DataError, match="The documents hold NaN or infinity in 1 rows: 70; leave them out"):
        nearest([[1.0, 2.0]], documents)
    with pytest.raises(DataError, match="The queries hold NaN or infinity in 1 rows: 0"):
        nearest([[np.nan, 2.0]], np.ones((3, 2)))


@pytest.mark.parametrize("metric", METRICS)
def test_searching_in_two_steps_is_searching_among_what_the_first_brought(metric, monkeypatch):
    queries, documents = drawn(3, 20, 80, 6)
    first = nearest(np.random.default_rng(9).normal(size=(20, 4)), np.random.default_rng(8).normal(size=(80, 4)), 12)
    asked = []

    def vectors(rows):
        asked.append(rows)
        return documents[rows]

    monkeypatch.setattr(retrieval, "RERANKED_AT_ONCE", 12 * 7)
    found = reranked(queries, first, vectors, metric, 5)
    for query, among, best in zip(queries, first.rows, found.rows, strict=True):
        among = np.sort(among)
        assert best.tolist() == among[nearest([query], documents[among], 5, metric).rows[0]].tolist()
    assert len(asked) == 3 and all(len(np.unique(rows)) == len(rows) for rows in asked)


def test_a_second_step_over_all_documents_is_one_step():
    queries, documents = drawn(4, 6, 30, 5)
    every = retrieval.Ranking(np.tile(np.arange(30), (6, 1)), np.zeros((6, 30)))
    assert np.array_equal(reranked(queries, every, documents.__getitem__).rows, nearest(queries, documents).rows)


def test_a_second_step_with_too_few_documents():
    first = retrieval.Ranking(np.array([[2, -1], [-1, -1]]), np.zeros((2, 2)))
    found = reranked(np.ones((2, 3)), first, np.ones((4, 3)).__getitem__, k=3)
    assert found.rows.tolist() == [[2, -1, -1], [-1, -1, -1]]
    with pytest.raises(ShapeError, match=r"in shape \(1, 3\), got \(1, 2\)"):
        reranked(np.ones((2, 3)), first, np.ones((4, 2)).__getitem__)
