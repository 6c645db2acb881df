"""Tables of networks: recording and wiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables.markdown import environment, megabytes, number, table


def recording(results: dict[str, Any]) -> str:
    rows = [
        (
            way,
            str(results["products"][way]),
            f"{results['times'][way]['best']:.2f}",
            f"{results['times']['published']['best'] / results['times'][way]['best']:.2f}",
            megabytes(results["bytes"][way]),
            f"{results['bytes']['published'] / results['bytes'][way]:.1f}",
        )
        for way in ("spaces", "boundaries", "published")
    ]
    columns = ("what is recorded", "products a batch", "seconds", "times as fast", "peak MB", "times less memory")
    return table(columns, rows) + f"\n\n{environment(results)}"


def architectures(results: dict[str, Any]) -> str:
    cases = sorted(results["architectures"], key=lambda case: (case["traced"], case.get("coverage", 0.0)))
    short = [
        (*describe_wiring(case), "; ".join(case["reasons"]).replace("|", "\\|")) for case in cases if case["reasons"]
    ]
    full = [describe_wiring(case) for case in results["architectures"] if not case["reasons"]]
    bars, columns = results["bars"], ("architecture", "spaces", "coverage", "check32", "check64", "seconds")
    summary = results["summary"]
    parts = [
        f"{summary['architectures']} architectures: {summary['traced']} can be traced, and {len(full)} meet all bars. "
        f"The median coverage is {summary['median_coverage']:.1%}, the median time "
        f"{summary['median_seconds']:.1f} s.",
        f"**Fall short**: not traced, coverage below {bars['coverage']:g}, or a change above {bars['check32']:g} in "
        f"float32 or {bars['check64']:g} in float64.",
        table((*columns, "because"), short, words=(0, 6)) if short else "None.",
        "**The others**:",
        table(columns, full),
        environment(results),
    ]
    return "\n\n".join(parts)


def describe_wiring(case: dict[str, Any]) -> tuple[str, ...]:
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


def wiring_depth(results: dict[str, Any]) -> str:
    rows = [
        (
            case["shape"],
            str(case["depth"]),
            str(case["operators"]),
            f"{case['times']['export']['best']:.2f}",
            f"{case['times']['wire']['best']:.2f}",
            f"{case['ratio']:.2f}",
        )
        for case in results["depth"]
    ]
    columns = ("network", "layers", "operators", "torch.export alone, s", "wiring, s", "ratio")
    return table(columns, rows) + f"\n\n{environment(results)}"


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "recording": ("recording", recording),
    "architectures": ("wiring", architectures),
    "wiring-depth": ("wiring", wiring_depth),
}
