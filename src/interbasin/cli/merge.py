"""``interbasin merge``: one network of several, from disk to disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from interbasin.cli.methods import method_option, names
from interbasin.cli.options import DATA, ImageOptions, command, model_in, numbers, output_option
from interbasin.cli.output import Terminal, foreign_code, print_facts
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.merge import MergeResult

_option = partial(method_option, "merge")

# Spelled out, because asking the job would import NumPy before the help is shown; a test compares the two.
DTYPES = ("float32", "float16", "bfloat16", "float64")


@command
def merge(
    terminal: Terminal,
    *,
    models: Annotated[
        list[str],
        Argument(metavar="MODEL...", help="Folders or files with weights, or NAME@weights.", show_default=False),
    ],
    output: Annotated[Path, output_option("Folder for the merged network; or a file, NAME.safetensors.")],
    method: Annotated[str, Option(help=f"How to merge: {', '.join(names('merge'))}.")] = "average",
    weights: Annotated[
        str | None,
        _option("weights", "comma-separated weights, one per model (normalised for average). Equal by default."),
    ] = None,
    base: Annotated[str | None, _option("base", "the MODEL that the others were fine-tuned from.")] = None,
    t: Annotated[float | None, _option("t", "where between the two, 0.5 by default; 0 is the first.", "--t")] = None,
    density: Annotated[
        float | None, _option("density", "the share of every update that is kept, 0.5 by default.")
    ] = None,
    scale: Annotated[float | None, _option("scale", "factor of the merged update, 1 by default.")] = None,
    dtype: Annotated[
        str | None, Option(help=f"Of the result: {', '.join(DTYPES)}; by default that of the first MODEL.")
    ] = None,
    align: Annotated[
        str | None,
        Option(
            help="For networks that were trained apart: a method of rebasin that needs no data, as "
            "permutation-weights, by which all are brought into the coordinates of the first MODEL."
        ),
    ] = None,
    data: Annotated[str | None, Option(help=f"For --reset: {DATA}; its train part, where there are parts.")] = None,
    reset: Annotated[
        int | None,
        Option(
            min=1,
            help="Batches of --data to estimate the running statistics of batch norms on, for the merged network; "
            "without, they are merged like weights, which fits no network in between. The first MODEL must be one "
            "that can be built.",
        ),
    ] = None,
    image_options: ImageOptions,
    seed: Annotated[int, Option(help="Of what --align and --reset draw at random.")] = 0,
    shard: Annotated[float, Option("--shard", help="Size in GB beyond which no file grows.")] = 5.0,
    force: Annotated[bool, Option("--force", help="Replace an earlier merge in OUTPUT.")] = False,
) -> None:
    """Merge MODELs that share their coordinates, as fine-tunes of one base do, into one.

    Tensors are streamed; memory does not grow with model size. OUTPUT receives the weights, the configuration
    and tokenizer of the first MODEL, a model card (README.md) that says what was merged and how, and outcome.json.
    Networks that were trained apart share no coordinates: --align, or rebasin before, brings them together.

    Methods, with their papers (docs/references.bib):

    {methods of merge}

    Examples:
      interbasin merge one two three -o soup
      interbasin merge one two -o between --method slerp --t 0.3
      interbasin merge math code -o both --method ties --base original --density 0.2 --weights 1,0.7
      interbasin merge one two -o middle --align permutation-weights
      interbasin merge my.networks:cnn@a my.networks:cnn@b -o middle --data images --reset 20
      interbasin merge a.safetensors b.safetensors -o merged.safetensors --dtype bfloat16 --json
    """
    shares = numbers(weights, "--weights")
    if (data is None) is not (reset is None):
        raise typer.BadParameter("--data and --reset go together: on what, and on how many batches.")
    if not 1e-9 <= shard <= 1e9:
        raise typer.BadParameter(f"takes a size in GB from 1e-9 to 1e9, as 5, and got {shard:g}.", param_hint="--shard")
    from interbasin.jobs.merge import merge as merge_models
    from interbasin.jobs.merge.on_disk import open_model

    first = open_model(models[0])
    batches = None
    if data is not None and reset is not None:
        from interbasin.models import load_model

        with foreign_code():
            like = load_model(models[0]).inputs
        reader = image_options.open(data, model=models[0], like=like, seed=seed)
        batches = reader.read(reader.part_if_any("train"), reset * image_options.batch_size)
    with terminal.progress("Merging", len(first.sources)) as done:
        result = merge_models(
            [first, *models[1:]] if align is None and reset is None else models,
            method,
            output=output,
            weights=shares,
            base=base,
            t=t,
            density=density,
            scale=scale,
            dtype=dtype,
            align=align,
            seed=seed,
            reset=batches,
            max_shard_bytes=int(shard * 1e9),
            force=force,
            progress=done,
        )
    usable = None if output.suffix == ".safetensors" else model_in(models[0], str(output))
    summary = {**result.summary(), **({"use": {"model": usable}} if usable else {})}
    terminal.result(summary, lambda console: _show(console, result, usable), result.notes)


def _show(console: Console, result: MergeResult, usable: str | None) -> None:
    request, metrics = result.request, result.metrics
    options = [
        (name, ", ".join(f"{weight:.4g}" for weight in value) if name == "weights" else str(value))
        for name in ("weights", "t", "density", "scale", "base", "align", "reset")
        if (value := request.get(name)) is not None
    ]
    facts = [
        ("method", result.method),
        ("models", ", ".join(request["models"])),
        *options,
        ("tensors", f"{metrics['tensors']:,}, of which {metrics['tensors_unchanged']:,} are the same in all"),
        (
            "numbers",
            f"{metrics['parameters']:,} ({metrics['bytes'] / 1e6:,.1f} MB in {plural(int(metrics['files']), 'file')})",
        ),
        ("seconds", f"{result.seconds:.2f}"),
        ("written to", str(result.path)),
        *([("as a MODEL", usable)] if usable else []),
    ]
    print_facts(console, facts)
