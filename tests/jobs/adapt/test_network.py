"""The network for the target: heads on features and on states, how they begin, and fields cut into pieces."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from tests.jobs.adapt.examples import draw, make_setup, make_target, one_recalibration  # noqa: F401
from torch import nn

from interbasin.jobs.adapt import Source
from interbasin.jobs.adapt.network import (
    STRENGTHS,
    UNSEEN,
    TargetNetwork,
    fit_probe,
    fit_ridge,
    in_chunks,
    start_head,
)
from interbasin.jobs.adapt.task import TargetTask

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_recalibration")]
WIDTH = 6


class Tokens(nn.Module):
    """A body that takes rows of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, body_inputs):
        return self.mix(body_inputs) + body_inputs.mean(1, keepdim=True)


SOURCES = {
    "tokens": (lambda: Source(nn.Embedding(9, WIDTH), Tokens()), torch.arange(40 * 8).reshape(40, 8) % 9),
    "maps": (lambda: Source(nn.Conv2d(1, 4, 3), nn.Sequential(nn.Conv2d(4, WIDTH, 3), nn.ReLU())), draw(40, 1, 8, 8)),
    "signals": (
        lambda: Source(nn.Conv1d(1, 4, 3), nn.Sequential(nn.Conv1d(4, WIDTH, 3), nn.ReLU()), layout="signals"),
        draw(40, 1, 12),
    ),
    "vectors": (lambda: Source(nn.Linear(5, 7), nn.Sequential(nn.Linear(7, WIDTH), nn.ReLU())), draw(40, 5)),
}


def make_network(layout: str, kind: str = "dense", target=None) -> tuple[TargetNetwork, object]:
    make_source, inputs = SOURCES[layout]
    torch.manual_seed(0)
    setup = make_setup(make_source(), kind, proxy=(inputs, torch.arange(40) % 3), target=target)
    return TargetNetwork(setup.new_map(), setup.task, setup.samples.inputs).eval(), setup


FIELDS = {
    "a line": (draw(20, 2, 24), draw(20, 1, 24, seed=3)),
    "a finer line": (draw(20, 1, 12), draw(20, 2, 25, seed=3)),
    "a square": (draw(20, 1, 8, 8), draw(20, 1, 8, 8, seed=3)),
    "a finer rectangle": (draw(20, 1, 6, 8), draw(20, 2, 7, 9, seed=3)),
}


@pytest.mark.parametrize("shape", FIELDS)
@pytest.mark.parametrize("layout", SOURCES)
def test_every_body_answers_with_fields(layout, shape):
    inputs, fields = FIELDS[shape]
    network, setup = make_network(layout, target=(inputs, fields))
    assert network(inputs).shape == fields.shape
    assert bool(network.grid) == (layout == "tokens")
    with torch.no_grad():
        network.head.weight.normal_()
        torch.testing.assert_close(network.read_out(network.head_inputs(inputs)), network(inputs))
        torch.testing.assert_close(in_chunks(network, inputs), network(inputs))
    start_head(network, setup.task, inputs, fields, 1e-6)
    with torch.no_grad():
        assert float(setup.task.loss(network(inputs), fields)) < 1.0  # what the mean field alone comes to


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=2),
)
def test_a_field_is_cut_into_pieces_and_put_together_again(channels, axes):
    grid = tuple(cells for cells, _, _ in axes)
    # A field that the pieces do not fill evenly, but so that no piece is empty.
    points = tuple(
        max(1, cells * size - min(lack, size - 1)) for cells, size, lack in ((c, s + 1, k) for c, s, k in axes)
    )
    network = TargetNetwork.__new__(TargetNetwork)
    nn.Module.__init__(network)
    network.grid, network.shape = grid, (channels, *points)
    network.register_buffer("shift", torch.full((channels, *(1 for _ in points)), 2.0))
    network.register_buffer("scale", torch.full((channels, *(1 for _ in points)), 3.0))
    network.head = nn.Identity()
    fields = draw(4, channels, *points)
    pieces = network.split(fields)
    assert pieces.shape[:2] == (4, math.prod(grid))
    torch.testing.assert_close(network.read_out(pieces), fields)


