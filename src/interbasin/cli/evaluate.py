"""``interbasin evaluate``: what lies between two networks of one architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, number, table
from interbasin.cli.reading import (
    DATA,
    MODEL,
    BatchSize,
    Column,
    InputShape,
    MaxLength,
    Mean,
    Reading,
    Scale,
    Std,
    Strict,
    Tokenizer,
    TrustRemoteCode,
    numbers,
    tokenizer_of,
)
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from interbasin.datasets import Batches
    from interbasin.outcome import Outcome
    from interbasin.wiring import Alignment

MEANINGS = {
    "barrier_original": "rise of the loss above the chord from the original of A to B",
    "barrier": "rise of the loss above the chord from A to B",
    "barrier_accuracy_original": "fall of the accuracy below the chord from the original of A to B",
    "barrier_accuracy": "fall of the accuracy below the chord from A to B",
    "loss_a": "of A",
    "loss_b": "of B",
    "loss_original": "of what A was before it was aligned",
    "accuracy_a": "of A",
    "accuracy_b": "of B",
    "accuracy_original": "of what A was before it was aligned",
    "distance": "of the weights of A and B",
    "relative_distance": "the same, divided by the norm of B's",
    "cycle_loss": "loss there and back, minus what it was",
    "cycle_accuracy": "accuracy there and back, minus what it was",
    "cycle_frne": "relative error of the weights that came back",
}


def evaluate(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help=f"A network, usually aligned already: {MODEL}.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A network of the same architecture.")],
    data: Annotated[str, typer.Option(help=f"What to measure on: {DATA}.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the figures, tables and plots.")],
    points: Annotated[int, typer.Option(min=2, help="Points of the path, both ends among them.")] = 25,
    path: Annotated[str, typer.Option(help="The way from A to B, a tensor at a time: lerp or slerp.")] = "lerp",
    original: Annotated[
        str | None, typer.Option(help="MODEL that A was before it was aligned: its loss is the chord's end then.")
    ] = None,
    alignment: Annotated[
        Path | None, typer.Option(help="Folder of the alignment that carried --original to A, or of its outcome.")
    ] = None,
    cycle: Annotated[
        str | None, typer.Option(help="A method of rebasin, to measure how well it finds there and back.")
    ] = None,
    reset: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Batches (of the train part, where there are parts) to estimate the statistics of batch norms on, at "
            "every point between the ends, which keep their own.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Part of the data, where there are parts: test (the default) or train.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many samples, drawn with --seed.")] = None,
    batch_size: BatchSize = 64,
    column: Column = None,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    mean: Mean = None,
    std: Std = None,
    scale: Scale = True,
    input_shape: InputShape = None,
    trust_remote_code: TrustRemoteCode = False,
    strict: Strict = True,
    seed: Annotated[int, typer.Option(help="Of what is drawn at random.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier outcome in OUTPUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure what lies between A and B: the barrier, their distance, and how alike their spaces are.

    The barrier needs labels; text without any is a language model's own label. OUTPUT receives outcome.json (all
    figures, what was asked, versions, hashes), the curves and matrices as tables (.csv), and plots (.svg).

    Examples:

      interbasin evaluate a b --data digits -o out

      interbasin evaluate my.networks:small@aligned my.networks:small@b.safetensors --data images --reset 20 -o out

      interbasin evaluate aligned b --original a --alignment aligned --data test.npz --path slerp --json -o out
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    request = {
        name: value for name, value in ctx.params.items() if name not in ("ctx", "json", "quiet", "debug", "force")
    }
    means, deviations = numbers(mean, "--mean"), numbers(std, "--std")
    shape = numbers(input_shape, "--input-shape")
    if alignment is not None and original is None:
        raise typer.BadParameter("says what carried --original to A; give both.", param_hint="--alignment")
    from interbasin.batches import WithoutLabels
    from interbasin.jobs.comparison import compare_networks
    from interbasin.models import load_model
    from interbasin.outcome import refuse_outcome_in_the_way

    refuse_outcome_in_the_way(output, force=force)
    maps = None if alignment is None else _alignment(alignment)
    align = None if cycle is None else _checked_method(cycle)
    sizes = None if shape is None else [int(size) for size in shape]

    def load(text: str) -> Any:
        return load_model(text, input_shape=sizes, strict=strict, trust_remote_code=trust_remote_code, seed=seed)

    one, other = load(a), load(b)
    before = None if original is None else load(original)

    reading = Reading(
        data,
        one.inputs,
        batch_size,
        column,
        tokenizer_of(a) if tokenizer is None else tokenizer,
        max_length,
        means,
        deviations,
        scale,
        seed,
    )
    known = reading.splits
    batches = reading.part(split or ("test" if "test" in known else None), limit)
    training = reading.part("train" if "train" in known else None, None if reset is None else reset * batch_size)
    inputs = WithoutLabels(batches).first()
    with words.progress("Evaluating", 100) as done:
        found = compare_networks(
            one.model,
            other.model,
            batches,
            points=points,
            path=path,
            original=None if before is None else before.model,
            alignment=maps,
            align=None if align is None else align(inputs, training, seed),
            reset=None if reset is None else training,
            inputs=inputs,
            progress=lambda share: done(round(100 * share)),
        )
    named = {"a": a, "b": b, "data": data, **({"original": original} if original else {})}
    outcome = found.save(output, request=request, inputs=named, force=force)
    words.result({**outcome.summary(), "output": str(output)}, lambda console: _show(console, outcome, batches, output))
    for warning in outcome.notes:
        words.remark(warning)


def _alignment(folder: Path) -> Alignment:
    """The alignment in a folder of its own, or in that of an outcome."""
    from interbasin.outcome import Outcome
    from interbasin.wiring import Alignment

    return Outcome.load(folder).alignment() if (folder / "outcome.json").exists() else Alignment.load(folder)


def _checked_method(method: str) -> Callable[[Any, Batches, int], Callable[[nn.Module, nn.Module], Any]]:
    """What aligns by a method, once inputs and data are there; the name is looked up before anything is read."""
    from interbasin.jobs.rebasin import METHODS, rebasin

    method = METHODS[method].name

    def prepared(inputs: Any, data: Batches, seed: int) -> Callable[[nn.Module, nn.Module], Any]:
        return lambda source, target: rebasin(source, target, inputs, method=method, data=data, seed=seed)

    return prepared


def _show(console: Console, outcome: Outcome, batches: Batches, output: Path) -> None:
    metrics = outcome.metrics
    rows = [(name, number(metrics[name]), meaning) for name, meaning in MEANINGS.items() if name in metrics]
    console.print(f"{batches.samples.name}: {plural(batches.count, 'sample')}")
    console.print(table(("figure", "value", "meaning"), rows, words=(0, 2)))
    errors = "alignment_error_relative."
    spaces = [name.removeprefix(errors) for name in metrics if name.startswith(errors)]
    if spaces:
        columns = {
            "error": "alignment_error",
            "relative": "alignment_error_relative",
            # Without maps it is the same before and after.
            **({"cosine before": "cosine_before"} if outcome.request["alignment"] else {}),
            "cosine": "cosine_after",
            "cycle error": "cycle_error",
        }
        shown = {title: key for title, key in columns.items() if any(f"{key}.{space}" in metrics for space in spaces)}
        cells = [[space, *(number(metrics.get(f"{key}.{space}")) for key in shown.values())] for space in spaces]
        console.print(table(("space", *shown), cells))
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
