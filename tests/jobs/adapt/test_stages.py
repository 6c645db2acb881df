"""The two stages of adapt: what they train, what they leave alone, and what they reach where the answer is planted."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from interbasin.errors import DataError, FitError, InterbasinError, ShapeError
from interbasin.evaluate.transfer import distortion, mean_distance
from interbasin.jobs.adapt import Source
from interbasin.jobs.adapt.embedders import make_embedder
from interbasin.jobs.adapt.feature_map import AlignmentOptions, FeatureMap, align_features
from interbasin.jobs.adapt.label_transport import LabelTransport
from interbasin.jobs.adapt.source_head import PERCENTILE, SourceHead, fit_source_head, recalibrate

pytestmark = pytest.mark.slow


def clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows around four centres in twelve dimensions, with their numbers."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(0)) * 2
    labels = torch.arange(count) % 4
    return centres[labels] + 0.5 * torch.randn(count, 12, generator=generator), labels


@pytest.fixture(scope="module")
def source() -> Source:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs, labels = clusters(400, 1)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return Source.of(model.eval()).with_layout(inputs)


def prepared(source: Source) -> tuple[Tensor, Tensor, float]:
    inputs, labels = clusters(300, 2)
    with torch.no_grad():
        features = source.features(inputs)
    scale = 1 / mean_distance(features)
    return features * scale, labels, scale


@pytest.mark.parametrize("loss", ["entropy", "labels"])
def test_a_recalibrated_head_changes_more_slowly_at_a_small_price(source, loss):
    features, labels, _ = prepared(source)
    noisy = torch.where(torch.rand(300, generator=torch.Generator().manual_seed(0)) < 0.1, (labels + 1) % 4, labels)
    before = fit_source_head(features, noisy)
    weight = before.weight.clone()
    head = recalibrate(before, features, noisy, omega=0.1, loss=loss)
    assert head.loss <= head.loss_before * 1.05 + 1e-6 and head.omega < head.omega_before
    assert torch.equal(before.weight, weight) and not head.linear.weight.requires_grad
    gradients = []
    for row, label in zip(features[head.held], noisy[head.held], strict=True):
        point = row.clone().requires_grad_(True)
        logs = head.linear(point).log_softmax(0)
        value = -(logs.exp() * logs).sum() if loss == "entropy" else -logs[label]
        gradients.append(torch.autograd.grad(value, point)[0].norm())
    assert head.omega == pytest.approx(float(torch.stack(gradients).quantile(PERCENTILE)), rel=1e-4)
    with torch.no_grad():
        after, old = (nn.functional.cross_entropy(linear(features), noisy) for linear in (head.linear, before))
    assert float(after) <= 1.05 * float(old) + 1e-6  # on all samples too


def test_a_head_that_only_grows_sharp_is_no_slower_one():
    """Features that a head can separate: fitted to all of them, its gradient vanishes there and nowhere else."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(150) % 3
    features = torch.eye(3, 60)[labels] + 0.3 * torch.randn(150, 60, generator=generator)
    features = features / mean_distance(features)
    before = fit_source_head(features, labels)
    head = recalibrate(before, features, labels)
    assert float(head.linear.weight.norm()) < 3 * float(before.weight.norm())
    assert head.omega > 0.1 and len(head.held) == 50


def test_a_copied_head_answers_scaled_features_as_the_given_one_does(source):
    features, labels, scale = prepared(source)
    assert isinstance(source.head, nn.Linear)
    copied = fit_source_head(features, labels, source.head, scale=scale)
    torch.testing.assert_close(copied(features), source.head(features / scale))
    with pytest.raises(DataError, match="all are the same"):
        fit_source_head(features, torch.ones(300, dtype=torch.long))
    with pytest.raises(DataError, match="omega"):
        recalibrate(copied, features, labels, omega=0.0)


