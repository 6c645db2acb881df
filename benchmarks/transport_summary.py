"""The summary of the transport benchmark: means over seeds, figures, and a table on screen. Bars: `transport_bars`."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from interbasin.outcome.plots import line_chart
from transport_cells import PAIRS, Store
from transport_rows import (
    ABLATION_ROWS,
    BASELINE_ROWS,
    DEEPER_ROWS,
    DEPTH_ROWS,
    LABEL_FREE,
    LABEL_ROWS,
    METHOD_ROWS,
    ONE,
    REFERENCES,
    SAME_SHAPE_ROWS,
)
from transport_workload import BATCH

SEEDS = 5
TASKS = ("digits", "clothes")
BATCHES = (1, 2, 5, 10, 20, 50)
CLASSES = 10  # of a task
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
        *DEEPER_ROWS,
    )
]
# Whatever does as well as Theseus, and is neither a fit to tuned A nor Theseus itself, is named.
RIVALS = [
    row.name for row in (*BASELINE_ROWS, *SAME_SHAPE_ROWS, *LABEL_ROWS) if row.name not in ("ortho", "label-ridge")
]
TIE = 0.5
# What is left out or done in another way -> what it is compared with.
ABLATIONS = {
    "theseus-spaces-inner": "theseus-spaces",
    "theseus-spaces-uncentred": "theseus-spaces",
    "theseus-spaces-drop": "theseus-spaces",
    "theseus-modules-inner": "theseus-modules",
    "theseus-modules-uncentred": "theseus-modules",
    "regression-uncentred": "regression",
}

# ---------------------------------------------------------------------- means


def summarise(store: Store) -> dict[str, Any]:
    """Means over seeds of every cell, and what the verdicts, the warm start and the sweep show."""
    return {
        "tables": means_of(store),
        "verdicts": _verdicts(store),
        "warm": warm_curves(store),
        "sweep": _sweeps(store),
        "ties_with_theseus": _ties(store),
        "ablations": _ablations(store),
        "shots": _shots(store),
    }


def means_of(store: Store, order: Sequence[str] = ORDER) -> dict[str, list[dict[str, Any]]]:
    """For every pair, rows in this order: means over seeds of what each reached on every task."""
    groups: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for cell in store.cells.values():
        if "original" not in cell or cell["row"].startswith(STUDIES):
            continue
        key = cell["pair"], _place(cell["row"], order), cell["row"], cell["batches"], cell["shots"], cell["rule"]
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
        blocks = [cell["blocks"] for cells in tasks.values() for cell in cells if "blocks" in cell]
        if blocks:
            entry["blocks"] = min(blocks)
        tables.setdefault(pair, []).append(entry)
    return tables


def _place(row: str, order: Sequence[str]) -> tuple[int, str]:
    return (order.index(row) if row in order else len(order), row)


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


def warm_curves(store: Store) -> dict[str, dict[str, Any]]:
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
    found = []
    for pair in PAIRS:
        figures = Figures(store, pair)
        for row, task, batches, rule in itertools.product(RIVALS, TASKS, BATCHES, (ONE, LABEL_FREE)):
            gap = figures.gap((row, rule), ("theseus-spaces", rule), task, batches)
            if gap is not None and gap[0] >= -TIE:
                where = {"pair": pair, "row": row, "labels": row in LABELLED, "task": task, "batches": batches}
                found.append({**where, "alpha": rule, "above": round(gap[0], 2), "seeds": gap[1]})
    return found


def _ablations(store: Store) -> list[dict[str, Any]]:
    """Each row of the ablation beside what it is compared with, on the seeds that both have."""
    figures, found = Figures(store), []
    for (row, other), batches in itertools.product(ABLATIONS.items(), BATCHES):
        tasks = {}
        for task in TASKS:
            gap = figures.gap((row, ONE), (other, ONE), task, batches)
            if gap is not None:
                kept = figures.gap((row, ONE), (other, ONE), task, batches, "original")
                assert kept is not None
                mean = figures.mean((row, ONE), task, batches)
                assert mean is not None
                tasks[task] = {"seeds": gap[1], "accuracy": mean, "above": gap[0], "original_above": kept[0]}
        if tasks:
            found.append({"row": row, "than": other, "batches": batches, "tasks": _rounded(tasks)})
    return found


def _shots(store: Store) -> dict[str, list[dict[str, Any]]]:
    """So many examples of each class beside so many batches, by the number of images, on the same seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for pair in PAIRS:
        held = [cell for cell in store.of(pair=pair, rule=ONE) if cell["shots"]]
        rows, seeds = {cell["row"] for cell in held}, {cell["seed"] for cell in held}
        groups: dict[tuple[Any, ...], dict[str, list[float]]] = {}
        for cell in store.of(pair=pair, rule=ONE):
            if cell["row"] in rows and cell["seed"] in seeds and "accuracy" in cell:
                images = CLASSES * cell["shots"] or BATCH * cell["batches"]
                key = _place(cell["row"], ORDER), images, cell["shots"], cell["batches"]
                groups.setdefault(key, {}).setdefault(cell["task"], []).append(cell["accuracy"])
        for ((_, row), images, shots, batches), tasks in sorted(groups.items()):
            means = {task: round(statistics.fmean(values), 3) for task, values in tasks.items()}
            entry = {"row": row, "images": images, "shots": shots, "batches": batches, "tasks": means}
            found.setdefault(pair, []).append({**entry, "seeds": min(map(len, tasks.values()))})
    return found


def _rounded(tasks: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {task: {name: round(value, 3) for name, value in figures.items()} for task, figures in tasks.items()}


# ---------------------------------------------------------------------- figures by seed

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


# ---------------------------------------------------------------------- charts and the screen

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


SWEPT = {
    "theseus-modules": "Theseus by modules",
    "theseus-spaces": "Theseus by spaces",
    "theseus-spaces-rms": "Theseus by spaces, rms",
    "theseus+gradfix": "Theseus, then GradFix (labels)",
    "gradfix": "GradFix (labels)",
    "transfusion": "TransFusion",
    "direct": "the update as it is",
}
WIDTHS = {"wider": "128 to 192", "narrower": "192 to 128", "same": "128 to 128"}


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
        curves = warm_curves(store).get(task, {})
        named = {name: (list(map(float, each["steps"])), each["losses"]) for name, each in curves.items()}
        _draw(folder / f"{stem}-warm-{task}.svg", named, f"{task}: fine-tuning B", "step", "validation loss")
        for pair, tasks in _sweeps(store).items():
            rows = {
                SWEPT.get(name, name): (each["alphas"], each["accuracies"])
                for name, each in tasks.get(task, {}).items()
                # At equal widths activations are as large, and the two curves one.
                if (pair, name) != ("same", "theseus-spaces-rms")
            }
            title = f"{task}, turned; {WIDTHS.get(pair, pair)}, 5 batches"
            _draw(folder / f"{stem}-alpha-{pair}-{task}.svg", rows, title, "alpha", "accuracy")


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
    for name, counts in content.get("verdicts", {}).items():
        print(f"verdicts, {name}: {counts}")
    for name, bar in content["bars"].items():
        where = f" ({bar['where']})" if bar["where"] else ""
        print(
            f"{'met' if bar['met'] else 'NOT met':>12}: {name} {bar['bar']}: {bar['found']:.4g}{where}, {bar['seeds']}"
        )
    for name in content.get("not_measured", ()):
        print(f"not measured: {name}")
    for title, missing in content["missing"].items():
        counts = [f"{name} {count}" for name, count in missing.items() if count]
        print(f"cells of {title} that were not run: {', '.join(counts) or 'none'}")
