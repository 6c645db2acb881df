"""``interbasin data``: what can be made is listed, made and written once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_frame import failed, run
from tests.test_storage import left_in

from interbasin.datasets import read_pairs
from interbasin.datasets.equations import EQUATIONS
from interbasin.datasets.generated import GENERATORS


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [(), ("--list",), ("burgers", "--list")], ids=["bare", "list", "with a name"])
def test_all_that_can_be_made_is_listed(words):
    done = run("data", *words)
    assert done.exit_code == 0 and [name for name in GENERATORS if name not in done.stdout] == []
    assert set(json.loads(run("data", *words, "--json").stdout)) == set(GENERATORS)


def test_the_help_has_a_line_for_each_equation_with_its_numbers():
    shown = " ".join(run("data", "--help").stdout.split())
    assert [name for name, equation in EQUATIONS.items() if equation.about not in shown] == []
    assert "viscosity 0.01" in shown and "merged-labels" in shown


def test_an_equation_is_written_with_the_numbers_that_are_set():
    words = ("--count", 5, "--test-count", 2, "--points", 16, "--seed", 3, "--set", "speed=0", "--set", "time=1")
    done = run("data", "advection", "-o", "a.npz", *words, "--json")
    summary = json.loads(done.stdout)
    assert done.exit_code == 0 and summary["shapes"]["x_test"] == [2, 1, 16]
    assert summary["request"]["numbers"] == {"speed": 0, "time": 1} and summary["request"]["seed"] == 3
    inputs, labels, _ = read_pairs("a.npz")
    assert inputs.shape == (5, 1, 16) and bool(inputs.allclose(labels, atol=1e-6))


def test_people_are_told_what_was_written():
    done = run("data", "merged-labels", "--from", "digits", "--classes", 4, "-o", "m.npz")
    assert done.exit_code == 0 and "m.npz" in done.stdout and "1437 x 8 x 8" in done.stdout and done.stderr == ""
    assert read_pairs("m.npz")[1].unique().tolist() == [0, 1, 2, 3]


def test_a_gap_is_planted_in_the_data_that_are_named():
    assert run("data", "rotated-patches", "--from", "digits", "--patch", 2, "-o", "r.npz").exit_code == 0
    assert read_pairs("r.npz", split="test")[0].shape == (360, 1, 8, 8)


def test_people_are_told_which_names_a_merged_label_stands_for():
    Path("t.csv").write_text("a,label\n" + "".join(f"{row},{('saw', 'sine', 'bell')[row % 3]}\n" for row in range(6)))
    done = run("data", "merged-labels", "--from", "t.csv", "--classes", 1, "-o", "m.npz")
    assert "label 0" in done.stdout and "bell, saw, sine" in done.stdout


def test_a_table_names_the_column_of_its_labels():
    Path("t.csv").write_text("a,b,kind\n" + "".join(f"{row},1,{row % 3}\n" for row in range(6)))
    words = ("data", "merged-labels", "--from", "t.csv", "--classes", 2, "-o", "m.npz")
    assert "of the labels with --label-column" in failed(run(*words))
    assert run(*words, "--label-column", "kind").exit_code == 0
    inputs, labels, _ = read_pairs("m.npz")
    assert inputs.shape == (6, 2) and set(labels.tolist()) == {0, 1}


def test_nothing_is_overwritten_without_force():
    words = ("data", "advection", "-o", "a.npz", "--count", 3)
    assert run(*words).exit_code == 0
    before = Path("a.npz").read_bytes()
    assert "--force" in failed(run(*words, "--seed", 1)) and Path("a.npz").read_bytes() == before
    assert run(*words, "--seed", 1, "--force").exit_code == 0 and Path("a.npz").read_bytes() != before


def test_a_refusal_speaks_of_options_and_leaves_nothing(tmp_path):
    assert "--classes" in failed(run("data", "merged-labels", "--from", "digits", "-o", "m.npz"))
    assert "--from" in failed(run("data", "rotated-patches", "-o", "m.npz"))
    assert left_in(tmp_path) == []
