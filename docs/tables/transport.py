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
    "regression-uncentred": "regression, not centred",
    "theseus-spaces-even": "Theseus by spaces, blocks spread evenly",
    "theseus-spaces-interpolated": "Theseus by spaces, interpolated blocks",
    "theseus-modules-interpolated": "Theseus by modules, interpolated blocks (the paper's)",
    "theseus-spaces-whole": "Theseus by spaces, CKA path, undivided",
    "theseus-modules-whole": "Theseus by modules, CKA path, undivided",
    "regression-even": "regression, blocks spread evenly",
    "source": "A before fine-tuning, itself",
    "source-interpolated": "A with interpolated blocks, itself",
    "tuned-source-interpolated": "tuned A with interpolated blocks, itself",
    "theseus-weights": "Theseus from the weights alone",
    "cross-lora": "Cross-LoRA, from the weights alone",
    "direct": "the update as it is",
    "transfusion": "TransFusion, from the weights alone",
    "bico": "BiCo",
    "gradfix": "GradFix",
    "theseus+gradfix": "Theseus, then GradFix",
    "label-ridge": "control: last layer onto labels",
    "padded": "the update, padded with zeros",
    "random": "noise of the same norm",
    "random-through-maps": "noise through the maps of Theseus",
    "ortho": "ortho (as printed, Theseus by spaces)",
    "regression": "**regression**",
    "regression-generic-tuned": "**regression, generic inputs aiming at tuned A**",
    "regression-keep": "**regression, keep**",
    "head-ridge": "control: last layer onto tuned A's outputs",
    "head-ridge-keep": "control: last layer, keep",
    "auto": "`auto`",
    "auto-keep": "`auto`, generic inputs given",
}


