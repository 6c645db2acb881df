"""``interbasin translate``: embeddings of one encoder in the space of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.methods import names
from interbasin.cli.options import (
    Force,
    Metric,
    SeedFromZero,
    SourceVectors,
    TargetColumn,
    TargetVectors,
    VectorColumn,
    command,
    keep_lines,
    output_option,
    read_matrix,
)
from interbasin.cli.output import Terminal, number, print_facts, print_table
from interbasin.cli.translate_audit import audit, doctor
from interbasin.cli.translate_bridge import bridge
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate import FittedMaps, HeldOut
    from interbasin.jobs.translate.apply import Applied

STORES = "a .npy, .npz or .parquet file, lance://FOLDER/TABLE, faiss://FILE or postgresql://HOST/DATABASE?table=TABLE"
METHODS = (*names("translate"), "relative", "auto")
# Option -> the methods that look at it.
OPTIONS_OF_METHODS = {
    "variant": ("relative-projection",),
    "delta": ("relative-projection",),
    "omega": ("relative-projection",),
    "completion": ("relative-projection",),
    "strength": ("relative-projection", "ridge", "cca"),
    "standardise": ("procrustes",),
    "whitening": ("procrustes",),
    "criterion": ("auto",),
}


def _option(name: str, text: str, *spelling: str) -> Any:
    return Option(*spelling, help=f"{', '.join(OPTIONS_OF_METHODS[name])}: {text}")


@dataclass(frozen=True)
class CardOptions:
    """What is known of the vectors: compared with the card of a translator."""

    metric: Metric = None
    source_model: Annotated[str | None, Option(help="Model of SOURCE, for the card or to check it.")] = None
    target_model: Annotated[str | None, Option(help="Model of TARGET, for the card or to check it.")] = None

    def entries(self) -> dict[str, str]:
        """The entries of a card that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class NewCardOptions(CardOptions):
    """All that a card can hold."""

    source_prefix: Annotated[str | None, Option(help="For the card: what SOURCE's model puts before a text.")] = None
    target_prefix: Annotated[str | None, Option(help="For the card: what TARGET's model puts before a text.")] = None
    chunking: Annotated[str | None, Option(help="For the card: how long texts were cut.")] = None
    note: Annotated[str | None, Option(help="For the card: anything else.")] = None


@dataclass(frozen=True)
class TranslatorOptions:
    """The options of `Translator`; each method looks at its own."""

    variant: Annotated[str, _option("variant", "regularised, or pruned.")] = "regularised"
    delta: Annotated[float, Option(help="pruned: how far apart anchors are kept.")] = 0.7
    omega: Annotated[int, Option(help="pruned: number of subsets that are averaged.")] = 8
    completion: Annotated[str, _option("completion", "polar, or map.")] = "polar"
    strength: Annotated[float | None, _option("strength", "regularisation; by default chosen by validation.")] = None
    standardise: Annotated[bool, _option("standardise", "bring dimensions to variance 1 first.", "--standardise")] = (
        False
    )
    whitening: Annotated[float, _option("whitening", "how far to whiten first, 0 to 0.5.")] = 0.0
    criterion: Annotated[str, _option("criterion", "judge by cosine, retrieval or error.")] = "cosine"


@command
def fit(
    terminal: Terminal,
    *,
    source: SourceVectors,
    target: TargetVectors,
    output: Annotated[Path, output_option("Folder for the translation and its outcome.")],
    method: Annotated[str, Option(help=f"How to fit: {', '.join(METHODS)}.")] = "auto",
    queries: Annotated[
        tuple[Path, Path] | None,
        Option(help="Two files of queries, as SOURCE and TARGET, for a map of their own."),
    ] = None,
    translator_options: TranslatorOptions,
    card_options: NewCardOptions,
    column: VectorColumn = None,
    target_column: TargetColumn = None,
    seed: SeedFromZero = 0,
    force: Force = False,
) -> None:
    """Fit a translation that carries vectors of SOURCE's model into the space of TARGET's.

    Row i of both files must be the same item; some hundreds to thousands of pairs are needed. Figures are of a fifth of
    the pairs that a first fit did not see; then all are used. OUTPUT receives the translation (translation.json and
    .safetensors, which apply, evaluate and bridge take), with its card, and outcome.json.

    Methods, with their papers (docs/references.bib):

    {methods of translate}

    - relative: cosines with the anchors, and no way back to a space. [maiorca:24]

    - auto: the best of several methods, judged on pairs that they were not fitted on.

    Examples:
      interbasin translate fit old.npy new.npy -o map
      interbasin translate fit old.parquet new.parquet --column embedding --method ridge -o map
      interbasin translate fit old.npy new.npy --queries old-queries.npy new-queries.npy --metric dot -o map
      interbasin translate fit new.npy old.npy --source-model new --target-model old -o back
    """
    from interbasin.jobs.translate import Card, Translator, fit_translation

    _refuse_options_of_others(terminal, method, translator_options.variant)
    terminal.require_free(output, force=force)
    card = Card.of(card_options.entries())
    translator = Translator(method=method, seed=seed, **vars(translator_options))
    x, y = read_matrix(source, column), read_matrix(target, target_column or column)
    pairs = None if queries is None else (read_matrix(queries[0], column), read_matrix(queries[1], column))
    with terminal.status("Fitting"):
        fitted = fit_translation(translator, x, y, queries=pairs, card=card)
    inputs = terminal.inputs("source", "target")
    if queries is not None:
        inputs |= {"source_queries": queries[0], "target_queries": queries[1]}
    outcome = fitted.save(output, request=terminal.request, inputs=inputs, force=force)
    terminal.outcome(outcome, output, lambda console: _show_fit(console, fitted, output))


