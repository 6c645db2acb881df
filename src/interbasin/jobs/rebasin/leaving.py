"""The folder that re-basin leaves: the aligned checkpoint, the alignment, metrics, tables and plots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interbasin.outcome import Outcome, new_outcome
from interbasin.outcome.plots import bar_chart, line_chart
from interbasin.wiring.folding import save_folded

if TYPE_CHECKING:
    from interbasin.jobs.rebasin.job import Rebasin
    from interbasin.outcome import Draft

__all__ = ["leave"]

ERROR = "alignment_error_relative."


def leave(
    result: Rebasin,
    folder: str | os.PathLike[str],
    *,
    like: Any = None,
    inputs: Mapping[str, str] | None = None,
    request: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Outcome:
    """Write the outcome folder, whole or not at all. It is itself a MODEL: the aligned network; a folded one
    lies in ``model``, beside the folded ``target``.

    Args:
        result: Of `rebasin`.
        folder: Where to.
        like: Checkpoint whose configuration and tokenizer go along.
        inputs: What the networks and data were, to be hashed.
        request: What was asked, where that is more than the result says.
        force: Replace an earlier outcome.
    """
    asked = {**(request or {}), **result.request}
    with new_outcome(
        folder,
        job="rebasin",
        request=asked,
        inputs=inputs,
        seed=asked.get("seed"),
        force=force,
        elapsed=sum(result.timings.values()),
    ) as out:
        out.metrics.update(result.metrics)
        out.timings.update(result.timings)
        out.notes.extend(result.notes)
        if asked.get("stay_in_class", True):
            out.write_checkpoint(result.model, like=like)
        else:
            _write_folded(out, result, like)
        out.add_alignment(result.alignment)
        out.table("objective-values", {"step": list(range(len(result.path))), "value": list(result.path)})
        if len(result.path) > 2:
            steps = [float(step) for step in range(len(result.path))]
            out.plot(
                "objective",
                line_chart(
                    {str(asked["method"]): (steps, list(result.path))},
                    title="What the method made small",
                    x_label="step",
                    y_label="objective",
                ),
            )
        _errors(out, result.metrics)
        _curves(out, result)
    return out.outcome


def _write_folded(out: Draft, result: Rebasin, like: Any) -> None:
    """Both folded networks, for only they share coordinates: ``model`` and ``target`` are each a MODEL."""
    folder = getattr(like, "path", like)
    folder = folder if folder is not None and os.path.isdir(folder) else None
    for name, network in (("model", result.model), ("target", result.target)):
        save_folded(network, out.folder / name, like=folder)
        out.add(name, "checkpoint", name)


def _errors(out: Draft, metrics: Mapping[str, float]) -> None:
    spaces = [name.removeprefix(ERROR) for name in metrics if name.startswith(ERROR)]
    if not spaces:
        return
    out.table(
        "spaces",
        {
            "space": spaces,
            "error": [metrics[f"alignment_error.{space}"] for space in spaces],
            "relative": [metrics[ERROR + space] for space in spaces],
        },
    )
    out.plot(
        "alignment-error",
        bar_chart(
            {space: metrics[ERROR + space] for space in spaces},
            title="Alignment error a space",
            x_label="relative to the energy of the target's activations",
        ),
    )


def _curves(out: Draft, result: Rebasin) -> None:
    if not result.curves:
        return
    for measure in ("loss", "accuracy"):
        series = {
            name: (list(curve.t), list(getattr(curve, measure)))
            for name, curve in result.curves.items()
            if getattr(curve, measure) is not None
        }
        if series:
            grid = next(iter(series.values()))[0]
            out.table(f"path-{measure}-values", {"t": grid, **{name: values for name, (_, values) in series.items()}})
            out.plot(
                f"path-{measure}",
                line_chart(
                    series,
                    title=f"{measure.capitalize()} on the way from source to target",
                    x_label="t: 0 is the source, 1 the target",
                    y_label=measure,
                ),
            )
