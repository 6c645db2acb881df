"""``interbasin fit``: a map between two files of vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from interbasin.cli.methods import method_option, names
from interbasin.cli.options import SourceVectors, StatisticsOptions, TargetVectors, command, output_option
from interbasin.cli.output import Terminal, number, print_facts
from interbasin.errors import FileError
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.fit import Fit

_option = partial(method_option, "fit")


@dataclass(frozen=True)
class SolverOptions:
    """What the methods can be told; None is not given."""

    centered: Annotated[
        bool | None, Option("--centered/--uncentered", help="Fit to the rows about their means (the default).")
    ] = None
    scale: Annotated[bool | None, _option("scale", "also fit one factor.", "--scale")] = None
    unobserved: Annotated[str | None, _option("unobserved", "complete or drop directions without data.")] = None
    signed: Annotated[bool | None, _option("signed", "units may change their sign.", "--signed")] = None
    match: Annotated[str | None, _option("match", "covariance or correlation.")] = None
    ridge: Annotated[float | None, _option("ridge", "relative to the mean variance.")] = None
    power: Annotated[float | None, _option("power", "0 (Procrustes) to 0.5 (CCA).")] = None
    temperature: Annotated[float | None, _option("temperature", "how soft, relative to the largest covariance.")] = None
    tolerance: Annotated[float | None, _option("tolerance", "when to stop.")] = None
    steps: Annotated[int | None, _option("steps", "the limit of steps.")] = None
    seed: Annotated[int | None, _option("seed", "for the random start.")] = None


@command
def fit(
    terminal: Terminal,
    *,
    source: SourceVectors,
    target: TargetVectors,
    output: Annotated[Path, output_option("Folder for the map and what is known about it.")],
    method: Annotated[str, Option(help=f"How to fit: {', '.join(names('fit'))}.")] = "procrustes",
    affine: Annotated[bool, Option("--affine", help="Also carry the source's mean to the target's.")] = False,
    solver_options: SolverOptions,
    statistics_options: StatisticsOptions,
    force: Annotated[bool, Option("--force", help="Replace an earlier result in OUTPUT.")] = False,
) -> None:
    """Fit a map that carries the vectors of SOURCE onto those of TARGET.

    Row i of both files must be the same item. Files may be larger than memory: they are read once, in batches. OUTPUT
    receives the map (map.safetensors, map.json; interbasin.maps.load reads it) and fit.json.

    Methods, with their papers (docs/references.bib):

    {methods of fit}

    Examples:
      interbasin fit old.npy new.npy -o map
      interbasin fit old.parquet new.parquet --column embedding --method least-squares --ridge 1e-3 --affine -o map
      interbasin fit a.npy b.npy --method cca --power 0.25 --statistics seen -o map --json
    """
    from interbasin.fit.registry import describe, needs_grams, rehearse
    from interbasin.maps.files import HOLDS
    from interbasin.storage import refuse_what_is_in_the_way

    solver = describe(method)
    options = {name: value for name, value in vars(solver_options).items() if value is not None}
    # Whatever is wrong with the request is said before hours of reading, not after.
    rehearse(solver, options)
    refuse_what_is_in_the_way(output, HOLDS, force=force)
    _keep_apart(output, statistics_options.statistics)
    x, y, moments = statistics_options.collect(terminal, source, target, grams=needs_grams(solver, options))
    result = solver.function(moments, affine=affine, **options)
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
    result.save(output, force=force, notes=request)
    terminal.result(
        {**result.summary(), **request, "output": str(output)},
        lambda console: _show(console, result, moments.count, output),
        _remarks(result, affine),
    )


def _remarks(result: Fit, affine: bool) -> Iterator[str]:
    if result.status != "converged":
        yield f"Status {result.status}: {result.message}."
    resolution = result.details["residual_resolution"]
    if result.residual < 2 * resolution:
        yield f"A residual below {number(2 * resolution)} is more than sums in this precision can tell from none."
    if not affine and result.residual > 1.1 * max(resolution**2, 1 - result.explained) ** 0.5:
        yield "The means of the two files differ and this map does not carry them: --affine would."


def _keep_apart(output: Path, statistics: Path | None) -> None:
    """Refuse folders of which one would be replaced with the other inside."""
    if statistics is None:
        return
    result, kept = output.resolve(), statistics.resolve()
    if result.is_relative_to(kept) or kept.is_relative_to(result):
        raise FileError(f"The result and the statistics need folders side by side, got {output} and {statistics}.")


def _show(console: Console, result: Fit, rows: int, output: Path) -> None:
    facts = [
        ("method", result.method),
        ("map", f"{result.map!r}"),
        ("rows", f"{rows:,}"),
        ("residual", f"{number(result.residual)}  (||m(x) - y|| / ||y||)"),
        ("explained", f"{number(result.explained)}  (share of the target's variance about its mean)"),
        ("status", result.status + (f" after {plural(result.steps, 'step')}" if result.steps > 1 else "")),
        ("written to", str(output)),
    ]
    print_facts(console, facts)
