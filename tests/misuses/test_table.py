"""The tables notice what they are for: a result, another error, a changed input, a file left behind, a hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.misuses import table
from tests.misuses.table import HangError, Misuse, WrongCommand, the

from interbasin.errors import CheckpointError, DataError, FileError, ShapeError


def refuse(message: str = "Asked for this, found that; try another.", error: type[Exception] = DataError) -> None:
    raise error(message)


def then_refuse(action: Callable[[], object]) -> Callable[[], None]:
    def act() -> None:
        action()
        refuse()

    return act


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def check(call: Callable[[], object], error: type[Exception] = DataError) -> None:
    Misuse("a misuse", call, error, "another").check()


def test_a_refusal_passes():
    check(refuse)
    Misuse("a network is taken", lambda: (the.mlp, refuse()), DataError, "this").check()


@pytest.mark.parametrize(
    "call",
    [
        lambda: None,
        lambda: refuse("No."),
        lambda: refuse("Two\nlines, try another."),
        lambda: refuse("not a sentence, another"),
        lambda: refuse("The password hunter2 is another."),
        then_refuse(lambda: Path("left.txt").write_text("x")),
        then_refuse(lambda: the.labels.zero_()),
        then_refuse(lambda: the.mlp.train()),
        then_refuse(lambda: append(the.file("x.txt", "mine"))),
        then_refuse(lambda: (the.letter.parent / "stray.txt").write_text("x")),
    ],
    ids=[
        "a result",
        "another message",
        "two lines",
        "no sentence",
        "a password",
        "a file in the current folder",
        "a changed tensor",
        "a network in training",
        "a changed file",
        "a file beside an input",
    ],
)
def test_what_no_table_may_let_through_is_noticed(call):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(call)
    the.clear()


@pytest.mark.parametrize("error", [KeyError, ShapeError])
def test_another_error_is_not_taken_for_the_refusal(error):
    with pytest.raises(error):
        check(lambda: refuse(error=error))


def test_a_narrower_class_is_not_taken_for_the_one_in_the_table():
    with pytest.raises(AssertionError, match="CheckpointError"):
        check(lambda: refuse(error=CheckpointError), FileError)


def test_a_call_that_never_ends_is_noticed(monkeypatch):
    monkeypatch.setattr(table, "LIMIT", 1)
    with pytest.raises(HangError):
        check(lambda: time.sleep(30))


@pytest.mark.parametrize(
    ("words", "code", "keyword"),
    [(["--version"], 1, "interbasin"), (["nonsense"], 1, "nonsense"), (["nonsense"], 2, "commands of another program")],
    ids=["a result", "another code", "another message"],
)
def test_a_command_that_is_not_refused_as_written_is_noticed(words, code, keyword):
    with pytest.raises(AssertionError):
        WrongCommand("a command", lambda: words, code, keyword).check()
