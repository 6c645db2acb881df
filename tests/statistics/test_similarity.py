"""Spaces that cannot be compared: constant, of other widths, without the sums it takes."""

from __future__ import annotations

import math

import pytest
import torch
from tests.statistics.test_moments import rows
from tests.test_storage import refused

from interbasin import PairedMoments, statistics
from interbasin.errors import DataError
from interbasin.maps import Orthogonal, Permutation
from interbasin.statistics import (
    canonical_correlations,
    explained_variance,
    linear_cka,
    mean_cca,
    mean_cosine,
    procrustes_distance,
    pwcca,
    residual_energy,
    similarities,
)

OF_MOMENTS = [linear_cka, mean_cosine, mean_cca, pwcca, procrustes_distance, similarities, canonical_correlations]


def some(source: int = 3, target: int = 3, grams: bool = True) -> PairedMoments:
    return PairedMoments.of(rows(20, source), rows(20, target, seed=1), grams=grams)


@pytest.mark.parametrize("similarity", OF_MOMENTS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("constant", [0.0, 0.1, -3.3, 1e6 + 0.1, 1e-12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("side", ["source", "target", "both"])
def test_a_space_that_does_not_vary_is_like_nothing(similarity, constant, dtype, side):
    moments = PairedMoments(grams=True)
    for seed, length in enumerate((7, 100, 33)):
        still, moving = torch.full((length, 3), constant, dtype=dtype), rows(length, 3, seed=seed).to(dtype)
        moments.update(moving if side == "target" else still, moving if side == "source" else still)
    refused(lambda: similarity(moments), DataError, ("vary", "all the same"))


def test_some_similarities_need_no_gram_matrices():
    assert mean_cosine(some(grams=False)) == pytest.approx(mean_cosine(some()))
    assert procrustes_distance(some(grams=False)) == pytest.approx(procrustes_distance(some()))
    assert explained_variance(some(grams=False), Permutation([2, 0, 1])) < 1


def test_a_residual_that_needs_more_sums_is_not_a_number():
    narrow = Orthogonal(torch.eye(3)[:2])
    for centered in (False, True):
        assert math.isnan(residual_energy(some(target=2, grams=False), narrow, centered=centered))


def test_the_cosine_is_left_out_between_unequal_widths():
    assert "mean_cosine" in similarities(some()) and "mean_cosine" not in similarities(some(target=2))


def test_a_space_is_like_itself():
    moments = PairedMoments.of(rows(50, 4), rows(50, 4))
    expected = dict.fromkeys(("linear_cka", "mean_cosine", "mean_cca", "pwcca_source", "pwcca_target"), 1.0)
    assert similarities(moments) == pytest.approx(expected | {"procrustes_distance": 0.0}, abs=1e-6)


def test_all_values_lie_in_their_range_where_rows_are_few():
    found = similarities(PairedMoments.of(rows(4, 6).float(), rows(4, 6, seed=1).float()))
    assert all(0 <= value <= 1 + 1e-6 for name, value in found.items() if "cca" in name or "cka" in name)


def test_everything_in_the_list_of_similarities_is_public():
    assert {function.__name__ for function in OF_MOMENTS} <= set(statistics.__all__)


@pytest.mark.parametrize("scale", [1e-120, 1e-30, 1e30, 1e120])
def test_similarities_do_not_depend_on_the_scale_of_the_data(scale):
    x, y = rows(40, 5), rows(40, 5, seed=1)
    plain, scaled = similarities(PairedMoments.of(x, y)), similarities(PairedMoments.of(x * scale, y * scale))
    assert scaled == pytest.approx(plain, rel=1e-9, abs=1e-9)
