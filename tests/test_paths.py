"""Laws of the line and the arc between tensors and between networks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, WIDTHS, gaussian
from torch import nn

import interbasin as ib
from interbasin.errors import DataError
from interbasin.paths import PARALLEL, PATHS, interpolate, interpolate_tensors, lerp, shares_on_arc, slerp

SHARES = st.floats(0, 1, allow_nan=False)
DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
NAMES = st.sampled_from(sorted(PATHS))


def net(seed: int = 0, hidden: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 2))


@given(SEEDS, WIDTHS, SHARES)
def test_the_line_is_the_weighted_mean(seed, width, t):
    a, b = gaussian(seed, width), gaussian(seed + 1, width)
    torch.testing.assert_close(lerp(a, b, t), (1 - t) * a + t * b)


@given(SEEDS, WIDTHS, SHARES)
def test_the_arc_keeps_the_length_of_tensors_of_equal_length(seed, width, t):
    a, b = gaussian(seed, width, 2), gaussian(seed + 1, width, 2)
    b = b * (a.norm() / b.norm())
    cosine = float((a * b).sum() / a.norm() / b.norm())
    if abs(cosine) <= PARALLEL:
        torch.testing.assert_close(slerp(a, b, t).norm(), a.norm())


@given(SEEDS, WIDTHS, SHARES)
def test_the_arc_keeps_lengths_between_those_of_its_ends_where_the_angle_is_acute(seed, width, t):
    a, b = gaussian(seed, width, 2).abs(), 3 * gaussian(seed + 1, width, 2).abs()
    low, high = sorted((float(a.norm()), float(b.norm())))
    assert low * (1 - 1e-9) <= float(slerp(a, b, t).norm()) <= high * (1 + 1e-9)


@given(SEEDS, st.integers(2, 8), SHARES)
def test_the_angle_along_the_arc_grows_evenly(seed, width, t):
    q = torch.linalg.qr(gaussian(seed, width, 2)).Q
    a, b = q[:, 0], q[:, 1]
    found = slerp(a, b, t)
    assert math.atan2(float(found @ b), float(found @ a)) == pytest.approx(t * math.pi / 2, abs=1e-9)


@given(SEEDS, WIDTHS, SHARES, st.sampled_from([0.0, 1.0, 2.5, -1.0, -3.0]))
def test_where_there_is_no_single_arc_the_line_is_taken(seed, width, t, factor):
    a = gaussian(seed, width)
    for start, end in ((a, factor * a), (factor * a, a)):
        line = lerp(start, end, t)
        if factor < 0 and line.norm() < 0.1 * min(start.norm(), end.norm()):
            with pytest.raises(DataError, match=r"A tensor points opposite ways .* the line passes through zero"):
                slerp(start, end, t)
        else:
            assert torch.equal(slerp(start, end, t), line)


def test_half_way_between_opposite_tensors_there_is_no_point_of_the_arc():
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    b.load_state_dict({"weight": -a.weight, "bias": b.bias})
    with pytest.raises(
        DataError, match=r"weight points opposite ways at the two ends .* next to nothing would be left"
    ):
        interpolate(a, b, 0.5, "slerp")
    for t in (0, 0.25, 1):
        torch.testing.assert_close(interpolate(a, b, t, "slerp").weight, (1 - 2 * t) * a.weight)
    assert not interpolate(a, b, 0.5, "lerp").weight.any()  # which the line is, and says


def test_a_point_that_its_dtype_cannot_hold_is_refused():
    # Two tensors at right angles, of large entries that agree in one place: the arc leaves the range of float16 there.
    a, b = torch.tensor([6e4, 6e4]).half(), torch.tensor([6e4, -6e4]).half()
    with pytest.raises(
        DataError, match=r"w between the two ends would have numbers beyond 65504, the largest of torch"
    ):
        interpolate_tensors({"w": a}, {"w": b}, 0.5, "slerp")
    assert float(interpolate_tensors({"w": a}, {"w": b}, 0.5, "lerp")["w"][0]) == 6e4


@given(SEEDS, DTYPES, SHARES, NAMES)
def test_a_path_keeps_dtype_and_changes_nothing(seed, dtype, t, path):
    a, b = {"w": gaussian(seed, 3, 2).to(dtype)}, {"w": gaussian(seed + 1, 3, 2).to(dtype)}
    before = a["w"].clone(), b["w"].clone()
    found = interpolate_tensors(a, b, t, path)["w"]
    assert found.dtype == dtype and found.shape == (3, 2)
    assert torch.equal(a["w"], before[0]) and torch.equal(b["w"], before[1])
    found.zero_()  # a tensor of its own, whatever t
    assert torch.equal(a["w"], before[0]) and torch.equal(b["w"], before[1])


@given(SEEDS, DTYPES, NAMES)
def test_ends_are_exact(seed, dtype, path):
    a, b = {"w": gaussian(seed, 5).to(dtype)}, {"w": gaussian(seed + 1, 5).to(dtype)}
    assert torch.equal(interpolate_tensors(a, b, 0, path)["w"], a["w"])
    assert torch.equal(interpolate_tensors(a, b, 1.0, path)["w"], b["w"])


@given(SEEDS, SHARES, NAMES)
def test_a_path_is_the_same_from_the_other_end(seed, t, path):
    a, b = {"w": gaussian(seed, 5)}, {"w": gaussian(seed + 1, 5)}
    torch.testing.assert_close(interpolate_tensors(a, b, t, path), interpolate_tensors(b, a, 1 - t, path))


def test_halves_are_rounded_once():
    a, b = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16)
    assert float(lerp(a, b, 0.9)) == 1.0078125


def test_the_dtype_is_that_of_the_first_everywhere():
    a, b = {"w": torch.zeros(2, dtype=torch.float16)}, {"w": torch.ones(2, dtype=torch.float64)}
    assert {interpolate_tensors(a, b, t)["w"].dtype for t in (0, 0.5, 1)} == {torch.float16}


@pytest.mark.parametrize("path", sorted(PATHS))
def test_complex_tensors_go_along(path):
    a, b = {"w": torch.complex(gaussian(0, 3), gaussian(1, 3))}, {"w": torch.complex(gaussian(2, 3), gaussian(3, 3))}
    found = interpolate_tensors(a, b, 0.25, path)["w"]
    wanted = PATHS[path](torch.view_as_real(a["w"]), torch.view_as_real(b["w"]), 0.25)
    torch.testing.assert_close(torch.view_as_real(found), wanted)
    assert torch.equal(interpolate_tensors(a, {"w": b["w"].conj()}, 1, path)["w"], b["w"].conj())


def test_what_holds_no_real_numbers_comes_from_the_nearer_end():
    a, b = {"steps": torch.tensor(3)}, {"steps": torch.tensor(8)}
    assert [int(interpolate_tensors(a, b, t)["steps"]) for t in (0, 0.4, 0.5, 1)] == [3, 3, 8, 8]


@given(SEEDS, st.floats(0.05, 0.95), NAMES)
def test_a_network_between_two_is_a_new_one_of_the_same_class(seed, t, path):
    a, b = net(seed % 1000), net(seed % 1000 + 1)
    a.eval()
    states = [{n: x.clone() for n, x in one.state_dict().items()} for one in (a, b)]
    made = ib.interpolate(a, b, t, path)
    assert type(made) is type(a) and not made.training and b.training
    torch.testing.assert_close(dict(made.state_dict()), interpolate_tensors(*states, t, path))
    with torch.no_grad():
        made[0].weight.zero_()
    for one, state in zip((a, b), states, strict=True):
        assert all(torch.equal(x, state[n]) for n, x in one.state_dict().items())


def test_tied_weights_stay_tied():
    def tied(seed):
        torch.manual_seed(seed)
        one = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        one[1].weight = one[0].weight
        return one

    made = interpolate(tied(0), tied(1), 0.5)
    assert made[0].weight is made[1].weight
    torch.testing.assert_close(made[0].weight, lerp(tied(0)[0].weight, tied(1)[0].weight, 0.5))


def test_beyond_the_ends_the_line_goes_on():
    assert float(interpolate_tensors({"w": torch.zeros(1)}, {"w": torch.ones(1)}, 1.5)["w"]) == 1.5


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("path", ["lerp", "slerp"])
def test_weights_that_are_no_numbers_are_refused_by_name(wrong, path):
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    with torch.no_grad():
        b.weight[0, 0] = wrong
    for one, other in ((a, b), (b, a)):
        with pytest.raises(DataError, match="weight holds NaN or infinity"):
            interpolate(one, other, 0.5, path)
    assert not torch.isfinite(interpolate(a, b, 0.5, path, finite=False).weight).all()


def test_masks_that_are_the_same_at_both_ends_pass():
    a, b = ({"mask": torch.tensor([0.0, -math.inf]), "w": torch.tensor([one])} for one in (0.0, 1.0))
    for path in ("lerp", "slerp"):
        assert torch.equal(interpolate_tensors(a, b, 0.5, path)["mask"], a["mask"])


# The shares of a point on an arc


@given(cosine=st.floats(-PARALLEL, PARALLEL), t=st.floats(0, 1))
def test_a_point_between_two_of_length_one_has_length_one(cosine, t):
    a, b = shares_on_arc(cosine, t)
    assert a * a + b * b + 2 * a * b * cosine == pytest.approx(1, abs=1e-9)


@given(cosine=st.floats(-PARALLEL, PARALLEL), t=st.floats(0, 1))
def test_angles_go_evenly(cosine, t):
    a, b = shares_on_arc(cosine, t)
    angle = math.acos(cosine)
    assert math.atan2(b * math.sin(angle), a + b * cosine) == pytest.approx(t * angle, abs=1e-7)


@given(cosine=st.floats(-1, 1))
def test_the_ends_are_the_ends(cosine):
    assert shares_on_arc(cosine, 0) == (1, 0) and shares_on_arc(cosine, 1) == (0, 1)


@pytest.mark.parametrize("cosine", [1.0, 0.99999, -0.99999, -1.0, math.nan])
def test_without_a_single_arc_the_line_is_taken(cosine):
    assert shares_on_arc(cosine, 0.25) == (0.75, 0.25)
