"""``interbasin rebasin``: one network in the coordinates of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from interbasin.cli.options import (
    DATA,
    MODEL,
    DataOptions,
    Force,
    NetworkOptions,
    Seed,
    command,
    model_in,
    output_option,
)
from interbasin.cli.output import Terminal, foreign_code, print_metrics

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.outcome import Outcome

MEANINGS = {
    "distance_before": "of the weights, before",
    "distance_after": "and after",
    "delta_loss_self": "loss of the aligned network minus the source's",
    "delta_accuracy_self": "the same of the accuracy",
    "barrier_none": "barrier without alignment",
    "barrier_original": "barrier with it, the chord from the source",
    "barrier": "the same, the chord from the aligned network",
    "delta_loss_self_finetuned": "loss after fine-tuning minus the source's",
    "delta_accuracy_self_finetuned": "the same of the accuracy",
    "barrier_original_finetuned": "barrier after fine-tuning, the chord from the source",
}

NAMES = {"model": "the aligned network", "target": "the target, folded too,"}


@command
def rebasin(
    terminal: Terminal,
    *,
    source: Annotated[str, Argument(metavar="SOURCE", help=f"The network to move: {MODEL}.")],
    target: Annotated[
        str, Argument(metavar="TARGET", help="The network whose coordinates it gets; of the same architecture.")
    ],
    output: Annotated[Path, output_option("Folder for the aligned network, its alignment and the figures.")],
    method: Annotated[str, Option(help="How maps are found: one of those above.")] = "procrustes-weights",
    variant: Annotated[str | None, Option(help="Variant of the method, as listed above; by default its first.")] = None,
    data: Annotated[str | None, Option(help=f"For activations, fine-tuning and measures: {DATA}.")] = None,
    limit: Annotated[
        int, Option(min=1, help="At most so many samples to find maps and fine-tune with, drawn with --seed.")
    ] = 5000,
    reach: Annotated[
        str,
        Option(
            help="How far maps may go. exact: only maps that leave the function unchanged. orthogonal: rotations in "
            "every space, which change the function. auto: exact for permutation methods and straight-through; "
            "the others rotate only in networks without exact rotations, where there are no norm gains."
        ),
    ] = "auto",
    fold: Annotated[
        bool,
        Option(
            "--fold",
            help="Fold norms first, so that residual streams turn (stay_in_class=False in Python); writes two folded "
            "networks, OUTPUT/model and OUTPUT/target.",
        ),
    ] = False,
    restarts: Annotated[int, Option(min=1, help="Runs of weight matching; the best is kept.")] = 1,
    sweeps: Annotated[int, Option(min=1, help="Sweeps over all spaces at most; of stiefel, tens of steps.")] = 100,
    epochs: Annotated[int, Option(min=1, help="Passes of straight-through over the data.")] = 5,
    finetune: Annotated[int, Option(min=0, help="Epochs of fine-tuning afterwards; the paper takes 2.")] = 0,
    rate: Annotated[float, Option(min=0, help="Learning rate of fine-tuning.")] = 1e-4,
    points: Annotated[
        int, Option(min=0, help="Points of the way to the target to measure, where data have labels.")
    ] = 11,
    reset: Annotated[
        int | None,
        Option(
            min=0,
            help="Where there are batch norms: batches to estimate their statistics on, at every point between the "
            "ends of the way, and in the aligned network if its maps are approximate. By default all that maps are "
            "found with; 0 leaves statistics as they are.",
        ),
    ] = None,
    data_options: DataOptions,
    network_options: NetworkOptions,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Put SOURCE into the coordinates of TARGET, so that the two interpolate and merge.

    Methods, with their variants and their papers (docs/references.bib):

    {methods of rebasin}

    Where DATA come in parts, maps are found and networks fine-tuned on train, and all is measured on test.

    OUTPUT holds the aligned network and its alignment, outcome.json (all figures, what was asked, versions, hashes),
    tables (.csv) and plots (.svg). What to write as MODEL to use the network is shown at the end: OUTPUT for one of
    transformers, timm:NAME@OUTPUT or package.module:factory@OUTPUT for others.

    Examples:
      interbasin rebasin a b -o aligned
      interbasin rebasin my.networks:small@a.safetensors my.networks:small@b.safetensors --data digits -o aligned
      interbasin rebasin a b --method permutation-weights --restarts 5 --json -o aligned
      interbasin merge aligned b --method lerp -o merged
    """
    from interbasin.batches import split_batch
    from interbasin.errors import DataError
    from interbasin.jobs.rebasin import rebasin as align
    from interbasin.jobs.rebasin.job import choose_method

    choose_method(method, variant, has_data=data is not None, has_labels=data is not None)
    terminal.require_free(output, force=force)
    with terminal.status("Loading") as tell, foreign_code():
        moving, fixed = (network_options.load(model, seed=seed) for model in (source, target))
        train = test = None
        resets: Any = reset != 0
        if data is None and moving.inputs is None:
            raise DataError(
                f"The networks are traced on one batch, and {source} does not tell what its inputs look like; give "
                "--input-shape, as 1,3,224,224, or --data."
            )
        if data is not None:
            reader = data_options.open(data, model=source, like=moving.inputs, seed=seed)
            training = reader.part_if_any("train")
            train, test = reader.read(training, limit), reader.read(reader.part_if_any("test"))
            if reset:
                resets = reader.read(training, reset * data_options.batch_size)
        labelled = train is not None and split_batch(next(iter(train)))[1] is not None
        result = align(
            moving.model,
            fixed.model,
            moving.require_inputs() if train is None else None,
            method,
            variant,
            data=train,
            finetune=finetune,
            seed=seed,
            reach=reach,
            stay_in_class=not fold,
            restarts=restarts,
            sweeps=sweeps,
            epochs=epochs,
            rate=rate,
            reset=resets,
            test=test,
            points=points if labelled else 0,
            progress=tell,
        )
    # The result knows what became of what was asked: no points without labels, folding by the name it has in Python.
    request = {name: value for name, value in terminal.request.items() if name not in {*result.request, "fold"}}
    inputs = terminal.inputs("source", "target", "data")
    outcome = result.save(output, like=moving.checkpoint, inputs=inputs, request=request, force=force)
    folders = {"model": output / "model", "target": output / "target"} if fold else {"model": output}
    usable = {name: model for name, folder in folders.items() if (model := model_in(source, str(folder)))}
    terminal.outcome(outcome, output, lambda console: _show(console, outcome, output, usable), use=usable)


def _show(console: Console, outcome: Outcome, output: Path, usable: Mapping[str, str]) -> None:
    metrics = outcome.metrics
    exact = "exact: the same function" if metrics["exact"] else "approximate"
    console.print(f"{outcome.request['method']} ({outcome.request['variant']}), {exact}")
    columns = {"relative error": "alignment_error_relative", "cosine before": "cosine_before", "after": "cosine_after"}
    print_metrics(console, metrics, MEANINGS, columns)
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
    for name, model in usable.items():
        console.print(f"use {NAMES[name]} as the MODEL {model}", soft_wrap=True)
