"""Do orthogonal maps bring two MLPs into one basin, and what do they cost? The tables and figures of two papers.

Pairs of networks with four hidden layers of width 512, trained on MNIST from different seeds, go through every method
and variant of `interbasin.rebasin`. Measured on the test images, which decided on nothing: the aligned network itself,
the way to the target by LERP and SLERP, before and after two epochs of fine-tuning, the error a layer, both cycles, and
the barrier against width. Means over pairs, with the standard deviation.

    python benchmarks/orthogonal_rebasin.py            MNIST, five pairs: about forty minutes of one idle core
    python benchmarks/orthogonal_rebasin.py --quick    digits, two pairs of width 32: under a minute

MNIST is looked for as `trained_mlps.py` says; digits take its place where it is not. What was measured is kept, a pair,
a method and a width at a time, in ``benchmarks/.cache``: a run that was stopped goes on where it was, ``--report``
shows what there is, ``--fresh`` measures anew. Plots go beside the results.

Two things save time and change nothing. Adam treats every weight alike, so that fine-tuning and permuting may change
places: one fine-tuning of the source serves all methods that only permute. And the cycles begin with the alignment
that was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import frame
from interbasin.evaluate import Barrier, alignment_error, barrier, cycle, pca
from interbasin.jobs.rebasin import METHODS as KNOWN_METHODS
from interbasin.jobs.rebasin import Rebasin, rebasin
from interbasin.jobs.rebasin.job import finetune_model
from interbasin.outcome.plots import bar_chart, line_chart, scatter_chart
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry
from trained_mlps import BATCH, CACHE, RATE, Images, load_images, trained

SEED = 0
FINETUNING_BATCH = 512
COORDINATE, PERMUTATION = "procrustes-weights coordinate", "permutation-weights"
METHODS: dict[str, tuple[str, str | None]] = {
    PERMUTATION: ("permutation-weights", None),
    "permutation-activations pre": ("permutation-activations", "pre"),
    "permutation-activations post": ("permutation-activations", "post"),
    "straight-through": ("straight-through", None),
    "procrustes-weights layerwise": ("procrustes-weights", "layerwise"),
    "procrustes-weights sequential": ("procrustes-weights", "sequential"),
    COORDINATE: ("procrustes-weights", "coordinate"),
    "procrustes-activations pre": ("procrustes-activations", "pre"),
    "procrustes-activations post": ("procrustes-activations", "post"),
    "procrustes-weights+activations pre": ("procrustes-weights+activations", "pre"),
    "procrustes-weights+activations post": ("procrustes-weights+activations", "post"),
    "stiefel layerwise": ("stiefel", "layerwise"),
    "stiefel joint": ("stiefel", "joint"),
}
NONE = "none"
SLOW = ("straight-through", "procrustes-weights+activations post", "stiefel layerwise", "stiefel joint")
ABSOLUTE, RELATIVE = "alignment_error.", "alignment_error_relative."


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        width: Of the hidden layers.
        pairs: Of seeds: the source's and the target's.
        widths: For the barrier against width; the widest is the one above.
        points: Of a curve by LERP on test images.
        coarse: Of the other curves.
        sweeps: Of coordinate descent.
        descents: Tens of steps of Stiefel descent.
        epochs: Of the straight-through method, over the images that methods look at.
        finetune: Epochs of fine-tuning, with Adam at 1e-4.
        cycles: Pairs of which cycles are measured, which takes two more alignments each.
    """

    width: int = 512
    pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    widths: tuple[int, ...] = (16, 32, 64, 128, 256)
    points: int = 13
    coarse: int = 5
    sweeps: int = 20
    descents: int = 4
    epochs: int = 2
    finetune: int = 2
    cycles: int = 2


QUICK = Plan(width=32, pairs=((0, 1), (2, 3)), widths=(8, 16), points=9, epochs=1)


# ---------------------------------------------------------------------- one pair


