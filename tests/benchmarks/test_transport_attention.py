"""The benchmark of transport between vision transformers, on networks that are trained for a few steps."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
ROWS = ("none", "tuned-source", "head-ridge", "theseus-matched", "regression", "regression-qk-base", "regression-keep")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark's modules, with a small workload, and the folder that they write to."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import frame
    import transport_attention
    import transport_cells
    import transport_vits
    import transport_workload

    small = replace(transport_workload.QUICK, name="quick-test", steps=(20, 10), train_batch=32)
    shapes = transport_vits.VitShape(8, heads=2, patch=4), transport_vits.VitShape(12, heads=2, patch=4)
    monkeypatch.setitem(transport_cells.PAIRS, "vit-quick", partial(small.pair, shapes=shapes))
    monkeypatch.setattr(transport_workload, "CACHE", tmp_path / "networks")
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    rows = [row for row in transport_attention.ROWS if row.name in ROWS]

    def quick() -> Any:
        return transport_attention.table(rows, (2,), pair="vit-quick", seeds=range(1), tasks=("digits",))

    monkeypatch.setitem(transport_attention.STAGES, "quick", quick)
    for cache in (transport_cells.pair_of, transport_cells.case_of, transport_cells.bases_of):
        cache.cache_clear()
    yield SimpleNamespace(
        attention=transport_attention, cells=transport_cells, vits=transport_vits, workload=small, folder=tmp_path
    )
    for cache in (transport_cells.pair_of, transport_cells.case_of, transport_cells.bases_of):
        cache.cache_clear()


def results(bench: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["transport_attention.py", "--quick", *words])
    bench.attention.main()
    return json.loads((bench.folder / "transport_attention-quick.json").read_text("utf-8"))


@pytest.mark.slow
def test_the_quick_form_is_resumed_and_summed_up(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        results(bench, monkeypatch, "--minutes", "-1")["missing"]["these tables"]["quick"] == len(ROWS) + 1
    )  # theseus has two alphas
    content = results(bench, monkeypatch)
    assert content["missing"] == {"these tables": {"quick": 0}}
    assert {entry["row"] for entry in content["tables"]["vit-quick"]} == set(ROWS)
    cells = (bench.folder / "transport_attention-quick" / "vit-quick-seed0.jsonl").read_text("utf-8")
    assert results(bench, monkeypatch, "--summary")["tables"] == content["tables"]
    again = results(bench, monkeypatch)
    assert again["tables"] == content["tables"]
    assert (bench.folder / "transport_attention-quick" / "vit-quick-seed0.jsonl").read_text("utf-8") == cells


def test_bars_are_found_from_cells(bench: Any) -> None:
    store = bench.cells.Store(bench.folder / "made")
    accuracies = {"regression": 80.0, "head-ridge": 74.0, "distil-0.001": 79.0, "distil-0.003": 81.0}
    for row, accuracy in accuracies.items():
        for seed in range(3):
            cell = {"pair": "vit-wider", "seed": seed, "task": "digits", "row": row, "batches": 5, "shots": 0}
            store.add({**cell, "method": row, "rule": "1", "accuracy": accuracy, "original": 50.0})
    found, not_measured = bench.attention.find_bars(store)
    met = {name: bar["met"] for name, bar in found.items()}
    at = "narrow to wide, digits, 5 batches: regression above"
    assert met == {f"{at} head-ridge": True, f"{at} cold distillation at its best rate": False}
    assert found[f"{at} cold distillation at its best rate"]["where"] == "distil-0.003; 2 of 3 rates only"
    assert len(not_measured) == 6


def test_every_stage_is_about_pairs_that_there_are(bench: Any) -> None:
    pairs = {work.pair for stage in bench.attention.STAGES.values() for work in stage()}
    assert pairs <= bench.cells.PAIRS.keys()


def test_the_other_way_round_the_roles_of_the_halves_change(bench: Any) -> None:
    shapes = bench.vits.VitShape(8, heads=2, patch=4), bench.vits.VitShape(12, heads=2, patch=4)
    there = bench.workload.pair(0, shapes)
    back = bench.workload.pair(0, shapes[::-1], ("B", "A"))
    assert all(torch.equal(a, b) for a, b in zip(there.source.parameters(), back.target.parameters(), strict=True))
    rows = [pair.calibration("digits", 20)[0] for pair in (there, back)]
    assert rows[0].shape == rows[1].shape
    assert not any(bool((rows[1] == row).all(1).any()) for row in rows[0])


def test_training_makes_the_same_outputs_of_less(bench: Any) -> None:
    network = bench.vits.VitShape(8, depth=3, heads=2, patch=4).build(64)
    x = torch.randn(4, 64)
    short = network(x)
    assert torch.allclose(short, network.requires_grad_(False)(x), atol=1e-6)
    assert torch.allclose(short, network.answer(x), atol=1e-6)
    rows: list[int] = []
    network.blocks[-1].register_forward_hook(lambda block, given, made: rows.append(made.shape[1]))
    network(x)
    network.requires_grad_(True)(x)
    assert rows == [5, 1]
