"""``interbasin translate``: embeddings of one encoder in the space of another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, table
from interbasin.cli.translate_audit import audit
from interbasin.cli.translate_bridge import bridge
from interbasin.cli.translate_doctor import doctor
from interbasin.cli.translate_evaluate import evaluate
from interbasin.cli.translate_fit import fit

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate.apply import Applied

VECTORS = "a .npy, .npz or .parquet file, lance://FOLDER/TABLE, faiss://FILE or postgresql://HOST/DATABASE?table=TABLE"

translate = typer.Typer(
    name="translate",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Carry embeddings of one encoder into the space of another.

    Examples:

      interbasin translate doctor old.npy

      interbasin translate fit pairs-old.npy pairs-new.npy -o map

      interbasin translate apply map old.parquet -o new.parquet
    """,
)

translate.command()(doctor)
translate.command()(audit)
translate.command()(fit)
translate.command()(evaluate)
translate.command()(bridge)


@translate.command()
def apply(
    ctx: typer.Context,
    translator: Annotated[Path, typer.Argument(metavar="TRANSLATOR", help="Folder of a fitted translator.")],
    vectors: Annotated[str, typer.Argument(metavar="VECTORS", help=f"What to translate: {VECTORS}.")],
    output: Annotated[
        str, typer.Option("-o", "--output", help="Where to; for PostgreSQL postgresql:?table=TABLE&column=COLUMN.")
    ],
    column: Annotated[str | None, typer.Option(help="Column of a table, or array of a .npz file.")] = None,
    table: Annotated[str | None, typer.Option(help="Table, where VECTORS does not name it.")] = None,
    key: Annotated[str | None, typer.Option(help="PostgreSQL: column that tells rows apart, else primary key.")] = None,
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows a batch, by default about 32 MiB; in Parquet, a row group.")
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(help="refuse rows of zeros, NaN or infinity, or keep them as they are.")
    ] = "refuse",
    scale: Annotated[
        float | None, typer.Option(help="For int8 and the like: what every number is multiplied by.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="What made the vectors, compared with the translator's card.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="How they are compared: cosine, dot or l2.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: read and translate on a Ray cluster.")] = "local",
    wrap: Annotated[
        bool, typer.Option("--wrap", help="FAISS: touch no row, translate queries; TRANSLATOR goes from new to old.")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="Let the output replace the source file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at OUTPUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Translate all vectors of a store into another store.

    Order, ids and other columns are kept, float16 stays float16, and the source is untouched. Stores may be larger than
    memory. A run that was stopped or killed goes on where it was when the same command is given again (but for FAISS).

    Examples:

      interbasin translate apply map old.npy -o new.npy

      interbasin translate apply map docs.parquet --column v -o new.parquet

      interbasin translate apply map faiss://old.index -o faiss://new.index

      interbasin translate apply map 'postgresql://host/db?table=t' \\

          -o 'postgresql:?table=t&column=new'
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    from interbasin.jobs.translate import Card, Translator
    from interbasin.jobs.translate.apply import translate_vectors
    from interbasin.vectors.stores import parse_uri

    fitted = Translator.load(translator)
    given = {"source_model": model, "metric": metric}
    named = parse_uri(vectors, column=column, table=table, key=key).shown
    fitted.card_.refuse_others(Card.of(given), f"The vectors in {named}")
    kept = (0, 0)
    with contextlib.ExitStack() as stack:
        bar: Callable[[int], None] | None = None

        def note(done: int, rows: int) -> None:
            nonlocal bar, kept
            kept = done, rows
            if bar is None:  # how many rows there are is not known before the store is open
                bar = stack.enter_context(words.progress("Translating rows", rows))
            bar(done)

        try:
            made = translate_vectors(
                fitted,
                vectors,
                output,
                column=column,
                table=table,
                key=key,
                rows_per_batch=batch_rows,
                bad_rows=bad_rows,
                scale=scale,
                metric=metric,
                engine=engine,
                wrap=wrap,
                in_place=in_place,
                force=force,
                progress=note,
            )
        except KeyboardInterrupt as error:
            if kept[0] and not vectors.startswith("faiss:"):  # of an index nothing is kept
                said = f"{kept[0]:,} of {kept[1]:,} rows are kept: run the same command to go on."
                raise KeyboardInterrupt(said) from error
            raise
    words.result(made.summary(), lambda console: _show(console, made))
    for remark in made.notes:
        words.remark(remark)


def _show(console: Console, made: Applied) -> None:
    rows = f"{made.rows:,}" + (f", of which {made.resumed_at:,} were there already" if made.resumed_at else "")
    bad = ", ".join(f"{count:,} {kind}" for kind, count in made.bad_rows.items() if count)
    facts = [
        ("vectors", made.source),
        ("rows", rows),
        ("numbers a row", f"{made.target_width} <- {made.source_width}, {made.dtype}"),
        *([("kept as they are", bad)] if bad else []),
        ("written to", made.output),
    ]
    console.print(table(("", ""), facts, words=(0, 1)))
