"""Imported by the process that forks: runs commands once, so that its children find everything imported and prepared.

Nothing here trains or starts a thread, which no child would have.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from tests.faults.cases import BY_NAME
from tests.faults.world import make_world
from typer.testing import CliRunner

from interbasin.cli import app

NAMES = ("fit", "inspect", "evaluate", "merge to a folder", "translate audit", "translate apply to parquet")


def run_once() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        make_world(Path(folder))
        sys.path.insert(0, folder)
        for name in NAMES:
            words = [name if word == "out" else word for word in BY_NAME[name].words]
            done = CliRunner().invoke(app, [*words, "--quiet"])
            assert done.exit_code == 0, done.output
        sys.path.remove(folder)
        sys.modules.pop("nets", None)


run_once()
