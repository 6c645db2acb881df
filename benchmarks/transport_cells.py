"""The cells of the transport benchmark: one method, on one task of one pair of networks, with so many batches.

A cell is one JSON object, a line of ``results/transport_quality/<pair>-seed<n>.jsonl``. A line that a kill cut short is
dropped when the file is read again, and what is there is not run twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import frame
import interbasin as ib
from interbasin.errors import InterbasinError
from interbasin.jobs.transport.bases import Bases, relate
from interbasin.jobs.transport.choice import ALPHAS, Referee, try_method
from interbasin.jobs.transport.held_out import Part
from interbasin.jobs.transport.judge import Judge
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.theseus.maps import observe, seek
from interbasin.jobs.transport.updates.update import Update
from interbasin.statistics import PairedMoments
from transport_rows import LABEL_FREE, ONE, VALIDATED, Row
from transport_vits import VIT_PAIRS
from transport_workload import BATCH, FULL, QUICK, Pair, Shape, Workload

VALIDATION_ROWS = 1_000
PROCESSOR = frame.environment(seed=0, threads=1)["processor"]  # seconds of one are not those of another
DEEPER = Shape(192, 4)
# The pairs of networks by name, for a seed.
PAIRS: dict[str, Callable[[int], Pair]] = {
    "wider": FULL.pair,
    "narrower": partial(FULL.pair, shapes=(Shape(192), Shape(128))),
    "same": partial(FULL.pair, shapes=(Shape(128), Shape(128))),
    "deeper": partial(FULL.pair, shapes=(Shape(128, 2), DEEPER)),
    "shallower": partial(FULL.pair, shapes=(Shape(128, 4), Shape(192, 2))),
    "quick": QUICK.pair,
    **VIT_PAIRS,
}


# ---------------------------------------------------------------------- what a cell is run on


@lru_cache(maxsize=2)
def pair_of(name: str, seed: int) -> Pair:
    return PAIRS[name](seed)


@dataclass(frozen=True, eq=False)
class Case:
    """A task of a pair with its calibration data."""

    pair: Pair
    task: str
    batches: list[tuple[Tensor, Tensor]]

    @property
    def workload(self) -> Workload:
        return self.pair.workload

    @property
    def inputs(self) -> list[Tensor]:
        return [inputs for inputs, _ in self.batches]

    def given_to(self, row: Row, bases: Bases) -> Task:
        tuned = self.pair.tuned_source(self.task)
        update = Update.of(tuned, self.pair.source)
        if row.inner:
            inner = {name: update.tensor(name) for name in update if name.startswith("blocks.")}
            update = Update.of(inner, self.pair.source)
        return Task(
            bases,
            bases.lengthen(update),
            tuned,
            self.batches if row.labels else self.inputs,
            list(self.pair.generic().split(BATCH)) if row.generic else None,
            self.workload.readout,
            Options(**row.options, seed=self.pair.seed),
        )


@lru_cache(maxsize=4)
def case_of(pair: str, seed: int, task: str, batches: int, shots: int) -> Case:
    """With so many batches of 32, or so many examples of each class."""
    both = pair_of(pair, seed)
    pixels, labels = both.shots(task, shots) if shots else both.calibration(task, batches or 1)
    return Case(both, task, list(zip(pixels.split(BATCH), labels.split(BATCH), strict=True)))


@lru_cache(maxsize=4)
def bases_of(pair: str, seed: int, task: str, batches: int, shots: int, depth: str, heads: str = "auto") -> Bases:
    case = case_of(pair, seed, task, batches, shots)
    return relate(case.pair.source, case.pair.target, case.inputs, depth=depth, heads=heads)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Shown:
    """What the bases show on a case, and the seconds that recording it took."""

    moments: Mapping[tuple[str, str], PairedMoments]
    seconds: float


@lru_cache(maxsize=4)
def shown_by(
    pair: str,
    seed: int,
    task: str,
    batches: int,
    shots: int,
    depth: str,
    heads: str,
    tokens: str | None,
    grams: bool,
    fitted_part: bool,
) -> Shown:
    """Recorded once for all rows of a case. Each counts the seconds as its own, as if it had recorded for itself."""
    case = case_of(pair, seed, task, batches, shots)
    bases = bases_of(pair, seed, task, batches, shots, depth, heads)
    data = Part(case.inputs, held=False) if fitted_part else case.inputs
    return Shown(*clocked(lambda: observe(bases, data, seek(bases).pairs_to_record, tokens=tokens, grams=grams)))


@lru_cache(maxsize=4)
def validation_of(pair: str, seed: int, task: str) -> tuple[Tensor, Tensor]:
    return pair_of(pair, seed).validation(task, VALIDATION_ROWS)


# ---------------------------------------------------------------------- running one


@dataclass(frozen=True)
class Work:
    """Cells to be run in one go: a row on a case, with every rule for alpha."""

    pair: str
    seed: int
    task: str
    row: Row
    batches: int
    rules: tuple[str, ...]
    shots: int = 0

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        return [(self.pair, self.seed, self.task, self.row.name, self.batches, self.shots, rule) for rule in self.rules]

    def run(self) -> Iterator[dict[str, Any]]:
        """The cells. Where a method cannot be used on these networks, they say why."""
        try:
            yield from self._run()
        except InterbasinError as error:
            yield from (self._cell(rule, refused=str(error)) for rule in self.rules)

    def _run(self) -> Iterator[dict[str, Any]]:
        case = case_of(self.pair, self.seed, self.task, self.batches, self.shots)
        if self.row.method == "auto":
            yield self._cell(ONE, **_run_auto(case, self.row))
        elif self.row.method == "tuned-target":
            yield self._cell(ONE, alpha=1.0, seconds=None, **_measure(case, case.pair.tuned_target(self.task)))
        elif self.row.method == "interpolated":
            yield self._cell(ONE, alpha=1.0, seconds=None, **_measure(case, self._interpolated(case)))
        else:
            yield from self._run_row(case)

    def _interpolated(self, case: Case) -> nn.Module:
        """A with interpolated blocks, or tuned A, or A without."""
        bases = bases_of(self.pair, self.seed, self.task, self.batches, self.shots, self.row.depth)
        assert bases.lengthening is not None
        if self.row.variant == "tuned":
            return bases.lengthening.model(case.pair.tuned_source(self.task))
        return bases.source if self.row.variant == "base" else bases.given_source

    def _run_row(self, case: Case) -> Iterator[dict[str, Any]]:
        bases = bases_of(self.pair, self.seed, self.task, self.batches, self.shots, self.row.depth, self.row.heads)
        task, recording = self._with_shown(case.given_to(self.row, bases), fitted_part=False)
        transported, seconds = clocked(lambda: self.row(task))
        seconds += recording
        before = task.update.norm()
        norm_error = None if transported.model is not None else transported.update.norm() / before - 1
        depths = [shape.depth for shape in case.pair.shapes]
        # Where depths differ, a method can leave blocks of the target as they were.
        more = {"blocks": _blocks_in(transported.update)} if depths[0] != depths[1] else {}
        measured: dict[float, dict[str, float]] = {}
        validation = validation_of(self.pair, self.seed, self.task)
        for rule in self.rules:
            alpha, extra = 1.0, 0.0
            if rule == LABEL_FREE:
                alpha, extra = self._find_alpha_without_labels(task)
            elif rule == VALIDATED:
                alpha, extra = clocked(lambda: _alpha_by_labels(transported, case, validation))
            if alpha not in measured:
                measured[alpha] = _measure(case, transported.applied_to(case.pair.target, alpha))
            figures = {"seconds": seconds + extra, "norm_error": norm_error, **measured[alpha], **more}
            yield self._cell(rule, alpha=alpha, **figures)

    def _find_alpha_without_labels(self, task: Task) -> tuple[float, float]:
        """By the divergence from tuned A on a quarter of the inputs, the method fitted on the others; and seconds."""
        trial, recording = self._with_shown(task.on(Part(task.data, held=False)), fitted_part=True)
        referee = Referee(Judge(trial, Part(task.data, held=True)))
        found, seconds = clocked(lambda: try_method(trial, referee, self.row.method, "", ALPHAS, self.row))
        return found.alpha, seconds + recording

    def _with_shown(self, task: Task, *, fitted_part: bool) -> tuple[Task, float]:
        """The task with what its bases show, where the row looks at that, and the seconds of recording it."""
        if not self.row.sees:
            return task, 0.0
        where = self.pair, self.seed, self.task, self.batches, self.shots, self.row.depth, self.row.heads
        shown = shown_by(*where, self.row.options.get("tokens"), self.row.sees == "grams", fitted_part)
        return replace(task, recorded=shown.moments), shown.seconds

    def _cell(self, rule: str, **figures: Any) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "seed": self.seed,
            "task": self.task,
            "row": self.row.name,
            "method": self.row.method,
            "batches": self.batches,
            "shots": self.shots,
            "rule": rule,
            **figures,
        }


def clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds of processor time, which a busy machine changes least."""
    started = time.process_time()
    result = call()
    return result, time.process_time() - started


