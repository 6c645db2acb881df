"""What an adaptation returns: the model for the target, the table of methods, the bound and the verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import nn

from interbasin.evaluate.bootstrap import Interval
from interbasin.evaluate.transfer import TransferBound
from interbasin.jobs.adapt.feature_map import AlignmentStep
from interbasin.jobs.adapt.verdict import Verdict
from interbasin.outcome import Draft, Result
from interbasin.outcome.plots import bar_chart, line_chart
from interbasin.text import printable


@dataclass(frozen=True)
class AdaptedRow:
    """One method of the table.

    Attributes:
        method, group, trial: What was run, and which trial was chosen by its held-out loss.
        error_valid: On held-out samples, by the task's metric.
        score_valid, low, high: The mean error per sample, by which methods are compared, and its 95 % interval. It is
            the metric itself where that is a mean over samples.
        fold_errors: Of each fold.
        error_test: On test data; None without, or where the method was not fitted to all samples.
        steps: Of gradients, both stages together.
        seconds: Of one fit, by stage, the mean over folds.
        bound: Terms of the bound, where the method has features.
        tried: Held-out loss and error by trial, and on how many folds; rates are chosen on the first two.
    """

    method: str
    group: str
    trial: str
    loss_valid: float
    error_valid: float
    score_valid: float
    low: float
    high: float
    fold_errors: tuple[float, ...]
    error_test: float | None
    steps: int
    seconds: Mapping[str, float]
    bound: Mapping[str, float] = field(default_factory=dict)
    tried: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Adaptation(Result):
    """A model for the target.

    ``metrics`` hold ``error_valid`` and, with test data, ``error_test`` of the method that was taken; for a method with
    features the terms of the bound: ``fa``, ``fld``, ``fld_hard``, ``fld_crossed``, ``tf``, ``err_source``,
    ``err_target``, ``bound`` (the paper's form) and ``bound_direct``, ``omega`` and ``fa_floor``.

    Attributes:
        model: Inputs -> logits or values; for text-like sources too, inputs are the target's.
        method, trial: What was taken.
        verdict: Which case it is.
        table: One row for each method that was run, in the order of the table of methods.
        bound: The terms of the bound for the model; None where the method has no features.
        looks: At stage 1 of the model, where it has one.
        scores_test: One error per test sample, by method.
        blueprint: What `load_adapted` needs beside the weights.
    """

    job: ClassVar[str] = "adapt"
    headline: ClassVar[tuple[str, ...]] = ("error_valid", "error_test", "bound_direct")

    model: nn.Module
    method: str
    trial: str
    verdict: Verdict
    table: tuple[AdaptedRow, ...] = ()
    bound: TransferBound | None = None
    looks: tuple[AlignmentStep, ...] = ()
    scores_test: Mapping[str, Any] = field(default_factory=dict)
    blueprint: Mapping[str, Any] = field(default_factory=dict)

    def write(self, draft: Draft) -> None:
        """Add the weights of the model and what `load_adapted` needs, the table, the verdict and the plots."""
        draft.write_checkpoint(self.model)
        if self.blueprint:
            draft.text("adaptation.json", json.dumps(dict(self.blueprint), indent=2) + "\n")
        draft.text("verdict.txt", "\n".join(map(printable, [str(self.verdict), *self.notes])) + "\n")
        draft.text("table.json", json.dumps([summarize_row(row) for row in self.table], indent=1) + "\n")
        if self.table:
            draft.table("methods", self._columns())
            draft.plot("methods-plot", self._chart())
        if self.bound is not None:
            terms = self.bound.metrics()
            figures = {"omega": self.bound.omega, **terms}
            draft.table("bound", {"term": list(figures), "nats": list(figures.values())})
            draft.plot("bound-plot", _bound_chart(self.method, terms))
        if self.looks:
            steps = [float(look.step) for look in self.looks]
            curves = {
                "alignment (FA)": [look.alignment for look in self.looks],
                "distortion (FLD, cross-fitted)": [look.distortion for look in self.looks],
            }
            draft.table("alignment", {"step": steps, **curves, "both": [look.gap for look in self.looks]})
            series = {name: (steps, values) for name, values in curves.items()}
            title = f"Stage 1 of {self.method}: the gap between source and target"
            draft.plot("alignment-plot", line_chart(series, title=title, x_label="step", y_label="nats"))

    def _columns(self) -> dict[str, list[Any]]:
        return {
            "method": [row.method for row in self.table],
            "group": [row.group for row in self.table],
            "trial": [row.trial for row in self.table],
            "error_valid": [row.error_valid for row in self.table],
            "score_valid": [row.score_valid for row in self.table],
            "low": [row.low for row in self.table],
            "high": [row.high for row in self.table],
            "error_test": [math.nan if row.error_test is None else row.error_test for row in self.table],
            "steps": [float(row.steps) for row in self.table],
            "seconds": [sum(row.seconds.values()) for row in self.table],
        }

    def _chart(self) -> str:
        """Errors of all methods on held-out samples; beside them those on test data, where all have one."""
        errors = {row.method: row.error_valid for row in self.table}
        # Intervals are of the mean error per sample, which is another number for metrics over all samples together.
        is_mean = all(math.isclose(row.error_valid, row.score_valid, rel_tol=1e-6) for row in self.table)
        ends = {row.method: (row.low, row.high) for row in self.table} if is_mean else {}
        on_test = {row.method: row.error_test for row in self.table if row.error_test is not None}
        metric = str(self.request.get("metric", "error"))
        note = f"Verdict: {self.verdict.advice}. Fitted: {self.method}."
        if len(on_test) < len(errors):
            return bar_chart(
                errors, title="Error on held-out samples", x_label=metric, note=note, whiskers=ends or None
            )
        both = {"held-out": errors, "test": on_test}
        whiskers = {"held-out": ends} if ends else None
        return bar_chart(both, title="Error by method", x_label=metric, note=note, whiskers=whiskers)


def _bound_chart(method: str, terms: Mapping[str, float]) -> str:
    """The terms of the bound, the two forms of it, and what they stand above."""
    names = {
        "error of the source": "err_source",
        "alignment (FA)": "fa",
        "the same, source to itself": "fa_floor",
        "distortion (FLD)": "fld",
        "distortion, cross-fitted": "fld_crossed",
        "target fitting (TF)": "tf",
        "bound, the paper's form": "bound",
        "bound, direct form": "bound_direct",
        "entropy of the labels": "label_entropy",
        "loss of the target": "err_target",
    }
    bars = {name: terms[key] for name, key in names.items() if math.isfinite(terms.get(key, math.nan))}
    note = "Dashed: the loss of the target. A bound beyond the labels' entropy says nothing."
    return bar_chart(bars, title=f"The bound for {method}", x_label="nats", note=note, baseline="loss of the target")


def summarize_row(row: AdaptedRow) -> dict[str, Any]:
    """A row fit for JSON: what is not finite is None."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: plain(value) for name, value in asdict(row).items()}


def summarize_verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict fit for JSON."""

    def ends(interval: Interval) -> dict[str, float]:
        return {"value": interval.value, "low": interval.low, "high": interval.high}

    figures = {name: ends(interval) for name, interval in verdict.figures.items()}
    return {"choice": verdict.choice, "text": str(verdict), "figures": figures, "methods": dict(verdict.methods)}
