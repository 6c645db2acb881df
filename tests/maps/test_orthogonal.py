"""Matrices that are no isometries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.test_storage import case, refused

from interbasin import maps
from interbasin.errors import DataError, FileError, MapError, ShapeError
from interbasin.maps import Linear, Orthogonal

BAD_MATRICES = [
    case("a vector", lambda: [1.0, 0.0], ShapeError, "(target, source)", "(2,)"),
    case("a number", lambda: 1.0, ShapeError, "()"),
    case("three axes", lambda: torch.eye(2)[None], ShapeError, "(1, 2, 2)"),
    case("no rows", lambda: torch.ones(0, 2), ShapeError, "(0, 2)"),
    case("no columns", lambda: torch.ones(2, 0), ShapeError, "(2, 0)"),
    case("an empty list", lambda: [], ShapeError, "(0,)"),
    case("unequal rows", lambda: [[1.0], [1.0, 2.0]], DataError, "list"),
    case("NaN", lambda: [[math.nan, 0.0], [0.0, 1.0]], DataError, "finite", "1 entry that is NaN"),
    case("infinity", lambda: torch.full((2, 2), math.inf), DataError, "finite", "4 entries"),
    case("complex", lambda: torch.eye(2, dtype=torch.complex64), DataError, "torch.complex64"),
    case("text", lambda: [["a", "b"]], DataError, "list"),
    case("nothing", lambda: None, DataError, "NoneType"),
    case("objects", lambda: np.array([[None]]), DataError, "object"),
    case("eight-bit floats", lambda: torch.eye(2).to(torch.float8_e4m3fn), DataError, "float8_e4m3fn"),
]


@pytest.mark.parametrize(("make", "error", "words"), BAD_MATRICES)
@pytest.mark.parametrize("kind", [Orthogonal, Linear])
def test_what_is_no_matrix_is_refused(kind, make, error, words):
    refused(lambda: kind(make()), error, (kind.__name__, *words))


@pytest.mark.parametrize(
    "matrix",
    [
        [[1.0, 2.0], [0.0, 1.0]],
        [[2.0, 0.0], [0.0, 1.0]],
        [[0.5, 0.0], [0.0, 0.5]],
        [[1.0], [1.0]],
        [[1.0, 1.0]],
        [[1, 1], [1, 1]],
        [[1e200, 0.0], [0.0, 1.0]],
    ],
    ids=["shear", "stretch", "shrink", "tall", "wide", "whole numbers", "overflow"],
)
def test_a_matrix_that_changes_lengths_is_refused_and_its_error_named(matrix):
    refused(lambda: Orthogonal(matrix), MapError, ("Q Q^T Q", "use Linear", "interbasin.fit.polar"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_each_precision_has_its_own_tolerance(dtype):
    turn = torch.tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]], dtype=torch.float64)
    assert Orthogonal(turn.to(dtype)).rank == 2
    refused(lambda: Orthogonal((1.1 * turn).to(dtype)), MapError, (str(dtype),))


def test_a_rounded_rotation_is_not_taken_for_an_exact_one():
    turn = torch.tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]])
    refused(lambda: Orthogonal(turn.double()), MapError, ("torch.float64",))


def test_partial_isometries_know_their_rank():
    assert Orthogonal([[1.0, 0.0], [0.0, 0.0]]).rank == 1
    assert Orthogonal([[0.0]]).rank == 0
    assert Orthogonal([[-1.0]]).rank == 1
    assert Orthogonal([[1.0, 0.0, 0.0]]).rank == 1
    assert not Orthogonal([[1.0, 0.0, 0.0]]).is_exact_inverse


def test_a_saved_rank_that_is_not_the_matrix_s_is_refused(tmp_path):
    Orthogonal(torch.eye(3)).save(tmp_path / "map")
    path = tmp_path / "map" / "map.json"
    path.write_text(path.read_text("utf-8").replace('"rank": 3', '"rank": 2'), "utf-8")
    with pytest.raises(FileError, match="says it has rank 2, but its matrix has rank 3"):
        maps.load(tmp_path / "map")
