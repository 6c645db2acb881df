"""What the files around the code promise one another: versions, extras, references, and no one's own paths."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from interbasin._version import __version__
from interbasin.extras import IMPORT_TORCHVISION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# A folder of someone's machine; not the middle of a longer path, nor part of an address.
SOMEONES_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home|tmp)/")
# Requirements that no module of ours imports, each with its reason.
TOOLS = {
    "build": "makes the wheel in .ci/run",
    "mypy": "checks types in make static",
    "pytest-xdist": "runs the tests on two cores",
    "ruff": "formats and lints",
    "setuptools": "builds the package",
    "wheel": "builds the package",
}
# Packages that our modules import and that no extra names, each with its reason.
BROUGHT_ALONG = {
    "pillow": "comes with timm; reading images without it says how to install it",
    "torchvision": "comes with timm; it is imported only to see whether it can be",
}
# Files that may name such a path, each with its reason.
ALLOWED: dict[str, str] = {}


def requirements(extra: str | None = None) -> list[Requirement]:
    return [Requirement(line) for line in (PROJECT["dependencies"] if extra is None else EXTRAS[extra])]


def files() -> list[Path]:
    """Files that are tracked, or would be."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout and git")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the source, with where it stands."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def imports(folder: str, *functions: str) -> Iterator[tuple[str, str]]:
    """Every package that a statement, or a call of such a function with its name, imports in ``folder``; and where."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[object] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in functions:
                names = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            for name in names:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(name).partition(".")[0]


def test_no_file_names_a_folder_of_someones_machine():
    found = []
    for path in files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # not text
        name = str(path.relative_to(ROOT))
        lines = [number for number, line in enumerate(text.splitlines(), 1) if SOMEONES_PATH.search(line)]
        found += [f"{name}:{number}" for number in lines if name not in ALLOWED]
    assert not found


def test_a_folder_of_someones_machine_is_recognised():
    for name in ("work", "root", "home", "tmp"):
        assert SOMEONES_PATH.search(f"see '/{name}/me/file'")
        assert not SOMEONES_PATH.search(f"https://example.org/{name}/page and ../{name}/file and a/{name}/file")


@pytest.mark.parametrize("name", [".ci/run", "Makefile"])
def test_processes_are_ended_by_their_id_and_not_by_their_name(name):
    assert not re.search(r"\b(pkill|killall)\b", (ROOT / name).read_text("utf-8"))


def test_torch_is_pinned_to_the_version_the_tests_use():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text("utf-8").splitlines()


def test_all_that_is_installed_for_the_tests_is_pinned_exactly():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins)
    pinned = {canonicalize_name(pin.name) for pin in pins}
    needed = [one for extra in (None, *EXTRAS) for one in requirements(extra)]
    assert {canonicalize_name(one.name) for one in needed} - {"interbasin"} <= pinned


def test_dependencies_have_lower_bounds_only():
    everything = [one for extra in (None, *EXTRAS) for one in requirements(extra) if one.name != "interbasin"]
    assert [str(one) for one in everything if not re.fullmatch(r">=[\w.]+", str(one.specifier))] == []


def distributions(folder: str) -> set[str]:
    """What is installed here and imported in ``folder``: names of distributions, without ours."""
    known = packages_distributions()
    imported = imports(folder, "import_module", "importorskip", "import_extra")
    packages = {name for _, name in imported} - set(sys.stdlib_module_names) - {"interbasin", "tests"}
    return {canonicalize_name(distribution) for name in packages for distribution in known.get(name, [])}


@pytest.mark.slow
def test_what_is_required_is_imported_and_what_is_imported_is_required():
    def names_of(*extras: str | None) -> set[str]:
        names = {canonicalize_name(requirement.name) for extra in extras for requirement in requirements(extra)}
        return names - {"interbasin"}

    for_users = names_of(None, *(extra for extra in EXTRAS if extra not in ("test", "dev")))
    for_tests = names_of("test", "dev")
    assert for_users == distributions("src") - set(BROUGHT_ALONG)
    assert for_tests - set(TOOLS) <= distributions("tests") <= for_users | for_tests
    assert set(TOOLS) <= for_tests and set(BROUGHT_ALONG) <= distributions("src")


def test_extras_name_extras_that_exist():
    named = {name for extra in EXTRAS for one in requirements(extra) if one.name == "interbasin" for name in one.extras}
    assert named <= set(EXTRAS)
    (everything,) = requirements("all")
    assert everything.extras == set(EXTRAS) - {"all", "test", "dev"}


def test_optional_packages_are_imported_with_an_extra_that_exists():
    checked = 0
    for where, call in calls():
        if ast.unparse(call.func).endswith(("import_extra", "MissingExtraError.of")):
            extra = next((word.value for word in call.keywords if word.arg == "extra"), call.args[-1])
            if isinstance(extra, ast.Constant):
                checked += 1
                assert extra.value in EXTRAS, f"{where} names the extra {extra.value!r}, which pyproject.toml lacks"
    assert checked


@pytest.mark.slow
def test_what_imports_torchvision_is_imported_in_one_place():
    for where, name in imports("src", "import_module"):
        allowed = where.startswith("src/interbasin/extras.py")
        assert allowed or name not in IMPORT_TORCHVISION, f"{where} imports {name}; use import_extra"


def test_references_of_solvers_are_in_the_bibliography():
    keys = re.findall(r"^@\w+\{([^,\s]+),", (ROOT / "docs" / "references.bib").read_text("utf-8"), re.MULTILINE)
    assert len(keys) == len(set(keys))
    for where, call in calls():
        for word in call.keywords:
            if word.arg == "reference" and isinstance(word.value, ast.Constant) and word.value.value is not None:
                assert word.value.value in keys, f"{where} cites {word.value.value!r}, which docs/references.bib lacks"


def test_the_citation_names_the_five_papers_and_the_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert len(citation["references"]) == 5
    assert all(paper["title"] and paper["authors"] for paper in citation["references"])
    assert citation["license"] == PROJECT["license"]
    assert citation["version"] == __version__


def test_the_changelog_opens_with_what_is_coming_or_with_this_version():
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert first is not None
    assert first[1] in ("Unreleased", __version__)