def align(images: Images, plan: Plan, label: str, source: nn.Module, target: nn.Module) -> Rebasin:
    method, variant = METHODS[label]
    return rebasin(
        source,
        target,
        images.seen.images[:8],
        method=method,
        variant=variant,
        data=images.seen if KNOWN_METHODS[method].needs else None,
        seed=SEED,
        sweeps=plan.descents if method == "stiefel" else plan.sweeps,
        epochs=plan.epochs,
        # As the papers have it: maps that cannot shift are fitted to activations as they are, correlations are not.
        centered=not method.startswith("procrustes"),
    )


def walked(start: nn.Module, pair: tuple[nn.Module, nn.Module], data: Any, points: int, path: str) -> dict[str, Any]:
    """The way from an aligned source to the target, against its own chord and against the original networks'."""
    found = barrier(start, pair[1], data, points=points, path=path, ends=pair)
    return {**found.metrics, **middle(found), "curve": found.curve}


def middle(found: Barrier) -> dict[str, float]:
    assert found.accuracy is not None
    half = len(found.t) // 2
    ends = [one.accuracy for one in found.ends if one.accuracy is not None]
    return {
        "middle_loss": found.loss[half],
        "middle_accuracy": found.accuracy[half],
        "middle_below_ends": sum(ends) / 2 - found.accuracy[half],
        "start_loss": found.loss[0],
        "start_accuracy": found.accuracy[0],
        "delta_loss_self": found.loss[0] - found.ends[0].loss,
        "delta_accuracy_self": found.accuracy[0] - ends[0],
    }


def ways(
    start: nn.Module, tuned: nn.Module, pair: tuple[nn.Module, nn.Module], images: Images, plan: Plan
) -> dict[str, Any]:
    return {
        "lerp": walked(start, pair, images.test, plan.points, "lerp"),
        "slerp": walked(start, pair, images.test, plan.coarse, "slerp"),
        "lerp_train": walked(start, pair, images.seen, plan.coarse, "lerp"),
        "lerp_finetuned": walked(tuned, pair, images.test, plan.coarse, "lerp"),
        "slerp_finetuned": walked(tuned, pair, images.test, plan.coarse, "slerp"),
    }


def tune(model: nn.Module, images: Images, plan: Plan) -> nn.Module:
    every = images.train.first(len(images.train.labels), batch=FINETUNING_BATCH)
    return finetune_model(model, every, epochs=plan.finetune, rate=1e-4)


def errors(pair: tuple[nn.Module, nn.Module], alignment: Alignment, images: Images) -> dict[str, Any]:
    """How far mapped activations are from the target's, where layers write them and behind the non-linearity."""
    return {
        f"errors_{at}": dict(alignment_error(*pair, alignment, images.test, at=at).metrics) for at in ("pre", "post")
    }


def measured(
    label: str,
    pair: tuple[nn.Module, nn.Module],
    tuned_source: Callable[[], nn.Module],
    images: Images,
    plan: Plan,
    cycles: bool,
) -> dict[str, Any]:
    """All that is asked of one method on one pair."""
    source, target = pair
    if label == NONE:
        return ways(source, tuned_source(), pair, images, plan)
    started = time.process_time()
    result = align(images, plan, label, source, target)
    seconds = time.process_time() - started
    exact = result.alignment.is_exact
    tuned = carry(tuned_source(), result.alignment) if exact else tune(result.model, images, plan)

    def again(one: nn.Module, other: nn.Module) -> Rebasin:
        return result if one is source and other is target else align(images, plan, label, one, other)

    found = {
        "seconds": seconds,
        "exact": exact,
        "objective": result.metrics["objective"],
        "distance_before": result.metrics["distance_before"],
        "distance_after": result.metrics["distance_after"],
        **ways(result.model, tuned, pair, images, plan),
        **errors(pair, result.alignment, images),
    }
    if cycles:
        found["cycles"] = dict(cycle(source, target, again, images.test).metrics)
    return found


