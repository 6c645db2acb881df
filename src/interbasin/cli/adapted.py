"""What ``interbasin adapt`` prints: the table of methods, the bound, notes, how to load the model, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from interbasin.cli.output import Terminal, in_options, number, print_table
from interbasin.text import list_names, plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.adapt import Adaptation, AdaptedRow
    from interbasin.outcome import Outcome

MEANINGS = {
    "err_source": "loss of the source's head on the proxy",
    "omega": "how fast that loss changes with the features",
    "fa": "feature alignment: omega times the distance of target and source features",
    "fa_floor": "the same between two halves of the source's features",
    "fld": "feature-label distortion: entropy of labels given the source's",
    "fld_hard": "the same with the source's likeliest label",
    "fld_crossed": "the same on samples that had no part in the table",
    "tf": "target fitting: how far answers are from what features allow",
    "tf_neighbours": "the same by neighbours instead of a probe",
    "bound": "the paper's form: err_source + fa + fld + tf",
    "bound_direct": "without a Lipschitz constant",
    "label_entropy": "what knowing nothing costs; a bound above it says nothing",
    "err_target": "loss of the model, which both forms lie above",
}
LISTED = 12  # names of classes that are shown
WITHOUT_SOURCE = ("raw-linear", "nearest")


def name_model(source: str, output: Path, method: str) -> dict[str, str]:
    """How the model is loaded: lines of Python."""
    lines = ["from interbasin.jobs.adapt import load_adapted"]
    if method in WITHOUT_SOURCE:
        return {"python": "\n".join([*lines, f'model = load_adapted("{output}")'])}
    lines += ["from interbasin.models import load_model"]
    return {"python": "\n".join([*lines, f'model = load_adapted("{output}", load_model("{source}").model)'])}


def show_result(
    console: Console,
    terminal: Terminal,
    outcome: Outcome,
    result: Adaptation,
    output: Path,
    use: Mapping[str, str],
) -> None:
    from interbasin.evaluate.prediction import error_metric

    samples = plural(int(result.request["samples"]), "labelled sample")
    console.print(f"{result.method} ({result.trial}), fitted to {samples}")
    metric = error_metric(result.request["task"], result.request["metric"])
    console.print(f"errors are {metric.name}: {metric.about}", soft_wrap=True)
    if metric.compared_by:
        console.print(f"methods are compared by {metric.compared_by}, which intervals are of", soft_wrap=True)
    has_test = any(row.error_test is not None for row in result.table)
    compared = ["compared"] if metric.compared_by else []
    titles = (
        "method",
        "trial",
        "held out",
        *compared,
        "interval",
        *(["test"] if has_test else []),
        "steps",
        "s/fit",
    )
    rows = [_cells(row, has_test, bool(compared)) for row in result.table]
    print_table(console, titles, rows, words=(0, 1), whole_figures=True)
    metrics = outcome.metrics
    terms = [(name, number(metrics[name]), meaning) for name, meaning in MEANINGS.items() if name in metrics]
    if terms:
        print_table(console, ("bound", "nats", "meaning"), terms, words=(0, 2))
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
    console.print("load the model with")
    for line in use["python"].splitlines():
        console.print(f"    {line}", soft_wrap=True)
    names = result.request.get("classes")
    if names is not None:
        console.print(f"its outputs are, in this order, {list_names(names, LISTED)}", soft_wrap=True)
    for note in outcome.notes:
        console.print(in_options(note, terminal.options), style="dim", soft_wrap=True)
    console.print(str(result.verdict), soft_wrap=True)


def _cells(row: AdaptedRow, has_test: bool, is_compared_otherwise: bool) -> tuple[str, ...]:
    return (
        *(row.method, row.trial, number(row.error_valid)),
        *([number(row.score_valid)] if is_compared_otherwise else []),
        f"{row.low:.3g}–{row.high:.3g}",
        *([number(row.error_test)] if has_test else []),
        *(str(row.steps) if row.steps else "-", f"{sum(row.seconds.values()):.2f}"),
    )
