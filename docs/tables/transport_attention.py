"""Tables of transport between vision transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tables import transport
from tables.markdown import environment, table
from tables.transport import RULES, TASKS, both_tasks, seeds_of

BATCHES, GRID_BATCHES = (1, 5, 20), (1, 2, 5)
DIRECTIONS = {"vit-wider": "Narrow to wide, 64 to 96", "vit-narrower": "Wide to narrow, 96 to 64"}
OTHERS = {"vit-more-heads": "4 heads to 6, 64 to 96", "vit-deeper": "2 to 4 blocks, 64 to 96"}
NAMES = {
    "theseus-free": "Theseus by spaces, maps mix heads",
    "theseus-matched": "Theseus by spaces, heads matched",
    "theseus-matched-rms": "Theseus by spaces, heads matched, rms",
    "theseus-even": "Theseus by spaces, blocks spread evenly",
    "regression": "**regression** (q and k fitted head by head)",
    "regression-even": "regression, blocks spread evenly",
    "regression-keep-shift": "**regression, keep, aiming at shifts**",
    "regression-qk-full": "regression, q and k fitted to one map of all heads",
    "regression-qk-theseus": "regression, q and k carried by Theseus, maps mix heads",
    "regression-qk-groups": "regression, q and k carried by maps that keep to heads",
    "regression-qk-base": "regression, q and k left as they are",
}
MODES = {"interpolate2d": "`interpolate2d`", "interpolate": "`interpolate`", "mean": "`mean`"}


def named(row: str) -> str:
    method, _, mode = row.partition("-")
    if mode in MODES:
        return f"{'**regression**' if method == 'regression' else 'Theseus by spaces'}, {MODES[mode]}"
    return NAMES.get(row) or transport.named(row)


def by_batches(entries: Sequence[dict[str, Any]], batches: Sequence[int]) -> str:
    """Task accuracy, digits / clothes, a line for each row and rule, in the benchmark's order."""
    lines: dict[tuple[str, str, bool], dict[int, str]] = {}
    for entry in entries:
        line = lines.setdefault((entry["row"], entry["alpha"], entry["labels"]), {})
        line |= dict.fromkeys((entry["batches"],) if entry["batches"] else batches, both_tasks(entry))
    rows = [
        (named(row) + RULES[rule] + (" (labels)" if labels else ""), *(line.get(n, "") for n in batches))
        for (row, rule, labels), line in lines.items()
        if any(n in line for n in batches)
    ]
    return table(("batches of 32", *map(str, batches)), rows)


def core(results: dict[str, Any]) -> str:
    return _of_pairs(results, DIRECTIONS, BATCHES, lambda entry: "keep" not in entry["row"])


def others(results: dict[str, Any]) -> str:
    return _of_pairs(results, OTHERS, (5,))


def grids(results: dict[str, Any]) -> str:
    return _of_pairs(results, {"vit-finer": "4 x 4 patches to 7 x 7, width 64"}, GRID_BATCHES)


def _of_pairs(
    results: dict[str, Any],
    titles: dict[str, str],
    batches: Sequence[int],
    is_shown: Callable[[dict[str, Any]], bool] = lambda entry: True,
) -> str:
    parts = []
    for pair, title in titles.items():
        entries = [entry for entry in results["tables"].get(pair, []) if is_shown(entry)]
        if entries:
            parts += [f"**{title}**, seeds: {seeds_of(entries)}.", by_batches(entries, batches)]
            parts += [f"Not possible: {named(row)}. {why}" for row, why in results["refused"].get(pair, {}).items()]
    return "\n\n".join([*parts, environment(results)]) if parts else "Not measured yet."


def keep(results: dict[str, Any]) -> str:
    """Task and original accuracy, their mean, and seconds, of what can be compared with a regression that keeps."""
    parts = []
    for pair, title in DIRECTIONS.items():
        entries = [
            entry
            for entry in results["tables"].get(pair, [])
            if entry["alpha"] == "1" and (not entry["batches"] or (entry["batches"] == 20 and "keep" in entry["row"]))
        ]
        rows = []
        for entry in entries:
            shown, seconds = [], []
            for task in TASKS:
                figures = entry["tasks"].get(task)
                if figures is None:  # not run yet
                    shown += ["", "", ""]
                    continue
                accuracy, original = figures["accuracy"], figures["original"]
                shown += [
                    f"{accuracy['mean']:.1f} ± {accuracy['deviation']:.1f}",
                    f"{original['mean']:.1f} ± {original['deviation']:.1f}",
                    f"{(accuracy['mean'] + original['mean']) / 2:.1f}",
                ]
                seconds += [] if figures["seconds"] is None else [figures["seconds"]]
            cost = f"{sum(seconds) / len(seconds):.1f}" if seconds else "-"
            rows.append((named(entry["row"]) + (" (labels)" if entry["labels"] else ""), *shown, cost))
        if rows:
            columns = (*(f"{task}{what}" for task in TASKS for what in (": task", ": original", ": mean")), "s")
            parts += [f"**{title}**, seeds: {seeds_of(entries)}.", table(("20 batches", *columns), rows)]
    return "\n\n".join([*parts, environment(results)]) if parts else "Not measured yet."


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    f"transport-attention-{name}": ("transport_attention", make)
    for name, make in (("bars", transport.bars), ("core", core), ("keep", keep), ("others", others), ("grids", grids))
}
