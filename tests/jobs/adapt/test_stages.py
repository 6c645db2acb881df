"""The two stages of adapt: what they train, what they leave alone, and what they reach where the answer is planted."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from interbasin.evaluate.transfer import mean_distance
from interbasin.jobs.adapt import Source
from interbasin.jobs.adapt.embedders import make_embedder
from interbasin.jobs.adapt.feature_map import AlignmentOptions, FeatureMap, align_features
from interbasin.jobs.adapt.label_transport import LabelTransport
from interbasin.jobs.adapt.source_head import fit_source_head, recalibrate

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
    for row, label in zip(features[:20], noisy[:20], strict=True):
        point = row.clone().requires_grad_(True)
        logs = head.linear(point).log_softmax(0)
        value = -(logs.exp() * logs).sum() if loss == "entropy" else -logs[label]
        gradients.append(torch.autograd.grad(value, point)[0])
    from interbasin.jobs.adapt.source_head import _gradients

    torch.testing.assert_close(torch.stack(gradients), _gradients(head.linear, features[:20], noisy[:20], loss))


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
