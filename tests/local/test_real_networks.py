"""The foundation on activations of trained networks, where variances span orders of magnitude and units are dead."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from interbasin import fit
from interbasin.maps import Map
from interbasin.statistics import LayerwiseMoments, PairedMoments, explained_variance, linear_cka

pytestmark = pytest.mark.local_data("mnist", "models")


def test_images(folder: Path) -> tuple[Tensor, Tensor]:
    with gzip.open(folder / "mnist" / "t10k-images-idx3-ubyte.gz") as file:
        images = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).reshape(-1, 784) / 255
    with gzip.open(folder / "mnist" / "t10k-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    return images, labels


test_images.__test__ = False  # type: ignore[attr-defined]


class Perceptron:
    """A trained MNIST network: its hidden layers behind their non-linearity, and what its head says of the last one."""

    def __init__(self, path: Path) -> None:
        tensors = load_file(path)
        numbers = sorted({int(name.split(".")[0]) for name in tensors})
        self.layers = [(tensors[f"{n}.weight"], tensors[f"{n}.bias"]) for n in numbers]

    def hidden(self, images: Tensor) -> dict[str, Tensor]:
        found = {}
        for depth, (weight, bias) in enumerate(self.layers[:-1]):
            images = torch.relu(images @ weight.mT + bias)
            found[f"hidden{depth}"] = images
        return found

    def head(self, hidden: Tensor) -> Tensor:
        weight, bias = self.layers[-1]
        return hidden @ weight.mT + bias

    def accuracy(self, hidden: Tensor, labels: Tensor) -> float:
        return float((self.head(hidden).argmax(dim=-1) == labels).double().mean())


@pytest.fixture(scope="module")
def pair(local_data: Path) -> tuple[Perceptron, Perceptron]:
    folder = local_data / "models" / "abcrown"
    return Perceptron(folder / "mnist_6_100_nat.safetensors"), Perceptron(folder / "mnist_6_200_nat.safetensors")


@pytest.fixture(scope="module")
def images(local_data: Path) -> tuple[Tensor, Tensor]:
    return test_images(local_data)


def test_a_narrow_network_speaks_through_the_head_of_a_wide_one(
    pair: tuple[Perceptron, Perceptron], images: tuple[Tensor, Tensor]
) -> None:
    narrow, wide = pair
    x, labels = images
    seen, held_out = x[:5000], x[5000:]
    moments = PairedMoments(grams=True)
    for batch in torch.split(seen, 500):
        moments.update(narrow.hidden(batch)["hidden4"], wide.hidden(batch)["hidden4"])
    own = narrow.accuracy(narrow.hidden(held_out)["hidden4"], labels[5000:])
    carried = fit.least_squares(moments, affine=True, ridge=1e-3).map
    stitched = wide.accuracy(carried(narrow.hidden(held_out)["hidden4"]), labels[5000:])
    rotated = fit.procrustes(moments, affine=True).map
    assert stitched >= own - 0.02
    assert wide.accuracy(rotated(narrow.hidden(held_out)["hidden4"]), labels[5000:]) >= own - 0.1


def test_every_isometric_fit_holds_on_held_out_images(
    pair: tuple[Perceptron, Perceptron], images: tuple[Tensor, Tensor]
) -> None:
    narrow, wide = pair
    x, _ = images
    layer = "hidden1"
    moments = PairedMoments.of(narrow.hidden(x[:5000])[layer], wide.hidden(x[:5000])[layer])
    fresh = PairedMoments.of(narrow.hidden(x[5000:])[layer], wide.hidden(x[5000:])[layer])

    def held_out(m: Map) -> float:
        return explained_variance(fresh, m)

    linear, rotation = held_out(fit.least_squares(moments, ridge=1e-4).map), held_out(fit.procrustes(moments).map)
    permutation = held_out(fit.assignment(moments).map)
    assert linear > rotation > permutation
    assert rotation > 0.5


def test_the_factor_of_a_real_cross_product_is_as_exact_as_promised(
    pair: tuple[Perceptron, Perceptron], images: tuple[Tensor, Tensor]
) -> None:
    narrow, wide = pair
    x, _ = images
    for layer in narrow.hidden(x[:10]):
        cross = PairedMoments.of(narrow.hidden(x[:3000])[layer], wide.hidden(x[:3000])[layer]).cross()
        for path in ("auto", "svd", "gram", "qdwh"):
            found = fit.polar(cross, path=path)  # type: ignore[arg-type]
            unit = found.factor.mT @ found.factor - torch.eye(100, dtype=torch.float64)
            assert float(torch.linalg.matrix_norm(unit)) <= 1e-12
            missed = found.factor @ found.symmetric(cross) - cross
            assert float(torch.linalg.matrix_norm(missed) / torch.linalg.matrix_norm(cross)) <= 1e-12


def test_layers_of_equal_depth_are_most_alike(
    pair: tuple[Perceptron, Perceptron], images: tuple[Tensor, Tensor]
) -> None:
    narrow, wide = pair
    x, _ = images
    layers = LayerwiseMoments()
    for batch in torch.split(x[:4000], 1000):
        layers.update(narrow.hidden(batch), wide.hidden(batch))
    cka = layers.cka()
    apart = PairedMoments.of(narrow.hidden(x[:4000])["hidden0"], wide.hidden(x[:4000])["hidden2"])
    assert float(cka[0, 2]) == pytest.approx(linear_cka(apart), abs=1e-5)
    # Neighbours in depth resemble one another more than the first and the last do.
    assert float(cka.diagonal().mean()) > float(cka[0, -1] + cka[-1, 0]) / 2


def test_float32_statistics_of_real_activations_match_float64(
    pair: tuple[Perceptron, Perceptron], images: tuple[Tensor, Tensor]
) -> None:
    narrow, wide = pair
    x, _ = images
    a, b = narrow.hidden(x)["hidden4"], wide.hidden(x)["hidden4"]
    low, high = PairedMoments(grams=True), PairedMoments.of(a.double(), b.double())
    for start in range(0, len(a), 700):
        low.update(a[start : start + 700], b[start : start + 700])
    missed = torch.linalg.matrix_norm(low.cross() - high.cross()) / torch.linalg.matrix_norm(high.cross())
    assert float(missed) <= 1e-6