def by_width(images: Images, plan: Plan, width: int, seeds: tuple[int, int]) -> dict[str, Any]:
    """The barrier at another width: no alignment, permutations, orthogonal maps; before and after fine-tuning."""
    source, target = pair = (trained(images, width, seeds[0]), trained(images, width, seeds[1]))
    tuned_source = tune(source, images, plan)
    found: dict[str, Any] = {}
    for label in (NONE, PERMUTATION, COORDINATE):
        start, tuned = source, tuned_source
        if label != NONE:
            result = align(images, plan, label, source, target)
            start = result.model
            exact = result.alignment.is_exact
            tuned = carry(tuned_source, result.alignment) if exact else tune(start, images, plan)
        found[label] = {
            "lerp": walked(start, pair, images.test, plan.points, "lerp"),
            "lerp_finetuned": walked(tuned, pair, images.test, plan.coarse, "lerp"),
        }
    return found


# ---------------------------------------------------------------------- what was measured, kept


class Kept:
    """Measurements by key, on disk as soon as they are made. Another plan or recipe has another file."""

    def __init__(self, images: Images, plan: Plan, fresh: bool) -> None:
        self.recipe = {
            "data": images.name,
            "width": plan.width,
            "sweeps": plan.sweeps,
            "stiefel_steps": 10 * plan.descents,
            "straight_through_epochs": plan.epochs,
            "finetuning": {"epochs": plan.finetune, "batch": FINETUNING_BATCH, "rate": 1e-4},
            "centered": "correlations only",
            "cycle_pairs": plan.cycles,
            "points": plan.points,
            "coarse_points": plan.coarse,
            "training": {"epochs": images.epochs, "batch": BATCH, "rate": RATE},
        }
        self.path = CACHE / f"orthogonal-rebasin-{images.name.lower()}-{plan.width}.json"
        self.found: dict[str, Any] = {}
        if self.path.exists() and not fresh:
            before = json.loads(self.path.read_text("utf-8"))
            if before["recipe"] == self.recipe:
                self.found = before["found"]

    def measure(self, key: str, measure: Callable[[], dict[str, Any]]) -> None:
        if key not in self.found:
            started = time.perf_counter()
            # Through JSON at once, so that a first run and one that goes on see the same.
            self.found[key] = json.loads(json.dumps(measure()))
            frame.save(self.path, {"recipe": self.recipe, "found": self.found})
            print(f"{key}: {time.perf_counter() - started:.0f} s", flush=True)

    def add(self, key: str, part: str, measure: Callable[[], dict[str, Any]]) -> None:
        """What ``measure`` gives beside what is kept, unless ``part`` of it is there."""
        if part not in self.found[key]:
            self.found[key] |= json.loads(json.dumps(measure()))
            frame.save(self.path, {"recipe": self.recipe, "found": self.found})
            print(f"{key}: {part}", flush=True)


def errors_of(label: str, pair: tuple[nn.Module, nn.Module], images: Images, plan: Plan) -> dict[str, Any]:
    return errors(pair, align(images, plan, label, *pair).alignment, images)


class TunedSource:
    """The fine-tuned source of a pair, made when it is first asked for."""

    def __init__(self, source: nn.Module, images: Images, plan: Plan) -> None:
        self.make = partial(tune, source, images, plan)
        self.made: nn.Module | None = None

    def __call__(self) -> nn.Module:
        if self.made is None:
            self.made = self.make()
        return self.made


def name_of(seeds: tuple[int, int]) -> str:
    return f"{seeds[0]}-{seeds[1]}"


