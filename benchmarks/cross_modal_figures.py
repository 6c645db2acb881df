"""Charts of the cross-modal benchmark, after the figures of the paper [tran:26].

- semantic gap against the target's error over training (its figure 3), a chart for each target, with Pearson's r;
- features of source and target without alignment, under FA and under FA + FLD (figure 2), by PCA and by t-SNE;
- error and proxy performance against omega (figure 7);
- FA, FLD and TF by method (figure 4), the bound beside the target's loss by task, the ablation (table 7), and the time
  of training (figure 8).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cross_modal_bars import term
from cross_modal_cells import STAGE_ONE, TIME, Store
from cross_modal_stage_one import FROM_RULE, RUNS
from cross_modal_summary import Setting, mean, settings_of
from interbasin.outcome.plots import bar_chart, line_chart, scatter_chart
from interbasin.text import plural

ABLATION = {"naive": "naive", "FA": "fa", "RECRAFT": "recraft"}
BY_METHOD = ("linear-probe", "naive", "fa", "orca", "pare", "mona", "recraft")
PICTURES = {"none": "no alignment", "fa": "FA", "fa+fld": "FA + FLD"}


def draw(store: Store, folder: Path, stem: str) -> None:
    """All charts for which there are cells."""
    for cell in store.of(STAGE_ONE):
        if cell["seed"] == 0:
            _draw_gap(cell, folder, f"{stem}-gap-{cell['target']}")
            _draw_gap(cell, folder, f"{stem}-gap-{cell['target']}-rule", from_rule=True)
            if cell["omega"]:
                _draw_places(cell, folder, f"{stem}-features-{cell['target']}")
                _draw_omega(store, cell, folder, f"{stem}-omega-{cell['target']}")
    _draw_merging(store, folder, stem)
    _draw_times(store, folder, stem)
    settings = settings_of(store)
    for source in dict.fromkeys(setting[0] for setting in settings):
        own = [setting for setting in settings if setting[0] == source]
        _draw_terms(store, own, folder, f"{stem}-terms-{source}", source)
        _draw_bounds(store, own, folder, f"{stem}-bounds-{source}", source)
        _draw_bars(store, own, ABLATION, folder / f"{stem}-ablation-{source}.svg", f"{source}: ablation", "error")


def name_of(setting: Setting) -> str:
    return f"{setting[1]}, {setting[2] or 'all'}"


# ---------------------------------------------------------------------- stage 1


def _draw_gap(cell: Mapping[str, Any], folder: Path, stem: str, *, from_rule: bool = False) -> None:
    series, words = {}, []
    runs = {name: run for name, run in cell["runs"].items() if name.endswith(FROM_RULE) == from_rule}
    if not runs:
        return
    for name, run in runs.items():
        steps, title = [float(step) for step in run["step"]], name.removesuffix(FROM_RULE)
        gap = [fa + fld for fa, fld in zip(run["fa"], run["fld"], strict=True)]
        for what, values in (("gap", gap), ("target error", run["error"])):
            if values[0] > 0:
                series[f"{title}: {what}"] = (steps, [value / values[0] for value in values])
        r = cell["correlations"][name]
        words.append(f"{title}: r = {r:.2f}" if r is not None else f"{title}: no r")
    if not series:
        return
    start = ", from the rule's embedder" if from_rule else ""
    title = f"{cell['source']} on {cell['target']}{start}"
    chart = line_chart(series, title=title, x_label="step of stage 1", note=f"as a share of step 0; {'; '.join(words)}")
    (folder / f"{stem}.svg").write_text(chart, "utf-8")


def _draw_places(cell: Mapping[str, Any], folder: Path, stem: str) -> None:
    places = cell["places"]
    for name, title in PICTURES.items():
        for kind, beside in (("pca", "source"), ("tsne", f"source beside {name}")):
            groups = {"source": places[kind][beside], "target": places[kind][name]}
            chart = scatter_chart(groups, title=f"{cell['source']} on {cell['target']}: {title}", x_label=kind.upper())
            (folder / f"{stem}-{kind}-{name.replace('+', '-')}.svg").write_text(chart, "utf-8")


def _draw_omega(store: Store, cell: Mapping[str, Any], folder: Path, stem: str) -> None:
    cells = store.of(STAGE_ONE, source=cell["source"], target=cell["target"], labels=cell["labels"])
    columns = list(zip(*(each["omega"] for each in cells), strict=True))
    across = [column[0]["omega"] for column in columns]

    def means(field: str) -> list[float]:
        return [statistics.fmean(row[field] for row in column) for column in columns]

    series = {
        "target error": (across, means("error")),
        "proxy accuracy": (across, means("proxy_accuracy")),
        "proxy loss (nats)": (across, means("proxy_loss")),
    }
    note = f"{plural(len(cells), 'seed')}; transported labels"
    chart = line_chart(
        series,
        title=f"{cell['source']} on {cell['target']}: omega",
        x_label="omega",
        log_x=True,
        note=note,
    )
    (folder / f"{stem}.svg").write_text(chart, "utf-8")


def merging(store: Store, start: str = "", source: str = "mnist-vit") -> dict[str, dict[int, dict[str, float]]]:
    """Errors and distortions by the number of labels that rotated digits were merged to, means over seeds.

    Runs from another start have `FROM_RULE` behind their names.
    """
    curves: dict[str, dict[int, dict[str, float]]] = {}
    for cell in store.of(STAGE_ONE, source=source):
        if cell["target"].startswith("rotated"):
            last = cell["target"].rsplit("-", 1)[-1]
            curves.setdefault("cells", {}).setdefault(int(last) if last.isdigit() else 10, {})
    for count in curves.get("cells", {}):
        target = f"rotated-merged-{count}" if count != 10 else "rotated-patches"
        runs = [cell["runs"] for cell in store.of(STAGE_ONE, source=source, target=target)]
        for name in RUNS:
            for field in ("error_last", "fld_last"):
                values = [run[name + start][field] for run in runs if name + start in run]
                if values:
                    curve = curves.setdefault(f"{name}: {field.removesuffix('_last')}", {})
                    curve[count] = {"mean": statistics.fmean(values)}
    return {name: dict(sorted(each.items())) for name, each in curves.items() if name != "cells"}


def _draw_merging(store: Store, folder: Path, stem: str) -> None:
    for start, ending, title in (("", "", "from matched means"), (FROM_RULE, "-rule", "from the rule's embedder")):
        series = {
            name: ([float(count) for count in each], [figures["mean"] for figures in each.values()])
            for name, each in merging(store, start).items()
        }
        if series:
            title = f"Rotated digits under fewer labels, {title}"
            chart = line_chart(series, title=title, x_label="labels", note="transported labels, 100 samples")
            (folder / f"{stem}-merging{ending}.svg").write_text(chart, "utf-8")


# ---------------------------------------------------------------------- tables


def _draw_terms(store: Store, settings: Iterable[Setting], folder: Path, stem: str, source: str) -> None:
    """FA, FLD and TF, by method, means over settings."""
    held = list(settings)
    bars: dict[str, dict[str, float]] = {}
    for method in BY_METHOD:
        for name in ("fa", "fld_crossed", "tf"):
            values = [value for setting in held if (value := mean(store, setting, method, term(name))) is not None]
            if values:
                bars.setdefault(method, {})[name] = statistics.fmean(values)
    if bars:
        chart = bar_chart(bars, title=f"{source}: terms of the bound by method", x_label="nats, means over settings")
        (folder / f"{stem}.svg").write_text(chart, "utf-8")


def _draw_bounds(store: Store, settings: Iterable[Setting], folder: Path, stem: str, source: str) -> None:
    """The target's loss, the labels' entropy and both forms of the bound, of recraft, by task."""
    names = {
        "target loss": "err_target",
        "labels' entropy": "label_entropy",
        "direct form": "bound_direct",
        "paper's form": "bound",
    }
    bars: dict[str, dict[str, float]] = {}
    for setting in settings:
        for name, field in names.items():
            value = mean(store, setting, "recraft", term(field))
            if value is not None:
                bars.setdefault(name, {})[name_of(setting)] = value
    if bars:
        chart = bar_chart(bars, title=f"{source}: the bound by task", x_label="nats, of recraft", log=True)
        (folder / f"{stem}.svg").write_text(chart, "utf-8")


def _draw_bars(
    store: Store, settings: Iterable[Setting], methods: Mapping[str, str], path: Path, title: str, label: str
) -> None:
    bars: dict[str, dict[str, float]] = {}
    for setting in settings:
        for name, method in methods.items():
            value = mean(store, setting, method)
            if value is not None:
                bars.setdefault(name, {})[name_of(setting)] = value
    if bars:
        path.write_text(bar_chart(bars, title=title, x_label=label), "utf-8")


def _draw_times(store: Store, folder: Path, stem: str) -> None:
    """Seconds of one fit, both stages (figure 8)."""
    bars: dict[str, dict[str, float]] = {}
    for cell in store.of(TIME):
        for row in cell["rows"]:
            bars.setdefault(row["method"], {})[f"{cell['source']}, {cell['target']}"] = sum(row["seconds"].values())
    if bars:
        chart = bar_chart(bars, title="Time of one training", x_label="seconds on one thread")
        (folder / f"{stem}-time.svg").write_text(chart, "utf-8")
