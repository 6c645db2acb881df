"""``interbasin rebasin``: one network in the coordinates of another."""

from __future__ import annotations

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
    numbers,
    tokenizer_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.outcome import Outcome

__all__ = ["rebasin"]

MEANINGS = {
    "distance_before": "of the weights, before",
    "distance_after": "and after",
    "delta_loss_self": "loss of the aligned network minus that of the source",
    "delta_accuracy_self": "the same of the accuracy",
    "barrier_none": "barrier without alignment",
    "barrier": "barrier with it, the chord from the aligned network",
    "barrier_original": "the same, the chord from the source",
    "delta_loss_self_finetuned": "loss after fine-tuning minus that of the source",
    "delta_accuracy_self_finetuned": "the same of the accuracy",
    "barrier_original_finetuned": "barrier after fine-tuning, the chord from the source",
}


def rebasin(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=f"The network to move: {MODEL}.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The network whose coordinates it gets; of the same architecture.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the aligned network and all about it.")],
    method: Annotated[str, typer.Option(help="How maps are found: one of those below.")] = "procrustes-weights",
    variant: Annotated[str | None, typer.Option(help="Of the method; by default its first.")] = None,
    data: Annotated[str | None, typer.Option(help=f"For activations, fine-tuning and measures: {DATA}.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many samples to find maps with.")] = 5000,
    reach: Annotated[
        str,
        typer.Option(help="exact: only maps that change nothing; orthogonal: all spaces turn; auto: what suits."),
    ] = "auto",
    fold: Annotated[
        bool, typer.Option("--fold", help="Fold norms first, so that residual streams turn; writes a folded network.")
    ] = False,
    restarts: Annotated[int, typer.Option(min=1, help="Runs of weight matching; the best is kept.")] = 1,
    sweeps: Annotated[int, typer.Option(min=1, help="Sweeps over all spaces at most.")] = 100,
    finetune: Annotated[int, typer.Option(min=0, help="Epochs of fine-tuning afterwards; the paper takes 2.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Learning rate of fine-tuning.")] = 1e-4,
    points: Annotated[
        int, typer.Option(min=0, help="Points of the way to the target to measure, where data have labels.")
    ] = 11,
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

    Methods that need no data: permutation-weights, procrustes-weights (variants coordinate, sequential, layerwise) and
    stiefel (layerwise, joint). With --data also permutation-activations and procrustes-activations (pre, post),
    procrustes-weights+activations, and straight-through, which needs labels.

    OUTPUT is itself a MODEL: the aligned network, with the alignment, outcome.json (all figures, what was asked,
    versions, hashes), tables (.csv) and plots (.svg) beside it.

    Examples:

      interbasin rebasin a b -o aligned

      interbasin rebasin my.networks:small@a.safetensors my.networks:small@b.safetensors --data digits -o aligned

      interbasin rebasin a b --method permutation-weights --restarts 5 --json -o aligned

      interbasin merge aligned b --method lerp -o merged
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    request = {
        name: value for name, value in ctx.params.items() if name not in ("ctx", "json", "quiet", "debug", "force")
    }
    means, deviations = numbers(mean, "--mean"), numbers(std, "--std")
    shape = numbers(input_shape, "--input-shape")
    sizes = None if shape is None else [int(size) for size in shape]
    from interbasin.jobs.rebasin import rebasin as align
    from interbasin.jobs.rebasin.leaving import leave
    from interbasin.jobs.rebasin.methods import chosen
    from interbasin.networks import load_model
    from interbasin.networks.labelled import parted
    from interbasin.outcome import refuse_outcome_in_the_way

    chosen(method, variant, has_data=data is not None, has_labels=data is not None)
    refuse_outcome_in_the_way(output, force=force)
    with words.status("Loading") as tell, foreign_code():
        one, other = (
            load_model(text, input_shape=sizes, strict=strict, trust_remote_code=trust_remote_code, seed=seed)
            for text in (source, target)
        )
        train = test = None
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
        labelled = train is not None and parted(next(iter(train)))[1] is not None
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
            rate=rate,
            test=test,
            points=points if labelled and points > 1 else 0,
            progress=tell,
        )
    named = {"source": source, "target": target, **({"data": data} if data else {})}
    outcome = leave(result, output, like=one.checkpoint, inputs=named, request=request, force=force)
    words.result({**outcome.summary(), "output": str(output)}, lambda console: _show(console, outcome, output))
    for warning in outcome.warnings:
        words.remark(warning)


def _show(console: Console, outcome: Outcome, output: Path) -> None:
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
    console.print(f"written to {output}: {', '.join(one.path for one in outcome.artefacts)}", soft_wrap=True)
