"""An offset beside a linear part of any kind. Misuses of maps stand in tests/misuses."""

from __future__ import annotations

import pytest
import torch
from tests.test_storage import refused

from interbasin.errors import DataError
from interbasin.maps import Affine, Blocks, Identity, Linear, Orthogonal, Permutation, SignedPermutation

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
