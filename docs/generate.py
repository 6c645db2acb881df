"""Write the parts of the documentation that are made, not typed.

- ``src/interbasin/cli/methods.json``, the help of methods, from the tables of methods;
- ``docs/command-line.md`` from the program's own help;
- the tables between ``<!-- table: NAME -->`` and ``<!-- end of table -->`` in README.md and docs/*.md from
  ``benchmarks/results``; `tables` holds a function for each.

    python docs/generate.py            write them
    python docs/generate.py --check    fail if one is not up to date
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import ChainMap
from pathlib import Path
from typing import Any

from tables import (
    adapt,
    attack,
    linear_algebra,
    merging,
    networks,
    rebasin,
    translate,
    transport,
    transport_attention,
    transport_cost,
    transport_language,
)
from tables.scoreboard import scoreboard

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
METHODS = ROOT / "src" / "interbasin" / "cli" / "methods.json"
TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
ROOMS = (
    linear_algebra,
    networks,
    rebasin,
    merging,
    translate,
    transport,
    transport_attention,
    transport_language,
    transport_cost,
    adapt,
    attack,
)
MAKERS = ChainMap(*(room.MAKERS for room in ROOMS))


def methods() -> str:
    """What help says of every method, from the tables of methods."""
    from interbasin.datasets.generated import GENERATORS
    from interbasin.fit.registry import SOLVERS
    from interbasin.jobs.adapt.methods import METHODS as adapt
    from interbasin.jobs.merge.methods import METHODS as merge
    from interbasin.jobs.rebasin.methods import METHODS as rebasin
    from interbasin.jobs.translate.methods import METHODS as translate
    from interbasin.jobs.transport.methods import METHODS as transport

    def row(method: Any) -> str:
        # As the end of a sentence. The table of merge has titles yet, and says in another way that a base is needed.
        summary = (getattr(method, "summary", "") or method.title).rstrip(".")
        needs = set(getattr(method, "needs", ())) | ({"base"} if getattr(method, "needs_base", False) else set())
        entry = {
            "name": method.name,
            "summary": summary[:1].lower() + summary[1:] if summary[1:2].islower() else summary,
            "reference": method.reference,
            "needs": sorted(needs - {"grams"}),  # which fit sees to by itself
            "options": list(method.options),
            "variants": list(getattr(method, "variants", ())),
        }
        return f"    {json.dumps(entry)}"

    tables = {
        "fit": SOLVERS,
        "rebasin": rebasin,
        "merge": merge,
        "translate": translate,
        "transport": transport,
        "adapt": adapt,
        "data": GENERATORS,
    }
    parts = [f'  "{name}": [\n' + ",\n".join(map(row, table.values())) + "\n  ]" for name, table in tables.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


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
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        pages += [f"## {name}", f"```text\n{help_of(name)}\n```"]
        for below in getattr(command, "commands", ()):
            pages += [f"### {name} {below}", f"```text\n{help_of(name, below)}\n```"]
    return "\n\n".join(pages) + "\n"


def fill_tables(page: str) -> str:
    """A page with its tables made again."""

    def fill(match: re.Match[str]) -> str:
        if match["name"] == "scoreboard":
            results = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}
            return f"{match[1]}{scoreboard(results)}\n{match[3]}"
        question, make = MAKERS[match["name"]]
        if not (RESULTS / f"{question}.json").exists():
            return f"{match[1]}Not measured yet: `python benchmarks/{question}.py` does.\n{match[3]}"
        results = json.loads((RESULTS / f"{question}.json").read_text("utf-8"))
        return f"{match[1]}{make(results)}\n{match[3]}"

    return TABLE.sub(fill, page)


def main() -> None:
    wanted = {METHODS: methods()}
    if "--check" not in sys.argv[1:]:
        METHODS.write_text(wanted[METHODS], "utf-8")  # before the program reads it
    wanted[ROOT / "docs" / "command-line.md"] = command_line()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path not in wanted:
            wanted[path] = fill_tables(path.read_text("utf-8"))
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
