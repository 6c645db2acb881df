"""The summary of the transport benchmark: means over seeds, the bars, the figures, and a table on screen."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from interbasin.outcome.plots import line_chart
from transport_cells import (
    ABLATION_ROWS,
    BASELINE_ROWS,
    DEPTH_ROWS,
    LABEL_FREE,
    LABEL_ROWS,
    METHOD_ROWS,
    ONE,
    REFERENCES,
    SAME_SHAPE_ROWS,
    Store,
)
from transport_studies import CASES

SEEDS = 5
TASKS = ("digits", "clothes")
BATCHES = (1, 2, 5, 10, 20, 50)
STUDIES = ("warm-",)
LABELLED = {row.name for row in (*REFERENCES, *SAME_SHAPE_ROWS, *LABEL_ROWS) if row.labels}
ORDER = [
    row.name
    for row in (
        *REFERENCES,
        *METHOD_ROWS,
        *BASELINE_ROWS,
        *SAME_SHAPE_ROWS,
        *LABEL_ROWS,
        *ABLATION_ROWS,
        *DEPTH_ROWS,
    )
]
# Rows of the paper's ablation: any that does as well as Theseus is named.
RIVALS = [row.name for row in BASELINE_ROWS if row.name.startswith(("pinv", "linear", "cross", "random", "padded"))]
TIE = 0.5

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


# ---------------------------------------------------------------------- means


def summarise(store: Store) -> dict[str, Any]:
    """Means over seeds of every cell, and what the verdicts, the warm start and the sweep show."""
    return {
        "tables": _tables(store),
        "verdicts": _verdicts(store),
        "warm": _warm(store),
        "sweep": _sweeps(store),
        "ties_with_theseus": _ties(store),
    }


def _tables(store: Store) -> dict[str, list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for cell in store.cells.values():
        if "original" not in cell or cell["row"].startswith(STUDIES):
            continue
        key = cell["pair"], _place(cell["row"]), cell["row"], cell["batches"], cell["shots"], cell["rule"]
        groups.setdefault(key, {}).setdefault(cell["task"], []).append(cell)
    tables: dict[str, list[dict[str, Any]]] = {}
    for (pair, _, row, batches, shots, rule), tasks in sorted(groups.items()):
        entry: dict[str, Any] = {"row": row, "batches": batches, "alpha": rule, "labels": row in LABELLED}
        if shots:
            entry["shots"] = shots
        entry["tasks"] = {
            task: {
                "seeds": len(cells),
                "accuracy": _spread(cell["accuracy"] for cell in cells),
                "original": _spread(cell["original"] for cell in cells),
                **{name: _mean(cell.get(name) for cell in cells) for name in ("alpha", "norm_error", "seconds")},
            }
            for task, cells in tasks.items()
        }
        tables.setdefault(pair, []).append(entry)
    return tables


def _place(row: str) -> tuple[int, str]:
    return (ORDER.index(row) if row in ORDER else len(ORDER), row)


def _spread(values: Iterable[float]) -> dict[str, float]:
    held = list(values)
    deviation = statistics.stdev(held) if len(held) > 1 else 0.0
    return {
        "mean": round(statistics.fmean(held), 3),
        "deviation": round(deviation, 3),
        "least": round(min(held), 3),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    held = [value for value in values if value is not None]
    return float(f"{statistics.fmean(held):.4g}") if held else None


def _verdicts(store: Store) -> dict[str, dict[str, int]]:
    kinds = {pair: store.of(pair=pair) for pair in ("unrelated", "related")}
    for name, is_better in (("worthless", False), ("better after all", True)):
        kinds[name] = [cell for cell in store.of(pair="worthless") if cell["better"] == is_better]
    found = {name: dict(Counter(cell["choice"] for cell in cells)) for name, cells in kinds.items()}
    for row in ("auto", "auto-keep"):
        for batches in BATCHES:
            cells = store.of(pair="wider", row=row, batches=batches)
            found[f"{row}, {batches} batches"] = dict(Counter(cell["choice"] for cell in cells))
    return {name: counts for name, counts in found.items() if counts}


def _warm(store: Store) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    rows = sorted({cell["row"] for cell in store.cells.values() if cell["row"].startswith("warm-")})
    for task, row in itertools.product(TASKS, rows):
        cells = store.of(pair="wider", task=task, row=row)
        if cells:
            losses = [statistics.fmean(column) for column in zip(*(cell["losses"] for cell in cells), strict=True)]
            found.setdefault(task, {})[row.removeprefix("warm-")] = {
                "seeds": len(cells),
                "steps": cells[0]["steps"],
                "losses": [float(f"{loss:.4g}") for loss in losses],
                "accuracy": _spread(cell["accuracy"] for cell in cells),
                "original": _spread(cell["original"] for cell in cells),
            }
    return found


def _sweeps(store: Store) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for pair, task in itertools.product(("wider", "same"), TASKS):
        for row in ORDER:
            cells = store.of(pair=pair, task=task, row=row, rule="sweep")
            if cells:
                means = [statistics.fmean(each) for each in zip(*(cell["accuracies"] for cell in cells), strict=True)]
                found.setdefault(pair, {}).setdefault(task, {})[row] = {
                    "seeds": len(cells),
                    "alphas": cells[0]["alphas"],
                    "accuracies": [round(mean, 2) for mean in means],
                }
    return found


def _ties(store: Store) -> list[dict[str, Any]]:
    """Other maps, and noise, that come within half a point of Theseus by spaces, or beat it, with the same rule."""
    figures, found = Figures(store), []
    for row, task, batches, rule in itertools.product(RIVALS, TASKS, BATCHES, (ONE, LABEL_FREE)):
        gap = figures.gap((row, rule), ("theseus-spaces", rule), task, batches)
        if gap is not None and gap[0] >= -TIE:
            found.append({"row": row, "task": task, "batches": batches, "alpha": rule, "above": round(gap[0], 2)})
    return found


# ---------------------------------------------------------------------- bars

Which = tuple[str, str]  # row and rule for alpha


class Figures:
    """Figures of the cells of one pair, by seed."""

    def __init__(self, store: Store, pair: str = "wider") -> None:
        self.cells = {
            (cell["row"], cell["rule"], cell["task"], cell["batches"], cell["seed"]): cell
            for cell in store.of(pair=pair, shots=0)
            if "accuracy" in cell
        }

    def by_seed(self, which: Which, task: str, batches: int, field: str = "accuracy") -> dict[int, float]:
        """A figure of a row; ``field="both"`` is the mean of task and original accuracy."""
        found = {}
        for seed in range(SEEDS):
            cell = self.cells.get((*which, task, batches, seed)) or self.cells.get((*which, task, 0, seed))
            if cell is not None:
                found[seed] = (cell["accuracy"] + cell["original"]) / 2 if field == "both" else cell[field]
        return found

    def mean(self, which: Which, task: str, batches: int, field: str = "accuracy") -> float | None:
        found = self.by_seed(which, task, batches, field)
        return statistics.fmean(found.values()) if found else None

    def gap(
        self, first: Which, second: Which, task: str, batches: int, field: str = "accuracy"
    ) -> tuple[float, int] | None:
        """The mean of a figure of one row above that of another, over the seeds that both have, and their number."""
        one, other = self.by_seed(first, task, batches, field), self.by_seed(second, task, batches, field)
        seeds = one.keys() & other.keys()
        return (statistics.fmean(one[seed] - other[seed] for seed in seeds), len(seeds)) if seeds else None

    def best(self, rows: Sequence[Which], task: str, batches: int, field: str = "accuracy") -> Which | None:
        """The row with the highest mean."""
        means = {row: self.mean(row, task, batches, field) for row in rows}
        held = {row: mean for row, mean in means.items() if mean is not None}
        return max(held, key=lambda row: held[row]) if held else None

    def distillations(self, stem: str) -> list[Which]:
        """A distillation at all of its rates."""
        names = {key[0] for key in self.cells}
        return [(name, ONE) for name in sorted(names) if name.startswith(stem) and name[len(stem)].isdigit()]


class Bars:
    """Bars as they are found, and those that could not be."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.not_measured: list[str] = []

    def add(
        self, name: str, gap: tuple[float, int] | None, bar: float, *, most: bool, where: str = "", of: int = SEEDS
    ) -> None:
        """Add a bar: what was found, and over how many seeds (or cases) of those that there are."""
        if gap is None:
            self.not_measured.append(name)
            return
        value, seeds = gap
        if seeds < of:
            where = f"{where}; {seeds} of {of} only".removeprefix("; ")
        self.found[name] = {
            "bar": f"{'<=' if most else '>='} {bar:g}",
            "found": value,
            "met": value <= bar if most else value >= bar,
            "seeds": seeds,
            "where": where,
        }

    def least(self, name: str, gap: tuple[float, int] | None, bar: float, where: str = "") -> None:
        self.add(name, gap, bar, most=False, where=where)

    def most(self, name: str, gap: tuple[float, int] | None, bar: float, where: str = "") -> None:
        self.add(name, gap, bar, most=True, where=where)


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
        best = figures.best(figures.distillations("distil-"), task, batches)
        gap = best and figures.gap(ours, best, task, batches)
        name = f"{task}, {_count(batches)}: regression above cold distillation at its best rate"
        bars.least(name, gap or None, 0, best[0] if best else "")


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
        bars.add(f"{name}, share of at least {CASES} cases", share, 1, most=False, where=where, of=CASES)


