"""The fuzzer started from a test, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fresh import Starter

ROOT = Path(__file__).parents[2]


def run_fuzzer(starter: Starter, folder: Path, *arguments: object) -> dict[str, Any]:
    """What the fuzzer wrote down, given the arguments of its command line."""
    program = "import sys; from tests.fuzz.__main__ import main; sys.exit(main())"
    done = starter.run(program, ROOT, *arguments, "--json", folder / "counts.json")
    assert (folder / "counts.json").exists(), done.stderr
    document: dict[str, Any] = json.loads((folder / "counts.json").read_text("utf-8"))
    return document
