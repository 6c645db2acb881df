"""Every promise names a test that there is, and that asserts something."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<promise>.+?) \| `(?P<path>tests/[\w/]+\.py)::(?P<name>\w+)` \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "promises.md").read_text("utf-8")
PROMISES = [row.groupdict() for row in ROW.finditer(PAGE)]


def test_every_line_of_the_tables_of_promises_names_a_test():
    section = PAGE[PAGE.index("## What is atomic") : PAGE.index("## What is not promised")]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(lines) - section.count("| promise | held by |") == len(PROMISES) > 25


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise["name"])
def test_a_promise_is_held_by_a_test_that_there_is(promise):
    tree = ast.parse((ROOT / promise["path"]).read_text("utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert promise["name"] in functions, f"{promise['path']} has no {promise['name']}"
    body = list(ast.walk(functions[promise["name"]]))
    calls = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in body if isinstance(node, ast.Call)}
    asserts = any(isinstance(node, ast.Assert) for node in body)
    assert asserts or calls & {"raises", "refused", "failed", "assert_array_equal", "check"}
