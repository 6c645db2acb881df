"""The laws of moments: any batches, any order, one pass."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.cases import MAPS
from tests.laws.strategies import SEEDS, WIDTHS, gaussian, well_conditioned
from torch import Tensor

from interbasin import fit, maps
from interbasin.statistics import LayerwiseMoments, PairedMoments, residual_energy, similarities

counts = st.integers(2, 60)
means = st.sampled_from([0.0, 3.0, 1e4])


def numbers(moments: PairedMoments) -> dict[str, Tensor]:
    """Everything that moments say."""
    found = {"mean_source": moments.mean_source, "mean_target": moments.mean_target}
    for centered in (True, False):
        found[f"cross {centered}"] = moments.cross(centered=centered)
        found[f"squares_source {centered}"] = moments.squares_source(centered=centered)
        found[f"squares_target {centered}"] = moments.squares_target(centered=centered)
        if moments.has_grams:
            found[f"gram_source {centered}"] = moments.gram_source(centered=centered)
            found[f"gram_target {centered}"] = moments.gram_target(centered=centered)
    return found


def assert_same(one: PairedMoments, other: PairedMoments, tolerance: float) -> None:
    assert one.count == other.count
    energy = one.squares_source(centered=False).sum().sqrt(), one.squares_target(centered=False).sum().sqrt()
    scale = float(max(energy)) ** 2
    theirs = numbers(other)
    for name, value in numbers(one).items():
        torch.testing.assert_close(
            value, theirs[name], rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


def drawn(data: st.DataObject, *, mean: float = 0.0) -> tuple[Tensor, Tensor]:
    seed, count = data.draw(SEEDS), data.draw(counts)
    return gaussian(seed, count, data.draw(WIDTHS)) + mean, gaussian(seed + 1, count, data.draw(WIDTHS)) - mean


def pieces(data: st.DataObject, rows: int) -> list[slice]:
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(1, max(1, rows - 1)), max_size=4))})
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


@given(data=st.data(), grams=st.booleans(), mean=means)
def test_moments_are_the_sums_they_say(data: st.DataObject, grams: bool, mean: float) -> None:
    x, y = drawn(data, mean=mean)
    moments = PairedMoments.of(x, y, grams=grams)
    scale = float(x.square().sum() + y.square().sum())
    xc, yc = x - x.mean(dim=0), y - y.mean(dim=0)
    for centered, a, b in ((True, xc, yc), (False, x, y)):
        # About the mean, the error is relative to the spread and not to the mean: that is what the origin is for.
        atol = 1e-12 * (float(xc.square().sum() + yc.square().sum()) + 1e-4 * mean if centered else scale)
        torch.testing.assert_close(moments.cross(centered=centered), b.mT @ a, rtol=0, atol=atol)
        torch.testing.assert_close(moments.squares_source(centered=centered), a.square().sum(0), rtol=0, atol=atol)
        torch.testing.assert_close(moments.squares_target(centered=centered), b.square().sum(0), rtol=0, atol=atol)
        if grams:
            torch.testing.assert_close(moments.gram_source(centered=centered), a.mT @ a, rtol=0, atol=atol)
            torch.testing.assert_close(moments.gram_target(centered=centered), b.mT @ b, rtol=0, atol=atol)


@given(data=st.data(), grams=st.booleans(), mean=means)
def test_batches_of_any_size_equal_one_pass(data: st.DataObject, grams: bool, mean: float) -> None:
    x, y = drawn(data, mean=mean)
    moments = PairedMoments.of_batches(((x[s], y[s]) for s in pieces(data, len(x))), grams=grams)
    assert_same(moments, PairedMoments.of(x, y, grams=grams), 1e-13)


@given(data=st.data(), grams=st.booleans(), mean=means)
def test_moments_merge_in_any_order_and_equal_one_pass(data: st.DataObject, grams: bool, mean: float) -> None:
    x, y = drawn(data, mean=mean)
    parts = [PairedMoments.of(x[s], y[s], grams=grams) for s in pieces(data, len(x))]
    before = [numbers(part) for part in parts]
    order = data.draw(st.permutations(range(len(parts))))
    whole = PairedMoments.of(x, y, grams=grams)
    merged = PairedMoments(grams=grams)
    for position in order:
        merged = merged.merge(parts[position])
    assert_same(merged, whole, 1e-13)
    backwards = PairedMoments(grams=grams)
    for position in order:
        backwards = parts[position].merge(backwards)
    assert_same(backwards, whole, 1e-13)
    for part, then in zip(parts, before, strict=True):
        assert all(torch.equal(value, then[name]) for name, value in numbers(part).items()), (
            "merge changed its arguments"
        )


@given(data=st.data())
def test_axes_before_the_last_are_rows(data: st.DataObject) -> None:
    x, y = drawn(data)
    rows = len(x) - len(x) % 2
    folded = PairedMoments.of(x[:rows].reshape(2, -1, x.shape[1]), y[:rows].reshape(2, -1, y.shape[1]))
    assert_same(folded, PairedMoments.of(x[:rows], y[:rows]), 1e-14)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-6), (torch.bfloat16, 1e-6)])
@given(data=st.data(), mean=st.sampled_from([0.0, 100.0]))
def test_lower_precision_costs_no_more_than_its_own_rounding(
    dtype: torch.dtype, tolerance: float, data: st.DataObject, mean: float
) -> None:
    x, y = (values.to(dtype) for values in drawn(data, mean=mean))
    # The reference takes the same rounded values in float64: only the products may differ, and those are float32.
    low, high = PairedMoments.of(x, y), PairedMoments.of(x.double(), y.double())
    spread = float(high.squares_source().sum() + high.squares_target().sum())
    atol = tolerance * spread + 1e-9
    torch.testing.assert_close(low.cross(), high.cross(), rtol=0, atol=atol)
    torch.testing.assert_close(low.gram_source(), high.gram_source(), rtol=0, atol=atol)


@given(data=st.data(), grams=st.booleans())
def test_a_saved_run_goes_on_as_if_it_had_not_stopped(data: st.DataObject, grams: bool) -> None:
    x, y = drawn(data, mean=2.0)
    half = len(x) // 2
    straight = PairedMoments(grams=grams)
    straight.update(x[:half], y[:half])
    with tempfile.TemporaryDirectory() as folder:
        straight.save(Path(folder) / "seen")
        resumed = PairedMoments.load(Path(folder) / "seen")
    assert all(torch.equal(value, numbers(resumed)[name]) for name, value in numbers(straight).items())
    if grams:
        assert all(
            fit.get(name)(resumed).map == fit.get(name)(straight).map for name in ("least-squares", "procrustes")
        )
    for moments in (straight, resumed):
        moments.update(x[half:], y[half:])
    assert all(torch.equal(value, numbers(resumed)[name]) for name, value in numbers(straight).items())
    assert (straight.count, straight.batches, straight.precision) == (resumed.count, resumed.batches, resumed.precision)


@pytest.mark.parametrize("name", MAPS)
@given(data=st.data(), mean=st.sampled_from([0.0, 3.0]))
def test_the_residual_of_a_map_follows_from_the_moments(name: str, data: st.DataObject, mean: float) -> None:
    x, y = drawn(data, mean=mean)
    case = MAPS[name]
    if case.square_only:
        y = y[:, :1].expand(-1, x.shape[1]).contiguous()
    m = case.make(data.draw(SEEDS), y.shape[1], x.shape[1])
    moments = PairedMoments.of(x, y)
    missed = m(x) - y
    scale = float(x.square().sum() + y.square().sum() + missed.square().sum())
    assert residual_energy(moments, m, centered=False) == pytest.approx(float(missed.square().sum()), abs=1e-11 * scale)
    centred = missed - missed.mean(dim=0)
    assert residual_energy(moments, m, centered=True) == pytest.approx(float(centred.square().sum()), abs=1e-11 * scale)


@given(data=st.data())
def test_layers_kept_together_equal_layers_kept_apart(data: st.DataObject) -> None:
    seed, count = data.draw(SEEDS), data.draw(st.integers(3, 40))
    sources = {f"s{i}": gaussian(seed + i, count, data.draw(WIDTHS)) for i in range(data.draw(st.integers(1, 3)))}
    targets = {f"t{i}": gaussian(seed - i - 1, count, data.draw(WIDTHS)) for i in range(data.draw(st.integers(1, 3)))}
    first, second = LayerwiseMoments(), LayerwiseMoments()
    cut = count // 2
    first.update({n: v[:cut] for n, v in sources.items()}, {n: v[:cut] for n, v in targets.items()})
    second.update({n: v[cut:] for n, v in sources.items()}, {n: v[cut:] for n, v in targets.items()})
    together = first.merge(second)
    with tempfile.TemporaryDirectory() as folder:
        together.save(Path(folder) / "layers")
        loaded = LayerwiseMoments.load(Path(folder) / "layers")
    assert torch.equal(loaded.cka(), together.cka())
    for i, (source, x) in enumerate(sources.items()):
        for j, (target, y) in enumerate(targets.items()):
            apart = PairedMoments.of(x, y)
            assert_same(together.pair(source, target), apart, 1e-13)
            assert float(together.cka()[i, j]) == pytest.approx(similarities(apart)["linear_cka"], abs=1e-9)


def invariant(one: Tensor, x: Tensor, y: Tensor, names: tuple[str, ...], tolerance: float) -> None:
    before, after = similarities(PairedMoments.of(x, y)), similarities(PairedMoments.of(one, y))
    for name in names:
        assert after[name] == pytest.approx(before[name], abs=tolerance), name


@given(seed=SEEDS, width=WIDTHS, other=WIDTHS)
def test_similarities_are_unchanged_by_what_they_say_they_ignore(seed: int, width: int, other: int) -> None:
    x, y = gaussian(seed, 60, width), gaussian(seed + 1, 60, other)
    y[:, 0] += x[:, 0]
    rotation = MAPS["orthogonal"].make(seed, width, width)
    stretch = maps.Linear(well_conditioned(seed, width, width))
    every = ("linear_cka", "mean_cca", "pwcca_source", "pwcca_target", "procrustes_distance")
    invariant(2.5 * x + 4.0, x, y, every, 1e-7)
    # The weights of PWCCA are sums over units, so rotating its own side changes them.
    invariant(rotation(x), x, y, ("linear_cka", "mean_cca", "pwcca_target", "procrustes_distance"), 1e-7)
    invariant(stretch(x), x, y, ("mean_cca", "pwcca_target"), 1e-7)
    same = similarities(PairedMoments.of(x, x))
    assert same["procrustes_distance"] == pytest.approx(0, abs=1e-6)
    for name in ("linear_cka", "mean_cosine", "mean_cca", "pwcca_source", "pwcca_target"):
        assert same[name] == pytest.approx(1, abs=1e-9)
