"""The orthogonal factor: laws over every path, shape, precision, condition, scale and rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from interbasin.fit import gram
from interbasin.fit.polar import Polar, polar

PATHS = ("auto", "svd", "gram", "qdwh")
# What the kernel promises, in the Frobenius norm.
PROMISED = {torch.float64: 1e-12, torch.float32: 1e-5}
# Two right answers differ by rounding times the condition; 1e4 is the largest condition compared.
AGREEMENT = {torch.float64: 1e-10, torch.float32: 1e-2}


@dataclass(frozen=True)
class Case:
    """A matrix of known make: ``rank`` singular values falling from one to ``1 / condition``, times ``scale``."""

    rows: int
    columns: int
    rank: int
    condition: float
    scale: float
    dtype: torch.dtype
    seed: int

    @property
    def matrix(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        left = orthonormal(self.rows, self.rank, generator)
        right = orthonormal(self.columns, self.rank, generator)
        sizes = self.condition ** -torch.linspace(0, 1, self.rank, dtype=torch.float64)
        # Scaled last, and in the final dtype, so that nothing underflows on the way.
        return ((left * sizes) @ right.mT).to(self.dtype) * self.scale

    @property
    def full(self) -> bool:
        return self.rank == min(self.rows, self.columns)


def orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.float64)).Q


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    low_rank: bool = True,
    largest_condition: float = 1e16,
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32),
    scales: tuple[float, float] = (-30, 30),
) -> Case:
    rows, columns = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    short = min(rows, columns)
    rank = draw(st.integers(1, short)) if low_rank else short
    exponent = draw(st.sampled_from([e for e in (0, 1, 2, 4, 6, 8, 12, 16) if 10.0**e <= largest_condition]))
    scale = 10.0 ** draw(st.integers(int(scales[0]), int(scales[1])))
    return Case(rows, columns, rank, 10.0**exponent, scale, draw(st.sampled_from(dtypes)), draw(st.integers(0, 999)))


def assert_keeps_the_promise(matrix: Tensor, result: Polar) -> None:
    """Orthogonal along the shorter side, and reproducing the matrix with a symmetric, semi-definite factor."""
    limit = PROMISED[matrix.dtype]
    assert result.factor.shape == matrix.shape
    assert result.factor.dtype == matrix.dtype
    factor, exact = result.factor.double(), matrix.double() / max(float(matrix.abs().max()), 5e-324)
    tall = matrix.shape[-2] >= matrix.shape[-1]
    gram = factor.mT @ factor if tall else factor @ factor.mT
    assert float(torch.linalg.matrix_norm(gram - torch.eye(gram.shape[-1], dtype=gram.dtype)).max()) <= limit

    symmetric = Polar(factor, result.rank, result.path).symmetric(exact)
    rebuilt = factor @ symmetric if tall else symmetric @ factor
    norm = torch.linalg.matrix_norm(exact)
    assert bool((torch.linalg.matrix_norm(rebuilt - exact) <= limit * norm).all())
    assert bool((symmetric == symmetric.mT).all())
    assert bool((torch.linalg.eigvalsh(symmetric)[..., 0] >= -limit * norm).all())


def by_svd(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left @ right


# --- laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@given(case=cases())
def test_the_factor_is_orthogonal_and_rebuilds_the_matrix(path: str, case: Case) -> None:
    matrix = case.matrix
    assert_keeps_the_promise(matrix, polar(matrix, path=path))


@pytest.mark.parametrize("path", PATHS)
@given(case=cases(low_rank=False, largest_condition=1e4, scales=(-3, 3)))
def test_the_factor_is_the_svds_where_the_condition_allows_to_tell(path: str, case: Case) -> None:
    matrix = case.matrix
    difference = polar(matrix, path=path).factor.double() - by_svd(matrix)
    assert float(torch.linalg.matrix_norm(difference)) <= AGREEMENT[case.dtype]


@pytest.mark.parametrize("path", PATHS)
@given(case=cases(low_rank=False, largest_condition=1e4, dtypes=(torch.float64,), scales=(-3, 3)))
def test_both_factors_are_scipys(path: str, case: Case) -> None:
    matrix = case.matrix
    result = polar(matrix, path=path)
    side = "right" if case.rows >= case.columns else "left"
    factor, symmetric = scipy.linalg.polar(matrix.numpy(), side=side)
    torch.testing.assert_close(result.factor, torch.from_numpy(factor), rtol=0, atol=AGREEMENT[torch.float64])
    atol = 1e-12 * case.scale
    torch.testing.assert_close(result.symmetric(matrix), torch.from_numpy(symmetric), rtol=0, atol=atol)


@pytest.mark.parametrize("path", PATHS)
@given(case=cases(low_rank=False, largest_condition=100, dtypes=(torch.float64,), scales=(0, 0)))
def test_rotating_the_matrix_rotates_the_factor(path: str, case: Case) -> None:
    generator = torch.Generator().manual_seed(case.seed + 1)
    left, right = (orthonormal(size, size, generator) for size in (case.rows, case.columns))
    matrix = case.matrix
    turned = polar(left @ matrix @ right, path=path).factor
    torch.testing.assert_close(turned, left @ polar(matrix, path=path).factor @ right, rtol=0, atol=1e-11)


@pytest.mark.parametrize("path", PATHS)
@given(case=cases(scales=(0, 0)))
def test_the_factor_of_a_factor_is_itself(path: str, case: Case) -> None:
    factor = polar(case.matrix, path=path).factor
    torch.testing.assert_close(polar(factor, path=path).factor, factor, rtol=0, atol=PROMISED[case.dtype])


@pytest.mark.parametrize("path", PATHS)
@given(case=cases(largest_condition=10, scales=(-20, 20)))
def test_dropping_leaves_a_partial_isometry_of_the_planted_rank(path: str, case: Case) -> None:
    matrix = case.matrix
    # Products of a few small matrices carry a few roundings, which the default tolerance of a 1 x 1 does not cover.
    tolerance = 100 * torch.finfo(case.dtype).eps
    dropped = polar(matrix, path=path, unobserved="drop", rank_tolerance=tolerance)
    complete = polar(matrix, path=path, rank_tolerance=tolerance)
    assert dropped.rank == complete.rank == case.rank
    assert isinstance(dropped.rank, int)
    sizes = torch.linalg.svdvals(dropped.factor.double())
    planted = (torch.arange(len(sizes)) < case.rank).double()
    torch.testing.assert_close(sizes, planted, rtol=0, atol=PROMISED[case.dtype])
    # On what was observed the two agree: the matrix's own row space.
    row_space = torch.linalg.svd(matrix.double() / case.scale, full_matrices=False).Vh[: case.rank].mT
    difference = (dropped.factor.double() - complete.factor.double()) @ row_space
    assert float(torch.linalg.matrix_norm(difference)) <= 10 * PROMISED[case.dtype]


@pytest.mark.parametrize("path", PATHS)
@given(case=cases(largest_condition=100, scales=(0, 0)), exponent=st.integers(-90, 90))
def test_scaling_the_matrix_does_not_move_the_factor(path: str, case: Case, exponent: int) -> None:
    matrix = case.matrix
    scaled, plain = polar(matrix * 2.0**exponent, path=path), polar(matrix, path=path)
    if case.full:
        torch.testing.assert_close(scaled.factor, plain.factor, rtol=0, atol=100 * PROMISED[case.dtype])
    assert_keeps_the_promise(matrix, scaled)


@pytest.mark.parametrize("path", PATHS)
@given(case=cases().filter(lambda case: case.rows != case.columns))
def test_a_tall_matrix_is_a_wide_one_transposed(path: str, case: Case) -> None:
    upright, lying = polar(case.matrix, path=path), polar(case.matrix.mT, path=path)
    assert upright.rank == lying.rank
    torch.testing.assert_close(upright.factor, lying.factor.mT, rtol=0, atol=0)


@pytest.mark.parametrize("path", PATHS)
@given(batch=st.lists(st.integers(0, 99), min_size=1, max_size=4), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_a_batch_is_a_loop(path: str, batch: list[int], rows: int, columns: int) -> None:
    matrices = torch.stack([gaussian(rows, columns, seed=seed) * 10.0 ** (seed - 50) for seed in batch])
    whole = polar(matrices, path=path)
    assert isinstance(whole.rank, Tensor)
    assert whole.rank.shape == (len(batch),)
    for matrix, factor, rank in zip(matrices, whole.factor, whole.rank, strict=True):
        single = polar(matrix, path=path)
        torch.testing.assert_close(factor, single.factor, rtol=0, atol=AGREEMENT[torch.float64])
        assert int(rank) == single.rank


@pytest.mark.parametrize("path", PATHS)
@given(case=cases())
def test_the_same_question_gets_the_same_answer_and_the_matrix_is_left_alone(path: str, case: Case) -> None:
    matrix = case.matrix
    before = matrix.clone()
    first, second = polar(matrix, path=path), polar(matrix, path=path)
    assert torch.equal(first.factor, second.factor)
    assert torch.equal(matrix, before)


# --- sizes at which the automatic choice takes its other branches ------------------------------------------------


def spectrum(rows: int, columns: int, sizes: Tensor, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    left, right = (orthonormal(size, len(sizes), generator) for size in (rows, columns))
    return ((left * sizes) @ right.mT).to(dtype)


def falling(count: int, condition: float) -> Tensor:
    return condition ** -torch.linspace(0, 1, count, dtype=torch.float64)


def power_law(count: int, condition: float) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.float64) ** (-math.log(condition) / math.log(count))


SPECTRA = {
    "flat": torch.ones(300, dtype=torch.float64),
    "falling to 1e-4": falling(300, 1e4),
    "falling to 1e-6": falling(300, 1e6),
    "power law to 1e-6": power_law(300, 1e6),
    "power law to 5e-7": power_law(300, 2e6),
    "power law to 3e-7": power_law(300, 3.5e6),
    "power law to 1e-7": power_law(300, 1e7),
    "falling to 3e-7": falling(300, 3.5e6),
    "falling to 1e-10": falling(300, 1e10),
    "falling to 1e-16": falling(300, 1e16),
    "a spike": torch.cat([torch.tensor([1e9], dtype=torch.float64), falling(299, 10)]),
    "one tiny": torch.cat([falling(299, 10), torch.tensor([1e-11], dtype=torch.float64)]),
    "one missing": falling(299, 10),
    "a quarter": falling(75, 10),
    "a few": falling(3, 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", SPECTRA)
def test_every_spectrum_is_solved_by_every_path_at_a_working_size(name: str, dtype: torch.dtype, path: str) -> None:
    columns = 300 if name in ("flat", "power law to 1e-6", "one missing") else 340
    matrix = spectrum(300, columns, SPECTRA[name], dtype)
    result = polar(matrix, path=path)
    assert_keeps_the_promise(matrix, result)
    if dtype == torch.float64 and name in ("one missing", "a quarter", "a few"):
        assert result.rank == len(SPECTRA[name])
        dropped = polar(matrix, path=path, unobserved="drop")
        assert dropped.rank == result.rank
        sizes = torch.linalg.svdvals(dropped.factor)
        torch.testing.assert_close(sizes, (torch.arange(300) < result.rank).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name, sizes in SPECTRA.items() if len(sizes) == 300])
def test_each_direction_is_right_to_rounding_over_its_own_size(name: str, path: str) -> None:
    sizes = SPECTRA[name]
    generator = torch.Generator().manual_seed(0)
    left, right = orthonormal(300, 300, generator), orthonormal(310, 300, generator)
    matrix = (left * sizes) @ right.mT
    error = (polar(matrix, path=path).factor @ right - left) * sizes
    assert float(torch.linalg.matrix_norm(error) / torch.linalg.vector_norm(sizes)) <= 2e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("rank", [40, 140, 560])
def test_wide_matrices_of_any_rank_keep_the_promise_beyond_the_blocked_width(rank: int, dtype: torch.dtype) -> None:
    matrix = spectrum(560, 600, falling(rank, 100), dtype)
    result = polar(matrix)
    assert_keeps_the_promise(matrix, result)
    assert result.rank == rank


@pytest.mark.parametrize(
    ("matrix", "path"),
    [
        (gaussian(40, 40), "svd"),
        (gaussian(200, 300), "gram"),
        (gaussian(300, 200), "gram"),
        (spectrum(200, 300, falling(200, 1e6), torch.float64), "gram"),
        (spectrum(200, 300, power_law(200, 1e12), torch.float64), "svd"),
        (gaussian(300, 600, dtype=torch.float32), "gram"),
        (gaussian(100, 100, dtype=torch.float32), "svd"),
        (torch.zeros(200, 200), "svd"),
    ],
    ids=["small", "wide", "tall", "steep", "too steep", "single", "single and small", "zero"],
)
def test_the_path_on_this_processor_follows_from_shape_and_condition(matrix: Tensor, path: str) -> None:
    assert polar(matrix).path == path


def test_each_matrix_of_a_batch_takes_its_own_path() -> None:
    easy, steep = gaussian(200, 200), spectrum(200, 200, power_law(200, 1e14), torch.float64)
    matrices = torch.stack([easy, steep, easy.mT, torch.zeros_like(easy)]).reshape(2, 2, 200, 200)
    result = polar(matrices)
    assert result.path == "gram+svd"
    assert isinstance(result.rank, Tensor)
    assert result.rank.shape == (2, 2)
    assert int(result.rank[1, 1]) == 0
    assert_keeps_the_promise(matrices, result)


def test_a_tolerance_above_the_smallest_values_lowers_the_rank_on_every_path() -> None:
    matrix = spectrum(130, 130, torch.cat([torch.ones(100), torch.full((30,), 1e-3)]).double(), torch.float64)
    for path in PATHS:
        result = polar(matrix, path=path, rank_tolerance=1e-2)
        assert result.rank == 100
        assert_keeps_the_promise(matrix, result)
        dropped = polar(matrix, path=path, rank_tolerance=1e-2, unobserved="drop")
        assert dropped.rank == 100
        assert float(dropped.factor.square().sum()) == pytest.approx(100)


# --- the corrections of the gram path and of the iteration, on errors larger than they meet in use -----------------


# Each step squares what is missing in orthogonality, and takes one more power of the departure off the rotation.
@pytest.mark.parametrize(
    ("departure", "rotation"), [(1e-8, 1e-13), (1e-6, 1e-13), (1e-4, 1e-13), (1e-3, 1e-11), (4e-2, 1e-9)]
)
def test_rows_that_are_nearly_orthogonal_are_repaired_to_their_exact_factor(departure: float, rotation: float) -> None:
    generator = torch.Generator().manual_seed(0)
    lean = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    lean *= departure / torch.linalg.matrix_norm(lean) / 2
    sizes = falling(40, 30)
    rows = sizes[:, None] * ((torch.eye(40, dtype=torch.float64) + lean) @ orthonormal(60, 40, generator).mT)
    mixing, found = gram._repair(rows)
    assert mixing is not None
    torch.testing.assert_close(found, torch.linalg.vector_norm(rows, dim=1))
    repaired = (torch.eye(40, dtype=torch.float64) + mixing) @ (rows / found[:, None])
    torch.testing.assert_close(repaired @ repaired.mT, torch.eye(40, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(repaired, by_svd(rows), rtol=0, atol=rotation)


def test_rows_that_are_far_from_orthogonal_are_handed_back() -> None:
    assert gram._repair(gaussian(20, 30))[0] is None


@pytest.mark.parametrize("off", [0, 1e-4, 1e-2])
def test_an_inverse_root_from_poor_eigenvalues_is_corrected_to_single_precision(off: float) -> None:
    matrix = gaussian(50, 80)
    levels, basis = torch.linalg.eigh(matrix @ matrix.mT)
    levels[3] *= 1 + off
    found = gram._inverse_root(matrix, basis, levels)
    assert found is not None
    assert_keeps_the_promise(matrix.float(), Polar(found.float(), 50, "gram"))


def test_an_inverse_root_from_wrong_eigenvalues_is_handed_back() -> None:
    matrix = gaussian(50, 80)
    levels, basis = torch.linalg.eigh(matrix @ matrix.mT)
    assert gram._inverse_root(matrix, basis, 2 * levels) is None


def test_the_iteration_keeps_one_direction_among_many_that_are_rounding() -> None:
    matrix = (gaussian(520, 520) + 1e9).float()
    assert_keeps_the_promise(matrix, polar(matrix, path="qdwh"))


# --- edges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 7), (7, 3), (2, 3, 5)])
def test_nothing_at_all_is_completed_or_dropped(shape: tuple[int, ...], path: str) -> None:
    matrix = torch.zeros(shape, dtype=torch.float64)
    complete = polar(matrix, path=path)
    assert_keeps_the_promise(matrix, complete)
    dropped = polar(matrix, path=path, unobserved="drop")
    assert torch.equal(dropped.factor, matrix)
    assert int(torch.as_tensor(dropped.rank).sum()) == int(torch.as_tensor(complete.rank).sum()) == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_null_space_that_meets_no_diagonal_is_completed(path: str) -> None:
    shift = torch.diag(torch.ones(8, dtype=torch.float64), 1)
    result = polar(shift, path=path)
    assert result.rank == 8
    assert_keeps_the_promise(shift, result)
    torch.testing.assert_close(result.factor[:8, 1:], torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_rows_of_wildly_different_scale_are_no_obstacle(path: str) -> None:
    for seed in range(20):
        rows = 2 + seed
        matrix = (
            gaussian(rows, rows + seed % 3, seed=seed) * torch.logspace(-12, 12, rows, dtype=torch.float64)[:, None]
        )
        assert_keeps_the_promise(matrix, polar(matrix, path=path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e-310), (torch.float32, 1e-41), (torch.float64, 1e307)])
def test_the_ends_of_the_number_range_are_usable(dtype: torch.dtype, scale: float, path: str) -> None:
    matrix = gaussian(6, 9).clamp(-2, 2).to(dtype) * scale
    result = polar(matrix, path=path)
    expected = by_svd(matrix.double() / scale)
    torch.testing.assert_close(result.factor.double(), expected, rtol=0, atol=100 * PROMISED[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_rounded_single_precision_answer(dtype: torch.dtype) -> None:
    matrix = gaussian(2, 5, 8).to(dtype)
    result = polar(matrix)
    assert result.factor.dtype == dtype
    assert torch.equal(result.factor, polar(matrix.float()).factor.to(dtype))


def test_no_gradient_is_carried() -> None:
    assert not polar(gaussian(3, 3).requires_grad_()).factor.requires_grad


def test_an_svd_that_does_not_converge_gives_way_to_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError

    monkeypatch.setattr(torch.linalg, "svd", fail)
    matrix = gaussian(5, 7)
    assert_keeps_the_promise(matrix, polar(matrix, path="svd"))


def test_an_eigendecomposition_that_does_not_converge_gives_way_to_the_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    matrix = gaussian(5, 7)
    result = polar(matrix, path="gram")
    assert result.path == "svd"
    assert_keeps_the_promise(matrix, result)


@pytest.mark.parametrize("path", ["auto", "svd", "gram"])
def test_with_no_tolerance_every_direction_that_is_not_exactly_nothing_counts(path: str) -> None:
    matrix = spectrum(300, 340, falling(60, 10), torch.float64)
    assert polar(matrix, path=path, rank_tolerance=0.0).rank == 300
