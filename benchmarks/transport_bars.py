"""The bars of the transport benchmark: what is asked, and what its cells show."""

from __future__ import annotations

import itertools
import operator
import statistics
from typing import Any

from transport_cells import DEEPER, Store
from transport_rows import LABEL_FREE, ONE
from transport_studies import CASES
from transport_summary import BATCHES, SEEDS, TASKS, Figures, Which, warm_curves

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}
FEW_SEEDS = 2  # where depths differ

# The bars, in points of accuracy.
ABOVE_THESEUS = {"digits": 10, "clothes": 20}
ABOVE_HEAD_RIDGE = {5: 4, 20: 3}
BEHIND_TUNED_TARGET = 3
KEEP_ABOVE_TUNED_SOURCE = {"digits": 8, "clothes": 12}
KEEP_ABOVE_TUNED_TARGET = {"digits": 5, "clothes": 12}
FORGOTTEN, KEEP_BEHIND_DISTILLATION, KEEP_TIME = 4, 1, 0.5
SPACES_ABOVE_MODULES, RMS_ABOVE_MODULES, ABOVE_NOTHING = 2, 8, 3
AUTO_BEHIND = {1: 4, 2: 4, 5: 2, 10: 2, 20: 2, 50: 2}
WARM_BY = 50


class Bars:
    """Bars as they are found, and those that could not be."""

    def __init__(self, seeds: int = SEEDS) -> None:
        self.seeds = seeds
        self.found: dict[str, dict[str, Any]] = {}
        self.not_measured: list[str] = []

    def add(
        self, name: str, gap: tuple[float, int] | None, bar: float, *, sign: str, where: str = "", of: int = 0
    ) -> None:
        """Add a bar: what was found, and over how many seeds (or cases) of those that there are."""
        if gap is None:
            self.not_measured.append(name)
            return
        value, seeds = gap
        of = of or self.seeds
        if seeds < of:
            where = f"{where}; {seeds} of {of} only".removeprefix("; ")
        self.found[name] = {
            "bar": f"{sign} {bar:g}",
            "found": value,
            "met": COMPARISONS[sign](value, bar),
            "seeds": seeds,
            "where": where,
        }

    def least(self, name: str, gap: tuple[float, int] | None, bar: float, where: str = "", of: int = 0) -> None:
        self.add(name, gap, bar, sign=">=", where=where, of=of)

    def most(self, name: str, gap: tuple[float, int] | None, bar: float, where: str = "") -> None:
        self.add(name, gap, bar, sign="<=", where=where)

    def below(self, name: str, gap: tuple[float, int] | None, bar: float, where: str = "") -> None:
        self.add(name, gap, bar, sign="<", where=where)


def _count(batches: int) -> str:
    return "1 batch" if batches == 1 else f"{batches} batches"