def _measure(case: Case, model: nn.Module) -> dict[str, float]:
    tests = case.workload.tests
    return {
        "accuracy": case.workload.accuracy(model, tests[case.task]),
        "original": case.workload.accuracy(model, tests[""]),
    }


def _blocks_in(update: Update) -> int:
    """How many blocks of the network get something."""
    changed = [name.split(".") for name in update if update.norm_of(name) > 0]
    return len({words[1] for words in changed if words[0] == "blocks"})


def _alpha_by_labels(transported: Transported, case: Case, validation: tuple[Tensor, Tensor]) -> float:
    """By accuracy on labelled images that are no test images; the nearest to 1 of equals."""
    target = case.pair.target
    found = {alpha: case.workload.accuracy(transported.applied_to(target, alpha), validation) for alpha in ALPHAS}
    return max(ALPHAS, key=lambda alpha: (found[alpha], -abs(alpha - 1)))


def _run_auto(case: Case, row: Row) -> dict[str, Any]:
    generic = list(case.pair.generic().split(BATCH)) if row.generic else None
    tuned = case.pair.tuned_source(case.task)

    def call() -> Any:
        return ib.transport(
            case.pair.source,
            tuned,
            case.pair.target,
            case.inputs,
            readout=case.workload.readout,
            generic=generic,
            seed=case.pair.seed,
        )

    result, seconds = clocked(call)
    return {
        "alpha": result.metrics["alpha"],
        "chosen": result.method,
        "choice": result.verdict.choice,
        "verdict": str(result.verdict),
        "explained": {name: figures["effect_explained"] for name, figures in result.candidates.items()},
        "seconds": seconds,
        "norm_error": result.metrics["norm_ratio"] - 1,
        **_measure(case, result.model),
    }


