"""What is wrong with the rows of a table, gathered batch by batch, and said in sentences at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.jobs.translate.apply import TRUNCATED
from interbasin.jobs.translate.doctor.mixture import MixtureDetector
from interbasin.jobs.translate.rows import as_floats, hash_rows
from interbasin.text import plural

NAMED = 5  # rows in a message
MOST_HASHES = 2**22  # kept at once; of a larger table every second, fourth, ... distinct row is looked at
LOOKED_AT = 512  # rows whose numbers are looked at one by one
UNIT = 1e-3  # how far from 1 a length may be
ROUNDED = 5.0  # standard deviations that rounding may move it further
MIXED = 0.01  # share of rows that makes a second kind of norms more than an accident
LONG = 10.0  # times the median: an outlier
BINS = np.linspace(-160, 160, 32_001)  # of the binary logarithm of lengths; all that float32 can hold
SPREAD = 0.25  # of lengths below 1, relative to their mean, that cutting leaves
MOST_LEVELS = 300.0  # steps from zero to the largest number, of eight bits with or without a sign
NEAR = 0.02  # of a step
FEWEST_NUMBERS = 16  # in a row, so that chance does not put all of them on a grid
MOST_ROWS = 0.95  # of the rows must lie on a grid


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or worth knowing.

    Attributes:
        kind: What: ``"not finite"``, ``"zero"``, ``"duplicate"``, ``"norms"``, ``"dimensions"``, ``"storage"``,
            ``"padded"``, ``"truncated"``, ``"two models"``, ``"two parts"``.
        severity: ``"error"``: searching or translating will fail or mislead. ``"warning"``: look at it. ``"remark"``:
            good to know.
        count: How many rows, or dimensions.
        rows: The first few of them, by number.
        text: In words.
    """

    kind: str
    severity: str
    count: int
    rows: tuple[int, ...]
    text: str