def find_bars(store: Store) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The bars with what was found, and the names of those that no cell speaks of yet."""
    bars, figures = Bars(), Figures(store)
    for task in TASKS:
        _bars_of_regression(bars, figures, task)
        _bars_of_keep(bars, figures, task)
        _bars_of_theseus(bars, figures, task)
        _bars_of_auto(bars, figures, task)
    _bars_of_depth(bars, store)
    _bars_of_verdicts(bars, store)
    _bars_of_warm_start(bars, store)
    return bars.found, bars.not_measured


def _bars_of_regression(bars: Bars, figures: Figures, task: str) -> None:
    ours = ("regression", ONE)
    for batches in (5, 20):
        at = f"{task}, {batches} batches"
        gap = figures.gap(ours, ("theseus-spaces", ONE), task, batches)
        bars.least(f"{at}: regression above theseus", gap, ABOVE_THESEUS[task])
        gap = figures.gap(ours, ("head-ridge", ONE), task, batches)
        bars.least(f"{at}: regression above head-ridge", gap, ABOVE_HEAD_RIDGE[batches])
    gap = figures.gap(("tuned-target", ONE), ours, task, 20)
    bars.most(f"{task}, 20 batches: regression behind B fine-tuned", gap, BEHIND_TUNED_TARGET)
    for batches in BATCHES:
        rates = figures.distillations("distil-")
        best = figures.best(rates, task, batches)
        gap = best and figures.gap(ours, best, task, batches)
        name = f"{task}, {_count(batches)}: regression above cold distillation at its best rate"
        run = [row for row, _ in rates if figures.by_seed((row, ONE), task, batches)]
        where = f"{best[0]} of {len(run)} {'rate' if len(run) == 1 else 'rates'}" if best else ""
        bars.least(name, gap or None, 0, where)


def _bars_of_keep(bars: Bars, figures: Figures, task: str) -> None:
    ours, at = ("regression-keep", ONE), f"{task}, keep"
    gap = figures.gap(ours, ("tuned-source", ONE), task, 20, "both")
    bars.least(f"{at}: mean of task and original above tuned A", gap, KEEP_ABOVE_TUNED_SOURCE[task])
    gap = figures.gap(ours, ("tuned-target", ONE), task, 20, "both")
    bars.least(f"{at}: mean of task and original above B fine-tuned", gap, KEEP_ABOVE_TUNED_TARGET[task])
    gap = figures.gap(("none", ONE), ours, task, 20, "original")
    bars.most(f"{at}: original accuracy behind B's own", gap, FORGOTTEN)
    best = figures.best(figures.distillations("distil-keep-"), task, 20, "both")
    gap = best and figures.gap(best, ours, task, 20, "both")
    name = f"{at}: mean of task and original behind distillation with keep at its best rate"
    bars.most(name, gap or None, KEEP_BEHIND_DISTILLATION, best[0] if best else "")
    share = None
    if best is not None:
        seconds = [figures.by_seed(which, task, 20, "seconds") for which in (ours, best)]
        seeds = seconds[0].keys() & seconds[1].keys()
        times = [statistics.fmean(each[seed] for seed in seeds) for each in seconds] if seeds else []
        share = (times[0] / times[1], len(seeds)) if times else None
    bars.most(f"{at}: time as a share of that distillation's", share, KEEP_TIME, best[0] if best else "")


def _bars_of_theseus(bars: Bars, figures: Figures, task: str) -> None:
    spaces, modules = ("theseus-spaces", ONE), ("theseus-modules", ONE)
    gap = figures.gap(spaces, modules, task, 5)
    bars.least(f"{task}, 5 batches: theseus by spaces above by modules", gap, SPACES_ABOVE_MODULES)
    if task == "clothes":
        gap = figures.gap(("theseus-spaces-rms", ONE), modules, task, 5)
        bars.least(f"{task}, 5 batches: theseus by spaces with rms above by modules", gap, RMS_ABOVE_MODULES)
    for row in ("none", "padded", "random", "random-through-maps"):
        gap = figures.gap(spaces, (row, ONE), task, 20)
        bars.least(f"{task}, 20 batches: theseus above {row}", gap, ABOVE_NOTHING)


def _bars_of_auto(bars: Bars, figures: Figures, task: str) -> None:
    theseus = itertools.product(("theseus-spaces", "theseus-spaces-rms"), (ONE, LABEL_FREE))
    candidates: list[Which] = [("regression", ONE), *theseus]
    for batches in BATCHES:
        best = figures.best(candidates, task, batches)
        gap = best and figures.gap(best, ("auto", ONE), task, batches)
        name = f"{task}, {_count(batches)}: auto behind the best that it chooses from"
        bars.most(name, gap or None, AUTO_BEHIND[batches], ", alpha ".join(best) if best else "")


def _bars_of_depth(bars: Bars, store: Store) -> None:
    figures = Figures(store, "deeper")
    for task, batches in itertools.product(TASKS, (5, 20)):
        gap = figures.gap(("theseus-spaces", ONE), ("theseus-spaces-interpolated", ONE), task, batches)
        name = f"{task}, 2 to 4 blocks, {batches} batches: theseus along the CKA path above interpolated blocks"
        bars.least(name, gap, 0, of=FEW_SEEDS)
    for row in ("theseus-spaces", "regression"):
        cells = [cell for cell in store.of(pair="deeper", row=row, rule=ONE) if "blocks" in cell]
        least = (float(min(cell["blocks"] for cell in cells)), len({cell["seed"] for cell in cells})) if cells else None
        name = f"2 to 4 blocks, CKA path: blocks of the target that {row} gives an update, least of all runs"
        bars.least(name, least, DEEPER.depth, of=FEW_SEEDS)


def _bars_of_verdicts(bars: Bars, store: Store) -> None:
    workload = [cell for cell in store.of(pair="wider", row="auto") if cell["batches"] in (5, 20)]
    worthless = [cell for cell in store.of(pair="worthless") if not cell["better"]]
    kinds = {
        '"do not" for networks trained on unrelated data': (store.of(pair="unrelated"), ("do-not",)),
        '"do not" for a tuned model no better than its base': (worthless, ("do-not",)),
        '"copy" or "transport" on the workload, 5 and 20 batches': (workload, ("copy", "transport")),
    }
    for name, (cells, wanted) in kinds.items():
        right = sum(cell["choice"] in wanted for cell in cells)
        # With too few cases a bar can be missed, but not met.
        is_known = len(cells) >= CASES or right < len(cells)
        share = (right / len(cells), len(cells)) if is_known else None
        where = f"{right} of {len(cells)}"
        bars.add(f"{name}, share of at least {CASES} cases", share, 1, sign=">=", where=where, of=CASES)


def _bars_of_warm_start(bars: Bars, store: Store) -> None:
    curves = warm_curves(store)
    for task in TASKS:
        held = curves.get(task, {})
        gap = None
        if "none" in held and "regression" in held:
            goal, start = held["none"]["losses"][-1], held["regression"]
            reached = (step for step, loss in zip(start["steps"], start["losses"], strict=True) if loss <= goal)
            gap = (float(next(reached, 1_000)), min(start["seeds"], held["none"]["seeds"]))
        bars.most(f"{task}: step at which a warm start has the loss of step 150 of a cold one", gap, WARM_BY)
