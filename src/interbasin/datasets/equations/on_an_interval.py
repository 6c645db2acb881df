"""Solvers of equations in one dimension. All samples advance together; the last axis is space.

Every solver is written from its equation. ``steps`` is the number of steps in time where there are any, so that the
order of convergence can be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from interbasin.datasets.equations.random_fields import Array

# Porosity, density of the grains, and the constants of Freundlich's law, for diffusion with sorption.
POROSITY, GRAIN_DENSITY, FREUNDLICH, EXPONENT = 0.29, 2880.0, 3.5e-4, 0.874
LEAST = 1e-6  # below which a concentration has the sorption of this one: the law has a pole at zero
HEAT_RATIO = 5 / 3  # of a gas of single atoms


def solve_advection(initial: Array, speed: float, time: float) -> Array:
    """Periodic ``u_t + speed u_x = 0`` on the unit interval: the initial values, moved; exact for what waves can show.

    The highest wave of an even number of points has no phase that could be moved, and stays as it is.
    """
    points = initial.shape[-1]
    waves = np.fft.rfft(initial)
    turn = np.exp(-2j * math.pi * np.arange(waves.shape[-1]) * speed * time)
    if points % 2 == 0:
        turn[-1] = turn[-1].real
    return np.fft.irfft(waves * turn, points)


def solve_burgers(initial: Array, viscosity: float, time: float, steps: int) -> Array:
    """Periodic ``u_t + (u**2 / 2)_x = viscosity / pi u_xx`` on the unit interval.

    Waves with an integrating factor for diffusion, Runge-Kutta of order 4 for the rest; of products the highest third
    of the waves is dropped, for it would come back as lower ones.
    """
    points = initial.shape[-1]
    numbers = 2 * math.pi * np.arange(points // 2 + 1)
    kept = 3 * np.arange(points // 2 + 1) < points
    step = time / steps
    half = np.exp(-viscosity / math.pi * numbers**2 * step / 2)

    def rate(waves: np.ndarray) -> np.ndarray:
        values = np.fft.irfft(waves, points)
        return np.asarray(-0.5j * numbers * kept * np.fft.rfft(values * values))

    waves = np.fft.rfft(initial) * kept
    for _ in range(steps):
        first = rate(waves)
        second = rate(half * (waves + step / 2 * first))
        third = rate(half * waves + step / 2 * second)
        fourth = rate(half * (half * waves + step * third))
        waves = half * half * (waves + step / 6 * first) + step / 6 * (2 * half * (second + third) + fourth)
    return np.fft.irfft(waves, points)


def solve_reaction_diffusion(initial: Array, diffusion: float, growth: float, time: float, steps: int) -> Array:
    """Periodic ``u_t = diffusion u_xx + growth u (1 - u)`` on the unit interval, by Strang's splitting.

    Both parts are solved exactly: logistic growth point by point, diffusion wave by wave.
    """
    points = initial.shape[-1]
    numbers = 2 * math.pi * np.arange(points // 2 + 1)
    step = time / steps
    decay = np.exp(-diffusion * numbers**2 * step / 2)
    factor = math.exp(growth * step)
    values = initial
    for _ in range(steps):
        values = np.fft.irfft(np.fft.rfft(values) * decay, points)
        values = values * factor / (1 + values * (factor - 1))
        values = np.fft.irfft(np.fft.rfft(values) * decay, points)
    return values


def freundlich_retardation(values: Array) -> Array:
    """How much slower what is dissolved spreads where grains take it up, by Freundlich's law."""
    held = (1 - POROSITY) / POROSITY * GRAIN_DENSITY * FREUNDLICH * EXPONENT
    return np.asarray(1 + held * np.maximum(values, LEAST) ** (EXPONENT - 1))


def solve_diffusion_sorption(
    initial: Array,
    diffusion: float,
    time: float,
    steps: int,
    retardation: Callable[[Array], Array] = freundlich_retardation,
) -> Array:
    """``R(u) u_t = diffusion u_xx`` with ``u = 1`` on the left and ``u = -diffusion u_x`` on the right.

    PDEBench prints the right end without the minus, with which what is dissolved would flow in by itself, the faster
    the finer the grid. With its small diffusion both say ``u = 0`` nearly.

    Values are those at the middles of cells; differences in space are of order 2, and Runge-Kutta is of order 4.

    Raises:
        ValueError: if there are too few steps for the method to be stable.
    """
    width = 1 / initial.shape[-1]
    step = time / steps
    fastest = 4 * diffusion / width**2 * 1.5  # the cells at the ends count half as much again
    if step * fastest > 2.7:
        least = math.ceil(time * fastest / 2.7)
        raise ValueError(f"{steps} steps are too few for {initial.shape[-1]} points; take {least} at least.")

    def rate(values: Array) -> Array:
        padded = np.empty((*values.shape[:-1], values.shape[-1] + 2))
        padded[..., 1:-1] = values
        padded[..., 0] = 2 - values[..., 0]  # the value at the edge is the mean of both sides
        # At the right edge (inner + outer) / 2 = diffusion (inner - outer) / width.
        slope = diffusion / width
        padded[..., -1] = values[..., -1] * (slope - 0.5) / (slope + 0.5)
        bent = padded[..., 2:] - 2 * values + padded[..., :-2]
        return np.asarray(diffusion / width**2 * bent / retardation(values))

    return runge_kutta(initial, rate, step, steps)