def test_stage_1_trains_the_embedder_alone_and_finds_a_planted_rotation(source):
    features, labels, scale = prepared(source)
    head = recalibrate(fit_source_head(features, labels), features, labels)
    turn = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(5)))[0]
    inputs, classes = clusters(60, 3)
    inputs = inputs @ turn
    embedder = make_embedder(source, torch.zeros(1, 16), (12,), seed=0)
    feature_map = FeatureMap(source, nn.Sequential(embedder, nn.Tanh()), scale)
    before = copy.deepcopy(feature_map.body.state_dict()), copy.deepcopy(head.linear.state_dict())
    flags = [parameter.requires_grad for parameter in feature_map.body.parameters()]
    looks = align_features(feature_map, head, features, inputs, classes, options=AlignmentOptions(steps=120, rate=1e-2))
    assert all(torch.equal(before[0][name], tensor) for name, tensor in feature_map.body.state_dict().items())
    assert all(torch.equal(before[1][name], tensor) for name, tensor in head.linear.state_dict().items())
    assert [parameter.requires_grad for parameter in feature_map.body.parameters()] == flags
    assert looks[-1].gap < 0.6 * looks[0].gap
    with torch.no_grad():
        predictor = LabelTransport.fit(head, feature_map(inputs), classes, 4)
        others, answers = clusters(200, 9)
        found = predictor(feature_map(others @ turn)).argmax(1)
    assert float((found == answers).float().mean()) > 0.9
    again = FeatureMap(
        source, nn.Sequential(make_embedder(source, torch.zeros(1, 16), (12,), seed=0), nn.Tanh()), scale
    )
    repeated = align_features(again, head, features, inputs, classes, options=AlignmentOptions(steps=120, rate=1e-2))
    assert repeated == looks


