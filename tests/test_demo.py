"""The demonstration: all fits, the same numbers for the same seed, and a note where an extra is missing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
import torch

from interbasin import demo, fit
from interbasin.datasets import Digits, load_digits
from interbasin.demo import run_demo
from interbasin.jobs.adapt.verdict import ADVICE as ADAPT_ADVICE
from interbasin.jobs.rebasin import METHODS
from interbasin.jobs.translate.audit.verdict import ADVICE
from interbasin.jobs.translate.methods import CANDIDATES

pytestmark = pytest.mark.slow  # each of them runs much of the demonstration, which `make demo` runs as a whole


@dataclass(frozen=True)
class Run:
    """What one run of the demonstration gave, reported on its way and did to torch's own generator."""

    result: demo.Demo
    done: list[int]
    steps: int
    generator_states: tuple[torch.Tensor, torch.Tensor]  # before and after


@pytest.fixture(scope="module")
def whole_run() -> Run:
    """The demonstration as people see it, run once."""
    done: list[int] = []
    before = torch.get_rng_state()
    result = run_demo(progress=done.append)
    return Run(result, done, demo.steps(), (before, torch.get_rng_state()))


@pytest.fixture(scope="module")
def whole(whole_run) -> demo.Demo:
    return whole_run.result


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Every part of the demonstration, but little of each: a few hundred images and two epochs."""
    digits = load_digits()
    train, test = slice(0, 320), slice(0, 90)
    few = Digits(
        *(digits.train_images[train], digits.train_labels[train]), digits.test_images[test], digits.test_labels[test]
    )
    patch.setattr(demo.networks, "load_digits", lambda: few)
    patch.setattr(demo.networks, "EPOCHS", 2)
    patch.setattr(demo.tables, "METHODS", {"permutation-weights": METHODS["permutation-weights"]})
    patch.setattr(demo.tables, "OPTIONS", {"stiefel": {"steps": 20}})
    patch.setattr(demo.new_modality, "STEPS", 2)
    patch.setattr(demo.new_modality, "ALIGN_STEPS", 1)


@pytest.fixture
def short(monkeypatch):
    shorten(monkeypatch)


def test_every_fit_has_a_row_below_the_baseline(whole):
    assert [row.method for row in whole.rows] == ["(none)", *fit.names()]
    assert whole.train_rows == 1437 and whole.test_rows == 360
    for row in whole.rows[1:]:
        assert row.residual >= 0 and row.explained <= 1 and 0 <= row.accuracy <= 1
    assert json.loads(json.dumps(whole.summary(), allow_nan=False))["width"] == whole.width


def test_the_audit_measures_every_way_with_the_index_that_it_says(whole):
    found = whole.migration
    assert (found.documents, found.queries, found.pairs) == (1437, 360, 300)
    ways = {row[0] for row in found.rows}
    assert {"keep the old model", "translate documents", "adapt queries", "re-embed everything"} <= ways
    assert {len(row) for row in found.rows} == {2 + len(found.measures)} and "recall at 10" in found.measures
    assert found.advice in ADVICE and found.verdict


def test_the_adaptation_compares_networks_with_models_that_are_none(whole):
    found = whole.new_modality
    assert found.labelled + found.unlabelled == whole.train_rows
    assert {"raw-linear", "nearest", "scratch", "naive", "recraft"} <= {row.method for row in found.rows}
    assert all(0 <= row.low <= row.error <= row.high <= 1 for row in found.rows)
    assert found.choice in ADAPT_ADVICE and found.verdict.startswith(ADAPT_ADVICE[found.choice])
    assert found.method in {row.method for row in found.rows} and found.error_test < 0.5


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(short, monkeypatch):
    first = run_demo(seed=3)
    assert run_demo(seed=3) == first
    for part in ("align_networks", "stitch_networks", "audit_migration"):
        monkeypatch.setattr(demo.tables, part, lambda *_: None)
    monkeypatch.setattr(demo.fine_tune, "move_fine_tune", lambda *_: None)
    monkeypatch.setattr(demo.new_modality, "adapt_network", lambda *_: None)
    assert run_demo(seed=4).similarities != first.similarities


def test_the_global_generator_is_left_alone(whole_run):
    before, after = whole_run.generator_states
    assert torch.equal(before, after)


def test_progress_counts_the_epochs_of_both_networks(whole_run):
    done = whole_run.done
    both = 2 * demo.networks.EPOCHS
    assert done[:both] == list(range(1, both + 1))
    assert done == sorted(done)
    assert done[-1] == whole_run.steps


def test_every_method_of_rebasin_has_a_row_below_none(whole):
    rows = whole.aligned
    wanted = [(method.name, variant) for method in METHODS.values() for variant in method.variants]
    assert [(row.method, row.variant) for row in rows] == [("(none)", ""), *wanted]
    for row in rows[1:]:
        assert row.distance < rows[0].distance
        assert not row.exact or row.accuracy == rows[0].accuracy


def test_a_missing_extra_is_a_note_and_not_the_end(short, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    result = run_demo()
    rows = {row.method: row for row in result.rows}
    assert list(rows) == ["(none)", *fit.names()]
    assert "interbasin[ot]" in rows["sinkhorn"].note and rows["sinkhorn"].accuracy is None
    assert rows["procrustes"].accuracy is not None
    assert result.new_modality.rows == () and "interbasin[ot]" in result.new_modality.verdict


def test_a_fitted_map_carries_the_hidden_layer_far_better_than_none(whole):
    rows = {row.method: row for row in whole.rows}
    assert min(whole.source_accuracy, whole.target_accuracy) > 0.9
    assert rows["procrustes"].accuracy > 0.9 > 0.5 > rows["(none)"].accuracy
    assert rows["least-squares"].residual <= rows["procrustes"].residual <= rows["assignment"].residual
    aligned = {(row.method, row.variant): row for row in whole.aligned}
    for method in ("permutation-weights", "procrustes-weights"):
        assert aligned[method, "coordinate"].barrier < 0.5 * aligned["(none)", ""].barrier
        assert aligned[method, "coordinate"].merged >= aligned["(none)", ""].merged


def test_every_way_of_translating_has_a_row_between_none_and_the_network_itself(whole):
    found = whole.stitched
    assert [row.method for row in found] == ["(none)", *demo.tables.WAYS, "(its own encoder)"]
    assert found[-2].note in CANDIDATES
    assert all(row.accuracy > found[0].accuracy and row.cosine > 0.5 for row in found[1:])


def test_a_wider_network_learns_what_the_first_was_tuned_for_and_keeps_its_own(whole):
    found = whole.fine_tune
    wide, tuned, *moved = found.rows
    assert found.widths == (64, 96) and found.inputs == 1437
    assert [row.method for row in moved] == ["theseus", "regression"]
    assert all(row.task > wide.task + 0.3 for row in moved)
    assert moved[-1].original > tuned.original + 0.1
    # Theseus explains more of the task here, and forgets what the wider network could do.
    assert found.method == "regression" and found.choice == "transport"
    assert found.verdict.startswith(f"Transport it: {found.method}")
