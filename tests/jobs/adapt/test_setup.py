"""What methods begin with: the source in one scale, its proxy, new bodies, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.jobs.adapt.examples import bits, draw, make_mlp, make_proxy, make_setup, one_recalibration  # noqa: F401
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.transfer import mean_distance
from interbasin.jobs.adapt import Fittings, Source
from interbasin.jobs.adapt.methods import trials_of
from interbasin.jobs.adapt.setup import Setup, redraw
from interbasin.jobs.adapt.source_head import measure_omega
from interbasin.jobs.adapt.validation import fit

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_recalibration")]
INPUTS, LABELS = make_proxy()


def test_features_of_the_source_are_one_apart_on_average():
    setup = make_setup()
    assert float(mean_distance(setup.features)) == pytest.approx(1.0, rel=1e-5)
    with torch.no_grad():
        features = Source.of(make_mlp()).features(INPUTS) * setup.scale
    torch.testing.assert_close(setup.features, features)


def test_the_sources_own_head_reads_scaled_features_as_it_read_its_own():
    model = make_mlp()
    setup = make_setup(model)
    with torch.no_grad():
        torch.testing.assert_close(
            setup.head.loss_before, float(nn.functional.cross_entropy(model(INPUTS), LABELS)), rtol=1e-4, atol=1e-5
        )
    assert setup.notes == ()


def test_the_head_may_be_recalibrated_on_the_labels_of_the_proxy_too():
    """The slope that counts is then that of cross-entropy with one-hot labels."""
    for loss in ("entropy", "labels"):
        setup = make_setup(head_loss=loss)
        held = setup.head.held
        measured = measure_omega(setup.head.linear, setup.features[held], setup.proxy_labels[held], loss)
        assert setup.head.omega == measured, loss
    assert make_setup().head.omega < setup.head.omega  # the few that are answered wrongly decide


def test_the_layer_that_bends_the_table_of_labels_is_drawn_from_the_seed():
    setup = make_setup(transport_width=4, align_steps=1)
    fitted = [
        fit(with_seed, "recraft", torch.arange(20), trials_of("recraft", setup)[0]).model.transport.state_dict()
        for with_seed in (setup, replace(setup, seed=1), setup)  # all share one alignment
    ]
    assert all(torch.equal(fitted[0][name], fitted[2][name]) for name in fitted[0])
    assert not all(torch.equal(fitted[0][name], fitted[1][name]) for name in fitted[0])


def test_a_head_that_does_not_fit_the_proxy_is_replaced_with_a_note():
    setup = make_setup(proxy=(INPUTS, torch.arange(40) % 5))
    assert setup.head.linear.out_features == 5 and "3 labels and the proxy 5" in setup.notes[0]
    source = Source.of(make_mlp())
    deep = Source(source.embedder, source.body, nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 3)))
    assert "more than one linear layer" in make_setup(deep).notes[0]
    assert make_setup(Source(source.embedder, source.body)).head.linear.out_features == 3


def test_a_proxy_may_show_a_few_classes_of_a_large_head_and_no_number_that_no_head_has():
    source = Source.of(make_mlp())
    large = Source(source.embedder, source.body, nn.Linear(10, 21000))
    few = (INPUTS, 20000 + torch.arange(40) % 3)
    assert make_setup(large, proxy=few).head.linear.out_features == 21000
    with pytest.raises(DataError, match="Label 20002 in row 2 of the proxy is out of range for 40 samples"):
        make_setup(proxy=few)
    batches = [(INPUTS[:30], LABELS[:30]), (INPUTS[30:], LABELS[30:] + 1000)]
    with pytest.raises(DataError, match=r"in row 3[0-9] of the proxy is out of range for 40 samples"):
        make_setup(proxy=batches)


@pytest.mark.parametrize(
    "proxy",
    [
        (INPUTS.numpy(), LABELS.numpy()),
        [(INPUTS[:30], LABELS[:30]), (INPUTS[30:], LABELS[30:])],
        DataLoader(TensorDataset(INPUTS, LABELS), 7),
        TensorDataset(INPUTS, LABELS),
        (INPUTS.double(), LABELS.double()),
        (INPUTS.numpy(), LABELS.numpy().astype(np.uint16)),
        (INPUTS.flip(0).numpy()[::-1], LABELS.numpy().astype(">i4")),
        (INPUTS.to_sparse(), LABELS.tolist()),
    ],
    ids=["arrays", "batches", "a DataLoader", "a Dataset", "doubles", "unsigned", "odd bytes", "sparse"],
)
def test_a_proxy_is_the_same_in_every_form(proxy):
    setup, expected = make_setup(proxy=proxy), make_setup()
    torch.testing.assert_close(setup.features, expected.features)
    assert torch.equal(setup.proxy_labels, LABELS) and setup.proxy_labels.dtype == torch.long


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_source_in_another_precision_is_taken_in_single_precision(dtype):
    model = make_mlp(norm=True).to(dtype)
    before = bits(model)
    setup = make_setup(model, proxy=(INPUTS.to(dtype), LABELS))
    assert all(parameter.dtype == torch.float32 for parameter in setup.new_map().parameters())
    assert f"weights in {str(dtype).removeprefix('torch.')}" in setup.notes[0]
    assert all(model.state_dict()[name].dtype == value.dtype for name, value in before.items())


def replace_label(row: int, value: float) -> torch.Tensor:
    labels = LABELS.double()
    labels[row] = value
    return labels


def with_nan(row: int) -> torch.Tensor:
    inputs = INPUTS.clone()
    inputs[row, 2] = math.nan
    return inputs


@pytest.mark.parametrize(
    ("proxy", "error", "message"),
    [
        (INPUTS, DataError, "The proxy has no labels"),
        ([INPUTS], DataError, "The proxy has no labels"),
        ((INPUTS, None), DataError, "The proxy has no labels"),
        (TensorDataset(INPUTS), DataError, "The proxy has no labels"),
        ((INPUTS[:0], LABELS[:0]), DataError, "no samples at all"),
        ((INPUTS[:1], LABELS[:1]), DataError, "found 1"),
        ((INPUTS, LABELS[:7]), ShapeError, "40 inputs and 7 labels"),
        ([(INPUTS, LABELS[:7])], ShapeError, "40 inputs and 7 labels"),
        ((INPUTS, INPUTS), ShapeError, r"one for each sample, found shape \(40, 6\)"),
        ((INPUTS, replace_label(7, 0.5)), DataError, "Label 0.5 in row 7 of the proxy"),
        ([(INPUTS, LABELS), (INPUTS, replace_label(3, -1))], DataError, "Label -1 in row 43 of the proxy"),
        ((with_nan(5), LABELS), DataError, "Row 5 of the inputs of the proxy"),
        ((INPUTS[:, :5], LABELS), DataError, r"called with \(40, 5\)"),
        ((torch.zeros(40, 6), LABELS), DataError, "same features for all of the proxy"),
        ("cats and dogs", DataError, "found one str"),
    ],
)
def test_a_proxy_that_says_nothing_is_refused(proxy, error, message):
    with pytest.raises(error, match=message):
        make_setup(proxy=proxy)


def test_a_source_with_weights_that_are_not_finite_is_refused():
    model = make_mlp()
    with torch.no_grad():
        model[4].weight[0, 0] = math.nan
    with pytest.raises(DataError, match="head has weights that are NaN"):
        make_setup(model)
    model = make_mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    with pytest.raises(DataError, match="features of the proxy are NaN"):
        make_setup(model)


def test_inputs_so_large_that_features_mean_nothing_are_refused():
    labels = torch.arange(30) % 2
    for size in (1e15, 1e38):
        with pytest.raises(DataError, match=r"Row \d+ .*as large as .*divide the inputs by their spread"):
            make_setup(target=(draw(30, 1, 8).clamp(-3, 3) * size, labels))


def test_inputs_longer_than_the_body_allows_are_refused():
    class Short(nn.Module):
        """A body for at most eight tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(8, 4))

        def forward(self, body_inputs):
            return body_inputs + self.positions[: body_inputs.shape[1]].view(1, -1, 4)

    class Long(nn.Module):
        """An embedder with a token for every point."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 4)

        def forward(self, inputs):
            return self.linear(inputs.mT)

    from interbasin.jobs.adapt import adapt

    source, proxy = Source(nn.Embedding(9, 4), Short()), (torch.arange(320).reshape(40, 8) % 9, LABELS)
    target = draw(30, 1, 50), torch.arange(30) % 2
    with pytest.raises(
        ShapeError, match=r"Inputs of shape \(1, 50\) became \(50, 4\).*trained on \(8, 4\): give shorter inputs"
    ):
        adapt(source, proxy, target, embedder=Long())
    assert len(make_setup(source, proxy=proxy, target=target).new_map()(target[0])) == 30  # its own is short enough


# ---------------------------------------------------------------------- bodies drawn anew


class Odd(nn.Module):
    """A part whose parameters are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.arange(10.0))

    def forward(self, body_inputs):
        return body_inputs * self.gain


