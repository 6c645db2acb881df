"""Cells of the cross-modal benchmark: one JSON each, written when it is done; what is done is not done again.

- a *table* is all methods on one target of one source, with so many labels and one seed: a comparison by ``ib.adapt``;
- *longer* is naive fine-tuning and from scratch at ten times the steps, with the rates that were chosen for the table;
- *time* is what one fit of each method that trains takes, by stage, several times by turns in one process;
- *specialists* are networks made for fields, or MiniRocket for time series, on a target, whatever the source;
- *stage one* looks at the alignment by itself: the semantic gap and the target's error as it goes on, where features of
  source and target lie, and what becomes of both as omega is changed (`cross_modal_stage_one`).
"""

from __future__ import annotations

import json
import math
import operator
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import interbasin as ib
from cross_modal_sources import source_case
from cross_modal_specialists import run_specialist, specialists_of
from cross_modal_stage_one import look_at_stage_one, make_setup
from cross_modal_targets import ALL, Target, target_case
from interbasin.errors import FileError
from interbasin.evaluate.bootstrap import Bootstrap
from interbasin.jobs.adapt.methods import METHODS, trials_of
from interbasin.jobs.adapt.result import summarize_row, summarize_verdict
from interbasin.jobs.adapt.validation import answer, fit

STEPS, BATCH, LONGER = 150, 16, 10
STATE = Path(__file__).parent / ".cache" / "cross_modal"  # of cells that were begun
TABLE, LONG, TIME, SPECIALISTS, STAGE_ONE = "table", "longer", "time", "specialists", "stage-one"
TIMED, ROUNDS = ("naive", "fa", "orca", "pare", "mona", "recraft"), 3
FROZEN = "recraft-transport"  # the paper's own second stage: labels by way of the source's, with features as they are
GROUPS = {"transfer": "transfer", "align": "align", "scratch": "scratch", "simple-model": "simple"}  # of verdicts


