"""``interbasin clean``: what killed commands left beside their outputs, removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from interbasin.cli.options import command
from interbasin.cli.output import Terminal, print_table
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.storage.lock import Leftover


@command
def clean(
    terminal: Terminal,
    *,
    folder: Annotated[Path, Argument(metavar="[FOLDER]", help="Where outputs were to be written.")] = Path("."),
    unfinished: Annotated[
        bool, Option("--unfinished", help="Also remove work that the same command would go on from.")
    ] = False,
    below: Annotated[bool, Option("--below", help="Look in all folders below FOLDER too.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Remove nothing; list what would be removed.")] = False,
) -> None:
    """Remove what killed commands left in FOLDER.

    A command that is killed cannot tidy up: a folder with a name that begins with .interbasin- stays beside its output.
    The next command that writes there removes it, unless work can go on from it. A folder that a running command is
    using is never touched, and nothing else is.

    Examples:
      interbasin clean --dry-run
      interbasin clean results --below
      interbasin clean results --unfinished
    """
    from interbasin.storage.lock import clean as remove
    from interbasin.storage.lock import find_leftovers

    gone = remove(folder, unfinished=unfinished, below=below, dry_run=dry_run)
    kept = [] if unfinished or below else [each for each in find_leftovers(folder) if each.resumable]
    summary = {
        "dry_run": dry_run,
        "removed": [{"folder": str(each.folder), "bytes": each.size, "unfinished": each.resumable} for each in gone],
    }
    remarks = (
        [f"{plural(len(kept), 'unfinished run')} can go on, and stayed; --unfinished removes such work too."]
        if kept
        else []
    )
    terminal.result(summary, lambda console: _show(console, gone, dry_run), remarks)


def _show(console: Console, gone: list[Leftover], dry_run: bool) -> None:
    if not gone:
        console.print("Nothing was left behind.")
        return
    rows = [(str(each.folder), f"{each.size:,}", "unfinished work" if each.resumable else "rubbish") for each in gone]
    print_table(console, ("would remove" if dry_run else "removed", "bytes", "what it was"), rows, (0, 2))
