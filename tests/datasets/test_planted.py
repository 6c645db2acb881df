"""Planted gaps: what was changed can be undone, and nothing else was."""

from __future__ import annotations

import pytest
import torch

from interbasin.datasets.planted import merge_labels, rotate_patches
from interbasin.errors import DataError, ShapeError


@pytest.mark.parametrize(("channels", "patch"), [(1, 4), (3, 2), (2, 8)])
def test_patches_keep_their_products_and_stay_where_they_were(channels, patch):
    images = torch.randn(5, channels, 8, 16, dtype=torch.float64)
    images[:, :, :patch, :patch] = 0  # an empty patch stays one
    rotated = rotate_patches(images, patch, seed=3)
    assert not bool(rotated[:, :, :patch, :patch].any()) and rotated.shape == images.shape
    before, after = (each.flatten(1) @ each.flatten(1).mT for each in (images, rotated))
    torch.testing.assert_close(after, before)
    assert not torch.allclose(rotated, images) and torch.equal(rotated, rotate_patches(images, patch, seed=3))
    assert not torch.allclose(rotated, rotate_patches(images, patch, seed=4))
    cut = rotate_patches(images[2:3], patch, seed=3)
    torch.testing.assert_close(cut, rotated[2:3])


def test_labels_are_merged_into_as_many_as_asked_and_none_is_divided():
    labels = torch.arange(200) % 10
    for classes in (10, 4, 1):
        merged = merge_labels(labels, classes, seed=1)
        assert merged.unique().tolist() == list(range(classes))
        assert all(len(merged[labels == old].unique()) == 1 for old in range(10))


def test_labels_that_do_not_occur_do_not_count():
    labels = torch.tensor([3, 7, 40, 3, 41, 7])
    for seed in range(5):
        merged = merge_labels(labels, 4, seed=seed)
        assert sorted(merged.unique().tolist()) == [0, 1, 2, 3]
        assert torch.equal(merged, merge_labels(torch.tensor([0, 1, 2, 0, 3, 1]), 4, seed=seed))
    with pytest.raises(DataError, match="4 labels were to become 5"):
        merge_labels(labels, 5)
    assert merge_labels(torch.tensor([0, 10**12]), 2).unique().tolist() == [0, 1]


def test_what_cannot_be_planted_is_refused():
    with pytest.raises(ShapeError, match="patches of 3 by 3"):
        rotate_patches(torch.zeros(1, 1, 8, 8), 3)
    with pytest.raises(DataError, match="10 labels were to become 11"):
        merge_labels(torch.arange(10), 11)
