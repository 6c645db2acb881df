"""Offsets that do not fit, and matrices that lose directions. What is no matrix stands in test_orthogonal.py."""

from __future__ import annotations

import math

import pytest
import torch
from tests.maps.test_orthogonal import BAD_MATRICES
from tests.test_storage import case, refused

from interbasin.errors import DataError, ShapeError
from interbasin.maps import Affine, Linear


@pytest.mark.parametrize(("make", "error", "words"), BAD_MATRICES)
def test_an_affine_map_refuses_what_is_no_matrix(make, error, words):
    refused(lambda: Affine(make(), [0.0, 0.0]), error, words)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("too short", lambda: [1.0], ShapeError, "width 2", "(1,)"),
        case("too long", lambda: [1.0, 2.0, 3.0], ShapeError, "(3,)"),
        case("as wide as the source", lambda: [1.0, 2.0, 3.0], ShapeError, "one offset a unit"),
        case("a number", lambda: 1.0, ShapeError, "()"),
        case("a row", lambda: [[1.0, 2.0]], ShapeError, "(1, 2)"),
        case("NaN", lambda: [1.0, math.nan], DataError, "offset", "finite", "1 entries"),
        case("infinity", lambda: [math.inf, -math.inf], DataError, "2 entries"),
        case("complex", lambda: torch.zeros(2, dtype=torch.complex64), DataError, "torch.complex64"),
        case("text", lambda: "ab", DataError, "str"),
        case("nothing", lambda: None, DataError, "NoneType"),
    ],
)
def test_an_offset_that_does_not_fit_is_refused(make, error, words):
    refused(lambda: Affine([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], make()), error, words)


def test_whole_numbers_become_floating_point():
    assert Linear([[1, 2], [3, 4]]).dtype == torch.float64
    assert Affine([[1, 2], [3, 4]], [1, 2]).dtype == torch.float64
    assert Linear(torch.ones(2, 2, dtype=torch.bool)).dtype == torch.float64


def test_an_offset_takes_the_precision_of_its_matrix():
    assert Affine(torch.eye(2), torch.ones(2, dtype=torch.float64)).offset.dtype == torch.float32


@pytest.mark.parametrize("matrix", [[[0.0]], [[0.0, 0.0], [0.0, 0.0]]], ids=["one wide", "two wide"])
def test_a_map_of_zeros_has_rank_zero_and_a_pseudo_inverse_of_zeros(matrix):
    zero = Linear(matrix)
    assert zero.rank == 0 and not zero.is_exact_inverse
    assert torch.equal(zero.inverse().matrix, zero.matrix)


def test_a_direction_below_the_precision_is_lost():
    assert Linear(torch.diag(torch.tensor([1.0, 1e-9]))).rank == 1
    assert Linear(torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))).rank == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_has_an_inverse(dtype):
    assert Linear(torch.diag(torch.tensor([2.0, 4.0])).to(dtype)).inverse().matrix.tolist() == [[0.5, 0.0], [0.0, 0.25]]


def test_the_linear_part_of_an_affine_map_is_a_map():
    assert Affine(torch.eye(2), [1.0, 2.0]).linear == Linear(torch.eye(2))
