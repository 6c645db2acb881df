"""Generated data: solvers are held to exact solutions, to what must be conserved, and to their order of convergence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from interbasin.datasets.equations import EQUATIONS, generate
from interbasin.datasets.equations.on_a_square import (
    fitzhugh_nagumo,
    solve_darcy,
    solve_reactions,
    solve_shallow_water,
)
from interbasin.datasets.equations.on_an_interval import (
    solve_advection,
    solve_burgers,
    solve_diffusion_sorption,
    solve_navier_stokes,
    solve_reaction_diffusion,
)
from interbasin.datasets.equations.random_fields import Array, gaussian_fields, midpoints, sums_of_waves
from interbasin.errors import DataError, UnknownNameError

pytestmark = pytest.mark.slow


def orders(errors: Sequence[float]) -> list[float]:
    """By which power of the step errors fall, from one to the next with half the step."""
    return [math.log2(before / after) for before, after in itertools.pairwise(errors)]


def largest(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("points", [63, 64])
def test_advection_moves_waves_to_round_off(points: int) -> None:
    x = midpoints(points)
    found = solve_advection(np.sin(2 * math.pi * (3 * x) + 0.3)[None], 0.4, 2.0)
    assert largest(found, np.sin(2 * math.pi * 3 * (x - 0.8) + 0.3)[None]) < 1e-13


def test_advection_there_and_back_is_where_it_began() -> None:
    initial = sums_of_waves(5, 65, np.random.default_rng(0))
    assert largest(solve_advection(solve_advection(initial, 0.7, 1.3), -0.7, 1.3), initial) < 1e-12


def test_advection_of_a_smooth_function_converges_faster_than_any_power() -> None:
    def error(points: int) -> float:
        x = midpoints(points)
        moved = solve_advection(np.exp(np.sin(2 * math.pi * x))[None], 0.4, 0.3)
        return largest(moved, np.exp(np.sin(2 * math.pi * (x - 0.12)))[None])

    errors = [error(points) for points in (6, 12, 24)]
    assert errors[-1] < 1e-12 and orders(errors)[0] > 6 and orders(errors)[1] > orders(errors)[0]


def cole_hopf(x: Array, time: float, diffusion: float) -> Array:
    """Burgers' solution that begins with sin(2 pi x): a logarithmic derivative of one of the heat equation."""
    size = 2048
    begin = np.exp((np.cos(2 * math.pi * np.arange(size) / size) - 1) / (4 * math.pi * diffusion))
    numbers = 2 * math.pi * np.fft.fftfreq(size, 1 / size)
    waves = np.fft.fft(begin) * np.exp(-diffusion * numbers**2 * time) / size
    phases = np.exp(1j * numbers * x[:, None])
    return np.asarray(-2 * diffusion * (phases @ (1j * numbers * waves)).real / (phases @ waves).real)


def test_burgers_converges_to_cole_and_hopf_with_order_4() -> None:
    x = midpoints(128)
    expected = cole_hopf(x, 0.5, 0.1 / math.pi)[None]
    initial = np.sin(2 * math.pi * x)[None]
    errors = [largest(solve_burgers(initial, 0.1, 0.5, steps), expected) for steps in (25, 50, 100)]
    assert errors[-1] < 2e-8 and min(orders(errors)) > 3.5


def test_growth_and_diffusion_alone_are_exact_and_together_of_order_2() -> None:
    x = midpoints(64)
    level = np.array([[0.2], [0.9]]) * np.ones((2, 64))
    grown = level * math.exp(1.5) / (1 + level * (math.exp(1.5) - 1))
    assert largest(solve_reaction_diffusion(level, 0.3, 1.5, 1.0, 7), grown) < 1e-12
    wave = 0.5 + 0.2 * np.sin(2 * math.pi * 2 * x)[None]
    spread = 0.5 + 0.2 * math.exp(-0.05 * (4 * math.pi) ** 2 * 0.3) * np.sin(2 * math.pi * 2 * x)[None]
    assert largest(solve_reaction_diffusion(wave, 0.05, 0.0, 0.3, 3), spread) < 1e-12
    exact = solve_reaction_diffusion(wave, 0.02, 2.0, 1.0, 2000)
    errors = [largest(solve_reaction_diffusion(wave, 0.02, 2.0, 1.0, steps), exact) for steps in (5, 10, 20)]
    assert min(orders(errors)) > 1.8


