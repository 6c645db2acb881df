"""Tables of networks: recording and wiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables.markdown import environment, megabytes, number, table


def recording(found: dict[str, Any]) -> str:
    rows = [
        (
            way,
            str(found["products"][way]),
            f"{found['times'][way]['best']:.2f}",
            f"{found['times']['published']['best'] / found['times'][way]['best']:.2f}",
            megabytes(found["bytes"][way]),
            f"{found['bytes']['published'] / found['bytes'][way]:.1f}",
        )
        for way in ("spaces", "boundaries", "published")
    ]
    columns = ("what is recorded", "products a batch", "seconds", "times as fast", "peak MB", "times less memory")
    return table(columns, rows) + f"\n\n{environment(found)}"


def architectures(found: dict[str, Any]) -> str:
    cases = sorted(found["architectures"], key=lambda case: (case["traced"], case.get("coverage", 0.0)))
    short = [(*wired(case), "; ".join(case["reasons"]).replace("|", "\\|")) for case in cases if case["reasons"]]
    full = [wired(case) for case in found["architectures"] if not case["reasons"]]
    bars, columns = found["bars"], ("architecture", "spaces", "coverage", "check32", "check64", "seconds")
    summary = found["summary"]
    parts = [
        f"{summary['architectures']} architectures: {summary['traced']} can be traced, and {len(full)} meet all bars. "
        f"The median coverage is {summary['median_coverage']:.1%}, the median time "
        f"{summary['median_seconds']:.1f} s.",
        f"**Fall short**: not traced, coverage below {bars['coverage']:g}, or a change above {bars['check32']:g} in "
        f"float32 or {bars['check64']:g} in float64.",
        table((*columns, "because"), short, words=(0, 6)) if short else "None.",
        "**The others**:",
        table(columns, full),
        environment(found),
    ]
    return "\n\n".join(parts)


def wired(case: dict[str, Any]) -> tuple[str, ...]:
    if not case["traced"]:
        return (case["name"], *["-"] * 5)
    return (
        case["name"],
        str(case["spaces"]),
        f"{case['coverage']:.3f}",
        number(case["check32"]),
        number(case["check64"]),
        f"{case['seconds']:.1f}",
    )


def wiring_depth(found: dict[str, Any]) -> str:
    rows = [
        (
            case["shape"],
            str(case["depth"]),
            str(case["operators"]),
            f"{case['times']['export']['best']:.2f}",
            f"{case['times']['wire']['best']:.2f}",
            f"{case['ratio']:.2f}",
        )
        for case in found["depth"]
    ]
    columns = ("network", "layers", "operators", "torch.export alone, s", "wiring, s", "ratio")
    return table(columns, rows) + f"\n\n{environment(found)}"


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "recording": ("recording", recording),
    "architectures": ("wiring", architectures),
    "wiring-depth": ("wiring", wiring_depth),
}
