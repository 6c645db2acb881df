"""The options by which commands take two files of vectors, and the statistics of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interbasin.cli.output import Output

if TYPE_CHECKING:
    from interbasin.statistics import PairedMoments
    from interbasin.vectors import Vectors

_FORMATS = ".npy, .npz or .parquet"
SourceVectors = Annotated[Path, typer.Argument(metavar="SOURCE", help=f"Vectors of the source space: {_FORMATS}.")]
TargetVectors = Annotated[
    Path, typer.Argument(metavar="TARGET", help="Vectors of the target space, row by row the same items.")
]
Column = Annotated[
    str | None, typer.Option("--column", help="Column of a .parquet file or array of a .npz file, for both files.")
]
TargetColumn = Annotated[
    str | None, typer.Option("--target-column", help="Column of TARGET, where it differs from that of SOURCE.")
]
RowsPerBatch = Annotated[
    int | None,
    typer.Option("--rows-per-batch", min=1, help="Rows that are in memory at once; by default about 64 MiB."),
]
Keep = Annotated[
    Path | None,
    typer.Option(
        "--statistics",
        help="Folder to keep the statistics in: an interrupted run goes on there, another fit reads nothing again.",
    ),
]


def collect(
    output: Output,
    source: Path,
    target: Path,
    *,
    column: str | None,
    target_column: str | None,
    grams: bool,
    rows_per_batch: int | None,
    keep: Path | None,
) -> tuple[Vectors, Vectors, PairedMoments]:
    """Open two files and stream their moments, with a progress bar."""
    from interbasin.vectors import moments_of_files, open_vectors

    x = open_vectors(source, column=column)
    y = open_vectors(target, column=target_column or column)
    # Kept statistics should serve every fit; without them a Gram matrix is collected only where it is used.
    wanted = grams or keep is not None or x.width > y.width
    rows_done = 0

    def note(rows: int) -> None:
        nonlocal rows_done
        rows_done = rows
        done(rows)

    try:
        with output.progress("Reading rows", x.rows) as done:
            moments = moments_of_files(x, y, grams=wanted, rows_per_batch=rows_per_batch, keep=keep, progress=note)
    except KeyboardInterrupt as error:
        if keep is not None:
            said = f"{rows_done:,} of {x.rows:,} rows are kept in {keep}: run the same command to go on."
            raise KeyboardInterrupt(said) from error
        raise
    return x, y, moments