def measure_all(images: Images, plan: Plan, kept: Kept) -> None:
    """What bars stand on first; then what is quick, of all pairs; then the rest, pair by pair."""
    jobs: list[tuple[int, str, Callable[[], dict[str, Any]]]] = []
    for place, seeds in enumerate(plan.pairs):
        pair = (trained(images, plan.width, seeds[0]), trained(images, plan.width, seeds[1]))
        tuned_source = TunedSource(pair[0], images, plan)
        for label in (NONE, *METHODS):
            rank = 0 if label == COORDINATE else 2 + place if label in SLOW else 1
            measure = partial(measured, label, pair, tuned_source, images, plan, place < plan.cycles)
            jobs.append((rank, f"{name_of(seeds)} {label}", measure))
        for width in plan.widths:
            key = f"{name_of(seeds)} width {width}"
            jobs.append((2 + place, key, partial(by_width, images, plan, width, seeds)))
    for _, key, measure in sorted(jobs, key=lambda job: job[0]):
        kept.measure(key, measure)
    for seeds in plan.pairs:
        pair = (trained(images, plan.width, seeds[0]), trained(images, plan.width, seeds[1]))
        for label in METHODS:
            # Measurements that are older than the errors a layer get them added: alignments are the same every time.
            kept.add(f"{name_of(seeds)} {label}", "errors_pre", partial(errors_of, label, pair, images, plan))


# ---------------------------------------------------------------------- what it says


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean, standard deviation and the largest over pairs."""
    taken = list(values)
    return {
        "mean": statistics.fmean(taken),
        "deviation": statistics.stdev(taken) if len(taken) > 1 else 0.0,
        "largest": max(taken),
    }


def over_pairs(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The tree of one pair over all that have it: spreads in place of numbers, mean curves in place of curves."""
    found: dict[str, Any] = {}
    for name, first in cases[0].items():
        values = [case[name] for case in cases if name in case]
        if name == "curve":
            found[name] = {
                what: [
                    round(statistics.fmean(column), 6) for column in zip(*(one[what] for one in values), strict=True)
                ]
                for what in first
            }
        elif isinstance(first, Mapping):
            found[name] = over_pairs(values)
        elif isinstance(first, bool):
            found[name] = all(values)
        else:
            found[name] = spread(values)
    return found


def layer_of(space: str, spaces: Sequence[str]) -> str:
    return f"layer {spaces.index(space) + 1}"


def errors_by_layer(figures: Mapping[str, Any], prefix: str) -> dict[str, dict[str, float]]:
    spaces = [name.removeprefix(prefix) for name in figures if name.startswith(prefix)]
    return {layer_of(space, spaces): figures[prefix + space] for space in spaces}


def largest_cycle(figures: Mapping[str, Any]) -> float:
    return max(one["mean"] for name, one in figures.items() if name.startswith("cycle_error."))


