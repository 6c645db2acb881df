"""``interbasin compare``: how alike two files of vectors are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, number, table
from interbasin.cli.vectors import Column, Keep, RowsPerBatch, SourceVectors, TargetColumn, TargetVectors, collect
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

MEANINGS = {
    "linear_cka": "0 to 1; unchanged by rotations",
    "mean_cosine": "-1 to 1; of paired rows, about their means",
    "mean_cca": "0 to 1; unchanged by any invertible map",
    "pwcca_source": "0 to 1; CCA weighted by the source's activity",
    "pwcca_target": "0 to 1; CCA weighted by the target's activity",
    "procrustes_distance": "0 to 1.414; after the best rotation, 0 is equal",
}


def compare(
    ctx: typer.Context,
    source: SourceVectors,
    target: TargetVectors,
    column: Column = None,
    target_column: TargetColumn = None,
    rows_per_batch: RowsPerBatch = None,
    statistics: Keep = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show how alike the vectors of SOURCE and TARGET are.

    Row i of both files must be the same item. Files may be larger than memory: they are read once, in batches.

    Examples:

      interbasin compare old.npy new.npy

      interbasin compare a.npz b.npz --column hidden --json
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    from interbasin.statistics import similarities

    x, y, moments = collect(
        words,
        source,
        target,
        column=column,
        target_column=target_column,
        grams=True,
        rows_per_batch=rows_per_batch,
        keep=statistics,
    )
    found = similarities(moments)
    summary = {
        "source": str(source),
        "target": str(target),
        "rows": moments.count,
        "source_width": x.width,
        "target_width": y.width,
        "similarities": found,
    }
    title = f"{plural(moments.count, 'row')}, width {x.width} and {y.width}"
    rows = [(name, number(value), MEANINGS[name]) for name, value in found.items()]

    def show(console: Console) -> None:
        console.print(title)
        console.print(table(("similarity", "value", "meaning"), rows, words=(0, 2)))

    words.result(summary, show)
    if moments.count <= max(x.width, y.width):
        words.remark(
            f"With {plural(moments.count, 'row')} for {max(x.width, y.width)} units these figures are inflated; give "
            "more rows than units."
        )
