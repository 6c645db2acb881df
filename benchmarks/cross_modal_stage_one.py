"""Stage 1 by itself: the semantic gap beside the target's error, where features lie, and what omega does.

The embedder is aligned, with the body and the head of the source frozen, by FA alone and by FA + FLD; where stage 1
begins with matched means, also from the embedder as the rule makes it, which is the paper's start. At every look
labels are transported (the paper's predictor) from the labelled samples, and the error is that on the test samples; for
fields, it is the error of the classes that they are made into.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from cross_modal_sources import source_case
from cross_modal_targets import Target
from interbasin.evaluate.transfer import distortion
from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap, align_features
from interbasin.jobs.adapt.label_transport import LabelTransport
from interbasin.jobs.adapt.network import in_chunks
from interbasin.jobs.adapt.samples import Samples
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.setup import Setup, prepare_setup
from interbasin.jobs.adapt.source_head import SourceHead, measure_omega
from interbasin.jobs.adapt.task import TargetTask
from interbasin.outcome import Stopwatch

OMEGAS = (0.1, 0.3, 1.0, 2.0, 4.0)
FACTORS = np.geomspace(1, 1e-3, 121)  # of a head's weights
RUNS = {"fa": False, "fa+fld": True}  # with distortion or without
FROM_RULE = " from the rule"  # behind the name of a run
TESTED = 1000  # samples, at every look
SHOWN = 150  # features of each modality in a picture


def look_at_stage_one(
    source: str, target: Target, seed: int, omegas: Sequence[float] = OMEGAS, **options: Any
) -> dict[str, Any]:
    """All three studies on one target; ``options`` are settings of ``ib.adapt``."""
    setup = make_setup(source, target, seed, **options)
    # Drawn: the archive of heart beats sorts test samples by class.
    drawn = torch.randperm(len(target.test[0]), generator=torch.Generator().manual_seed(seed))[:TESTED]
    test = target.test[0][drawn], setup.task.classes_of(target.test[1][drawn])
    runs, places = {}, {"source": setup.features[:SHOWN], "none": _features(setup.new_map(own_body=False), test[0])}
    for name, with_distortion in RUNS.items():
        feature_map, runs[name] = follow_alignment(setup, test, with_distortion=with_distortion)
        places[name] = _features(feature_map, test[0])
    if runs["fa"]["is_matched"]:
        paper = replace(setup, settings=replace(setup.settings, start="rule"))
        for name, with_distortion in RUNS.items():
            _, runs[name + FROM_RULE] = follow_alignment(paper, test, with_distortion=with_distortion)
    return {
        "runs": runs,
        "correlations": {name: correlation(run) for name, run in runs.items()},
        "places": {"labels": test[1][:SHOWN].tolist(), "proxy_labels": setup.proxy_labels[:SHOWN].tolist()}
        | draw_places(places, seed),
        "omega": sweep_omega(setup, test, omegas),
    }


def make_setup(source: str, target: Target, seed: int, **options: Any) -> Setup:
    """What all methods begin with, as ``ib.adapt`` has it."""
    case, task = source_case(source), TargetTask.of(target.task, target.train[1], seed=seed)
    return prepare_setup(
        case.source,
        (case.inputs, case.labels),
        task,
        Samples(*target.train),
        unlabelled=None,
        settings=Settings(**options),
        embedder=None,
        seed=seed,
        watch=Stopwatch(),
    )


def follow_alignment(
    setup: Setup, test: tuple[Tensor, Tensor], *, with_distortion: bool
) -> tuple[FeatureMap, dict[str, Any]]:
    """An aligned feature map, and what was seen on the way: the terms of the gap, and the error on test samples."""
    feature_map, head = setup.new_map(own_body=False), setup.head
    curves: dict[str, list[float]] = {"step": [], "fa": [], "fld": [], "error": []}
    is_matched = False

    def look(step: AlignmentStep) -> None:
        nonlocal is_matched
        if step.step == 0 and curves["step"]:  # means were matched, and stage 1 begins there
            is_matched = True
            for curve in curves.values():
                curve.clear()
        curves["step"].append(step.step)
        curves["fa"].append(step.alignment)
        curves["fld"].append(step.distortion)
        curves["error"].append(_transported_error(setup, head, feature_map, test))

    _align(setup, head, feature_map, with_distortion=with_distortion, report=look)
    shares, count = head.probabilities(in_chunks(feature_map, test[0])), setup.task.class_count
    return feature_map, {
        **curves,
        "is_matched": is_matched,
        # Of the map that stays, which is the one with the smallest gap.
        "error_last": _transported_error(setup, head, feature_map, test),
        "fld_last": distortion(shares, test[1], count, seed=setup.seed).crossed,
    }


def _align(setup: Setup, head: SourceHead, feature_map: FeatureMap, *, with_distortion: bool, **options: Any) -> None:
    how = setup.settings.alignment(with_distortion=with_distortion, seed=setup.seed)
    align_features(
        feature_map,
        head,
        setup.features,
        setup.samples.inputs,
        setup.classes,
        body_inputs=setup.bank.body_inputs,
        options=how,
        **options,
    )


def _transported_error(setup: Setup, head: SourceHead, feature_map: FeatureMap, test: tuple[Tensor, Tensor]) -> float:
    """Of labels that are transported from those of the source."""
    count = setup.task.class_count
    transport = LabelTransport.fit(head, in_chunks(feature_map, setup.samples.inputs), setup.classes, count)
    with torch.no_grad():
        predictions = transport(in_chunks(feature_map, test[0])).argmax(1)
    return float((predictions != test[1]).double().mean())


def correlation(run: dict[str, Any]) -> float | None:
    """Pearson's r of the semantic gap and the target's error over training; None if one of them does not change.

    Two looks would always be on a line.
    """
    gap = np.add(run["fa"], run["fld"])
    if len(gap) < 3 or np.std(gap) == 0 or np.std(run["error"]) == 0:
        return None
    return float(np.corrcoef(gap, run["error"])[0, 1])


def sweep_omega(setup: Setup, test: tuple[Tensor, Tensor], omegas: Sequence[float]) -> list[dict[str, float]]:
    """Error and proxy performance with source heads that change as fast as they may, or less fast."""
    rows = []
    for omega in omegas:
        head = slow_down(setup, omega)
        feature_map = setup.new_map(own_body=False)
        _align(setup, head, feature_map, with_distortion=True)
        rows.append(
            {
                "omega": omega,
                "measured": head.omega,
                "proxy_accuracy": head.accuracy,
                "proxy_loss": head.loss,
                "error": _transported_error(setup, head, feature_map, test),
            }
        )
    return rows


def slow_down(setup: Setup, omega: float) -> SourceHead:
    """The head in use with its weights divided, as little as it takes to reach an omega, whatever cross-entropy says.

    Recalibration stops where cross-entropy has risen by a twentieth, far above these omegas; beyond that a temperature
    is as good a way as any, and accuracy is not touched by it: the price is paid in cross-entropy.
    """
    held = setup.head.held
    features, labels = setup.features[held], setup.proxy_labels[held]
    for factor in FACTORS:
        linear = copy.deepcopy(setup.head.linear).requires_grad_(False)
        for parameter in linear.parameters():
            parameter.mul_(factor)
        measured = measure_omega(linear, features, labels)
        if measured <= omega:
            loss = float(torch.nn.functional.cross_entropy(linear(features), labels))
            return replace(setup.head, linear=linear, omega=measured, loss=loss)
    raise RuntimeError(f"no factor down to {FACTORS[-1]:g} brings omega to {omega}")


# ---------------------------------------------------------------------- where features lie


def _features(feature_map: FeatureMap, inputs: Tensor) -> Tensor:
    return in_chunks(feature_map, inputs[:SHOWN])


def draw_places(features: dict[str, Tensor], seed: int) -> dict[str, dict[str, list[list[float]]]]:
    """Two coordinates for every feature: along the source's principal axes, and by t-SNE with the source's beside."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    rows = {name: each.double().numpy() for name, each in features.items()}
    axes = PCA(2, random_state=seed).fit(rows["source"])
    flat = {name: axes.transform(each).round(3).tolist() for name, each in rows.items()}
    near: dict[str, list[list[float]]] = {}
    for name, each in rows.items():
        if name != "source":
            both = TSNE(2, random_state=seed, init="pca", perplexity=30).fit_transform(
                np.vstack([rows["source"], each])
            )
            near[f"source beside {name}"] = both[: len(rows["source"])].round(2).astype(float).tolist()
            near[name] = both[len(rows["source"]) :].round(2).astype(float).tolist()
    return {"pca": flat, "tsne": near}
