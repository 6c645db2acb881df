"""What the cells of the cross-modal benchmark show together: errors, differences, ranks, wins, times, bounds, verdicts.

A *setting* is a source, a target and a number of labels; it has a cell for each seed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

import frame
from cross_modal_cells import LONG, SPECIALISTS, STAGE_ONE, TABLE, TIME, Store
from interbasin.evaluate.bootstrap import Bootstrap

AUTO = "auto"
FORMS = ("-transport", "-head")  # of rows that fix a predictor: shown, and left out of ranks
TERMS = ("fa", "fa_floor", "fld", "fld_hard", "fld_crossed", "tf", "err_source", "err_target", "label_entropy")
BOUNDS = ("bound", "bound_direct")

Setting = tuple[str, str, int]


def summarise(store: Store) -> dict[str, Any]:
    """All tables."""
    return {
        "settings": [summarise_setting(store, *setting) for setting in settings_of(store)],
        "overall": overall(store),
        "verdicts": verdicts(store),
        "bounds": bounds(store),
        "longer": longer(store),
        "times": times(store),
        "cost": cost(store),
        "stage_one": stage_one(store),
    }


def settings_of(store: Store) -> list[Setting]:
    """In the order of sources and targets of the benchmark, few labels first."""
    entries = {(cell["source"], cell["target"], cell["labels"]) for cell in store.of(TABLE)}
    return sorted(entries, key=lambda setting: (setting[0] != "mnist-vit", setting[0], setting[1], setting[2] or 10**9))


def row_of(cell: Mapping[str, Any], method: str) -> Mapping[str, Any] | None:
    """The row of a method, or what `auto` took."""
    if method == AUTO:
        return cell.get("auto")
    return next((row for row in cell["rows"] if row["method"] == method), None)


def error_of(cell: Mapping[str, Any], method: str) -> float | None:
    row = row_of(cell, method)
    return None if row is None else row["error_test"]


def by_seed(
    store: Store, setting: Setting, method: str, read: Callable[[Any, str], Any] = error_of
) -> dict[int, float]:
    """A figure of a method on each seed of a setting that has it."""
    source, target, labels = setting
    entries = {
        cell["seed"]: read(cell, method) for cell in store.of(TABLE, source=source, target=target, labels=labels)
    }
    return {seed: value for seed, value in entries.items() if value is not None}


def mean(store: Store, setting: Setting, method: str, read: Callable[[Any, str], Any] = error_of) -> float | None:
    entries = by_seed(store, setting, method, read)
    return statistics.fmean(entries.values()) if entries else None


def gap(
    store: Store, setting: Setting, first: str, second: str, read: Callable[[Any, str], Any] = error_of
) -> tuple[float, int] | None:
    """The mean of the first above the second, over the seeds that both have, and their number."""
    first_error, other = by_seed(store, setting, first, read), by_seed(store, setting, second, read)
    seeds = first_error.keys() & other.keys()
    return (statistics.fmean(first_error[seed] - other[seed] for seed in seeds), len(seeds)) if seeds else None


def spread(values: Iterable[float]) -> dict[str, float | int]:
    held = list(values)
    deviation = statistics.stdev(held) if len(held) > 1 else 0.0
    return {"mean": _short(statistics.fmean(held)), "deviation": _short(deviation), "seeds": len(held)}


def _short(value: float) -> float:
    return float(f"{value:.5g}")


# ---------------------------------------------------------------------- one setting


def summarise_setting(store: Store, source: str, target: str, labels: int) -> dict[str, Any]:
    cells = store.of(TABLE, source=source, target=target, labels=labels)
    names = list(dict.fromkeys(row["method"] for cell in cells for row in cell["rows"]))
    return {
        "source": source,
        "target": target,
        "labels": labels,
        "metric": cells[0]["metric"],
        "samples": cells[0]["samples"],
        "test_samples": cells[0]["test_samples"],
        "seeds": len(cells),
        "steps": cells[0]["steps"],
        "methods": {name: _summarise_method(cells, name) for name in [*names, AUTO]},
        "chosen": dict(Counter(cell["auto"]["method"] for cell in cells)),
        "specialists": _specialists(store, target, labels),
    }


def _summarise_method(cells: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    rows = [row for cell in cells if (row := row_of(cell, name)) is not None and row["error_test"] is not None]
    valid = [row["error_valid"] for row in rows if row["error_valid"] is not None]
    entry: dict[str, Any] = {"error_test": spread(row["error_test"] for row in rows)} if rows else {}
    if valid:
        entry["error_valid"] = spread(valid)
    gaps = [row["above_naive"] for row in rows if row.get("above_naive")]
    if gaps and name != "naive":
        pairs = [(error_of(cell, name), error_of(cell, "naive")) for cell in cells]
        held = [first_error - other for first_error, other in pairs if first_error is not None and other is not None]
        # By the error of each test sample: in how many seeds the 95 % interval lies on one side of naive's.
        entry["above_naive"] = {
            **spread(held),
            "better": sum(each["high"] < 0 for each in gaps),
            "worse": sum(each["low"] > 0 for each in gaps),
        }
    stages = sorted({stage for row in rows for stage in row.get("seconds", {})})
    if stages:
        entry["seconds"] = {
            stage: _short(statistics.fmean(row["seconds"].get(stage, 0.0) for row in rows)) for stage in stages
        }
        entry["steps"] = rows[0].get("steps", 0)
    held_bounds = [row["bound"] for row in rows if row.get("bound")]
    if held_bounds:
        entry["bound"] = {
            term: _short(statistics.fmean(each[term] for each in held_bounds))
            for term in (*TERMS, *BOUNDS)
            if all(each.get(term) is not None for each in held_bounds)
        }
    return entry


def _specialists(store: Store, target: str, labels: int) -> dict[str, Any]:
    cells = store.of(SPECIALISTS, target=target, labels=labels)
    names = list(dict.fromkeys(row["method"] for cell in cells for row in cell["rows"]))
    entries = {}
    for name in names:
        rows = [row for cell in cells if (row := row_of(cell, name)) is not None]
        entries[name] = {
            "error_test": spread(row["error_test"] for row in rows),
            "seconds": {"all": _short(statistics.fmean(row["seconds"]["all"] for row in rows))},
            "parameters": rows[0].get("parameters"),
        }
    return entries


# ---------------------------------------------------------------------- all settings


def overall(store: Store) -> dict[str, Any]:
    """Ranks and wins among the methods that every cell has, and differences from naive, with intervals over cells."""
    cells = store.of(TABLE)
    if not cells:
        return {}
    names = [row["method"] for row in cells[0]["rows"] if not row["method"].endswith(FORMS)]
    common = [name for name in names if all(error_of(cell, name) is not None for cell in cells)]
    errors = np.array([[error_of(cell, name) for name in common] for cell in cells], dtype=float)
    ranks = np.stack([rankdata(row) for row in errors])
    least = errors.min(1, keepdims=True)
    return {
        "cells": len(cells),
        "ranks": {name: _short(float(value)) for name, value in zip(common, ranks.mean(0), strict=True)},
        # A tie counts for all who share it.
        "wins": {name: int(value) for name, value in zip(common, (errors <= least).sum(0), strict=True)},
        "above_naive": {name: _above(cells, name) for name in [*common, AUTO] if name != "naive"},
    }


def _above(cells: Sequence[Mapping[str, Any]], name: str, other: str = "naive") -> dict[str, float | int]:
    pairs = [(error_of(cell, name), error_of(cell, other)) for cell in cells]
    values = np.array([first_error - two for first_error, two in pairs if first_error is not None and two is not None])
    interval = Bootstrap(len(values), draws=2000).interval(values)
    ends = {"value": _short(interval.value), "low": _short(interval.low), "high": _short(interval.high)}
    return {**ends, "cells": len(values)}


def times(store: Store) -> list[dict[str, Any]]:
    """Of one fit, by method and stage, and as a share of ORCA's."""
    return [
        {**{name: cell[name] for name in ("source", "target", "labels", "steps")}, "rows": cell["rows"]}
        for cell in sorted(store.of(TIME), key=lambda cell: (cell["source"], cell["target"]))
    ]


