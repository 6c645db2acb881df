"""The laws of fits, for every fit in `cases.FITS`."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.laws.cases import FITS, FitCase
from tests.laws.strategies import SEEDS, gaussian, well_conditioned
from tests.profiles import at_most
from tests.test_storage import layout_of
from torch import Tensor

from interbasin import fit, maps
from interbasin.errors import FitError
from interbasin.statistics import PairedMoments

every_fit = pytest.mark.parametrize("name", FITS)
planted_widths = st.integers(1, 64)
few_widths = st.integers(1, 12)


def rows_of(width: int, seed: int, *, mean: float = 0.0) -> Tensor:
    """Rows enough to see every direction, with unequal variances, about a mean."""
    return gaussian(seed, 6 * width + 4, width) @ well_conditioned(seed + 11, width, width).mT + mean


def target_width(case: FitCase, source: int, other: int) -> int:
    """A second width that the case can find a planted map into; soft assignments spread over unequal widths."""
    if case.method == "sinkhorn":
        return source
    return other if case.narrowing else max(source, other)


def relative_residual(m: maps.Map, x: Tensor, y: Tensor) -> float:
    return float(torch.linalg.vector_norm(m(x) - y) / torch.linalg.vector_norm(y))


def same_map(found: maps.Map, planted: maps.Map, tolerance: float) -> bool:
    if tolerance == 0:
        return torch.equal(found.matrix, planted.matrix)
    return float((found.matrix - planted.matrix).abs().max()) <= tolerance


@every_fit
@at_most(25)
@given(source=planted_widths, target=planted_widths, square=st.booleans(), seed=SEEDS)
@example(source=2, target=2, square=True, seed=12216839)  # two source units of nearly equal worth to one target unit
def test_a_planted_map_is_recovered(name: str, source: int, target: int, square: bool, seed: int) -> None:
    case = FITS[name]
    planted = case.planted(seed, source if square else target_width(case, source, target), source)
    x = rows_of(source, seed, mean=2.0)
    found = case(x, planted(x))
    assert same_map(found.map, planted, case.tolerance), f"status {found.status}"
    assert found.status == "converged"
    assert found.residual <= 10 * max(case.tolerance, 1e-12)
    assert found.explained >= 1 - 10 * max(case.tolerance, 1e-12)


@every_fit
@at_most(25)
@given(source=few_widths, target=few_widths, seed=SEEDS)
def test_a_planted_map_is_recovered_from_streamed_float32_moments(
    name: str, source: int, target: int, seed: int
) -> None:
    case = FITS[name]
    planted = case.planted(seed, target_width(case, source, target), source)
    x = rows_of(source, seed).float()
    moments = PairedMoments(grams=True)
    for batch in torch.split(x, 7):
        moments.update(batch, planted(batch))
    found = case(moments)
    assert same_map(found.map, planted, 0 if case.tolerance == 0 else 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in FITS.items() if case.minimises])
@at_most(25)
@given(
    source=planted_widths,
    target=planted_widths,
    square=st.booleans(),
    noise=st.sampled_from([0.01, 0.3, 2.0]),
    seed=SEEDS,
)
def test_with_noise_the_residual_is_at_most_that_of_the_planted_map(
    name: str, source: int, target: int, square: bool, noise: float, seed: int
) -> None:
    case = FITS[name]
    planted = case.planted(seed, source if square else target_width(case, source, target), source)
    x = rows_of(source, seed)
    y = planted(x) + noise * gaussian(seed + 1, len(x), planted.target_width)
    assert case(x, y, centered=False).residual <= relative_residual(planted, x, y) * (1 + 1e-9)


@every_fit
@given(source=few_widths, target=few_widths, affine=st.booleans(), centered=st.booleans(), seed=SEEDS)
@example(source=9, target=1, affine=False, centered=True, seed=0)  # a descent that ends far from its start
def test_the_residual_is_what_the_map_leaves_on_the_rows(
    name: str, source: int, target: int, affine: bool, centered: bool, seed: int
) -> None:
    case = FITS[name]
    x, y = rows_of(source, seed, mean=1.0), gaussian(seed + 1, 6 * source + 4, target) - 0.5
    of_rows = case(x, y, affine=affine, centered=centered)
    assert of_rows.residual == pytest.approx(relative_residual(of_rows.map, x, y), rel=1e-9)
    missed = of_rows.map(x) - y
    if centered or affine:
        expected = 1 - float(missed.var(dim=0).sum() / y.var(dim=0).sum())
    else:
        expected = 1 - of_rows.residual**2
    assert of_rows.explained == pytest.approx(expected, rel=1e-9, abs=1e-9)
    of_moments = case(PairedMoments.of(x, y), affine=affine, centered=centered)
    assert of_moments.residual == pytest.approx(of_rows.residual, rel=1e-6, abs=1e-7)
    assert of_moments.explained == pytest.approx(of_rows.explained, rel=1e-6, abs=1e-7)


@every_fit
@given(source=few_widths, target=few_widths, seed=SEEDS)
def test_rows_and_their_moments_give_the_same_map(name: str, source: int, target: int, seed: int) -> None:
    case = FITS[name]
    planted = case.planted(seed, target_width(case, source, target), source)
    x = rows_of(source, seed)
    y = planted(x) + 0.1 * gaussian(seed + 1, len(x), planted.target_width)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    moments = PairedMoments.of_batches(zip(x[shuffled].split(5), y[shuffled].split(5), strict=True))
    torch.testing.assert_close(case(moments).map.matrix, case(x, y).map.matrix, rtol=1e-6, atol=1e-6)


@every_fit
@given(source=few_widths, target=few_widths, seed=SEEDS)
def test_an_affine_fit_finds_a_planted_shift(name: str, source: int, target: int, seed: int) -> None:
    case = FITS[name]
    planted = case.planted(seed, target_width(case, source, target), source)
    shift = 3 * gaussian(seed + 2, planted.target_width)
    x = rows_of(source, seed, mean=-1.0)
    found = case(x, planted(x) + shift, affine=True)
    assert isinstance(found.map, maps.Affine)
    torch.testing.assert_close(found.map(x), planted(x) + shift, rtol=0, atol=max(1e-6, 100 * case.tolerance))


FAMILIES = [
    ("assignment", "assignment signed"),
    ("assignment signed", "procrustes"),
    ("procrustes", "least-squares"),
    ("stiefel", "least-squares"),
    ("cca 0.5", "least-squares"),
    ("sinkhorn", "least-squares"),
    ("orthogonalised", "procrustes"),
]


@pytest.mark.parametrize(("smaller", "larger"), FAMILIES)
@given(source=few_widths, extra=st.integers(0, 4), affine=st.booleans(), mean=st.sampled_from([0.0, 5.0]), seed=SEEDS)
def test_a_larger_family_has_no_larger_residual(
    smaller: str, larger: str, source: int, extra: int, affine: bool, mean: float, seed: int
) -> None:
    x, y = rows_of(source, seed, mean=mean), gaussian(seed + 1, 6 * source + 4, source + extra) + mean
    # With the offset free, or with no centring at all, the residual is exactly what each fit minimises.
    options = {"affine": affine, "centered": affine}
    assert FITS[larger](x, y, **options).residual <= FITS[smaller](x, y, **options).residual * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", ["procrustes", "assignment", "assignment signed", "cca 0", "cca 0.25", "cca 0.5", "stiefel"]
)
@given(width=few_widths, seed=SEEDS)
def test_fitting_backwards_gives_the_inverse(name: str, width: int, seed: int) -> None:
    case = FITS[name]
    x = rows_of(width, seed)
    y = case.planted(seed, width, width)(x) + 0.05 * gaussian(seed + 1, len(x), width)
    there, back = case(x, y).map, case(y, x).map
    torch.testing.assert_close(back.matrix, there.inverse().matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["procrustes", "assignment", "assignment signed", "stiefel"])
@given(width=few_widths, seed=SEEDS, factor=st.sampled_from([1e-6, 0.5, 1e6]))
def test_isometric_fits_do_not_care_for_the_scale_of_either_side(
    name: str, width: int, seed: int, factor: float
) -> None:
    case = FITS[name]
    x = rows_of(width, seed)
    y = case.planted(seed, width, width)(x) + 0.05 * gaussian(seed + 1, len(x), width)
    torch.testing.assert_close(case(x, factor * y).map.matrix, case(x, y).map.matrix, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(case(factor * x, y).map.matrix, case(x, y).map.matrix, rtol=1e-6, atol=1e-6)


# A soft assignment is soft even between equal units, and half-whitened spaces are not whitened by being carried.
@pytest.mark.parametrize("name", sorted(set(FITS) - {"sinkhorn", "cca 0.25"}))
@given(source=few_widths, target=few_widths, seed=SEEDS)
def test_fitting_what_is_already_aligned_changes_nothing(name: str, source: int, target: int, seed: int) -> None:
    case = FITS[name]
    x = rows_of(source, seed)
    y = gaussian(seed + 1, len(x), target_width(case, source, target))
    aligned = case(x, y).map(x)
    assume(float(torch.linalg.matrix_norm(aligned)) > 0)
    again = case(aligned, y).map
    torch.testing.assert_close(again(aligned), aligned, rtol=1e-4, atol=1e-4 * float(aligned.abs().max()))


@given(target=few_widths, extra=st.integers(1, 6), seed=SEEDS)
def test_onto_a_narrower_space_descent_improves_on_procrustes(target: int, extra: int, seed: int) -> None:
    x = rows_of(target + extra, seed)
    y = gaussian(seed + 1, len(x), target)
    better, closed = fit.stiefel(x, y, centered=False), fit.procrustes(x, y, centered=False)
    assert better.residual <= closed.residual * (1 + 1e-12)
    assert all(later <= earlier + 1e-12 * abs(earlier) for earlier, later in itertools.pairwise(better.details["path"]))


@every_fit
@at_most(10)
@given(source=few_widths, target=few_widths, seed=SEEDS)
def test_a_saved_fit_holds_the_map_exactly_and_says_what_it_is(name: str, source: int, target: int, seed: int) -> None:
    case = FITS[name]
    found = case(rows_of(source, seed), gaussian(seed, 6 * source + 4, target))
    assert found.status in fit.STATUSES and found.message == fit.STATUSES[found.status] and found.steps >= 0
    assert math.isfinite(found.residual) and found.explained <= 1 + 1e-12
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder) / "fit")
        loaded = maps.load(Path(folder) / "fit")
        assert loaded == found.map and layout_of(loaded._record()[1]) == layout_of(found.map._record()[1])
        kept = json.loads((Path(folder) / "fit" / "fit.json").read_text())
    assert {key: kept[key] for key in found.summary()} == json.loads(json.dumps(found.summary()))


# Entropy makes its plan the only one: where nothing tells units apart, it is spread over them.
@pytest.mark.parametrize("name", sorted(set(FITS) - {"sinkhorn"}))
@at_most(10)
@given(count=st.integers(2, 6), more=st.integers(1, 6), seed=SEEDS, centered=st.booleans())
def test_fewer_rows_than_units_are_never_said_to_have_settled_the_map(
    name: str, count: int, more: int, seed: int, centered: bool
) -> None:
    x, y = gaussian(seed, count, count + more), gaussian(seed + 1, count, count + more)
    found = FITS[name](x, y, centered=centered)
    assert found.status != "converged"
    with pytest.raises(FitError, match=r"give more rows|more steps|as good as round-off allows"):
        found.required()


@pytest.mark.parametrize("name", ["assignment", "assignment signed"])
@given(width=st.integers(2, 8), seed=SEEDS, data=st.data())
def test_units_that_are_alike_are_tied(name: str, width: int, seed: int, data: st.DataObject) -> None:
    x = gaussian(seed, 3 * width, width)
    first, second = data.draw(st.permutations(range(width)))[:2]
    assert FITS[name](x, x).status == "converged"
    x[:, second] = x[:, first]
    y = x[:, data.draw(st.permutations(range(width)))]
    found = FITS[name](x, y)
    assert found.status == "tied" and found.residual <= 1e-7
    with pytest.raises(FitError, match=r"fit is tied: another matching .*; give rows in which units differ"):
        found.required()
    x[:, [first, second]] = 5.0  # two that never vary
    assert FITS[name](x, x).status == "tied"


@pytest.mark.parametrize("name", ["procrustes", "orthogonalised", "cca 0.5"])
@given(width=st.integers(3, 12), seed=SEEDS)
def test_directions_without_data_are_completed_or_dropped_and_reported(name: str, width: int, seed: int) -> None:
    case = FITS[name]
    count = width // 2 + 1  # centred, that many rows show one direction fewer
    x, y = gaussian(seed, count, width), gaussian(seed + 1, count, width)
    completed, dropped = case(x, y), case(x, y, unobserved="drop")
    assert completed.status == dropped.status == "rank-deficient"
    assert completed.details["rank"] == dropped.details["rank"] == count - 1
    assert dropped.map.rank == count - 1
    centred = x - x.mean(dim=0)
    torch.testing.assert_close(completed.map(centred), dropped.map(centred), rtol=1e-6, atol=1e-6)
    if completed.map.is_isometric:
        assert completed.map.rank == width


@every_fit
def test_every_fit_is_registered_under_its_name_and_is_the_public_function(name: str) -> None:
    method = FITS[name].method
    assert fit.get(method) is getattr(fit, method.replace("-", "_"))


def test_every_registered_fit_is_held_to_the_laws() -> None:
    assert {case.method for case in FITS.values()} == set(fit.names())