def test_growth_and_diffusion_together_are_exact_near_the_state_that_is_full() -> None:
    # u = 1 - e w obeys w_t = D w_xx - growth w, up to e: a wave decays by both.
    x, small, time = midpoints(64), 1e-6, 0.3
    wave = np.sin(2 * math.pi * 2 * x)[None]
    found = (1 - solve_reaction_diffusion(1 - small * wave, 0.02, 1.5, time, 40)) / small
    assert largest(found, math.exp(-(0.02 * (4 * math.pi) ** 2 + 1.5) * time) * wave) < 1e-5


def test_sorption_holds_a_steady_state_and_converges() -> None:
    def steady(points: int) -> Array:  # 1 on the left, and minus diffusion times its slope on the right
        return (1 - midpoints(points) / (5e-4 + 1))[None]

    assert largest(solve_diffusion_sorption(steady(32), 5e-4, 20.0, 200), steady(32)) < 1e-13

    def found(points: int) -> Array:
        values = solve_diffusion_sorption(np.full((1, points), 0.1), 5e-4, 30.0, 2500)
        return np.asarray(values.reshape(1, 16, -1).mean(-1))

    exact = found(256)
    errors = [largest(found(points), exact) for points in (16, 32, 64)]
    assert min(orders(errors)) > 1.5
    with pytest.raises(ValueError, match="take"):
        solve_diffusion_sorption(np.full((1, 64), 0.1), 5e-4, 100.0, 20)


def test_sorption_without_grains_is_the_heat_equation() -> None:
    # A mode of u_t = D u_xx about the steady state: sin(k x) with sin(k) = -D k cos(k).
    diffusion = 0.05
    low, high = math.pi / 2, math.pi
    for _ in range(80):
        k = (low + high) / 2
        low, high = (k, high) if math.sin(k) + diffusion * k * math.cos(k) > 0 else (low, k)
    time = 0.7

    def error(points: int) -> float:
        x = midpoints(points)
        steady = 1 - x / (diffusion + 1)
        start, end = ((steady + factor * np.sin(k * x))[None] for factor in (1, math.exp(-diffusion * k * k * time)))
        return largest(solve_diffusion_sorption(start, diffusion, time, 6000, lambda u: np.ones_like(u)), end)

    errors = [error(points) for points in (32, 64, 128)]
    assert errors[-1] < 2e-4 and min(orders(errors)) > 1.8


def gas(points: int, steps: int) -> tuple[Array, Array, Array]:
    x = midpoints(points)
    density, pressure = 1 + 0.2 * np.sin(2 * math.pi * x)[None], 1 + 0.1 * np.sin(4 * math.pi * x)[None]
    return solve_navier_stokes(density, 0.1 * np.cos(2 * math.pi * x)[None], pressure, 0.01, 0.2, steps)


def test_a_gas_keeps_mass_momentum_and_energy_and_converges() -> None:
    x = midpoints(64)
    density, velocity, pressure = gas(64, 600)
    before = 1 + 0.2 * np.sin(2 * math.pi * x), 0.1 * np.cos(2 * math.pi * x), 1 + 0.1 * np.sin(4 * math.pi * x)

    def totals(density: Array, velocity: Array, pressure: Array) -> list[float]:
        return [
            float(each.mean()) for each in (density, density * velocity, 1.5 * pressure + density * velocity**2 / 2)
        ]

    assert totals(density, velocity, pressure) == pytest.approx(totals(*before), abs=1e-12)
    exact = gas(256, 3000)[0].reshape(32, -1).mean(-1)
    errors = [largest(gas(points, 600)[0].reshape(32, -1).mean(-1), exact) for points in (32, 64)]
    assert min(orders(errors)) > 1.3
    with pytest.raises(ValueError, match="take"):
        gas(64, 10)