def cost(store: Store) -> list[dict[str, Any]]:
    """How long the cells of each kind took: seconds of the processor, and of the clock while others ran beside them."""
    entries = []
    for kind in (TABLE, SPECIALISTS, STAGE_ONE, LONG, TIME):
        cells = [cell for cell in store.of(kind) if "process_seconds" in cell]
        seconds = {name: _short(sum(cell[name] for cell in cells)) for name in ("process_seconds", "seconds")}
        entries += [{"kind": kind, "cells": len(cells), **seconds}] if cells else []
    return entries


def verdicts(store: Store) -> dict[str, Any]:
    """What was said, whether test data agree, and where they do not."""
    cells = store.of(TABLE)
    agreed = [cell for cell in cells if cell["agreement"]["agrees"]]
    rest = [cell for cell in cells if not cell["agreement"]["agrees"]]
    return {
        "cells": len(cells),
        "agree": len(agreed),
        "agree_by_name": sum(cell["agreement"]["agrees_by_name"] for cell in cells),
        "choices": dict(Counter(cell["verdict"]["choice"] for cell in cells)),
        "disagree": [
            {
                **{name: cell[name] for name in ("source", "target", "labels", "seed")},
                "choice": cell["verdict"]["choice"],
                "winner": cell["agreement"]["winner"],
            }
            for cell in rest
        ],
    }