def _bars_of_warm_start(bars: Bars, store: Store) -> None:
    curves = _warm(store)
    for task in TASKS:
        held = curves.get(task, {})
        gap = None
        if "none" in held and "regression" in held:
            goal, start = held["none"]["losses"][-1], held["regression"]
            reached = (step for step, loss in zip(start["steps"], start["losses"], strict=True) if loss <= goal)
            gap = (float(next(reached, 1_000)), min(start["seeds"], held["none"]["seeds"]))
        bars.most(f"{task}: step at which a warm start has the loss of step 150 of a cold one", gap, WARM_BY)


# ---------------------------------------------------------------------- figures and the screen

CURVES = {
    "B alone": ("none", ONE),
    "Theseus by modules": ("theseus-modules", ONE),
    "Theseus by spaces": ("theseus-spaces", ONE),
    "Theseus, rms, label-free alpha": ("theseus-spaces-rms", LABEL_FREE),
    "last layer alone": ("head-ridge", ONE),
    "regression": ("regression", ONE),
    "regression, generic inputs": ("regression-generic-tuned", ONE),
    "B fine-tuned": ("tuned-target", ONE),
}


def draw(store: Store, folder: Path, stem: str) -> None:
    """Accuracy by batches, the sweep over alpha, and the warm start."""
    figures = Figures(store)
    for task in TASKS:
        series: dict[str, tuple[list[float], list[float]]] = {}
        for name, which in CURVES.items():
            points = [(float(n), mean) for n in BATCHES if (mean := figures.mean(which, task, n)) is not None]
            if points:
                series[name] = ([x for x, _ in points], [y for _, y in points])
        _draw(folder / f"{stem}-batches-{task}.svg", series, f"{task}, turned", "batches of 32", "accuracy", True)
        curves = _warm(store).get(task, {})
        named = {name: (list(map(float, each["steps"])), each["losses"]) for name, each in curves.items()}
        _draw(folder / f"{stem}-warm-{task}.svg", named, f"{task}: fine-tuning B", "step", "validation loss")
        for pair, tasks in _sweeps(store).items():
            rows = {name: (each["alphas"], each["accuracies"]) for name, each in tasks.get(task, {}).items()}
            _draw(folder / f"{stem}-alpha-{pair}-{task}.svg", rows, f"{task}, {pair}, 5 batches", "alpha", "accuracy")


