"""Matrices that lose directions."""

from __future__ import annotations

import pytest
import torch

from interbasin.maps import Linear


def test_whole_numbers_become_floating_point():
    assert Linear([[1, 2], [3, 4]]).dtype == torch.float64
    assert Linear(torch.ones(2, 2, dtype=torch.bool)).dtype == torch.float64


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
