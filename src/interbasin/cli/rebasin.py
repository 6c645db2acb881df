"""``interbasin rebasin``: one network in the coordinates of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, foreign_code, number, table
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
    model_in,
    numbers,
    tokenizer_of,
)

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


def rebasin(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=f"The network to move: {MODEL}.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The network whose coordinates it gets; of the same architecture.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the aligned network and all about it.")],
    method: Annotated[str, typer.Option(help="How maps are found: one of those above.")] = "procrustes-weights",
    variant: Annotated[str | None, typer.Option(help="Of the method, as listed above; by default its first.")] = None,
    data: Annotated[str | None, typer.Option(help=f"For activations, fine-tuning and measures: {DATA}.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="At most so many samples to find maps and fine-tune with, drawn with --seed.")
    ] = 5000,
    reach: Annotated[
        str,
        typer.Option(
            help="How far maps may go. exact: only such as leave the function as it is. orthogonal: all spaces turn, "
            "which changes it. auto: permutation methods and straight-through are exact; the others turn spaces "
            "without gains of networks without attention, and stay exact elsewhere, with a remark."
        ),
    ] = "auto",
    fold: Annotated[
        bool,
        typer.Option(
            "--fold",
            help="Fold norms first, so that residual streams turn (stay_in_class=False in Python); writes two folded "
            "networks, OUTPUT/model and OUTPUT/target.",
        ),
    ] = False,
    restarts: Annotated[int, typer.Option(min=1, help="Runs of weight matching; the best is kept.")] = 1,
    sweeps: Annotated[
        int, typer.Option(min=1, help="Sweeps over all spaces at most; of stiefel, tens of steps.")
    ] = 100,
    epochs: Annotated[int, typer.Option(min=1, help="Passes of straight-through over the data.")] = 5,
    finetune: Annotated[int, typer.Option(min=0, help="Epochs of fine-tuning afterwards; the paper takes 2.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Learning rate of fine-tuning.")] = 1e-4,
    points: Annotated[
        int, typer.Option(min=0, help="Points of the way to the target to measure, where data have labels.")
    ] = 11,
    reset: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Where there are batch norms: batches to estimate their statistics on, at every point between the "
            "ends of the way, and in the aligned network if its maps are approximate. By default all that maps are "
            "found with; 0 leaves statistics as they are.",
        ),
    ] = None,
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
    """Put SOURCE into the coordinates of TARGET, so that the two interpolate and merge.

    Methods, with their variants:

    - permutation-weights (coordinate): exact maps that bring the weights closest, space by space until nothing changes.

    - permutation-activations (pre, post; needs data): exact maps that match units by the correlation of their
    activations.

    - procrustes-weights (coordinate, sequential, layerwise): orthogonal maps that bring the weights closest.

    - procrustes-activations (pre, post; needs data): orthogonal maps that bring the activations closest.

    - procrustes-weights+activations (pre, post; needs data): orthogonal maps by the weights first, then by the
    activations of the aligned network.

    - stiefel (layerwise, joint): orthogonal maps that bring the weights closest, by descent along Cayley curves.

    - straight-through (coordinate; needs labels): exact maps by the loss half-way between the networks.

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
    told = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    request = {
        # Folding is called stay_in_class there, as in Python.
        name: value
        for name, value in ctx.params.items()
        if name not in ("ctx", "json", "quiet", "debug", "force", "fold")
    }
    means, deviations = numbers(mean, "--mean"), numbers(std, "--std")
    shape = numbers(input_shape, "--input-shape")
    sizes = None if shape is None else [int(size) for size in shape]
    from interbasin.batches import split_batch
    from interbasin.errors import DataError
    from interbasin.jobs.rebasin import rebasin as align
    from interbasin.jobs.rebasin.job import choose_method
    from interbasin.models import load_model
    from interbasin.outcome import refuse_outcome_in_the_way

    choose_method(method, variant, has_data=data is not None, has_labels=data is not None)
    refuse_outcome_in_the_way(output, force=force)
    with told.status("Loading") as tell, foreign_code():
        one, other = (
            load_model(text, input_shape=sizes, strict=strict, trust_remote_code=trust_remote_code, seed=seed)
            for text in (source, target)
        )
        train = test = None
        resets: Any = reset != 0
        if data is None and one.inputs is None:
            raise DataError(
                f"The networks are traced on one batch, and {source} does not tell what its inputs look like; give "
                "--input-shape, as 1,3,224,224, or --data."
            )
        if data is not None:
            reading = Reading(
                data,
                one.inputs,
                batch_size,
                column,
                tokenizer_of(source) if tokenizer is None else tokenizer,
                max_length,
                means,
                deviations,
                scale,
                seed,
            )
            known = reading.splits
            train = reading.part("train" if "train" in known else None, limit)
            test = reading.part("test" if "test" in known else None)
            if reset:
                resets = reading.part("train" if "train" in known else None, reset * batch_size)
        labelled = train is not None and split_batch(next(iter(train)))[1] is not None
        result = align(
            one.model,
            other.model,
            one.require_inputs() if train is None else None,
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
    named = {"source": source, "target": target, **({"data": data} if data else {})}
    # The result knows what became of what was asked, such as no points without labels.
    beyond = {name: value for name, value in request.items() if name not in result.request}
    outcome = result.save(output, like=one.checkpoint, inputs=named, request=beyond, force=force)
    folders = {"model": output / "model", "target": output / "target"} if fold else {"model": output}
    usable = {name: words for name, folder in folders.items() if (words := model_in(source, str(folder)))}
    told.result(
        {**outcome.summary(), "output": str(output), "use": usable},
        lambda console: _show(console, outcome, output, usable),
    )
    for warning in outcome.notes:
        told.remark(warning)


def _show(console: Console, outcome: Outcome, output: Path, usable: Mapping[str, str]) -> None:
    metrics = outcome.metrics
    exact = "exact: the same function" if metrics["exact"] else "approximate"
    console.print(f"{outcome.request['method']} ({outcome.request['variant']}), {exact}")
    rows = [(name, number(metrics[name]), meaning) for name, meaning in MEANINGS.items() if name in metrics]
    console.print(table(("figure", "value", "meaning"), rows, words=(0, 2)))
    spaces = [name.partition(".")[2] for name in metrics if name.startswith("alignment_error_relative.")]
    if spaces:
        shown = {
            "relative error": "alignment_error_relative",
            "cosine before": "cosine_before",
            "after": "cosine_after",
        }
        cells: list[list[Any]] = [
            [space, *(number(metrics.get(f"{key}.{space}")) for key in shown.values())] for space in spaces
        ]
        console.print(table(("space", *shown), cells))
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
    for name, model in usable.items():
        console.print(f"use {NAMES[name]} as the MODEL {model}", soft_wrap=True)
