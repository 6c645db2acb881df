"""The two halves of inverse relative projection, apart and together; pruning; the ways back from cosines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.translate.test_translator import EXCUSED, failed_checks, pairs
from tests.test_storage import layout_of

import interbasin as ib
from interbasin.jobs.translate.inversion import farthest_points, invert_pruned, invert_regularised


def unit(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=1)


def farthest_by_hand(distances: np.ndarray, delta: float, start: int, most: int) -> list[int]:
    """The definition, over a matrix of all distances."""
    taken = [start]
    while len(taken) < min(most, len(distances)):
        nearest = distances[:, taken].min(1)
        nearest[taken] = -np.inf
        if nearest.max() < delta:
            break
        taken.append(int(nearest.argmax()))
    return taken


@given(seed=st.integers(0, 99), rows=st.integers(2, 30), width=st.integers(1, 8), delta=st.floats(0, 1))
def test_pruning_is_greedy_farthest_point_sampling(seed: int, rows: int, width: int, delta: float) -> None:
    a, b = unit(rows, width, seed), unit(rows, width, seed + 1000)
    distances = (1 - (a @ a.mT).abs()).numpy()
    both = np.minimum(distances, (1 - (b @ b.mT).abs()).numpy())
    starts = [0, rows - 1, rows // 2]
    for sides, expected in (((a,), distances), ((a, b), both)):
        found = farthest_points(sides, delta, starts)
        for start, index in zip(starts, found, strict=True):
            kept = index.tolist()
            assert len(set(kept)) == len(kept) and kept[0] == start
            # Any two that were kept are at least delta apart, or the last was the farthest there was.
            by_hand = farthest_by_hand(expected, delta, start, width)
            apart = expected[np.ix_(kept, kept)][~np.eye(len(kept), dtype=bool)]
            assert len(kept) == len(by_hand) or abs(apart.min() - delta) < 1e-6
            assert not len(apart) or apart.min() >= delta - 1e-6


@given(seed=st.integers(0, 99), rows=st.integers(3, 40), width=st.integers(1, 8))
def test_without_noise_every_way_back_gives_the_rows_back(seed: int, rows: int, width: int) -> None:
    """Intra-space inversion: as far as the anchors span the space, rows come back from their cosines."""
    anchors = unit(rows, width, seed)
    onto = torch.linalg.pinv(anchors) @ anchors  # the projection onto what they span
    x = unit(5, width, seed + 1)
    cosines = x @ anchors.mT
    torch.testing.assert_close(cosines @ invert_regularised(anchors, 0.0).weights, x @ onto, atol=1e-6, rtol=1e-6)
    back = invert_pruned(anchors, 0.0, 3, seed)
    for kept, condition in zip(back.kept, back.conditions, strict=True):
        assert kept <= min(rows, width) and condition >= 1
    if min(back.kept) == width:
        torch.testing.assert_close(cosines @ back.weights, x, atol=1e-5, rtol=1e-5)


def test_pruning_more_keeps_fewer_anchors_and_conditions_them_better() -> None:
    centred = torch.from_numpy(pairs(400, 30)[0])
    anchors = torch.nn.functional.normalize(centred - centred.mean(0), dim=1)
    kept, conditions = [], []
    for delta in (0.2, 0.5, 0.7, 0.9):
        back = invert_pruned(anchors, delta, 4, 0)
        kept.append(sum(back.kept) / 4)
        conditions.append(sum(back.conditions) / 4)
    assert kept == sorted(kept, reverse=True) and conditions == sorted(conditions, reverse=True)


@pytest.mark.parametrize("variant", ["regularised", "pruned"])
@pytest.mark.parametrize("completion", ["polar", "map", None])
@pytest.mark.parametrize("target", [7, 12, 20])
def test_halves_that_were_fitted_apart_make_the_translator(
    tmp_path: Any, variant: str, completion: str | None, target: int
) -> None:
    x, y = pairs(target=target, noise=0.2)
    encoder = ib.RelativeEncoder().fit(x)
    decoder = ib.RelativeDecoder(variant=variant).fit(y)
    encoder.save(tmp_path / "e")
    decoder.save(tmp_path / "d")
    composed = ib.compose(ib.RelativeEncoder.load(tmp_path / "e"), ib.RelativeDecoder.load(tmp_path / "d"), completion)
    found = composed.transform(x)
    if completion is None:  # one after the other is the same as the one map
        np.testing.assert_allclose(decoder.transform(encoder.transform(x)), found, atol=1e-9)
    if variant == "regularised":
        together = ib.Translator(completion=completion).fit(x, y)
        np.testing.assert_allclose(together.transform(x), found, atol=1e-9)
        assert together.details_ == composed.details_
    assert composed.score(x, y) > (0.5 if target < 12 else 0.9)
    composed.save(tmp_path / "t")
    assert np.array_equal(ib.Translator.load(tmp_path / "t").transform(x), found)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("variant", ["regularised", "pruned"])
def test_files_change_no_bit_of_either_half_whatever_the_layout_of_the_anchors(
    tmp_path: Any, order: Any, variant: str
) -> None:
    x, y = (np.asarray(rows, order=order) for rows in pairs(40, 9, 7, noise=0.2))
    encoder, decoder = ib.RelativeEncoder().fit(x), ib.RelativeDecoder(variant=variant).fit(y)
    encoder.save(tmp_path / "e")
    decoder.save(tmp_path / "d")
    again, back = ib.RelativeEncoder.load(tmp_path / "e"), ib.RelativeDecoder.load(tmp_path / "d")
    cosines = encoder.transform(x[:1])
    assert np.array_equal(again.transform(x[:1]), cosines)
    assert np.array_equal(back.transform(cosines), decoder.transform(cosines))
    assert layout_of({"anchors": again.anchors_}) == layout_of({"anchors": encoder.anchors_})
    assert layout_of({"weights": back.weights_}) == layout_of({"weights": decoder.weights_})


def test_few_anchors_leave_the_rank_they_have() -> None:
    x, y = pairs(6)
    translator = ib.Translator().fit(x, y)
    assert translator.details_["rank"] == 5  # about their mean


def test_an_encoder_passes_the_checks_of_scikit_learn() -> None:
    assert failed_checks(ib.RelativeEncoder(), EXCUSED) == {}


def test_relative_coordinates_are_cosines_about_the_mean_of_the_anchors() -> None:
    x, _ = pairs()
    anchors, rows = x[:20], x[20:25]
    found = ib.RelativeEncoder().fit(anchors).transform(rows)
    mean = anchors.mean(0)
    for row, line in zip(rows, found, strict=True):
        for anchor, value in zip(anchors, line, strict=True):
            cosine = (row - mean) @ (anchor - mean) / np.linalg.norm(row - mean) / np.linalg.norm(anchor - mean)
            assert abs(value - cosine) < 1e-12
    assert np.all(ib.RelativeEncoder().fit(anchors).transform(mean[None]) == 0)
    np.testing.assert_allclose(ib.Translator(method="relative").fit(anchors).transform(rows), found)


def test_halves_of_anchors_with_the_same_names_are_composed() -> None:
    x, y = pairs()
    names = list(map(str, range(300)))
    ib.compose(ib.RelativeEncoder().fit(x, names=names), ib.RelativeDecoder().fit(y, names=iter(names)))


def test_composed_halves_are_one_after_the_other() -> None:
    x, y = pairs(60, 9, 5)
    encoder, decoder = ib.RelativeEncoder().fit(x), ib.RelativeDecoder().fit(y)
    through = decoder.transform(encoder.transform(x))
    np.testing.assert_allclose(ib.compose(encoder, decoder, completion=None).transform(x), through, atol=1e-9)
