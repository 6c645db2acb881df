"""Indices and signs that make no matching, and matchings too wide to be matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.test_storage import case, refused

from interbasin import maps
from interbasin.errors import DataError, MapError, ShapeError
from interbasin.maps import Permutation, SignedPermutation, permutation

MILLION = 10**6


BAD_INDICES = [
    case("a matrix", lambda: ([[0, 1]],), ShapeError, "(1, 2)"),
    case("a number", lambda: (0,), ShapeError, "shape ()"),
    case("empty", lambda: (torch.zeros(0, dtype=torch.int64),), ShapeError, "(0,)"),
    case("floats", lambda: ([0.0, 1.0],), MapError, "whole numbers", "torch.float64"),
    case("NaN", lambda: ([float("nan")],), MapError, "whole numbers"),
    case("booleans", lambda: ([True, False],), MapError, "whole numbers", "torch.bool"),
    case("complex", lambda: (torch.zeros(2, dtype=torch.complex64),), DataError, "torch.complex64"),
    case("text", lambda: ("ab",), DataError, "str"),
    case("nothing", lambda: (None,), DataError, "NoneType"),
    case("a unit twice", lambda: ([0, 0, 2],), MapError, "[0] more than once"),
    case("above the source", lambda: ([0, 1, 3],), MapError, "0 to 2", "[3]", "source_width"),
    case("below minus one", lambda: ([0, -2],), MapError, "0 to 1", "[-2]"),
    case("above a narrower source", lambda: ([0, 1], 1), MapError, "0 to 0", "[1]"),
    case("a huge unsigned number", lambda: (np.array([2**64 - 1, 0], dtype=np.uint64),), MapError),
    case("a source of width zero", lambda: ([-1], 0), ShapeError, "at least 1", "0"),
    case("a negative width", lambda: ([-1], -3), ShapeError, "at least 1", "-3"),
    case("a width with a fraction", lambda: ([0], 2.0), ShapeError, "2.0"),
    case("a width in words", lambda: ([0], "2"), ShapeError, "'2'"),
    case("a width that is true", lambda: ([0], True), ShapeError, "True"),
    case("a width beyond all numbers", lambda: ([0], 10**30), ShapeError),
]


@pytest.mark.parametrize(("make", "error", "words"), BAD_INDICES)
def test_an_index_that_matches_nothing_is_refused(make, error, words):
    refused(lambda: Permutation(*make()), error, words)


@pytest.mark.parametrize(("make", "error", "words"), BAD_INDICES)
def test_a_signed_permutation_refuses_the_same_indices(make, error, words):
    index, *width = make()
    refused(lambda: SignedPermutation(index, [1, 1], *width), error, words)


@pytest.mark.parametrize(
    ("sign", "error", "words"),
    [
        case("too few", [1], ShapeError, "2 target units", "(1,)"),
        case("too many", [1, 1, 1], ShapeError, "(3,)"),
        case("a matrix", [[1, 1]], ShapeError, "(1, 2)"),
        case("zero", [1, 0], MapError, "+1 or -1"),
        case("two", [1, 2], MapError, "+1 or -1", "Linear"),
        case("a fraction", [1.0, 0.5], MapError, "+1 or -1"),
        case("NaN", [1.0, float("nan")], MapError, "+1 or -1"),
        case("text", "+-", DataError, "str"),
        case("nothing", None, DataError, "NoneType"),
    ],
)
def test_signs_that_are_none_are_refused(sign, error, words):
    refused(lambda: SignedPermutation([1, 0], sign), error, words)


def test_signs_may_be_written_as_floats():
    assert SignedPermutation([1, 0], [1.0, -1.0]).sign.tolist() == [1, -1]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint16])
def test_whole_numbers_of_every_size_are_an_index(dtype):
    assert Permutation(np.array([1, 0], dtype=dtype)).index.tolist() == [1, 0]


def test_units_without_a_partner_become_zero():
    partial = Permutation([-1, 2], source_width=3)
    assert partial(torch.tensor([5.0, 6.0, 7.0])).tolist() == [0.0, 7.0]
    assert partial.rank == 1 and not partial.is_exact_inverse
    assert Permutation([-1, -1]).rank == 0


def test_a_narrow_target_does_not_cost_the_memory_of_its_source():
    assert Permutation([7], source_width=10**15).target_width == 1


@pytest.fixture
def no_matrices(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a dense matrix was made")

    monkeypatch.setattr(permutation, "_dense", refuse)


def test_a_million_units_are_moved_turned_back_composed_and_kept_without_a_matrix(no_matrices, tmp_path):
    generator = torch.Generator().manual_seed(0)
    one, two = (Permutation(torch.randperm(MILLION, generator=generator)) for _ in range(2))
    sign = torch.randint(0, 2, (MILLION,), generator=generator) * 2 - 1
    signed = SignedPermutation(torch.randperm(MILLION, generator=generator), sign)
    x = torch.rand(MILLION, generator=generator)
    for map in (one, signed, two @ one, signed @ one, one @ signed):
        assert map.rank == MILLION
        assert torch.equal(map.inverse()(map(x)), x)
    assert torch.equal((two @ one)(x), two(one(x)))
    assert torch.equal((signed @ one)(x), signed(one(x)))
    assert one.inverse() @ one == Permutation(torch.arange(MILLION))
    signed.save(tmp_path / "signed")
    assert maps.load(tmp_path / "signed") == signed
    assert sum(file.stat().st_size for file in (tmp_path / "signed").iterdir()) < 10 * MILLION
