"""Applying a translation: the same as translating everything at once, whatever the batches and wherever it stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.vectors.stores.translators import Plain, translated, vectors

from interbasin.errors import DataError, ShapeError
from interbasin.jobs.translate import apply as application
from interbasin.jobs.translate.apply import BATCH_BYTES, Applied, translator_fingerprint
from interbasin.outcome import Outcome
from interbasin.vectors import default_rows_per_batch
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.same_work import same_probe


class Array:
    """Rows in memory, with their numbers as what goes along."""

    name, notes = "memory", ()

    def __init__(self, x: NDArray[Any], metric: str | None = None) -> None:
        self.x, self.rows, self.width, self.dtype, self.metric = x, len(x), x.shape[1], x.dtype, metric

    def fingerprint(self) -> dict[str, Any]:
        return {}

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        for first in range(start, len(self.x), rows_per_batch):
            yield Piece(
                self.x[first : first + rows_per_batch], list(range(len(self.x)))[first : first + rows_per_batch]
            )


class Kept:
    """A sink in memory that may fail at some row, once."""

    name, mark, notes = "kept", None, ()

    def __init__(self, fails_at: int | None = None) -> None:
        self.pieces: list[Piece] = []
        self.rows_per_batch: int | None = None
        self.fails_at, self.finished, self.closed = fails_at, False, 0

    @property
    def rows(self) -> int:
        return sum(len(piece.vectors) for piece in self.pieces)

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch

    def append(self, piece: Piece) -> None:
        if self.fails_at is not None and self.rows >= self.fails_at:
            self.fails_at = None
            raise OSError("full")
        self.pieces.append(piece)

    def finish(self) -> None:
        self.finished = True

    def close(self) -> None:
        self.closed += 1

    @property
    def array(self) -> NDArray[Any]:
        return np.concatenate([piece.vectors for piece in self.pieces])

    @property
    def ids(self) -> list[int]:
        return [one for piece in self.pieces for one in piece.rest]


def apply(translator: Plain, rows: Array, sink: Kept, **options: Any) -> Applied:
    return application.apply(translator, rows, lambda width, fingerprint: sink, **options)


@given(
    rows=st.integers(1, 60),
    batch=st.integers(1, 70),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    fails_at=st.none() | st.integers(0, 60),
)
def test_any_batches_and_any_interrupt_give_what_translating_at_once_gives(rows, batch, dtype, fails_at):
    x, translator, sink = vectors(rows, 6, dtype), Plain(6, 9), Kept(fails_at)
    try:
        apply(translator, Array(x), sink, rows_per_batch=batch)
    except OSError:
        assert not sink.finished
        apply(translator, Array(x), sink, rows_per_batch=batch)
    assert sink.finished and sink.closed >= 1
    assert sink.array.dtype == x.dtype
    np.testing.assert_array_equal(sink.array, translated(translator, x))
    assert sink.ids == list(range(rows))


def test_a_run_that_goes_on_keeps_its_batches_and_says_so():
    x, translator, sink = vectors(50, 6), Plain(6, 9), Kept(fails_at=14)
    with pytest.raises(OSError, match="full"):
        apply(translator, Array(x), sink, rows_per_batch=7)
    seen: list[int] = []
    done = apply(translator, Array(x), sink, rows_per_batch=10, progress=lambda done, rows: seen.append(done))
    assert done.resumed_at == 14 and seen == [14, 21, 28, 35, 42, 49, 50]
    assert done.notes == ("The earlier run wrote batches of 7 rows, and this one went on with these.",)
    assert json.loads(json.dumps(done.summary()))["rows"] == 50


def test_what_was_translated_is_a_result_with_a_folder_of_its_own(tmp_path):
    done = apply(Plain(6, 9), Array(vectors(50, 6)), Kept(), rows_per_batch=7)
    assert repr(done) == "Applied(rows=50, resumed_at=0)" and set(done.timings) == {"translate", "finish"}
    outcome = done.save(tmp_path / "out")
    assert outcome.job == "translate apply" and outcome.metrics["rows"] == 50
    assert Outcome.load(tmp_path / "out").request["rows_per_batch"] == 7


def test_batches_are_neither_tiny_nor_huge():
    assert default_rows_per_batch(1, 1, BATCH_BYTES) == 65_536
    assert default_rows_per_batch(10**6, 10**6, BATCH_BYTES) == 256


@pytest.mark.parametrize(
    "value, words",
    [(np.nan, "NaN or infinity"), (-np.inf, "NaN or infinity"), (0, "nothing but zeros")],
)
def test_rows_that_cannot_be_translated_are_named(value, words):
    x = vectors(50, 6)
    x[[23, 31], :] = value
    with pytest.raises(DataError, match=rf"In memory, row 23 \(counted from 0\) holds {words}.*--bad-rows keep"):
        apply(Plain(6, 9), Array(x), Kept(), rows_per_batch=8)
    with pytest.raises(DataError, match=rf"rows 23, 31 \(counted from 0\) hold {words}"):
        apply(Plain(6, 9), Array(x), Kept(), rows_per_batch=50)


def test_many_bad_rows_are_counted():
    x = vectors(50, 6)
    x[10:20] = 0
    with pytest.raises(
        DataError, match=r"rows 10, 11, 12, 13, 14 \(counted from 0\) and 5 more in the same batch hold"
    ):
        apply(Plain(6, 9), Array(x), Kept())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bad_rows_can_be_kept_as_they_are(dtype):
    x, translator, sink = vectors(50, 6, dtype), Plain(6, 9), Kept()
    clean = translated(translator, x)
    x[3], x[4, 2], x[40] = 0, np.nan, np.inf
    done = apply(translator, Array(x), sink, rows_per_batch=8, bad_rows="keep")
    clean[3], clean[4], clean[40] = 0, np.nan, np.nan
    np.testing.assert_array_equal(sink.array, clean)
    assert done.bad_rows == {"not finite": 2, "zero": 1}


def test_huge_and_tiny_numbers_are_no_bad_rows():
    x = np.full((4, 6), 1e30, dtype=np.float32)
    x[1] = 1e-30
    sink = Kept()
    apply(Plain(6, 9), Array(x), sink)
    assert np.isfinite(sink.array).all() and sink.array.any(axis=1).all()


def test_another_word_for_bad_rows_is_refused():
    with pytest.raises(DataError, match="'refuse' or 'keep', found 'drop'"):
        apply(Plain(6, 9), Array(vectors(5, 6)), Kept(), bad_rows="drop")


def test_batches_without_rows_are_refused():
    with pytest.raises(ShapeError, match="Batches of 0 rows were asked for"):
        apply(Plain(6, 9), Array(vectors(5, 6)), Kept(), rows_per_batch=0)


@pytest.mark.parametrize(
    "width, words",
    [
        (9, "the width that it translates to; were they translated already, or does it go the other way"),
        (64, r"truncated, Matryoshka\), fit a translator on vectors that are cut to 64 too"),
        (700, "give vectors of the encoder that it was fitted on"),
    ],
)
def test_a_wrong_width_says_what_it_may_be(width, words):
    with pytest.raises(ShapeError, match=rf"takes vectors of 128 numbers, but those in memory have {width}.*{words}"):
        apply(Plain(128, 9), Array(vectors(5, width)), Kept())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_quantised_vectors_need_their_scale(dtype):
    x = np.random.default_rng(0).integers(1, 100, (20, 6)).astype(dtype)
    translator, sink = Plain(6, 9), Kept()
    with pytest.raises(DataError, match=rf"{dtype} vectors, which are quantised: each number times a scale .*--scale"):
        apply(translator, Array(x), sink)
    apply(translator, Array(x), sink, scale=0.5)
    assert sink.array.dtype == np.float32
    np.testing.assert_allclose(sink.array, translator.transform(x.astype(np.float32) / 2), rtol=1e-6)


def test_packed_bits_are_told_apart_from_quantised_numbers():
    with pytest.raises(DataError, match="6 numbers stand for 48 dimensions"):
        apply(Plain(6, 9), Array(np.ones((3, 6), dtype=np.uint8)), Kept())


def test_a_scale_of_floats_is_refused():
    with pytest.raises(DataError, match="A scale is for whole numbers, but memory holds float32 vectors"):
        apply(Plain(6, 9), Array(vectors(5, 6)), Kept(), scale=2.0)


def test_numbers_too_large_for_float16_are_refused_by_row():
    x = vectors(20, 6, "float16")
    x[13] = 6e4
    with pytest.raises(DataError, match=r"Translated, row 13 \(counted from 0\) of memory would .* beyond 65,504"):
        apply(Plain(6, 9), Array(x), Kept(), rows_per_batch=3)


@pytest.mark.parametrize("dtype, largest", [("float32", 3e38), ("float64", 1.7e308)])
@pytest.mark.parametrize("bad_rows", ["refuse", "keep"])
def test_rows_whose_translation_is_not_finite_are_refused_by_row(dtype, largest, bad_rows):
    x = vectors(20, 6, dtype)
    x[13] = largest
    sink = Kept()
    with pytest.raises(
        DataError, match=rf"Translated, row 13 \(counted from 0\) of memory would .* the largest of {dtype}, or none"
    ):
        apply(Plain(6, 9), Array(x), sink, rows_per_batch=3, bad_rows=bad_rows)
    assert sink.rows == 12


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan, 0.0, -1.0, 1e300, 1e-300, 1e38])
def test_what_is_no_scale_is_refused(scale):
    x = np.ones((3, 6), dtype=np.int8)
    with pytest.raises(
        DataError, match=rf"A scale is a number above 0 by which every int8 .*, found {re.escape(str(scale))};"
    ):
        apply(Plain(6, 9), Array(x), Kept(), scale=scale)
    apply(Plain(6, 9), Array(x), Kept(), scale=1e-9)


def test_lost_lengths_are_told_where_they_count():
    lossy = Plain(6, 9, carries_norms=False)
    assert apply(lossy, Array(vectors(5, 6), "cosine"), Kept()).notes == ()
    assert apply(Plain(6, 9), Array(vectors(5, 6), "l2"), Kept()).notes == ()
    (remark,) = apply(lossy, Array(vectors(5, 6)), Kept()).notes
    assert "compare by cosine" in remark
    (remark,) = apply(lossy, Array(vectors(5, 6), "inner product"), Kept()).notes
    assert remark.startswith("memory is compared by inner product, for which the lengths of vectors count")


def test_a_translator_that_breaks_its_promise_is_found_out():
    translator = Plain(6, 9)
    translator.target_width = 8
    with pytest.raises(ShapeError, match=r"gave an array of shape \(5, 9\) where \(5, 8\) was promised"):
        apply(translator, Array(vectors(5, 6)), Kept())


def test_translators_are_told_apart_by_what_they_do():
    one = translator_fingerprint(Plain(6, 9))
    assert same_probe(one, json.loads(json.dumps(translator_fingerprint(Plain(6, 9)))))
    assert not same_probe(one, translator_fingerprint(Plain(6, 9, seed=1)))
    assert not same_probe(one, translator_fingerprint(Plain(6, 8)))
    assert not same_probe(one, {})
    assert not same_probe(one, {**one, "probe": one["probe"][:8]})


@pytest.mark.parametrize("place", [0, 40, 64, 299])
@pytest.mark.parametrize("change", [1e-3, 10.0])
def test_a_change_of_any_number_is_noticed(place, change):
    one, other = Plain(6, 300), Plain(6, 300)
    other.matrix[2, place] += change
    assert not same_probe(translator_fingerprint(one), translator_fingerprint(other))
    other.matrix[2, place] -= change
    other.matrix *= 1 + 1e-12
    assert same_probe(translator_fingerprint(one), translator_fingerprint(other))