class NumberedRows:
    """How many rows (or dimensions) there are of one kind, and the numbers of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[int, ...] = ()

    def add(self, numbers: NDArray[Any]) -> None:
        self.count += len(numbers)
        self.first += tuple(numbers[: NAMED - len(self.first)].tolist())

    def describe(self, what: str = "row") -> str:
        shown = ", ".join(map(str, self.first)) + (" ..." if self.count > len(self.first) else "")
        return f"{plural(self.count, what)} ({shown})"


class Duplicates:
    """Rows that stood in the table before, found by their hashes.

    Of a table of millions only rows whose hash is divisible by a power of two are looked at, which bounds the number of
    hashes in memory; counts are then estimates.
    """

    def __init__(self) -> None:
        self.rows, self.one_in = NumberedRows(), 1
        self._known = np.empty(0, np.uint64)

    def update(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        values = hash_rows(rows)
        looked_at = values % np.uint64(self.one_in) == 0
        values, numbers = values[looked_at], numbers[looked_at]
        _, first = np.unique(values, return_index=True)
        again = np.ones(len(values), dtype=bool)
        again[first] = False
        again |= np.isin(values, self._known)
        self.rows.add(numbers[again])
        self._known = np.union1d(self._known, values)
        while len(self._known) > MOST_HASHES:
            self.one_in *= 2
            self.rows.count //= 2
            self._known = self._known[self._known % np.uint64(self.one_in) == 0]

    @property
    def count(self) -> int:
        return self.rows.count * self.one_in


class TableStatistics:
    """All that is gathered from the rows of a table, in memory that does not grow with it."""

    def __init__(self, width: int, dtype: np.dtype[Any], seed: int) -> None:
        self.width, self.dtype, self.rows, self.good = width, np.dtype(dtype), 0, 0
        self.not_finite, self.zero = NumberedRows(), NumberedRows()
        self.duplicates, self.mixture = Duplicates(), MixtureDetector(width, seed)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self.lengths = np.zeros(len(BINS) + 1, np.int64)
        self.shortest, self.longest, self.sum, self.unit = np.inf, 0.0, 0.0, 0
        self.longest_row = 0
        self.last_used = np.zeros(width + 1, np.int64)  # rows by the place of their last number that is not zero
        self.looked_at: list[NDArray[np.float64]] = []

    def update(self, batch: NDArray[Any]) -> None:
        values = as_floats(batch)
        finite = np.isfinite(values).all(1)
        used = (values != 0) & finite[:, None]
        good = used.any(1)
        self.not_finite.add(np.flatnonzero(~finite) + self.rows)
        self.zero.add(np.flatnonzero(finite & ~good) + self.rows)
        numbers = np.flatnonzero(good) + self.rows
        self.rows += len(batch)
        rows = values[good]
        if not len(rows):
            return
        self.duplicates.update(batch[good], numbers)
        self.mixture.update(rows, numbers)
        np.minimum(self.low, rows.min(0), out=self.low)
        np.maximum(self.high, rows.max(0), out=self.high)
        lengths = np.linalg.norm(rows.astype(np.float64, copy=False), axis=1)
        self.lengths += np.bincount(np.searchsorted(BINS, np.log2(lengths)), minlength=len(self.lengths))
        self.shortest = min(self.shortest, float(lengths.min()))
        if lengths.max() > self.longest:
            self.longest, self.longest_row = float(lengths.max()), int(numbers[lengths.argmax()])
        self.sum += float(lengths.sum())
        self.unit += int((np.abs(lengths - 1) <= UNIT).sum())
        ends = self.width - used[good][:, ::-1].argmax(1)
        self.last_used += np.bincount(ends, minlength=self.width + 1)
        self.good += len(rows)
        missing = LOOKED_AT - sum(map(len, self.looked_at))
        if missing > 0:
            self.looked_at.append(rows[:missing].astype(np.float64))

    @property
    def median(self) -> float:
        """Of the lengths, to half a percent."""
        place = int(np.searchsorted(np.cumsum(self.lengths), (self.good + 1) // 2))
        return float(2.0 ** BINS[min(max(place - 1, 0), len(BINS) - 1)])

    def metrics(self) -> dict[str, float]:
        counts: dict[str, float] = {
            "rows": self.rows,
            "width": self.width,
            "not_finite": self.not_finite.count,
            "zero": self.zero.count,
            "duplicates": self.duplicates.count,
        }
        if not self.good:
            return counts
        return counts | {
            "norm_mean": self.sum / self.good,
            "norm_low": self.shortest,
            "norm_high": self.longest,
            "share_unit": self.unit / self.good,
            "constant_dimensions": float((self.low == self.high).sum()),
        }

    def findings(self) -> Iterator[Finding]:
        bad, zero = self.not_finite, self.zero
        if bad.count:
            verb = "holds" if bad.count == 1 else "hold"
            text = f"{bad.describe()} {verb} NaN or infinity; embed again or leave out."
            yield Finding("not finite", "error", bad.count, bad.first, text)
        if zero.count:
            verb = "is" if zero.count == 1 else "are"
            text = f"{zero.describe()} {verb} all zeros, without a direction: a text that was empty, or failed."
            yield Finding("zero", "error", zero.count, zero.first, text)
        if self.good:
            yield from self._find_mixture()
            yield from self._find_norms()
            yield from self._find_constant_dimensions()
            yield from self._find_storage()
            yield from self._find_cut_vectors()
            yield from self._find_duplicates()

    def _find_duplicates(self) -> Iterator[Finding]:
        duplicates = self.duplicates
        if duplicates.count:
            estimated = duplicates.one_in > 1
            rows = f"about {plural(duplicates.count, 'row')}" if estimated else duplicates.rows.describe()
            copies = "is an exact copy" if duplicates.count == 1 else "are exact copies"
            text = f"{rows} {copies} of earlier ones."
            yield Finding("duplicate", "remark", duplicates.count, duplicates.rows.first, text)

    def _find_mixture(self) -> Iterator[Finding]:
        mixture = self.mixture.find(self.rows)
        if mixture is None:
            return
        if mixture.how == "segments":
            shown = ", ".join(f"{first:,} to {last:,}" for first, last in mixture.segments[:NAMED])
            what, where = "parts", f"rows {shown}{' ...' if len(mixture.segments) > NAMED else ''}, or about so,"
        else:
            what, where = "clusters", f"about {mixture.share:.0%} of the rows, here and there,"
        kind, severity, head = "two models", "error", "Two models share the table"
        if not mixture.sure:
            kind, severity = "two parts", "remark"
            head = f"The rows fall into two {what}, which may be two subjects or two models"
        yield Finding(
            kind,
            severity,
            round(mixture.share * self.good),
            tuple(first for first, _ in mixture.segments[:NAMED]),
            f"{head}: {where} vary along other directions than the rest (likeness {mixture.likeness:.2f}; parts of one "
            "model have .1 to 1).",
        )

    @cached_property
    def _stored_before(self) -> str | None:
        return find_storage(np.concatenate(self.looked_at)) if self.dtype.kind == "f" and self.looked_at else None

    def _unit_rows(self) -> tuple[int, float]:
        """How many rows have length 1, and how far from it they may be: further where numbers were rounded."""
        if self._stored_before != "int8":
            return self.unit, UNIT
        step = max(filter(None, map(_step, np.concatenate(self.looked_at))), default=0.0)
        # A number is moved by a step / sqrt(12) on average, and a length by as much; and what is rounded is longer.
        tolerance = ROUNDED * step / np.sqrt(12) + self.width * step**2 / 24
        if tolerance <= UNIT or tolerance >= 1:
            return self.unit, UNIT
        low, high = np.searchsorted(BINS, np.log2([1 - tolerance, 1 + tolerance]))
        return int(self.lengths[low : high + 1].sum()), float(tolerance)

    def describe_lengths(self) -> str:
        if not self.good:
            return ""
        _, tolerance = self._unit_rows()
        off = max(1 - self.shortest, self.longest - 1)
        if off <= UNIT:
            return "all of length 1"
        if off <= tolerance:
            return "all of length 1, but for rounding"
        if self.longest - self.shortest <= UNIT * self.longest:
            return f"all of length {self.longest:.4g}"
        return f"of lengths from {self.shortest:.4g} to {self.longest:.4g}"

    def _find_norms(self) -> Iterator[Finding]:
        unit, _ = self._unit_rows()
        share, median = unit / self.good, self.median
        if MIXED <= share <= 1 - MIXED:
            text = (
                f"Norms are mixed: {share:.0%} of the rows have length 1 and the others from {self.shortest:.3g} to "
                f"{self.longest:.3g}; some were normalised and some were not."
            )
            yield Finding("norms", "warning", min(unit, self.good - unit), (), text)
        elif median > 0 and self.longest > LONG * median:
            many = max(1, int(self.lengths[np.searchsorted(BINS, np.log2(LONG * median)) + 1 :].sum()))
            text = (
                f"{plural(many, 'row')} of more than {LONG:.0f} times the usual length {median:.3g}; the longest, row "
                f"{self.longest_row}, has {self.longest:.3g}."
            )
            yield Finding("norms", "warning", many, (self.longest_row,), text)

    def _find_constant_dimensions(self) -> Iterator[Finding]:
        if self.good < 2:
            return
        constant = np.flatnonzero(self.low == self.high)
        constant = constant[constant < self._used_width()]  # the rest is padding
        if 0 < len(constant) < self.width:
            dimensions = NumberedRows()
            dimensions.add(constant)
            text = (
                f"{dimensions.describe('dimension')} never change{'s' if len(constant) == 1 else ''}, "
                f"{int((self.low[constant] == 0).sum())} of them always zero: they carry nothing."
            )
            yield Finding("dimensions", "warning", len(constant), dimensions.first, text)

    def _used_width(self) -> int:
        """Dimensions up to the last that is ever used."""
        return int(np.flatnonzero(self.last_used)[-1])

    def _find_storage(self) -> Iterator[Finding]:
        before, severity = self._stored_before, "warning"
        if self.dtype in (np.int8, np.uint8):
            text = f"The numbers are {self.dtype}: quantised vectors, which mean nothing before they are scaled."
        elif self.dtype.kind in "iub":
            text = (
                f"The numbers are {self.dtype}: whole numbers, which encoders do not give. Check that these are "
                "vectors, and not ids, counts or tokens."
            )
        elif before == "binary":
            text = "There are only two different numbers: binary codes."
        elif before == "int8":
            severity = "remark"
            text = (
                f"Stored as {self.dtype}, but the numbers of a row are multiples of one step, at most 255 of them: "
                "vectors that were rounded to int8 and scaled back."
            )
        elif before is not None and self.dtype.itemsize > 2:
            severity = "remark"
            text = f"Stored as {self.dtype}, but every number is one of {before}: half of the room holds nothing."
        else:
            return
        yield Finding("storage", severity, self.rows, (), text)

    def _find_cut_vectors(self) -> Iterator[Finding]:
        used = self._used_width()
        short = int(self.last_used[: used - used // 8].sum())
        if used < self.width - self.width // 8:
            text = f"Only the first {used} of {self.width} dimensions are used, the rest is zero: cut vectors, padded."
            yield Finding("padded", "warning", self.good, (), text)
        elif short >= MIXED * self.good:
            text = f"{plural(short, 'row')} end early in zeros and others do not: they were cut to other widths."
            yield Finding("padded", "warning", short, (), text)
        mean, spread = self.sum / self.good, self.longest - self.shortest
        below_one = self.longest <= 1 + UNIT and mean < 1 - 10 * UNIT
        if self.good > 1 and self.width in TRUNCATED and below_one and UNIT < spread < 4 * SPREAD * mean:
            text = (
                f"All norms lie between {self.shortest:.3g} and {self.longest:.3g}, below 1, and {self.width} is a "
                "width that models are cut to: these may be unit vectors cut to their first dimensions (Matryoshka); "
                "normalise them again before they are compared by dot product or L2."
            )
            yield Finding("truncated", "remark", self.good, (), text)


def find_storage(rows: NDArray[np.float64]) -> str | None:
    """What finite rows were stored as before, by their looks: binary, int8, float16, bfloat16; None without a sign."""
    if len(rows) == 0 or rows.shape[1] < FEWEST_NUMBERS:
        return None
    if len(np.unique(rows[:64])) <= 2 and len(np.unique(rows)) <= 2:
        return "binary"
    if np.mean([_step(row) is not None for row in rows]) >= MOST_ROWS:
        return "int8"
    with np.errstate(over="ignore"):
        if np.array_equal(rows.astype(np.float16).astype(np.float64), rows):
            return "float16"
    single = rows.astype(np.float32)
    if np.array_equal(single.astype(np.float64), rows) and not (single.view(np.uint32) & np.uint32(0xFFFF)).any():
        return "bfloat16"
    return None


def _step(row: NDArray[np.float64]) -> float | None:
    """The step of which all numbers of a row are multiples, with few steps to the largest."""
    largest = float(np.abs(row).max())
    gaps = np.diff(np.unique(np.abs(row)))
    gaps = gaps[gaps > 1e-5 * largest]  # smaller ones are rounding
    if len(gaps) == 0:
        return None
    step = float(gaps.min())
    if largest / step > MOST_LEVELS:
        return None
    # The smallest gap carries two roundings; over all levels the step is known better.
    step = largest / max(1.0, round(largest / step))
    places = row / step
    return step if np.abs(places - np.round(places)).max() < NEAR else None
