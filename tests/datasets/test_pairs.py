"""All of a data set as tensors: one number, several numbers or a field per sample for labels, and parts of a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.test_storage import refused

from interbasin.datasets import open_data, read_pairs, splits_of
from interbasin.errors import DataError, ShapeError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=4)


@given(st.integers(1, 9), SHAPES, SHAPES, st.integers(1, 9), st.booleans(), st.data())
def test_labels_of_any_shape_come_with_their_samples(tmp_path_factory, count, shape, label_shape, limit, packed, data):
    x = data.draw(arrays.arrays(np.float32, (count, *shape), elements=st.floats(-9, 9, width=32)))
    x.reshape(count, -1)[:, 0] = np.arange(count)  # so that samples can be told apart
    y = data.draw(arrays.arrays(np.float32, (count, *label_shape), elements=st.floats(-9, 9, width=32)))
    path = tmp_path_factory.mktemp("npz") / "d.npz"
    (np.savez_compressed if packed else np.savez)(path, x=x, y=y)
    inputs, labels, _ = read_pairs(path)
    expected = y.ravel() if label_shape == (1,) else y
    assert np.array_equal(inputs, x) and np.array_equal(labels, expected)
    inputs, labels, _ = read_pairs(path, limit=limit, seed=3)
    rows = inputs.reshape(len(inputs), -1)[:, 0].long().numpy()
    assert len(rows) == min(limit, count) == len(set(rows.tolist())) and np.array_equal(labels, expected[rows])
    batches = open_data(path, limit=limit, draw=True, seed=3, batch_size=2)
    assert batches.rows == tuple(rows)
    # A limit that leaves nothing out changes nothing, not even the order.
    drawn = open_data(path, limit=limit, shuffle=True, seed=3).rows if limit < count else range(count)
    assert rows.tolist() == list(drawn)
    for first, (part, of_part) in zip(range(0, len(rows), 2), batches, strict=True):
        chosen = rows[first : first + 2]
        assert np.array_equal(part, x[chosen]) and np.array_equal(of_part, expected[chosen])


def test_inputs_are_float32_whatever_the_file_holds():
    for dtype in (np.float64, np.float16, np.int32, bool):
        np.savez("d.npz", x=np.ones((3, 2), dtype=dtype), y=np.eye(3, 2, dtype=np.int8))
        inputs, labels, _ = read_pairs("d.npz")
        assert inputs.dtype is torch.float32 and inputs.unique().tolist() == [1]
        assert labels.dtype is torch.int64 and labels.tolist() == [[1, 0], [0, 1], [0, 0]]
    np.savez("d.npz", x=np.full((3, 2), 255, dtype=np.uint8))
    assert read_pairs("d.npz")[0].unique().tolist() == [1] and read_pairs("d.npz")[1] is None


def test_compressed_arrays_may_be_in_the_order_of_fortran():
    x = np.arange(12.0).reshape(3, 4)
    np.savez_compressed("d.npz", x=np.asfortranarray(x), y=np.asfortranarray(2 * x))
    inputs, labels, _ = read_pairs("d.npz")
    assert np.array_equal(inputs, x) and np.array_equal(labels, 2 * x)


def test_an_archive_may_have_parts_and_one_numbering_of_classes():
    part = {"x": np.zeros((2, 3)), "x_test": np.ones((1, 3)), "y": np.array(["a", "c"]), "y_test": np.array(["b"])}
    np.savez("d.npz", **part)
    assert splits_of("d.npz") == ("train", "test")
    assert read_pairs("d.npz")[1:][0].tolist() == [0, 2]
    inputs, labels, classes = read_pairs("d.npz", split="test")
    assert inputs.tolist() == [[1, 1, 1]] and labels.tolist() == [1] and classes == ("a", "b", "c")
    np.savez("e.npz", x_train=np.zeros((2, 3)), x_valid=np.ones((1, 3)))
    assert splits_of("e.npz") == ("train", "valid") and read_pairs("e.npz", split="valid")[0].sum() == 3
    np.savez("f.npz", x=np.zeros((2, 3)))
    assert splits_of("f.npz") == ()


def test_nan_in_inputs_and_in_labels_is_named_with_file_and_sample():
    x, y = np.zeros((9, 2)), np.zeros((9, 3))
    for array, word in ((x, "in d.npz"), (y, "the labels of d.npz")):
        array[5, 1] = np.nan
        for labels in (y, y.sum(1)):
            np.savez("d.npz", x=x, y=labels)
            refused(lambda: read_pairs("d.npz"), DataError, (word, "sample 5"))
        array[5, 1] = 0
    x[5, 1] = np.inf
    np.savez("d.npz", x=x, y=y)
    refused(lambda: list(open_data("d.npz", shuffle=True, batch_size=2)), DataError, ("in d.npz", "sample 5"))


def test_labels_that_do_not_fit_are_refused():
    np.savez("d.npz", x=np.zeros((3, 2)), y=np.zeros((2, 2)))
    refused(lambda: read_pairs("d.npz"), ShapeError, ("3 samples", "2 labels"))
    np.savez("d.npz", x=np.zeros((3, 2)), y=np.array(1.0))
    refused(lambda: read_pairs("d.npz"), ShapeError, ("3 samples",))


def test_inputs_take_the_shape_of_a_network_if_asked():
    inputs, labels, classes = read_pairs("digits", like=torch.zeros(1, 1, 8, 8), limit=5)
    assert inputs.shape == (5, 1, 8, 8) and labels.shape == (5,) and classes == tuple("0123456789")
    refused(lambda: read_pairs("digits", like={"pixels": torch.zeros(1, 64)}), DataError, ("by name",))
