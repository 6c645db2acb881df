"""The command line: a file for each command, several for translate, transport and adapt.

Nothing here imports torch before a command runs.
"""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from interbasin.cli.adapt import adapt
from interbasin.cli.clean import clean
from interbasin.cli.compare import compare
from interbasin.cli.data import data
from interbasin.cli.demo import demo
from interbasin.cli.evaluate import evaluate
from interbasin.cli.fit import fit
from interbasin.cli.inspect import inspect
from interbasin.cli.merge import merge
from interbasin.cli.options import command
from interbasin.cli.output import Commands, Terminal
from interbasin.cli.rebasin import rebasin
from interbasin.cli.translate import translate
from interbasin.cli.transport import transport

__all__ = ["app"]

app = typer.Typer(
    name="interbasin",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from interbasin._version import __version__

        print(f"interbasin {__version__}")
        raise typer.Exit()


@app.callback()
@command
def interbasin(
    terminal: Terminal,
    *,
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Carry what one trained neural network knows into another.

    Results go to stdout, progress and remarks to stderr. Errors are one sentence and exit code 1.

    Examples:
      interbasin demo
      interbasin compare old.npy new.npy
      interbasin fit old.npy new.npy --method procrustes -o map
      interbasin inspect timm:resnet18
      interbasin rebasin a b -o aligned
      interbasin merge one two three -o soup
      interbasin transport old old-lora new --data task.jsonl -o moved
      interbasin adapt timm:resnet18@weights --proxy photos --data ecg.npz -o adapted
      interbasin evaluate my.nets:small@a my.nets:small@b --data digits -o out
      interbasin data burgers -o burgers.npz
      interbasin translate apply map old.parquet -o new.parquet
      interbasin clean results --dry-run
    """


for function in (demo, fit, compare, inspect, rebasin, merge, transport, adapt, evaluate, data, clean):
    app.command()(function)
app.add_typer(translate)
