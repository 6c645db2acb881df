"""``interbasin compare``: how alike two files of vectors are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin.cli.options import SourceVectors, StatisticsOptions, TargetVectors, command
from interbasin.cli.output import Terminal, number, print_table
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


@command
def compare(
    terminal: Terminal, *, source: SourceVectors, target: TargetVectors, statistics_options: StatisticsOptions
) -> None:
    """Show how alike the vectors of SOURCE and TARGET are.

    Row i of both files must be the same item. Files may be larger than memory: they are read once, in batches.

    Examples:
      interbasin compare old.npy new.npy
      interbasin compare a.npz b.npz --column hidden --json
    """
    from interbasin.statistics import similarities

    x, y, moments = statistics_options.collect(terminal, source, target, grams=True)
    values = similarities(moments)
    summary = {
        "source": str(source),
        "target": str(target),
        "rows": moments.count,
        "source_width": x.width,
        "target_width": y.width,
        "similarities": values,
    }

    def show(console: Console) -> None:
        console.print(f"{plural(moments.count, 'row')}, width {x.width} and {y.width}")
        rows = [(name, number(value), MEANINGS[name]) for name, value in values.items()]
        print_table(console, ("similarity", "value", "meaning"), rows, words=(0, 2))

    terminal.result(summary, show)
    if moments.count <= max(x.width, y.width):
        terminal.remark(
            f"With {plural(moments.count, 'row')} for {max(x.width, y.width)} units these figures are inflated; give "
            "more rows than units."
        )
