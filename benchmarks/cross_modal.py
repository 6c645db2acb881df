"""Does a pre-trained model help on a modality that it has never seen, does aligning it help, and does the verdict know?

Sources (`cross_modal_sources.py`) by targets (`cross_modal_targets.py`) by methods: comparisons by ``ib.adapt``, with
few labels and all, 150 steps of 16 samples and two trials for every method that is trained, chosen by held-out samples.
Beside them specialists for fields and time series (`cross_modal_specialists.py`), and stage 1 by itself
(`cross_modal_stage_one.py`). How a source of signals takes a field and the other way round is the rule of the embedder,
in `interbasin.jobs.adapt.embedders`.

The core is the MNIST ViT and the CIFAR ResNet, 100 labels (of ECG5000 all as well), on both planted gaps (for the ViT
also on both at once: where images are its own, labels alone leave nothing to align), two sets of heart beats and two
equations, three seeds. A step of 16 samples takes about 0.08 s (MNIST ViT), 0.1 s (CIFAR ResNet, on
images; 0.02 s on signals, which become small maps), 0.14 s (CREPE) and 0.9 s (MiniLM) on one thread.

    python benchmarks/cross_modal.py --quick               embedded digits, a minute
    python benchmarks/cross_modal.py                       the core; cells in two processes of one thread each
    python benchmarks/cross_modal.py --all                 also the other sources, targets and numbers of labels
    python benchmarks/cross_modal.py --only core stage-one     some stages of it; see STAGES
    python benchmarks/cross_modal.py --targets ecg200 --sources mnist-vit --seeds 0     some cells of them
    python benchmarks/cross_modal.py --minutes 30          begin no cell after so long; a later run goes on
    python benchmarks/cross_modal.py --summary             only make the summary again

A cell is a file of ``results/cross_modal``, and what was done of one that was interrupted is kept in ``.cache``; the
summary with the bars is ``results/cross_modal.json``. Without INTERBASIN_DATA only the quick form can be run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
from cross_modal_bars import find_bars
from cross_modal_cells import LONG, LONGER, SPECIALISTS, STAGE_ONE, STEPS, TABLE, TIME, Store, Work
from cross_modal_figures import draw
from cross_modal_sources import SOURCES, data_folder
from cross_modal_summary import report, summarise
from cross_modal_targets import ALL, CLASSES, MERGED, PLANTED, TARGETS, has_target, label_counts

QUESTION = "cross_modal"
SEED, SEEDS = 0, 3
VIT, RESNET, QUICK = "mnist-vit", "cifar-resnet", "digits-vit"
CORE = (
    ("rotated-patches", 100),
    ("merged-labels", 100),
    ("ecg200", 100),
    ("ecg5000", 100),
    ("advection", 100),
    ("burgers", 100),
    ("ecg5000", ALL),
)
# What bars and the verdict need; where patches are rotated also the sceptic's alignment, without transport, and on one
# target the control of more steps and the rival. The rest of the methods comes with --all.
SMALL = ("raw-linear", "nearest", "random-body", "linear-probe", "scratch", "naive", "fa", "recraft")
ROTATED = (*SMALL, "means")
MAIN = (*ROTATED, "warm", "orca")
FEW = ("raw-linear", "nearest", "scratch", "naive", "means", "fa", "recraft")  # of the quick form
WITHOUT_OMEGA = {"omegas": ()}  # of stage one
FIELDS = ("advection", "burgers", "reaction-diffusion", "darcy-16")

Stage = Callable[[], Iterator[Work]]


def core() -> Iterator[Work]:
    for seed in range(SEEDS):
        for source in (VIT, RESNET):
            for target, labels in CORE:
                methods = SMALL if target != "rotated-patches" else MAIN if source == VIT else ROTATED
                yield Work(TABLE, source, target, labels, seed, methods)
        yield Work(TABLE, VIT, f"rotated-merged-{MERGED}", 100, seed, ROTATED)


def specialists() -> Iterator[Work]:
    for seed in range(SEEDS):
        for target, labels in CORE:
            if target not in PLANTED:
                yield Work(SPECIALISTS, "", target, labels, seed)


def times() -> Iterator[Work]:
    for target in ("rotated-patches", "ecg200", "burgers"):
        yield Work(TIME, VIT, target, 100, 0)


def stage_one() -> Iterator[Work]:
    for seed in range(SEEDS):
        for target in (*PLANTED, "ecg200", "ecg5000"):
            yield Work(STAGE_ONE, VIT, target, 100, seed)
        for count in CLASSES:  # where distortion begins to matter; omega is looked at above
            yield Work(STAGE_ONE, VIT, f"rotated-merged-{count}", 100, seed, options=WITHOUT_OMEGA)


def more_methods() -> Iterator[Work]:
    for seed in range(SEEDS):
        for source in (VIT, RESNET):
            for target, labels in CORE:
                yield Work(TABLE, source, target, labels, seed)


def longer() -> Iterator[Work]:
    for seed in range(SEEDS):
        for target in ("ecg200", "ecg5000"):
            yield Work(LONG, VIT, target, 100, seed, steps=LONGER * STEPS)


def more_targets() -> Iterator[Work]:
    """Every source on every target with every number of labels; MiniLM with a body that stays as it is."""
    for seed in range(SEEDS):
        for source in (VIT, RESNET, "crepe-tiny", "minilm"):
            options = {"body": "frozen"} if source == "minilm" else {}
            for target in (name for name in TARGETS if not name[-1].isdigit() or name[-2:] in ("00", "16")):
                for labels in label_counts(target):
                    if has_target(target, source):
                        yield Work(TABLE, source, target, labels, seed, MAIN, options=options)


def more_specialists() -> Iterator[Work]:
    for seed in range(SEEDS):
        for target in FIELDS:
            for labels in label_counts(target):
                yield Work(SPECIALISTS, "", target, labels, seed)


def more_stage_one() -> Iterator[Work]:
    for seed in range(SEEDS):
        for target in ("advection", "burgers"):
            yield Work(STAGE_ONE, VIT, target, 100, seed)
        for count in CLASSES:
            yield Work(STAGE_ONE, VIT, f"merged-labels-{count}", 100, seed, options=WITHOUT_OMEGA)


def quick() -> Iterator[Work]:
    short = {"align_steps": 5}
    yield Work(TABLE, QUICK, "rotated-patches", 100, 0, FEW, steps=10, options=short)
    yield Work(TABLE, QUICK, "advection", 100, 0, FEW, steps=10, options=short)
    yield Work(STAGE_ONE, QUICK, "rotated-patches", 100, 0, steps=10, options={**short, "omegas": (0.3, 3.0)})
    yield Work(SPECIALISTS, "", "advection", 100, 0, steps=3)
    yield Work(LONG, QUICK, "advection", 100, 0, steps=20)
    yield Work(TIME, QUICK, "advection", 100, 0, steps=2, options=short)


def named(*stages: Stage) -> dict[str, Stage]:
    return {stage.__name__.replace("_", "-"): stage for stage in stages}


USUAL = named(core, specialists, stage_one, times)
REST = named(more_methods, longer, more_specialists, more_stage_one, more_targets)
STAGES = {**USUAL, **REST, **named(quick)}


# ---------------------------------------------------------------------- running


def end_with_parent() -> None:
    """End this process once the one that started it is gone: killed, it would leave its cells running."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_work(work: Work, folder: Path) -> dict[str, Any]:
    """A cell, in a process of its own thread."""
    torch.set_num_threads(1)
    return work.run(folder)


