"""Tables of the foundation: orthogonal factors and moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables.markdown import bars_with_places, environment, megabytes, number, table


def polar(results: dict[str, Any]) -> str:
    rows = [
        (
            case["key"],
            f"{1e3 * case['seconds']['svd']['best']:.2f}",
            f"{1e3 * case['seconds']['polar']['best']:.2f}",
            f"{case['speed']:.2f}",
            case["path"],
            number(case["orthogonality"]),
            number(case["reconstruction"]),
            number(case["difference"]),
        )
        for case in results["cases"]
    ]
    columns = ("case", "SVD ms", "polar ms", "speed", "path", "‖Q'Q−I‖", "‖QH−A‖/‖A‖", "to the SVD's")
    return table(columns, rows) + f"\n\n{environment(results)}"


def moments(results: dict[str, Any]) -> str:
    times = [
        (
            f"{case['source']} x {case['target']}",
            f"{case['rows']:,}",
            "yes" if case["grams"] else "no",
            f"{case['times']['published']['best']:.3f}",
            f"{case['times']['ours']['best']:.3f}",
            f"{case['ratio']:.2f}",
        )
        for case in results["time"]
    ]
    memory = [
        (f"{case['rows']:,}", megabytes(case["ours_bytes"]), megabytes(case["published_bytes"]))
        for case in results["memory"]
    ]
    accuracy = [
        (f"{case['mean']:g}", number(case["ours"]), number(case["without_origin"])) for case in results["accuracy"]
    ]
    parts = [
        table(("widths", "rows", "Gram matrices", "float64 first, s", "streamed, s", "ratio"), times),
        "Peak memory above the start, rows arriving in batches (768 x 1024):",
        table(("rows", "streamed, MB", "float64 first, MB"), memory),
        "Relative error of the centred cross-product of float32 rows, by the mean of the rows (their spread is 1):",
        table(("mean", "streamed", "float32 sums without an origin"), accuracy),
        environment(results),
    ]
    return "\n\n".join(parts)


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "polar-summary": ("polar", bars_with_places),
    "polar": ("polar", polar),
    "moments": ("moments", moments),
}
