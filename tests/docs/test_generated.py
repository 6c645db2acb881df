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


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
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
    assert generate.fill_tables(page) == page
    edited = re.sub(r"(<!-- table: moments -->\n.*?ratio \|.*?\n.*?\n\| )", r"\g<1>9", page, flags=re.DOTALL)
    assert edited != page
    assert generate.fill_tables(edited) == page


def test_every_command_is_documented_with_an_example(generate: ModuleType) -> None:
    from typer.main import get_command

    from interbasin.cli import app

    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    for name in get_command(app).commands:
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        assert f"    interbasin {name}" in section, f"the help of {name} shows no example"


def test_architectures_that_fall_short_come_first_with_their_reason(generate: ModuleType) -> None:
    good = {"spaces": 3, "coverage": 1.0, "check32": 1e-7, "check64": 1e-16, "seconds": 0.5, "traced": True}
    found = {
        "architectures": [
            {"name": "good", **good, "reasons": []},
            {"name": "poor", **good, "coverage": 0.4, "check64": None, "reasons": ["fixed: a | b", "check64 is off"]},
            {"name": "untraced", "traced": False, "reasons": ["it branches."]},
        ],
        "bars": {"coverage": 0.9, "check32": 1e-4, "check64": 1e-9},
        "summary": {"architectures": 3, "traced": 2, "median_coverage": 0.7, "median_seconds": 0.5},
        "environment": {"processor": "P", "threads": 1, "torch": "2", "seed": 0, "date": "2026-01-01T00:00"},
    }
    lines = generate.networks.architectures(found).splitlines()
    assert lines[0].startswith("3 architectures: 2 can be traced, and 1 meet all bars.")
    assert [line for line in lines if line.startswith(("| good", "| poor", "| untraced"))] == [
        "| untraced | - | - | - | - | - | it branches. |",
        r"| poor | 3 | 0.400 | 1e-07 | - | 0.5 | fixed: a \| b; check64 is off |",
        "| good | 3 | 1.000 | 1e-07 | 1e-16 | 0.5 |",
    ]


def test_a_table_without_results_says_how_to_get_them(generate: ModuleType, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(generate, "RESULTS", tmp_path)
    page = "<!-- table: architectures -->\nold\n<!-- end of table -->\n"
    assert "Not measured yet: `python benchmarks/wiring.py` does." in generate.fill_tables(page)


def test_a_figure_of_a_paper_that_is_not_met_is_said_to_be_so(generate: ModuleType) -> None:
    one = {"where": "a paper", "what": "barrier", "theirs": 0.1, "method": "stiefel joint"}
    found = {"papers": [{**one, "ours": 0.05, "met": True}, {**one, "ours": 0.2, "met": False}]}
    assert generate.rebasin.rebasin_papers(found).splitlines()[2:] == [
        "| a paper | barrier | 0.1 | 0.05 | stiefel joint | met |",
        "| a paper | barrier | 0.1 | 0.2 | stiefel joint | **not met** |",
    ]


def test_the_table_of_migrations_shows_the_best_method_and_the_verdict(generate: ModuleType) -> None:
    way = {"recall": [0.25, 0.2, 0.3]}
    found = {
        "cases": [
            {
                "change": "old to new",
                "pairs": 4000,
                "best": "ridge",
                "advice": "keep",
                "table": [
                    {"key": "keep", "method": "", "recall": [0.5, 0.4, 0.6]},
                    {"key": "translate", "method": "affine", "recall": [0.1, 0.0, 0.2]},
                    {"key": "translate", "method": "ridge", **way},
                ],
            }
        ],
        "bars": [{"change": "old to new", "wanted": ["keep", "re-embed"], "found": "keep", "met": True}],
        "corpus": {"name": "glosses", "documents": 12000, "queries": 2000},
        "environment": {"processor": "P", "threads": 1, "torch": "2", "seed": 0, "date": "2026-01-01T00:00"},
    }
    text = generate.translate.migration(found)
    assert "| old to new | 4,000 | ridge | 0.500 [0.400, 0.600] | 0.250 [0.200, 0.300] | - | - | - | - | keep |" in text
    assert "Bars: old to new: keep, wanted keep or re-embed: met." in text


def test_the_cost_of_a_benchmark_is_told_in_hours(generate: ModuleType) -> None:
    assert "Not summed up yet" in generate.adapt.cost({})
    where = {"processor": "one", "threads": 1, "torch": "2", "seed": 0, "date": "2026-01-01T00:00"}
    entry = {"kind": "table", "cells": 45, "process_seconds": 7200.0, "seconds": 10800.0}
    lines = generate.adapt.cost({"cost": [entry], "environment": where}).splitlines()
    assert lines[2] == "| tables of methods | 45 | 2.00 | 3.00 | 1.0 to 1.5 |"


def test_the_scoreboard_counts_and_names_what_is_not_met(generate: ModuleType) -> None:
    bars = {"fast": {"met": True}, "small": {"met": False}}
    found = {"polar": {"bars": bars}, "migration": {"bars": [{"change": "a to b", "found": "keep", "met": True}]}}
    lines = generate.scoreboard(found).splitlines()[2:]
    assert len(lines) == 2
    assert lines[0].endswith("| 1 of 2 | small |") and lines[1].endswith("| 1 of 1 | - |")
    many = {"polar": {"bars": {str(number): {"met": False} for number in range(9)}}}
    assert generate.scoreboard(many).endswith("| 0 of 9 | 9, listed there with their reasons |")


def test_the_headings_that_the_scoreboard_points_to_exist(generate: ModuleType) -> None:
    for _, where, _ in sys.modules["tables.scoreboard"].QUESTIONS.values():
        page, _, heading = where.partition("#")
        text = (ROOT / page).read_text("utf-8")
        slugs = {
            re.sub(r"[^\w -]", "", line[3:]).strip().lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("## ")
        }
        assert not heading or heading in slugs
