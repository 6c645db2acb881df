"""``interbasin translate audit``: whether to translate an index at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, print_table, table
from interbasin.cli.translating import Column, Force, Seed, matrix, request_of, rows_in, whole_numbers
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate import Audit
    from interbasin.outcome import Outcome

SHORT = {"keep": "keep", "translate": "translate", "reembed": "re-embed"}


def audit(
    ctx: typer.Context,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Pairs: some documents as the old model sees them.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The same documents as the new model sees them.")],
    documents: Annotated[Path, typer.Option(help="The old model's vectors of the whole index.")],
    old_queries: Annotated[Path, typer.Option(help="Queries as the old model sees them.")],
    new_queries: Annotated[Path, typer.Option(help="The same queries as the new model sees them.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the figures, tables and plots.")],
    labels: Annotated[
        Path | None, typer.Option(help="Right documents of queries, a line each: query document [relevance].")
    ] = None,
    new_documents: Annotated[Path | None, typer.Option(help="The new model's vectors of the whole index.")] = None,
    pool: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="Numbers of documents (pool.txt of an earlier audit), and the new model's vectors of them. --labels, "
            "queries and methods must be the same from the start."
        ),
    ] = None,
    query_ids: Annotated[Path | None, typer.Option(help="What --labels calls the queries, a line each.")] = None,
    document_ids: Annotated[Path | None, typer.Option(help="What --labels calls the documents, a line each.")] = None,
    query_texts: Annotated[Path | None, typer.Option(help="The queries, a line each: shows short ones apart.")] = None,
    query_pairs: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Two files of queries, old and new, to fit maps of queries on.")
    ] = None,
    pair_rows: Annotated[
        Path | None, typer.Option(help="Which documents the pairs are; else they are looked for.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Methods with semicolons between them; by default all.")] = None,
    metric: Annotated[str, typer.Option(help="How vectors are compared: cosine, dot or l2.")] = "cosine",
    k: Annotated[int, typer.Option("--k", min=1, help="How many documents are looked at.")] = 10,
    depth: Annotated[int, typer.Option(min=1, help="How many are embedded anew where only the top is.")] = 100,
    curve: Annotated[str | None, typer.Option(help="Numbers of pairs for the learning curve: 100,300,1000.")] = None,
    margin: Annotated[float, typer.Option(help="A difference that does not matter.")] = 0.02,
    confidence: Annotated[float, typer.Option(help="Of the intervals, which are over queries.")] = 0.95,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every method and measure, not only the best method of each way.")
    ] = False,
    column: Column = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find out whether an index should be translated, kept, or embedded anew.

    Every way is measured with the same queries against the whole index. With --labels the measure is recall; without,
    the overlap with what the new model finds, for which --new-documents or --pool is needed. Without either, embed the
    documents that pool.txt in OUTPUT lists with the new model, and give --pool pool.txt THEIR-VECTORS next time: what
    is measured with it is an upper bound. Give --labels from the start, as the pool holds what they name. OUTPUT
    receives outcome.json, tables (.csv), plots (.svg) and verdict.txt.

    Examples:

      interbasin translate audit pairs-old.npy pairs-new.npy --documents old.npy \\

          --old-queries q-old.npy --new-queries q-new.npy --labels qrels.tsv -o audit

      interbasin translate audit pairs-old.npy pairs-new.npy --documents old.npy \\

          --old-queries q-old.npy --new-queries q-new.npy --pool audit/pool.txt pool.npy -o bound
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    counts = whole_numbers(curve, "--curve")
    from interbasin.datasets.labels import read_labels, read_lines
    from interbasin.jobs.translate.audit import audit as find_out
    from interbasin.outcome import refuse_outcome_in_the_way

    refuse_outcome_in_the_way(output, force=force)
    known = None
    if labels is not None:
        for option, file, items in (
            ("--query-ids", query_ids, old_queries),
            ("--document-ids", document_ids, documents),
        ):
            if file is not None:
                _refuse_other_count(option, len(read_lines(file)), items, column)
        known = read_labels(
            labels,
            query_ids=None if query_ids is None else read_lines(query_ids),
            document_ids=None if document_ids is None else read_lines(document_ids),
        )
    elif query_ids is not None or document_ids is not None:
        raise typer.BadParameter("says what --labels calls things; give --labels too.", param_hint="--query-ids")
    with _missing_written(output), words.progress("Auditing", 100) as done:
        found = find_out(
            (matrix(old, column), matrix(new, column)),
            (matrix(old_queries, column), matrix(new_queries, column)),
            matrix(documents, column),
            new_documents=None if new_documents is None else matrix(new_documents, column),
            pool=None if pool is None else (rows_in(pool[0]), matrix(pool[1], column)),
            labels=known,
            query_pairs=None
            if query_pairs is None
            else (matrix(query_pairs[0], column), matrix(query_pairs[1], column)),
            pair_rows=None if pair_rows is None else rows_in(pair_rows),
            query_texts=None if query_texts is None else read_lines(query_texts),
            methods=None if methods is None else [one.strip() for one in methods.split(";")],
            metric=metric,
            k=k,
            depth=depth,
            curve=True if counts is None else counts,
            margin=margin,
            confidence=confidence,
            seed=seed,
            progress=lambda share: done(round(100 * share)),
        )
    inputs: dict[str, Any] = {"old": old, "new": new, "documents": documents}
    inputs |= {"old_queries": old_queries, "new_queries": new_queries}
    inputs |= {name: one for name, one in (("labels", labels), ("new_documents", new_documents)) if one is not None}
    request = {name: one for name, one in request_of(ctx).items() if name != "everything"}
    outcome = found.save(output, request=request, inputs=inputs, force=force)
    summary = {
        **outcome.summary(),
        "advice": found.verdict.advice,
        "verdict": found.verdict.text,
        "slices": [
            {
                "slice": one.name,
                "queries": one.queries,
                **{way: figure.value for way, figure in one.figures.items()},
                one.less_than: [one.loss.value, one.loss.low, one.loss.high],
            }
            for one in found.slices
        ],
        "output": str(output),
    }
    for warning in outcome.notes:  # first, so that the verdict is what a screen ends with
        words.remark(warning)
    words.result(summary, lambda console: _show(console, found, outcome, output, everything=everything))


def _refuse_other_count(option: str, named: int, items: Path, column: str | None) -> None:
    from interbasin.vectors import open_vectors

    rows = open_vectors(items, column=column if items.suffix.lower() != ".npy" else None).rows
    if named != rows:
        message = f"names {plural(named, 'item')}, and {items} has {plural(rows, 'row')}; give a line for each."
        raise typer.BadParameter(message, param_hint=option)


@contextmanager
def _missing_written(output: Path) -> Iterator[None]:
    """Leave the numbers of documents that a pool lacks in a file beside OUTPUT: a message cannot hold them."""
    from interbasin.jobs.translate.audit.inputs import IncompletePoolError

    try:
        yield
    except IncompletePoolError as error:
        numbers = "".join(f"{row}\n" for row in error.missing.tolist())
        for count in itertools.count(1):
            path = output.with_name(f"{output.name}-missing{'' if count == 1 else f'-{count}'}.txt")
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(numbers)
            except FileExistsError:
                continue
            except OSError:  # no room, or no leave: what is missing is said all the same
                raise error from None
            raise IncompletePoolError(f"{error} Their numbers are in {path}.", error.missing) from error


def _show(console: Console, found: Audit, outcome: Outcome, output: Path, *, everything: bool) -> None:
    metrics = found.metrics
    console.print(
        f"{metrics['documents']:,.0f} documents, {metrics['queries']:,.0f} queries, {metrics['pairs']:,.0f} pairs"
    )
    if everything:
        print_table(console, ("way", "method", *found.measures.values()), found.rows(), words=(0, 1))
    elif found.primary is not None:
        _show_best(console, found, found.primary)
    if found.curve is not None:
        points = [
            (f"{pairs:,}", f"{one}", "-" if pairs == found.curve.pairs[-1] else f"{loss}")
            for pairs, one, loss in zip(found.curve.pairs, found.curve.values, found.curve.losses, strict=True)
        ]
        _print_whole(console, ("pairs", found.measures[found.curve.measure], "less than all"), points, words=())
        margin = found.request["margin"]
        enough = (
            f"{found.curve.enough:,} pairs are enough: shown to be within {margin} of all"
            if found.curve.enough
            else f"no fewer pairs are shown to be within {margin} of all"
        )
        console.print(f"{found.curve.method}: {enough}", soft_wrap=not console.is_terminal)
    if found.slices:
        ways = [way for way in ("keep", "translate", "reembed") if way in found.slices[0].figures]
        cells = [
            (one.name, f"{one.queries:,}", *(f"{one.figures[way].value:.3f}" for way in ways), f"{one.loss}")
            for one in found.slices
        ]
        heads = ("slice", "queries", *(SHORT[way] for way in ways), found.slices[0].less_than)
        _print_whole(console, heads, cells, words=(0,))
    console.print(f"written to {output}:", soft_wrap=True)
    console.print(", ".join(outcome.written()), soft_wrap=not console.is_terminal)
    console.print(f"\n{found.verdict.advice.upper()}: {found.verdict.text}", soft_wrap=not console.is_terminal)


def _show_best(console: Console, found: Audit, primary: str) -> None:
    """For each way the best method, by the measure of the verdict, and how alike it is to re-embedding."""
    alike = primary != "overlap" and "overlap" in found.measures
    rows = [
        (
            way.title,
            way.method or "-",
            f"{way.figures[primary]}",
            *((f"{way.figures['overlap'].value:.3f}",) if alike else ()),
        )
        for way in found.best
    ]
    title = found.measures[primary]
    _print_whole(console, ("way", "method", title, *(("overlap",) if alike else ())), rows, words=(0, 1))
    k = found.request["k"]
    overlap = f" Overlap: the share of the new model's own first {k} that a way brings." if alike else ""
    console.print(
        f"The best method of each way; --all or ways.csv show all methods and measures.{overlap}",
        soft_wrap=not console.is_terminal,
    )


def _print_whole(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]) -> None:
    """Print a table in which no figure is broken, on a screen of 80 columns either: only the first column may be."""
    from rich.measure import Measurement

    made = table(columns, rows, words=words)
    made.collapse_padding = True
    for place, column in enumerate(made.columns):
        column.no_wrap = place > 0 or 0 not in words
    if not console.is_terminal:
        made.width = Measurement.get(console, console.options.update(width=10_000), made).maximum
    console.print(made, crop=False)
