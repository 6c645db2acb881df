"""What is a fine-tune worth that was moved from one network to another, beside all that one could do instead?

Two residual networks, trained apart on digits and clothes; one is fine-tuned, and the other is to be given its skill
(`transport_workload.py`). Every method, baseline and control, with 1 to 50 unlabelled batches: accuracy on the task, on
what B could do before, the change of the update's norm, seconds of processor time. Alpha is 1, or found without labels,
or on labelled validation images. Then the verdicts and the warm start. That is the core: narrow to wide, five seeds.
Elsewhere (wide to narrow, the same architecture, other depths, so many examples of each class, ablations, the sweep
over alpha) there are two seeds, fewer batches and the main rows.

    python benchmarks/transport_quality.py --quick              embedded digits, one seed, a minute
    python benchmarks/transport_quality.py                      the core, and elsewhere; hours on one thread
    python benchmarks/transport_quality.py --all                also baselines and controls with other numbers of
                                                                batches, and all baselines elsewhere
    python benchmarks/transport_quality.py --only closed        some stages of it; see STAGES
    python benchmarks/transport_quality.py --again regression auto    drop cells of these rows or methods first
    python benchmarks/transport_quality.py --minutes 30         stop after so long; a later run goes on
    python benchmarks/transport_quality.py --summary            only make the summary again

Cells are lines of ``results/transport_quality/*.jsonl``; the summary with the bars is
``results/transport_quality.json``. Without INTERBASIN_DATA only the quick form can be run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import transport_studies as studies
from transport_bars import find_bars
from transport_cells import Store, Work
from transport_rows import (
    ABLATION_ROWS,
    AUTO_ROWS,
    BASELINE_ROWS,
    DEEPER_ROWS,
    DEPTH_ROWS,
    LABEL_ROWS,
    METHOD_ROWS,
    ONE,
    RATES,
    REFERENCES,
    SAME_SHAPE_ROWS,
    Row,
    distillations,
)
from transport_stages import missing, named, run_command
from transport_summary import draw, report, summarise
from transport_workload import FULL, data_folder

SEED = 0
SEEDS, FEW_SEEDS = 5, 2
BATCHES, FEW_BATCHES = (5, 20, 1, 2, 10, 50), (5, 20, 1)
SHOTS = (5, 20, 1, 10, 2)
COMPARED_AT = (20, 5)  # the batches with which baselines are run in the core
BEST_RATE = 3e-3  # of distillation with 5 and with 20 batches, in the core
# What is run elsewhere.
MAIN = ("theseus-modules", "theseus-spaces", "theseus-spaces-rms", "regression", "regression-keep", "head-ridge")
ROWS = {
    row.name: row
    for row in (
        *REFERENCES,
        *METHOD_ROWS,
        *AUTO_ROWS,
        *BASELINE_ROWS,
        *SAME_SHAPE_ROWS,
        *LABEL_ROWS,
        *ABLATION_ROWS,
        *DEPTH_ROWS,
        *DEEPER_ROWS,
    )
}


def rows_called(*names: str) -> list[Row]:
    return [ROWS[name] for name in names]


def table(
    rows: Sequence[Row],
    batches: Sequence[int],
    *,
    pair: str = "wider",
    seeds: Sequence[int] = range(SEEDS),
    tasks: Sequence[str] = FULL.tasks,
    rules_at: Sequence[int] | None = None,
    shots: int = 0,
) -> Iterator[Work]:
    """The cells of some rows. Those that see no data are run once, as with 0 batches."""
    for count in batches:
        for seed in seeds:
            for task in tasks:
                for row in rows:
                    if not row.needs_data and count != batches[0]:
                        continue
                    if row.needs_shapes and pair != "same":
                        continue
                    rules = row.rules if rules_at is None or count in rules_at or not row.needs_data else (ONE,)
                    yield Work(pair, seed, task, row, count if row.needs_data else 0, rules, shots)


# ---------------------------------------------------------------------- the core: narrow to wide, five seeds


def closed() -> Iterator[Any]:
    yield from table((*REFERENCES, *METHOD_ROWS), BATCHES)


def chosen() -> Iterator[Any]:
    yield from table(AUTO_ROWS, BATCHES)


def controls() -> Iterator[Any]:
    yield from table(distillations("cold", generic=True), (20,))
    for rate in (BEST_RATE, *(rate for rate in RATES if rate != BEST_RATE)):
        yield from table(distillations("cold", (rate,)), BATCHES)
    yield from table(distillations("cold", (1e-2,)), COMPARED_AT)


def verdicts() -> Iterator[Any]:
    yield from studies.verdicts()


def warm() -> Iterator[Any]:
    yield from studies.warm_starts(SEEDS)


def baselines() -> Iterator[Any]:
    yield from table((*BASELINE_ROWS, *LABEL_ROWS), COMPARED_AT)


# ---------------------------------------------------------------------- elsewhere: two seeds; 1, 5 and 20 batches


def narrower() -> Iterator[Any]:
    yield from elsewhere("narrower")


def same() -> Iterator[Any]:
    yield from elsewhere("same", (*SAME_SHAPE_ROWS, *rows_called("theseus+gradfix")))


def deeper() -> Iterator[Any]:
    yield from elsewhere("deeper", (*DEPTH_ROWS, *DEEPER_ROWS))


def shallower() -> Iterator[Any]:
    yield from elsewhere("shallower", DEPTH_ROWS)


def elsewhere(pair: str, more: Sequence[Row] = ()) -> Iterator[Any]:
    """The main rows, and some more; all rules for alpha with 5 batches."""
    rows = (*REFERENCES, *rows_called(*MAIN), *more)
    yield from table(rows, FEW_BATCHES, pair=pair, seeds=range(FEW_SEEDS), rules_at=(5,))


def more_elsewhere() -> Iterator[Any]:
    """Distillation at the rate that is best in the core, and `auto` with 5 batches."""
    rate = distillations("cold", (BEST_RATE,))
    for batches in FEW_BATCHES:
        rows = (*rate, *rows_called("auto")) if batches == 5 else rate
        for pair in ("narrower", "same", "deeper", "shallower"):
            yield from table(rows, (batches,), pair=pair, seeds=range(FEW_SEEDS))


def ablations() -> Iterator[Any]:
    yield from table(ABLATION_ROWS, FEW_BATCHES, seeds=range(FEW_SEEDS))


def sweep() -> Iterator[Any]:
    yield from studies.sweeps(FEW_SEEDS)


def shots() -> Iterator[Any]:
    rows = [row for row in rows_called(*MAIN) if not row.generic]
    for pair in ("wider", "narrower"):
        for count in SHOTS:
            yield from table(rows, (0,), pair=pair, seeds=range(FEW_SEEDS), rules_at=(), shots=count)


# ---------------------------------------------------------------------- the rest: only with --all


def more_baselines() -> Iterator[Any]:
    rows = [row for row in (*BASELINE_ROWS, *LABEL_ROWS) if row.needs_data]
    yield from table(rows, (1, 2, 10, 50), rules_at=())


def more_controls() -> Iterator[Any]:
    yield from table(distillations("cold", (1e-2,)), (1, 2, 10, 50))
    yield from table(distillations("cold", (1e-2,), generic=True), (20,))
    yield from table(distillations("transported"), BATCHES)
    yield from table(distillations("cold", generic=True), (5, 1, 2, 10, 50))


def more_directions() -> Iterator[Any]:
    rows = (*METHOD_ROWS, *AUTO_ROWS, *BASELINE_ROWS, *LABEL_ROWS)
    for pair in ("narrower", "same", "deeper", "shallower"):
        yield from table(rows, (5,), pair=pair, seeds=range(FEW_SEEDS))


def quick() -> Iterator[Any]:
    rows = (*REFERENCES, *METHOD_ROWS, *AUTO_ROWS, *BASELINE_ROWS, *LABEL_ROWS, *distillations("cold", (1e-3,)))
    yield from table(rows, (5, 1), pair="quick", seeds=range(1), tasks=("digits",))


# In the order in which they are run.
CORE = named(closed, chosen, controls, verdicts, warm, baselines)
ELSEWHERE = named(narrower, same, deeper, shallower, ablations, sweep, shots, more_elsewhere)
REST = named(more_baselines, more_controls, more_directions)
GROUPS = {"the core": CORE, "elsewhere": ELSEWHERE, "the rest (--all)": REST}
STAGES = {**CORE, **ELSEWHERE, **REST, **named(quick)}
QUESTION = "transport_quality"


def summary_of(store: Store, is_quick: bool) -> dict[str, Any]:
    content = {**summarise(store), "bars": {}, "missing": {}}
    if not is_quick:
        content["missing"] = {title: missing(store, STAGES, stages) for title, stages in GROUPS.items()}
        content["bars"], content["not_measured"] = find_bars(store)
        draw(store, frame.RESULTS, QUESTION)
    return content


def main() -> None:
    has_data = data_folder() is not None
    run_command(QUESTION, __doc__, STAGES, summary_of, report, seed=SEED, has_data=has_data, later=list(REST))


if __name__ == "__main__":
    main()
