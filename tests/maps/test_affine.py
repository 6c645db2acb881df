"""Offsets that do not fit, linear parts that are none."""

from __future__ import annotations

import math

import pytest
import torch
from tests.maps.test_orthogonal import BAD_MATRICES
from tests.test_storage import case, refused

from interbasin.errors import DataError, MapError, ShapeError
from interbasin.maps import Affine, Blocks, Identity, Linear, Orthogonal, Permutation, SignedPermutation


@pytest.mark.parametrize(("make", "error", "words"), BAD_MATRICES)
def test_an_affine_map_refuses_what_is_no_matrix(make, error, words):
    refused(lambda: Affine(make(), [0.0, 0.0]), error, words)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("too short", lambda: [1.0], ShapeError, "width 2", "(1,)"),
        case("as wide as the source", lambda: [1.0, 2.0, 3.0], ShapeError, "one offset a unit", "(3,)"),
        case("a number", lambda: 1.0, ShapeError, "()"),
        case("a row", lambda: [[1.0, 2.0]], ShapeError, "(1, 2)"),
        case("NaN", lambda: [1.0, math.nan], DataError, "offset", "finite", "1 entry that is NaN"),
        case("infinity", lambda: [math.inf, -math.inf], DataError, "2 entries"),
        case("complex", lambda: torch.zeros(2, dtype=torch.complex64), DataError, "torch.complex64"),
        case("text", lambda: "ab", DataError, "str"),
        case("nothing", lambda: None, DataError, "NoneType"),
    ],
)
def test_an_offset_that_does_not_fit_is_refused(make, error, words):
    refused(lambda: Affine([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], make()), error, words)


def test_an_affine_map_is_no_linear_part():
    shift = Affine(torch.eye(2), [1.0, 2.0])
    refused(lambda: Affine(shift, [1.0, 2.0]), MapError, ("affine itself", "@"))


LINEAR_PARTS = [
    Identity(2),
    Permutation([1, 0]),
    SignedPermutation([1, 0], [1, -1]),
    Orthogonal([[0.0, -1.0], [1.0, 0.0]]),
    Linear([[1.0, 2.0], [0.0, 1.0]]),
    Blocks([Identity(1), Permutation([0])], order=[1, 0]),
]


@pytest.mark.parametrize("linear", LINEAR_PARTS, ids=repr)
def test_the_linear_part_keeps_its_kind(linear):
    shift = Affine(linear, [0.5, -0.5])
    x = torch.tensor([[3.0, 5.0]], dtype=torch.float64)
    assert shift.linear == linear and shift.rank == linear.rank == 2 and not shift.is_isometric
    assert torch.allclose(shift(x), linear(x) + torch.tensor([0.5, -0.5], dtype=torch.float64))
    assert type(shift.inverse().linear) is type(linear.inverse())


@pytest.mark.parametrize("linear", LINEAR_PARTS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
def test_an_offset_is_never_rounded_to_whole_numbers(linear, dtype):
    refused(lambda: Affine(linear, [0.5, 0.5])(torch.ones(3, 2, dtype=dtype)), DataError, (str(dtype), ".float()"))


def test_an_offset_takes_the_precision_of_its_linear_part():
    assert Affine(torch.eye(2), torch.ones(2, dtype=torch.float64)).offset.dtype == torch.float32
    assert Affine([[1, 2], [3, 4]], [1, 2]).dtype == torch.float64


def test_an_affine_linear_part_is_refused():
    with pytest.raises(MapError, match="is affine itself; compose the two with @"):
        Affine(Affine([[1.0]], [0.0]), [1.0])


def test_an_offset_that_overflows_the_precision_of_the_map_is_refused():
    with pytest.raises(DataError, match="must be finite"):
        Affine(Linear(torch.eye(2).half()), [1e6, 0.0])
