"""``interbasin fit``: a map between two files of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, number, table
from interbasin.cli.vectors import Column, Keep, RowsPerBatch, SourceVectors, TargetColumn, TargetVectors, collect
from interbasin.errors import FileError
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.fit import Fit

# Spelled out, because asking the registry would import torch before the help is shown; a test compares the two.
METHODS = ("procrustes", "assignment", "least-squares", "orthogonalised", "cca", "sinkhorn", "stiefel")


def fit(
    ctx: typer.Context,
    source: SourceVectors,
    target: TargetVectors,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the map and what is known about it.")],
    method: Annotated[str, typer.Option(help=f"How to fit: {', '.join(METHODS)}.")] = "procrustes",
    affine: Annotated[bool, typer.Option("--affine", help="Also carry the source's mean to the target's.")] = False,
    centered: Annotated[
        bool | None, typer.Option("--centered/--uncentered", help="Fit to the rows about their means (the default).")
    ] = None,
    scale: Annotated[bool | None, typer.Option("--scale", help="procrustes: also fit one factor.")] = None,
    unobserved: Annotated[
        str | None, typer.Option(help="procrustes, orthogonalised, cca: complete or drop directions without data.")
    ] = None,
    signed: Annotated[bool | None, typer.Option("--signed", help="assignment: units may change their sign.")] = None,
    match: Annotated[str | None, typer.Option(help="assignment, sinkhorn: covariance or correlation.")] = None,
    ridge: Annotated[
        float | None, typer.Option(help="least-squares, orthogonalised, cca: relative to the mean variance.")
    ] = None,
    power: Annotated[float | None, typer.Option(help="cca: 0 (Procrustes) to 0.5 (CCA).")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="sinkhorn: how soft, relative to the largest covariance.")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="sinkhorn, stiefel: when to stop.")] = None,
    steps: Annotated[int | None, typer.Option(help="sinkhorn, stiefel: the limit of steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="stiefel: for the random start.")] = None,
    column: Column = None,
    target_column: TargetColumn = None,
    rows_per_batch: RowsPerBatch = None,
    statistics: Keep = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier result in OUTPUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a map that carries the vectors of SOURCE onto those of TARGET.

    Row i of both files must be the same item. Files may be larger than memory: they are read once, in batches. OUTPUT
    receives the map (map.safetensors, map.json; interbasin.maps.load reads it) and fit.json.

    Examples:

      interbasin fit old.npy new.npy -o map

      interbasin fit old.parquet new.parquet --column embedding --method least-squares --ridge 1e-3 --affine -o map

      interbasin fit a.npy b.npy --method cca --power 0.25 --statistics seen -o map --json
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    from interbasin.fit.registry import describe, needs_grams, rehearse
    from interbasin.maps.files import HOLDS
    from interbasin.storage import refuse_what_is_in_the_way

    solver = describe(method)
    given = {
        "centered": centered,
        "scale": scale,
        "unobserved": unobserved,
        "signed": signed,
        "match": match,
        "ridge": ridge,
        "power": power,
        "temperature": temperature,
        "tolerance": tolerance,
        "steps": steps,
        "seed": seed,
    }
    options = {name: value for name, value in given.items() if value is not None}
    # Whatever is wrong with the request is said before hours of reading, not after.
    rehearse(solver, options)
    refuse_what_is_in_the_way(output, HOLDS, force=force)
    _keep_apart(output, statistics)
    x, y, moments = collect(
        words,
        source,
        target,
        column=column,
        target_column=target_column,
        grams=needs_grams(solver, options),
        rows_per_batch=rows_per_batch,
        keep=statistics,
    )
    found = solver.function(moments, affine=affine, **options)
    request: dict[str, Any] = {
        "request": {
            "source": str(source),
            "source_column": x.column,
            "target": str(target),
            "target_column": y.column,
            "method": solver.name,
            "affine": affine,
            **options,
        },
        "rows": moments.count,
    }
    found.save(output, force=force, notes=request)
    words.result(
        {**found.summary(), **request, "output": str(output)},
        lambda console: _show(console, found, moments.count, output),
    )
    if found.status != "converged":
        words.remark(f"Status {found.status}: {found.message}.")
    resolution = found.details["residual_resolution"]
    if found.residual < 2 * resolution:
        words.remark(
            f"A residual below {number(2 * resolution)} is more than sums in this precision can tell from none."
        )
    if not affine and found.residual > 1.1 * max(resolution**2, 1 - found.explained) ** 0.5:
        words.remark("The means of the two files differ and this map does not carry them: --affine would.")


def _keep_apart(output: Path, statistics: Path | None) -> None:
    """Refuse folders of which one would be replaced with the other inside."""
    if statistics is None:
        return
    one, other = output.resolve(), statistics.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise FileError(
            f"The result and the statistics need folders of their own, found {output} and {statistics}; "
            "give two names that lie side by side."
        )


def _show(console: Console, found: Fit, rows: int, output: Path) -> None:
    facts = [
        ("map", f"{found.map!r}"),
        ("rows", f"{rows:,}"),
        ("residual", f"{number(found.residual)}  (||m(x) - y|| / ||y||)"),
        ("explained", f"{number(found.explained)}  (share of the target's variance about its mean)"),
        ("status", found.status + (f" after {plural(found.steps, 'step')}" if found.steps > 1 else "")),
        ("written to", str(output)),
    ]
    console.print(table(("", ""), [("method", found.method), *facts], words=(0, 1)))