def _draw(path: Path, series: Mapping[str, Any], title: str, across: str, up: str, log_x: bool = False) -> None:
    if series:
        path.write_text(line_chart(series, title=title, x_label=across, y_label=up, log_x=log_x), "utf-8")


def report(content: Mapping[str, Any]) -> None:
    for pair, entries in content["tables"].items():
        for task in TASKS:
            lines: dict[tuple[str, str], dict[int, str]] = {}
            for entry in entries:
                if task in entry["tasks"] and "shots" not in entry:
                    figures = entry["tasks"][task]
                    text = f"{figures['accuracy']['mean']:.1f} ({figures['original']['mean']:.1f})"
                    lines.setdefault((entry["row"], entry["alpha"]), {})[entry["batches"]] = text
            columns = sorted({count for line in lines.values() for count in line})
            rows = [(row, rule, *(line.get(n, "") for n in columns)) for (row, rule), line in lines.items()]
            if rows:
                frame.show(f"{pair}, {task}: task (original) accuracy", ("row", "alpha", *map(str, columns)), rows)
    for name, counts in content["verdicts"].items():
        print(f"verdicts, {name}: {counts}")
    for name, bar in content["bars"].items():
        where = f" ({bar['where']})" if bar["where"] else ""
        print(
            f"{'met' if bar['met'] else 'NOT met':>12}: {name} {bar['bar']}: {bar['found']:.4g}{where}, {bar['seeds']}"
        )
    for name in content.get("not_measured", ()):
        print(f"not measured: {name}")
    for name, count in content["missing"].items():
        if count:
            print(f"missing cells of {name}: {count}")