def _refuse_options_of_others(terminal: Terminal, method: str, variant: str) -> None:
    """Refuse an option that the method would not look at, rather than leave it out without a word."""
    for name, methods in OPTIONS_OF_METHODS.items():
        if name not in terminal.given:
            continue
        if method not in methods:
            message = f"is for {', '.join(methods)}, and the method is {method}."
            raise typer.BadParameter(message, param_hint=f"--{name}")
        if name in ("delta", "omega") and variant != "pruned":
            raise typer.BadParameter("is for --variant pruned.", param_hint=f"--{name}")


def _show_fit(console: Console, fitted: FittedMaps, output: Path) -> None:
    documents, metrics = fitted.documents, fitted.metrics
    facts = [
        ("method", f"{documents.chosen_}{' (chosen)' if documents.method == 'auto' else ''}"),
        ("numbers per row", f"{documents.target_width} <- {documents.source_width}"),
        ("pairs", f"{metrics['pairs']:,.0f}"),
        ("lengths", "carried" if documents.carries_norms else "not carried: compare by cosine"),
    ]
    if documents.judged_:
        scores = "; ".join(f"{name} {number(score)}" for name, score in documents.judged_.items())
        facts.insert(1, ("chosen from", f"{scores}  ({documents.criterion})"))
    if "cosine" in metrics:
        held_out = f"{metrics['pairs_held_out']:,.0f} pairs that a first fit did not see"
        facts += [
            ("cosine", f"{number(metrics['cosine'])}  (of {held_out})"),
            ("recall at 1", f"{number(metrics['recall_1'])}  (of the right row, among as many)"),
            ("error", f"{number(metrics['error'])}  (squared, over the target's variance)"),
        ]
    if fitted.queries is not None:
        value = metrics.get("queries_cosine")
        facts.append(("queries", f"a map of their own, {fitted.queries.chosen_}; cosine {number(value)}"))
    facts.append(("written to", str(output)))
    print_facts(console, facts)


@command
def evaluate(
    terminal: Terminal,
    *,
    translator: Annotated[Path, Argument(metavar="TRANSLATOR", help="Folder of a fitted translation.")],
    source: SourceVectors,
    target: TargetVectors,
    output: Annotated[Path | None, output_option("Folder for the outcome, if one is wanted.")] = None,
    card_options: CardOptions,
    column: VectorColumn = None,
    target_column: TargetColumn = None,
    seed: SeedFromZero = 0,
    force: Force = False,
) -> None:
    """Measure a translation on pairs: give others than it was fitted on.

    Retrieval looks for the right row among the given ones, so its figures fall as these become more; what an index will
    be like is the question of translate audit.

    Examples:
      interbasin translate evaluate map old-test.npy new-test.npy
      interbasin translate evaluate map old-test.npy new-test.npy --metric dot --json -o out
    """
    from interbasin.jobs.translate import Card, Translator, evaluate_translation

    terminal.require_free(output, force=force)
    fitted = Translator.load(translator)
    # Measuring by another metric than it was fitted for harms nothing.
    entries = {name: value for name, value in card_options.entries().items() if name != "metric"}
    fitted.card_.refuse_others(Card.of(entries), "These pairs")
    with terminal.status("Evaluating"):
        held_out = evaluate_translation(
            fitted,
            read_matrix(source, column),
            read_matrix(target, target_column or column),
            metric=card_options.metric or fitted.card_.metric or "cosine",
            seed=seed,
        )
    summary: dict[str, object] = {"metrics": dict(held_out.metrics), "output": None}
    if output is not None:
        inputs = terminal.inputs("translator", "source", "target")
        outcome = held_out.save(output, request=terminal.request, inputs=inputs, force=force)
        summary = {**outcome.summary(), "output": str(output)}
    terminal.result(summary, lambda console: _show_evaluation(console, held_out, output))


