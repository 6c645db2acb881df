"""Blocks that are none, orders that do not fit them."""

from __future__ import annotations

import pytest
import torch
from tests.test_storage import case, refused

from interbasin.errors import DataError, InterbasinError, MapError, ShapeError
from interbasin.maps import Affine, Blocks, Identity, Linear, Permutation


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("none", lambda: [], ShapeError, "at least one map", "an empty one"),
        case("a generator", lambda: (Identity(2) for _ in range(2)), InterbasinError, "generator"),
        case("one map, not in a list", lambda: Identity(2), InterbasinError, "found Identity"),
        case("a number", lambda: 3, InterbasinError, "int"),
        case("matrices", lambda: [torch.eye(2)], MapError, "Block 0", "Tensor"),
        case("a map and a matrix", lambda: [Identity(2), torch.eye(2)], MapError, "Block 1", "Tensor"),
        case("text", lambda: "ab", MapError, "Block 0", "str"),
        case("an affine block", lambda: [Identity(2), Affine([[1.0]], [0.0])], MapError, "Block 1", "affine"),
    ],
)
def test_blocks_that_are_no_linear_maps_are_refused(make, error, words):
    refused(lambda: Blocks(make()), error, words)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("too short", lambda: [0], ShapeError, "order of 2 blocks", "1 <- 1"),
        case("too long", lambda: [0, 1, 2], ShapeError, "order of 2 blocks", "3 <- 3"),
        case("with a gap", lambda: [0, -1], ShapeError, "full permutation", "1 matched"),
        case("from a wider source", lambda: Permutation([0, 2], source_width=3), ShapeError, "2 <- 3"),
        case("a block twice", lambda: [0, 0], MapError, "more than once"),
        case("a block that is not there", lambda: [0, 2], MapError, "[2]"),
        case("floats", lambda: [0.0, 1.0], MapError, "whole numbers"),
        case("text", lambda: "01", DataError, "str"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(make, error, words):
    refused(lambda: Blocks([Identity(1), Identity(2)], order=make()), error, words)


def test_blocks_know_where_they_come_from():
    blocks = Blocks([Linear([[1.0, 1.0, 1.0]]), Identity(2)], order=[1, 0])
    assert blocks.source_blocks == (2, 3) and blocks.target_blocks == (1, 2)
    assert blocks(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [12.0, 1.0, 2.0]


def test_blocks_may_hold_blocks():
    inner = Blocks([Identity(1), Identity(1)], order=[1, 0])
    outer = Blocks([inner, Identity(1)], order=[1, 0])
    assert outer(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 2.0, 1.0]


def test_the_precision_of_blocks_is_the_widest_of_them():
    assert Blocks([Linear(torch.eye(1)), Linear(torch.eye(1).double())]).dtype == torch.float64
    assert Blocks([Linear(torch.eye(1)), Linear(torch.eye(1).double()), Identity(1)]).matrix.dtype == torch.float64
    assert Blocks([Identity(1), Permutation([0])]).dtype is None
