"""Batches with labels and without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from interbasin.errors import DataError, WiringError
from interbasin.networks.labelled import InputsOnly, for_evaluation, outputs_of, parted, refuse_once_only

X, Y = torch.zeros(4, 3), torch.arange(4)


@pytest.mark.parametrize("batch", [(X, Y), [X, Y]])
def test_two_parts_are_inputs_and_labels(batch):
    inputs, labels = parted(batch)
    assert inputs is X and labels is Y


@pytest.mark.parametrize("batch", [X, {"x": X}, (X,), (X, X, X)])
def test_anything_else_has_no_labels(batch):
    assert parted(batch)[1] is None and parted(batch)[0] is batch


def test_inputs_can_be_read_as_often_as_the_data():
    view = InputsOnly([(X, Y), X])
    assert len(view) == 2 and [one is X for one in view] == [one is X for one in view] == [True, True]
    assert view.first() is X
    pair = (X, X)  # two positional arguments, which are not to be parted again
    assert InputsOnly(InputsOnly([(pair, Y)])).first() is pair
    assert [len(one) for one in InputsOnly(X, batch_size=3)] == [3, 1]
    with pytest.raises(DataError, match="no batch at all"):
        InputsOnly([]).first()
    with pytest.raises(TypeError, match="has no length"):
        len(InputsOnly(iter([X])))


def test_data_that_are_gone_after_one_pass_are_refused():
    refuse_once_only([X], "This")
    with pytest.raises(DataError, match="This reads the data more than once, found a generator"):
        refuse_once_only((X for _ in range(2)), "This")


def test_a_copy_is_evaluated_and_not_the_network():
    model = nn.Sequential(nn.Dropout(0.5))
    copy = for_evaluation(model)
    assert copy is not model and not copy.training and model.training and model[0].training
    with pytest.raises(WiringError, match="Asked to evaluate a str"):
        for_evaluation("model")


def test_a_batch_that_does_not_fit_is_named():
    with pytest.raises(DataError, match=r"Batch 7: Linear was called with \(4, 3\) torch.float32 and failed \(Runtime"):
        outputs_of(nn.Linear(5, 2), X, 7)
