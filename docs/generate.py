"""Write the parts of the documentation that are made, not typed.

- ``docs/command-line.md`` from the program's own help;
- the tables between ``<!-- table: NAME -->`` and ``<!-- end of table -->`` in README.md and docs/*.md from
  ``benchmarks/results/NAME.json``.

    python docs/generate.py            write them
    python docs/generate.py --check    fail if one is not up to date
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def command_line() -> str:
    """The help of the program and of every command, as a page."""
    os.environ.update(COLUMNS="100", TERMINAL_WIDTH="100", NO_COLOR="1", TERM="dumb")
    from typer.main import get_command
    from typer.testing import CliRunner

    from interbasin.cli import app

    def help_of(*words: str) -> str:
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="interbasin", terminal_width=100)
        assert shown.exit_code == 0, shown.output
        return "\n".join(line.rstrip() for line in shown.output.strip().splitlines())

    pages = [
        "# The command line",
        "Made by `docs/generate.py` from the program itself. Each command calls one public function of the same name "
        "or purpose; what it prints with `--json` is that function's summary.",
        f"```text\n{help_of()}\n```",
    ]
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        pages += [f"## {name}", f"```text\n{help_of(name)}\n```"]
    return "\n\n".join(pages) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    lines = [" | ".join(columns), " | ".join("---" if i in words else "---:" for i in range(len(columns)))]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(row) for row in rows)])


def environment(found: dict[str, Any]) -> str:
    where = found["environment"]
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"{where['processor']}, {threads}, torch {where['torch']}, seed {where['seed']}, {where['date'][:10]}."


def polar_summary(found: dict[str, Any]) -> str:
    rows = [
        (name, bar["bar"], _number(bar["found"]), bar["where"] or "-", "met" if bar["met"] else "**not met**")
        for name, bar in found["bars"].items()
    ]
    return table(("bar", "asked", "found", "worst at", ""), rows) + f"\n\n{environment(found)}"


def polar(found: dict[str, Any]) -> str:
    rows = [
        (
            case["key"],
            f"{1e3 * case['seconds']['svd']['best']:.2f}",
            f"{1e3 * case['seconds']['polar']['best']:.2f}",
            f"{case['speed']:.2f}",
            case["path"],
            _number(case["orthogonality"]),
            _number(case["reconstruction"]),
            _number(case["difference"]),
        )
        for case in found["cases"]
    ]
    columns = ("case", "SVD ms", "polar ms", "speed", "path", "‖Q'Q−I‖", "‖QH−A‖/‖A‖", "to the SVD's")
    return table(columns, rows) + f"\n\n{environment(found)}"


def moments(found: dict[str, Any]) -> str:
    times = [
        (
            f"{case['source']} x {case['target']}",
            f"{case['rows']:,}",
            "yes" if case["grams"] else "no",
            f"{case['times']['published']['best']:.3f}",
            f"{case['times']['ours']['best']:.3f}",
            f"{case['ratio']:.2f}",
        )
        for case in found["time"]
    ]
    memory = [
        (f"{case['rows']:,}", _megabytes(case["ours_bytes"]), _megabytes(case["published_bytes"]))
        for case in found["memory"]
    ]
    accuracy = [
        (f"{case['mean']:g}", _number(case["ours"]), _number(case["without_origin"])) for case in found["accuracy"]
    ]
    parts = [
        table(("widths", "rows", "Gram matrices", "float64 first, s", "streamed, s", "ratio"), times),
        "Peak memory above the start, rows arriving in batches (768 x 1024):",
        table(("rows", "streamed, MB", "float64 first, MB"), memory),
        "Relative error of the centred cross-product of float32 rows, by the mean of the rows (their spread is 1):",
        table(("mean", "streamed", "float32 sums without an origin"), accuracy),
        environment(found),
    ]
    return "\n\n".join(parts)


def recording(found: dict[str, Any]) -> str:
    rows = [
        (
            way,
            str(found["products"][way]),
            f"{found['times'][way]['best']:.2f}",
            f"{found['times']['published']['best'] / found['times'][way]['best']:.2f}",
            _megabytes(found["bytes"][way]),
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
        _number(case["check32"]),
        _number(case["check64"]),
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
    "polar-summary": ("polar", polar_summary),
    "polar": ("polar", polar),
    "moments": ("moments", moments),
    "recording": ("recording", recording),
    "architectures": ("wiring", architectures),
    "wiring-depth": ("wiring", wiring_depth),
}


def filled(page: str) -> str:
    """A page with its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        question, make = MAKERS[match["name"]]
        if not (RESULTS / f"{question}.json").exists():
            return f"{match[1]}Not measured yet: `python benchmarks/{question}.py` does.\n{match[3]}"
        found = json.loads((RESULTS / f"{question}.json").read_text("utf-8"))
        return f"{match[1]}{make(found)}\n{match[3]}"

    return TABLE.sub(fill, page)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f}"


def main() -> None:
    wanted = {ROOT / "docs" / "command-line.md": command_line()}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path not in wanted:
            wanted[path] = filled(path.read_text("utf-8"))
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run: python docs/generate.py", file=sys.stderr)
        raise SystemExit(1 if stale else 0)
    for path in stale:
        path.write_text(wanted[path], "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