def bounds(store: Store) -> dict[str, Any]:
    """Of both forms: in how many rows they hold, lie below the labels' entropy, and how far above the loss they are."""
    # A predictor that is fixed has a row of its own beside that of its method, which is the same for one of the two.
    rows = [
        row["bound"]
        for cell in store.of(TABLE)
        for row in cell["rows"]
        if row.get("bound") and not row["method"].endswith(FORMS)
    ]
    entries: dict[str, Any] = {"rows": len(rows)}
    for form in BOUNDS:
        held = [row for row in rows if row.get(form) is not None and row.get("err_target")]
        if held:
            ratios = [row[form] / row["err_target"] for row in held]
            entries[form] = {
                "rows": len(held),
                "valid": sum(ratio >= 1 for ratio in ratios),
                "below_entropy": sum(row[form] < row["label_entropy"] for row in held),
                "median_ratio": _short(statistics.median(ratios)),
            }
    return entries


def longer(store: Store) -> list[dict[str, Any]]:
    """Naive and from scratch at ten times the steps."""
    entries = []
    cells = store.of(LONG)
    for source, target, labels in sorted({(cell["source"], cell["target"], cell["labels"]) for cell in cells}):
        own = [cell for cell in cells if (cell["source"], cell["target"], cell["labels"]) == (source, target, labels)]
        errors = {
            name: spread(value for cell in own if (value := error_of(cell, name)) is not None)
            for name in ("scratch", "naive")
        }
        entries.append({"source": source, "target": target, "labels": labels, "steps": own[0]["steps"], **errors})
    return entries


def stage_one(store: Store) -> list[dict[str, Any]]:
    """Correlation of gap and error by run, the errors that stage 1 ends with, and omega."""
    return [
        {
            **{name: cell[name] for name in ("source", "target", "labels", "seed", "metric")},
            "correlations": cell["correlations"],
            "matched": {name: run["is_matched"] for name, run in cell["runs"].items()},
            "error": {name: run["error_last"] for name, run in cell["runs"].items()},
            "error_before": {name: run["error"][0] for name, run in cell["runs"].items()},
            "fld": {name: run["fld_last"] for name, run in cell["runs"].items()},
            "omega": cell["omega"],
        }
        for cell in sorted(store.of(STAGE_ONE), key=lambda cell: (cell["source"], cell["target"], cell["seed"]))
    ]


# ---------------------------------------------------------------------- the screen


def report(content: Mapping[str, Any]) -> None:
    for entry in content["settings"]:
        labels = entry["labels"] or "all"
        title = f"{entry['source']} on {entry['target']}, {labels} labels, {entry['metric']}, {entry['seeds']} seeds"
        rows = [
            (name, *_format_figures(figures), f"{sum(figures.get('seconds', {}).values()):.1f}")
            for name, figures in [*entry["methods"].items(), *entry["specialists"].items()]
            if "error_test" in figures
        ]
        frame.show(title, ("method", "test", "held out", "above naive", "s"), rows)
    for name, bar in content["bars"].items():
        where = f" ({bar['where']})" if bar["where"] else ""
        state = "met" if bar["met"] else "NOT met"
        print(f"{state:>12}: {name} {bar['bar']}: {bar['found']:.4g}{where}, {bar['seeds']}")
    for name in content.get("not_measured", ()):
        print(f"not measured: {name}")
    for stage, count in content.get("missing", {}).items():
        if count:
            print(f"cells of {stage} that were not run: {count}")


def _format_figures(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    test, valid, above = (figures.get(name) for name in ("error_test", "error_valid", "above_naive"))
    return (
        f"{test['mean']:.3f} +- {test['deviation']:.3f}" if test else "",
        f"{valid['mean']:.3f}" if valid else "",
        f"{above['mean']:+.3f} +- {above['deviation']:.3f}" if above else "",
    )
