"""The result of an audit: one table of ways, the curve, the slices, the verdict, and the folder they are left in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.evaluate.bootstrap import Interval
from interbasin.jobs.translate.audit.measures import Curve, Slice
from interbasin.jobs.translate.audit.verdict import Verdict
from interbasin.outcome import Draft, Result
from interbasin.outcome.plots import bar_chart, line_chart

WAYS = {
    "keep": "keep the old model",
    "translate": "translate documents",
    "adapt": "adapt queries",
    "rerank": "translate, re-embed the top {depth}",
    "keep_rerank": "keep old, re-embed the top {depth}",
    "reembed": "re-embed everything",
}
BARS = 12  # a plot of more is hard to read: it shows the best method of each way
MEASURES = {
    "recall": "recall at {k}",
    "overlap": "overlap with the new model's {k}",
    "reciprocal_rank": "reciprocal rank",
    "ndcg": "nDCG at {k}",
}


@dataclass(frozen=True)
class Way:
    """A row of the table.

    Attributes:
        way: One of `WAYS`.
        method: Of translation; empty where nothing is translated.
        figures: By measure (``recall``, ``overlap``, ``reciprocal_rank``, ``ndcg``), with intervals.
        title: The way in words.
    """

    way: str
    method: str
    figures: Mapping[str, Interval]
    title: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Audit(Result):
    """What an audit measured; ``metrics`` hold all figures by name, intervals as ``NAME_low`` and ``NAME_high``.

    Attributes:
        table: One row per way and method.
        verdict: What to do, and why.
        method: The best method of translating documents, by the measure of the verdict.
        curve: What fewer pairs bring; None if it was not asked for, or there is nothing to measure by.
        slices: Groups of queries, the worst first.
        pool: The documents that some search brought up: those to embed with the new model where nothing is known of it.
    """

    table: tuple[Way, ...]
    verdict: Verdict
    method: str
    curve: Curve | None
    slices: tuple[Slice, ...]
    pool: NDArray[np.int64] = field(repr=False)

    job = "translate audit"

    @property
    def measures(self) -> dict[str, str]:
        """The measures that there are, with their names in words."""
        present = {measure for way in self.table for measure in way.figures}
        titles = {name: title.format(**self.request) for name, title in MEASURES.items() if name in present}
        if self.metrics.get("recall_ceiling", 1.0) < 1:
            titles["recall"] = f"capped {titles['recall']}"
        return titles

    @property
    def primary(self) -> str | None:
        """The measure of the verdict: recall by labels, else overlap; None if there is nothing to measure by."""
        return next((name for name in ("recall", "overlap") if name in self.measures), None)

    @property
    def best(self) -> tuple[Way, ...]:
        """Of the table, the best method of each way by the measure of the verdict."""
        measure = self.primary
        if measure is None:
            return ()
        best: dict[str, Way] = {}
        for row in self.table:
            if row.way not in best or row.figures[measure].value > best[row.way].figures[measure].value:
                best[row.way] = row
        return tuple(best.values())

    def rows(self) -> list[list[str]]:
        """The table in words: way, method, and one figure per measure."""
        return [
            [way.title, way.method or "-", *(format(way.figures[name], ".3f") for name in self.measures)]
            for way in self.table
        ]

    def __str__(self) -> str:
        lines = [["way", "method", *self.measures.values()], *self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*shown, "", self.verdict.text])

    def write(self, draft: Draft) -> None:
        """Add the table, the curve and the slices as ``.csv``, plots as ``.svg``, and the verdict as text."""
        draft.text("verdict.txt", f"{self.verdict.advice}\n\n{self.verdict.text}\n")
        draft.text("pool.txt", "".join(f"{row}\n" for row in self.pool.tolist()))
        ways: dict[str, list[Any]] = {
            "way": [way.title for way in self.table],
            "method": [way.method for way in self.table],
        }
        for name in self.measures:
            ways |= _columns([way.figures[name] for way in self.table], name, f"{name}_low", f"{name}_high")
        draft.table("ways", ways)
        if self.verdict.differences:
            gaps = self.verdict.differences
            draft.table("differences", {"difference": list(gaps), **_columns(gaps.values(), "value", "low", "high")})
        for name, title in self.measures.items():
            draft.plot(name.replace("_", "-"), self._draw_bars(name, title))
        if self.slices:
            parts = self.slices
            figures = {way: [part.figures[way].value for part in parts] for way in parts[0].figures}
            loss = parts[0].less_than
            losses = _columns([part.loss for part in parts], loss, f"{loss}, low", f"{loss}, high")
            names, counts = [part.name for part in parts], [part.queries for part in parts]
            draft.table("slices", {"slice": names, "queries": counts, **figures, **losses})
        if self.curve is not None:
            values = _columns(self.curve.values, "value", "low", "high")
            losses = _columns(self.curve.losses, "loss", "loss_low", "loss_high")
            draft.table("curve", {"pairs": list(self.curve.pairs), **values, **losses})
            draft.plot("pairs", self._draw_curve(self.curve))

    def _draw_bars(self, measure: str, title: str) -> str:
        """A measure of every way, with its intervals, the old model marked."""
        many = len(self.table) > BARS
        ways = {
            f"{way.title}{f', {way.method}' if way.method else ''}": way for way in (self.best if many else self.table)
        }
        notes = [f"mean and {self.request['confidence']:.0%} interval over queries"]
        if many:
            notes.append("best method of each way")
        if self.request["new_vectors"] == "pool":
            notes.append("upper bound" if measure == "overlap" else "re-embedding: upper bound")
        return bar_chart(
            {name: way.figures[measure].value for name, way in ways.items()},
            title=f"{title[0].upper()}{title[1:]}",
            x_label=title,
            note="; ".join(notes),
            whiskers={name: (way.figures[measure].low, way.figures[measure].high) for name, way in ways.items()},
            baseline=next(name for name, way in ways.items() if way.way == "keep"),
        )

    def _draw_curve(self, curve: Curve) -> str:
        """What fewer pairs bring, beside keeping the old model and re-embedding."""
        pairs, name = [float(count) for count in curve.pairs], f"translate, {curve.method}"
        lines = {name: (pairs, [interval.value for interval in curve.values])}
        for way in self.table:
            if way.way in ("keep", "reembed"):
                lines[way.title] = ([pairs[0], pairs[-1]], [way.figures[curve.measure].value] * 2)
        bound = "; re-embedding: upper bound" if self.request["new_vectors"] == "pool" else ""
        return line_chart(
            lines,
            title="How many pairs it takes",
            x_label="pairs that the translation was fitted on",
            y_label=self.measures[curve.measure],
            note=f"band: {self.request['confidence']:.0%} interval over queries{bound}",
            log_x=True,
            x_ticks=pairs,
            bands={name: ([interval.low for interval in curve.values], [interval.high for interval in curve.values])},
        )


def _columns(intervals: Iterable[Interval], value: str, low: str, high: str) -> dict[str, list[Any]]:
    """Intervals as three columns of a table, under these names."""
    rows = list(intervals)
    return {
        name: [getattr(row, part) for row in rows] for name, part in ((value, "value"), (low, "low"), (high, "high"))
    }
