"""Data that are made: fields that begin at random, and what an equation makes of them.

The equations and their numbers are those of PDEBench [takamoto:22]; the solvers are our own, written from the equations
(``on_an_interval``, ``on_a_square``), and tested on exact solutions. A sample is what one is given, a field with
channels, and what is to be predicted, a field at the same points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from interbasin.checks import require_choice, require_whole
from interbasin.datasets.equations import on_a_square, on_an_interval
from interbasin.datasets.equations.random_fields import Array, gaussian_fields, midpoints, sums_of_waves
from interbasin.errors import DataError

Fields = tuple[Array, Array]
Progress = Callable[[int], None]  # is told how many samples are solved
Solve = Callable[..., tuple[Array, ...]]  # what a solver makes of fields of all samples, some samples at a time

MOST_STEPS = 200_000  # in time: some minutes for each block of samples
MOST_TURNS = 1e9  # around the interval: what is left of more is rounding
BLOCK = 5120  # numbers of a field that advance together: more do not stay in the cache, and take up to twice as long


@dataclass(frozen=True)
class Equation:
    """A family of samples.

    Attributes:
        about: The equation, in one line.
        points: Along each axis, unless others are asked for.
        axes: Of space.
        generate: The samples, given their number, the points, a generator, what runs a solver, and the numbers of the
            equation.
        numbers: What ``generate`` takes besides, with what is usual.
    """

    about: str
    points: int
    axes: int
    generate: Callable[..., Fields]
    numbers: dict[str, float]


def generate(
    name: str,
    count: int,
    *,
    points: int | None = None,
    seed: int = 0,
    stream: int = 0,
    progress: Progress | None = None,
    **numbers: float,
) -> Fields:
    """Samples of an equation: fields ``(count, channels, points[, points])`` and what becomes of them, in float32.

    Args:
        name: One of `EQUATIONS`.
        count: How many samples.
        points: Along each axis.
        seed: The same seed gives the same samples.
        stream: Another stream of the same seed gives other samples, for a test beside the training.
        progress: Is called with the number of samples that are done.
        numbers: Of the equation: ``speed=1.0``.

    Raises:
        UnknownNameError, DataError: if there is no such equation, or it has no such number.
        DataError: if its numbers ask for too many steps, or for fields that are not finite.

    Example:
        >>> inputs, targets = generate("advection", 3, points=32)
        >>> inputs.shape, targets.shape
        ((3, 1, 32), (3, 1, 32))
    """
    equation = EQUATIONS[require_choice("equation", name, tuple(EQUATIONS))]
    count = require_whole("count", count, least=1)
    start = [require_whole("seed", seed, least=0), require_whole("stream", stream, least=0)]
    generator = np.random.default_rng(start if stream else start[0])
    size = require_whole("points", equation.points if points is None else points, least=8)
    for number, value in numbers.items():
        require_choice(f"number of {name}", number, tuple(equation.numbers))
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise DataError(f"{number} of {name} is a number from 0 on, found {value!r}.")
    settings = {**equation.numbers, **numbers}
    with np.errstate(all="ignore"):  # what is not finite is refused below
        try:
            inputs, targets = equation.generate(count, size, generator, _in_blocks(progress), **settings)
        except ArithmeticError as error:
            raise _not_finite(name, settings) from error
        single: Fields = inputs.astype(np.float32), targets.astype(np.float32)
    if not all(np.isfinite(fields).all() for fields in single):
        raise _not_finite(name, settings)
    return single


def _not_finite(name: str, numbers: dict[str, float]) -> DataError:
    given = ", ".join(f"{number} {value:g}" for number, value in numbers.items())
    usual = ", ".join(f"{number} {value:g}" for number, value in EQUATIONS[name].numbers.items())
    return DataError(
        f"The fields of {name} are not finite with {given}; take numbers that are nearer to the usual ones ({usual})."
    )


def _in_blocks(progress: Progress | None) -> Solve:
    def solve(solver: Callable[..., Array | tuple[Array, ...]], *fields: Array) -> tuple[Array, ...]:
        count, size = len(fields[0]), max(1, BLOCK // fields[0][0].size)
        parts: list[tuple[Array, ...]] = []
        for first in range(0, count, size):
            part = solver(*(field[first : first + size] for field in fields))
            parts.append(part if isinstance(part, tuple) else (part,))
            if progress is not None:
                progress(min(first + size, count))
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    return solve


def _steps(time: float, allowed: float, least: int) -> int:
    """So many steps that none is longer than ``allowed``.

    Raises:
        DataError: if there are too many to wait for.
    """
    steps = time / allowed
    if steps > MOST_STEPS:
        raise DataError(
            f"The equation would take {steps:.3g} steps until time {time:g}, and at most {MOST_STEPS:,} are taken; "
            "give a smaller time, fewer points, or other numbers that are nearer to the usual ones."
        )
    return max(least, math.ceil(steps))


def _advection(
    count: int, points: int, generator: np.random.Generator, solve: Solve, speed: float, time: float
) -> Fields:
    if speed * time > MOST_TURNS:
        raise DataError(
            f"Fields would go round the interval {speed * time:.3g} times, and where they are after more than "
            f"{MOST_TURNS:g} is rounding; give a smaller speed or time."
        )
    initial = sums_of_waves(count, points, generator)
    (later,) = solve(lambda field: on_an_interval.solve_advection(field, speed, time), initial)
    return initial[:, None], later[:, None]


def _burgers(
    count: int, points: int, generator: np.random.Generator, solve: Solve, viscosity: float, time: float
) -> Fields:
    initial = sums_of_waves(count, points, generator)
    steps = _steps(time, 0.25 / points, 100)
    (later,) = solve(lambda field: on_an_interval.solve_burgers(field, viscosity, time, steps), initial)
    return initial[:, None], later[:, None]


def _reaction_diffusion(
    count: int, points: int, generator: np.random.Generator, solve: Solve, diffusion: float, growth: float, time: float
) -> Fields:
    initial = np.abs(sums_of_waves(count, points, generator, odd=False))
    initial /= initial.max(axis=-1, keepdims=True)
    (later,) = solve(lambda u: on_an_interval.solve_reaction_diffusion(u, diffusion, growth, time, 200), initial)
    return initial[:, None], later[:, None]


def _diffusion_sorption(
    count: int, points: int, generator: np.random.Generator, solve: Solve, diffusion: float, time: float
) -> Fields:
    # PDEBench begins with one random number for the whole interval; waves on it give a network more to look at.
    level = generator.uniform(0, 0.2, (count, 1))
    initial = level * (1 + 0.5 * sums_of_waves(count, points, generator, odd=False) / 2)
    steps = _steps(time, 0.4 / points**2 / diffusion if diffusion else math.inf, 100)
    (later,) = solve(lambda field: on_an_interval.solve_diffusion_sorption(field, diffusion, time, steps), initial)
    return initial[:, None], later[:, None]


def _navier_stokes(
    count: int, points: int, generator: np.random.Generator, solve: Solve, viscosity: float, time: float
) -> Fields:
    density = 1 + 0.2 * sums_of_waves(count, points, generator, odd=False) / 2
    velocity = 0.5 * sums_of_waves(count, points, generator, odd=False) / 2
    pressure = 1 + 0.2 * sums_of_waves(count, points, generator, odd=False) / 2
    fastest, friction = 3.0, viscosity * 7 / 3 / 0.7
    steps = _steps(time, 0.9 / (2 * fastest * points + 4 * friction * points**2), 50)
    initial = density, velocity, pressure
    gas = solve(lambda a, b, c: on_an_interval.solve_navier_stokes(a, b, c, viscosity, time, steps), *initial)
    return np.stack(initial, 1), np.stack(gas, 1)


def _darcy(count: int, points: int, generator: np.random.Generator, solve: Solve, source: float) -> Fields:
    conductivity = np.where(gaussian_fields(count, points, generator) > 0, 1.0, 0.1)
    (pressure,) = solve(lambda field: on_a_square.solve_darcy(field, source), conductivity)
    return conductivity[:, None], pressure[:, None]


def _reaction_diffusion_2d(
    count: int, points: int, generator: np.random.Generator, solve: Solve, time: float
) -> Fields:
    initial = generator.standard_normal((count, 2, points, points))
    steps = _steps(time, 0.05, 20)
    reaction = on_a_square.fitzhugh_nagumo
    (later,) = solve(lambda u: on_a_square.solve_reactions(u, (1e-3, 5e-3), reaction, time, steps), initial)
    return initial, later


def _shallow_water(count: int, points: int, generator: np.random.Generator, solve: Solve, time: float) -> Fields:
    places = 5 * midpoints(points) - 2.5
    radius = generator.uniform(0.3, 0.7, (count, 1, 1))
    centre = generator.uniform(-1, 1, (2, count, 1, 1))
    distance = np.hypot(places[:, None] - centre[0], places - centre[1])
    height = np.where(distance < radius, 2.0, 1.0)
    steps = _steps(time, 5 / points / 6, 10)
    later, _, _ = solve(lambda field: on_a_square.solve_shallow_water(field, time, steps), height)
    return height[:, None], later[:, None]


EQUATIONS: dict[str, Equation] = {
    "advection": Equation("u_t + speed u_x = 0, periodic", 128, 1, _advection, {"speed": 0.4, "time": 2.0}),
    "burgers": Equation(
        "u_t + u u_x = viscosity / pi u_xx, periodic", 128, 1, _burgers, {"viscosity": 0.01, "time": 2.0}
    ),
    "reaction-diffusion": Equation(
        "u_t = diffusion u_xx + growth u (1 - u), periodic",
        128,
        1,
        _reaction_diffusion,
        {"diffusion": 0.5, "growth": 1.0, "time": 1.0},
    ),
    "diffusion-sorption": Equation(
        "R(u) u_t = diffusion u_xx, grains take up what is dissolved",
        64,
        1,
        _diffusion_sorption,
        {"diffusion": 5e-4, "time": 500.0},
    ),
    "navier-stokes": Equation(
        "a gas with friction: density, velocity and pressure", 64, 1, _navier_stokes, {"viscosity": 0.01, "time": 1.0}
    ),
    "darcy": Equation("-div(a grad u) = source, zero along the edges", 32, 2, _darcy, {"source": 1.0}),
    "reaction-diffusion-2d": Equation(
        "an activator and an inhibitor (FitzHugh and Nagumo)", 32, 2, _reaction_diffusion_2d, {"time": 5.0}
    ),
    "shallow-water": Equation("a round dam breaks: the height of the water", 32, 2, _shallow_water, {"time": 1.0}),
}

__all__ = ["EQUATIONS", "Equation", "Fields", "generate"]
