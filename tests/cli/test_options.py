"""How a command is made: groups of options in their place, the flags behind them, methods in the help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from interbasin.cli.methods import describe_methods, names
from interbasin.cli.options import command, numbers
from interbasin.cli.output import Terminal
from interbasin.jobs.rebasin import METHODS


@dataclass(frozen=True)
class Colours:
    inside: Annotated[str, typer.Option(help="Of the wall.")] = "white"
    outside: Annotated[str, typer.Option(help="Of the door.")] = "red"


seen = {}


@command
def paint(
    terminal: Terminal,
    *,
    house: Annotated[str, typer.Argument(metavar="HOUSE")],
    colours: Colours,
    coats: int = 1,
    force: Annotated[bool, typer.Option("--force")] = False,
) -> None:
    """Paint HOUSE by one of {methods of rebasin}"""
    seen.update(terminal=terminal, house=house, colours=colours, coats=coats)


app = typer.Typer(rich_markup_mode=None)
app.command()(paint)


def test_a_group_is_one_argument_in_python_and_options_in_its_place_on_the_command_line():
    done = CliRunner().invoke(app, ["home", "--outside", "blue", "--force", "--json"])
    assert done.exit_code == 0, done.output
    assert (seen["house"], seen["colours"], seen["coats"]) == ("home", Colours("white", "blue"), 1)
    terminal = seen["terminal"]
    assert terminal.json and not terminal.quiet
    assert terminal.request == {"house": "home", "inside": "white", "outside": "blue", "coats": 1}
    assert terminal.given == {"house", "outside"}


def test_the_help_has_options_of_groups_in_their_place_the_flags_last_and_the_methods():
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(option) for option in ("--inside", "--outside", "--coats", "--force", "--json", "--debug")]
    assert places == sorted(places)
    assert all(f"- {name}" in shown for name in METHODS)


def test_the_list_of_methods_is_that_of_the_table():
    assert names("rebasin") == METHODS.names
    shown = describe_methods("rebasin")
    assert all(f"{method.summary}. [{method.reference}]" in shown for method in METHODS.values())


@pytest.mark.parametrize(("text", "kind", "word"), [("1,two", float, "numbers"), ("1,2.5", int, "whole numbers")])
def test_numbers_that_are_none_are_named_with_their_option(text, kind, word):
    with pytest.raises(typer.BadParameter, match=f"takes {word} .* got '{text}'") as error:
        numbers(text, "--sizes", kind)
    assert error.value.param_hint == "--sizes"
