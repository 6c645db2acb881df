"""What benchmarks of transport that are made of cells share: the words of their commands, and running what is missing.

A stage is a function that yields work; a piece of work has ``keys``, one for each of its cells, and ``run``, which
yields them. Cells that a `Store` holds are not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

import frame
from transport_cells import Store

Stage = Callable[[], Iterator[Any]]
QUICK = "quick"  # the stage that needs no data


def named(*stages: Stage) -> dict[str, Stage]:
    """Stages by the names that the command has for them."""
    return {stage.__name__.replace("_", "-"): stage for stage in stages}


def run_command(
    question: str,
    description: str | None,
    stages: Mapping[str, Stage],
    summarise: Callable[[Store, bool], dict[str, Any]],
    report: Callable[[dict[str, Any]], object],
    *,
    seed: int,
    has_data: bool,
    later: Sequence[str] = (),
) -> None:
    """Run a benchmark as the command line asks for it, and write its summary.

    Args:
        question: The name of the benchmark and of its results.
        description: For ``--help``.
        stages: By name, in the order in which they are run; `QUICK` is among them.
        summarise: Cells, and whether they are those of the quick form, to what is written.
        report: What is shown of it.
        seed: What is kept as the seed.
        has_data: Whether there are data for more than the quick form.
        later: Stages that are run only if ``--all`` or their names ask for them.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small, on data that are made or embedded here")
    parser.add_argument("--only", nargs="+", choices=list(stages), help="these stages")
    parser.add_argument("--again", nargs="+", default=[], help="rows or methods whose cells are run again")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--threads", type=int, default=1)
    if later:
        parser.add_argument("--all", action="store_true", help="also " + ", ".join(later))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    is_quick = arguments.quick or not has_data
    stem = f"{question}-quick" if is_quick else question
    store = Store(frame.RESULTS / stem)
    if arguments.again:
        dropped = store.drop(lambda cell: cell["row"] in arguments.again or cell["method"] in arguments.again)
        print(f"dropped {dropped} cells of {', '.join(arguments.again)}", flush=True)
    if not arguments.summary:
        left_out = {QUICK, *(() if later and arguments.all else later)}
        usual = [QUICK] if is_quick else [name for name in stages if name not in left_out]
        names = usual if is_quick else arguments.only or usual
        run(store, {name: stages[name] for name in names}, time.monotonic() + 60 * arguments.minutes)
    processors = sorted({cell["processor"] for cell in store.cells.values() if "processor" in cell})
    environment = frame.environment(seed=seed, threads=arguments.threads)
    content = {
        "question": question,
        "environment": {**environment, "processor": " and ".join(processors) or environment["processor"]},
        **summarise(store, is_quick),
    }
    frame.save(frame.RESULTS / f"{stem}.json", content)
    report(content)


def run(store: Store, stages: Mapping[str, Stage], until: float) -> None:
    """Run what is missing, stage by stage."""
    for name, stage in stages.items():
        todo = [work for work in stage() if not all(key in store for key in work.keys)]
        started = time.monotonic()
        for number, work in enumerate(todo):
            if time.monotonic() > until:
                print(f"{name}: stopped with {len(todo) - number} of {len(todo)} to do", flush=True)
                return
            for cell in work.run():
                store.add(cell)
            if number % 20 == 19:
                taken = time.monotonic() - started
                print(f"{name}: {number + 1} of {len(todo)}, {taken / (number + 1):.1f} s each", flush=True)
        if todo:
            print(f"{name}: {len(todo)} in {(time.monotonic() - started) / 60:.1f} minutes", flush=True)


def missing(store: Store, stages: Mapping[str, Stage], names: Iterable[str]) -> dict[str, int]:
    """How many cells of each stage were not run."""
    return {name: sum(key not in store for work in stages[name]() for key in work.keys) for name in names}
