"""``interbasin merge``: one network of several, from disk to disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, table

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.merge import Merged

__all__ = ["merge"]

# Spelled out, because asking the table would import NumPy before the help is shown; a test compares the two.
METHODS = ("lerp", "slerp", "average", "task-arithmetic", "ties")
DTYPES = ("float32", "float16", "bfloat16", "float64")


def merge(
    ctx: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Folders or files with weights, or NAME@weights.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the merged network; or a file, NAME.safetensors.")
    ],
    method: Annotated[str, typer.Option(help=f"How to merge: {', '.join(METHODS)}.")] = "average",
    weights: Annotated[
        str | None,
        typer.Option(
            help="average, task-arithmetic, ties: a weight a model, with commas between them; those of average are "
            "divided by their sum. Equal by default."
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="task-arithmetic, ties: the MODEL that the others were fine-tuned from.")
    ] = None,
    t: Annotated[
        float | None, typer.Option("--t", help="lerp, slerp: where between the two, 0.5 by default; 0 is the first.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(help="ties: the share of every update that is kept, 0.5 by default.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="task-arithmetic, ties: factor of the merged update, 1 by default.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"Of the result: {', '.join(DTYPES)}; by default that of the first MODEL.")
    ] = None,
    align: Annotated[
        str | None,
        typer.Option(
            help="For networks that were trained apart: a method of rebasin that needs no data, as "
            "permutation-weights, by which all are brought into the coordinates of the first MODEL."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what --align draws at random.")] = 0,
    shard: Annotated[float, typer.Option("--shard", help="Size in GB beyond which no file grows.")] = 5.0,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier merge in OUTPUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Merge MODELs that share their coordinates, as fine-tunes of one base do, into one.

    They are read and written a stretch at a time, whatever their size. OUTPUT receives the weights, the configuration
    and tokenizer of the first MODEL, a model card (README.md) that says what was merged and how, and outcome.json.

    Examples:

      interbasin merge one two three -o soup

      interbasin merge one two -o between --method slerp --t 0.3

      interbasin merge math code -o both --method ties --base original --density 0.2 --weights 1,0.7

      interbasin merge one two -o middle --align permutation-weights

      interbasin merge a.safetensors b.safetensors -o merged.safetensors --dtype bfloat16 --json
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    numbers = _numbers(weights)
    from interbasin.jobs.merge import merge as merged_on_disk
    from interbasin.jobs.merge.stored import open_network

    first = open_network(models[0]).checkpoint
    with words.progress("Merging", len(first.sources)) as done:
        made = merged_on_disk(
            [first, *models[1:]] if align is None else models,
            method,
            output=output,
            weights=numbers,
            base=base,
            t=t,
            density=density,
            scale=scale,
            dtype=dtype,
            align=align,
            seed=seed,
            max_shard_bytes=int(shard * 1e9),
            force=force,
            progress=done,
        )
    words.result(made.summary(), lambda console: _show(console, made))
    for remark in made.remarks:
        words.remark(remark)


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(weight) for weight in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"takes numbers with commas between them, as 1,0.5,0.5, and got {text!r}.", param_hint="--weights"
        ) from error


def _show(console: Console, made: Merged) -> None:
    asked = made.request
    options = [(name, _told(asked.get(name))) for name in ("weights", "t", "density", "scale", "base", "align")]
    options = [(name, told) for name, told in options if told]
    metrics = made.metrics
    facts = [
        ("method", made.method),
        ("models", ", ".join(asked["models"])),
        *options,
        ("tensors", f"{metrics['tensors']:,}, of which {metrics['tensors_unchanged']:,} are the same in all"),
        ("numbers", f"{metrics['parameters']:,} ({metrics['bytes'] / 1e6:,.1f} MB in {metrics['files']} files)"),
        ("seconds", f"{made.seconds:.2f}"),
        ("written to", str(made.path)),
    ]
    console.print(table(("", ""), facts, words=(0, 1)))


def _told(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"{one:.4g}" for one in value)
    return "" if value is None else str(value)
