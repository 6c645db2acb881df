"""The console through which every command prints. Imported late: help is shown without rich."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from interbasin.text import printable

__all__ = ["PlainConsole", "description_column", "plain"]


class PlainConsole(Console):
    """Prints text as it is: no markup in it counts, and what would command the terminal is spelled out.

    Names in files, data and addresses may hold either. Line breaks count only at the ends of a text, where no name
    brings them in; text of several lines is printed line by line.
    """

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(plain(one) if isinstance(one, str) else one for one in objects), **options)


def plain(text: str) -> Text:
    """Text without markup and commands, for what rich draws by itself."""
    inner = text.strip("\n")
    before, _, after = text.partition(inner) if inner else ("", "", text)
    return Text(f"{before}{printable(inner)}{after}")


def description_column() -> TextColumn:
    """What stands beside a bar of progress, in which rich would look for markup."""
    return TextColumn("{task.description}", markup=False)
