"""Models without a network against scikit-learn's."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from tests.jobs.adapt.examples import draw, make_target

from interbasin.jobs.adapt.simple_models import Nearest, RawLinear
from interbasin.jobs.adapt.task import TargetTask


@pytest.mark.parametrize("strength", [1e-3, 0.1, 10.0])
def test_a_linear_model_of_the_raw_input_is_that_of_scikit_learn(strength):
    inputs, labels = make_target(40)
    others = draw(20, 1, 8, seed=5)
    model = RawLinear(inputs, labels, TargetTask.of("classification", labels), strength)
    rows = ((inputs - inputs.mean(0)).flatten(1) / inputs.std()).double().numpy()
    size = float(((rows - rows.mean(0)) ** 2).sum(1).mean() ** 0.5)
    expected = LogisticRegression(C=100 / (strength * 40), max_iter=2000).fit(rows / size, labels.numpy())
    new = ((others - inputs.mean(0)).flatten(1) / inputs.std()).double().numpy() / size
    shares = torch.from_numpy(expected.predict_proba(new)).float()
    torch.testing.assert_close(model(others).softmax(1), shares, rtol=2e-2, atol=2e-3)


def test_a_linear_model_of_numbers_is_a_ridge():
    inputs, labels = make_target(40, "regression")
    task = TargetTask.of("regression", labels)
    model = RawLinear(inputs, labels, task, 0.1)
    rows = ((inputs - inputs.mean(0)).flatten(1) / inputs.std()).double()
    penalty = 0.1 * float((rows - rows.mean(0)).square().sum()) / 8
    wanted = (labels - task.shift) / task.scale
    expected = torch.from_numpy(Ridge(alpha=penalty).fit(rows.numpy(), wanted.numpy()).predict(rows.numpy()))
    torch.testing.assert_close(model(inputs), expected.float() * task.scale + task.shift, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["around zero", "far from zero"])
def test_the_nearest_sample_is_that_of_scikit_learn(offset):
    inputs, labels = make_target(60)
    inputs, others = inputs + offset, draw(40, 1, 8, seed=5) + offset
    model = Nearest(inputs, labels, TargetTask.of("classification", labels))
    expected = KNeighborsClassifier(1).fit(inputs.flatten(1).double().numpy(), labels.numpy())
    assert model(others).argmax(1).tolist() == expected.predict(others.flatten(1).double().numpy()).tolist()
    assert model(inputs).argmax(1).tolist() == labels.tolist()
    numbers = make_target(60, "regression")[1]
    model = Nearest(inputs, numbers, TargetTask.of("regression", numbers))
    expected = KNeighborsRegressor(1).fit(inputs.flatten(1).double().numpy(), numbers.numpy())
    torch.testing.assert_close(
        model(others), torch.from_numpy(expected.predict(others.flatten(1).double().numpy())).float()
    )


@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression", "dense"])
@pytest.mark.parametrize("make", [lambda *given: RawLinear(*given, 0.1), Nearest], ids=["linear", "nearest"])
def test_simple_models_answer_to_every_kind(kind, make):
    inputs, labels = make_target(30, kind)
    task = TargetTask.of(kind, labels)
    labels = task.require(labels, "the data")
    model = make(inputs, labels, task)
    assert model(inputs[:7]).shape == (7, *task.shape)
    assert task.error(model(inputs), labels) < task.error(torch.zeros(30, *task.shape), labels)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    constant = make(torch.zeros(30, 1, 8), labels, task)
    assert bool(constant(inputs).isfinite().all())


@pytest.mark.parametrize("make", [lambda *given: RawLinear(*given, 0.1), Nearest], ids=["linear", "nearest"])
def test_units_of_a_tables_columns_play_no_part(make):
    inputs, labels, others = draw(40, 3), torch.arange(40) % 2, draw(20, 3, seed=1)
    units = torch.tensor([1e-3, 1.0, 1e4])
    task = TargetTask.of("classification", labels)
    plain, scaled = make(inputs, labels, task), make(inputs * units, labels, task)
    torch.testing.assert_close(plain(others), scaled(others * units), rtol=1e-3, atol=1e-3)
