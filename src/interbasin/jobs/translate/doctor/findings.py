"""What is wrong with the rows of a table, gathered batch by batch, and said in sentences at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.jobs.translate.doctor.lattice import largest_step, storage_of
from interbasin.jobs.translate.doctor.mixture import Stretches
from interbasin.jobs.translate.rows import hash_rows
from interbasin.text import plural

NAMED = 5  # rows in a message
MOST_HASHES = 2**22  # kept at once; of a larger table every second, fourth, ... distinct row is looked at
LOOKED_AT = 512  # rows whose numbers are looked at one by one
UNIT = 1e-3  # how far from 1 a length may be
ROUNDED = 5.0  # standard deviations that rounding may move it further
MIXED = 0.01  # share of rows that makes a second kind of norms more than an accident
LONG = 10.0  # times the median: an outlier
BINS = np.linspace(-160, 160, 32_001)  # of the binary logarithm of lengths; all that float32 can hold
CUT = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)  # what Matryoshka models are cut to
SPREAD = 0.25  # of lengths below 1, relative to their mean, that cutting leaves


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


class BadRows:
    """Rows of one kind: how many, and the first few."""

    def __init__(self) -> None:
        self.count, self.first = 0, []  # type: int, list[int]

    def add(self, which: NDArray[np.intp], offset: int) -> None:
        self.count += len(which)
        self.first += [int(row) + offset for row in which[: NAMED - len(self.first)]]

    def named(self, what: str = "row") -> str:
        shown = ", ".join(map(str, self.first)) + (" ..." if self.count > len(self.first) else "")
        return f"{plural(self.count, what)} ({shown})"


class Duplicates:
    """Rows that stood in the table before, found by their hashes.

    Of a table of millions only rows whose hash is divisible by a power of two are looked at, so that no more than so
    many hashes are kept; counts are then estimates.
    """

    def __init__(self) -> None:
        self.kind, self.one_in = BadRows(), 1
        self._known = np.empty(0, np.uint64)

    def update(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> None:
        values = hash_rows(rows)
        looked = values % np.uint64(self.one_in) == 0
        values, numbers = values[looked], numbers[looked]
        _, first = np.unique(values, return_index=True)
        again = np.ones(len(values), dtype=bool)
        again[first] = False
        again |= np.isin(values, self._known)
        self.kind.add(numbers[again].astype(np.intp), 0)
        self._known = np.union1d(self._known, values)
        while len(self._known) > MOST_HASHES:
            self.one_in *= 2
            self.kind.count //= 2
            self._known = self._known[self._known % np.uint64(self.one_in) == 0]

    @property
    def count(self) -> int:
        return self.kind.count * self.one_in


class State:
    """All that is gathered."""

    def __init__(self, width: int, dtype: np.dtype[Any], seed: int) -> None:
        self.width, self.dtype, self.rows, self.good = width, np.dtype(dtype), 0, 0
        self.not_finite, self.zero, self.short = BadRows(), BadRows(), BadRows()
        self.duplicates, self.stretches = Duplicates(), Stretches(width, seed)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self.lengths = np.zeros(len(BINS) + 1, np.int64)
        self.shortest, self.longest, self.sum, self.unit = np.inf, 0.0, 0.0, 0
        self.longest_row = 0
        self.last_used = np.zeros(width + 1, np.int64)  # how many rows end so early, in zeros
        self.looked_at: list[NDArray[np.float64]] = []

    def update(self, batch: NDArray[Any]) -> None:
        values = batch if batch.dtype in (np.float32, np.float64) else batch.astype(np.float32)
        finite = np.isfinite(values).all(1)
        used = (values != 0) & finite[:, None]
        some = used.any(1)
        self.not_finite.add(np.flatnonzero(~finite), self.rows)
        self.zero.add(np.flatnonzero(finite & ~some), self.rows)
        good = finite & some
        numbers = np.flatnonzero(good) + self.rows
        self.rows += len(batch)
        rows = values[good]
        if not len(rows):
            return
        self.duplicates.update(batch[good], numbers)
        self.stretches.update(rows, numbers)
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

    # ------------------------------------------------------------------ what it amounts to

    @property
    def median(self) -> float:
        """Of the lengths, to half a percent."""
        place = int(np.searchsorted(np.cumsum(self.lengths), (self.good + 1) // 2))
        return float(2.0 ** BINS[min(max(place - 1, 0), len(BINS) - 1)]) if self.good else 0.0

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {
            "rows": self.rows,
            "width": self.width,
            "not_finite": self.not_finite.count,
            "zero": self.zero.count,
            "duplicates": self.duplicates.count,
        }
        if self.good:
            found |= {
                "norm_mean": self.sum / self.good,
                "norm_low": self.shortest,
                "norm_high": self.longest,
                "share_unit": self.unit / self.good,
                "constant_dimensions": float((self.low == self.high).sum()),
            }
        return found

    def findings(self) -> Iterator[Finding]:
        if self.not_finite.count:
            yield self._of_rows(
                "not finite", "error", self.not_finite, "hold{s} NaN or infinity; embed again or leave out."
            )
        if self.zero.count:
            yield self._of_rows(
                "zero", "error", self.zero, "{are} all zeros, without a direction: a text that was empty, or failed."
            )
        if self.good:
            yield from self._mixture()
            yield from self._norms()
            yield from self._dimensions()
            yield from self._storage()
            yield from self._cut()
            yield from self._duplicates()

    def _of_rows(self, kind: str, severity: str, rows: BadRows, text: str) -> Finding:
        said = text.format(s="s" if rows.count == 1 else "", are="is" if rows.count == 1 else "are")
        return Finding(kind, severity, rows.count, tuple(rows.first), f"{rows.named()} {said}")

    def _duplicates(self) -> Iterator[Finding]:
        found = self.duplicates
        if found.count:
            about = "about " if found.one_in > 1 else ""
            named = found.kind.named() if found.one_in == 1 else f"{plural(found.count, 'row')}"
            text = f"{about}{named} {'is an exact copy' if found.count == 1 else 'are exact copies'} of earlier ones."
            yield Finding("duplicate", "remark", found.count, tuple(found.kind.first), text)

    def _mixture(self) -> Iterator[Finding]:
        found = self.stretches.found(self.rows)
        if found is None:
            return
        if found.how == "stretches":
            shown = ", ".join(f"{a:,} to {b:,}" for a, b in found.stretches[:NAMED])
            where = f"rows {shown}{' ...' if len(found.stretches) > NAMED else ''}, or about so,"
        else:
            where = f"about {found.share:.0%} of the rows, here and there,"
        what = "parts" if found.how == "stretches" else "clusters"
        head = (
            "Two models share the table"
            if found.sure
            else f"The rows fall into two {what}, which may be two subjects or two models"
        )
        yield Finding(
            "two models" if found.sure else "two parts",
            "error" if found.sure else "remark",
            round(found.share * self.good),
            tuple(first for first, _ in found.stretches[:NAMED]),
            f"{head}: {where} vary along other directions than the rest (likeness {found.likeness:.2f}; parts of one "
            "model have .1 to 1).",
        )

    @cached_property
    def _stored_before(self) -> str | None:
        return storage_of(np.concatenate(self.looked_at)) if self.dtype.kind == "f" and self.looked_at else None

    def _unit(self) -> tuple[int, float]:
        """How many rows have length 1, and how far from it they may be: further where numbers were rounded."""
        if self._stored_before != "int8":
            return self.unit, UNIT
        step = largest_step(np.concatenate(self.looked_at))
        # A number is moved by a step / sqrt(12) on average, and a length by as much; and what is rounded is longer.
        tolerance = ROUNDED * step / np.sqrt(12) + self.width * step**2 / 24
        if tolerance <= UNIT or tolerance >= 1:
            return self.unit, UNIT
        low, high = np.searchsorted(BINS, np.log2([1 - tolerance, 1 + tolerance]))
        return int(self.lengths[low : high + 1].sum()), float(tolerance)

    def lengths_in_words(self) -> str:
        if not self.good:
            return ""
        _, tolerance = self._unit()
        off = max(1 - self.shortest, self.longest - 1)
        if off <= UNIT:
            return "all of length 1"
        if off <= tolerance:
            return "all of length 1, but for rounding"
        if self.longest - self.shortest <= UNIT * self.longest:
            return f"all of length {self.longest:.4g}"
        return f"of lengths from {self.shortest:.4g} to {self.longest:.4g}"

    def _norms(self) -> Iterator[Finding]:
        unit, _ = self._unit()
        share = unit / self.good
        if MIXED <= share <= 1 - MIXED:
            yield Finding(
                "norms",
                "warning",
                min(unit, self.good - unit),
                (),
                f"Norms are mixed: {share:.0%} of the rows have length 1 and the others from {self.shortest:.3g} to "
                f"{self.longest:.3g}; some were normalised and some were not.",
            )
        elif self.median > 0 and self.longest > LONG * self.median:
            many = int(self.lengths[np.searchsorted(BINS, np.log2(LONG * self.median)) + 1 :].sum())
            yield Finding(
                "norms",
                "warning",
                max(1, many),
                (self.longest_row,),
                f"{plural(max(1, many), 'row')} of more than {LONG:.0f} times the usual length {self.median:.3g}; the "
                f"longest, row {self.longest_row}, has {self.longest:.3g}.",
            )

    def _dimensions(self) -> Iterator[Finding]:
        if self.good < 2:
            return
        constant = np.flatnonzero(self.low == self.high)
        tail = self.width - self._used()
        inner = constant[constant < self.width - tail] if 0 < tail < self.width else constant
        if 0 < len(inner) < self.width:
            dead = int((self.low[inner] == 0).sum())
            kind = BadRows()
            kind.add(inner, 0)
            yield Finding(
                "dimensions",
                "warning",
                len(inner),
                tuple(kind.first),
                f"{kind.named('dimension')} never change{'s' if len(inner) == 1 else ''}, {dead} of them always zero: "
                "they carry nothing.",
            )

    def _used(self) -> int:
        """Dimensions up to the last that is ever used."""
        return int(np.flatnonzero(self.last_used)[-1])

    def _storage(self) -> Iterator[Finding]:
        if self.dtype in (np.int8, np.uint8):
            text = f"The numbers are {self.dtype}: quantised vectors, which mean nothing before they are scaled."
            yield Finding("storage", "warning", self.rows, (), text)
            return
        if self.dtype.kind in "iub":
            text = (
                f"The numbers are {self.dtype}: whole numbers, which encoders do not give. Check that these are "
                "vectors, and not ids, counts or tokens."
            )
            yield Finding("storage", "warning", self.rows, (), text)
            return
        found = self._stored_before
        if found == "binary":
            yield Finding("storage", "warning", self.rows, (), "There are only two different numbers: binary codes.")
        elif found == "int8":
            text = (
                f"Stored as {self.dtype}, but the numbers of a row are multiples of one step, at most 255 of them: "
                "vectors that were rounded to int8 and scaled back."
            )
            yield Finding("storage", "remark", self.rows, (), text)
        elif found in ("float16", "bfloat16") and self.dtype.itemsize > 2:
            text = f"Stored as {self.dtype}, but every number is one of {found}: half of the room holds nothing."
            yield Finding("storage", "remark", self.rows, (), text)

    def _cut(self) -> Iterator[Finding]:
        used = self._used()
        short = int(self.last_used[: used - used // 8].sum())
        if used < self.width - self.width // 8:
            text = f"Only the first {used} of {self.width} dimensions are used, the rest is zero: cut vectors, padded."
            yield Finding("padded", "warning", self.good, (), text)
        elif short >= MIXED * self.good:
            text = f"{plural(short, 'row')} end early in zeros and others do not: they were cut to other widths."
            yield Finding("padded", "warning", short, (), text)
        mean = self.sum / self.good
        if (
            self.good > 1
            and self.width in CUT
            and self.longest <= 1 + UNIT
            and mean < 1 - 10 * UNIT
            and self.longest - self.shortest > UNIT
            and self.longest - self.shortest < 4 * SPREAD * mean
        ):
            text = (
                f"All norms lie between {self.shortest:.3g} and {self.longest:.3g}, below 1, and {self.width} is a "
                "width that models are cut to: these may be unit vectors cut to their first dimensions (Matryoshka); "
                "normalise them again before they are compared by dot product or L2."
            )
            yield Finding("truncated", "remark", self.good, (), text)
