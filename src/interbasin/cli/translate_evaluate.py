"""``interbasin translate evaluate``: a translation on pairs that it was not fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, number, table
from interbasin.cli.translating import (
    Column,
    Force,
    Metric,
    Seed,
    SourceModel,
    TargetModel,
    card_of,
    matrix,
    request_of,
)
from interbasin.cli.vectors import SourceVectors, TargetColumn, TargetVectors
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate import HeldOut


def evaluate(
    ctx: typer.Context,
    translator: Annotated[Path, typer.Argument(metavar="TRANSLATOR", help="Folder of a fitted translation.")],
    source: SourceVectors,
    target: TargetVectors,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the outcome, if one is wanted.")
    ] = None,
    metric: Metric = None,
    source_model: SourceModel = None,
    target_model: TargetModel = None,
    column: Column = None,
    target_column: TargetColumn = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a translation on pairs: give others than it was fitted on.

    Retrieval looks for the right row among the given ones, so its figures fall as these become more; what an index will
    be like is the question of translate audit.

    Examples:

      interbasin translate evaluate map old-test.npy new-test.npy

      interbasin translate evaluate map old-test.npy new-test.npy --metric dot --json -o out
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    from interbasin.jobs.translate import Card, Translator, evaluate_translation
    from interbasin.outcome import refuse_outcome_in_the_way

    if output is not None:
        refuse_outcome_in_the_way(output, force=force)
    fitted = Translator.load(translator)
    # Measuring by another metric than it was fitted for harms nothing.
    said = {name: value for name, value in card_of(ctx.params).items() if name != "metric"}
    fitted.card_.refuse_others(Card.of(said), "These pairs")
    with words.status("Evaluating"):
        found = evaluate_translation(
            fitted,
            matrix(source, column),
            matrix(target, target_column or column),
            metric=metric or fitted.card_.metric or "cosine",
            seed=seed,
        )
    inputs = {"translator": translator, "source": source, "target": target}
    summary: dict[str, object] = {"metrics": dict(found.metrics), "output": None if output is None else str(output)}
    if output is not None:
        outcome = found.save(output, request=request_of(ctx), inputs=inputs, force=force)
        summary = {**outcome.summary(), "output": str(output)}
    words.result(summary, lambda console: _show(console, found, output))


def _show(console: Console, found: HeldOut, output: Path | None) -> None:
    from interbasin.jobs.translate.evaluate import MEANINGS

    console.print(plural(found.pairs, "pair"))
    plain = bool(found.untranslated)
    columns = ("figure", "translated", *(("as it is",) if plain else ()), "meaning")
    rows = [
        (name, f"{one}", *((number(found.untranslated[name].value),) if plain else ()), MEANINGS[name])
        for name, one in found.figures.items()
    ]
    console.print(table(columns, rows, words=(0, len(columns) - 1)))
    if output is not None:
        console.print(f"written to {output}", soft_wrap=True)
