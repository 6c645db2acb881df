"""The parts of the documentation that are made by ``docs/generate.py`` are up to date, and the check can fail."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_table_that_was_edited_by_hand_is_noticed(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert generate.filled(page) == page
    edited = re.sub(r"(<!-- table: moments -->\n.*?ratio \|.*?\n.*?\n\| )", r"\g<1>9", page, flags=re.DOTALL)
    assert edited != page
    assert generate.filled(edited) == page


def test_every_command_is_documented_with_an_example(generate: ModuleType) -> None:
    from typer.main import get_command

    from interbasin.cli import app

    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    for name in get_command(app).commands:
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        assert f"    interbasin {name}" in section, f"the help of {name} shows no example"
