"""``interbasin translate bridge``: a translation as a function for queries, and a threshold of scores carried over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from interbasin.cli.options import Force, Metric, SeedFromZero, VectorColumn, command, output_option, read_matrix
from interbasin.cli.output import Terminal, number, print_facts

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.translate.thresholds import Decisions, MatchedThreshold
    from interbasin.outcome import Outcome

TRANSLATED = ("queries", "documents")
SCORED = ("old_queries", "new_queries", "documents")


@command
def bridge(
    terminal: Terminal,
    *,
    translator: Annotated[Path, Argument(metavar="TRANSLATOR", help="Folder of a fitted translation.")],
    output: Annotated[Path, output_option("Folder for the bridge.")],
    onnx: Annotated[bool, Option("--onnx/--no-onnx", help="Also write an ONNX graph (the vectors extra).")] = True,
    threshold: Annotated[
        float | None, Option(help="A threshold of old scores to carry over; needs the three files below.")
    ] = None,
    old_queries: Annotated[Path | None, Option(help="Queries as the old model sees them.")] = None,
    new_queries: Annotated[Path | None, Option(help="The same queries as the new model sees them.")] = None,
    documents: Annotated[Path | None, Option(help="Old vectors of documents, some thousands of them.")] = None,
    translates: Annotated[
        str, Option(help="What TRANSLATOR is used on: new queries (into the old index), or old documents.")
    ] = "queries",
    metric: Metric = None,
    column: VectorColumn = None,
    seed: SeedFromZero = 0,
    force: Force = False,
) -> None:
    """Export a translation as a function that needs nothing but numpy, or an ONNX runtime.

    To search an old index with a new model, fit from new to old and send every query through the bridge. OUTPUT
    receives bridge.npz with load_bridge.py, which is all that it takes, bridge.onnx (x -> y, float32), and bridge.json.

    Examples:
      interbasin translate bridge back -o bridge
      interbasin translate bridge back --threshold 0.7 --documents old.npy \\
          --old-queries q-old.npy --new-queries q-new.npy -o bridge
    """
    missing = [f"--{name.replace('_', '-')}" for name in SCORED if terminal.request[name] is None]
    if threshold is not None and missing:
        message = f"needs scores of both kinds: give {', '.join(missing)} too."
        raise typer.BadParameter(message, param_hint="--threshold")
    if translates not in TRANSLATED:
        message = f"is one of {', '.join(TRANSLATED)}, and got {translates!r}."
        raise typer.BadParameter(message, param_hint="--translates")
    from interbasin.jobs.translate import Translator
    from interbasin.jobs.translate.bridge import bridge as make_bridge

    terminal.require_free(output, force=force)
    fitted = Translator.load(translator)
    scores, matched, notes = None, None, []
    inputs = terminal.inputs("translator", *(() if missing else SCORED))
    if old_queries is not None and new_queries is not None and documents is not None:
        from interbasin.jobs.translate.thresholds import VectorScores, draw_rows, recalibrate

        compared = metric or fitted.card_.metric or "cosine"
        old, new, index = (read_matrix(path, column) for path in (old_queries, new_queries, documents))
        some, kept = draw_rows(len(old), len(index), seed)
        if len(some) < len(old) or len(kept) < len(index):
            notes.append(
                f"Scores are of {len(some):,} of {len(old):,} queries and {len(kept):,} of {len(index):,} documents, "
                f"drawn at random (seed {seed})."
            )
        index = index[kept]
        if len(old) == len(new):  # else it is refused below
            old, new = old[some], new[some]
        queries, stored = (fitted.transform(new), index) if translates == "queries" else (new, fitted.transform(index))
        with terminal.status("Comparing scores"):
            vectors = VectorScores(old, index, queries, stored, compared)
            scores = recalibrate(*vectors.draw(seed=seed))
            if threshold is not None:
                matched = vectors.match_threshold(threshold)
    result = make_bridge(fitted, scores=scores, threshold=matched)
    outcome = result.save(output, onnx=onnx, request=terminal.request, inputs=inputs, notes=notes, force=force)
    more = {} if matched is None else {"threshold": matched.to_json()}
    terminal.outcome(outcome, output, lambda console: _show(console, outcome, matched, output), **more)


def _show(console: Console, outcome: Outcome, matched: MatchedThreshold | None, output: Path) -> None:
    metrics = outcome.metrics
    facts = [("numbers per row", f"{metrics['target_width']:.0f} <- {metrics['source_width']:.0f}")]
    if "onnx_difference" in metrics:
        facts.append(("ONNX", f"within {metrics['onnx_difference']:.1e} of the translation, as it was run"))
    if "score_rank_correlation" in metrics:
        facts.append(("scores", f"rank correlation {number(metrics['score_rank_correlation'])} of old and new ones"))
    if matched is not None:
        facts += [
            ("threshold", f"{number(matched.new)} in place of {number(matched.old)}"),
            ("passed before", f"{matched.passing:,} of {matched.pairs:,} pairs"),
            ("pass now", _describe(matched.matched)),
            (f"at {number(matched.old)} still", _describe(matched.unchanged)),
        ]
    facts.append(("written to", f"{output}: {', '.join(outcome.written())}"))
    print_facts(console, facts)


def _describe(decisions: Decisions) -> str:
    return (
        f"{decisions.passing:,}; {number(decisions.agreement)} of all pairs decided as before, precision "
        f"{number(decisions.precision)}, recall {number(decisions.recall)}"
    )