def run(store: Store, works: Sequence[Work], workers: int, until: float) -> None:
    """Run what is missing, several at a time; each cell is written as soon as it is there."""
    todo = list(dict.fromkeys(work for work in works if not store.is_done(work)))
    if not todo:
        return
    waiting, started = iter(todo), time.monotonic()
    done = 0

    def keep(work: Work, cell: dict[str, Any]) -> None:
        nonlocal done
        store.add(work, cell)
        done += 1
        elapsed = time.monotonic() - started
        remaining = elapsed / done * (len(todo) - done)
        print(
            f"{done} of {len(todo)}: {work.name} in {cell['seconds']:.0f} s, about {remaining / 60:.0f} minutes left",
            flush=True,
        )

    if workers == 1:
        for work in waiting:
            if time.monotonic() > until:
                break
            keep(work, run_work(work, store.folder))
        return
    context = multiprocessing.get_context("spawn")  # threads of numerical libraries do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
        running: dict[Future[dict[str, Any]], Work] = {}
        while True:
            while len(running) < workers and time.monotonic() <= until and (work := next(waiting, None)) is not None:
                running[pool.submit(run_work, work, store.folder)] = work
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                work = running.pop(future)
                try:
                    keep(work, future.result())
                except Exception as error:  # the other cells go on
                    print(f"{work.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def missing(store: Store, stages: Sequence[str]) -> dict[str, int]:
    return {name: sum(not store.is_done(work) for work in STAGES[name]()) for name in stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small, on data that are made or embedded here")
    parser.add_argument("--all", action="store_true", help="also " + ", ".join(REST))
    parser.add_argument("--only", nargs="+", choices=list(STAGES), help="these stages")
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), help="cells of these sources")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), help="cells of these targets")
    parser.add_argument("--seeds", nargs="+", type=int, help="cells of these seeds")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--workers", type=int, default=2, help="cells at a time, each in one thread")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    is_quick = arguments.quick or data_folder() is None
    stem = f"{QUESTION}-quick" if is_quick else QUESTION
    stages = ["quick"] if is_quick else arguments.only or [*USUAL, *(REST if arguments.all else ())]
    store = Store(frame.RESULTS / stem)
    works = [
        work
        for stage in stages
        for work in STAGES[stage]()
        if (not arguments.sources or work.source in arguments.sources)
        and (not arguments.targets or work.target in arguments.targets)
        and (arguments.seeds is None or work.seed in arguments.seeds)
    ]
    if not arguments.summary:
        workers = 1 if is_quick else arguments.workers
        run(store, works, workers, time.monotonic() + 60 * arguments.minutes)
        store.load()
    content = summary_of(store, is_quick)
    frame.save(frame.RESULTS / f"{stem}.json", content)
    report(content)


def summary_of(store: Store, is_quick: bool) -> dict[str, Any]:
    processors = sorted({cell["processor"] for cell in store.cells.values()})
    environment = frame.environment(seed=SEED, threads=1)
    content: dict[str, Any] = {
        "question": QUESTION,
        "environment": {**environment, "processor": " and ".join(processors) or environment["processor"]},
        **summarise(store),
        "bars": {},
        "not_measured": [],
        "missing": missing(store, ["quick"] if is_quick else [*USUAL, *REST]),
    }
    if not is_quick:
        content["bars"], content["not_measured"] = find_bars(store)
    draw(store, frame.RESULTS, f"{QUESTION}-quick" if is_quick else QUESTION)
    return content


if __name__ == "__main__":
    main()
