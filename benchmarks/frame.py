"""What every benchmark shares: the environment, interleaved timing, peak memory, results on disk, a table on screen.

A benchmark is a script that answers one question. It asks this file for

- ``environment``: what the numbers depend on, without saying whose machine it was;
- ``compare``: times of two or more callables taken in turn (A, B, A, B, ...) in one process, because on a shared
  machine only neighbours in time can be compared; ratios are of best times, and the spread is kept next to them;
- ``peak_memory``: how far a call raises the resident memory, workspaces of the numerical libraries included;
- ``save``: the results so far, written atomically, so that an interrupted run keeps what it measured;
- ``show``: the same as a table.

Scripts run from anywhere: ``python benchmarks/<question>.py``. Results go to ``benchmarks/results/<question>.json``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def environment(*, seed: int, threads: int) -> dict[str, Any]:
    """Versions, processor, threads, commit, seed and date of a run; no host name and no path."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "seed": seed,
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "blas": "mkl" if torch.backends.mkl.is_available() else "other",
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _commit() -> str | None:
    """The commit measured, with a plus if files under version control have changed since."""

    def git(*words: str) -> str:
        root = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


@dataclass(frozen=True)
class Times:
    """Seconds of each callable, in the order they were taken."""

    seconds: dict[str, list[float]]

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """Median over best, minus one: how noisy the run was."""
        return self.median(name) / self.best(name) - 1

    def speed(self, name: str, reference: str) -> float:
        """How many times faster ``name`` is than ``reference``, by best times."""
        return self.best(reference) / self.best(name)

    def record(self) -> dict[str, dict[str, float | int]]:
        return {
            name: {
                "best": self.best(name),
                "median": self.median(name),
                "spread": self.spread(name),
                "repeats": len(taken),
            }
            for name, taken in self.seconds.items()
        }


def compare(
    callables: Mapping[str, Callable[[], object]], *, budget: float, most: int = 200, single_from: float = 10.0
) -> Times:
    """Time callables in turn until the budget is spent.

    Args:
        callables: what to time, by name. Each is called once untimed first, unless that call takes too long.
        budget: seconds for the whole comparison; at least two rounds are made whatever it says.
        most: rounds after which more would add nothing.
        single_from: a first round that takes longer than this counts as the only one.
    """
    first = {name: [_clock(call)] for name, call in callables.items()}
    if sum(taken[0] for taken in first.values()) > single_from:
        return Times(first)
    seconds: dict[str, list[float]] = {name: [] for name in callables}
    started = time.perf_counter()
    order = list(callables.items())
    for turn in range(most):
        if turn >= 2 and time.perf_counter() - started > budget:
            break
        # Whoever goes first finds the caches as the other left them, so the order alternates.
        for name, call in order if turn % 2 == 0 else reversed(order):
            seconds[name].append(_clock(call))
    return Times(seconds)


def _clock(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def peak_memory(call: Callable[[], object]) -> int | None:
    """Bytes by which a call raises the process's peak resident memory, or None where the system does not tell."""
    gc.collect()
    try:
        # Memory that was freed but never returned would hide what the call needs; and without a libc that can return
        # it, or a system that can reset the high-water mark, there is nothing to report.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        call()
        return max(0, _resident("VmHWM") - before)
    except (AttributeError, OSError, StopIteration, TypeError):
        return None


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write results so that a reader, or an interrupt, sees the old file or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    os.replace(partial, path)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; numbers are the caller's to format."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Wide enough for every column also where the output is a file.
    console = Console()
    Console(width=max(console.width, 140)).print(table)
