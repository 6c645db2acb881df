"""``interbasin evaluate``: what lies between two networks of one architecture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.options import DATA, MODEL, DataOptions, Force, NetworkOptions, Seed, command, output_option
from interbasin.cli.output import Terminal, print_metrics
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

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


@command
def evaluate(
    terminal: Terminal,
    *,
    a: Annotated[str, Argument(metavar="A", help=f"A network, usually aligned already: {MODEL}.")],
    b: Annotated[str, Argument(metavar="B", help="A network of the same architecture.")],
    data: Annotated[str, Option(help=f"What to measure on: {DATA}.")],
    output: Annotated[Path, output_option("Folder for the figures, tables and plots.")],
    points: Annotated[int, Option(min=2, help="Points of the path, both ends among them.")] = 25,
    path: Annotated[str, Option(help="The way from A to B, tensor by tensor: lerp or slerp.")] = "lerp",
    original: Annotated[
        str | None, Option(help="MODEL that A was before it was aligned: its loss is the chord's end then.")
    ] = None,
    alignment: Annotated[
        Path | None, Option(help="Folder of the alignment that carried --original to A, or of its outcome.")
    ] = None,
    cycle: Annotated[
        str | None, Option(help="A method of rebasin, to measure how well it finds there and back.")
    ] = None,
    reset: Annotated[
        int | None,
        Option(
            min=1,
            help="Batches (of the train part, where there are parts) to estimate the statistics of batch norms on, at "
            "every point between the ends, which keep their own.",
        ),
    ] = None,
    split: Annotated[
        str | None, Option(help="Part of the data, where there are parts: test (the default) or train.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="At most so many samples, drawn with --seed.")] = None,
    data_options: DataOptions,
    network_options: NetworkOptions,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Measure what lies between A and B: the barrier, their distance, and how alike their spaces are.

    The barrier needs labels; text without any is a language model's own label. OUTPUT receives outcome.json (all
    figures, what was asked, versions, hashes), the curves and matrices as tables (.csv), and plots (.svg).

    Examples:
      interbasin evaluate my.nets:small@a my.nets:small@b --data digits -o out
      interbasin evaluate my.networks:small@aligned my.networks:small@b.safetensors --data images --reset 20 -o out
      interbasin evaluate aligned b --original a --alignment aligned --data test.npz --path slerp --json -o out
    """
    if alignment is not None and original is None:
        raise typer.BadParameter("says what carried --original to A; give both.", param_hint="--alignment")
    from interbasin.batches import WithoutLabels
    from interbasin.jobs.comparison import compare_networks
    from interbasin.jobs.rebasin import METHODS, rebasin

    terminal.require_free(output, force=force)
    maps = None if alignment is None else _load_alignment(alignment)
    method = "" if cycle is None else METHODS[cycle].name
    first, second = network_options.load(a, seed=seed), network_options.load(b, seed=seed)
    before = None if original is None else network_options.load(original, seed=seed)
    reader = data_options.open(data, model=a, like=first.inputs, seed=seed)
    batches = reader.read(split or reader.part_if_any("test"), limit)
    training = reader.read(reader.part_if_any("train"), None if reset is None else reset * data_options.batch_size)
    inputs = WithoutLabels(batches).first()

    def align(source: Any, target: Any) -> Any:
        return rebasin(source, target, inputs, method=method, data=training, seed=seed)

    with terminal.progress("Evaluating", 100) as done:
        comparison = compare_networks(
            first.model,
            second.model,
            batches,
            points=points,
            path=path,
            original=None if before is None else before.model,
            alignment=maps,
            align=align if method else None,
            reset=None if reset is None else training,
            inputs=inputs,
            progress=lambda share: done(round(100 * share)),
        )
    sources = terminal.inputs("a", "b", "data", "original")
    outcome = comparison.save(output, request=terminal.request, inputs=sources, force=force)
    terminal.outcome(outcome, output, lambda console: _show(console, outcome, batches, output))


def _load_alignment(folder: Path) -> Alignment:
    """The alignment in a folder of its own, or in that of an outcome."""
    from interbasin.outcome import Outcome
    from interbasin.wiring import Alignment

    return Outcome.load(folder).alignment() if (folder / "outcome.json").exists() else Alignment.load(folder)


def _show(console: Console, outcome: Outcome, batches: Batches, output: Path) -> None:
    console.print(f"{batches.samples.name}: {plural(batches.count, 'sample')}")
    columns = {
        "error": "alignment_error",
        "relative": "alignment_error_relative",
        # Without maps it is the same before and after.
        **({"cosine before": "cosine_before"} if outcome.request["alignment"] else {}),
        "cosine": "cosine_after",
        "cycle error": "cycle_error",
    }
    print_metrics(console, outcome.metrics, MEANINGS, columns)
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