def solve_navier_stokes(
    density: Array, velocity: Array, pressure: Array, viscosity: float, time: float, steps: int
) -> tuple[Array, Array, Array]:
    """The compressible Navier-Stokes equations of a gas on the periodic unit interval.

    Finite volumes with a reconstruction of order 2 and Rusanov's flux; friction by central differences, with bulk and
    shear viscosity alike, and without conduction of heat [takamoto:22]. Mass, momentum and energy are conserved.

    Returns:
        Density, velocity and pressure at the end.

    Raises:
        ValueError: if there are too few steps for the method to be stable.
    """
    width, step = 1 / density.shape[-1], time / steps
    energy = pressure / (HEAT_RATIO - 1) + density * velocity**2 / 2
    fluid = np.stack([density, density * velocity, energy])
    friction = viscosity * (1 + 4 / 3)

    def rate(state: Array) -> Array:
        primitive = np.stack(_primitive(state))
        slopes = limit_slopes(primitive - np.roll(primitive, 1, -1), np.roll(primitive, -1, -1) - primitive)
        left, right = primitive + slopes / 2, np.roll(primitive - slopes / 2, -1, -1)
        flux = _rusanov(left, right)
        speed = primitive[1]
        following = np.roll(speed, -1, -1)
        stress = friction * (following - speed) / width
        flux[1] -= stress
        flux[2] -= stress * (following + speed) / 2
        return np.asarray((np.roll(flux, 1, -1) - flux) / width)

    fastest = np.abs(velocity).max() + math.sqrt(HEAT_RATIO * float((pressure / density).max()))
    allowed = 1 / (2 * fastest / width + 4 * friction / float(density.min()) / width**2)
    if step > allowed:
        raise ValueError(
            f"{steps} steps are too few for {density.shape[-1]} points; take {math.ceil(time / allowed)} at least."
        )
    for _ in range(steps):  # Heun's method as Shu and Osher have it: no new extremes
        first = fluid + step * rate(fluid)
        fluid = (fluid + first + step * rate(first)) / 2
    return _primitive(fluid)


def runge_kutta(state: Array, rate: Callable[[Array], Array], step: float, steps: int) -> Array:
    """The classical method of order 4."""
    for _ in range(steps):
        first = rate(state)
        second = rate(state + step / 2 * first)
        third = rate(state + step / 2 * second)
        fourth = rate(state + step * third)
        state = state + step / 6 * (first + 2 * second + 2 * third + fourth)
    return state


def _primitive(fluid: Array) -> tuple[Array, Array, Array]:
    """Density, velocity and pressure of density, momentum and energy."""
    density, momentum, energy = fluid
    velocity = momentum / density
    return density, velocity, (HEAT_RATIO - 1) * (energy - momentum * velocity / 2)


def _rusanov(left: Array, right: Array) -> Array:
    """The flux between two states, with as much friction as the fastest wave asks for."""
    fluxes, states, fastest = [], [], []
    for density, velocity, pressure in (left, right):
        energy = pressure / (HEAT_RATIO - 1) + density * velocity**2 / 2
        fluxes.append(np.stack([density * velocity, density * velocity**2 + pressure, (energy + pressure) * velocity]))
        states.append(np.stack([density, density * velocity, energy]))
        fastest.append(np.abs(velocity) + np.sqrt(HEAT_RATIO * pressure / density))
    return np.asarray((fluxes[0] + fluxes[1] - np.maximum(*fastest) * (states[1] - states[0])) / 2)


def limit_slopes(before: Array, after: Array) -> Array:
    """Van Leer's mean of two slopes: none where they have opposite signs."""
    product = before * after
    return np.asarray(np.where(product > 0, 2 * product / np.where(product > 0, before + after, 1.0), 0.0))
