"""``python -m tests.faults``: every fault at every call of every case, and kills at random moments; counts as JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.faults.cases import CASES, Case
from tests.faults.kills import DatabaseKills, RandomKills, databases
from tests.faults.known import cause_of, unknown
from tests.faults.layer import NO_COMPILER, Fault, Layer, find_compiler, layer
from tests.faults.trials import Bench, Violation, as_document, benches


@dataclass
class Tally:
    """What was tried and found, over all workers."""

    trials: Counter[tuple[str, str]] = field(default_factory=Counter)  # case, fault
    calls: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def document(self, seconds: float) -> dict[str, Any]:
        by_fault: Counter[str] = Counter()
        for (_, fault), count in self.trials.items():
            by_fault[fault] += count
        return {
            "trials": self.trials.total(),
            "by_fault": dict(sorted(by_fault.items())),
            "by_case": {
                name: {fault: count for (case, fault), count in sorted(self.trials.items()) if case == name}
                for name in sorted({case for case, _ in self.trials})
            },
            "calls": dict(sorted(self.calls.items())),
            "known": count_kinds([one for one in self.violations if cause_of(one)]),
            "unknown": count_kinds(unknown(self.violations)),
            "violations": as_document(self.violations),
            "seconds": round(seconds),
        }


def count_kinds(violations: Sequence[Violation]) -> dict[str, int]:
    """How many there are of each kind."""
    return dict(sorted(Counter(one.kind for one in violations).items()))


def show(violations: Sequence[Violation]) -> None:
    """Print each on a line, and what causes it where that is known."""
    for one in violations:
        known = cause_of(one)
        setting = "over an older result" if one.over else "fresh"
        cause = f" (known: {known.why})" if known else ""
        print(
            f"{one.case}, {setting}: {one.fault} at {one.number}, {one.call}: {one.kind}: {one.found}{cause}",
            flush=True,
        )


def sweep(bench: Bench, faults: Sequence[Fault], most: int | None, draw: random.Random, tally: Tally) -> None:
    """Every trial of one bench, or at most so many for each fault; the last falls behind the last call."""
    name = f"{bench.case.name}, {'over an older result' if bench.over else 'fresh'}"
    tally.calls[name] = len(bench.calls)
    every = [trial for trial in bench.every_trial() if trial.fault in faults]
    for fault in faults:
        trials = [trial for trial in every if trial.fault is fault]
        if most is not None and len(trials) > most:
            trials = sorted(draw.sample(trials, most), key=lambda trial: trial.number)
        for trial in trials:
            before = bench.trials
            found = bench.run(trial)
            tally.trials[bench.case.name, fault.name] += bench.trials - before
            tally.violations += found
            show(found)


def kill(layer: Layer, cases: Sequence[Case], count: int, home: Path, seed: int, tally: Tally) -> None:
    """So many kills at random moments that fall into a run, all cases and the databases taking turns."""
    draw = random.Random(seed)
    with databases(layer, home, draw) as found:
        if not found:
            print("pgserver is not installed: nothing is killed inside PostgreSQL", file=sys.stderr)
        targets: list[RandomKills | DatabaseKills] = [
            RandomKills(bench, random.Random(f"{seed} {number}"))
            for number, bench in enumerate(benches(layer, cases, home))
        ]
        # One kill in ten falls into a database.
        turns = [*targets, *found * max(1, len(targets) // 18)]
        draw.shuffle(turns)
        hits = 0
        for target in itertools.cycle(turns):
            if hits >= count:
                break
            landed, violations = target.kill()
            hits += landed
            tally.trials[target.name, "LANDED" if landed else "TOO_LATE"] += 1
            tally.violations += violations
            show(violations)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=["*"], help="names of cases, with * for any part")
    parser.add_argument("--faults", nargs="*", default=[fault.name for fault in Fault if fault], help="names of faults")
    parser.add_argument("--most", type=int, help="at most so many calls for each fault of a case, drawn")
    parser.add_argument("--kills", type=int, default=0, help="instead: so many kills at random moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the counts")
    asked = parser.parse_args(arguments)
    if find_compiler() is None:
        print(NO_COMPILER, file=sys.stderr)
        return 2
    cases = [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in asked.cases)]
    tally, started = Tally(), time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        workers = threading.local()

        def layer_of_worker() -> Layer:
            if not hasattr(workers, "layer"):
                place = Path(tempfile.mkdtemp(dir=scratch))
                workers.layer = stack.enter_context(layer(place))
            return workers.layer  # type: ignore[no-any-return]

        def work(job: tuple[int, Case, bool]) -> None:
            number, case, over = job
            bench = Bench(layer_of_worker(), case, over, scratch / str(number))
            draw = random.Random(f"{asked.seed} {case.name} {over}")
            sweep(bench, [Fault[name] for name in asked.faults], asked.most, draw, tally)

        if asked.kills:
            kill(layer_of_worker(), cases, asked.kills, scratch, asked.seed, tally)
        jobs = [(2 * number + over, case, over) for number, case in enumerate(cases) for over in (False, True)]
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(work, [job for job in jobs if not asked.kills and (not job[2] or job[1].replaces)]))
    document = tally.document(time.monotonic() - started)
    print(json.dumps({key: value for key, value in document.items() if key not in ("by_case", "calls", "violations")}))
    if asked.json is not None:
        asked.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 1 if unknown(tally.violations) else 0


if __name__ == "__main__":
    sys.exit(main())
