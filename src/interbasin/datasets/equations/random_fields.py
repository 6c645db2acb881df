"""Random fields that equations begin with: sums of waves on an interval, Gaussian fields on a square."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.fft import idctn

Array = NDArray[np.float64]

WAVES, HIGHEST = 2, 8  # as in PDEBench
ODD_SHARE = 0.1  # of samples that are folded, and of samples that are cut to a window


def midpoints(points: int) -> Array:
    """The middles of so many equal parts of the unit interval."""
    return (np.arange(points) + 0.5) / points


def sums_of_waves(count: int, points: int, generator: np.random.Generator, *, odd: bool = True) -> Array:
    """Periodic functions on the unit interval, ``(count, points)``: sums of two sines [takamoto:22, appendix D].

    Args:
        count: How many.
        points: Where they are given: at the middles of so many cells.
        generator: Draws amplitudes, phases and wave numbers from 1 to 8.
        odd: Whether one in ten is replaced by its absolute value with a random sign, and one in ten is zero outside a
            random window, so that functions with kinks and jumps occur.
    """
    x = midpoints(points)
    numbers = generator.integers(1, HIGHEST + 1, (count, WAVES, 1))
    amplitudes = generator.uniform(0, 1, (count, WAVES, 1))
    phases = generator.uniform(0, 2 * math.pi, (count, WAVES, 1))
    values: Array = (amplitudes * np.sin(2 * math.pi * numbers * x + phases)).sum(1)
    if odd:
        folded = generator.uniform(size=(count, 1)) < ODD_SHARE
        signs = generator.choice([-1.0, 1.0], (count, 1))
        values = np.where(folded, signs * np.abs(values), values)
        ends = np.sort(generator.uniform(size=(count, 2)), axis=1)
        inside = (ends[:, :1] <= x) & (x <= ends[:, 1:])
        cut = generator.uniform(size=(count, 1)) < ODD_SHARE
        values = np.where(cut & ~inside, 0.0, values)
    return values


def gaussian_fields(
    count: int, points: int, generator: np.random.Generator, *, smoothness: float = 2.0, inverse_length: float = 3.0
) -> Array:
    """Gaussian random fields on the unit square, ``(count, points, points)``, without flow through the edges.

    The covariance is ``(-Laplace + inverse_length**2) ** -smoothness``, as in the data of neural operators [li:21].
    """
    frequencies = math.pi * np.arange(points)
    spectrum = frequencies[:, None] ** 2 + frequencies**2 + inverse_length**2
    scale = spectrum ** (-smoothness / 2) * inverse_length ** (smoothness - 1)
    scale[0, 0] = 0  # the mean is not random
    noise = generator.standard_normal((count, points, points)) * scale
    return np.asarray(idctn(noise, axes=(1, 2), norm="ortho") * points, dtype=np.float64)
