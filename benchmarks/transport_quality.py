"""What is a fine-tune worth that was moved from one network to another, beside all that one could do instead?

Two residual networks, trained apart on digits and clothes; one is fine-tuned, and the other is to be given its skill
(`transport_workload.py`). Every method, baseline and control, with 1 to 50 unlabelled batches: accuracy on the task, on
what B could do before, the change of the update's norm, seconds of processor time. Alpha is 1, or found without labels,
or on labelled validation images. Then the verdicts, other directions and depths, the warm start, the sweep over alpha.

    python benchmarks/transport_quality.py --quick              embedded digits, one seed, a minute
    python benchmarks/transport_quality.py                      what the bars need; hours on one thread
    python benchmarks/transport_quality.py --all                also the rest
    python benchmarks/transport_quality.py --only closed        some stages of it; see STAGES
    python benchmarks/transport_quality.py --again regression auto    drop cells of these rows or methods first
    python benchmarks/transport_quality.py --minutes 30         stop after so long; a later run goes on
    python benchmarks/transport_quality.py --summary            only make the summary again

Cells are lines of ``results/transport_quality/*.jsonl``; the summary with the bars is
``results/transport_quality.json``. Without INTERBASIN_DATA only the quick form can be run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import transport_studies as studies
from transport_bars import draw, find_bars, report, summarise
from transport_cells import (
    ABLATION_ROWS,
    AUTO_ROWS,
    BASELINE_ROWS,
    DEPTH_ROWS,
    LABEL_ROWS,
    METHOD_ROWS,
    ONE,
    REFERENCES,
    SAME_SHAPE_ROWS,
    Row,
    Store,
    Work,
    distillations,
)
from transport_workload import FULL, data_folder

SEED = 0
SEEDS, FEW_SEEDS = 5, 2
BATCHES, FEW_BATCHES = (5, 20, 1, 2, 10, 50), (5, 20, 1)
SHOTS = (1, 2, 5, 10, 20)
# What bars are about comes first. Here baselines have all rules for alpha; elsewhere theirs is 1.
COMPARED_AT = (20, 5)


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


def closed() -> Iterator[Any]:
    yield from table((*REFERENCES, *METHOD_ROWS), BATCHES)


def chosen() -> Iterator[Any]:
    yield from table(AUTO_ROWS, BATCHES)


def baselines() -> Iterator[Any]:
    noise = [row for row in BASELINE_ROWS if row.name in ("padded", "random", "random-through-maps")]
    yield from table(noise, (20,))
    yield from table((*BASELINE_ROWS, *LABEL_ROWS), COMPARED_AT)


def more_baselines() -> Iterator[Any]:
    rows = [row for row in (*BASELINE_ROWS, *LABEL_ROWS) if row.needs_data]
    yield from table(rows, (1, 2, 10, 50), rules_at=())


def controls() -> Iterator[Any]:
    yield from table(distillations("cold", generic=True), (20,))
    yield from table(distillations("cold"), COMPARED_AT)
    yield from table(distillations("cold", (1e-2,)), COMPARED_AT)


def more_controls() -> Iterator[Any]:
    yield from table(distillations("cold"), (1, 2, 10, 50))
    yield from table(distillations("cold", (1e-2,)), (1, 2, 10, 50))
    yield from table(distillations("cold", (1e-2,), generic=True), (20,))
    yield from table(distillations("transported"), BATCHES)
    yield from table(distillations("cold", generic=True), (5, 1, 2, 10, 50))


def verdicts() -> Iterator[Any]:
    yield from studies.verdicts()


def warm() -> Iterator[Any]:
    yield from studies.warm_starts(SEEDS)


def ablations() -> Iterator[Any]:
    yield from table(ABLATION_ROWS, FEW_BATCHES, seeds=range(FEW_SEEDS))


def directions() -> Iterator[Any]:
    few = range(FEW_SEEDS)
    rate = distillations("cold", (1e-3,))
    rows = (*REFERENCES, *METHOD_ROWS, *AUTO_ROWS, *BASELINE_ROWS, *SAME_SHAPE_ROWS, *LABEL_ROWS, *rate)
    for pair in ("narrower", "same"):
        yield from table(rows, FEW_BATCHES, pair=pair, seeds=few)
    for pair in ("deeper", "shallower"):
        yield from table((*REFERENCES, *METHOD_ROWS, *AUTO_ROWS, *DEPTH_ROWS, *rate), FEW_BATCHES, pair=pair, seeds=few)


def sweep() -> Iterator[Any]:
    yield from studies.sweeps(FEW_SEEDS)


def shots() -> Iterator[Any]:
    names = ("theseus-modules", "theseus-spaces", "theseus-spaces-rms", "regression", "head-ridge")
    rows = [row for row in METHOD_ROWS if row.name in names]
    for pair in ("wider", "narrower"):
        for count in SHOTS:
            yield from table(rows, (0,), pair=pair, seeds=range(FEW_SEEDS), rules_at=(), shots=count)


def quick() -> Iterator[Any]:
    rows = (*REFERENCES, *METHOD_ROWS, *AUTO_ROWS, *BASELINE_ROWS, *LABEL_ROWS, *distillations("cold", (1e-3,)))
    yield from table(rows, (5, 1), pair="quick", seeds=range(1), tasks=("digits",))


# In the order in which they are run; those of REST only with --all.
STAGES = {
    stage.__name__.replace("_", "-"): stage
    for stage in (
        closed,
        chosen,
        controls,
        verdicts,
        warm,
        baselines,
        more_controls,
        more_baselines,
        ablations,
        sweep,
        directions,
        shots,
        quick,
    )
}
REST = ("ablations", "directions", "shots", "sweep")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="embedded digits, one seed")
    parser.add_argument("--all", action="store_true", help="also " + ", ".join(REST))
    parser.add_argument("--only", nargs="+", choices=list(STAGES), help="these stages")
    parser.add_argument("--again", nargs="+", default=[], help="rows or methods whose cells are run again")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    is_quick = arguments.quick or data_folder() is None
    stem = "transport_quality-quick" if is_quick else "transport_quality"
    store = Store(frame.RESULTS / stem)
    names = ["quick"] if is_quick else arguments.only or [n for n in STAGES if n not in (*REST, "quick")]
    if arguments.all and not is_quick and not arguments.only:
        names = [name for name in STAGES if name != "quick"]
    if arguments.again:
        dropped = store.drop(lambda cell: cell["row"] in arguments.again or cell["method"] in arguments.again)
        print(f"dropped {dropped} cells of {', '.join(arguments.again)}", flush=True)
    if not arguments.summary:
        run(store, names, time.monotonic() + 60 * arguments.minutes)
    everything = ["quick"] if is_quick else [name for name in STAGES if name != "quick"]
    work = {name: list(STAGES[name]()) for name in everything}
    content = {
        "question": "transport_quality",
        "environment": frame.environment(seed=SEED, threads=arguments.threads),
        **summarise(store),
        "bars": {},
        "missing": {name: sum(key not in store for each in cells for key in each.keys) for name, cells in work.items()},
    }
    if not is_quick:
        content["bars"], content["not_measured"] = find_bars(store)
        draw(store, frame.RESULTS, stem)
    frame.save(frame.RESULTS / f"{stem}.json", content)
    report(content)


def run(store: Store, names: Sequence[str], until: float) -> None:
    """Run what is missing, stage by stage."""
    for name in names:
        todo = [work for work in STAGES[name]() if not all(key in store for key in work.keys)]
        started = time.monotonic()
        for number, work in enumerate(todo):
            if time.monotonic() > until:
                print(f"{name}: stopped with {len(todo) - number} of {len(todo)} to do", flush=True)
                return
            for cell in work.run():
                store.add(cell)
            if number % 50 == 49:
                taken = time.monotonic() - started
                print(f"{name}: {number + 1} of {len(todo)}, {taken / (number + 1):.1f} s each", flush=True)
        if todo:
            print(f"{name}: {len(todo)} in {(time.monotonic() - started) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
