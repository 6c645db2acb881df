"""Batches with labels and without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from interbasin.batches import WithoutLabels, outputs_of, require_reiterable, split_batch
from interbasin.errors import DataError

X, Y = torch.zeros(4, 3), torch.arange(4)


@pytest.mark.parametrize("batch", [(X, Y), [X, Y]])
def test_two_parts_are_inputs_and_labels(batch):
    inputs, labels = split_batch(batch)
    assert inputs is X and labels is Y


@pytest.mark.parametrize("batch", [X, {"x": X}, (X,), (X, X, X)])
def test_anything_else_has_no_labels(batch):
    assert split_batch(batch)[1] is None and split_batch(batch)[0] is batch


def test_inputs_can_be_read_as_often_as_the_data():
    view = WithoutLabels([(X, Y), X])
    assert len(view) == 2 and [inputs is X for inputs in view] == [inputs is X for inputs in view] == [True, True]
    assert view.first() is X
    pair = (X, X)  # two positional arguments, which are not to be split again
    assert WithoutLabels(WithoutLabels([(pair, Y)])).first() is pair
    assert [len(inputs) for inputs in WithoutLabels(X, batch_size=3)] == [3, 1]
    with pytest.raises(DataError, match="no batch at all"):
        WithoutLabels([]).first()
    with pytest.raises(TypeError, match="has no length"):
        len(WithoutLabels(iter([X])))


def test_data_that_are_gone_after_one_pass_are_refused():
    require_reiterable([X], "This")
    with pytest.raises(DataError, match="This reads the data more than once, found a generator"):
        require_reiterable((X for _ in range(2)), "This")


def test_data_that_hand_out_one_iterator_are_refused_and_loaders_are_not_started():
    class Once:
        def __init__(self):
            self.batches = iter([torch.zeros(2, 3)])

        def __iter__(self):
            return self.batches

    class Again:
        def __iter__(self):
            return iter([torch.zeros(2, 3)])

    class Loader(torch.utils.data.DataLoader):
        def __iter__(self):
            raise AssertionError("started")

    with pytest.raises(DataError, match="found a Once that can be read once"):
        require_reiterable(Once(), "This")
    for data in (Again(), Loader([1, 2]), [torch.zeros(2)], torch.zeros(2, 3)):
        require_reiterable(data, "This")


def test_a_batch_that_does_not_fit_is_named():
    with pytest.raises(DataError, match=r"Batch 7: Linear was called with \(4, 3\) torch.float32 and failed \(Runtime"):
        outputs_of(nn.Linear(5, 2), X, 7)
