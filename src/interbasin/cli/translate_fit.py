"""``interbasin translate fit``: a translation from pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, number, table
from interbasin.cli.translating import (
    METHODS,
    Chunking,
    Column,
    Force,
    Metric,
    Note,
    Seed,
    SourceModel,
    SourcePrefix,
    TargetModel,
    TargetPrefix,
    card_of,
    matrix,
    request_of,
)
from interbasin.cli.vectors import SourceVectors, TargetColumn, TargetVectors

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate import FittedMaps


def fit(
    ctx: typer.Context,
    source: SourceVectors,
    target: TargetVectors,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the translation and its outcome.")],
    method: Annotated[str, typer.Option(help=f"How to fit: {', '.join(METHODS)}.")] = "auto",
    queries: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Two files of queries, as SOURCE and TARGET, for a map of their own."),
    ] = None,
    variant: Annotated[str, typer.Option(help="relative-projection: regularised, or pruned.")] = "regularised",
    delta: Annotated[float, typer.Option(help="pruned: how far apart anchors are kept.")] = 0.7,
    omega: Annotated[int, typer.Option(help="pruned: over how many subsets is averaged.")] = 8,
    completion: Annotated[str, typer.Option(help="relative-projection: polar, or map.")] = "polar",
    strength: Annotated[
        float | None, typer.Option(help="relative-projection, ridge, cca: of the regularisation; else chosen.")
    ] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="procrustes: bring dimensions to variance 1 first.")
    ] = False,
    whitening: Annotated[float, typer.Option(help="procrustes: how far to whiten first, 0 to 0.5.")] = 0.0,
    criterion: Annotated[str, typer.Option(help="auto: judge by cosine, retrieval or error.")] = "cosine",
    metric: Metric = None,
    source_model: SourceModel = None,
    target_model: TargetModel = None,
    source_prefix: SourcePrefix = None,
    target_prefix: TargetPrefix = None,
    chunking: Chunking = None,
    note: Note = None,
    column: Column = None,
    target_column: TargetColumn = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a translation that carries vectors of SOURCE's model into the space of TARGET's.

    Row i of both files must be the same item; some hundreds to thousands of pairs are needed. Figures are of a fifth of
    the pairs that a first fit did not see; then all are used. OUTPUT receives the translation (translation.json and
    .safetensors, which apply, evaluate and bridge take), with its card, and outcome.json.

    Examples:

      interbasin translate fit old.npy new.npy -o map

      interbasin translate fit old.parquet new.parquet --column embedding --method ridge -o map

      interbasin translate fit old.npy new.npy --queries old-queries.npy new-queries.npy --metric dot -o map

      interbasin translate fit new.npy old.npy --source-model new --target-model old -o back
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    from interbasin.jobs.translate import Card, Translator, fit_translation
    from interbasin.outcome import refuse_outcome_in_the_way

    _refuse_options_of_others(ctx, method, variant)
    refuse_outcome_in_the_way(output, force=force)
    card = Card.of(card_of(ctx.params))
    translator = Translator(
        method=method,
        variant=variant,
        delta=delta,
        omega=omega,
        completion=completion,
        strength=strength,
        standardise=standardise,
        whitening=whitening,
        criterion=criterion,
        seed=seed,
    )
    x, y = matrix(source, column), matrix(target, target_column or column)
    others = None if queries is None else tuple(matrix(one, column) for one in queries)
    with words.status("Fitting"):
        found = fit_translation(translator, x, y, queries=others, card=card)  # type: ignore[arg-type]
    inputs: dict[str, Any] = {"source": source, "target": target}
    if queries is not None:
        inputs |= {"source_queries": queries[0], "target_queries": queries[1]}
    outcome = found.save(output, request=request_of(ctx), inputs=inputs, force=force)
    words.result({**outcome.summary(), "output": str(output)}, lambda console: _show(console, found, output))
    for warning in outcome.notes:
        words.remark(warning)


# Option -> the methods that look at it.
_LOOKED_AT_BY = {
    "variant": ("relative-projection",),
    "delta": ("relative-projection",),
    "omega": ("relative-projection",),
    "completion": ("relative-projection",),
    "strength": ("relative-projection", "ridge", "cca"),
    "standardise": ("procrustes",),
    "whitening": ("procrustes",),
    "criterion": ("auto",),
}


def _refuse_options_of_others(ctx: typer.Context, method: str, variant: str) -> None:
    """Refuse an option that the method would not look at, rather than leave it out without a word."""
    for name, methods in _LOOKED_AT_BY.items():
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if method not in methods:
            raise typer.BadParameter(
                f"is for {', '.join(methods)}, and the method is {method}.", param_hint=f"--{name}"
            )
        if name in ("delta", "omega") and variant != "pruned":
            raise typer.BadParameter("is for --variant pruned.", param_hint=f"--{name}")


def _show(console: Console, found: FittedMaps, output: Path) -> None:
    one, metrics = found.documents, found.metrics
    chosen = f"{one.chosen_}{' (chosen)' if one.method == 'auto' else ''}"
    facts = [
        ("method", chosen),
        ("numbers a row", f"{one.target_width} <- {one.source_width}"),
        ("pairs", f"{metrics['pairs']:,.0f}"),
        ("lengths", "carried" if one.carries_norms else "not carried: compare by cosine"),
    ]
    if one.judged_:
        scores = "; ".join(f"{name} {number(score)}" for name, score in one.judged_.items())
        facts.insert(1, ("chosen from", f"{scores}  ({one.criterion})"))
    if "cosine" in metrics:
        held = f"{metrics['pairs_held_out']:,.0f} pairs that a first fit did not see"
        facts += [
            ("cosine", f"{number(metrics['cosine'])}  (of {held})"),
            ("recall at 1", f"{number(metrics['recall_1'])}  (of the right row, among as many)"),
            ("error", f"{number(metrics['error'])}  (squared, over the target's variance)"),
        ]
    if found.queries is not None:
        value = found.metrics.get("queries_cosine")
        facts.append(("queries", f"a map of their own, {found.queries.chosen_}; cosine {number(value)}"))
    facts.append(("written to", str(output)))
    console.print(table(("", ""), facts, words=(0, 1)))