def bars(methods: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was promised, mostly of coordinate Procrustes."""
    ours = methods[COORDINATE]
    found = {
        "accuracy lost by alignment, points": (-100 * ours["lerp"]["delta_accuracy_self"]["mean"], 1.5),
        "barrier against the original networks": (ours["lerp"]["barrier_original"]["mean"], 0.017),
        "accuracy of the middle below the ends, points": (100 * ours["lerp"]["middle_below_ends"]["mean"], 0.5),
        "barrier against the original networks after fine-tuning": (
            ours["lerp_finetuned"]["barrier_original"]["mean"],
            0.001,
        ),
        "FRNE of the returning cycle, coordinate": (ours["cycles"]["cycle_frne"]["largest"], 1e-4),
        "FRNE of the returning cycle, sequential": (
            methods["procrustes-weights sequential"]["cycles"]["cycle_frne"]["largest"],
            1e-4,
        ),
    }
    return {name: {"found": value, "bar": f"<= {bar:g}", "met": value <= bar} for name, (value, bar) in found.items()}


# What the papers report: where, what, their figure, our method, which figure of ours, and whether more is better.
LOSS, ACCURACY, BARRIER = ("lerp", "start_loss"), ("lerp", "start_accuracy"), ("lerp", "barrier")
FRNE = ("cycles", "cycle_frne")
PAPERS: tuple[tuple[str, str, float, str, tuple[str, str], bool], ...] = (
    ("OMANN, table 1", "original, accuracy", 0.975, NONE, ACCURACY, True),
    ("OMANN, table 1", "original, loss", 0.075, NONE, LOSS, False),
    ("OMANN, table 1", "PWM as printed, accuracy", 0.95, "procrustes-weights layerwise", ACCURACY, True),
    ("OMANN, table 1", "PWM as printed, loss", 0.190, "procrustes-weights layerwise", LOSS, False),
    ("OMANN, table 1", "PWM, accuracy", 0.95, "procrustes-weights sequential", ACCURACY, True),
    ("OMANN, table 1", "PWM, loss", 0.190, "procrustes-weights sequential", LOSS, False),
    ("OMANN, table 1", "PWM, accuracy", 0.95, COORDINATE, ACCURACY, True),
    ("OMANN, table 1", "PWM, loss", 0.190, COORDINATE, LOSS, False),
    ("OMANN, table 1", "PAM, accuracy", 0.95, "procrustes-activations pre", ACCURACY, True),
    ("OMANN, table 1", "PAM, loss", 0.180, "procrustes-activations pre", LOSS, False),
    ("OMANN, table 1", "PAM-ReLU, accuracy", 0.86, "procrustes-activations post", ACCURACY, True),
    ("OMANN, table 1", "PAM-ReLU, loss", 0.5711, "procrustes-activations post", LOSS, False),
    ("OMANN, table 1", "PWM+PAM, accuracy", 0.94, "procrustes-weights+activations pre", ACCURACY, True),
    ("OMANN, table 1", "PWM+PAM, loss", 0.1559, "procrustes-weights+activations pre", LOSS, False),
    ("OMANN, section 4", "FRNE, PWM as printed", 1e-4, "procrustes-weights layerwise", FRNE, False),
    ("OMANN, section 4", "FRNE, PWM", 1e-4, COORDINATE, FRNE, False),
    ("OMANN, section 4", "FRNE, PAM", 1e-1, "procrustes-activations pre", FRNE, False),
    ("d'Orsi, section 4.1", "barrier, naive", 0.846, NONE, BARRIER, False),
    ("d'Orsi, section 4.1", "barrier, Stiefel", 0.146, "stiefel layerwise", BARRIER, False),
    ("d'Orsi, section 4.1", "barrier, Procrustes activation", 0.143, "procrustes-activations pre", BARRIER, False),
    ("d'Orsi, section 4.1", "barrier, Procrustes weight l", 0.129, "procrustes-weights sequential", BARRIER, False),
    ("d'Orsi, section 4.1", "barrier, Procrustes weight x", 0.017, COORDINATE, BARRIER, False),
    ("d'Orsi, section 4.3", "cycle error, activation matching", 0.0, "permutation-activations pre", ("", ""), False),
    ("d'Orsi, section 4.3", "cycle error, weight matching", 0.0, PERMUTATION, ("", ""), False),
    ("d'Orsi, section 4.3", "cycle error, Stiefel", 10.0, "stiefel layerwise", ("", ""), False),
    ("d'Orsi, section 4.3", "cycle error, Procrustes activation", 10.0, "procrustes-activations pre", ("", ""), False),
    ("d'Orsi, section 4.3", "cycle error, Procrustes weight", 1e-3, "procrustes-weights sequential", ("", ""), False),
    ("d'Orsi, section 4.3", "cycle error, Procrustes weight", 1e-3, COORDINATE, ("", ""), False),
)


def papers(methods: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Their figures beside ours. Naive interpolation is what all methods are held against, and no figure to be met."""
    found = []
    for where, what, theirs, label, (group, name), more in PAPERS:
        if label not in methods:
            continue
        figures = methods[label]
        # No place in the tree: the composed cycle, the worst of the layers.
        ours = figures[group][name]["mean"] if group else largest_cycle(figures["cycles"])
        met = None if what == "barrier, naive" else bool(ours >= theirs if more else ours <= theirs)
        found.append({"where": where, "what": what, "theirs": theirs, "method": label, "ours": ours, "met": met})
    return found


def content_of(images: Images, plan: Plan, kept: Kept, threads: int) -> dict[str, Any]:
    """The results over the pairs that have been measured: of a run that was stopped, those may be fewer of some."""
    names = [name_of(seeds) for seeds in plan.pairs]
    methods: dict[str, Any] = {}
    pairs: dict[str, dict[str, Any]] = {name: {} for name in names}
    for label in (NONE, *METHODS):
        cases = {name: kept.found[f"{name} {label}"] for name in names if f"{name} {label}" in kept.found}
        if cases:
            methods[label] = {"pairs": len(cases), **over_pairs(list(cases.values()))}
        for name, figures in cases.items():
            pairs[name][label] = {what: figures["lerp"][what] for what in ("start_accuracy", "barrier_original")}
    widths: dict[str, Any] = {}
    for width in plan.widths:
        found = [kept.found[f"{name} width {width}"] for name in names if f"{name} width {width}" in kept.found]
        if found:
            widths[str(width)] = {"pairs": len(found), **over_pairs(found)}
    compared = (NONE, PERMUTATION, COORDINATE)
    widths[str(plan.width)] = {
        "pairs": min(methods[label]["pairs"] for label in compared),
        **{label: {way: methods[label][way] for way in ("lerp", "lerp_finetuned")} for label in compared},
    }
    return {
        "question": "orthogonal_rebasin",
        "environment": frame.environment(seed=SEED, threads=threads),
        "recipe": kept.recipe,
        "test_images": len(images.test.labels),
        "pairs": pairs,
        "bars": bars(methods),
        "papers": papers(methods),
        "methods": methods,
        "widths": widths,
    }


# ---------------------------------------------------------------------- how it is shown


def save_plots(content: Mapping[str, Any], images: Images, plan: Plan, folder: Path, stem: str) -> None:
    methods = content["methods"]
    aligned = [label for label in methods if label != NONE]
    count = len(content["pairs"])
    note = f"{images.name}, width {plan.width}: mean over {count} pairs, {content['test_images']:,} test images"
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, drawn: str) -> None:
        (folder / f"{stem}-{name}.svg").write_text(drawn, "utf-8")

    titles = {"lerp": "by LERP", "slerp": "by SLERP", "lerp_finetuned": "by LERP after fine-tuning"}
    for way, words in titles.items():
        for measure in ("loss", "accuracy"):
            series = {
                label: (figures[way]["curve"]["t"], figures[way]["curve"][measure])
                for label, figures in methods.items()
            }
            write(
                f"{way.replace('_', '-')}-{measure}",
                line_chart(
                    series,
                    title=f"{measure.capitalize()} on the way to the target {words}",
                    x_label="t: 0 is the aligned source, 1 the target",
                    y_label=measure,
                    note=note,
                    log=measure == "loss",
                ),
            )
    write(
        "error-by-layer",
        bar_chart(
            {
                layer: {
                    label: errors_by_layer(methods[label]["errors_pre"], RELATIVE)[layer]["mean"] for label in aligned
                }
                for layer in errors_by_layer(methods[COORDINATE]["errors_pre"], RELATIVE)
            },
            title="Alignment error a layer, before the non-linearity",
            x_label="missed mean square, relative to the target's",
            note=note,
        ),
    )
    by_label: dict[str, tuple[list[float], list[float]]] = {}
    for words, way in (("", "lerp"), (", fine-tuned", "lerp_finetuned")):
        for label in (NONE, PERMUTATION, COORDINATE):
            values = [widths[label][way]["barrier_original"]["mean"] for widths in content["widths"].values()]
            by_label[label + words] = ([math.log2(float(width)) for width in content["widths"]], values)
    write(
        "width",
        line_chart(
            by_label,
            title="Barrier against width",
            x_label="width of the hidden layers, as a power of two",
            y_label="barrier against the original networks",
            note=f"{images.name}: mean over {count} pairs, LERP",
        ),
    )
    for label in (COORDINATE, "procrustes-activations pre"):
        source, target = (trained(images, plan.width, seed) for seed in plan.pairs[0])
        moved = align(images, plan, label, source, target).model
        networks = {"source": source, "aligned": moved, "target": target}
        found = next(iter(pca(networks, images.test.first(500)).values()))
        shares = ", ".join(f"{100 * share:.0f} %" for share in found.explained)
        write(
            f"pca-{label.replace(' ', '-')}",
            scatter_chart(
                {name: points.tolist() for name, points in found.coordinates.items()},
                title="Activations of layer 1 in two dimensions",
                x_label="first principal component",
                y_label="second",
                note=f"{label}; one pair, 500 test images; shares of the variance {shares}",
            ),
        )


