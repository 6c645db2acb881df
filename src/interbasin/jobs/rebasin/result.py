"""What re-basin returns: the aligned networks with figures and curves, and the folder that they are saved to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from interbasin.evaluate import Barrier
from interbasin.outcome import Draft, Result
from interbasin.outcome.plots import bar_chart, line_chart
from interbasin.text import plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.folding import save_folded

ERROR = "alignment_error_relative."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Rebasin(Result):
    """One network in the coordinates of another.

    ``metrics`` hold ``distance_before``, ``distance_after``, ``objective``, ``exact``, ``converged`` and
    ``output_change`` (the largest change of an output on the inputs, relative to the largest output); with data
    ``alignment_error.<space>``; with labels ``delta_loss_self`` and ``delta_accuracy_self``.

    Attributes:
        model: The source in the target's coordinates (and fine-tuned, where that was asked).
        alignment: The maps it went through.
        target: The network whose coordinates they are: the given one, or it with its norms folded.
        path: The objective on the way, the first before anything moved.
        runs: The objective of every restart.
        curves: The way to the target without alignment, with it, and after fine-tuning, where ``points`` were asked.
    """

    model: nn.Module
    alignment: Alignment
    target: nn.Module
    path: tuple[float, ...]
    runs: tuple[float, ...] = ()
    curves: Mapping[str, Barrier] = field(default_factory=dict)

    job = "rebasin"
    headline = ("distance_before", "distance_after", "delta_accuracy_self", "barrier_none", "barrier_original")

    def write(self, draft: Draft, *, like: Any = None) -> None:
        """Add the aligned network, the alignment, tables and plots to the outcome.

        The folder is itself a MODEL: the aligned network. A folded network lies in ``model``, beside the folded
        ``target``, because only these two share coordinates. ``like`` is the checkpoint whose configuration and
        tokenizer are copied along.
        """
        if self.request.get("stay_in_class", True):
            draft.write_checkpoint(self.model, like=like)
        else:
            folder = getattr(like, "path", like)
            folder = folder if folder is not None and os.path.isdir(folder) else None
            for name, network in (("model", self.model), ("target", self.target)):
                notes = save_folded(network, draft.folder / name, like=folder)
                draft.notes += [note for note in notes if note not in draft.notes]
                draft.add(name, "checkpoint", name)
        draft.add_alignment(self.alignment)
        self._write_objective(draft)
        self._write_errors(draft)
        self._write_curves(draft)

    def _write_objective(self, draft: Draft) -> None:
        steps = [float(step) for step in range(len(self.path))]
        draft.table("objective-values", {"step": list(range(len(self.path))), "value": list(self.path)})
        if len(steps) > 2:
            series = {str(self.request["method"]): (steps, list(self.path))}
            chart = line_chart(series, title="What the method minimises", x_label="step", y_label="objective")
            draft.plot("objective", chart)

    def _write_errors(self, draft: Draft) -> None:
        spaces = [name.removeprefix(ERROR) for name in self.metrics if name.startswith(ERROR)]
        if not spaces:
            return
        relative = {space: self.metrics[ERROR + space] for space in spaces}
        absolute = [self.metrics[f"alignment_error.{space}"] for space in spaces]
        draft.table("spaces", {"space": spaces, "error": absolute, "relative": list(relative.values())})
        chart = bar_chart(
            relative, title="Alignment error per space", x_label="relative to the energy of the target's activations"
        )
        draft.plot("alignment-error", chart)

    def _write_curves(self, draft: Draft) -> None:
        for measure in ("loss", "accuracy"):
            series = {
                name: (list(curve.t), list(getattr(curve, measure)))
                for name, curve in self.curves.items()
                if getattr(curve, measure) is not None
            }
            if series:
                t = next(iter(series.values()))[0]
                draft.table(
                    f"path-{measure}-values", {"t": t, **{name: values for name, (_, values) in series.items()}}
                )
                chart = line_chart(
                    series,
                    title=f"{measure.capitalize()} on the way from source to target",
                    x_label="t: 0 is the source, 1 the target",
                    y_label=measure,
                )
                draft.plot(f"path-{measure}", chart)

    def __repr__(self) -> str:
        method = [str(self.request[name]) for name in ("method", "variant") if name in self.request]
        kind = "exact" if self.metrics.get("exact") else "approximate"
        return _describe(self, type(self.model).__name__, *method, kind)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JointRebasin(Result):
    """Many networks in common coordinates.

    ``metrics`` hold ``spread_before``, ``spread_after``, ``exact`` (whether every network computes what it did before)
    and ``converged``.

    Attributes:
        models: The networks, each carried.
        alignments: Their maps to the common coordinates.
        spread: Squared distance of the models to their mean after each round; the first before anything moved.
        reference: Which network's coordinates they are; None for the universe.
    """

    models: tuple[nn.Module, ...]
    alignments: tuple[Alignment, ...]
    spread: tuple[float, ...]
    reference: int | None = None

    job = "rebasin-many"
    headline = ("spread_before", "spread_after")

    @property
    def converged(self) -> bool:
        """Whether the spread stopped falling before the limit of rounds."""
        return bool(self.metrics["converged"])

    def between(self, source: int, target: int) -> Alignment:
        """The maps from one network to another, through the common coordinates."""
        return self.alignments[target].inverse() @ self.alignments[source]

    def write(self, draft: Draft) -> None:
        """Add each network and its alignment, ``network-0``, ``alignment-0``, ..., and the spread per round."""
        for number, (model, alignment) in enumerate(zip(self.models, self.alignments, strict=True)):
            draft.write_checkpoint(model, name=f"network-{number}", place=f"network-{number}")
            draft.add_alignment(alignment, name=f"alignment-{number}")
        draft.table("spread-values", {"round": list(range(len(self.spread))), "value": list(self.spread)})

    def __repr__(self) -> str:
        where = "their universe" if self.reference is None else f"the coordinates of network {self.reference}"
        kind = "exact" if self.metrics["exact"] else "approximate"
        return _describe(self, f"{len(self.models)} x {type(self.models[0]).__name__} in {where}", kind)


def _describe(result: Result, *words: str) -> str:
    figures = [f"{name}={result.metrics[name]:.4g}" for name in result.headline if name in result.metrics]
    notes = [plural(len(result.notes), "note")] if result.notes else []
    return f"{type(result).__name__}({', '.join([*words, *figures, *notes])})"