# ---------------------------------------------------------------------- on disk


class Store:
    """All cells, by key, in files of lines; each is written as soon as it is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells: dict[tuple[Any, ...], dict[str, Any]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text("utf-8").splitlines():
                try:
                    cell = json.loads(line)
                except json.JSONDecodeError:  # cut short by a kill
                    continue
                self.cells[key_of(cell)] = cell

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self.cells

    def add(self, cell: Mapping[str, Any]) -> None:
        cell = {**cell, "processor": PROCESSOR}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(cell)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(_rounded(cell)) + "\n")
        self.cells[key_of(cell)] = dict(cell)

    def drop(self, is_meant: Callable[[Mapping[str, Any]], bool]) -> int:
        """Forget cells, so that they are run again."""
        left = {key: cell for key, cell in self.cells.items() if not is_meant(cell)}
        dropped = len(self.cells) - len(left)
        lines: dict[Path, list[str]] = {path: [] for path in self.folder.glob("*.jsonl")}
        for cell in left.values():
            lines.setdefault(self._path(cell), []).append(json.dumps(_rounded(cell)))
        for path, held in lines.items():
            partial = path.with_suffix(".partial")
            partial.write_text("".join(f"{line}\n" for line in held), "utf-8")
            os.replace(partial, path)
        self.cells = left
        return dropped

    def of(self, **wanted: Any) -> list[dict[str, Any]]:
        """The cells with these fields."""
        return [cell for cell in self.cells.values() if all(cell.get(key) == value for key, value in wanted.items())]

    def _path(self, cell: Mapping[str, Any]) -> Path:
        seed = f"-seed{cell['seed']}" if cell["pair"] in PAIRS else ""
        return self.folder / f"{cell['pair']}{seed}.jsonl"


def key_of(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("pair", "seed", "task", "row", "batches", "shots", "rule"))


def _rounded(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in cell.items()}
