"""How tables and numbers look on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    lines = [" | ".join(columns), " | ".join("---" if i in words else "---:" for i in range(len(columns)))]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(row) for row in rows)])


def environment(results: dict[str, Any]) -> str:
    where = results["environment"]
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"{where['processor']}, {threads}, torch {where['torch']}, seed {where['seed']}, {where['date'][:10]}."


def bars_with_places(results: dict[str, Any]) -> str:
    rows = [
        (name, bar["bar"], number(bar["found"]), bar["where"] or "-", "met" if bar["met"] else "**not met**")
        for name, bar in results["bars"].items()
    ]
    return table(("bar", "asked", "found", "worst at", ""), rows) + f"\n\n{environment(results)}"


def bars(results: dict[str, Any]) -> str:
    rows = [
        (name, bar["bar"], number(bar["found"]), "met" if bar["met"] else "**not met**")
        for name, bar in results["bars"].items()
    ]
    return table(("bar", "asked", "found", ""), rows)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f}"


def spread(figure: dict[str, float], times: float = 1, digits: int = 3) -> str:
    mean = f"{times * figure['mean']:.{digits}f}"
    if figure.get("seeds") == 1:  # which has no spread
        return mean
    return f"{mean} ± {times * figure['deviation']:.{digits}f}"


def range_of_numbers(values: Sequence[float]) -> str:
    least, most = number(min(values)), number(max(values))
    return least if least == most else f"{least} to {most}"


def range_of(values: Sequence[float], form: str) -> str:
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"
