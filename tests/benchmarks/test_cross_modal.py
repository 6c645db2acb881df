"""The cross-modal benchmark: its sources and targets, its specialists, and what it makes of cells."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from interbasin.jobs.adapt.task import TargetTask

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's modules, and the folder that they write to."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import cross_modal
    import cross_modal_bars
    import cross_modal_cells
    import cross_modal_networks
    import cross_modal_specialists
    import cross_modal_summary
    import cross_modal_targets
    import frame

    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    monkeypatch.setattr(cross_modal_cells, "STATE", tmp_path / "state")
    return SimpleNamespace(
        command=cross_modal,
        bars=cross_modal_bars,
        cells=cross_modal_cells,
        networks=cross_modal_networks,
        specialists=cross_modal_specialists,
        summary=cross_modal_summary,
        targets=cross_modal_targets,
        folder=tmp_path,
    )


def made_cell(
    source: str, target: str, labels: int, seed: int, errors: dict[str, float], **more: Any
) -> dict[str, Any]:
    """A cell of a table with these test errors."""
    groups = {"scratch": "scratch", "naive": "transfer", "nearest": "simple"}
    rows = [
        {
            "method": name,
            "group": groups.get(name, "align"),
            "trial": "",
            "error_valid": error,
            "error_test": error,
            "test_score": error,
            "test_low": error - 0.01,
            "test_high": error + 0.01,
            "above_naive": {"value": error - errors["naive"], "low": error - errors["naive"], "high": 0.0},
            "seconds": {"training": 2.0 if name == "orca" else 2.2},
            "steps": 150,
            "bound": {"fld_crossed": error, "err_target": 0.5, "label_entropy": 1.0, "bound": 3.0, "bound_direct": 0.9},
        }
        for name, error in errors.items()
    ]
    return {
        "kind": "table",
        "source": source,
        "target": target,
        "labels": labels,
        "seed": seed,
        "steps": 150,
        "metric": "error",
        "samples": 100,
        "test_samples": 2000,
        "rows": rows,
        "auto": {"method": "naive", "trial": "", "error_valid": errors["naive"], "error_test": errors["naive"]},
        "verdict": {"choice": "transfer"},
        "agreement": {
            "winner": "naive",
            "group": "transfer",
            "as_good": ["transfer"],
            "agrees": True,
            "agrees_by_name": True,
        },
        "processor": "one",
        "process_seconds": 10.0,
        "seconds": 15.0,
        **more,
    }


# ---------------------------------------------------------------------- sources


def test_crepe_is_built_from_shapes(bench: Any) -> None:
    widths, stored = (8, 4, 4, 4, 4, 6), {}
    for depth, (before, after) in enumerate(zip((1, *widths), widths, strict=False), 1):
        stored[f"conv{depth}.weight"] = torch.randn(after, before, 512 if depth == 1 else 64, 1)
        stored[f"conv{depth}.bias"] = torch.randn(after)
        norm = nn.BatchNorm1d(after).state_dict()
        stored |= {f"conv{depth}_BN.{name}": tensor for name, tensor in norm.items()}
    stored |= {"classifier.weight": torch.randn(360, 24), "classifier.bias": torch.zeros(360)}
    source, classifier = bench.networks.divide_crepe(stored)
    frames, labels, pitch = bench.networks.make_tones(4)
    assert source.embed(frames).shape == (4, 8, 256)  # a quarter of the samples
    assert classifier(source.features(frames)).shape == (4, 360)
    assert pitch.min() >= 80 and labels.max() < 24


def test_a_tone_has_the_pitch_of_its_class(bench: Any) -> None:
    frames, labels, pitch = bench.networks.make_tones(48, seed=3)
    middle = 80 * 2 ** ((labels + 0.5) * 200 / 1200)
    assert (1200 * (pitch / middle).log2()).abs().max() <= 60
    assert torch.allclose(frames.std(-1, correction=0), torch.ones(48, 1), atol=1e-4)


@pytest.mark.local_data("mnist", "cifar10", "models")
@pytest.mark.parametrize("name", ["mnist-vit", "cifar-resnet"])
def test_a_source_reaches_what_is_known_of_it(bench: Any, name: str) -> None:
    import cross_modal_sources

    case = cross_modal_sources.source_case(name)
    expected, within = case.expected
    assert case.accuracy() == pytest.approx(expected, abs=within)


# ---------------------------------------------------------------------- targets


def test_what_is_drawn_depends_on_the_seed_alone(bench: Any) -> None:
    few, many, other = (bench.targets.target_case("advection", "", labels, 0) for labels in (100, 500, 100))
    mean, deviation = few.scales[0]
    again, more = few.scales[0][1] * few.train[0] + mean, many.scales[0][1] * many.train[0] + many.scales[0][0]
    assert torch.allclose(again, more[:100], atol=1e-5)
    assert torch.equal(few.train[1], other.train[1])
    assert len(few.unlabelled) == 900 and deviation > 0
    assert not torch.equal(few.train[0], bench.targets.target_case("advection", "", 100, 1).train[0])


def test_every_class_keeps_its_share_and_one_sample_at_least(bench: Any) -> None:
    labels = torch.tensor([0] * 290 + [1] * 205 + [2] * 3 + [3] * 2)
    chosen = labels[bench.targets.choose_samples(labels, 100, 0)].bincount()
    assert chosen.tolist() == [57, 41, 1, 1]


@pytest.mark.slow
def test_an_error_of_one_is_that_of_the_mean(bench: Any) -> None:
    target = bench.targets.target_case("burgers", "", 0, 0)
    y = target.train[1]
    assert target.error_of(torch.zeros_like(y), y) == pytest.approx(1)
    classes = torch.tensor([0, 1, 1, 2])
    beats = bench.targets.Target("ecg", (torch.zeros(4, 1, 8), classes), (), torch.zeros(0), "classification", "error")
    assert beats.error_of(torch.eye(3), torch.tensor([0, 1, 1])) == pytest.approx(1 / 3)


def test_specialists_and_methods_of_one_table_are_measured_alike(bench: Any) -> None:
    """Fields of very different sizes, one of zeros, and an answer that is neither zero nor always the same."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.linspace(-1, 2, 12)[:, None, None]
    x = torch.randn(12, 1, 16, generator=generator)
    y = sizes * torch.randn(12, 1, 16, generator=generator)
    y[5] = 0
    target = bench.targets.Target("advection", (x, y), (x, y), torch.zeros(0), "dense", "nrmse")
    answer = 0.7 * y + 0.2 * torch.randn(12, 1, 16, generator=generator)

    class Fixed(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return answer

    found = bench.specialists.error_of(Fixed(), target, x, y)

    own = y.double().square().mean((1, 2)).sqrt()
    relative_to = torch.where(own > 0, own, own[own > 0].median())
    by_hand = float(((answer - y).double().square().mean((1, 2)).sqrt() / relative_to).mean())
    assert found == pytest.approx(by_hand)
    over_all_fields = float((answer - y).double().norm() / y.double().norm())
    assert abs(found - over_all_fields) > 0.1  # large fields alone would decide it
    assert found == TargetTask.of("dense", y).error(answer, y)  # of the task that ``ib.adapt`` makes


# ---------------------------------------------------------------------- specialists


@pytest.mark.parametrize("name", ["fno", "unet"])
@pytest.mark.parametrize("shape", [(64,), (16, 16)])
def test_specialists_make_fields_of_fields(bench: Any, name: str, shape: tuple[int, ...]) -> None:
    fields = torch.randn(3, 1, *shape)
    target = SimpleNamespace(train=(fields, fields), name="any")
    network = bench.specialists.build(name, target, 0)
    assert network(fields).shape == fields.shape
    assert 1e4 < sum(tensor.numel() for tensor in network.parameters()) < 2e5


def test_an_operator_of_waves_commutes_with_shifts_but_for_places(bench: Any) -> None:
    layer = bench.specialists.SpectralLayer(4, 6, 1)
    fields = torch.randn(2, 4, 32)
    assert torch.allclose(layer(fields.roll(5, -1)), layer(fields).roll(5, -1), atol=1e-4)


@pytest.mark.parametrize("name", ["advection", "burgers", "reaction-diffusion"])
def test_a_field_that_does_not_change_has_the_residual_of_its_equation(bench: Any, name: str) -> None:
    """A constant field stays under advection and diffusion; under logistic growth only 0 and 1 do."""
    target = SimpleNamespace(name=name, scales=((0.0, 1.0), (0.5, 2.0)))
    network = bench.specialists.PhysicsNetwork(16)
    with torch.no_grad():
        for parameter in network.branch[-1].parameters():
            parameter.zero_()
        network.bias.fill_(0.25)  # u = .5 + 2 * .25 = 1
    left = bench.specialists.residual(network, torch.randn(3, 1, 16), target, torch.Generator().manual_seed(0))
    assert left.abs().max() < 1e-6


# ---------------------------------------------------------------------- cells


def test_a_table_that_lacks_a_method_is_not_done(bench: Any) -> None:
    store = bench.cells.Store(bench.folder / "cells")
    work = bench.cells.Work("table", "mnist-vit", "ecg200", 100, 0, ("naive", "scratch"))
    assert not store.is_done(work)
    store.add(work, made_cell("mnist-vit", "ecg200", 100, 0, {"naive": 0.2}))
    assert not store.is_done(work)
    store.add(work, made_cell("mnist-vit", "ecg200", 100, 0, {"naive": 0.2, "scratch": 0.3}))
    assert bench.cells.Store(bench.folder / "cells").is_done(work)


def test_every_cell_has_a_file_of_its_own(bench: Any) -> None:
    works = {work for stage in bench.command.STAGES.values() for work in stage()}
    by_name: dict[str, set[Any]] = {}
    for work in works:
        by_name.setdefault(work.name, set()).add((work.kind, work.source, work.target, work.labels, work.seed))
    assert all(len(cells) == 1 for cells in by_name.values())
    assert {work.target for work in works} <= bench.targets.TARGETS.keys()


def test_a_verdict_agrees_when_its_interval_reaches_the_winners(bench: Any) -> None:
    cell = made_cell("a", "b", 100, 0, {"naive": 0.20, "scratch": 0.215, "nearest": 0.30})
    methods = {"transfer": "naive", "scratch": "scratch", "simple": "nearest"}
    agreements = {
        choice: bench.cells.agreement(choice, methods, cell["rows"])["agrees"]
        for choice in ("transfer", "scratch", "simple-model", "too-few")
    }
    assert agreements == {"transfer": True, "scratch": True, "simple-model": False, "too-few": True}


def test_bars_and_ranks_are_found_from_cells(bench: Any) -> None:
    store = bench.cells.Store(bench.folder / "made")
    errors = {"naive": 0.40, "scratch": 0.50, "fa": 0.30, "recraft": 0.15, "orca": 0.35}
    for seed in range(3):
        work = bench.cells.Work("table", "mnist-vit", "rotated-patches", 100, seed)
        store.add(work, made_cell("mnist-vit", "rotated-patches", 100, seed, errors))
    work = bench.cells.Work("time", "mnist-vit", "ecg200", 100, 0)
    rows = [{"method": "recraft", "share_of_orca": 1.4}, {"method": "recraft-transport", "share_of_orca": 0.7}]
    store.add(work, {"kind": "time", "rows": rows, **asdict(work)})
    found, not_measured = bench.bars.find_bars(store)
    assert found["planted patches, 100 labels: error of recraft"]["met"]
    assert found["planted patches, 100 labels: error of recraft as a share of naive's"]["found"] == pytest.approx(0.375)
    slowest = found["training time of recraft as a share of orca's, worst"]
    assert not slowest["met"] and slowest["where"] == "mnist-vit, ecg200; 1 of 3 only"
    frozen = found["training time of recraft with the paper's second stage as a share of orca's, worst"]
    assert frozen["met"] and frozen["where"] == "mnist-vit, ecg200; 1 of 2 only"
    behind = "settings with 500 test samples or more: auto above the best of naive, scratch, recraft, worst"
    assert not found[behind]["met"] and found[behind]["where"] == "mnist-vit, rotated-patches, 100 labels"
    assert "ecg5000, all labels: accuracy of auto" in not_measured
    summary = bench.summary.summarise(store)
    assert summary["overall"]["ranks"] == {"naive": 4, "scratch": 5, "fa": 2, "recraft": 1, "orca": 3}
    assert summary["overall"]["wins"]["recraft"] == 3
    assert summary["cost"] == [{"kind": "table", "cells": 3, "process_seconds": 30.0, "seconds": 45.0}]
    assert summary["bounds"]["bound_direct"] == {"rows": 15, "valid": 15, "below_entropy": 15, "median_ratio": 1.8}


@pytest.mark.slow
def test_the_quick_form_is_resumed_and_summed_up(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def results(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["cross_modal.py", "--quick", *words])
        bench.command.main()
        content: dict[str, Any] = json.loads((bench.folder / "cross_modal-quick.json").read_text("utf-8"))
        return content

    assert results("--minutes", "-1")["missing"] == {"quick": 6}
    content = results()
    assert content["missing"] == {"quick": 0}
    assert [entry["target"] for entry in content["settings"]] == ["advection", "rotated-patches"]
    assert content["settings"][0]["specialists"].keys() >= {"fno", "unet", "pinn"}
    assert len(content["stage_one"][0]["omega"]) == 2
    assert {row["method"] for row in content["times"][0]["rows"]} >= {"naive", "orca", "pare", "recraft"}
    assert content["longer"][0]["steps"] == 20 and 0 < content["longer"][0]["naive"]["mean"] < 2
    assert results("--summary")["settings"] == content["settings"]
