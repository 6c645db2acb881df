"""Gaps that are planted: data of a modality that a source knows, changed so that only one thing is foreign.

What closes the gap is known, so that a method can be seen to find it: `rotate_patches` changes what inputs look like
and nothing else, `merge_labels` what answers are called.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interbasin.checks import require_whole
from interbasin.errors import DataError, ShapeError
from interbasin.randomness import generator_of


def rotate_patches(images: Tensor, patch: int, *, seed: int = 0) -> Tensor:
    """Images in which every patch was multiplied by the same orthogonal matrix: a linear embedder can undo it.

    Args:
        images: ``(count, channels, height, width)``.
        patch: The side of a patch, which divides height and width.
        seed: Of the matrix.

    Raises:
        ShapeError: if patches do not fill the images.

    Example:
        >>> images = torch.randn(2, 1, 8, 8)
        >>> rotated = rotate_patches(images, 4)
        >>> bool(torch.allclose(rotated.norm(), images.norm()))
        True
    """
    size = require_whole("patch", patch, least=1)
    if images.ndim != 4 or images.shape[2] % size or images.shape[3] % size:
        raise ShapeError(
            f"Images of shape {tuple(images.shape)} cannot be cut into patches of {size} by {size}; give (count, "
            "channels, height, width), with sides that it divides."
        )
    count, channels, height, width = images.shape
    grid = images.reshape(count, channels, height // size, size, width // size, size)
    rows = grid.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels * size * size)
    drawn = torch.randn(rows.shape[1], rows.shape[1], dtype=torch.float64, generator=generator_of(seed))
    turned = rows @ torch.linalg.qr(drawn)[0].to(rows)
    grid = turned.reshape(count, height // size, width // size, channels, size, size)
    whole: Tensor = grid.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
    return whole


def merge_labels(labels: Tensor, classes: int, *, seed: int = 0) -> Tensor:
    """Labels under new names, several of the old ones in each: the source's labels still tell them, by a table.

    Args:
        labels: Whole numbers from 0 on; those that do not occur do not count.
        classes: How many there are to be, each of which occurs; at most as many as there were.
        seed: Of the names.

    Raises:
        DataError: if labels are not such numbers, or are fewer than the classes.

    Example:
        >>> merge_labels(torch.tensor([0, 1, 2, 0]), 2).unique().tolist()
        [0, 1]
    """
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels) or int(labels.min()) < 0:
        raise DataError(
            f"Labels of shape {tuple(labels.shape)} and {labels.dtype} cannot be merged; give one class per sample, as "
            "a whole number from 0 on."
        )
    known, places = torch.unique(labels, return_inverse=True)
    if not 1 <= require_whole("classes", classes, least=1) <= len(known):
        raise DataError(f"{len(known)} labels were to become {classes}; give at most as many.")
    order = torch.randperm(len(known), generator=generator_of(seed))
    return (order % classes)[places]
