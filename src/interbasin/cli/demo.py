"""``interbasin demo``: what there is, small, on the embedded data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from interbasin.cli.options import command
from interbasin.cli.output import Terminal, number, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.demo import Demo


@command
def demo(
    terminal: Terminal,
    *,
    seed: Annotated[int, Option(help="Of the first network; the second has the next one.")] = 0,
) -> None:
    """Train two small networks on digits; carry the hidden layer of one into the other, align, merge, stitch them.

    Every fit has a row in one table, every method of re-basin one in another, every way of translating one in a third;
    then comes an audit: should an index of the one's vectors be translated when the other becomes its model? Then the
    first network is fine-tuned for another task, and a wider network is given that without training, with a verdict.
    Last, the first network is adapted to images that no network has seen, with another verdict: does pre-training help
    there at all? Takes about a minute, needs no files and writes none.

    Examples:
      interbasin demo
      interbasin demo --seed 5 --json
    """
    import torch

    from interbasin.demo import run_demo, steps

    # Matrices this small are slower on several threads, on a busy machine ten times.
    torch.set_num_threads(1)

    with terminal.progress("Training, aligning, merging", steps()) as done:
        result = run_demo(seed=seed, progress=done)
    terminal.result(result.summary(), lambda console: _show(console, result))


def _show(console: Console, result: Demo) -> None:
    console.print(
        f"Two networks 64-{result.width}-10 on digits, seeds {result.seed} and {result.seed + 1}: test accuracy "
        f"{result.source_accuracy:.1%} and {result.target_accuracy:.1%}."
    )
    console.print(f"\nHow alike their hidden layers are, over {result.train_rows:,} training images:")
    print_table(
        console, ("similarity", "value"), [(name, number(value)) for name, value in result.similarities.items()]
    )
    console.print(
        "The first network's hidden layer, carried into the second's by every fit and read by the second network's "
        f"head, on {result.test_rows} held-out images:"
    )
    fits = [
        (row.method, row.map, *map(number, (row.residual, row.held_out_residual, row.explained)), _share(row.accuracy))
        for row in result.rows
    ]
    print_table(console, ("fit", "map", "residual", "held out", "explained", "accuracy"), fits, words=(0, 1))
    for note in dict.fromkeys(row.note for row in result.rows if row.note):
        methods = ", ".join(row.method for row in result.rows if row.note == note)
        console.print(f"{methods}: {note}.", style="dim")

    console.print("\nThe first network in the second one's coordinates, by every method, and the two merged half-way:")
    aligned = [
        (
            *(row.method, row.variant, "yes" if row.exact else "no"),
            *(number(row.distance), _share(row.accuracy), number(row.barrier), _share(row.merged)),
        )
        for row in result.aligned
    ]
    titles = ("method", "variant", "exact", "distance", "aligned", "barrier", "merged")
    print_table(console, titles, aligned, words=(0, 1, 2))

    console.print("\nThe first network's encoder stitched to the second one's head, by every way of translating:")
    stitched = [(row.method, number(row.cosine), _share(row.accuracy), row.note) for row in result.stitched]
    print_table(console, ("translation", "cosine", "accuracy", ""), stitched, words=(0, 3))

    index = result.migration
    console.print(
        f"\nAn index of the first network's vectors of {index.documents:,} images, the second network as its new "
        f"model: {index.queries} held-out images ask for the images nearest to them, {index.pairs} pairs to fit on:"
    )
    first = 4  # way, method, and two measures; more is too wide for a window
    print_table(console, ("way", "method", *index.measures)[:first], [row[:first] for row in index.rows], words=(0, 1))
    console.print(f"{index.advice}: {index.verdict}")

    moved = result.fine_tune
    console.print(
        f"\nThe first network, fine-tuned to read transposed digits, and a network of width {moved.widths[1]} that is "
        f"given this without training, from {moved.inputs:,} transposed images without labels; as many of the usual "
        "ones keep what it could do:"
    )
    skills = [(row.network, row.method or "-", _share(row.task), _share(row.original)) for row in moved.rows]
    print_table(console, ("network", "moved by", "transposed", "usual"), skills, words=(0, 1))
    console.print(moved.verdict)

    other = result.new_modality
    console.print(
        f"\nThe first network, adapted to images in which every pixel is a mixture of all: {other.labelled} labels, "
        f"{other.unlabelled:,} images without, errors on samples that were held out:"
    )
    tried = [(row.method, _share(row.error), f"{_share(row.low)} to {_share(row.high)}") for row in other.rows]
    if tried:
        print_table(console, ("method", "error", "interval"), tried)
        taken = f"Taken, and fitted to all {other.labelled}: {other.method}"
        console.print(f"{taken}, which errs on {_share(other.error_test)} of {result.test_rows} test images.")
    console.print(other.verdict)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
