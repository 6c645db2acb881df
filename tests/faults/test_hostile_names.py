"""Names that come from files, data and users command nothing: no terminal, no page, no plot."""

from __future__ import annotations

import html
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from safetensors.torch import save_file
from tests.cli.test_frame import run
from tests.jobs.merge.networks import saved, tensors

from interbasin import merge, wire
from interbasin.batches import reporter_of
from interbasin.cli.console import PlainConsole, description_column, plain
from interbasin.cli.output import print_table
from interbasin.errors import DataError
from interbasin.models.folding import Folding
from interbasin.outcome.plots import bar_chart, heat_map, line_chart
from interbasin.text import for_markdown, for_markup, printable

HOSTILE = {
    "terminal": "\x1b[2J\x1b]0;title\x07",
    "eight-bit terminal": "\x9b2J\x9d0;title\x9c",
    "html": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "markdown": "a\n# heading\n[click](javascript:x)",
    "code": "```\n\n<b>x</b> `y",
    "table": "a | b |\n| --- |",
    "rich": "[bold red]x[/] [link=file:///etc]y[/link] :bomb:",
    "direction": "abc\u202egnp.exe",
    "separator": "a\u2028b\u0085c",
    "list": "- [ ] a",
    "number": "1. a",
    "rule": "---",
    "entity": "&lt;b&gt; &amp;",
    "backslash": r"\[a](b) \<b>",
    "emphasis": "__x__ *y* ~~z~~ $q$",
}
names = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
# What a name may never bring into text that is shown.
COMMANDS = [letter for letter in map(chr, range(0x110000)) if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp")]


def commands_in(text: str, allowed: str = "\n") -> set[str]:
    return set(text).intersection(COMMANDS) - set(allowed)


def page_of(markdown: str) -> str:
    """The HTML that a README becomes, with the HTML in it live, as on a hub."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


# ---------------------------------------------------------------------- the one place


@names
def test_printable_text_holds_no_command_and_is_one_line(name: str) -> None:
    assert printable(name).isprintable() and not commands_in(printable(name), "")
    assert printable(printable(name)) == printable(name)


def test_what_can_be_printed_stays_as_it_is() -> None:
    for text in ("encoder.layers.0", "größe", "模型", "a - b … ü", ""):
        assert printable(text) == text
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@names
@pytest.mark.parametrize("place", ["{}", "# {}", "| {} | b |\n| --- | --- |\n| {} | c |", "before\n\n{}\n\nafter"])
def test_markdown_shows_the_text_and_nothing_of_it_is_live(name: str, place: str) -> None:
    page = page_of(place.replace("{}", for_markdown(name)))
    assert {*re.findall(r"<(\w+)", page)} <= {"p", "h1", "table", "thead", "tbody", "tr", "th", "td"}
    assert printable(name).strip() in html.unescape(page)
    assert page_of(place.replace("{}", "plain")).count("<") == page.count("<")


def test_ordinary_names_look_in_markdown_as_they_are() -> None:
    for name in ("model_one-v2.1", "some-one/tiny.a", "a (b), c: 50%"):
        assert for_markdown(name) == name


@names
def test_markup_shows_the_text_in_elements_and_attributes(name: str) -> None:
    element = ElementTree.fromstring(f'<a b="{for_markup(name)}">{for_markup(name)}</a>')
    assert element.text == element.attrib["b"] == printable(name) and len(element) == 0


# ---------------------------------------------------------------------- the terminal


def shown(draw: object, *, terminal: bool) -> str:
    console = PlainConsole(stderr=False)
    console.file, console._force_terminal = io.StringIO(), terminal
    draw(console)  # type: ignore[operator]
    written: str = console.file.getvalue()
    return written


@names
@pytest.mark.parametrize("terminal", [True, False], ids=["screen", "pipe"])
def test_what_commands_print_holds_the_names_as_text(name: str, terminal: bool) -> None:
    text = shown(lambda console: console.print(f"\nwritten to {name}", soft_wrap=True), terminal=terminal)
    assert text == f"\nwritten to {printable(name)}\n"
    table = shown(lambda console: print_table(console, ("name", "n"), [(name, "1")], words=(0,)), terminal=terminal)
    # Rich's own codes are letters between ESC [ and m.
    assert not commands_in(re.sub(r"\x1b\[[\d;]*m", "", table))
    assert "".join(printable(name).split()) in "".join(re.sub(r"\x1b\[[\d;]*m", "", table).split())


@names
def test_bars_and_states_of_work_show_the_names_as_text(name: str) -> None:
    from rich.progress import Progress

    def draw(console: PlainConsole) -> None:
        with Progress(description_column(), console=console) as bar:
            bar.add_task(printable(name), total=1)

    assert printable(name)[:20] in shown(draw, terminal=False)
    assert plain(name).plain == printable(name) and not plain(name).spans


@names
def test_lines_of_the_library_on_stderr_hold_the_names_as_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reporter_of(True)(f"reading {name}")
    assert capsys.readouterr().err == f"reading {printable(name)}\n"


FACTORY = """
import torch
from torch import nn

NAMES = {names!r}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name in NAMES:
            self._modules[name] = nn.Linear(4, 4)
        self._modules["unused " + NAMES[0]] = nn.Linear(2, 2)

    def forward(self, x):
        for name in NAMES:
            x = torch.relu(self._modules[name](x))
        return x

def net():
    return Net(), torch.zeros(1, 4)
"""


def test_inspect_shows_names_of_modules_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [name for name in HOSTILE.values() if "." not in name]
    (tmp_path / "hostile_modules.py").write_text(FACTORY.replace("{names!r}", repr(modules)), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for flags in (("--tensors",), ("--all", "--each"), ("--json", "--tensors")):
        done = run("inspect", "hostile_modules:net", *flags)
        assert done.exit_code == 0, done.output
        assert not commands_in(done.stdout) and not commands_in(done.stderr)
        if "--json" in flags:
            assert any(modules[0] in name for name in json.loads(done.stdout)["spaces"])
    from hostile_modules import net  # type: ignore[import-not-found]

    text = str(wire(*net()))
    assert not commands_in(text) and "\n# heading" not in text


def test_a_folding_is_told_with_the_names_as_text() -> None:
    text = str(Folding({}, left={name: (name,) for name in HOSTILE.values()}, parted=(tuple(HOSTILE.values()),)))
    assert not commands_in(text) and "\n# heading" not in text


@names
def test_errors_and_remarks_show_names_of_tensors_as_text(name: str, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2), name: torch.zeros(2)}, tmp_path / "a.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "b.safetensors")
    done = run("merge", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "-o", tmp_path / "out")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert not commands_in(done.stderr) and printable(name) in done.stderr


@names
def test_usage_errors_and_interrupts_show_what_was_typed_as_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("data", "burgers", "--set", f"x={name}", "-o", "out.npz")
    assert done.exit_code == 2 and not commands_in(done.output)

    def interrupted(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt(f"rows are kept in {name}")

    monkeypatch.setattr("typer.core.TyperGroup.make_context", interrupted)
    done = run("demo")
    assert done.stderr == f"Interrupted; rows are kept in {printable(name)}\n"


def test_an_option_that_does_not_exist_is_named_as_text() -> None:
    for words in (("--\x1b[2J",), ("\x1b]0;title\x07",), ("merge", "--a\u202eb")):
        done = run(*words)
        assert done.exit_code == 2 and not commands_in(done.output), done.output


# ---------------------------------------------------------------------- the card of a merge, and plots


@names
def test_the_card_of_a_merge_shows_names_as_text(name: str, tmp_path: Path) -> None:
    folder = name.replace("/", "")
    models = []
    for place, value in (("one", 1), ("two", 2)):
        models.append(saved(tmp_path / place / folder, tensors(value)))
        settings = json.loads((models[-1] / "config.json").read_text("utf-8"))
        (models[-1] / "config.json").write_text(json.dumps({**settings, name: value}), "utf-8")
    done = merge(models, output=tmp_path / f"out {folder}")
    assert any(name in note for note in done.notes)  # a setting in which the two differ
    card = (tmp_path / f"out {folder}" / "README.md").read_text("utf-8")
    assert not commands_in(card)
    body = card.split("---\n", 2)[2]
    page = page_of(body)
    tags = {*re.findall(r"<(\w+)", page)}
    assert tags <= {"p", "h1", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "ul", "li"}
    assert page.count("<h1>") == 1 and page.count("<tr>") == 3 and page.count("<pre>") == 1
    assert page.count("<li>") == 2 and printable(name).strip() in html.unescape(page)


@names
def test_plots_show_names_as_text(name: str) -> None:
    charts = (
        bar_chart({name: 1.0, "b": 2.0}, title=name, x_label=name),
        line_chart({name: ([0.0, 1.0], [0.0, 1.0]), "b": ([0.0, 1.0], [1.0, 0.0])}, title=name, y_label=name),
        heat_map([[1.0, 2.0], [3.0, 4.0]], title=name, rows=[name, "b"], columns=[name, "b"]),
    )
    for svg in charts:
        root = ElementTree.fromstring(svg)
        kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert not kinds & {"script", "img", "b", "a"} and not commands_in(svg)
        words = {text for element in root.iter() for text in (element.text, element.get("aria-label")) if text}
        assert printable(name) in words or any(printable(name)[:3] in text for text in words)


def test_an_error_in_python_keeps_the_name_as_it_is() -> None:
    name = HOSTILE["terminal"]
    assert name in str(DataError(f"no tensor {name}"))
