"""What is to be learned: how samples are read and refused, which task labels make, and how samples are divided."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.jobs.adapt.samples import read_samples
from interbasin.jobs.adapt.task import FEW, FOLDS, TargetTask, divide

INPUTS = torch.randn(12, 1, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


class Stream(torch.utils.data.IterableDataset):
    """Samples that can be iterated over and not indexed."""

    def __iter__(self):
        return iter(zip(INPUTS, LABELS.tolist(), strict=True))


FORMS: dict[str, Any] = {
    "tensors": (INPUTS, LABELS),
    "a list of two": [INPUTS, LABELS],
    "arrays": (INPUTS.numpy(), LABELS.numpy()),
    "doubles": (INPUTS.double(), LABELS.int()),
    "a Dataset": TensorDataset(INPUTS, LABELS),
    "a Dataset without an index": Stream(),
    "a DataLoader": DataLoader(TensorDataset(INPUTS, LABELS), batch_size=5),
    "batches": [(INPUTS[:7], LABELS[:7]), (INPUTS[7:], LABELS[7:])],
    "batches of arrays": [(INPUTS[:7].numpy(), LABELS[:7].numpy()), (INPUTS[7:].numpy(), LABELS[7:].numpy())],
    "samples": list(zip(INPUTS, LABELS, strict=True)),
    "tensors with a gradient": (INPUTS.clone().requires_grad_(True), LABELS),
}


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_the_same_in_every_form(form):
    data = iter(FORMS[form]) if form == "batches" else FORMS[form]
    samples = read_samples(data, "the data")
    assert torch.equal(samples.inputs, INPUTS) and torch.equal(samples.labels.long(), LABELS)
    assert samples.inputs.dtype == torch.float32 and not samples.inputs.requires_grad and len(samples) == 12


@pytest.mark.parametrize(
    "data",
    [
        INPUTS,
        INPUTS.numpy(),
        (INPUTS, LABELS),
        [INPUTS[:6], INPUTS[6:]],
        [INPUTS],
        TensorDataset(INPUTS),
        DataLoader(TensorDataset(INPUTS), 5),
        DataLoader(TensorDataset(INPUTS, LABELS), 5),
    ],
    ids=["a tensor", "an array", "a pair", "two batches", "a batch", "a Dataset", "a DataLoader", "one with labels"],
)
def test_inputs_without_labels_are_read_whole(data):
    samples = read_samples(data, "the data", labelled=False)
    assert torch.equal(samples.inputs, INPUTS) and samples.labels is None


def with_nan(row: int, value: float = math.nan) -> torch.Tensor:
    inputs = INPUTS.clone()
    inputs[row, 0, 3] = value
    return inputs


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (INPUTS, DataError, "no labels in the data"),
        (INPUTS.numpy(), DataError, "no labels in the data"),
        ([INPUTS[:3], INPUTS[3:6], INPUTS[6:]], DataError, "no labels in the data"),
        (TensorDataset(INPUTS), DataError, "no labels in the data"),
        ((INPUTS[:0], LABELS[:0]), DataError, "no samples at all in the data"),
        ([], DataError, "no samples at all in the data"),
        ((INPUTS, LABELS[:5]), ShapeError, "12 inputs and 5 labels in the data"),
        ((INPUTS[:, 0, 0], LABELS), ShapeError, r"shape \(12,\).*\(samples, 1\)"),
        ((with_nan(7), LABELS), DataError, r"Row 7 of the inputs of the data holds NaN.*1 of 12"),
        ((with_nan(2, math.inf), LABELS), DataError, "Row 2 of the inputs"),
        ((with_nan(2, 1e30).double() * 1e30, LABELS), DataError, "Row 2 of the inputs"),
        ((INPUTS, torch.where(LABELS == 1, math.nan, 0.5)), DataError, "Row 1 of the labels of the data"),
        ([(INPUTS[:6], LABELS[:6]), (INPUTS[6:, :, :4], LABELS[6:])], ShapeError, r"\(1, 4\) and \(1, 8\)"),
        ((INPUTS.to(torch.complex64), LABELS), DataError, "two channels"),
        ((np.array([["a"] * 8] * 12), LABELS.numpy()), DataError, "are numbers, found ndarray"),
        ({"inputs": INPUTS, "labels": LABELS}, DataError, "found one dict"),
        ("samples.csv", DataError, "found one str"),
        (None, DataError, "found one NoneType"),
    ],
)
def test_data_that_cannot_be_used_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        read_samples(data, "the data")


# ---------------------------------------------------------------------- kinds


NUMBERS = torch.randn(12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kind", "labels", "shape"),
    [
        ("classification", LABELS, (3,)),
        ("classification", LABELS.to(torch.int8), (3,)),
        ("classification", LABELS.to(torch.uint8), (3,)),
        ("classification", LABELS.float(), (3,)),
        ("classification", LABELS > 0, (2,)),
        ("multilabel", torch.nn.functional.one_hot(LABELS), (3,)),
        ("multilabel", LABELS > 0, (1,)),
        ("regression", NUMBERS, (1,)),
        ("regression", NUMBERS.reshape(6, 2), (2,)),
        ("dense", NUMBERS.reshape(2, 1, 6), (1, 6)),
        ("dense", NUMBERS.reshape(2, 1, 2, 3), (1, 2, 3)),
    ],
)
def test_labels_make_a_task(kind, labels, shape):
    task = TargetTask.of(kind, labels)
    assert task.kind == kind and task.shape == shape and task.count == math.prod(shape)
    own = task.require(labels, "the data")
    outputs = torch.zeros(len(own), *shape)
    assert task.losses(outputs, own).shape == (len(own),) and task.scores(outputs, own).shape == (len(own),)
    assert float(task.loss(outputs, own)) == pytest.approx(float(task.losses(outputs, own).mean()))
    classes = task.classes_of(own)
    assert classes.dtype == torch.long and int(classes.min()) >= 0 and int(classes.max()) < task.class_count


@pytest.mark.parametrize(
    ("kind", "labels", "error", "message"),
    [
        ("classification", torch.ones(9), DataError, "All 9 training labels are 1.*at least two classes"),
        ("classification", torch.tensor([0, 1, -2]), DataError, "Label -2 in row 2 of the training data"),
        ("classification", torch.tensor([0.0, 0.5]), DataError, 'no whole numbers; use task="regression"'),
        ("classification", torch.zeros(3, 2), ShapeError, r"shape \(3, 2\).*multilabel"),
        ("classification", torch.tensor([2019, 2020, 2021]), DataError, "Label 2021 in row 2.*for 3 samples"),
        ("multilabel", torch.tensor([[0.0, 2.0]]), DataError, 'not all 0 or 1; use task="regression"'),
        ("multilabel", torch.ones(4, 2), DataError, "All training labels are alike"),
        ("multilabel", torch.zeros(4, 2, 2), ShapeError, 'task="dense"'),
        ("regression", torch.full((5,), 7.0), DataError, "All training labels are alike"),
        ("regression", torch.zeros(4, 2, 2), ShapeError, 'task="dense"'),
        ("dense", torch.zeros(4, 2), ShapeError, "axis of channels"),
        ("dense", torch.ones(4, 1, 5), DataError, "All training labels are alike"),
        ("ranking", LABELS, UnknownNameError, "regression"),
    ],
)
def test_labels_that_make_no_task_are_refused(kind, labels, error, message):
    with pytest.raises(error, match=message):
        TargetTask.of(kind, labels)


def test_labels_of_other_data_are_held_to_the_task():
    task = TargetTask.of("classification", LABELS)
    with pytest.raises(DataError, match=r"Label 3 in row 4 of the test data is out of range.*from 0 to 2"):
        task.require(torch.tensor([0, 1, 2, 0, 3]), "the test data")
    with pytest.raises(DataError, match="Label -1 in row 0 of the test data"):
        task.require(torch.tensor([-1, 1]), "the test data")
    numbers = TargetTask.of("regression", NUMBERS.reshape(6, 2))
    with pytest.raises(ShapeError, match=r"shape \(3,\) and those of the training data \(2,\)"):
        numbers.require(torch.zeros(4, 3), "the test data")


def test_outputs_that_are_not_finite_have_no_error():
    for kind, metric in (("classification", "auroc"), ("classification", None), ("regression", None)):
        task = TargetTask.of(kind, LABELS, metric=metric)
        outputs = torch.full((12, *task.shape), math.nan)
        assert math.isnan(task.error(outputs, task.require(LABELS, "the data")))


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_loss_of_numbers_is_in_units_of_their_spread(size):
    labels = size * (NUMBERS.double() + 3)
    task = TargetTask.of("regression", labels)
    means = torch.full((12, 1), float(labels.mean()))
    assert float(task.loss(means.double(), task.require(labels, "the data"))) == pytest.approx(1.0, rel=1e-3)
    columns = torch.stack([NUMBERS, torch.full((12,), 2.0)], 1)
    assert TargetTask.of("regression", columns).scale.tolist() == [pytest.approx(float(NUMBERS.std(correction=0)))] * 2


def test_numbers_become_the_classes_of_their_nearest_centres():
    labels = torch.tensor([0.0, 0.1, 5.0, 5.1, 9.0, 9.1])
    classes = TargetTask.of("regression", labels, discretise=3).classes_of(labels[:, None])
    assert [int(classes[place] == classes[place + 1]) for place in range(5)] == [1, 0, 1, 0, 1]
    assert TargetTask.of("regression", labels, discretise=50).class_count == 6
    seeds = [TargetTask.of("regression", labels, seed=seed).class_count for seed in (0, 2**40)]
    assert seeds == [6, 6]


def test_fields_become_classes_by_their_principal_components():
    generator = torch.Generator().manual_seed(0)
    fields = torch.arange(12)[:, None, None] % 2 * 5.0 + 0.1 * torch.randn(12, 1, 30, generator=generator)
    task = TargetTask.of("dense", fields, discretise=2)
    assert task.axes.shape == (30, 10)
    torch.testing.assert_close(task.axes.mT @ task.axes, torch.eye(10, dtype=torch.float64))
    classes = task.classes_of(fields)
    assert bool((classes[::2] == classes[0]).all()) and bool((classes[1::2] == 1 - classes[0]).all())
    assert torch.equal(task.distances(fields).argmin(1), classes)


# ---------------------------------------------------------------------- folds


@given(st.lists(st.integers(0, 3), min_size=2 * FOLDS, max_size=80), st.integers(0, 2**32))
def test_folds_hold_every_sample_out_once_and_every_class_has_its_share(classes, seed):
    classes = torch.tensor(classes)
    folds = divide(classes, seed=seed)
    assert len(folds) == FOLDS
    assert torch.equal(torch.cat([fold.held for fold in folds]).sort().values, torch.arange(len(classes)))
    for fold in folds:
        assert torch.equal(torch.cat([fold.train, fold.held]).sort().values, torch.arange(len(classes)))
    for label in range(4):
        shares = [int((classes[fold.held] == label).sum()) for fold in folds]
        assert max(shares) - min(shares) <= 1
    again = divide(classes, seed=seed)
    assert all(torch.equal(fold.held, other.held) for fold, other in zip(folds, again, strict=True))


def test_from_many_samples_on_one_fifth_is_held_out_once():
    assert len(divide(torch.arange(FEW - 1) % 2, seed=0)) == FOLDS
    (fold,) = divide(torch.arange(FEW) % 2, seed=0)
    assert len(fold.held) == FEW // 5 and len(fold.train) == FEW - FEW // 5
    assert not set(fold.held.tolist()) & set(fold.train.tolist())


def test_validation_data_are_what_is_held_out():
    (fold,) = divide(torch.zeros(20, dtype=torch.long), seed=0, valid=6)
    assert fold.train.tolist() == list(range(14)) and fold.held.tolist() == list(range(14, 20))


def test_too_few_samples_to_hold_some_out_are_refused():
    with pytest.raises(DataError, match=r"9 labelled samples are too few.*at least 10"):
        divide(torch.arange(9) % 2, seed=0)
    with pytest.raises(DataError, match="1 validation sample tells nothing; give at least 2"):
        divide(torch.arange(20) % 2, seed=0, valid=1)


def test_one_answer_to_all_inputs_is_the_likeliest_class_or_the_mean():
    classes = torch.tensor([0, 1, 1, 2])
    task = TargetTask.of("classification", classes)
    row = task.constant_answer(classes)
    assert task.error(row.clamp(min=-99).expand(4, -1), classes) == 0.5
    assert int(task.constant_answer(torch.tensor([0, 0, 1])).argmax()) == 0  # a class that is not there is never given
    several = torch.tensor([[1, 0], [1, 0], [0, 0], [1, 1]])
    answers = TargetTask.of("multilabel", several).constant_answer(several)
    assert (answers > 0).tolist() == [True, False]
    numbers = torch.tensor([[1.0], [2.0], [6.0]])
    assert TargetTask.of("regression", numbers).constant_answer(numbers).tolist() == [3.0]
    fields = torch.stack([torch.zeros(1, 4), 2 * torch.ones(1, 4)])
    assert torch.equal(TargetTask.of("dense", fields).constant_answer(fields), torch.ones(1, 4).double())


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10.0), st.sampled_from(["classification", "multilabel"]))
def test_a_tempered_loss_does_not_depend_on_how_sure_answers_are(seed, factor, kind):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(40) % 3 if kind == "classification" else (torch.rand(40, 3, generator=generator) < 0.5).long()
    task = TargetTask.of(kind, labels)
    members = torch.eye(3)[labels] if kind == "classification" else labels
    logits = members.double() - 0.5 + torch.randn(40, 3, generator=generator, dtype=torch.float64)
    tempered = task.tempered_loss(logits, labels)
    assert tempered <= float(task.loss(logits, labels))
    assert task.tempered_loss(logits * factor, labels) == pytest.approx(tempered, rel=1e-6)


def test_numbers_and_fields_have_no_temperature():
    numbers = torch.arange(6.0)[:, None]
    task = TargetTask.of("regression", numbers)
    assert task.tempered_loss(numbers * 3, numbers) == float(task.loss(numbers * 3, numbers))
    classes = torch.arange(4) % 2
    assert math.isnan(TargetTask.of("classification", classes).tempered_loss(torch.full((4, 2), math.nan), classes))