def test_a_body_is_drawn_anew_whole_and_by_its_seed():
    body = nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10), nn.BatchNorm1d(10), Odd(), nn.MultiheadAttention(10, 2))
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.normal_()
        body[2].running_mean.fill_(5)
    before = bits(body)
    state = torch.random.get_rng_state()
    redraw(body, 3)
    assert torch.equal(torch.random.get_rng_state(), state)
    after = bits(body)
    assert not [name for name, _ in body.named_parameters() if torch.equal(before[name], after[name])]
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert bool((body[1].weight == 1).all()) and not bool(body[1].bias.any()) and not bool(body[2].running_mean.any())
    assert sorted(after["3.gain"].tolist()) == sorted(before["3.gain"].tolist())
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            parameter.copy_(before[name])
    redraw(body, 3)
    assert all(torch.equal(body.state_dict()[name], after[name]) for name, _ in body.named_parameters())
    redraw(body, 4)
    assert not torch.equal(body[0].weight, after["0.weight"])


def test_nothing_that_the_source_has_learned_is_left_in_a_network_drawn_anew():
    tokens = nn.Sequential(nn.Conv2d(1, 4, 2, 2), nn.Flatten(2))
    fittings = Fittings(tokens[0], draw(1, 4), draw(5, 4, seed=1), nn.LayerNorm(4))
    with torch.no_grad():
        fittings.norm.weight.normal_()

    class Embedder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = tokens

        def forward(self, images):
            rows = self.tokens(images).mT
            return torch.cat([fittings.prefix.expand(len(rows), -1, -1), rows], 1) + fittings.positions

    source = Source(Embedder(), nn.Linear(4, 4), layout="tokens", fittings=fittings)
    setup = make_setup(source, proxy=(draw(40, 1, 4, 4), LABELS), target=(draw(30, 1, 4, 4), torch.arange(30) % 2))
    learned, fresh = setup.new_map().state_dict(), setup.new_map(random_body=True).state_dict()
    assert learned.keys() == fresh.keys() and "embedder.positions" in learned
    kept = [name for name in learned if name != "embedder.norm.bias" and torch.equal(learned[name], fresh[name])]
    assert not kept
    torch.testing.assert_close(learned["embedder.cut.weight"], tokens[0].weight)  # what a transfer takes over


