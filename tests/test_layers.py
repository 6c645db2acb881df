"""Each line of the house imports only from lines above it (DESIGN: the folders stand in data-flow order)."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "interbasin"
ORDER = [
    "text",
    "errors",
    "extras",
    "_version",
    "_lazy",
    "checks",
    "methods",
    "arrays",
    "randomness",
    "storage",
    "maps",
    "statistics",
    "fit",
    "checkpoints",
    "models",
    "batches",
    "wiring",
    "activations",
    "batch_norm",
    "paths",
    "correspondence",
    "training",
    "evaluate",
    "outcome",
    "vectors",
    "datasets",
    "jobs",
    "report",
    "demo",
    "cli",
    "__main__",
    "data",
    "networks",
]


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Line and dotted name of all that ``tree`` imports, wherever it stands; ``package`` is where it lives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield from ((node.lineno, [*base, alias.name]) for alias in node.names)


def violations(root: Path) -> list[str]:
    """What breaks the order in the package at ``root``: one sentence each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        where = path.relative_to(root)
        unit = where.parts[0].removesuffix(".py")
        if unit == "__init__":  # the public names, imported lazily, from anywhere
            continue
        if unit not in ORDER:
            found.append(f"{where}: {unit!r} has no place in the order; add it to ORDER in tests/test_layers.py")
            continue
        for line, name in imported(ast.parse(path.read_text("utf-8")), [PACKAGE, *where.parts[:-1]]):
            if name[0] != PACKAGE:
                continue
            if len(name) == 1 or name[1] not in ORDER:
                found.append(f"{where}:{line} imports {'.'.join(name)}, not a unit of ORDER; name where it is made")
            elif ORDER.index(name[1]) > ORDER.index(unit):
                found.append(f"{where}:{line} imports {'.'.join(name)}, but {name[1]} stands below {unit}")
    return found


def test_each_line_of_the_house_imports_only_from_lines_above_it():
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    assert not violations(Path(spec.origin).parent)


def house(root: Path, **files: str) -> Path:
    """A package at ``root`` with the given sources; a double underscore in a name stands for a folder."""
    for name, source in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    return root


def test_imports_from_above_and_from_beside_are_allowed(tmp_path):
    root = house(
        tmp_path,
        errors="import math",
        maps__base="from ..errors import ShapeError\nfrom . import orthogonal",
        fit__polar="import torch\nimport interbasin.maps.base\nfrom interbasin import errors, maps",
        fit__ridge="from .. import statistics\nfrom .polar import polar",
    )
    assert violations(root) == []


def test_an_upward_import_is_reported_wherever_it_hides(tmp_path):
    sources = {
        "absolute": "import interbasin.fit.polar as p",
        "from_package": "from interbasin import fit",
        "from_module": "from interbasin.fit import procrustes",
        "relative": "from ..fit import procrustes",
        "relative_package": "from .. import fit",
        "in_function": "def f():\n    from ..fit import procrustes",
        "type_checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from interbasin.fit import Fit",
    }
    for name, source in sources.items():
        (report,) = violations(house(tmp_path / name, maps__base=source))
        assert report.startswith("maps/base.py:") and report.endswith("but fit stands below maps"), name


def test_a_deeper_folder_resolves_its_relative_imports(tmp_path):
    root = house(tmp_path, jobs__merge__ties="from ...maps import Map\nfrom ..rebasin import x\nfrom ...cli import app")
    (report,) = violations(root)
    assert report == "jobs/merge/ties.py:3 imports interbasin.cli.app, but cli stands below jobs"


def test_a_public_name_is_not_a_way_around_the_order(tmp_path):
    root = house(tmp_path, maps__base="import interbasin\nfrom interbasin import procrustes")
    assert len(violations(root)) == 2


def test_a_unit_without_a_place_in_the_order_is_reported(tmp_path):
    (report,) = violations(house(tmp_path, helpers="import math"))
    assert "'helpers' has no place in the order" in report