def test_a_gas_of_one_speed_and_pressure_carries_its_density_along() -> None:
    def error(points: int) -> float:
        x = midpoints(points)
        start, end = ((1 + 0.2 * np.sin(2 * math.pi * (x - moved)))[None] for moved in (0.0, 0.25))
        same = np.ones_like(start)
        density, velocity, pressure = solve_navier_stokes(start, 0.5 * same, same, 0.001, 0.5, 6 * points)
        assert largest(velocity, 0.5 * same) < 1e-12 and largest(pressure, same) < 1e-12
        return float(np.abs(density - end).mean())

    errors = [error(points) for points in (32, 64, 128)]  # with fewer points a limiter flattens the tops too much
    assert errors[-1] < 5e-4 and min(orders(errors)) > 1.8


def test_sound_in_a_gas_swings_and_fades_as_friction_has_it() -> None:
    # Of low sound v = e a(t) sin(k x) remains a'' + f k^2 a' + c^2 k^2 a = 0, with f the friction and c^2 = 5/3.
    k, viscosity, time, small = 2 * math.pi, 0.03, 0.4, 1e-5
    fade = 7 / 3 * viscosity * k**2 / 2
    omega = math.sqrt(5 / 3 * k**2 - fade**2)
    expected = math.exp(-fade * time) * (math.cos(omega * time) - fade / omega * math.sin(omega * time))

    def error(points: int) -> float:
        wave = np.sin(k * midpoints(points))[None]
        same = np.ones_like(wave)
        _, velocity, _ = solve_navier_stokes(same, small * wave, same, viscosity, time, 2 * points**2 // 3)
        return float(np.abs(velocity / small - expected * wave).mean())

    errors = [error(points) for points in (16, 32, 64)]
    assert errors[-1] < 5e-3 and min(orders(errors)) > 1.5


def test_darcy_converges_to_a_manufactured_solution_with_order_2() -> None:
    def error(points: int) -> float:
        x = math.pi * midpoints(points)
        sine, cosine, other = np.sin(x)[:, None], np.cos(x)[:, None], np.sin(x)
        conductivity = 1 + 0.5 * cosine + 0 * other
        source = math.pi**2 * (0.5 * sine * cosine + 2 * conductivity * sine) * other
        return largest(solve_darcy(conductivity[None], source[None]), (sine * other)[None])

    errors = [error(points) for points in (8, 16, 32)]
    assert errors[-1] < 1e-3 and min(orders(errors)) > 1.9


def test_reactions_on_a_square_without_them_are_diffusion_and_with_them_of_order_2() -> None:
    x = midpoints(16)
    mode = np.cos(math.pi * 2 * x)[:, None] * np.cos(math.pi * x)
    found = solve_reactions(mode[None, None], (0.1,), np.zeros_like, 0.5, 3, side=1.0)
    assert largest(found, math.exp(-0.1 * 5 * math.pi**2 * 0.5) * mode[None, None]) < 1e-12
    initial = 0.3 * gaussian_fields(2, 16, np.random.default_rng(0))[None]
    exact = solve_reactions(initial, (1e-3, 5e-3), fitzhugh_nagumo, 2.0, 800)
    errors = [
        largest(solve_reactions(initial, (1e-3, 5e-3), fitzhugh_nagumo, 2.0, steps), exact) for steps in (8, 16, 32)
    ]
    assert min(orders(errors)) > 1.7


def test_reactions_of_even_fields_are_those_of_a_point() -> None:
    start = np.array([0.4, -0.2])
    solution = solve_ivp(
        lambda _, u: [u[0] - u[0] ** 3 - 5e-3 - u[1], u[0] - u[1]], (0, 3), start, rtol=1e-12, atol=1e-12
    )
    even = np.ones((1, 2, 4, 4)) * start[:, None, None]
    expected = np.ones((1, 2, 4, 4)) * solution.y[:, -1, None, None]
    errors = [
        largest(solve_reactions(even, (1e-3, 5e-3), fitzhugh_nagumo, 3.0, steps), expected) for steps in (6, 12, 24)
    ]
    assert errors[-1] < 1e-5 and min(orders(errors)) > 3.5


def test_a_low_wave_of_water_converges_with_order_2() -> None:
    # Between two walls it swings as cos(omega t), with omega = k sqrt(g h).
    def error(points: int) -> float:
        shape = np.cos(math.pi * midpoints(points))[None, None, :] * np.ones((1, points, 1))
        later = solve_shallow_water(1 + 1e-6 * shape, 1.5, 4 * points)[0]
        return float(np.abs((later - 1) / 1e-6 - math.cos(math.pi / 5 * 1.5) * shape).mean())

    errors = [error(points) for points in (12, 24, 48)]
    assert errors[-1] < 2e-3 and min(orders(errors)) > 1.6


def test_water_keeps_its_mass_and_its_symmetry_and_a_wave_travels_as_fast_as_it_should() -> None:
    x = 5 * midpoints(48) - 2.5
    drop = (1 + 0.3 * np.exp(-2 * (x[:, None] ** 2 + x**2)))[None]
    height, right, down = solve_shallow_water(drop, 1.0, 80)
    assert float(height.mean()) == pytest.approx(float(drop.mean()), abs=1e-13)
    np.testing.assert_allclose(height, height[:, ::-1], atol=1e-13)
    np.testing.assert_allclose(height, height.swapaxes(-1, -2), atol=1e-13)
    np.testing.assert_allclose(right, down.swapaxes(-1, -2), atol=1e-13)
    still = np.full((1, 8, 8), 1.3)
    np.testing.assert_array_equal(solve_shallow_water(still, 1.0, 20)[0], still)
    # A long low wave between two walls swings as cos(omega t), with omega = k sqrt(g h).
    wave = 1 + 1e-4 * np.cos(math.pi * (x + 2.5) / 5)[None, None, :] * np.ones((1, 48, 1))
    later = solve_shallow_water(wave, 2.5, 200)[0]
    np.testing.assert_allclose((later - 1) / 1e-4, math.cos(math.pi / 2) * (wave - 1) / 1e-4, atol=2e-2)
    with pytest.raises(ValueError, match="take"):
        solve_shallow_water(drop, 1.0, 2)


@pytest.mark.parametrize("name", EQUATIONS)
def test_every_equation_gives_finite_fields_that_a_seed_decides(name: str) -> None:
    equation, few = EQUATIONS[name], 12 if EQUATIONS[name].axes == 2 else 24
    inputs, targets = generate(name, 3, points=few, seed=1)
    assert inputs.dtype == targets.dtype == np.float32
    assert inputs.shape[2:] == targets.shape[2:] == (few,) * equation.axes and len(inputs) == len(targets) == 3
    assert np.isfinite(targets).all() and targets.std() > 0
    again, other = (generate(name, 3, points=few, seed=seed)[0] for seed in (1, 2))
    np.testing.assert_array_equal(inputs, again)
    assert not np.array_equal(inputs, other)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: generate("burger", 2), UnknownNameError, "burgers"),
        (lambda: generate("burgers", 0), DataError, "count"),
        (lambda: generate("burgers", 2, points=2), DataError, "points"),
        (lambda: generate("burgers", 2, viscosty=1.0), UnknownNameError, "viscosity"),
        (lambda: generate("burgers", 2, viscosity=math.nan), DataError, "viscosity"),
        (lambda: generate("burgers", 2, seed=-1), DataError, "seed"),
        (lambda: generate("burgers", 2, stream=-1), DataError, "stream"),
    ],
)
def test_what_cannot_be_generated_is_refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
