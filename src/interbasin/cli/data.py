"""``interbasin data``: data that are made, from equations or with planted gaps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from interbasin.cli.methods import method_option, names
from interbasin.cli.options import DATA, SeedFromZero, command, output_option
from interbasin.cli.output import Terminal, print_facts, print_table, shorten

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.datasets.generated import GeneratedData


@command
def data(
    terminal: Terminal,
    *,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="What to make; without, all that can be made is listed.")
    ] = None,
    output: Annotated[Path | None, output_option("File to write, which ends in .npz.")] = None,
    count: Annotated[
        int | None, Option(min=1, help="Samples for training: 1000 of an equation, all of --from, by default.")
    ] = None,
    test_count: Annotated[
        int | None, Option(min=0, help="Samples for the test: 200 of an equation, all of --from's, by default.")
    ] = None,
    points: Annotated[int | None, Option(min=8, help="Equations: points along each axis.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="NAME=NUMBER", help="Equations: another number, as viscosity=0.01.")
    ] = None,
    source: Annotated[
        str | None, Option("--from", metavar="SOURCE", help=f"Planted gaps: DATA with labels that is changed: {DATA}.")
    ] = None,
    label_column: Annotated[
        str | None,
        Option(metavar="NAME", help="Planted gaps: column of --from that has the labels, where it is a table."),
    ] = None,
    patch: Annotated[int | None, method_option("data", "patch", "side of a patch, 4 by default.")] = None,
    classes: Annotated[int | None, method_option("data", "classes", "how many classes are left.")] = None,
    seed: SeedFromZero = 0,
    force: Annotated[bool, Option("--force", help="Replace a file that this command wrote before.")] = False,
    list_all: Annotated[bool, Option("--list", help="List what can be made, with its numbers.")] = False,
) -> None:
    """Make data and write them to an .npz file, which every --data reads: x and y, and x_test and y_test for the test.

    An equation gives random fields and what becomes of them; its numbers stand in parentheses. A planted gap changes
    the inputs or the labels of other data in a way that is known, so that a method can be seen to close it.

    {methods of data}

    Examples:
      interbasin data
      interbasin data burgers -o burgers.npz --set viscosity=0.1
      interbasin data darcy -o darcy.npz --count 500 --points 16
      interbasin data rotated-patches --from digits --patch 4 -o rotated.npz
      interbasin data merged-labels --from digits --classes 4 -o merged.npz
    """
    if name is None and output is not None:
        raise typer.BadParameter(f"is missing; it is one of {', '.join(names('data'))}.", param_hint="NAME")
    if name is None or list_all:
        _list(terminal)
        return
    if output is None:
        raise typer.BadParameter("is missing: the file to write, as data.npz.", param_hint="--output")
    numbers = dict(map(_parse, settings or ()))
    from interbasin.datasets.generated import samples_of, write_data

    with terminal.progress(f"Making {name}", samples_of(name, count, test_count)) as done:
        written = write_data(
            name,
            output,
            count=count,
            test_count=test_count,
            points=points,
            numbers=numbers,
            source=source,
            label_column=label_column,
            patch=patch,
            classes=classes,
            seed=seed,
            force=force,
            progress=done,
        )
    terminal.result(written.summary(), lambda console: _show(console, written))


def _parse(setting: str) -> tuple[str, float]:
    name, _, number = setting.partition("=")
    try:
        return name.strip(), float(number)
    except ValueError as error:
        message = f"takes NAME=NUMBER, as viscosity=0.01, and got {shorten(repr(setting))}."
        raise typer.BadParameter(message, param_hint="--set") from error


def _list(terminal: Terminal) -> None:
    from interbasin.datasets.generated import GENERATORS

    rows = {name: method.summary for name, method in GENERATORS.items()}
    terminal.result(rows, lambda console: print_table(console, ("name", "what it is"), list(rows.items()), (0, 1)))


def _show(console: Console, written: GeneratedData) -> None:
    shapes = [(name, " x ".join(map(str, shape))) for name, shape in written.shapes.items()]
    console.print(f"Wrote {written.output}: {written.name}.")
    merged = written.request.get("merged", ())
    print_facts(console, [*shapes, *((f"label {number}", ", ".join(names)) for number, names in enumerate(merged))])
