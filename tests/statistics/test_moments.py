"""Batches that cannot be added, and that a refused one changes nothing. How the numbers come out is a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.test_storage import after, case, interrupt, refused

from interbasin import PairedMoments
from interbasin.errors import DataError, ShapeError
from interbasin.statistics import batches
from interbasin.statistics.accumulation import Side


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def spoiled(value: float, *places: tuple[int, int], shape: tuple[int, int] = (5, 12)) -> torch.Tensor:
    made = rows(*shape)
    for place in places:
        made[place] = value
    return made


def state(moments: PairedMoments) -> list[object]:
    """All that the moments hold, for comparisons to the last bit."""
    held: list[object] = [moments.count, moments.batches, moments.precision, moments.has_grams]
    if moments.count:
        held += [moments.mean_source.tolist(), moments.mean_target.tolist(), moments.cross(centered=False).tolist()]
        held += [moments.squares_source().tolist(), moments.squares_target().tolist(), moments.cross().tolist()]
    if moments.count and moments.has_grams:
        held += [moments.gram_source().tolist(), moments.gram_target().tolist()]
    return held


BAD_BATCHES = [
    case("NaN in the source", lambda: (spoiled(math.nan, (3, 4)), rows(5, 7)), DataError, "source", "(4)", "in row"),
    case(
        "NaN in the target",
        lambda: (rows(5, 12), spoiled(math.nan, (4, 2), (1, 0), shape=(5, 7))),
        DataError,
        "target",
        "2 of 7 columns",
        "(0, 2)",
        "row 1",
    ),
    case(
        "infinity", lambda: (spoiled(math.inf, (2, 1)), rows(5, 7)), DataError, "infinity", "1 of 12", "(1)", "in row"
    ),
    case("both infinities", lambda: (spoiled(math.inf, (2, 1)) - spoiled(math.inf, (3, 1)), rows(5, 7)), DataError),
    case(
        "NaN in many columns",
        lambda: (spoiled(math.nan, *((0, column) for column in range(10))), rows(5, 7)),
        DataError,
        "10 of 12 columns",
        "(0, 1, 2, 3, 4, 5, 6, 7, ...)",
    ),
    case("fewer target rows", lambda: (rows(5, 12), rows(4, 7)), ShapeError, "not paired", "(5,)", "(4,)"),
    case("axes the other way", lambda: (rows(2, 3, 12), rows(3, 2, 7)), ShapeError, "not paired", "(2, 3)", "(3, 2)"),
    case("rows that flatten to fewer", lambda: (rows(2, 3, 12), rows(5, 7)), ShapeError, "not paired", "(5,)"),
    case("another source width", lambda: (rows(5, 11), rows(5, 7)), ShapeError, "source", "11", "12"),
    case("another target width", lambda: (rows(5, 12), rows(5, 8)), ShapeError, "target", "8", "7"),
    case("a vector", lambda: (rows(12), rows(5, 7)), ShapeError, "source", "(12,)", "x[None]"),
    case("a number", lambda: (rows(5, 12), torch.tensor(1.0)), ShapeError, "target", "()"),
    case("no columns", lambda: (rows(5, 0), rows(5, 7)), ShapeError, "(5, 0)"),
    case("no rows", lambda: (rows(0, 12), rows(0, 7)), DataError, "empty", "(0, 12)"),
    case("no tokens", lambda: (rows(5, 0, 12), rows(5, 0, 7)), DataError, "empty", "(5, 0, 12)"),
    case("whole numbers", lambda: (torch.ones(5, 12, dtype=torch.int64), rows(5, 7)), DataError, "torch.int64"),
    case("booleans", lambda: (rows(5, 12), torch.ones(5, 7, dtype=torch.bool)), DataError, "torch.bool"),
    case("complex", lambda: (rows(5, 12), rows(5, 7).to(torch.complex128)), DataError, "torch.complex128"),
    case("eight-bit floats", lambda: (rows(5, 12).to(torch.float8_e5m2), rows(5, 7)), DataError, "float8_e5m2"),
    case("text", lambda: ("ab", rows(5, 7)), DataError, "str"),
    case("nothing", lambda: (rows(5, 12), None), DataError, "NoneType"),
    case("beyond float64", lambda: (1e200 * rows(5, 12), rows(5, 7)), DataError, "overflow float64", "scale"),
]


@pytest.mark.parametrize(("make", "error", "words"), BAD_BATCHES)
@pytest.mark.parametrize("grams", [False, True])
def test_a_refused_batch_is_named_and_leaves_the_moments_as_they_were(make, error, words, grams):
    moments = PairedMoments(grams=grams)
    for seed in range(2):
        moments.update(rows(6, 12, seed=seed), rows(6, 7, seed=seed + 9))
    before = state(moments)
    refused(lambda: moments.update(*make()), error, ("Batch 2", *words))
    assert state(moments) == before


@pytest.mark.parametrize(("make", "error", "words"), [one for one in BAD_BATCHES if "width" not in one.id])
def test_a_refused_first_batch_leaves_empty_moments(make, error, words):
    moments = PairedMoments(grams=True)
    refused(lambda: moments.update(*make()), error, ("Batch 0", *words))
    assert state(moments) == [0, 0, 0.0, True] and repr(moments) == "PairedMoments(empty)"


def test_the_row_is_counted_in_the_batch_and_not_in_the_chunk(monkeypatch):
    monkeypatch.setattr(batches, "CHUNK_ROWS", 2)
    refused(lambda: PairedMoments.of(spoiled(math.nan, (4, 1)), rows(5, 7)), DataError, ("row 4", "(1)"))


def test_a_message_about_one_pair_does_not_stutter():
    for make in (lambda: (rows(12), rows(5, 7)), lambda: (rows(5, 12), rows(4, 7))):
        message = refused(lambda make=make: PairedMoments.of(*make()), ShapeError)
        assert "source 'source'" not in message and "target (target)" not in message


@pytest.mark.parametrize("done", [0, 1], ids=["before the source", "between source and target"])
def test_an_interrupt_in_the_middle_of_an_update_leaves_the_moments_as_they_were(done, monkeypatch):
    moments = PairedMoments.of(rows(6, 3), rows(6, 2))
    before = state(moments)
    with monkeypatch.context() as patch:
        patch.setattr(Side, "plus", after(done, Side.plus, interrupt))
        with pytest.raises(KeyboardInterrupt):
            moments.update(rows(6, 3, seed=1), rows(6, 2, seed=2))
    assert state(moments) == before


def test_the_origin_is_near_the_mean_whatever_a_batch_begins_with_and_however_many_rows_it_has():
    for count in (1, 2, 255, 256, 257, 5000, 20_000):
        x = 1e4 + rows(count, 3)
        x[: count // 20] += 1e3  # as a black image in front of others
        origin = PairedMoments.of(x, x, grams=False)._state.sources["source"].origin
        assert float(((origin - x.mean(0)).abs() / (x.std(0, correction=0) + 1e-9)).max()) < 0.25


def test_tokens_may_be_flattened_on_one_side():
    x, y = rows(2, 3, 4), rows(2, 3, 5, seed=1)
    one, two = PairedMoments.of(x, y), PairedMoments.of(x.reshape(6, 4), y)
    assert one.count == two.count == 6 and torch.equal(one.cross(), two.cross())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_precision_is_summed_in_float64(dtype):
    x, y = rows(50, 3).to(dtype), rows(50, 2, seed=1).to(dtype)
    moments = PairedMoments.of(x, y)
    expected = (y.double() - y.double().mean(0)).mT @ (x.double() - x.double().mean(0))
    assert moments.cross().dtype == torch.float64
    assert torch.allclose(moments.cross(), expected, rtol=1e-5, atol=1e-5)
    assert moments.precision == torch.finfo(torch.promote_types(dtype, torch.float32)).eps


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e30, torch.float32),
        (3e37, torch.float32),
        (1e4, torch.float16),
        (1e30, torch.bfloat16),
        (1e-25, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("grams", [False, True])
def test_products_beyond_the_range_of_the_data_are_formed_in_float64(scale, dtype, grams):
    x, y = (scale * rows(40, 3)).to(dtype), (scale * rows(40, 2, seed=1)).to(dtype)
    moments = PairedMoments.of(x, y, grams=grams)
    x, y = x.double() - x.double().mean(0), y.double() - y.double().mean(0)
    assert torch.allclose(moments.cross() / scale**2, y.mT @ x / scale**2, rtol=1e-5, atol=1e-5)
    assert torch.allclose(moments.squares_source() / scale**2, x.square().sum(0) / scale**2, rtol=1e-5)


def test_the_two_sides_may_differ_in_precision_and_kind():
    x = rows(20, 3)
    mixed = PairedMoments.of(x.float().numpy(), x)
    assert torch.allclose(mixed.cross(), PairedMoments.of(x, x).cross(), rtol=1e-6, atol=1e-6)


def test_the_batch_may_be_changed_afterwards():
    x, y = rows(5, 3), rows(5, 2)
    moments = PairedMoments.of(x, y)
    before = state(moments)
    x.zero_(), y.zero_()
    assert state(moments) == before


def test_what_the_moments_hand_out_is_a_copy():
    moments = PairedMoments.of(rows(5, 3), rows(5, 2))
    before = state(moments)
    for centered in (False, True):
        moments.cross(centered=centered).zero_()
        moments.gram_source(centered=centered).zero_()
        moments.gram_target(centered=centered).zero_()
        moments.squares_source(centered=centered).zero_()
        moments.squares_target(centered=centered).zero_()
    moments.mean_source.zero_(), moments.mean_target.zero_()
    assert state(moments) == before


def test_merging_leaves_both_as_they_were_and_shares_nothing():
    one, two = PairedMoments.of(rows(5, 3), rows(5, 2)), PairedMoments.of(rows(4, 3, seed=1), rows(4, 2, seed=2))
    before = state(one), state(two)
    for merged in (one.merge(two), one.merge(PairedMoments(grams=True)), PairedMoments(grams=True).merge(two)):
        merged.update(rows(5, 3), rows(5, 2))
    assert (state(one), state(two)) == before


def some(source: int = 3, target: int = 2, grams: bool = True) -> PairedMoments:
    return PairedMoments.of(rows(5, source), rows(5, target), grams=grams)


def test_moments_of_no_batches_are_empty():
    assert PairedMoments.of_batches([]).count == 0


def test_one_row_has_no_spread():
    one = PairedMoments.of(rows(1, 3), rows(1, 2))
    assert one.count == 1 and one.rank_bound() == 0 and one.rank_bound(centered=False) == 1
    assert float(one.cross().abs().max()) == 0.0


def test_sums_of_squares_are_never_negative():
    constant = np.full((999, 3), 0.1, dtype=np.float32)
    moments = PairedMoments.of_batches([(constant[:7], constant[:7]), (constant, constant)])
    assert float(moments.squares_source().min()) >= 0.0


def test_moments_show_their_widths_and_rows():
    assert repr(some()) == "PairedMoments(2 <- 3, 5 rows, grams)"


def test_sums_about_zero_that_overflow_are_refused_and_those_about_the_mean_are_not():
    moments = PairedMoments.of(rows(5, 12) + 1e200, rows(5, 7) + 1e200)
    assert bool(torch.isfinite(moments.cross()).all())
    for ask in (moments.cross, moments.gram_source, moments.squares_target):
        with pytest.raises(DataError, match="sums about zero overflow float64"):
            ask(centered=False)
