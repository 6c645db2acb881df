"""What an audit found: one table of ways, the curve, the slices, the verdict, and the folder they are left in."""

from __future__ import annotations

from collections.abc import Mapping
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
    """What was found; ``metrics`` hold all figures by name, intervals as ``NAME_low`` and ``NAME_high``.

    Attributes:
        table: A row for each way and method.
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
        found = {measure for way in self.table for measure in way.figures}
        return {name: title.format(**self.request) for name, title in MEASURES.items() if name in found}

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
        found: dict[str, Way] = {}
        for one in self.table:
            if one.way not in found or one.figures[measure].value > found[one.way].figures[measure].value:
                found[one.way] = one
        return tuple(found.values())

    def rows(self) -> list[list[str]]:
        """The table in words: way, method, and a figure a measure."""
        return [
            [way.title, way.method or "-", *(format(way.figures[name], ".3f") for name in self.measures)]
            for way in self.table
        ]

    def __str__(self) -> str:
        columns = ["way", "method", *self.measures.values()]
        lines = [columns, *self.rows()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*shown, "", self.verdict.text])

    def write(self, draft: Draft) -> None:
        """Add the table, the curve and the slices as ``.csv``, plots as ``.svg``, and the verdict as text."""
        draft.text("verdict.txt", f"{self.verdict.advice}\n\n{self.verdict.text}\n")
        draft.text("pool.txt", "".join(f"{row}\n" for row in self.pool.tolist()))
        self._ways(draft)
        self._slices(draft)
        self._curve(draft)

    def _ways(self, out: Draft) -> None:
        columns: dict[str, list[Any]] = {
            "way": [way.title for way in self.table],
            "method": [way.method for way in self.table],
        }
        for name in self.measures:
            for part, end in (("value", ""), ("low", "_low"), ("high", "_high")):
                columns[name + end] = [getattr(way.figures[name], part) for way in self.table]
        out.table("ways", columns)
        if self.verdict.differences:
            gaps = self.verdict.differences
            out.table(
                "differences",
                {
                    "difference": list(gaps),
                    "value": [one.value for one in gaps.values()],
                    "low": [one.low for one in gaps.values()],
                    "high": [one.high for one in gaps.values()],
                },
            )
        for name, title in self.measures.items():
            out.plot(name.replace("_", "-"), self._bars(name, title))

    def _bars(self, measure: str, title: str) -> str:
        """A measure of every way, with its intervals, the old model marked."""
        many = len(self.table) > BARS
        shown = {
            f"{way.title}{f', {way.method}' if way.method else ''}": way for way in (self.best if many else self.table)
        }
        notes = [f"mean and {self.request['confidence']:.0%} interval over queries"]
        if many:
            notes.append("best method of each way")
        if self.request["new_vectors"] == "pool":
            notes.append("upper bound" if measure == "overlap" else "re-embedding: upper bound")
        return bar_chart(
            {name: way.figures[measure].value for name, way in shown.items()},
            title=f"{title[0].upper()}{title[1:]}",
            x_label=title,
            note="; ".join(notes),
            whiskers={name: (way.figures[measure].low, way.figures[measure].high) for name, way in shown.items()},
            baseline=next(name for name, way in shown.items() if way.way == "keep"),
        )

    def _slices(self, out: Draft) -> None:
        if not self.slices:
            return
        columns: dict[str, list[Any]] = {
            "slice": [one.name for one in self.slices],
            "queries": [one.queries for one in self.slices],
        }
        for way in self.slices[0].figures:
            columns[way] = [one.figures[way].value for one in self.slices]
        loss = self.slices[0].less_than
        for end, part in (("", "value"), (", low", "low"), (", high", "high")):
            columns[loss + end] = [getattr(one.loss, part) for one in self.slices]
        out.table("slices", columns)

    def _curve(self, out: Draft) -> None:
        if self.curve is None:
            return
        out.table("curve", self.curve.columns())
        pairs = [float(one) for one in self.curve.pairs]
        values = self.curve.values
        lines = {f"translate, {self.curve.method}": (pairs, [one.value for one in values])}
        bands = {name: ([one.low for one in values], [one.high for one in values]) for name in lines}
        for way in self.table:
            if way.way in ("keep", "reembed"):
                lines[way.title] = ([pairs[0], pairs[-1]], [way.figures[self.curve.measure].value] * 2)
        bound = "; re-embedding: upper bound" if self.request["new_vectors"] == "pool" else ""
        out.plot(
            "pairs",
            line_chart(
                lines,
                title="How many pairs are enough",
                x_label="pairs that the translation was fitted on",
                y_label=self.measures[self.curve.measure],
                note=f"band: {self.request['confidence']:.0%} interval over queries{bound}",
                log_x=True,
                x_ticks=pairs,
                bands=bands,
            ),
        )