@pytest.mark.parametrize("with_distortion", [False, True])
def test_features_that_lie_among_the_sources_are_left_where_they_are(source, with_distortion):
    features, labels, scale = prepared(source)
    head = recalibrate(fit_source_head(features, labels), features, labels)
    feature_map = FeatureMap(source, copy.deepcopy(source.embedder), scale)
    before = copy.deepcopy(feature_map.embedder.state_dict())
    inputs, classes = clusters(60, 3)
    options = AlignmentOptions(steps=20, with_distortion=with_distortion)
    looks = align_features(feature_map, head, features, inputs, classes // 2, options=options)
    assert [look.step for look in looks] == [0]
    assert all(torch.equal(before[name], tensor) for name, tensor in feature_map.embedder.state_dict().items())
    looks = align_features(feature_map, head, features, inputs + 1.5, classes // 2, options=options)
    assert looks[-1].step == 20


@pytest.mark.parametrize("width", [0, 6])
def test_transported_labels_are_distributions_and_follow_a_permutation(source, width):
    features, labels, _ = prepared(source)
    head = recalibrate(fit_source_head(features, labels), features, labels)
    merged = torch.tensor([2, 0, 0, 1])[labels]  # two of the source's labels are one of the target's
    predictor = LabelTransport.fit(head, features, merged, 3, width=width)
    with torch.no_grad():
        logs = predictor(features)
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(300))
    assert float((logs.argmax(1) == merged).float().mean()) > 0.97
    assert not any(parameter.requires_grad for parameter in predictor.head.parameters())


def test_transported_labels_refuse_what_does_not_pair(source):
    features, labels, _ = prepared(source)
    head = recalibrate(fit_source_head(features, labels), features, labels)
    with pytest.raises(ShapeError, match="do not pair"):
        LabelTransport.fit(head, features, labels[:-1], 4)
    with pytest.raises(DataError, match="from 0 to 2, found 0 to 3"):
        LabelTransport.fit(head, features, labels, 3)


# ---------------------------------------------------------------------- a small body with norms of batches


class Counting(nn.Module):
    """A body that writes to its own buffer, which a frozen one must not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs


def convolutional(body: nn.Module | None = None) -> tuple[Source, SourceHead, Tensor, Tensor, float]:
    """A source of maps, its head, scaled features of images, what its body takes, and the scale."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5))
    source = Source(nn.Conv2d(1, 4, 3, padding=1), body or whole, layout="maps")
    source.body(torch.randn(64, 4, 6, 6))  # statistics of batches
    source.body.eval()
    inputs = torch.randn(120, 1, 6, 6) * (1 + torch.arange(120) % 3)[:, None, None, None]
    with torch.no_grad():
        body_inputs = source.embed(inputs)
        features = source.pool_states(source.body(body_inputs))
    scale = 1 / mean_distance(features)
    labels = torch.arange(120) % 3
    head = recalibrate(fit_source_head(scale * features, labels), scale * features, labels)
    return source, head, scale * features, body_inputs, scale


@pytest.mark.parametrize("features", ["body", "embedder"])
@pytest.mark.parametrize("schedule", ["joint", "sequential"])
def test_norms_of_batches_and_modes_stay_as_they_were(schedule, features):
    source, head, source_features, body_inputs, scale = convolutional()
    sample = source_features if features == "body" else source.mean_embedding(body_inputs)
    feature_map = FeatureMap(source, make_embedder(source, body_inputs[:1], (1, 12), seed=1), scale)
    feature_map.train()
    feature_map.body[1].eval()
    modes = [module.training for module in feature_map.modules()]
    before = copy.deepcopy(feature_map.body.state_dict())
    inputs = torch.randn(40, 1, 12)
    options = AlignmentOptions(steps=15, schedule=schedule, features=features, every=4)
    looks = align_features(feature_map, head, sample, inputs, torch.arange(40) % 3, options=options)
    assert all(torch.equal(before[name], tensor) for name, tensor in feature_map.body.state_dict().items())
    assert [module.training for module in feature_map.modules()] == modes
    assert [look.step for look in looks] == [0, 4, 8, 12, 15]
    assert min(look.gap for look in looks[1:]) < looks[0].gap


def test_a_body_that_writes_to_itself_is_refused():
    source, head, source_features, body_inputs, scale = convolutional(Counting())
    feature_map = FeatureMap(source, make_embedder(source, body_inputs[:1], (1, 12)), scale)
    with pytest.raises(FitError, match="changed in stage 1"):
        align_features(
            feature_map,
            head,
            source_features,
            torch.randn(20, 1, 12),
            torch.arange(20) % 2,
            options=AlignmentOptions(steps=1),
        )


def test_alignment_alone_asks_no_labels_and_labels_lower_the_distortion():
    source, head, source_features, body_inputs, scale = convolutional()
    inputs, labels = torch.randn(48, 1, 12), torch.arange(48) % 2
    inputs = inputs * (1 + labels)[:, None, None]

    def aligned(labels: Tensor, *, unlabelled: Tensor | None = None, with_distortion: bool = False) -> FeatureMap:
        feature_map = FeatureMap(source, make_embedder(source, body_inputs[:1], (1, 12), seed=1), scale)
        options = AlignmentOptions(steps=40, with_distortion=with_distortion)
        align_features(
            feature_map,
            head,
            source_features,
            inputs,
            labels,
            unlabelled=unlabelled,
            options=options,
            report=seen.append,
        )
        return feature_map.eval()

    seen: list[object] = []
    plain, other = aligned(labels), aligned(1 - labels)
    assert len(seen) == 10
    with torch.no_grad():
        torch.testing.assert_close(plain(inputs), other(inputs))
        assert not torch.equal(plain(inputs), aligned(labels, unlabelled=3 * inputs)(inputs))
        told = aligned(labels, with_distortion=True)
        crossed = [distortion(head.probabilities(each(inputs)), labels).crossed for each in (plain, told)]
    assert crossed[1] < crossed[0]


def test_schedules_say_which_term_counts_and_how_long_steps_are():
    joint, sequential = AlignmentOptions(steps=60), AlignmentOptions(steps=60, schedule="sequential")
    assert {joint.terms_at(step) for step in range(1, 61)} == {(True, True)}
    assert [sequential.terms_at(step) for step in (1, 56, 57, 60)] == [(True, False)] * 2 + [(False, True)] * 2
    chosen = AlignmentOptions(steps=60, schedule="sequential", distortion_steps=2)
    assert [chosen.terms_at(step) for step in (58, 59, 60)] == [(True, False), (False, True), (False, True)]
    assert AlignmentOptions(steps=60, with_distortion=False, schedule="sequential").terms_at(60) == (True, False)
    rates = [joint.rate_at(step) for step in range(1, 61)]
    assert rates[0] == joint.rate and rates[-1] == pytest.approx(joint.rate / 10) and rates == sorted(rates)[::-1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"rate": -1.0},
        {"batch": 0},
        {"every": 0},
        {"steps": 5, "distortion_steps": 6},
        {"schedule": "both"},
        {"features": "head"},
        {"start": "end"},
    ],
)
def test_options_that_cannot_be_are_refused(wrong):
    with pytest.raises(InterbasinError, match=list(wrong)[-1]):
        AlignmentOptions(**wrong)
