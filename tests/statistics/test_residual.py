"""The residual from moments alone agrees with the rows, for each kind of map."""

from __future__ import annotations

import math

import pytest
import torch
from tests.statistics.test_moments import rows

from interbasin import PairedMoments
from interbasin.maps import Affine, Linear, Map, Orthogonal, Permutation, SignedPermutation
from interbasin.statistics import residual_energy
from interbasin.statistics.similarity import carried_energy

X, Y = rows(40, 3) + 5.0, rows(40, 2, seed=1) - 2.0
KINDS: list[Map] = [
    Permutation([2, 0], source_width=3),
    Permutation([-1, 0], source_width=3),
    SignedPermutation([2, 0], [1, -1], source_width=3),
    Orthogonal(torch.eye(3, dtype=torch.float64)[:2]),
    Linear([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]),
    Affine([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], [4.0, -1.0]),
]


@pytest.mark.parametrize("map", KINDS, ids=repr)
def test_the_residual_is_that_of_the_rows(map):
    moments = PairedMoments.of(X, Y)
    missed = map(X) - Y
    expected = float(missed.square().sum())
    assert residual_energy(moments, map, centered=False) == pytest.approx(expected, rel=1e-9)
    spread = float((missed - missed.mean(0)).square().sum())
    assert residual_energy(moments, map, centered=True) == pytest.approx(spread, rel=1e-9)


@pytest.mark.parametrize("map", KINDS, ids=repr)
def test_without_gram_matrices_the_residual_is_the_same_or_not_a_number(map):
    found = residual_energy(PairedMoments.of(X, Y, grams=False), map, centered=False)
    assert math.isnan(found) == (not isinstance(map, Permutation | SignedPermutation))
    assert math.isnan(found) or found == pytest.approx(float((map(X) - Y).square().sum()), rel=1e-9)


def test_an_isometry_carries_all_energy():
    moments = PairedMoments.of(X, Y, grams=False)
    into_wider = Orthogonal(torch.eye(5, dtype=torch.float64)[:, :3])
    assert carried_energy(moments, into_wider) == pytest.approx(float(moments.squares_source().sum()))


def test_a_perfect_map_has_no_negative_residual():
    assert residual_energy(PairedMoments.of(X, X), Permutation([0, 1, 2]), centered=True) >= 0.0
