"""Loss and accuracy, against all samples at once."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.activations.examples import llama, texts
from tests.evaluate.examples import assert_unchanged, labelled, mlp, plainly, state, whole
from tests.laws.strategies import SEEDS
from torch import Tensor, nn

import interbasin as ib
from interbasin.evaluate import accuracy, loss, performance
from interbasin.evaluate.performance import beside_constant

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(SEEDS, SIZES)
def test_it_is_that_of_all_samples_however_they_are_cut(seed, sizes):
    model, data = mlp(seed % 1000), labelled(sizes, seed)
    found = performance(model, data)
    assert (found.loss, found.accuracy) == pytest.approx(plainly(model, data))
    assert found.count == sum(sizes)
    again = performance(model, [whole(data)])
    assert (found.loss, found.accuracy) == pytest.approx((again.loss, again.accuracy))
    assert loss(model, data) == found.loss and accuracy(model, data) == found.accuracy


def test_a_loss_of_ones_own_is_weighted_by_the_samples():
    model, data = mlp(), labelled()
    x, y = whole(data)
    wanted = float(F.mse_loss(model(x), F.one_hot(y, 3).double()))
    squares = lambda outputs, labels: F.mse_loss(outputs, F.one_hot(labels, 3).double())  # noqa: E731
    assert loss(model, data, squares) == pytest.approx(wanted)
    each = lambda outputs, labels: (outputs - F.one_hot(labels, 3)).square().mean(1)  # noqa: E731
    assert loss(model, data, each) == pytest.approx(wanted)
    assert performance(model, data, squares).accuracy == accuracy(model, data)
    assert loss(model, data, lambda outputs, labels: 2) == 2


def test_regression_has_a_loss_and_no_accuracy():
    model = mlp()
    data = [(x, torch.ones(len(x), 3).double()) for x, _ in labelled()]
    found = performance(model, data, F.mse_loss)
    assert found.accuracy is None and found.loss > 0


def test_without_labels_a_loss_of_the_outputs_alone_will_do():
    model, data = mlp(), labelled()
    x, _ = whole(data)
    found = performance(model, [one for one, _ in data], lambda outputs: outputs.square().mean())
    assert found.loss == pytest.approx(float(model(x).square().mean())) and found.accuracy is None
    assert performance(model, x, lambda outputs: outputs.mean(), batch_size=3).count == len(x)
    assert performance(model, [(x, None)], lambda outputs: outputs.mean()).accuracy is None


def test_evaluation_mode_copies_and_nothing_changed():
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(5), nn.Linear(5, 3)).double().train()
    before = state(model)
    found = [loss(model, labelled()) for _ in range(2)]
    assert found[0] == found[1]
    assert model.training and model[1].training
    assert_unchanged(model, before)


def test_progress_is_told_and_a_generator_will_do_for_one_pass():
    told: list[int] = []
    assert performance(mlp(), iter(labelled()), progress=told.append).count == 20
    assert told == [1, 2, 3]


def test_a_bar_stays_off_the_results(capsys):
    performance(mlp(), labelled(), progress=True)
    assert capsys.readouterr().out == ""


def test_nan_is_reported_as_it_is():
    model = mlp()
    with torch.no_grad():
        model[4].bias[0] = math.nan
    found = performance(model, labelled())
    assert math.isnan(found.loss) and found.accuracy == 0


class Dense(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@given(SEEDS)
def test_classes_stand_on_the_last_axis_or_on_the_second(seed):
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(2, 5, 3, generator=generator), torch.randint(0, 3, (2, 5), generator=generator)
    labels[0, :2] = -100
    wanted = float(F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert loss(Dense(), [(logits, labels)]) == pytest.approx(wanted, rel=1e-5)
    assert loss(Dense(), [(logits.movedim(2, 1), labels)]) == pytest.approx(wanted, rel=1e-5)
    counts = labels != -100
    assert accuracy(Dense(), [(logits, labels)]) == pytest.approx(
        float((logits.argmax(2) == labels)[counts].double().mean())
    )


def test_labels_that_do_not_count_have_no_weight():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, -100, -100, -100])
    data = [(logits, labels), (logits, torch.full((4,), -100)), (logits, torch.tensor([0, 1, 2, 0]))]
    wanted = float(F.cross_entropy(torch.cat([logits] * 3), torch.cat([one for _, one in data])))
    assert loss(Dense(), data) == pytest.approx(wanted, rel=1e-5)


# ---------------------------------------------------------------------- language models


def test_a_language_model_is_held_against_the_next_token_and_padding_does_not_count():
    model, batches = llama(), texts()
    data = [(batch, batch["input_ids"]) for batch in batches]
    total = count = 0.0
    for batch in batches:
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        counted = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            total += float(model(**batch, labels=labels).loss) * counted  # transformers shifts by itself
        count += counted
    assert loss(model, data) == pytest.approx(total / count)
    masked = [(batch, batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)) for batch in batches]
    assert loss(model, masked) == pytest.approx(total / count)


def test_labels_that_were_shifted_already_are_taken_as_they_are():
    model, batches = llama(), texts()
    ids = batches[0]["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
    shifted = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
    wanted = float(F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
    assert loss(model, [(ids, shifted)]) == pytest.approx(wanted)
    assert loss(model, [(ids, ids)]) == pytest.approx(wanted)
    own = lambda outputs, labels: outputs.loss  # noqa: E731
    assert loss(model, [({"input_ids": ids, "labels": ids}, ids)], own) == pytest.approx(wanted)


# ---------------------------------------------------------------------- refusals


def test_the_helpers_are_public():
    assert ib.evaluate.performance is performance and ib.evaluate.loss is loss


def test_a_network_stands_beside_one_answer_to_all_inputs():
    labels = torch.tensor([0, 0, 0, 1, -100, 2])
    shares = torch.tensor([3 / 5, 1 / 5, 1 / 5])
    flat = nn.Linear(4, 3)
    with torch.no_grad():
        flat.weight.zero_()
        flat.bias.copy_(shares.log())
    found = beside_constant(flat.eval(), [(torch.randn(6, 4), labels)])
    torch.testing.assert_close(found.losses.float(), found.constant_losses.float())
    assert found.constant_met.tolist() == [1, 1, 1, 0, 0, 0] == found.met.tolist()
    assert float(found.losses[4]) == 0 and float(found.losses[3]) == pytest.approx(math.log(5), rel=1e-5)
    assert beside_constant(flat, [(torch.randn(6, 4), torch.zeros(6, dtype=torch.long))]) is None
