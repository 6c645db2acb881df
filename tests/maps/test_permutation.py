"""Matchings with gaps, and matchings too wide to be matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interbasin import maps
from interbasin.maps import Permutation, SignedPermutation, permutation

MILLION = 10**6


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


@pytest.mark.slow
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
