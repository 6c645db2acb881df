"""Tables of transport between language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tables.markdown import environment, table
from tables.transport import NAMES as COMMON
from tables.transport import named as named_in_common

QUESTION = "transport_language"
NAMES = {
    "random": "noise of the update's size",
    "random-through-maps": "noise through the maps",
    "theseus-matched": "Theseus, heads matched",
    "theseus-free": "Theseus, heads free",
    "theseus-modules": "Theseus by modules (the paper's)",
    "theseus-rms": "Theseus, heads matched, rms",
}
# In the order of the tables; the rest follows.
ORDER = (
    "none",
    "random",
    "random-through-maps",
    *("theseus-matched", "theseus-free", "theseus-modules", "theseus-rms"),
    *("regression", "regression-keep", "auto", "auto-keep", "head-ridge", "head-ridge-keep"),
    *("distil-0.0003", "distil-0.001", "distil-0.003"),
    *("distil-keep-0.0003", "distil-keep-0.001", "distil-keep-0.003"),
    *("written-in", "tuned-source", "tuned-target"),
)
WITH_LABELS = ("tuned-target", "few-texts")


def named(row: str, rule: str) -> str:
    if row.startswith("few-texts-"):
        name = f"control: B trained on the same texts, rate {row.removeprefix('few-texts-')}"
    else:
        name = NAMES.get(row) or COMMON.get(row) or named_in_common(row)
    alpha = {"1": "", "label-free": ", alpha without labels"}.get(rule, f", alpha {rule}")
    return name + alpha + (" (labels)" if row.startswith(WITH_LABELS) else "")


def lines_of(results: dict[str, Any], pair: str, task: str) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """The lines of a table, each with what there is for a number of batches; what needs none stands under 0."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in results["lines"]:
        if (line["pair"], line["task"]) == (pair, task):
            found.setdefault((line["row"], line["rule"]), {})[line["batches"]] = line
    rank = {row: place for place, row in enumerate(ORDER)}

    def place(key: tuple[str, str]) -> tuple[Any, ...]:
        return rank.get(key[0], len(rank)), key[0], not key[1][0].isdigit(), key[1]

    return {key: found[key] for key in sorted(found, key=place)}


def shown(line: dict[str, Any] | None, figure: str, digits: int) -> str:
    if line is None:
        return ""
    if figure not in line:
        return "refused" if "refused" in line else "-"
    mean, spread = line[figure]
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def grid(results: dict[str, Any], pair: str, task: str, parts: Sequence[tuple[int, str, int]]) -> list[list[str]]:
    """A row for each line: some figures, each at a number of batches and with so many digits; empty lines left out."""
    rows = []
    for (row, rule), at in lines_of(results, pair, task).items():
        cells = [shown(at.get(batches, at.get(0)), figure, digits) for batches, figure, digits in parts]
        if any(cell not in ("", "-") for cell in cells):
            rows.append([named(row, rule), *cells])
    return rows


# ---------------------------------------------------------------------- the tables

TITLES = {"questions": "questions", "subjects": "subjects", "german": "German captions", "headlines": "headlines"}
ENCODER_BATCHES, DECODER_BATCHES, SAMPLES = (5, 20, 50), (1, 5, 20), {10: 200, 25: 500, 40: 800}


def measured(results: dict[str, Any], pair: str, task: str, batches: Sequence[int]) -> list[int]:
    """The numbers of batches that there is something for."""
    known = {line["batches"] for line in results["lines"] if (line["pair"], line["task"]) == (pair, task)}
    return [count for count in batches if count in known]


def ended(results: dict[str, Any], tables: Sequence[str]) -> str:
    return "\n\n".join([*tables, environment(results)])


def probes(results: dict[str, Any]) -> str:
    """Table 2: a linear probe on frozen encoders."""
    tables = []
    for task in ("questions", "subjects"):
        counts = measured(results, "encoder", task, ENCODER_BATCHES)
        rows = grid(results, "encoder", task, [(batches, "probe", 1) for batches in counts])
        if rows:
            tables.append(table((f"{TITLES[task]}: batches of 32", *map(str, counts)), rows))
    return ended(results, tables)


def heads(results: dict[str, Any]) -> str:
    """Table 9: tuned A's head on B's states, beside a head fitted to tuned A's answers."""
    tables = []
    for task in ("questions", "subjects"):
        counts = measured(results, "encoder", task, ENCODER_BATCHES)
        parts = [(batches, figure, 1) for batches in counts for figure in ("reused", "ridge")]
        columns = [f"{batches}: {figure}" for batches in counts for figure in ("reused", "ridge")]
        if counts:
            tables.append(table((TITLES[task], *columns), grid(results, "encoder", task, parts)))
    return ended(results, tables)


def decoders(results: dict[str, Any], pair: str = "decoder") -> str:
    """Nats a piece on the task by batches; with 20 also what is foreseen, and nats on what B learnt."""
    tables = []
    for task in ("questions", "german"):
        counts = measured(results, pair, task, DECODER_BATCHES)
        parts = [(batches, "loss", 3) for batches in counts]
        parts += [(20, "accuracy", 1), (20, "original_loss", 3), (20, "seconds", 1)]
        columns = (*map(str, counts), "20: foreseen, %", "20: English captions", "20: s")
        rows = grid(results, pair, task, parts)
        if rows:
            tables.append(table((f"{TITLES[task]}: batches of 32", *columns), rows))
    return ended(results, tables) if tables else "Not measured yet."


def rotary(results: dict[str, Any]) -> str:
    return decoders(results, "rotary")


def writers(results: dict[str, Any]) -> str:
    """Table 10: ROUGE-L over alpha and over the number of texts."""
    parts = [(batches, "rouge", 3) for batches in SAMPLES] + [(batches, "loss", 3) for batches in SAMPLES]
    columns = [f"{count}: ROUGE-L" for count in SAMPLES.values()] + [f"{count}: nats" for count in SAMPLES.values()]
    return ended(results, [table(("texts", *columns), grid(results, "writer", "headlines", parts))])


def verdicts(results: dict[str, Any]) -> str:
    """What `transport` says of its own accord."""
    rows = []
    for line in results["lines"]:
        for verdict in line.get("verdicts", ()):
            count = f"{SAMPLES[line['batches']]} texts" if line["pair"] == "writer" else f"{line['batches']} batches"
            rows.append((line["pair"], TITLES[line["task"]], count, verdict.replace("|", r"\|")))
    missing = ", ".join(f"{name} {count}" for name, count in results["missing"].items() if count)
    end = [f"Cells of this benchmark that were not run: {missing}."] if missing else []
    return "\n\n".join([table(("network", "task", "inputs", "verdict"), rows, words=range(4)), *end])


MAKERS = {
    "language-probes": (QUESTION, probes),
    "language-heads": (QUESTION, heads),
    "language-decoders": (QUESTION, decoders),
    "language-rotary": (QUESTION, rotary),
    "language-writers": (QUESTION, writers),
    "language-verdicts": (QUESTION, verdicts),
}