class Partly(nn.Module):
    """A layer that draws one of its parameters anew, and leaves the other."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn, self.left = nn.Parameter(draw(9)), nn.Parameter(draw(9, seed=1))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.drawn)


class Asking(Partly):
    def reset_parameters(self, gain: float) -> None:  # type: ignore[override]
        nn.init.constant_(self.drawn, gain)


@pytest.mark.parametrize("layer", [Partly, Asking])
def test_what_a_layer_does_not_draw_anew_itself_is_shuffled(layer):
    body = layer()
    redraw(body, 0)
    assert not torch.equal(body.left, layer().left) and not torch.equal(body.drawn, layer().drawn)
    assert sorted(body.left.tolist()) == sorted(layer().left.tolist())


@pytest.mark.parametrize("layer", [nn.SiLU, nn.ELU, nn.ReLU])
def test_a_body_that_writes_to_its_input_leaves_what_is_kept_of_the_proxy(layer):
    def look(inplace: bool) -> Setup:
        torch.manual_seed(0)
        body = nn.Sequential(layer(inplace=inplace), nn.Linear(10, 10))
        return make_setup(Source(nn.Linear(6, 10), body, nn.Linear(10, 3)))

    plain, writing = look(False), look(True)
    assert torch.equal(plain.embedding_means, writing.embedding_means)
    assert torch.equal(plain.bank.body_inputs, writing.bank.body_inputs)
    assert torch.equal(plain.features, writing.features)


def test_a_body_that_computes_in_halves_gives_features_in_single_precision():
    class Half(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).half()

    setup = make_setup(Source(nn.Linear(6, 10), Half(10, 10), nn.Linear(10, 3)))
    assert setup.new_map()(setup.samples.inputs).dtype is torch.float32


def test_columns_of_a_table_are_standardised_by_the_training_inputs():
    columns = draw(30, 5) * torch.tensor([1e-3, 1.0, 1e3, 1.0, 1.0]) + torch.tensor([0.0, 5.0, 1e4, 0.0, 7.0])
    columns[:, 4] = 7.0  # always the same
    setup = make_setup(target=(columns, torch.arange(30) % 2))
    standardised = setup.new_map().embedder[0](columns)
    assert torch.allclose(standardised.mean(0), torch.zeros(5), atol=1e-3)
    assert torch.allclose(standardised.std(0, correction=0), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]), atol=1e-3)
    units = torch.tensor([1e3, 10.0, 1e-3, 2.0, 1.0])
    other = make_setup(target=(columns * units, torch.arange(30) % 2))
    torch.testing.assert_close(setup.new_map()(columns), other.new_map()(columns * units), rtol=1e-3, atol=1e-3)
