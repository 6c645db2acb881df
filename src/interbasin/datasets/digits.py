"""The embedded data set: the handwritten digits that come with scikit-learn, split once and for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TEST_IMAGES = 360  # a fifth of the 1,797 images
SEED = 0
BRIGHTEST = 16.0  # scikit-learn counts the inked pixels of 4 x 4 blocks, so its images hold 0 to 16


# Tensors have no truth value when compared, so two of these are equal only if they are the same object.
@dataclass(frozen=True, eq=False)
class Digits:
    """Images of shape (n, 8, 8), float32 in [0, 1], and their labels, int64 from 0 to 9.

    Attributes:
        train_images: 1,437 images.
        train_labels: The digit that each of them shows.
        test_images: 360 images, none of them among the train images, each digit in the same proportion.
        test_labels: The digit that each of them shows.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The digits, the same split at every call: stratified by label, seed 0.

    Example:
        >>> digits = load_digits()
        >>> tuple(digits.train_images.shape), tuple(digits.test_images.shape)
        ((1437, 8, 8), (360, 8, 8))
    """
    # Imported here because scikit-learn takes a second to load and most readers of local files never need it.
    from sklearn.datasets import load_digits as load_from_sklearn
    from sklearn.model_selection import train_test_split

    bundle = load_from_sklearn()
    train_images, test_images, train_labels, test_labels = train_test_split(
        bundle.images / BRIGHTEST, bundle.target, test_size=TEST_IMAGES, stratify=bundle.target, random_state=SEED
    )
    images = [torch.as_tensor(part, dtype=torch.float32) for part in (train_images, test_images)]
    labels = [torch.as_tensor(part, dtype=torch.int64) for part in (train_labels, test_labels)]
    return Digits(images[0], labels[0], images[1], labels[1])
