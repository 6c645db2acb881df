"""How well a translation does on pairs that it was not fitted on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from interbasin.checks import require_whole
from interbasin.errors import FitError
from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.evaluate.retrieval import Labels, nearest, recall, reciprocal_rank
from interbasin.jobs.translate.rows import paired_rows
from interbasin.jobs.translate.translator import Translator
from interbasin.outcome import Draft, Result
from interbasin.outcome.plots import bar_chart

Key = TypeVar("Key")
DEPTH = 100  # places that are looked at for the right row
MEANINGS = {
    "cosine": "of translated rows with the right ones, about the mean of the latter; 1 at best",
    "recall_1": "share of rows whose nearest target is the right one",
    "recall_10": "share of rows with the right one among the nearest 10",
    "reciprocal_rank": "one over the place of the right one, 0 beyond place 100",
    "error": "squared error over the target's variance; 0 at best, 1 for giving the mean",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeldOut(Result):
    """What was measured; ``metrics`` hold all figures by name, intervals as ``NAME_low`` and ``NAME_high``.

    Attributes:
        figures: By name, with intervals over the pairs.
        untranslated: The same for the source's rows as they are, where both spaces are of one width.
        pairs: How many there were.
    """

    figures: Mapping[str, Interval] = field(default_factory=dict)
    untranslated: Mapping[str, Interval] = field(default_factory=dict)
    pairs: int = 0

    job = "translate evaluate"
    headline = ("cosine", "recall_1")

    def write(self, draft: Draft) -> None:
        """Add a plot of the figures."""
        bars = {"translated": {name: interval.value for name, interval in self.figures.items()}}
        if self.untranslated:
            bars["as it is"] = {name: interval.value for name, interval in self.untranslated.items()}
        draft.plot("figures", bar_chart(bars, title="On pairs that were held out", note=f"{self.pairs:,} pairs"))


def evaluate_translation(
    translator: Translator, x: Any, y: Any, *, metric: str = "cosine", draws: int = 1000, seed: int = 0
) -> HeldOut:
    """Cosine, retrieval and error of a translation on pairs; give others than it was fitted on.

    Retrieval looks for the right row among all targets here, so its figures fall as these become more: they compare
    translations, and are no forecast for an index. `audit` is.

    Args:
        translator: Fitted.
        x, y: The pairs.
        metric: How rows are compared in retrieval.
        draws, seed: Of the intervals.

    Raises:
        FitError: if it gives cosines with anchors, which nothing can be compared with.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> x = generator.normal(size=(300, 6))
        >>> found = evaluate_translation(Translator(method="ridge").fit(x[:200], -x[:200]), x[200:], -x[200:])
        >>> found.metrics["recall_1"]
        1.0
    """
    if translator.chosen_ == "relative":
        raise FitError("Cosines with anchors have nothing to be compared with; evaluate a translation.")
    require_whole("seed", seed, least=0)
    started = time.perf_counter()
    source, target = paired_rows(x, y)
    translated = torch.as_tensor(translator.transform(source))
    translator.score(source[:2], target[:2])  # which refuses another width
    bootstrap = Bootstrap(len(source), require_whole("draws", draws, least=1), seed=seed)
    figures = _measure(translated, target, metric, bootstrap)
    untranslated = _measure(source, target, metric, bootstrap) if source.shape[1] == target.shape[1] else {}
    metrics: dict[str, float] = {"pairs": len(source)}
    for name, interval in figures.items():
        metrics |= interval_metrics(name, interval)
    metrics |= {f"{name}_untranslated": interval.value for name, interval in untranslated.items()}
    return HeldOut(
        metrics=metrics,
        figures=figures,
        untranslated=untranslated,
        pairs=len(source),
        request={"metric": metric, "draws": draws, "seed": seed},
        timings={"evaluate": time.perf_counter() - started},
    )


def interval_metrics(name: str, interval: Interval, suffix: str = "") -> dict[str, float]:
    """A figure and the ends of its interval, as ``metrics`` name them."""
    ends = (("", interval.value), ("_low", interval.low), ("_high", interval.high))
    return {f"{name}{end}{suffix}": value for end, value in ends}


def intervals_of(bootstrap: Bootstrap, columns: Mapping[Key, NDArray[Any]]) -> dict[Key, Interval]:
    """The interval of the mean of each column."""
    return dict(zip(columns, bootstrap.intervals(np.stack(list(columns.values()), 1)), strict=True))


def _measure(rows: torch.Tensor, right: torch.Tensor, metric: str, bootstrap: Bootstrap) -> dict[str, Interval]:
    wide, target = rows.double(), right.double()
    mean = target.mean(0)
    cosine = torch.nn.functional.cosine_similarity(wide - mean, target - mean, dim=1)
    variance = (target - mean).square().sum(1).mean().clamp(min=1e-300)
    ranking = nearest(rows, right, min(DEPTH, len(right)), metric).rows
    labels = Labels.of(np.arange(len(right)), len(right), len(right))
    columns: dict[str, NDArray[Any]] = {
        "cosine": cosine.numpy(),
        "recall_1": recall(ranking, labels, 1),
        "recall_10": recall(ranking, labels, 10),
        "reciprocal_rank": reciprocal_rank(ranking, labels, DEPTH),
        "error": ((wide - target).square().sum(1) / variance).numpy(),
    }
    return intervals_of(bootstrap, columns)
