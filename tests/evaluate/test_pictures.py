"""PCA against scikit-learn, CKA against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from sklearn.decomposition import PCA
from tests.activations.examples import llama, texts
from tests.evaluate.examples import assert_unchanged, cnn, labelled, mlp, state, whole, wiring
from tests.laws.strategies import SEEDS
from tests.profiles import at_most
from torch import Tensor

from interbasin.errors import ShapeError
from interbasin.evaluate import cka, pca


def up_to_signs(found: Tensor, wanted: np.ndarray) -> None:
    for column in range(found.shape[1]):
        sign = np.sign((found[:, column].numpy() * wanted[:, column]).sum())
        np.testing.assert_allclose(found[:, column], sign * wanted[:, column], atol=1e-8)


@pytest.mark.slow
@given(SEEDS)
@at_most(15)
def test_coordinates_are_those_of_all_rows_of_all_networks(seed):
    networks = {"source": mlp(seed % 1000), "aligned": mlp(seed % 1000 + 1), "target": mlp(seed % 1000 + 2)}
    before = {name: state(one) for name, one in networks.items()}
    data = labelled(seed=seed)
    x, y = whole(data)
    found = pca(networks, data)
    assert list(found) == ["0", "2"]
    for space, depth in (("0", 2), ("2", 4)):
        rows = {name: one[:depth](x).detach().numpy() for name, one in networks.items()}
        model = PCA(2, svd_solver="full").fit(np.concatenate(list(rows.values())))
        one = found[space]
        np.testing.assert_allclose(one.explained, model.explained_variance_ratio_, atol=1e-9)
        np.testing.assert_allclose(one.center, model.mean_, atol=1e-9)
        for name, own in rows.items():
            up_to_signs(one.coordinates[name], model.transform(own))
        assert torch.equal(one.labels, y)
        assert all(float(axis[axis.abs().argmax()]) > 0 for axis in one.axes)
    for name, one in networks.items():
        assert_unchanged(one, before[name])


def test_samples_are_bounded_and_belong_to_the_same_inputs():
    data = labelled(sizes=(8, 8, 8))
    one = mlp(0)
    found = pca({"one": one, "same": mlp(0)}, data, ["0"], samples=10)["0"]
    assert found.coordinates["one"].shape == (10, 2) and len(found.labels) == 10
    assert torch.equal(found.coordinates["one"], found.coordinates["same"])
    assert torch.equal(found.labels[:8], data[0][1])
    assert torch.equal(found.labels[8:], data[1][1][[0, 7]])
    rows = one[:2](torch.stack([data[1][0][0], data[1][0][7]])).detach()
    torch.testing.assert_close(found.coordinates["one"][8:], (rows - found.center) @ found.axes.mT)


def test_positions_become_rows_with_the_label_of_their_image_or_are_pooled():
    data = labelled(shape=(2, 4, 4), sizes=(3, 3))
    found = pca({"net": cnn()}, data, ["0"])["0"]
    assert found.coordinates["net"].shape == (6 * 4, 2)
    assert torch.equal(found.labels, whole(data)[1].repeat_interleave(4))
    found = pca({"net": cnn()}, data, ["0"], pool="mean")["0"]
    assert found.coordinates["net"].shape == (6, 2) and torch.equal(found.labels, whole(data)[1])


def test_padding_is_left_out_and_data_need_no_labels():
    batches = texts()
    found = pca({"one": llama(0), "other": llama(1)}, batches, samples=1000)
    rows = int(sum(int(batch["attention_mask"].sum()) for batch in batches))
    for one in found.values():
        assert len(one.coordinates["one"]) == rows and one.labels is None


def test_rows_that_do_not_vary_lie_in_the_middle():
    model = mlp()
    with torch.no_grad():
        for tensor in model[0].parameters():
            tensor.zero_()
    found = pca({"net": model}, labelled(), ["0"])["0"]
    assert found.explained == (0.0, 0.0)
    torch.testing.assert_close(found.coordinates["net"], torch.zeros(20, 2).double())


def plain_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


@pytest.mark.slow
@given(SEEDS)
@at_most(15)
def test_cka_is_that_of_all_rows(seed):
    a, b, data = mlp(seed % 1000), mlp(seed % 1000 + 1), labelled(seed=seed)
    x, _ = whole(data)
    before = state(a)
    found = cka(a, b, data)
    assert found.sources == found.targets == ("0", "2")
    layers = [[one[:depth](x).detach().numpy() for depth in (2, 4)] for one in (a, b)]
    wanted = [[plain_cka(one, other) for other in layers[1]] for one in layers[0]]
    np.testing.assert_allclose(found.matrix, wanted, atol=1e-9)
    assert_unchanged(a, before)
    torch.testing.assert_close(cka(a, b, iter(data), wirings=(wiring(), wiring())).matrix, found.matrix)


def test_a_network_is_like_itself_and_layers_can_be_named():
    a, data = cnn(), labelled(shape=(2, 4, 4))
    found = cka(a, a, data, pool="mean")
    torch.testing.assert_close(found.matrix.diagonal(), torch.ones(2).double())
    torch.testing.assert_close(found.matrix, found.matrix.mT)
    named = cka(a, a, data, (["4"], ["6:input"]), pool="mean")
    assert named.matrix.shape == (1, 1) and float(named.matrix) == pytest.approx(1)
    with pytest.raises(ShapeError, match="pool='mean'"):
        cka(a, a, data)
