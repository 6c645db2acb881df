"""Tables of transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tables.markdown import bars_with_places, environment, number, table

BATCHES = (1, 2, 5, 10, 20, 50)
TASKS = ("digits", "clothes")
RULES = {"1": "", "label-free": ", alpha without labels", "validation": ", alpha by labelled validation"}
NAMES = {
    "none": "B alone",
    "tuned-source": "tuned A itself",
    "tuned-target": "B fine-tuned",
    "written-in": "tuned A written into B",
    "theseus-modules-inner": "Theseus by modules, inner layers (the paper's scope)",
    "theseus-modules": "Theseus by modules",
    "theseus-spaces": "Theseus by spaces",
    "theseus-spaces-rms": "Theseus by spaces, rms",
    "theseus-spaces-inner": "Theseus by spaces, inner layers",
    "theseus-spaces-uncentred": "Theseus by spaces, not centred",
    "theseus-modules-uncentred": "Theseus by modules, not centred",
    "theseus-spaces-drop": "Theseus by spaces, unobserved directions dropped",
    "regression": "**regression**",
    "regression-generic-tuned": "**regression, generic inputs aiming at tuned A**",
    "regression-keep": "**regression, keep**",
    "head-ridge": "control: last layer onto tuned A's outputs",
    "head-ridge-keep": "control: last layer, keep",
    "auto": "`auto`",
    "auto-keep": "`auto`, generic inputs given",
}


def named(row: str) -> str:
    if row.startswith("distil-"):
        *words, rate = row.removeprefix("distil-").split("-")
        # A rate such as 1e-05 would hold a hyphen; those in use do not.
        return f"control: distillation{''.join(f', {word}' for word in words)}, rate {rate}"
    return NAMES.get(row, row)


def in_points(figures: dict[str, Any]) -> str:
    accuracy = figures["accuracy"]
    return f"{accuracy['mean']:.1f} ± {accuracy['deviation']:.1f}"


def both_tasks(entry: dict[str, Any]) -> str:
    cells = [f"{entry['tasks'][task]['accuracy']['mean']:.1f}" for task in TASKS if task in entry["tasks"]]
    return " / ".join(cells)


def by_batches(entries: Sequence[dict[str, Any]], batches: Sequence[int], shots: bool = False) -> str:
    """Task accuracy, digits / clothes, a line for each row and rule; those with labels at the end."""
    lines: dict[tuple[bool, str, str], dict[int, str]] = {}
    for entry in entries:
        if ("shots" in entry) != shots:
            continue
        key = entry["labels"], entry["row"], entry["alpha"]
        at = entry["shots"] if shots else entry["batches"]
        for place in (at,) if at else batches:
            lines.setdefault(key, {})[place] = both_tasks(entry)
    rows = [
        (named(row) + RULES[rule] + (" (labels)" if labels else ""), *(line.get(n, "") for n in batches))
        for (labels, row, rule), line in sorted(lines.items(), key=lambda item: item[0][0])
    ]
    return table(("examples of each class" if shots else "batches of 32", *map(str, batches)), rows)


def seeds_of(entries: Sequence[dict[str, Any]]) -> str:
    counts = {figures["seeds"] for entry in entries for figures in entry["tasks"].values()}
    return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"


def core(results: dict[str, Any]) -> str:
    entries = results["tables"]["wider"]
    head = f"Accuracy of B on the turned task, digits / clothes, mean of {seeds_of(entries)} seeds."
    return "\n\n".join([head, by_batches(entries, BATCHES), environment(results)])


def keep(results: dict[str, Any]) -> str:
    """Task and original accuracy with 20 batches, and what it costs."""
    rows = []
    for entry in results["tables"]["wider"]:
        if entry["alpha"] != "1" or entry["batches"] not in (0, 20):
            continue
        shown = []
        for task in TASKS:
            figures = entry["tasks"].get(task)
            if figures is None:
                shown += ["-", "-"]
                continue
            original = figures["original"]
            mean = (figures["accuracy"]["mean"] + original["mean"]) / 2
            shown += [f"{in_points(figures)}, {original['mean']:.1f} ± {original['deviation']:.1f}", f"{mean:.1f}"]
        seconds = [figures["seconds"] for figures in entry["tasks"].values() if figures["seconds"] is not None]
        error = [figures["norm_error"] for figures in entry["tasks"].values() if figures["norm_error"] is not None]
        rows.append(
            (
                named(entry["row"]) + (" (labels)" if entry["labels"] else ""),
                *shown,
                number(max(error, key=abs)) if error else "-",
                f"{sum(seconds) / len(seconds):.2f}" if seconds else "-",
            )
        )
    columns = ("20 batches", "digits: task, original", "mean", "clothes: task, original", "mean", "norm error", "s")
    return table(columns, rows) + f"\n\n{environment(results)}"


def other_pairs(results: dict[str, Any]) -> str:
    titles = {
        "narrower": "Wide to narrow, 192 to 128",
        "same": "The same architecture, 128",
        "deeper": "2 to 4 blocks, 128 to 192",
        "shallower": "4 to 2 blocks, 128 to 192",
    }
    parts = []
    for pair, title in titles.items():
        entries = results["tables"].get(pair, [])
        if entries:
            parts += [f"**{title}**, {seeds_of(entries)} seeds.", by_batches(entries, (1, 5, 20))]
    return "\n\n".join([*parts, environment(results)]) if parts else "Not measured yet."


def shots(results: dict[str, Any]) -> str:
    parts = []
    for pair, title in (("wider", "128 to 192"), ("narrower", "192 to 128")):
        entries = [entry for entry in results["tables"].get(pair, []) if "shots" in entry]
        if entries:
            parts += [f"**{title}**, {seeds_of(entries)} seeds.", by_batches(entries, (1, 2, 5, 10, 20), shots=True)]
    return "\n\n".join([*parts, environment(results)]) if parts else "Not measured yet."


def verdicts(results: dict[str, Any]) -> str:
    kinds = ("copy", "transport", "train", "stay", "do-not")
    titles = {
        "unrelated": "unrelated networks",
        "related": "the networks of the tables, outputs of their own",
        "worthless": "a tuned model that is worth nothing",
        "better after all": "meant to be worth nothing, but better than its base on test images",
    }
    rows = [
        (titles.get(name, name), *(str(counts.get(kind, 0) or "") for kind in kinds))
        for name, counts in results["verdicts"].items()
    ]
    return table(("case", *kinds), rows) + f"\n\n{environment(results)}"


def warm(results: dict[str, Any]) -> str:
    rows = []
    for task, curves in results["warm"].items():
        for name, curve in curves.items():
            losses = dict(zip(curve["steps"], curve["losses"], strict=True))
            start = "B alone" if name == "none" else named(name).strip("*")
            rows.append((task, start, *(number(losses.get(step)) for step in (0, 10, 50, 100, 150)), in_points(curve)))
    columns = ("task", "start", "loss at 0", "10", "50", "100", "150", "accuracy after")
    return table(columns, rows, words=(0, 1)) + f"\n\n{environment(results)}"


def bars(results: dict[str, Any]) -> str:
    parts = [bars_with_places(results)]
    if results["not_measured"]:
        parts.append(f"Not measured yet: {'; '.join(results['not_measured'])}.")
    missing = [f"{name} {count}" for name, count in results["missing"].items() if count]
    if missing:
        parts.append(f"Cells that were not run: {', '.join(missing)}.")
    return "\n\n".join(parts)


def ties(results: dict[str, Any]) -> str:
    rows = [
        (named(tie["row"]) + RULES[tie["alpha"]], tie["task"], str(tie["batches"]), f"{tie['above']:+.1f}")
        for tie in results["ties_with_theseus"]
    ]
    return table(("rule", "task", "batches", "points above Theseus by spaces"), rows, words=(0, 1))


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    f"transport-{name}": ("transport_quality", make)
    for name, make in (
        ("bars", bars),
        ("core", core),
        ("keep", keep),
        ("pairs", other_pairs),
        ("shots", shots),
        ("verdicts", verdicts),
        ("warm", warm),
        ("ties", ties),
    )
}