def report(content: Mapping[str, Any]) -> None:
    def percent(one: Mapping[str, float]) -> str:
        return f"{100 * one['mean']:.2f} ± {100 * one['deviation']:.2f}"

    def small(one: Mapping[str, float]) -> str:
        return f"{one['mean']:.4f} ± {one['deviation']:.4f}"

    frame.show(
        f"{len(content['pairs'])} pairs, {content['recipe']['data']}, width {content['recipe']['width']}",
        (
            "method",
            "pairs",
            "aligned %",
            "barrier orig.",
            "barrier",
            "middle %",
            "fine-tuned",
            "FRNE",
            "cycle",
            "cpu s",
        ),
        [
            (
                label,
                str(figures["pairs"]),
                percent(figures["lerp"]["start_accuracy"]),
                small(figures["lerp"]["barrier_original"]),
                small(figures["lerp"]["barrier"]),
                percent(figures["lerp"]["middle_accuracy"]),
                small(figures["lerp_finetuned"]["barrier_original"]),
                "-" if label == NONE else f"{figures['cycles']['cycle_frne']['mean']:.1e}",
                "-" if label == NONE else f"{largest_cycle(figures['cycles']):.1e}",
                "-" if label == NONE else f"{figures['seconds']['mean']:.1f}",
            )
            for label, figures in content["methods"].items()
        ],
    )
    frame.show(
        "The papers' figures",
        ("where", "what", "theirs", "ours", "method", ""),
        [
            (
                one["where"],
                one["what"],
                f"{one['theirs']:.3g}",
                f"{one['ours']:.3g}",
                one["method"],
                {None: "-", True: "met", False: "not met"}[one["met"]],
            )
            for one in content["papers"]
        ],
    )
    frame.show(
        "Barrier against width",
        ("width", "pairs", NONE, PERMUTATION, COORDINATE, f"{PERMUTATION}, tuned", f"{COORDINATE}, tuned"),
        [
            (
                width,
                str(one["pairs"]),
                *(small(one[label]["lerp"]["barrier_original"]) for label in (NONE, PERMUTATION, COORDINATE)),
                *(small(one[label]["lerp_finetuned"]["barrier_original"]) for label in (PERMUTATION, COORDINATE)),
            )
            for width, one in content["widths"].items()
        ],
    )
    for name, bar in content["bars"].items():
        print(f"{name}: {bar['found']:.3g} ({bar['bar']}): {'met' if bar['met'] else 'NOT MET'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits, narrow; writes orthogonal_rebasin-quick.json")
    parser.add_argument("--fresh", action="store_true", help="measure anew what an earlier run has kept")
    parser.add_argument("--report", action="store_true", help="measure nothing; show what earlier runs have kept")
    parser.add_argument("--pairs", type=int, default=None, help="only the first so many pairs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    plan = QUICK if arguments.quick else Plan()
    if arguments.pairs is not None:
        plan = replace(plan, pairs=plan.pairs[: arguments.pairs])
    stem = "orthogonal_rebasin-quick" if arguments.quick else "orthogonal_rebasin"
    path = arguments.json or frame.RESULTS / f"{stem}.json"
    images = load_images(arguments.quick)
    kept = Kept(images, plan, arguments.fresh)
    if not arguments.report:
        measure_all(images, plan, kept)
    content = content_of(images, plan, kept, arguments.threads)
    frame.save(path, content)
    save_plots(content, images, plan, path.parent, path.stem)
    report(content)


if __name__ == "__main__":
    main()