def _show_evaluation(console: Console, held_out: HeldOut, output: Path | None) -> None:
    from interbasin.jobs.translate.evaluate import MEANINGS

    console.print(plural(held_out.pairs, "pair"))
    plain = held_out.untranslated
    columns = ("figure", "translated", *(("as it is",) if plain else ()), "meaning")
    rows = [
        (name, f"{figure}", *((number(plain[name].value),) if plain else ()), MEANINGS[name])
        for name, figure in held_out.figures.items()
    ]
    print_table(console, columns, rows, words=(0, len(columns) - 1))
    if output is not None:
        console.print(f"written to {output}", soft_wrap=True)


@command
def apply(
    terminal: Terminal,
    *,
    translator: Annotated[Path, Argument(metavar="TRANSLATOR", help="Folder of a fitted translator.")],
    vectors: Annotated[str, Argument(metavar="VECTORS", help=f"What to translate: {STORES}.")],
    output: Annotated[str, output_option("Where to; for PostgreSQL postgresql:?table=TABLE&column=COLUMN.")],
    column: Annotated[str | None, Option(help="Column of a table, or array of a .npz file.")] = None,
    table: Annotated[str | None, Option(help="Table, where VECTORS does not name it.")] = None,
    key: Annotated[str | None, Option(help="PostgreSQL: column that tells rows apart, else primary key.")] = None,
    batch_rows: Annotated[
        int | None, Option(min=1, help="Rows per batch, by default about 32 MiB; in Parquet, a row group.")
    ] = None,
    bad_rows: Annotated[
        str, Option(help="refuse rows of zeros, NaN or infinity, or keep them as they are.")
    ] = "refuse",
    scale: Annotated[float | None, Option(help="For int8 and the like: what every number is multiplied by.")] = None,
    model: Annotated[str | None, Option(help="What made the vectors, compared with the translator's card.")] = None,
    metric: Annotated[str | None, Option(help="How they are compared: cosine, dot or l2.")] = None,
    engine: Annotated[str, Option(help="local, or ray: read and translate on a Ray cluster.")] = "local",
    wrap: Annotated[
        bool, Option("--wrap", help="FAISS: touch no row, translate queries; TRANSLATOR goes from new to old.")
    ] = False,
    in_place: Annotated[bool, Option("--in-place", help="Let the output replace the source file.")] = False,
    force: Annotated[bool, Option("--force", help="Replace what is at OUTPUT.")] = False,
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
    from interbasin.jobs.translate import Card, Translator
    from interbasin.jobs.translate.apply import translate_vectors
    from interbasin.vectors.stores import parse_uri

    kept = None if vectors.startswith("faiss:") else ""  # of an index nothing is kept
    with terminal.progress_of_rows("Translating rows", kept) as report:
        fitted = Translator.load(translator)
        name = parse_uri(vectors, column=column, table=table, key=key).shown
        fitted.card_.refuse_others(Card.of({"source_model": model, "metric": metric}), f"The vectors in {name}")
        applied = translate_vectors(
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
            progress=report,
        )
    terminal.result(applied.summary(), lambda console: _show_applied(console, applied), applied.notes)


def _show_applied(console: Console, applied: Applied) -> None:
    earlier = f", of which {applied.resumed_at:,} were there already" if applied.resumed_at else ""
    bad = ", ".join(f"{count:,} {kind}" for kind, count in applied.bad_rows.items() if count)
    facts = [
        ("vectors", applied.source),
        ("rows", f"{applied.rows:,}{earlier}"),
        ("numbers per row", f"{applied.target_width} <- {applied.source_width}, {applied.dtype}"),
        *([("kept as they are", bad)] if bad else []),
        ("written to", applied.output),
    ]
    print_facts(console, facts)


translate = typer.Typer(
    name="translate",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=keep_lines("""Carry embeddings of one encoder into the space of another.

    Examples:
      interbasin translate doctor old.npy
      interbasin translate fit pairs-old.npy pairs-new.npy -o map
      interbasin translate apply map old.parquet -o new.parquet
    """),
)

for function in (doctor, audit, fit, evaluate, bridge, apply):
    translate.command()(function)
