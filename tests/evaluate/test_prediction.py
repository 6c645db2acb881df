"""Measures of wrong predictions against scikit-learn and plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from interbasin.errors import DataError, UnknownNameError
from interbasin.evaluate.prediction import KINDS, METRICS, error_metric

SEEDS = st.integers(0, 2**16)


def draw(kind: str, seed: int, count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and labels of a kind; every class and every label occurs."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "classification":
        return torch.randn(count, 3, generator=generator), torch.arange(count) % 3
    if kind == "multilabel":
        labels = torch.randint(0, 2, (count, 3), generator=generator).float()
        labels[0], labels[1] = 0, 1
        return torch.randn(count, 3, generator=generator), labels
    shape = (count, 2) if kind == "regression" else (count, 2, 5)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def perfect(kind: str, labels: torch.Tensor) -> torch.Tensor:
    if kind == "classification":
        return 9.0 * torch.nn.functional.one_hot(labels)
    return 2 * labels - 1 if kind == "multilabel" else labels


@settings(max_examples=8)
@given(SEEDS)
def test_errors_of_classes_are_those_of_scikit_learn(seed):
    outputs, labels = draw("classification", seed)
    answers, shares = outputs.argmax(1), outputs.softmax(1)
    expected = {
        "error": 1 - reference.accuracy_score(labels, answers),
        "f1": 1 - reference.f1_score(labels, answers, average="macro", zero_division=0),
        "auroc": 1 - reference.roc_auc_score(labels, shares, multi_class="ovr"),
    }
    for name, value in expected.items():
        assert error_metric("classification", name).measure(outputs, labels) == pytest.approx(value, abs=1e-6)


@settings(max_examples=8)
@given(SEEDS)
def test_errors_of_several_labels_are_those_of_scikit_learn(seed):
    outputs, labels = draw("multilabel", seed)
    answers = (outputs > 0).int()
    expected = {
        "map": 1 - reference.average_precision_score(labels, outputs, average="macro"),
        "hamming": reference.hamming_loss(labels, answers),
        "f1": 1 - reference.f1_score(labels, answers, average="macro", zero_division=0),
        "auroc": 1 - reference.roc_auc_score(labels, outputs, average="macro"),
    }
    for name, value in expected.items():
        assert error_metric("multilabel", name).measure(outputs, labels) == pytest.approx(value, abs=1e-6)


@settings(max_examples=8)
@given(SEEDS)
def test_errors_of_numbers_and_fields_are_the_plain_formulas(seed):
    outputs, labels = (part.double().numpy() for part in draw("regression", seed))
    by_hand = np.mean(np.sqrt(np.mean((outputs - labels) ** 2, 0)) / labels.std(0))
    tensors = torch.from_numpy(outputs), torch.from_numpy(labels)
    assert error_metric("regression").measure(*tensors) == pytest.approx(by_hand)
    assert error_metric("regression", "mae").measure(*tensors) == pytest.approx(np.abs(outputs - labels).mean())
    outputs, labels = (part.double().numpy() for part in draw("dense", seed))
    tensors = torch.from_numpy(outputs), torch.from_numpy(labels)
    by_hand = np.mean(np.sqrt(((outputs - labels) ** 2).mean(2)) / np.sqrt((labels**2).mean(2)))
    assert error_metric("dense", "nrmse").measure(*tensors) == pytest.approx(by_hand)
    by_hand = np.mean([np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(outputs, labels, strict=True)])
    assert error_metric("dense", "relative-l2").measure(*tensors) == pytest.approx(by_hand)


@pytest.mark.parametrize("kind", KINDS)
def test_perfect_predictions_have_no_error(kind):
    _, labels = draw(kind, 3)
    outputs = perfect(kind, labels)
    for metric in METRICS:
        if kind in metric.kinds:
            assert metric.score(outputs, labels).tolist() == [0.0] * len(labels)
            assert metric.measure(outputs, labels) == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=8)
@given(SEEDS)
def test_a_measure_is_the_mean_of_its_scores_or_says_what_those_are(seed):
    for metric in METRICS:
        for kind in metric.kinds:
            outputs, labels = draw(kind, seed)
            scores = metric.score(outputs, labels)
            assert scores.shape == (len(labels),) and scores.dtype == torch.float64
            if not metric.compared_by:
                assert float(scores.mean()) == pytest.approx(metric.measure(outputs, labels))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_measure_of_a_kind_is_its_usual_one(kind):
    usual = {"classification": "error", "multilabel": "map", "regression": "nrmse", "dense": "nrmse"}
    assert error_metric(kind).name == usual[kind]
    with pytest.raises(UnknownNameError, match="mae" if kind in ("regression", "dense") else "f1"):
        error_metric(kind, "rmsle")


def test_labels_that_a_measure_says_nothing_about_are_refused():
    outputs, labels = torch.randn(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(DataError, match="AUROC needs samples with a label"):
        error_metric("classification", "auroc").measure(outputs, labels)
    with pytest.raises(DataError, match="none here has one"):
        error_metric("multilabel").measure(outputs, torch.zeros(4, 2))
    with pytest.raises(DataError, match="all labels here are alike"):
        error_metric("regression").measure(outputs, torch.ones(4, 2))


def test_a_column_that_is_always_the_same_does_not_blow_errors_up():
    labels = torch.stack([torch.arange(6.0), torch.full((6,), 5.0)], 1)
    outputs = labels + torch.tensor([0.0, 1e-6])
    assert error_metric("regression").measure(outputs, labels) == pytest.approx(0.0, abs=1e-9)
    assert float(error_metric("regression").score(outputs, labels).max()) < 1e-6


@pytest.mark.parametrize("name", ["nrmse", "relative-l2"])
def test_a_field_of_zeros_does_not_decide_an_error_that_is_relative_to_fields(name):
    _, fields = draw("dense", 5, count=20)
    labels = fields[:8].clone()
    labels[2], labels[3] = 0, 1e-9 * labels[3]
    outputs = labels + 0.1
    plain = error_metric("dense", name)
    scores = plain.for_fields(fields).score(outputs, labels)
    assert float(plain.score(outputs, labels)[2]) > 1e4  # without training fields nothing tells what is usual
    assert float(scores[2:4].max()) < 0.5 and plain.for_fields(fields).measure(outputs, labels) < 0.5
    rest = [0, 1, 4, 5, 6, 7]
    assert torch.equal(scores[rest], plain.score(outputs, labels)[rest])  # to the bit


def test_a_channel_that_is_zero_in_all_fields_is_measured_by_the_others():
    _, fields = draw("dense", 6)
    fields[:, 1] = 0
    metric = error_metric("dense").for_fields(fields)
    assert metric.measure(fields + 0.1, fields) < 1
    assert metric.relative_sizes(fields).tolist() == [0.0] * len(fields)
    assert error_metric("dense", "mae").for_fields(fields).relative_sizes(fields) is None


@pytest.mark.parametrize(("kind", "name"), [("dense", "nrmse"), ("dense", "relative-l2"), ("regression", "nrmse")])
@pytest.mark.parametrize("unit", [1e-13, 1e-20, 1e-30])
def test_relative_errors_do_not_depend_on_the_unit_however_small(kind, name, unit):
    shape = (9, 2, 6) if kind == "dense" else (9, 2)
    generator = torch.Generator().manual_seed(0)
    labels, outputs = torch.randn(2, *shape, generator=generator).double()
    metric, small = error_metric(kind, name), error_metric(kind, name)
    if kind == "dense":
        metric, small = metric.for_fields(labels), small.for_fields(labels * unit)
    assert small.measure(outputs * unit, labels * unit) == pytest.approx(metric.measure(outputs, labels), rel=1e-6)
    assert torch.allclose(small.score(outputs * unit, labels * unit), metric.score(outputs, labels), rtol=1e-6)
