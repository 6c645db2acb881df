"""The cells of the transport benchmark: one method, on one task of one pair of networks, with so many batches.

A cell is one JSON object, a line of ``results/transport_quality/<pair>-seed<n>.jsonl``. A line that a kill cut short is
dropped when the file is read again, and what is there is not run twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import interbasin as ib
from interbasin.errors import InterbasinError
from interbasin.jobs.transport.bases import Bases, relate
from interbasin.jobs.transport.choosing import ALPHAS, Referee, try_method
from interbasin.jobs.transport.compared import COMPARED
from interbasin.jobs.transport.judging import Judge, Part
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.update import Update
from transport_workload import BATCH, FULL, QUICK, Pair, Workload

ONE, LABEL_FREE, VALIDATED = "1", "label-free", "validation"  # how alpha is found
VALIDATION_ROWS = 1_000
RATES = (3e-4, 1e-3, 3e-3)
STEPS = 400
# Names of pairs -> widths of A and B, and depths; None: as the workload has them.
PAIRS: dict[str, tuple[tuple[int, int] | None, tuple[int, int]]] = {
    "wider": (None, (3, 3)),
    "narrower": ((192, 128), (3, 3)),
    "same": ((128, 128), (3, 3)),
    "deeper": (None, (2, 4)),
    "shallower": (None, (4, 2)),
    "quick": (None, (3, 3)),
}


# ---------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """A line of the tables: a method and how it is called.

    Attributes:
        name: Of the line.
        method: In `METHODS` or `COMPARED`; ``"auto"`` is the job itself, ``"tuned-target"`` B fine-tuned with labels.
        variant: Of the method; None: its default.
        options: Fields of `Options` that differ from the defaults.
        settings: What the method's function takes besides.
        generic: Whether it sees the generic batches.
        rules: How alpha is found: for methods that have one.
        labels: Whether it sees labels.
        inner: Whether the update of the input embedding and of the head is left out, as in the paper.
        depth: How blocks are paired where the networks are not equally deep.
    """

    name: str
    method: str
    variant: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    generic: bool = False
    rules: tuple[str, ...] = (ONE,)
    labels: bool = False
    inner: bool = False
    depth: str = "auto"

    @property
    def needs_data(self) -> bool:
        """Whether the number of batches matters."""
        if self.method in ("auto", "tuned-target"):
            return self.method == "auto"
        return "data" in (METHODS if self.method in METHODS else COMPARED)[self.method].needs

    @property
    def needs_shapes(self) -> bool:
        return self.method == "direct" or (self.method in COMPARED and "shapes" in COMPARED[self.method].needs)

    def is_called(self, names: Sequence[str]) -> bool:
        return self.name in names or self.method in names

    def __call__(self, task: Task, variant: str = "") -> Transported:
        method = (METHODS if self.method in METHODS else COMPARED)[self.method]
        variant = variant or (method.variant(self.variant) if method.variants else "")
        return method.function(task, variant, **self.settings)


ALL_RULES = (ONE, LABEL_FREE, VALIDATED)
REFERENCES = (
    Row("none", "none"),
    Row("tuned-source", "tuned-source"),
    Row("tuned-target", "tuned-target", labels=True),
    *(Row(name, name) for name in ("written-in",) if name in COMPARED),
)
METHOD_ROWS = (
    Row("theseus-modules-inner", "theseus", "modules", inner=True, rules=ALL_RULES),
    Row("theseus-modules", "theseus", "modules", rules=ALL_RULES),
    Row("theseus-spaces", "theseus", "spaces", rules=ALL_RULES),
    Row("theseus-spaces-rms", "theseus", "spaces", {"scale": "rms"}, rules=ALL_RULES),
    Row("regression", "regression"),
    Row("regression-generic-tuned", "regression", options={"generic_target": "tuned"}, generic=True),
    Row("regression-keep", "regression", generic=True),
    Row("head-ridge", "head-ridge"),
    Row("head-ridge-keep", "head-ridge", generic=True),
)
AUTO_ROWS = (Row("auto", "auto"), Row("auto-keep", "auto", generic=True))
BASELINE_ROWS = (
    Row("padded", "padded", rules=(ONE, VALIDATED)),
    Row("random", "random", rules=(ONE, VALIDATED)),
    Row("cross-lora", "cross-lora", rules=(ONE, VALIDATED)),
    Row("random-through-maps", "random-through-maps", rules=ALL_RULES),
    Row("pinv", "pinv", rules=ALL_RULES),
    Row("pinv-tikhonov", "pinv-tikhonov", rules=ALL_RULES),
    Row("pinv-orthogonal", "pinv-orthogonal", rules=ALL_RULES),
    Row("linear", "linear", "dual", rules=ALL_RULES),
    Row("linear-transpose", "linear", "transpose", rules=ALL_RULES),
    Row("linear-ridge", "linear-ridge", "dual", rules=ALL_RULES),
    Row("linear-ridge-transpose", "linear-ridge", "transpose", rules=ALL_RULES),
    Row("linear-orthogonal", "linear-orthogonal", rules=ALL_RULES),
    Row("ortho", "ortho"),
)
SAME_SHAPE_ROWS = (
    Row("direct", "direct", rules=ALL_RULES),
    Row("transfusion", "transfusion", rules=ALL_RULES),
    Row("gradfix", "gradfix", labels=True, rules=ALL_RULES),
)
LABEL_ROWS = (
    Row("label-ridge", "label-ridge", labels=True),
    Row("bico", "bico", labels=True, rules=ALL_RULES),
    Row("theseus+gradfix", "theseus+gradfix", labels=True, rules=ALL_RULES),
)
ABLATION_ROWS = (
    Row("theseus-spaces-inner", "theseus", "spaces", inner=True),
    Row("theseus-spaces-uncentred", "theseus", "spaces", {"centered": False}),
    Row("theseus-modules-uncentred", "theseus", "modules", {"centered": False}),
    Row("theseus-spaces-drop", "theseus", "spaces", {"unobserved": "drop"}),
    Row("regression-uncentred", "regression", options={"centered": False}),
)
DEPTH_ROWS = (
    Row("theseus-spaces-even", "theseus", "spaces", depth="even"),
    Row("regression-even", "regression", depth="even"),
)


def distillations(start: str, rates: Sequence[float] = RATES, *, generic: bool = False) -> tuple[Row, ...]:
    """Distillation at several rates."""
    stem = "distil" + ("-transported" if start == "transported" else "") + ("-keep" if generic else "")
    return tuple(
        Row(f"{stem}-{rate:g}", "distil", start, settings={"rate": rate, "steps": STEPS}, generic=generic)
        for rate in rates
    )


# ---------------------------------------------------------------------- what a cell is run on


@lru_cache(maxsize=2)
def pair_of(name: str, seed: int) -> Pair:
    widths, depths = PAIRS[name]
    workload = QUICK if name == "quick" else FULL
    return workload.pair(seed, widths, depths)


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
            update,
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
def bases_of(pair: str, seed: int, task: str, batches: int, shots: int, depth: str) -> Bases:
    case = case_of(pair, seed, task, batches, shots)
    return relate(case.pair.source, case.pair.target, case.inputs, depth=depth)  # type: ignore[arg-type]


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
        else:
            yield from self._run_row(case)

    def _run_row(self, case: Case) -> Iterator[dict[str, Any]]:
        bases = bases_of(self.pair, self.seed, self.task, self.batches, self.shots, self.row.depth)
        task = case.given_to(self.row, bases)
        transported, seconds = clocked(lambda: self.row(task))
        before = task.update.norm()
        norm_error = None if transported.model is not None else transported.update.norm() / before - 1
        measured: dict[float, dict[str, float]] = {}
        validation = validation_of(self.pair, self.seed, self.task)
        for rule in self.rules:
            alpha, extra = 1.0, 0.0
            if rule == LABEL_FREE:
                alpha, extra = clocked(lambda: _alpha_without_labels(task, self.row))
            elif rule == VALIDATED:
                alpha, extra = clocked(lambda: _alpha_by_labels(transported, case, validation))
            if alpha not in measured:
                measured[alpha] = _measure(case, transported.applied_to(case.pair.target, alpha))
            yield self._cell(rule, alpha=alpha, seconds=seconds + extra, norm_error=norm_error, **measured[alpha])

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


def _alpha_without_labels(task: Task, row: Row) -> float:
    """By the divergence from tuned A on a quarter of the inputs, with the method fitted on the others."""
    trial = task.on(Part(task.data, held=False))
    referee = Referee(Judge(trial, Part(task.data, held=True)))
    return try_method(trial, referee, row.method, "", ALPHAS, row).alpha


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
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(cell)
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
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
