"""What is a fine-tune worth that was moved from one vision transformer to another, and what becomes of attention?

Small vision transformers (`transport_vits.py`), trained as the networks of `transport_quality.py` are, and the same
tables: narrow to wide and wide to narrow, other numbers of heads, other depths, other grids of patches. Theseus with
maps that mix heads and with maps that keep to them; the regression with queries and keys fitted head by head, fitted to
one map of all heads, carried by Theseus, carried by maps that keep to heads, and left as they are.

    python benchmarks/transport_attention.py --quick          embedded digits, one seed, under a minute
    python benchmarks/transport_attention.py                  all stages; hours on one thread
    python benchmarks/transport_attention.py --only bars      some stages of it; see STAGES
    python benchmarks/transport_attention.py --again regression    drop cells of these rows or methods first
    python benchmarks/transport_attention.py --minutes 30     stop after so long; a later run goes on
    python benchmarks/transport_attention.py --summary        only make the summary again

Cells are lines of ``results/transport_attention/*.jsonl``; the summary with the bars is
``results/transport_attention.json``. Without INTERBASIN_DATA only the quick form can be run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from transport_bars import Bars
from transport_cells import Store
from transport_quality import table
from transport_rows import LABEL_FREE, ONE, REFERENCES, Row, distillations
from transport_stages import QUICK, missing, named, run_command
from transport_summary import Figures, means_of, report
from transport_workload import data_folder

SEED = 0
SEEDS = 3
TASKS = ("digits", "clothes")
BATCHES, GRID_BATCHES = (5, 20, 1), (5, 1, 2)
BARS_AT = 5
KEEP_AT = 20
# The bars, in points of accuracy.
ABOVE_HEAD_RIDGE, ABOVE_DISTILLATION = 5, 0
DIRECTIONS = {"vit-wider": "narrow to wide", "vit-narrower": "wide to narrow"}

BOTH = (ONE, LABEL_FREE)
THESEUS_ROWS = (
    Row("theseus-modules", "theseus", "modules", heads="free", rules=BOTH),
    Row("theseus-free", "theseus", "spaces", heads="free", rules=BOTH),
    Row("theseus-matched", "theseus", "spaces", heads="matched", rules=BOTH),
    Row("theseus-matched-rms", "theseus", "spaces", {"scale": "rms"}, heads="matched", rules=BOTH),
)
CONTROL_ROWS = (Row("head-ridge", "head-ridge"), Row("head-ridge-keep", "head-ridge", generic=True))
REGRESSION = Row("regression", "regression")
KEEP = Row("regression-keep", "regression", generic=True)
KEEP_ROWS = (KEEP, Row("regression-keep-shift", "regression", "shift", generic=True), CONTROL_ROWS[1])
QUERY_ROWS = (
    Row("regression-qk-full", "regression", options={"attention": "full"}),
    Row("regression-qk-theseus", "regression", options={"attention": "carried"}, heads="free"),
    Row("regression-qk-groups", "regression", options={"attention": "carried"}, heads="matched"),
    Row("regression-qk-base", "regression", options={"attention": "base"}),
)
TOKENS = ("interpolate2d", "interpolate", "mean")
GRID_ROWS = tuple(
    Row(f"{name}-{mode}", method, options={"tokens": mode})
    for mode in TOKENS
    for name, method in (("theseus", "theseus"), ("regression", "regression"))
)
DEPTH_ROWS = (Row("theseus-even", "theseus", depth="even"), Row("regression-even", "regression", depth="even"))
DISTILLATIONS, KEEP_DISTILLATIONS = distillations("cold"), distillations("cold", generic=True)
ROWS = (
    *REFERENCES,
    *THESEUS_ROWS,
    *CONTROL_ROWS,
    REGRESSION,
    *QUERY_ROWS,
    *DISTILLATIONS,
    *KEEP_ROWS[:2],
    *KEEP_DISTILLATIONS,
    *DEPTH_ROWS,
    *GRID_ROWS,
)
UNLABELLED = tuple(row for row in REFERENCES if not row.labels)
SEEN = range(SEEDS)


def bars() -> Iterator[Any]:
    for pair in DIRECTIONS:
        yield from table((*UNLABELLED, CONTROL_ROWS[0], REGRESSION, *DISTILLATIONS), (BARS_AT,), pair=pair, seeds=SEEN)


def queries() -> Iterator[Any]:
    for pair in DIRECTIONS:
        yield from table((*THESEUS_ROWS, *QUERY_ROWS), (BARS_AT,), pair=pair, seeds=SEEN)


def keep() -> Iterator[Any]:
    for pair in DIRECTIONS:
        yield from table((*KEEP_ROWS, *KEEP_DISTILLATIONS), (KEEP_AT,), pair=pair, seeds=SEEN)


def references() -> Iterator[Any]:
    for pair in DIRECTIONS:
        yield from table([row for row in REFERENCES if row.labels], (BARS_AT,), pair=pair, seeds=SEEN)


def more_batches() -> Iterator[Any]:
    for pair in DIRECTIONS:
        yield from table((CONTROL_ROWS[0], REGRESSION, *THESEUS_ROWS, *QUERY_ROWS), (20, 1), pair=pair, seeds=SEEN)


def grids() -> Iterator[Any]:
    rows = [row for row in (*UNLABELLED, CONTROL_ROWS[0], *GRID_ROWS) if row.name != "written-in"]
    yield from table(rows, GRID_BATCHES, pair="vit-finer", seeds=range(1))


def heads() -> Iterator[Any]:
    rows = (*UNLABELLED, CONTROL_ROWS[0], REGRESSION, *THESEUS_ROWS, *QUERY_ROWS, DISTILLATIONS[1])
    for pair in ("vit-more-heads",):
        yield from table(rows, (BARS_AT,), pair=pair, seeds=range(1))


def depths() -> Iterator[Any]:
    theseus = [row for row in THESEUS_ROWS if row.name in ("theseus-free", "theseus-matched")]
    rows = (*UNLABELLED, CONTROL_ROWS[0], REGRESSION, *theseus, *DEPTH_ROWS, DISTILLATIONS[1])
    for pair in ("vit-deeper",):
        yield from table(rows, (BARS_AT,), pair=pair, seeds=range(1))


def more_distillations() -> Iterator[Any]:
    for pair in DIRECTIONS:
        yield from table(DISTILLATIONS, (20, 1), pair=pair, seeds=SEEN)
        yield from table((*KEEP_ROWS, *KEEP_DISTILLATIONS), (BARS_AT, 1), pair=pair, seeds=SEEN)


def quick() -> Iterator[Any]:
    rows = (*REFERENCES, *THESEUS_ROWS, *CONTROL_ROWS, REGRESSION, *QUERY_ROWS, KEEP, DISTILLATIONS[1])
    yield from table(rows, (5,), pair="vit-quick", seeds=range(1), tasks=("digits",))


# In the order in which they are run.
STAGES = named(bars, queries, keep, references, grids, heads, depths, more_batches, more_distillations, quick)


def summary_of(store: Store, is_quick: bool) -> dict[str, Any]:
    names = [name for name in STAGES if (name == QUICK) == is_quick]
    content: dict[str, Any] = {
        "tables": means_of(store, [row.name for row in ROWS]),
        "refused": refusals(store),
        "bars": {},
        "missing": {"these tables": missing(store, STAGES, names)},
    }
    if not is_quick:
        content["bars"], content["not_measured"] = find_bars(store)
    return content


def find_bars(store: Store) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The bars with what was found, and the names of those that no cell speaks of yet."""
    bars, ours = Bars(SEEDS), ("regression", ONE)
    for pair, direction in DIRECTIONS.items():
        figures = Figures(store, pair)
        for task in TASKS:
            at = f"{direction}, {task}, {BARS_AT} batches: regression above"
            bars.least(f"{at} head-ridge", figures.gap(ours, ("head-ridge", ONE), task, BARS_AT), ABOVE_HEAD_RIDGE)
            seeds = {row.name: len(figures.by_seed((row.name, ONE), task, BARS_AT)) for row in DISTILLATIONS}
            # A rate that was run on some seeds only is not compared with one that was run on more.
            rates = [(name, ONE) for name, count in seeds.items() if count and count == max(seeds.values())]
            best = figures.best(rates, task, BARS_AT)
            gap = best and figures.gap(ours, best, task, BARS_AT)
            where = best[0] if best else ""
            if len(rates) < len(DISTILLATIONS):
                where += f"; {len(rates)} of {len(DISTILLATIONS)} rates only"
            bars.least(f"{at} cold distillation at its best rate", gap or None, ABOVE_DISTILLATION, where)
    return bars.found, bars.not_measured


def refusals(store: Store) -> dict[str, dict[str, str]]:
    """Rows that cannot be used on a pair, and why."""
    found: dict[str, dict[str, str]] = {}
    for cell in store.cells.values():
        if "refused" in cell:
            found.setdefault(cell["pair"], {})[cell["row"]] = cell["refused"]
    return found


def main() -> None:
    has_data = data_folder() is not None
    run_command("transport_attention", __doc__, STAGES, summary_of, report, seed=SEED, has_data=has_data)


if __name__ == "__main__":
    main()
