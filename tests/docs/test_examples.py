"""All that the documentation shows is run: docstrings, the blocks of README.md and docs/*.md, examples/*.py.

In a markdown file the blocks share one namespace and one working directory, in order:

- ``python``: executed; one that starts with ``>>>`` runs as a doctest, so its shown results are compared too.
- ``console``: each ``$ interbasin ...`` is run and must succeed; under ``console check`` it must print what is shown.
- a block right below ``<!-- not run: reason -->`` is passed over. Any other command must be marked so.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fresh import Starter, starting

from interbasin.errors import MissingExtraError

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if path.exists())
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<info>.*?)\s*$")
NOT_RUN = re.compile(r"^\s*<!-- not run: \S.*-->\s*$")


def modules() -> list[str]:
    spec = importlib.util.find_spec("interbasin")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    paths = [path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")]
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    return sorted(name for name in names if not name.endswith("__main__"))


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after the fence, its text, the line its text starts on, and whether to run it."""

    info: tuple[str, ...]
    text: str
    line: int
    run: bool


def blocks(markdown: str) -> list[Block]:
    found = []
    lines = markdown.splitlines()
    last = ""  # the last line that says something
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            last = lines[number] if lines[number].strip() else last
            number += 1
            continue
        start = number = number + 1
        closing = re.compile(rf"^\s*{re.escape(opening['fence'])}\s*$")
        while number < len(lines) and not closing.match(lines[number]):
            number += 1
        text = "\n".join(line.removeprefix(opening["indent"]) for line in lines[start:number])
        found.append(Block(tuple(opening["info"].split()), text, start + 1, not NOT_RUN.match(last)))
        last = ""
        number += 1
    return found


def run_python(block: Block, path: Path, namespace: dict[str, object]) -> None:
    if not block.text.lstrip().startswith(">>>"):
        # Blank lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), namespace)
        return
    example = doctest.DocTestParser().get_doctest(block.text + "\n", namespace, path.name, str(path), block.line - 1)
    report: list[str] = []
    failed = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(example, out=report.append, clear_globs=False)
    assert failed.failed == 0, "".join(report)
    namespace.update(example.globs)


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    found: list[tuple[str, str]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            assert found, f"a console block starts with '$ ', not with {line!r}"
            command, shown = found[-1]
            found[-1] = (command, f"{shown}{line}\n")
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\"):
            command = command.removesuffix("\\") + next(lines).removeprefix("> ")
        found.append((command, ""))
    return found


# Runs a program with arguments in a folder.
Program = Callable[[Sequence[str], Path], "subprocess.CompletedProcess[str]"]


def plain_environment() -> dict[str, str]:
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | plain


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=folder, env=plain_environment(), capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def starter(tmp_path_factory) -> Iterator[Starter]:
    with starting(tmp_path_factory.mktemp("printed"), environment=plain_environment()) as found:
        yield found


def plain_lines(text: str) -> list[str]:
    """Lines without the blanks at their ends, which editors take away, and without empty ones."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def run_console(block: Block, where: str, folder: Path, program: Program) -> None:
    for command, shown in commands(block.text):
        name, *arguments = shlex.split(command, comments=True)
        assert name == "interbasin", f"{where}: {command!r} is not run; put <!-- not run: reason --> above the block"
        done = program(arguments, folder)
        assert done.returncode == 0, f"{where}: {command!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        if "check" in block.info:
            assert plain_lines(done.stdout) == plain_lines(shown), f"{where}: {command!r} prints something else"


def run_page(path: Path, folder: Path, program: Program) -> None:
    """Run the blocks of the page at ``path``; the working directory is ``folder``."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(path.read_text("utf-8")):
        if not block.run or not block.info:
            continue
        if block.info[0] == "python":
            run_python(block, path, namespace)
        elif block.info[0] == "console":
            run_console(block, f"{path.name}:{block.line}", folder, program)


@pytest.mark.parametrize("name", modules())
def test_docstrings_show_what_happens(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0, "see the captured output"


PAGE_PARAMETERS = [
    pytest.param(path, id=str(path.relative_to(ROOT)), marks=[pytest.mark.slow] if path.name != "README.md" else [])
    for path in PAGES
]


@pytest.mark.parametrize("path", PAGE_PARAMETERS)
def test_pages_show_what_happens(path, tmp_path, monkeypatch, starter):
    monkeypatch.chdir(tmp_path)
    run_page(path, tmp_path, starter.run_command)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_example_scripts_run(path, tmp_path):
    done = run([sys.executable, str(path)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# The runner itself. The program stands in for ours: it prints its arguments and fails when told to.

ECHO = (sys.executable, "-c", "import sys; print(*sys.argv[1:]); sys.exit('fail' in sys.argv)")


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_text(text: str) -> None:
        path = tmp_path / "page.md"
        path.write_text(text.replace("'''", "```"), "utf-8")
        run_page(path, tmp_path, lambda arguments, folder: run([*ECHO, *arguments], folder))

    return run_text


def test_blocks_share_names_and_the_working_directory(page, tmp_path):
    page(
        "'''python\nx = 1\n'''\n\ntext\n\n'''python\nimport pathlib\npathlib.Path('made').write_text(str(x + 1))\n'''\n"
    )
    assert (tmp_path / "made").read_text() == "2"


def test_a_failing_block_fails_and_names_its_line(page):
    with pytest.raises(ZeroDivisionError) as caught:
        page("# Title\n\n'''python\nx = 1\nx / 0\n'''\n")
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_block_with_prompts_compares_its_results(page):
    page("'''python\nx = 2\n'''\n'''python\n>>> y = x + 1\n>>> y\n3\n'''\n'''python\nassert y == 3\n'''\n")
    with pytest.raises(AssertionError, match="Expected"):
        page("'''python\n>>> 1 + 1\n3\n'''\n")


def test_a_failing_command_fails(page):
    page("'''console\n$ interbasin fit a \\\n>   b\nwhatever\n'''\n")
    with pytest.raises(AssertionError, match="'interbasin fail' ended with 1"):
        page("'''console\n$ interbasin fail\n'''\n")


def test_shown_output_is_compared_when_asked(page):
    page("'''console check\n$ interbasin one two\none two\n$ interbasin three\nthree\n'''\n")
    with pytest.raises(AssertionError, match="prints something else"):
        page("'''console check\n$ interbasin one two\none\n'''\n")


def test_a_marked_block_is_passed_over_and_an_unmarked_command_is_not(page):
    page("<!-- not run: slow -->\n'''console\n$ make demo\n'''\n\n<!-- not run: slow -->\n\n'''python\n1 / 0\n'''\n")
    with pytest.raises(AssertionError, match="'make demo' is not run"):
        page("'''console\n$ make demo\n'''\n")
    with pytest.raises(ZeroDivisionError):  # the mark counts for one block
        page("<!-- not run: installs -->\n'''console\n$ make demo\n'''\n'''python\n1 / 0\n'''\n")
