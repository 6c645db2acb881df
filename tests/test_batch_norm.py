"""Batch norms reset, and REPAIR, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, gaussian
from tests.profiles import at_most
from torch import Tensor, nn

import interbasin as ib
from interbasin.batch_norm import Spread, has_batch_norm, repair, reset_batch_norm

# Sums of some hundred products in float64.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def convolutions(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5)
    ).double()


def plain(seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=bias), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6, bias=bias), nn.ReLU(), nn.Linear(6, 3)
    ).double()


def images(seed: int = 0, count: int = 12) -> Tensor:
    return gaussian(seed, count, 2, 4, 4) + 0.5


def outputs(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """What a layer gives, a row a position."""
    seen: list[Tensor] = []
    layer = model.get_submodule(name)
    handle = layer.register_forward_hook(lambda _, args, output: seen.append(output))
    with torch.no_grad():
        model.eval()(x)
    handle.remove()
    return seen[0].movedim(1, -1).flatten(0, -2) if seen[0].ndim > 2 else seen[0]


@given(SEEDS, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_spreads_merge_to_those_of_all_rows(seed, sizes):
    spread = Spread()
    rows = [gaussian(seed + n, size, 3) * (n + 1) + 100 * n for n, size in enumerate(sizes)]
    for one in rows:
        spread.add(one, -1)
    whole = torch.cat(rows)
    assert spread.count == len(whole)
    torch.testing.assert_close(spread.mean, whole.mean(0), **CLOSE)
    torch.testing.assert_close(spread.variance(), whole.var(0, correction=0), **CLOSE)


@given(SEEDS, st.lists(st.integers(2, 9), min_size=1, max_size=4), st.sampled_from([None, 0.1, 1.0]))
@at_most(20)
def test_the_first_batch_norm_has_the_statistics_of_all_rows_whatever_the_momentum(seed, sizes, momentum):
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=momentum)).double()
    data = [gaussian(seed + n, size, 3) + n for n, size in enumerate(sizes)]
    made = reset_batch_norm(model, data)
    whole = torch.cat(data)
    torch.testing.assert_close(made[0].running_mean, whole.mean(0), **CLOSE)
    torch.testing.assert_close(made[0].running_var, whole.var(0), **CLOSE)
    assert int(made[0].num_batches_tracked) == len(data)


def test_on_one_batch_it_is_what_training_with_momentum_one_would_keep():
    model, x = convolutions(), images()
    trained = convolutions().train()
    for module in trained.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    trained(x)
    made = reset_batch_norm(model, [x])
    torch.testing.assert_close(dict(made.named_buffers()), dict(trained.named_buffers()), **CLOSE)


def test_behind_other_batch_norms_each_batch_is_normalised_by_itself():
    model, data = convolutions(), [images(0), images(1) * 3]
    made = reset_batch_norm(model, data)
    seen: list[Tensor] = []
    trained = convolutions().train()
    trained[5].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    for x in data:
        trained(x)
    torch.testing.assert_close(made[5].running_var, torch.cat(seen).var(0), **CLOSE)
    torch.testing.assert_close(made[5].running_mean, torch.cat(seen).mean(0), **CLOSE)


def test_the_network_given_stays_as_it_is_mode_and_all():
    model = convolutions().train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = reset_batch_norm(model, [(images(), torch.zeros(12))])  # labels are left out
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and made.training and not made[1].training and made[5].training
    assert not any(module._forward_pre_hooks for one in (model, made) for module in one.modules())
    assert torch.equal(made[0].weight, model[0].weight)
    assert not torch.equal(made[1].running_mean, model[1].running_mean)


def test_dropout_plays_no_part():
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3)).double().train()
    x = gaussian(0, 50, 3)
    torch.testing.assert_close(reset_batch_norm(model, [x])[1].running_mean, x.mean(0), **CLOSE)


def test_a_tensor_is_cut_and_what_has_no_batch_norm_comes_back_as_it_is():
    told: list[int] = []
    reset_batch_norm(convolutions(), images(), batch_size=5, progress=told.append)
    assert told == [1, 2, 3]
    model = plain()
    made = reset_batch_norm(model, [])
    assert made is not model and torch.equal(made[0].weight, model[0].weight)
    assert has_batch_norm(convolutions()) and not has_batch_norm(model)
    assert not has_batch_norm(nn.BatchNorm1d(3, track_running_stats=False))


def test_batch_norms_without_gain_or_statistics_are_no_obstacle():
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False)).double()
    x = gaussian(0, 9, 3)
    torch.testing.assert_close(reset_batch_norm(model, [x])[0].running_mean, x.mean(0), **CLOSE)


def test_half_precision_keeps_its_dtype():
    model = nn.Sequential(nn.BatchNorm1d(3)).to(torch.bfloat16)
    made = reset_batch_norm(model, [gaussian(0, 50, 3).to(torch.bfloat16) + 2])
    assert made[0].running_mean.dtype is torch.bfloat16
    torch.testing.assert_close(made[0].running_mean.float(), torch.full((3,), 2.0), atol=0.4, rtol=0)


def test_data_that_are_not_finite_are_taken_where_that_is_asked_for():
    assert reset_batch_norm(convolutions(), [images() * math.nan], finite=False)[1].running_mean.isnan().all()


# ---------------------------------------------------------------------- REPAIR


@given(SEEDS, st.floats(0, 1))
@at_most(15)
def test_repaired_layers_have_the_statistics_between_those_of_the_ends(seed, t):
    a, b, x = plain(seed % 1000), plain(seed % 1000 + 1), images(seed)
    model = ib.interpolate(a, b, t)
    made = repair(model, a, b, t, [x])
    for name in ("0", "3", "5"):
        one, other, found = (outputs(network, name, x) for network in (a, b, made))
        varies = outputs(model, name, x).std(0) > 0
        wanted = (1 - t) * one.mean(0) + t * other.mean(0)
        torch.testing.assert_close(found.mean(0), wanted, **CLOSE)
        deviation = (1 - t) * one.std(0, correction=0) + t * other.std(0, correction=0)
        torch.testing.assert_close(found.std(0, correction=0)[varies], deviation[varies], **CLOSE)


@pytest.mark.parametrize("t", [0, 1])
def test_at_the_ends_nothing_is_to_be_repaired(t):
    a, b, x = plain(0), plain(1), images()
    made = repair(ib.interpolate(a, b, t), a, b, t, [x])
    torch.testing.assert_close(made(x), (a, b)[t](x), **CLOSE)


def test_it_lifts_the_variance_that_the_mean_of_two_networks_has_lost():
    a, b, x = plain(0), plain(1), images(count=100)
    model = ib.interpolate(a, b, 0.5)
    made = repair(model, a, b, 0.5, torch.split(x, 25))
    before, after, end = (outputs(network, "5", x).std() for network in (model, made, a))
    assert before < after and abs(after - end) < abs(before - end)


def test_the_three_networks_stay_as_they_are():
    a, b, x = plain(0), plain(1), images()
    model = ib.interpolate(a, b, 0.5)
    before = [{name: value.clone() for name, value in one.state_dict().items()} for one in (model, a, b)]
    made = repair(model, a, b, 0.5, [(x, torch.zeros(12))])
    for one, state in zip((model, a, b), before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in one.state_dict().items())
        assert not any(module._forward_hooks for module in one.modules())
    assert list(made.state_dict()) == list(model.state_dict())


def test_without_a_bias_the_deviation_is_put_right():
    a, b, x = plain(0, bias=False), plain(1, bias=False), images()
    made = repair(ib.interpolate(a, b, 0.5), a, b, 0.5, [x])
    one, other, found = (outputs(network, "0", x).std(0, correction=0) for network in (a, b, made))
    torch.testing.assert_close(found, (one + other) / 2, **CLOSE)
    assert made[0].bias is None


def test_with_batch_norms_it_is_a_reset():
    a, b, x = convolutions(0), convolutions(1), images()
    model = ib.interpolate(a, b, 0.5)
    torch.testing.assert_close(
        dict(repair(model, a, b, 0.5, [x]).state_dict()), dict(reset_batch_norm(model, [x]).state_dict())
    )


def test_transposed_convolutions_are_repaired_along_their_outputs():
    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.ConvTranspose2d(2, 3, 2)).double()

    a, b, x = make(0), make(1), images()
    made = repair(ib.interpolate(a, b, 0.3), a, b, 0.3, [x])
    one, other, found = (outputs(network, "0", x).std(0, correction=0) for network in (a, b, made))
    torch.testing.assert_close(found, 0.7 * one + 0.3 * other, **CLOSE)


class Twice(nn.Module):
    """One layer that is called twice, and two that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(self.again(self.again(x))))


def test_layers_that_are_used_twice_are_left_alone():
    a, b = Twice().double(), Twice().double()
    model = ib.interpolate(a, b, 0.5)
    made = repair(model, a, b, 0.5, [gaussian(0, 9, 3)])
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in made.state_dict().items())


def test_a_channel_that_does_not_vary_is_shifted_and_not_scaled():
    a = nn.Sequential(nn.Linear(2, 2)).double()
    with torch.no_grad():
        a[0].weight[0] = 0
    b = ib.interpolate(a, a, 0.5)
    with torch.no_grad():
        b[0].bias[0] += 2
    model = ib.interpolate(a, b, 0.5)
    made = repair(model, a, b, 0.5, [gaussian(0, 9, 2)])
    assert torch.isfinite(made[0].weight).all()
    torch.testing.assert_close(made[0].bias[0], a[0].bias[0] + 1, **CLOSE)
