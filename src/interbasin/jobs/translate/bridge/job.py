"""A bridge: the folder that carries a translation to where queries are embedded, without this package."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interbasin.errors import DataError
from interbasin.jobs.translate.bridge.steps import Steps
from interbasin.jobs.translate.bridge.thresholds import MatchedThreshold, Recalibration
from interbasin.jobs.translate.translator import Translator
from interbasin.outcome import Outcome, new_outcome

# As it is written beside the arrays, and shown in the documentation.
LOADER = '''\
import numpy as np


def load_bridge(path):
    """The function from rows of the source, (rows, width), to rows of the target."""
    b = dict(np.load(path))

    def bridge(x):
        u = (np.asarray(x, np.float64) - b["mean"]) / b["scale"]
        if b["floor"] >= 0:
            norm = np.linalg.norm(u, axis=-1, keepdims=True)
            u = np.where(norm > b["floor"], u / np.maximum(norm, 1e-30), 0)
        y = u @ b["matrix"].T + b["offset"]
        if b["length"] >= 0:
            y *= b["length"] / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-30)
        return y

    return bridge
'''


@dataclass(frozen=True, eq=False)
class Bridge:
    """A translation as a function that stands alone.

    Attributes:
        steps: Its arrays; calling them translates.
        card: What the vectors are, as far as it is known.
        scores: From old scores to new ones, if that was fitted.
        threshold: An old threshold and the new one, if they were matched.
    """

    steps: Steps
    card: Mapping[str, str]
    scores: Recalibration | None = None
    threshold: MatchedThreshold | None = None

    def __call__(self, rows: Any) -> Any:
        """Rows of the source in the target's space."""
        return self.steps(rows)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        onnx: bool = True,
        check: Any = None,
        request: Mapping[str, Any] | None = None,
        inputs: Mapping[str, str | os.PathLike[str]] | None = None,
        notes: Sequence[str] = (),
        force: bool = False,
    ) -> Outcome:
        """Write ``bridge.npz`` and ``load_bridge.py``, ``bridge.onnx`` if asked, ``bridge.json``, as an outcome.

        Args:
            folder: The destination.
            onnx: Also write a graph, and run it to compare.
            check: Rows to compare on; by default some about the source's mean.
            request: What was asked.
            inputs: Name to path; the files behind them are hashed.
            notes: What a reader should know of how scores were made.
            force: Replace an earlier outcome.

        Raises:
            MissingExtraError: for the graph, without the extra ``vectors``.
        """
        source, target = self.steps.widths
        asked = {"onnx": onnx, **(request or {})}
        with new_outcome(folder, job="translate bridge", request=asked, inputs=inputs, force=force) as out:
            np.savez(out.folder / "bridge.npz", **self.steps.arrays())  # type: ignore[arg-type]
            out.add("bridge", "file", "bridge.npz")
            out.text("load_bridge.py", LOADER)
            out.notes.extend(notes)
            out.metrics |= {"source_width": float(source), "target_width": float(target)}
            if onnx:
                from interbasin.jobs.translate.bridge.steps import check_graph, write_graph

                write_graph(out.folder / "bridge.onnx", self.steps, dict(self.card))
                rows = self._probes() if check is None else np.asarray(check)
                out.metrics["onnx_difference"] = check_graph(out.folder / "bridge.onnx", self.steps, rows)
                out.add("graph", "file", "bridge.onnx")
            document: dict[str, Any] = {"source_width": source, "target_width": target, "card": dict(self.card)}
            if self.threshold is not None:  # before the points, of which there are many
                document["threshold"] = self.threshold.to_json()
                out.metrics |= self.threshold.metrics()
                out.notes.extend(self.threshold.notes())
            if self.scores is not None:
                document["scores"] = self.scores.to_json()
                out.metrics["score_rank_correlation"] = self.scores.rank_correlation
                out.table("scores", {"old": self.scores.old.tolist(), "new": self.scores.new.tolist()})
            out.text("bridge.json", json.dumps(document, indent=2) + "\n")
        return out.outcome

    def _probes(self) -> Any:
        draws = np.random.default_rng(0)
        spread = max(abs(self.steps.mean).max(), 1.0) if self.steps.floor < 0 else self.steps.floor * 1e6
        return self.steps.mean + spread * draws.normal(size=(64, len(self.steps.mean))) * self.steps.scale


def bridge(
    translator: Translator, *, scores: Recalibration | None = None, threshold: MatchedThreshold | None = None
) -> Bridge:
    """A fitted translator as a function for queries that needs nothing but numpy, or an ONNX runtime.

    To search an old index with a new model, fit the translator from the new model's vectors to the old one's, and send
    every query through the bridge.

    Args:
        translator: Fitted.
        scores: From old scores to new ones; see `recalibrate`.
        threshold: An old threshold and the new one; see `match_threshold`.

    Raises:
        DataError: if the threshold is a number, which says nothing of new scores.

    Example:
        >>> draws = np.random.default_rng(0)
        >>> x = draws.normal(size=(100, 6))
        >>> translator = Translator(method="ridge").fit(x, x[:, ::-1] * 2)
        >>> bool(np.allclose(bridge(translator)(x[:3]), translator.transform(x[:3])))
        True
    """
    if threshold is not None and not isinstance(threshold, MatchedThreshold):
        raise DataError(
            f"A threshold is carried over by scores of the same pairs, old and new, found {threshold!r} alone; give "
            "threshold=match_threshold(old, new, threshold)."
        )
    return Bridge(Steps.of(translator), translator.card_.to_json(), scores, threshold)