@dataclass(frozen=True)
class Work:
    """A cell that can be run.

    Attributes:
        kind: One of the five above.
        source: Of `cross_modal_sources.SOURCES`; empty for specialists.
        target: Of `cross_modal_targets.TARGETS`.
        labels: How many; `ALL` for all there are.
        seed: Of all that is drawn.
        methods: Of a table; all that there are where it is empty.
        steps: Of supervised training.
        options: Others of ``ib.adapt``.
    """

    kind: str
    source: str
    target: str
    labels: int
    seed: int
    methods: tuple[str, ...] = ()
    steps: int = STEPS
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Of its file."""
        words = [*([] if self.kind == TABLE else [self.kind]), *([self.source] if self.source else []), self.target]
        return "-".join([*words, str(self.labels or "all"), f"seed{self.seed}"])

    @property
    def wanted(self) -> set[str]:
        """Methods that a table is to have, of those that exist."""
        return set(self.methods or METHODS) & set(METHODS)

    def is_done(self, cell: Mapping[str, Any] | None) -> bool:
        """Whether a cell that is there has all that is asked for."""
        if cell is None or cell["steps"] != self.steps:
            return False
        return self.kind != TABLE or self.wanted <= {row["method"] for row in cell["rows"]}

    def run(self, folder: Path) -> dict[str, Any]:
        """The cell; ``folder`` holds those that are there."""
        started, clock = time.process_time(), time.monotonic()
        target = target_case(self.target, self.source, self.labels, self.seed)
        cell = {
            "kind": self.kind,
            "source": self.source,
            "target": self.target,
            "labels": self.labels,
            "seed": self.seed,
            "steps": self.steps,
            "task": target.task,
            "metric": target.metric,
            "samples": len(target.train[0]),
            "test_samples": len(target.test[0]),
            **self._figures(target, folder),
            "processor": frame.environment(seed=self.seed, threads=1)["processor"],
            "process_seconds": time.process_time() - started,
            "seconds": time.monotonic() - clock,
        }
        return _plain(cell)

    def _figures(self, target: Target, folder: Path) -> dict[str, Any]:
        if self.kind == SPECIALISTS:
            names = specialists_of(target)
            return {"rows": [{"method": name, **run_specialist(name, target, self.steps, self.seed)} for name in names]}
        if self.kind == STAGE_ONE:
            return look_at_stage_one(self.source, target, self.seed, **self.options)
        if self.kind == LONG:
            return {"rows": self._train_longer(target, Store(folder))}
        if self.kind == TIME:
            return {"rows": self._time_methods(target)}
        case = source_case(self.source)
        methods = [name for name in METHODS if name in self.wanted]

        def adapt() -> Any:
            return ib.adapt(
                case.source,
                (case.inputs, case.labels),
                target.train,
                test=target.test,
                task=target.task,
                method="auto",
                compare=methods,
                steps=self.steps,
                batch_size=BATCH,
                seed=self.seed,
                state=STATE / self.name,
                **self.options,
            )

        try:
            return figures_of(adapt())
        except FileError:  # what was begun is of other settings or of another version, and worth nothing
            shutil.rmtree(STATE / self.name)
            return figures_of(adapt())

    def _train_longer(self, target: Target, store: Store) -> list[dict[str, Any]]:
        """Two methods, each with the rate that held-out samples chose at the usual number of steps."""
        table = replace(self, kind=TABLE).name
        cell = store.cells.get(table)
        if cell is None:
            raise RuntimeError(f"{self.name} takes its rates from the table {table}, which is not there; run it first.")
        chosen = {row["method"]: row["trial"] for row in cell["rows"]}
        setup = make_setup(self.source, target, self.seed, steps=self.steps)
        rows = []
        for method in ("scratch", "naive"):
            trial = next(trial for trial in trials_of(method, setup) if trial.name == chosen[method])
            fitted = fit(setup, method, torch.arange(len(target.train[0])), trial)
            outputs = answer(fitted, target.test[0]).outputs
            error = target.error_of(outputs, target.test[1])
            rows.append({"method": method, "trial": trial.name, "error_test": error, "seconds": fitted.seconds})
        return rows

    def _time_methods(self, target: Target) -> list[dict[str, Any]]:
        """Seconds of one fit, by stage: medians over rounds in which methods take turns.

        All of them train everything under a new head; where there are classes, recraft has its other predictor too.
        """
        setup = make_setup(self.source, target, self.seed, steps=self.steps, **self.options)
        timed = {method: (method, "head") for method in TIMED}
        if target.task == "classification":
            timed[FROZEN] = ("recraft", "transport")
        rounds: dict[str, list[Mapping[str, float]]] = {name: [] for name in timed}
        for _ in range(ROUNDS):
            for name, (method, predictor) in timed.items():
                trial = next(each for each in trials_of(method, setup) if each.options["predictor"] == predictor)
                alone = replace(setup, alignments={})  # nothing that was aligned before is at hand
                rounds[name].append(fit(alone, method, torch.arange(len(target.train[0])), trial).seconds)
        totals = {method: [sum(seconds.values()) for seconds in held] for method, held in rounds.items()}
        return [
            {
                "method": method,
                "seconds": {stage: statistics.median(each[stage] for each in held) for stage in held[0]},
                "share_of_orca": statistics.median(map(operator.truediv, totals[method], totals["orca"])),
            }
            for method, held in rounds.items()
        ]


def figures_of(result: Any) -> dict[str, Any]:
    """What is kept of an adaptation."""
    scores = {name: values.double().cpu().numpy() for name, values in result.scores_test.items()}
    rows = []
    for row in result.table:
        entry = summarize_row(row)
        key = row.method if row.method in scores else f"{row.method}-{row.trial}"
        if key in scores:
            bootstrap = Bootstrap(len(scores[key]))
            interval = bootstrap.interval(scores[key])
            entry["test_score"], entry["test_low"], entry["test_high"] = interval.value, interval.low, interval.high
            if "naive" in scores:
                gap = bootstrap.interval(scores[key] - scores["naive"])
                entry["above_naive"] = {"value": gap.value, "low": gap.low, "high": gap.high}
        rows.append(entry)
    return {
        "rows": rows,
        "auto": {
            "method": result.method,
            "trial": result.trial,
            "error_valid": result.metrics["error_valid"],
            "error_test": result.metrics["error_test"],
        },
        "verdict": summarize_verdict(result.verdict),
        "agreement": agreement(result.verdict.choice, result.verdict.methods, rows),
        "looks": [{"step": look.step, "fa": look.alignment, "fld": look.distortion} for look in result.looks],
        "metrics": dict(result.metrics),
        "notes": list(result.notes),
        "timings": dict(result.timings),
    }


def agreement(choice: str, methods: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the verdict of held-out samples agrees with the test data.

    A group is as good as the winner's if the interval of its best row on the test data reaches down to that of the
    winner. "Too few" agrees where more than one group does that. The narrower reading, by the row that stood for the
    group in the verdict, is kept beside it.
    """
    held = {row["method"]: row for row in rows if row.get("test_low") is not None}
    winner = min(held.values(), key=lambda row: row["test_score"])

    def as_good(members: Mapping[str, str]) -> set[str]:
        near = {group for group, name in members.items() if held[name]["test_low"] <= winner["test_high"]}
        return near | {winner["group"]}

    def agrees(near: set[str]) -> bool:
        return len(near) > 1 if choice == "too-few" else GROUPS[choice] in near

    groups = {row["group"] for row in held.values()}
    best = {
        group: min((row for row in held.values() if row["group"] == group), key=lambda row: row["test_score"])["method"]
        for group in groups
    }
    named = {group: name for group, name in methods.items() if name in held}
    return {
        "winner": winner["method"],
        "group": winner["group"],
        "as_good": sorted(as_good(best)),
        "agrees": agrees(as_good(best)),
        "agrees_by_name": agrees(as_good(named)),
    }


def _plain(value: Any) -> Any:
    """Fit for JSON, with six digits; what is not finite is None."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


# ---------------------------------------------------------------------- on disk


class Store:
    """All cells of a folder, by the names of their files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells: dict[str, dict[str, Any]] = {}
        self.load()

    def load(self) -> None:
        """Read what is there."""
        self.cells = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(self.folder.glob("*.json"))}

    def is_done(self, work: Work) -> bool:
        return work.is_done(self.cells.get(work.name))

    def add(self, work: Work, cell: Mapping[str, Any]) -> None:
        frame.save(self.folder / f"{work.name}.json", cell)
        self.cells[work.name] = dict(cell)

    def of(self, kind: str = TABLE, **wanted: Any) -> list[dict[str, Any]]:
        """The cells of a kind, with these fields."""
        return [
            cell
            for cell in self.cells.values()
            if cell["kind"] == kind and all(cell.get(key) == value for key, value in wanted.items())
        ]


__all__ = ["ALL", "BATCH", "LONG", "LONGER", "SPECIALISTS", "STAGE_ONE", "STEPS", "TABLE", "TIME", "Store", "Work"]