# Rows of the paper's tables that take the place of Theseus.
RIVALS = (
    "padded",
    "random",
    "random-through-maps",
    "theseus-weights",
    "cross-lora",
    "pinv",
    "pinv-tikhonov",
    "pinv-orthogonal",
    "linear",
    "linear-transpose",
    "linear-ridge",
    "linear-ridge-transpose",
    "linear-orthogonal",
    "ortho",
    "label-ridge",
    "bico",
    "theseus+gradfix",
)
ABLATIONS = (
    "theseus-spaces-inner",
    "theseus-spaces-uncentred",
    "theseus-modules-uncentred",
    "theseus-spaces-drop",
    "regression-uncentred",
)
DEEPER = (
    "source",
    "source-interpolated",
    "tuned-source-interpolated",
    "theseus-modules-interpolated",
    "theseus-spaces-interpolated",
    "theseus-modules-whole",
    "theseus-spaces-whole",
)
WIDTHS = {"wider": "128 to 192", "narrower": "192 to 128", "same": "128 to 128"}
PAIRS = {
    "narrower": "Wide to narrow, 192 to 128",
    "same": "The same architecture, 128",
    "deeper": "2 to 4 blocks, 128 to 192",
    "shallower": "4 to 2 blocks, 128 to 192",
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


def both_tasks(entry: dict[str, Any], field: str = "accuracy") -> str:
    cells = [f"{entry['tasks'][task][field]['mean']:.1f}" for task in TASKS if task in entry["tasks"]]
    return " / ".join(cells)


def by_batches(entries: Sequence[dict[str, Any]], batches: Sequence[int], original: bool = False) -> str:
    """Task accuracy, digits / clothes, a line for each row and rule; those with labels at the end.

    With ``original``, a last column has the accuracy on what B could do before, with the most batches.
    """
    lines: dict[tuple[bool, str, str], dict[int, str]] = {}
    kept: dict[tuple[bool, str, str], str] = {}
    for entry in entries:
        key = entry["labels"], entry["row"], entry["alpha"]
        for place in (entry["batches"],) if entry["batches"] else batches:
            lines.setdefault(key, {})[place] = both_tasks(entry)
        if entry["batches"] in (0, batches[-1]):
            kept[key] = both_tasks(entry, "original")
    rows = [
        (
            named(key[1]) + RULES[key[2]] + (" (labels)" if key[0] else ""),
            *(line.get(n, "") for n in batches),
            *((kept.get(key, ""),) if original else ()),
        )
        for key, line in sorted(lines.items(), key=lambda item: item[0][0])
    ]
    more = (f"original, {batches[-1]}",) if original else ()
    return table(("batches of 32", *map(str, batches), *more), rows)


def in_table(results: dict[str, Any], pair: str, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The entries of a pair that were run with batches."""
    return [entry for entry in results["tables"].get(pair, ()) if "shots" not in entry and entry["row"] not in without]


def seeds_of(entries: Sequence[dict[str, Any]]) -> str:
    counts = {figures["seeds"] for entry in entries for figures in entry["tasks"].values()}
    return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"


def core(results: dict[str, Any]) -> str:
    entries = [
        entry for entry in in_table(results, "wider", (*RIVALS, *ABLATIONS)) if "distil-keep" not in entry["row"]
    ]
    head = f"Accuracy of B on the turned task, digits / clothes, mean of {seeds_of(entries)} seeds."
    return "\n\n".join([head, by_batches(entries, BATCHES), environment(results)])


def baselines(results: dict[str, Any]) -> str:
    """What can take the place of Theseus: accuracy with alpha 1 and with one found without labels, norm errors."""
    shown = ("theseus-modules", "theseus-spaces", *RIVALS)
    held = {(entry["row"], entry["batches"], entry["alpha"]): entry for entry in in_table(results, "wider")}
    rows, used = [], []
    for row in shown:
        cells = []
        for batches in (5, 20):
            fixed = held.get((row, batches, "1")) or held.get((row, 0, "1"))
            free = held.get((row, batches, "label-free"))
            used += [fixed] if fixed else []
            errors = [figures["norm_error"] for figures in fixed["tasks"].values()] if fixed else []
            cells += [
                both_tasks(fixed) if fixed else "",
                both_tasks(free) if free else "-",
                number(max((error for error in errors if error is not None), key=abs, default=None)),
            ]
        labels = any(entry["labels"] for key, entry in held.items() if key[0] == row)
        rows.append((named(row) + (" (labels)" if labels else ""), *cells))
    columns = (
        "",
        "5 batches",
        "alpha without labels",
        "norm error",
        "20 batches",
        "alpha without labels",
        "norm error",
    )
    head = f"Digits / clothes, mean of {seeds_of(used)} seeds."
    return "\n\n".join([head, table(columns, rows), environment(results)])


def keep(results: dict[str, Any]) -> str:
    """Task and original accuracy with 20 batches, and what it costs."""
    rows = []
    for entry in in_table(results, "wider", ABLATIONS):
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
    parts = []
    for pair, title in PAIRS.items():
        entries = in_table(results, pair, (*RIVALS[:-1], *DEEPER))
        if entries:
            parts += [f"**{title}**, {seeds_of(entries)} seeds.", by_batches(entries, (1, 5, 20), original=True)]
    return "\n\n".join([*parts, environment(results)]) if parts else "Not measured yet."


def depth(results: dict[str, Any]) -> str:
    """Ways to pair two blocks with four."""
    wanted = {
        "none": "B alone",
        "source": "",
        "tuned-source": "tuned A itself",
        "source-interpolated": "",
        "tuned-source-interpolated": "",
        "theseus-modules": "Theseus by modules, CKA path",
        "theseus-modules-whole": "",
        "theseus-modules-interpolated": "",
        "theseus-spaces": "Theseus by spaces, CKA path",
        "theseus-spaces-whole": "",
        "theseus-spaces-even": "",
        "theseus-spaces-interpolated": "",
        "regression": "**regression**, CKA path",
        "regression-even": "",
    }
    held = [entry for entry in in_table(results, "deeper") if entry["row"] in wanted]
    entries = [entry for entry in held if entry["alpha"] == "1"]
    free = {
        entry["row"]: both_tasks(entry) for entry in held if (entry["alpha"], entry["batches"]) == ("label-free", 5)
    }
    if not any(entry["row"] in DEEPER for entry in entries):
        return "Not measured yet."
    rows = []
    for row, title in wanted.items():
        cells = {entry["batches"]: entry for entry in entries if entry["row"] == row}
        last = cells.get(20) or cells.get(0)
        if last is None:
            continue
        blocks = {entry["blocks"] for entry in cells.values() if "blocks" in entry and entry["batches"]}
        shown = [cells.get(batches) or cells.get(0) for batches in (1, 5, 20)]
        rows.append(
            (
                title or named(row),
                *(both_tasks(entry) if entry else "" for entry in shown),
                free.get(row, "-"),
                both_tasks(last, "original"),
                f"{min(blocks)} of 4" if blocks else "-",
            )
        )
    columns = ("batches of 32", "1", "5", "20", "5, alpha without labels", "original, 20", "blocks with an update")
    head = f"Digits / clothes, 2 to 4 blocks, 128 to 192, {seeds_of(entries)} seeds."
    return "\n\n".join([head, table(columns, rows), environment(results)])


def shots(results: dict[str, Any]) -> str:
    """By the number of images: so many of each class (K), or so many batches (B)."""
    parts = []
    for pair, entries in results["shots"].items():
        places = sorted({(entry["images"], entry["shots"], entry["batches"]) for entry in entries if entry["shots"]})
        beside = {(entry["images"], 0, entry["batches"]) for entry in entries if entry["batches"] in (1, 2, 5)}
        places = sorted([*places, *beside])
        lines: dict[str, dict[Any, str]] = {}
        for entry in entries:
            cell = " / ".join(f"{entry['tasks'][task]:.1f}" for task in TASKS if task in entry["tasks"])
            lines.setdefault(entry["row"], {})[entry["images"], entry["shots"], entry["batches"]] = cell
        columns = [f"{images} (K = {k})" if k else f"{images} (B = {b})" for images, k, b in places]
        rows = [(named(row), *(line.get(place, "") for place in places)) for row, line in lines.items()]
        parts += [f"**{WIDTHS[pair]}**, {min(entry['seeds'] for entry in entries)} seeds."]
        parts += [table(("images", *columns), rows)]
    return "\n\n".join([*parts, environment(results)]) if parts else "Not measured yet."


def ablations(results: dict[str, Any]) -> str:
    """Points above what a row is compared with, on the same seeds."""
    lines: dict[tuple[str, str], dict[int, str]] = {}
    counts = []
    for entry in results["ablations"]:
        tasks = [entry["tasks"][task] for task in TASKS if task in entry["tasks"]]
        counts += [figures["seeds"] for figures in tasks]
        cell = " / ".join(f"{figures['accuracy']:.1f} ({figures['above']:+.1f})" for figures in tasks)
        lines.setdefault((entry["row"], entry["than"]), {})[entry["batches"]] = cell
    if not lines:
        return "Not measured yet."
    rows = [
        (named(row), named(than).strip("*"), *(line.get(n, "") for n in (1, 5, 20)))
        for (row, than), line in lines.items()
    ]
    seeds = f"{min(counts)} to {max(counts)} seeds"
    head = f"Digits / clothes; in brackets points above the row that it is compared with; {seeds}."
    columns = ("batches of 32", "compared with", "1", "5", "20")
    return "\n\n".join([head, table(columns, rows, words=(0, 1)), environment(results)])


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
    for title, missing in results["missing"].items():
        counts = [f"{name} {count}" for name, count in missing.items() if count]
        parts.append(f"Cells of {title} that were not run: {', '.join(counts) or 'none'}.")
    return "\n\n".join(parts)


def ties(results: dict[str, Any]) -> str:
    """One line for each row and pair: the cases where it ties or wins, with points above Theseus."""
    lines: dict[tuple[bool, str, str], list[str]] = {}
    for tie in results["ties_with_theseus"]:
        rule = "" if tie["alpha"] == "1" else ", alpha without labels"
        text = f"{tie['task']}, {tie['batches']}{rule}: {tie['above']:+.1f}"
        lines.setdefault((tie["labels"], tie["row"], tie["pair"]), []).append(text)
    pairs = {"wider": "Narrow to wide, 128 to 192", **PAIRS}
    rows = [
        (named(row) + (" (labels)" if labels else ""), pairs[pair], "; ".join(texts))
        for (labels, row, pair), texts in sorted(lines.items(), key=lambda item: item[0][0])
    ]
    return table(("row", "from A to B", "task, batches: points above Theseus by spaces"), rows, words=(0, 1, 2))


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    f"transport-{name}": ("transport_quality", make)
    for name, make in (
        ("bars", bars),
        ("core", core),
        ("baselines", baselines),
        ("depth", depth),
        ("ablations", ablations),
        ("keep", keep),
        ("pairs", other_pairs),
        ("shots", shots),
        ("verdicts", verdicts),
        ("warm", warm),
        ("ties", ties),
    )
}
