"""From numbers to positions: the ends of an axis, its ticks and what is written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

LARGEST = 1e280  # beyond, an axis around a number, with room on both sides, may have infinite ends
SMALLEST = 1e-290  # below, the steps between ticks vanish
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """One axis.

    Attributes:
        low: The number at its beginning.
        high: The number at its end.
        ticks: The numbers that are marked.
        labels: What is written beside each.
        log: Whether equal distances are equal ratios.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a number stands: 0 at its beginning, 1 at its end."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def drawable(value: float) -> bool:
    """Whether a number has a place on an axis."""
    return -LARGEST < value < LARGEST


def linear(values: Iterable[float], *, around: float = 0.05, zero: bool = False, count: int = 5) -> Scale:
    """An axis that holds ``values``.

    Args:
        values: What it must hold; numbers that are not finite are passed over.
        around: Free space at both ends, as a share of the range.
        zero: Whether it must hold zero, without free space beyond it.
        count: About how many ticks.
    """
    finite = [value if abs(value) > SMALLEST else 0.0 for value in values if math.isfinite(value)]
    finite = finite or [0.0, 1.0]
    if zero:
        finite.append(0.0)
    low, high = min(finite), max(finite)
    # A range that rounding makes is no range: it would get ticks that all read alike.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(low) / 2 or 0.5
        low, high = low - half, high + half
        if zero and not any(finite):
            low = 0.0
    free = around * (high - low)
    begins, ends = (zero and low == 0.0), (zero and high == 0.0)
    low, high = low - (0 if begins else free), high + (0 if ends else free)
    step = _step((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple(place * step for place in range(first, last + 1))
    return Scale(low, high, ticks, _labels(ticks, step))


def logarithmic(values: Iterable[float], *, below: float = 1.2, above: float = 1.2) -> Scale:
    """An axis of equal ratios that holds the positive ones of ``values``; free space by the factors at its two ends."""
    finite = [value for value in values if 0 < value < LARGEST] or [1.0]
    low, high = max(min(finite) / below, 1e-307), max(finite) * above
    if high < 10 * low:  # less than a decade is told better by more of it
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = middle / 3.3, middle * 3.3
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 3:
        powers = range(first - 1, last + 1)
        marks = [(factor, power) for power in powers for factor in (1, 2, 5) if low <= factor * 10.0**power <= high]
    else:
        marks = [(1, power) for power in range(first, last + 1, math.ceil((last - first) / 8))]
    return Scale(low, high, tuple(factor * 10.0**power for factor, power in marks), _ratios(marks), log=True)


def marked(scale: Scale, ticks: Iterable[float]) -> Scale:
    """The same axis with ticks at given numbers, those of them that lie on it."""
    inside = tuple(sorted({float(one) for one in ticks if scale.low <= one <= scale.high}))
    labels = tuple(f"{one:,.0f}" if one == round(one) and one < 1e15 else f"{one:.4g}" for one in inside)
    return replace(scale, ticks=inside, labels=tuple(_minus(one) for one in labels))


def _ratios(marks: list[tuple[int, int]]) -> tuple[str, ...]:
    if all(-4 < power < 5 for _, power in marks):
        return tuple(f"{factor * 10.0**power:.{max(0, -power)}f}" for factor, power in marks)
    raised = [(factor, "10" + str(power).translate(SUPERSCRIPTS)) for factor, power in marks]
    return tuple(power if factor == 1 else f"{factor}·{power}" for factor, power in raised)


def _step(rough: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, upwards."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _labels(ticks: tuple[float, ...], step: float) -> tuple[str, ...]:
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest >= 1e5 or 0 < largest < 1e-3:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9))
        return tuple("0" if abs(tick) < step / 2 else _minus(_short(f"{tick:.{digits}e}")) for tick in ticks)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple(_minus(f"{0.0 if abs(tick) < step / 2 else tick:.{digits}f}") for tick in ticks)


def _short(text: str) -> str:
    mantissa, _, power = text.partition("e")
    return f"{mantissa}e{int(power)}"


def _minus(text: str) -> str:
    return text.replace("-", "−")
