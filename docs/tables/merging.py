"""Tables of merging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables.markdown import bars_with_places, environment, megabytes, number, table


def merging(results: dict[str, Any]) -> str:
    cases = [
        (
            case["key"],
            number(case["difference"]),
            f"{case['differing_at_border']} of {case['at_border']}" if case["at_border"] else "-",
            *(f"{case['command_seconds'][name]:.2f}" for name in ("mergekit", "interbasin")),
            f"{case['command_ratio']:.1f}",
            *(f"{case['inside_seconds'][name]:.2f}" for name in ("mergekit", "interbasin")),
            f"{case['inside_ratio']:.2f}",
            *(megabytes(case["peak_bytes"][name]) for name in ("mergekit", "interbasin")),
        )
        for case in results["cases"]
    ]
    columns = (
        "merge",
        "largest difference",
        "differ at the border",
        "mergekit, s",
        "whole command, s",
        "ratio",
        "mergekit, s",
        "start-up removed, s",
        "ratio",
        "mergekit, MB",
        "peak MB",
    )
    parts = [f"{results['parameters']['small'] / 1e6:.1f} M parameters in float32:", table(columns, cases)]
    if results["growth"]:
        growth = [
            (case["method"], *(megabytes(case["peak_bytes"][size]) for size in ("small", "large")))
            for case in results["growth"]
        ]
        parts += [
            f"Peak memory of the whole command, two models, and for {results['parameters']['large'] / 1e9:.2f} B "
            "parameters in bfloat16:",
            table(("method", "30 M, MB", "1 B, MB"), growth),
        ]
    return "\n\n".join([*parts, f"mergekit {results['environment']['mergekit'].split()[0]}; {environment(results)}"])


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "merge-summary": ("merge", bars_with_places),
    "merge": ("merge", merging),
}
