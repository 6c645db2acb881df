"""``interbasin translate doctor`` and ``audit``: what is wrong with vectors, and whether to translate an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.options import Force, SeedFromZero, VectorColumn, command, numbers, output_option, read_matrix
from interbasin.cli.output import ERROR, Terminal, print_table
from interbasin.text import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from interbasin.jobs.translate import Audit, Checkup
    from interbasin.outcome import Outcome

SHORT = {"keep": "keep", "translate": "translate", "reembed": "re-embed"}


@command
def doctor(
    terminal: Terminal,
    *,
    vectors: Annotated[str, Argument(metavar="VECTORS", help="A .npy, .npz or .parquet file, or a table of a store.")],
    output: Annotated[Path | None, output_option("Folder for the outcome, if one is wanted.")] = None,
    strict: Annotated[bool, Option("--strict", help="Exit code 1 if more than remarks is found.")] = False,
    column: VectorColumn = None,
    seed: SeedFromZero = 0,
    force: Force = False,
) -> None:
    """Look for what is wrong with vectors before they are translated or searched.

    Finds rows of zeros, NaN and infinity, exact duplicates, mixed norms, dimensions that carry nothing, vectors that
    were rounded to int8 or cut, and two models in one table. Reads once, batch by batch.

    Examples:
      interbasin translate doctor old.npy
      interbasin translate doctor docs.parquet --column embedding --strict --json
      interbasin translate doctor 'lance://store/documents' -o out
    """
    from interbasin.jobs.translate.doctor import doctor as examine
    from interbasin.vectors.stores import parse_uri
    from interbasin.vectors.stores.opening import open_rows

    terminal.require_free(output, force=force)
    address = parse_uri(vectors, column=column)
    rows = open_rows(address)
    with terminal.progress("Reading rows", rows.rows) as done:
        checkup = examine(rows, seed=seed, progress=done)
    summary: dict[str, object] = {
        "vectors": address.shown,
        "dtype": checkup.dtype,
        "healthy": checkup.healthy,
        "metrics": dict(checkup.metrics),
        "findings": [vars(finding) for finding in checkup.findings],
        "output": None if output is None else str(output),
    }
    if output is not None:
        inputs = {"vectors": vectors} if Path(vectors).is_file() else {}
        checkup.save(output, request={**terminal.request, "vectors": address.shown}, inputs=inputs, force=force)
    terminal.result(summary, lambda console: _show_checkup(console, checkup, output))
    if strict and not checkup.healthy:
        raise typer.Exit(ERROR)


def _show_checkup(console: Console, checkup: Checkup, output: Path | None) -> None:
    console.print(checkup.basics, soft_wrap=True)
    if checkup.findings:
        rows = [(finding.severity, finding.kind, finding.text) for finding in checkup.findings]
        print_table(console, ("", "kind", "what was found"), rows, words=(0, 1, 2))
    else:
        console.print("nothing was found")
    if output is not None:
        console.print(f"written to {output}", soft_wrap=True)


@command
def audit(
    terminal: Terminal,
    *,
    old: Annotated[Path, Argument(metavar="OLD", help="Pairs: some documents as the old model sees them.")],
    new: Annotated[Path, Argument(metavar="NEW", help="The same documents as the new model sees them.")],
    documents: Annotated[Path, Option(help="The old model's vectors of the whole index.")],
    old_queries: Annotated[Path, Option(help="Queries as the old model sees them.")],
    new_queries: Annotated[Path, Option(help="The same queries as the new model sees them.")],
    output: Annotated[Path, output_option("Folder for the figures, tables and plots.")],
    labels: Annotated[
        Path | None, Option(help="Right documents of queries, one per line: query document [relevance].")
    ] = None,
    new_documents: Annotated[Path | None, Option(help="The new model's vectors of the whole index.")] = None,
    pool: Annotated[
        tuple[Path, Path] | None,
        Option(
            help="Numbers of documents (pool.txt of an earlier audit), and the new model's vectors of them. --labels, "
            "queries and methods must be the same from the start."
        ),
    ] = None,
    query_ids: Annotated[Path | None, Option(help="What --labels calls the queries, one per line.")] = None,
    document_ids: Annotated[Path | None, Option(help="What --labels calls the documents, one per line.")] = None,
    query_texts: Annotated[Path | None, Option(help="The queries, one per line: shows short ones apart.")] = None,
    query_pairs: Annotated[
        tuple[Path, Path] | None, Option(help="Two files of queries, old and new, to fit maps of queries on.")
    ] = None,
    pair_rows: Annotated[Path | None, Option(help="Which documents the pairs are; else they are looked for.")] = None,
    methods: Annotated[str | None, Option(help="Methods with semicolons between them; by default all.")] = None,
    metric: Annotated[str, Option(help="How vectors are compared: cosine, dot or l2.")] = "cosine",
    k: Annotated[int, Option("--k", min=1, help="How many documents are looked at.")] = 10,
    depth: Annotated[int, Option(min=1, help="How many are embedded anew where only the top is.")] = 100,
    curve: Annotated[str | None, Option(help="Numbers of pairs for the learning curve: 100,300,1000.")] = None,
    margin: Annotated[
        float, Option(help="A difference that does not matter, as a share of what the best way finds.")
    ] = 0.05,
    confidence: Annotated[float, Option(help="Of the intervals, which are over queries.")] = 0.95,
    everything: Annotated[
        bool, Option("--all", help="Show every method and measure, not only the best method of each way.")
    ] = False,
    column: VectorColumn = None,
    seed: SeedFromZero = 0,
    force: Force = False,
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
    counts = numbers(curve, "--curve", int)
    if labels is None and (query_ids is not None or document_ids is not None):
        raise typer.BadParameter("says what --labels calls things; give --labels too.", param_hint="--query-ids")
    from interbasin.datasets.labels import read_labels, read_lines, read_row_numbers
    from interbasin.jobs.translate.audit import audit as judge

    terminal.require_free(output, force=force)
    relevant = None
    if labels is not None:
        relevant = read_labels(
            labels,
            query_ids=_read_names("--query-ids", query_ids, old_queries, column),
            document_ids=_read_names("--document-ids", document_ids, documents, column),
        )

    def matrix(path: Path) -> NDArray[Any]:
        return read_matrix(path, column)

    with _list_missing_documents(output), terminal.progress("Auditing", 100) as done:
        result = judge(
            (matrix(old), matrix(new)),
            (matrix(old_queries), matrix(new_queries)),
            matrix(documents),
            new_documents=None if new_documents is None else matrix(new_documents),
            pool=None if pool is None else (read_row_numbers(pool[0]), matrix(pool[1])),
            labels=relevant,
            query_pairs=None if query_pairs is None else (matrix(query_pairs[0]), matrix(query_pairs[1])),
            pair_rows=None if pair_rows is None else read_row_numbers(pair_rows),
            query_texts=None if query_texts is None else read_lines(query_texts),
            methods=None if methods is None else [method.strip() for method in methods.split(";")],
            metric=metric,
            k=k,
            depth=depth,
            curve=True if counts is None else counts,
            margin=margin,
            confidence=confidence,
            seed=seed,
            progress=lambda share: done(round(100 * share)),
        )
    inputs = terminal.inputs("old", "new", "documents", "old_queries", "new_queries", "labels", "new_documents")
    request = {name: value for name, value in terminal.request.items() if name != "everything"}
    outcome = result.save(output, request=request, inputs=inputs, force=force)
    summary = {
        **outcome.summary(),
        "advice": result.verdict.advice,
        "verdict": result.verdict.text,
        "slices": [
            {
                "slice": part.name,
                "queries": part.queries,
                **{way: figure.value for way, figure in part.figures.items()},
                part.less_than: [part.loss.value, part.loss.low, part.loss.high],
            }
            for part in result.slices
        ],
        "output": str(output),
    }
    for note in outcome.notes:  # first, so that the verdict is what a screen ends with
        terminal.remark(note)
    terminal.result(summary, lambda console: _show(console, result, outcome, output, everything=everything))


def _read_names(option: str, names: Path | None, items: Path, column: str | None) -> list[str] | None:
    """The lines of a file of names, one for each of the items."""
    from interbasin.datasets.labels import read_lines
    from interbasin.vectors import open_vectors

    if names is None:
        return None
    lines = read_lines(names)
    rows = open_vectors(items, column=column if items.suffix.lower() != ".npy" else None).rows
    if len(lines) != rows:
        message = f"names {plural(len(lines), 'item')}, and {items} has {plural(rows, 'row')}; give a line for each."
        raise typer.BadParameter(message, param_hint=option)
    return lines


@contextmanager
def _list_missing_documents(output: Path) -> Iterator[None]:
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


def _show(console: Console, result: Audit, outcome: Outcome, output: Path, *, everything: bool) -> None:
    metrics = result.metrics
    console.print(
        f"{metrics['documents']:,.0f} documents, {metrics['queries']:,.0f} queries, {metrics['pairs']:,.0f} pairs"
    )
    if everything:
        print_table(console, ("way", "method", *result.measures.values()), result.rows(), words=(0, 1))
    elif result.primary is not None:
        _show_best(console, result, result.primary)
    if (curve := result.curve) is not None:
        points = [
            (f"{pairs:,}", f"{value}", "-" if pairs == curve.pairs[-1] else f"{loss}")
            for pairs, value, loss in zip(curve.pairs, curve.values, curve.losses, strict=True)
        ]
        columns = ("pairs", result.measures[curve.measure], "less than all")
        print_table(console, columns, points, words=(), whole_figures=True)
        all_pairs = f"what all {curve.pairs[-1]:,} do"
        if curve.enough:
            shown = f"{curve.method}: {curve.enough:,} pairs bring {all_pairs}, or at most {curve.margin:.3f} less"
        else:
            shown = f"{curve.method}: no fewer pairs are shown to bring {all_pairs} (at most {curve.margin:.3f} less)"
        console.print(shown, soft_wrap=not console.is_terminal)
    if result.slices:
        ways = [way for way in ("keep", "translate", "reembed") if way in result.slices[0].figures]
        cells = [
            (part.name, f"{part.queries:,}", *(f"{part.figures[way].value:.3f}" for way in ways), f"{part.loss}")
            for part in result.slices
        ]
        heads = ("slice", "queries", *(SHORT[way] for way in ways), result.slices[0].less_than)
        print_table(console, heads, cells, words=(0,), whole_figures=True)
    console.print(f"written to {output}:", soft_wrap=True)
    console.print(", ".join(outcome.written()), soft_wrap=not console.is_terminal)
    console.print(f"\n{result.verdict.advice.upper()}: {result.verdict.text}", soft_wrap=not console.is_terminal)


def _show_best(console: Console, result: Audit, primary: str) -> None:
    """For each way the best method, by the measure of the verdict, and how alike it is to re-embedding."""
    alike = primary != "overlap" and "overlap" in result.measures
    columns = ["way", "method", result.measures[primary]]
    rows = [[way.title, way.method or "-", f"{way.figures[primary]}"] for way in result.best]
    legend = "The best method of each way; --all or ways.csv show all methods and measures."
    if alike:
        columns.append("overlap")
        for row, way in zip(rows, result.best, strict=True):
            row.append(f"{way.figures['overlap'].value:.3f}")
        legend += f" Overlap: the share of the new model's own first {result.request['k']} that a way brings."
    if primary == "recall":
        legend += (
            f" Recall: of the right documents, {result.request['k']} at most, the share found; 1.000 is the ceiling"
        )
        ceiling = result.metrics["recall_ceiling"]
        legend += f" ({ceiling:.3f} for recall without this cap)." if ceiling < 1 else "."
    legend += f" Differences up to {result.metrics['margin']:.3f} are taken not to matter (--margin)."
    print_table(console, columns, rows, words=(0, 1), whole_figures=True)
    console.print(legend, soft_wrap=not console.is_terminal)
