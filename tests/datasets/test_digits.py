"""The embedded data set is the one that documents and goldens speak of."""

from __future__ import annotations

import subprocess
import sys

import torch

from interbasin.datasets import load_digits


def test_there_are_1437_train_and_360_test_images_of_eight_by_eight() -> None:
    digits = load_digits()
    assert digits.train_images.shape == (1437, 8, 8) and digits.train_labels.shape == (1437,)
    assert digits.test_images.shape == (360, 8, 8) and digits.test_labels.shape == (360,)


def test_images_are_float32_from_zero_to_one_and_labels_are_int64_from_zero_to_nine() -> None:
    digits = load_digits()
    for images in (digits.train_images, digits.test_images):
        assert images.dtype == torch.float32 and images.is_contiguous()
        assert images.min() == 0 and images.max() == 1
        assert torch.equal(images * 16, (images * 16).round())
    for labels in (digits.train_labels, digits.test_labels):
        assert labels.dtype == torch.int64
        assert labels.unique().tolist() == list(range(10))


def test_every_digit_has_the_same_share_of_train_and_test() -> None:
    digits = load_digits()
    train, test = (labels.bincount(minlength=10) for labels in (digits.train_labels, digits.test_labels))
    assert ((train + test) * 360 / 1797 - test).abs().max() < 1


def test_no_image_is_lost_between_train_and_test() -> None:
    from sklearn.datasets import load_digits as load_from_sklearn

    digits = load_digits()
    ours = torch.cat([digits.train_images, digits.test_images]).flatten(1) * 16
    theirs = torch.as_tensor(load_from_sklearn().data, dtype=torch.float32)
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


def test_the_split_is_the_same_at_every_call_and_is_the_one_of_seed_zero() -> None:
    first, second = load_digits(), load_digits()
    assert torch.equal(first.train_images, second.train_images) and torch.equal(first.test_labels, second.test_labels)
    # Recorded with scikit-learn 1.9; a change here changes every number that was measured on this data.
    assert first.test_labels[:12].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3, 2, 6]
    assert float(first.test_images.double().sum()) == 7021.875


def test_importing_the_package_loads_neither_scikit_learn_nor_pyarrow() -> None:
    program = "import sys, interbasin.datasets; print(sorted({'sklearn', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