@pytest.mark.parametrize("layout", SOURCES)
def test_features_are_what_a_head_reads_and_outputs_are_what_it_says(layout):
    network, setup = make_network(layout, "classification")
    inputs = setup.samples.inputs
    with torch.no_grad():
        network.head.weight.normal_()
        torch.testing.assert_close(network.features(inputs), network.head_inputs(inputs))
        torch.testing.assert_close(network(inputs), network.head(network.features(inputs)))
    assert network(inputs).shape == (30, 3)


# ---------------------------------------------------------------------- probes


@pytest.mark.parametrize("width", [4, 60], ids=["narrow", "wide"])
@pytest.mark.parametrize("strength", STRENGTHS)
def test_a_ridge_is_that_of_scikit_learn(width, strength):
    rows, values = draw(30, width).double() * 3 + 5, draw(30, 2, seed=1).double()
    weight, bias = fit_ridge(rows, values, strength)
    centred = rows - rows.mean(0)
    penalty = strength * float(centred.square().sum()) / min(rows.shape)
    expected = Ridge(alpha=penalty).fit(rows.numpy(), values.numpy())
    torch.testing.assert_close(weight, torch.from_numpy(expected.coef_), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(bias, torch.from_numpy(expected.intercept_), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_of_classes_is_that_of_scikit_learn(classes):
    rows, labels = 4 * draw(40, 5).double() + 7, torch.arange(40) % classes
    task = TargetTask.of("classification", labels)
    weight, bias = fit_probe(rows, labels, task, 0.1)
    centred = (rows - rows.mean(0)).numpy()
    size = float(((centred**2).sum(1).mean()) ** 0.5)
    expected = LogisticRegression(C=100 / (0.1 * 40), max_iter=300).fit(centred / size, labels.numpy())
    shares = torch.from_numpy(expected.predict_proba(centred / size))
    torch.testing.assert_close((rows @ weight.mT + bias).softmax(1), shares, rtol=1e-6, atol=1e-9)


def test_a_probe_of_several_labels_is_one_for_each():
    inputs, labels = make_target(40, "multilabel")
    labels[:, 1], rows = 0, inputs[:, 0].double()
    task = TargetTask.of("multilabel", labels)
    weight, bias = fit_probe(rows, labels, task, 0.1)
    shares = (rows @ weight.mT + bias).sigmoid()
    for place in (0, 2):
        alone = TargetTask.of("classification", labels[:, place])
        two, ends = fit_probe(rows, labels[:, place].long(), alone, 0.1)
        torch.testing.assert_close(shares[:, place], (rows @ two.mT + ends).softmax(1)[:, 1])
    assert bool((shares[:, 1] < 0.02).all())  # a label that no sample has


def test_a_probe_stands_classes_that_it_is_not_shown():
    rows, task = draw(12, 4), TargetTask.of("classification", torch.arange(12) % 4)
    weight, bias = fit_probe(rows, torch.full((12,), 2), task, 0.1)
    assert (rows @ weight.mT + bias).argmax(1).tolist() == [2] * 12
    weight, bias = fit_probe(rows, torch.arange(12) % 2 * 3, task, 0.1)
    assert bias[1:3].tolist() == [UNSEEN] * 2 and not bool(weight[1:3].any())
    every = TargetTask.of("classification", torch.arange(12))
    assert bool(fit_probe(rows, torch.arange(12), every, 1e-3)[0].isfinite().all())


def test_a_probe_on_rows_that_are_all_alike_says_how_often_classes_are():
    labels = torch.tensor([0, 0, 0, 1])
    weight, bias = fit_probe(torch.ones(4, 3), labels, TargetTask.of("classification", labels), 0.1)
    shares = (torch.ones(1, 3) @ weight.mT + bias).softmax(1)
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25]]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression", "dense"])
def test_a_head_begins_with_a_probe(kind):
    setup = make_setup(kind=kind)
    network = TargetNetwork(setup.new_map(), setup.task, setup.samples.inputs).eval()
    with torch.no_grad():
        before = float(setup.task.loss(network(setup.samples.inputs), setup.labels))
        start_head(network, setup.task, setup.samples.inputs, setup.labels)
        after = float(setup.task.loss(network(setup.samples.inputs), setup.labels))
        rows = network.head_inputs(setup.samples.inputs)
    assert after < before
    if kind == "regression":
        weight, bias = fit_ridge(rows, (setup.labels - network.shift) / network.scale, 0.1)
        torch.testing.assert_close(network.head.weight.data, weight)
        torch.testing.assert_close(network.head.bias.data, bias)
