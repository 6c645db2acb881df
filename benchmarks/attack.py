"""What does an attack on the program find?

Three programs attack it, and what they count is written to ``benchmarks/results``, from which docs/promises.md has its
figures:

- `python -m tests.faults`: every n-th call that changes a folder fails, for all that writes (``faults.json``);
- `python -m tests.faults --kills`: kills at random moments, a PostgreSQL server among them (``kills.json``);
- `python -m tests.fuzz`: damaged files, through the functions that a user would call (``fuzz.json``).

All calls of all commands take hours; ``--most`` draws so many for each fault of a command. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import frame

ROOT = Path(__file__).resolve().parents[1]


def attack(name: str, *words: object, seed: int, threads: int) -> int:
    """Run one of the programs and keep what it counted; how many promises it saw broken."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        command = [sys.executable, "-m", *map(str, words), "--seed", str(seed), "--json", str(counts)]
        subprocess.run(command, cwd=ROOT, check=False)  # it ends with 1 where something was found
        content = json.loads(counts.read_text("utf-8"))
    content = {"question": name, "environment": frame.environment(seed=seed, threads=threads), **content}
    frame.save(frame.RESULTS / f"{name}.json", content)
    return len(content.get("violations", content.get("found", ())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("faults", "kills", "fuzz"), default=("faults", "kills", "fuzz"))
    parser.add_argument("--most", type=int, default=4, help="calls for each fault of a command; 0 for all of them")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    most = ("--most", asked.most) if asked.most else ()
    runs = {
        "faults": ("tests.faults", "--workers", asked.workers, *most),
        "kills": ("tests.faults", "--kills", asked.kills),
        "fuzz": ("tests.fuzz", "--mutants", asked.mutants),
    }
    found = {name: attack(name, *runs[name], seed=asked.seed, threads=1) for name in asked.only}
    print(json.dumps(found))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
