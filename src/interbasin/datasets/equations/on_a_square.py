"""Solvers of equations in two dimensions. All samples advance together; the last two axes are space."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.fft import dctn, idctn
from scipy.sparse import csc_array
from scipy.sparse.linalg import spsolve

from interbasin.datasets.equations.on_an_interval import limit_slopes, runge_kutta
from interbasin.datasets.equations.random_fields import Array

GRAVITY = 1.0


def solve_darcy(conductivity: Array, source: Array | float = 1.0) -> Array:
    """``-div(conductivity grad u) = source`` on the unit square, with ``u = 0`` along the edges.

    Finite volumes: what flows between two cells meets both of their resistances, one after the other; at an edge it
    meets half a cell's. One sparse system for each sample.

    Args:
        conductivity: ``(count, points, points)``, positive.
        source: A number, or one for each cell.
    """
    count, points = conductivity.shape[0], conductivity.shape[-1]
    numbers = np.arange(points * points).reshape(points, points)
    pairs = [(numbers[:-1], numbers[1:]), (numbers[:, :-1], numbers[:, 1:])]
    first, second = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    sources = np.broadcast_to(np.asarray(source, dtype=np.float64), conductivity.shape)
    edges = sum(_at_edge(points, axis, end) for axis in (0, 1) for end in (0, -1))
    solutions = np.empty_like(conductivity)
    for sample in range(count):
        flat = conductivity[sample].ravel()
        flow = 2 / (1 / flat[first] + 1 / flat[second])
        diagonal = 2 * flat * edges
        np.add.at(diagonal, first, flow)
        np.add.at(diagonal, second, flow)
        rows = np.concatenate([first, second, numbers.ravel()])
        columns = np.concatenate([second, first, numbers.ravel()])
        matrix = csc_array((np.concatenate([-flow, -flow, diagonal]), (rows, columns)), shape=(points**2, points**2))
        solutions[sample] = spsolve(matrix, sources[sample].ravel() / points**2).reshape(points, points)
    return solutions


def _at_edge(points: int, axis: int, end: int) -> Array:
    edge = np.zeros((points, points))
    edge[(slice(None),) * axis + (end,)] = 1
    return edge.ravel()


def solve_reactions(
    initial: Array,
    diffusions: tuple[float, ...],
    reaction: Callable[[Array], Array],
    time: float,
    steps: int,
    side: float = 2.0,
) -> Array:
    """Several substances that diffuse on a square without flow through its edges, and react; by Strang's splitting.

    Args:
        initial: ``(count, substances, points, points)``.
        diffusions: One for each substance.
        reaction: Rates of all substances from their concentrations, point by point.
        time: When to stop.
        steps: How many steps until then; each solves diffusion exactly and the reaction to order 4.
        side: Of the square.
    """
    frequencies = math.pi / side * np.arange(initial.shape[-1])
    squares = frequencies[:, None] ** 2 + frequencies**2
    step = time / steps
    decay = np.exp(-np.asarray(diffusions)[:, None, None] * squares * step / 2)
    state = initial
    for _ in range(steps):
        state = _diffuse(state, decay)
        state = _diffuse(runge_kutta(state, reaction, step, 1), decay)
    return state


def _diffuse(state: Array, decay: Array) -> Array:
    return np.asarray(idctn(dctn(state, axes=(-2, -1)) * decay, axes=(-2, -1)))


def fitzhugh_nagumo(state: Array, rest: float = 5e-3) -> Array:
    """The rates of an activator and an inhibitor."""
    activator, inhibitor = state[..., 0, :, :], state[..., 1, :, :]
    return np.stack([activator - activator**3 - rest - inhibitor, activator - inhibitor], axis=-3)


def solve_shallow_water(height: Array, time: float, steps: int, side: float = 5.0) -> tuple[Array, Array, Array]:
    """Water that begins at rest on a flat ground within four walls; height and both velocities at the end.

    Finite volumes of order 2 with Rusanov's flux; mass is conserved.

    Args:
        height: ``(count, points, points)``, positive.
        time: When to stop.
        steps: How many steps until then.
        side: Of the square.

    Raises:
        ValueError: if there are too few steps for the method to be stable.
    """
    width, step = side / height.shape[-1], time / steps
    fastest = 2 * math.sqrt(GRAVITY * float(height.max()))  # of what a dam break can reach
    if step * 4 * fastest > 2 * width:
        least = math.ceil(time * 2 * fastest / width)
        raise ValueError(f"{steps} steps are too few for {height.shape[-1]} points; take {least} at least.")
    water = np.stack([height, np.zeros_like(height), np.zeros_like(height)])

    def rate(state: Array) -> Array:
        turned = state.swapaxes(-1, -2)
        return np.asarray(_change(state, 2, width) + _change(turned, 1, width).swapaxes(-1, -2))

    for _ in range(steps):
        first = water + step * rate(water)
        water = (water + first + step * rate(first)) / 2
    return water[0], water[1] / water[0], water[2] / water[0]


def _change(water: Array, along: int, width: float) -> Array:
    """The change by what flows along the last axis; ``along`` is the component of the momentum that goes there."""
    # Behind a wall there are two cells as before it, with what flows through the wall turned round.
    padded = np.concatenate([water[..., 1::-1], water, water[..., :-3:-1]], -1)
    padded[along, ..., :2] *= -1
    padded[along, ..., -2:] *= -1
    rises = np.diff(padded)
    slopes = limit_slopes(rises[..., :-1], rises[..., 1:]) / 2
    inner = padded[..., 1:-1]
    flux = _flow((inner + slopes)[..., :-1], (inner - slopes)[..., 1:], along)
    return np.asarray(-np.diff(flux) / width)


def _flow(left: Array, right: Array, along: int) -> Array:
    """Rusanov's flux between two states of the water."""
    fluxes, fastest = [], []
    for water in (left, right):
        velocity = water[along] / water[0]
        flux = water * velocity
        flux[along] += GRAVITY * water[0] ** 2 / 2
        fluxes.append(flux)
        fastest.append(np.abs(velocity) + np.sqrt(GRAVITY * water[0]))
    return np.asarray((fluxes[0] + fluxes[1] - np.maximum(*fastest) * (right - left)) / 2)
