"""``interbasin translate doctor``: what is wrong with a table of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interbasin.cli.output import ERROR, Debug, Json, Output, Quiet, print_table
from interbasin.cli.translating import Column, Force, Seed, request_of

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate import Checkup


def doctor(
    ctx: typer.Context,
    vectors: Annotated[
        str, typer.Argument(metavar="VECTORS", help="A .npy, .npz or .parquet file, or a table of a store.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the outcome, if one is wanted.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if more than remarks is found.")] = False,
    column: Column = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Look for what is wrong with vectors before they are translated or searched.

    Finds rows of zeros, NaN and infinity, exact duplicates, mixed norms, dimensions that carry nothing, vectors that
    were rounded to int8 or cut, and two models in one table. Reads once, a batch at a time.

    Examples:

      interbasin translate doctor old.npy

      interbasin translate doctor docs.parquet --column embedding --strict --json

      interbasin translate doctor 'lance://store/documents' -o out
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    from interbasin.jobs.translate.doctor import doctor as examined
    from interbasin.outcome import refuse_outcome_in_the_way
    from interbasin.vectors.stores import parse_uri
    from interbasin.vectors.stores.opening import open_rows

    if output is not None:
        refuse_outcome_in_the_way(output, force=force)
    address = parse_uri(vectors, column=column)
    rows = open_rows(address)
    with words.progress("Reading rows", rows.rows) as done:
        found = examined(rows, seed=seed, progress=done)
    summary: dict[str, object] = {
        "vectors": address.shown,
        "dtype": found.dtype,
        "healthy": found.healthy,
        "metrics": dict(found.metrics),
        "findings": [vars(one) for one in found.findings],
        "output": None if output is None else str(output),
    }
    if output is not None:
        request = {**request_of(ctx), "vectors": address.shown}
        inputs = {"vectors": vectors} if Path(vectors).is_file() else {}
        found.save(output, request=request, inputs=inputs, force=force)
    words.result(summary, lambda console: _show(console, found, output))
    if strict and not found.healthy:
        raise typer.Exit(ERROR)


def _show(console: Console, found: Checkup, output: Path | None) -> None:
    console.print(found.basics, soft_wrap=True)
    if found.findings:
        rows = [(one.severity, one.kind, one.text) for one in found.findings]
        print_table(console, ("", "kind", "what was found"), rows, words=(0, 1, 2))
    else:
        console.print("nothing was found")
    if output is not None:
        console.print(f"written to {output}", soft_wrap=True)
