"""``interbasin adapt``: a model and a verdict for what lies on disk, going on after a kill, errors of a sentence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from tests.cli.test_frame import PLAIN, failed, run
from tests.test_storage import left_in
from torch import nn

from interbasin.cli.output import print_table
from interbasin.cli.target_data import TargetReader
from interbasin.datasets import load_digits
from interbasin.jobs.adapt import job as job_module
from interbasin.jobs.adapt import load_adapted, validation
from interbasin.jobs.adapt.source_head import SourceHead
from interbasin.models import load_model
from interbasin.outcome import Outcome

FACTORY = """
import torch
from torch import nn

import interbasin as ib

def small():
    layers = nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)
    return nn.Sequential(*layers), torch.rand(2, 6)

def source():
    network, inputs = small()
    return ib.Source(network[:2], network[2:4], network[4]), inputs

def bare():
    return source()[0]

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)

def odd():
    return Odd(), torch.rand(2, 6)
"""
SMALL = "adapt_nets:small@small.safetensors"
BASIC = ("--proxy", "proxy.npz", "--data", "data.npz")
QUICK = ("--method", "linear-probe", "--steps", 2, "--align-steps", 1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, its proxy, and signals of another modality."""
    folder = tmp_path_factory.mktemp("adapt")
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    network = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))
    save_file(network.state_dict(), folder / "small.safetensors")
    inputs = draw.normal(size=(40, 6)).astype("float32")
    np.savez(folder / "proxy.npz", x=inputs, y=np.arange(40) % 3)
    for name, count in (("data", 40), ("test", 20)):
        labels = np.arange(count) % 2
        signals = draw.normal(size=(count, 1, 8)) + labels[:, None, None] * np.linspace(-2, 2, 8)
        np.savez(folder / f"{name}.npz", x=signals.astype("float32"), y=labels)
    np.save(folder / "more.npy", draw.normal(size=(30, 1, 8)).astype("float32"))
    (folder / "adapt_nets.py").write_text(FACTORY)
    return folder


@pytest.fixture
def here(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is left in the folder is looked at
    sys.modules.pop("adapt_nets", None)
    # How the source's head is recalibrated is tried elsewhere, and takes long.
    plain = "interbasin.jobs.adapt.setup.recalibrate"
    monkeypatch.setattr(plain, lambda linear, *data, **asked: SourceHead(linear, *[1.0] * 5, torch.arange(2)))
    yield tmp_path
    sys.modules.pop("adapt_nets", None)


def arrays(name: str) -> tuple[Any, Any]:
    with np.load(name) as opened:
        return opened["x"], opened["y"]


def summary_of(*arguments: object) -> dict[str, Any]:
    done = run("adapt", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def test_a_model_a_table_and_a_verdict_come_out(here):
    before = left_in(here)
    extra = ("--test", "test.npz", "--unlabelled", "more.npy")
    done = run("adapt", SMALL, *BASIC, *QUICK, *extra, "-o", "out", "--quiet")
    assert done.exit_code == 0, done.output
    outcome = Outcome.load("out")
    outcome.verify()
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert lines[-1] == Path("out/verdict.txt").read_text().splitlines()[0]  # the verdict comes last
    assert re.fullmatch(r"linear-probe \(penalty \S+\), fitted to 40 labelled samples", lines[0])
    assert lines[1] == "errors are error: share of answers that are wrong"
    shown = {line.split()[0] for line in lines}
    assert {"raw-linear", "nearest", "scratch", "naive", "linear-probe", "bound_direct", "err_target"} <= shown
    new = set(left_in(here)) - set(before)
    assert {Path(path).parts[0] for path in new} == {"out"}  # nothing is kept beside what is complete
    assert {"source", "proxy", "data", "test", "unlabelled"} == set(outcome.inputs)


@pytest.mark.slow
def test_the_lines_that_are_printed_load_the_model(here):
    summary = summary_of(SMALL, *BASIC, *QUICK, "--test", "test.npz", "-o", "out")
    assert summary["method"] == "linear-probe" and summary["verdict"]["choice"] in (
        "too-few",
        "simple-model",
        "scratch",
    )
    assert {row["method"] for row in summary["table"]} == {"raw-linear", "nearest", "scratch", "naive", "linear-probe"}
    names: dict[str, Any] = {}
    exec(summary["use"]["python"], names)
    signals, labels = arrays("test.npz")
    answers = names["model"](torch.from_numpy(signals)).argmax(1).numpy()
    assert np.mean(answers != labels) == pytest.approx(summary["metrics"]["error_test"])


@pytest.mark.slow
def test_a_factory_may_return_the_parts_of_a_source(here):
    weights = load_model(SMALL).model.state_dict()
    parts = {"0": "embedder.0", "2": "body.2", "4": "head"}
    renamed = {f"{parts[name.split('.')[0]]}.{name.split('.')[1]}": tensor for name, tensor in weights.items()}
    save_file(renamed, "parts.safetensors")
    by_hand = "adapt_nets:source@parts.safetensors"
    first = summary_of(SMALL, *BASIC, *QUICK, "-o", "one")
    second = summary_of(by_hand, *BASIC, *QUICK, "-o", "two")
    assert second["metrics"] == first["metrics"]
    inputs = torch.from_numpy(arrays("test.npz")[0])
    model = load_adapted("two", load_model(by_hand).model)
    assert torch.equal(model(inputs), load_adapted("one", load_model(SMALL).model)(inputs))


@pytest.mark.slow
def test_rows_are_laid_out_as_asked(here):
    signals, labels = arrays("data.npz")
    np.savez("flat.npz", x=signals.reshape(40, 8), y=labels)
    flat = ("--proxy", "proxy.npz", "--data", "flat.npz", "--shape", "1,8")
    found = summary_of(SMALL, *flat, *QUICK, "-o", "a")
    assert found["metrics"] == summary_of(SMALL, *BASIC, *QUICK, "-o", "b")["metrics"]


@pytest.mark.slow
def test_labels_with_names_mean_the_same_in_all_files(here):
    signals, labels = arrays("data.npz")
    words = np.array(["no", "yes"])[labels]
    np.savez("named.npz", x=signals, y=words)
    np.savez("yes.npz", x=signals[1::2], y=words[1::2])  # alone, its one label would be number 0
    named = ("--proxy", "proxy.npz", "--data", "named.npz", "--test", "yes.npz")
    summary = summary_of(SMALL, *named, *QUICK, "-o", "out")
    model = load_adapted("out", load_model(SMALL).model)
    wrong = model(torch.from_numpy(signals[1::2])).argmax(1) != 1
    assert summary["metrics"]["error_test"] == pytest.approx(float(wrong.float().mean()))


def write_table(name: str, columns: dict[str, Any]) -> None:
    rows = zip(*columns.values(), strict=True)
    Path(name).write_text("\n".join(",".join(map(str, row)) for row in [columns.keys(), *rows]) + "\n")


def write_tables() -> None:
    """The same signals in tables: labels are names in a column ``kind``; of the proxy, numbers in ``species``."""
    for name in ("data", "test"):
        signals, labels = arrays(f"{name}.npz")
        columns = {f"t{place}": signals[:, 0, place] for place in range(8)}
        write_table(f"{name}.csv", columns | {"kind": np.array(["square", "saw"])[labels]})
        write_table(f"{name}-numbers.csv", columns | {"kind": 1 - labels})
        write_table(f"{name}-plain.csv", columns)
    inputs, labels = arrays("proxy.npz")
    write_table("proxy.csv", {f"f{place}": inputs[:, place] for place in range(6)} | {"species": labels})


IN_TABLES = ("--proxy", "proxy.csv", "--data", "data.csv", "--label-column", "kind", "--proxy-label-column", "species")
FAST = ("--method", "raw-linear", "--steps", 1)


def test_tables_name_the_columns_of_their_labels_and_the_model_keeps_the_names_of_classes(here):
    write_tables()
    summary = summary_of(SMALL, *IN_TABLES, *FAST, "--test", "test.csv", "--unlabelled", "data-plain.csv", "-o", "out")
    assert summary["classes"] == ["saw", "square"]  # in the order of the alphabet, not of the file
    assert json.loads(Path("out/adaptation.json").read_text())["classes"] == ["saw", "square"]
    assert Outcome.load("out").request["classes"] == ["saw", "square"]
    model = load_adapted("out")
    assert model.classes == ("saw", "square")
    signals, labels = arrays("test.npz")
    answers = [model.classes[place] for place in model(torch.from_numpy(signals[:, 0])).argmax(1)]
    right = np.array(["square", "saw"])[labels]
    assert np.mean(right != answers) == pytest.approx(summary["metrics"]["error_test"])
    assert np.mean(right != answers) < 0.3
    done = run("adapt", SMALL, *IN_TABLES, *FAST, "-o", "again", "--quiet")
    assert "its outputs are, in this order, saw, square" in done.stdout


def test_classes_without_names_have_none(here):
    assert summary_of(SMALL, *BASIC, *FAST, "-o", "out")["classes"] is None
    assert load_adapted("out").classes is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--proxy", "proxy.npz", "--data", "data.csv"),
            ("label, y, target, class", "of the labels with --label-column, "),
        ),
        (("--proxy", "proxy.csv", "--data", "data.npz"), ("species", "with --label-column, ")),
        ((*IN_TABLES, "--label-column", "sort"), ("'sort'", "kind")),
        ((*IN_TABLES, "--test", "test-plain.csv"), ("'kind'",)),
        (
            (*IN_TABLES, "--test", "test-numbers.csv"),
            ("data.csv has labels with names (saw, square)", "test-numbers.csv has labels that are numbers", "alike"),
        ),
        (
            (*IN_TABLES, "--data", "data-numbers.csv", "--valid", "test.csv"),
            ("data-numbers.csv has labels that are numbers", "test.csv has labels with names (saw, square)"),
        ),
        ((*IN_TABLES, "--test", "./data.csv"), ("--test was to be read", "no test part", "--data already", "x_test")),
        ((*IN_TABLES, "--valid", "data.csv"), ("--valid was to be read", "no valid part", "--data already", "x_valid")),
        ((*IN_TABLES, "--valid", "test.csv", "--test", "test.csv"), ("--test was", "those of --valid already")),
    ],
)
def test_what_is_wrong_with_tables_is_said_in_one_sentence(here, arguments, words):
    write_tables()
    sentence = failed(run("adapt", SMALL, *arguments, *FAST, "-o", "out"))
    assert [word for word in words if word not in sentence] == []


def test_a_file_with_a_test_part_may_be_given_twice(here):
    parts = {name: array for name, array in zip(("x", "y"), arrays("data.npz"), strict=True)}
    parts |= {f"{name}_test": array for name, array in zip(("x", "y"), arrays("test.npz"), strict=True)}
    np.savez("parts.npz", **parts)
    whole = ("--proxy", "proxy.npz", "--data", "parts.npz", "--test", "parts.npz")
    found = summary_of(SMALL, *whole, *FAST, "-o", "one")
    assert found["metrics"] == summary_of(SMALL, *BASIC, "--test", "test.npz", *FAST, "-o", "two")["metrics"]


def test_numbers_are_the_names_of_digits(here):
    reader = TargetReader(None, None, None, None, 0)
    reader.read("digits", "train")
    digits = load_digits()
    np.savez("digits.npz", x=digits.test_images, y=digits.test_labels)
    assert torch.equal(reader.read("digits.npz", "test")[1], digits.test_labels)
    assert reader.classes == tuple("0123456789")


@pytest.mark.slow
def test_a_command_that_was_killed_goes_on_and_comes_to_the_same(here, monkeypatch):
    answered = Mock(wraps=validation.answer)
    monkeypatch.setattr(validation, "answer", answered)
    whole = summary_of(SMALL, *BASIC, *QUICK, "-o", "whole")
    count = answered.call_count
    hold_out = job_module.hold_out
    asked: list[str] = []

    def interrupted(setup: Any, folds: Any, name: str, **options: Any) -> Any:
        asked.append(name)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return hold_out(setup, folds, name, **options)

    monkeypatch.setattr(job_module, "hold_out", interrupted)
    done = run("adapt", SMALL, *BASIC, *QUICK, "-o", "again")
    assert done.exit_code == 130 and "kept beside OUTPUT" in done.stderr and not Path("again").exists()
    monkeypatch.setattr(job_module, "hold_out", hold_out)
    answered.reset_mock()
    again = summary_of(SMALL, *BASIC, *QUICK, "-o", "again")
    assert 0 < answered.call_count < count
    assert again["metrics"] == whole["metrics"]
    assert Path("again/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert not list(here.glob(".interbasin*"))


def test_options_of_training_reach_the_job_and_events_are_written(here):
    options = ("--accumulate", 2, "--optimiser", "sgd", "--decay", 0.1)
    stage_one = ("--features", "embedder", "--head-loss", "labels", "--schedule", "sequential", "--distortion-steps", 1)
    x, y = arrays("data.npz")
    np.savez("held.npz", x=x[:8] + 1, y=y[:8])
    steps = ("--valid", "held.npz", "--patience", 3, "--steps", 2, "--align-steps", 2, "--method", "recraft")
    summary = summary_of(SMALL, *BASIC, *options, *stage_one, *steps, "--tensorboard", "events", "-o", "out")
    request = json.loads((here / "out" / "outcome.json").read_text())["request"]
    expected = {"accumulate": 2, "optimiser": "sgd", "decay": 0.1, "features": "embedder", "head_loss": "labels"}
    expected |= {"schedule": "sequential", "distortion_steps": 1, "patience": 3, "tensorboard": "events"}
    assert {name: request[name] for name in expected} == expected
    assert summary["method"] == "recraft" and len(list(here.glob("events/*/events.out.tfevents.*"))) > 5


def test_a_bar_shows_the_loss_of_each_training(here, monkeypatch):
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "160")):
        monkeypatch.setitem(PLAIN, name, value)
    done = run("adapt", SMALL, *BASIC, "--method", "naive", "--steps", 3, "-o", "out", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["method"] == "naive"
    # A terminal is drawn ten times a second, so that not all trainings are seen; the last state always is.
    assert re.search(r"fitting naive to all samples: loss \d.* 3/3 ", done.stderr)


def test_without_pot_it_fails_before_anything_is_read(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    done = run("adapt", "no.such:network", "--proxy", "nothing", "--data", "nothing", "-o", "out")
    assert done.exit_code == 1 and "interbasin[ot]" in done.stderr and "such" not in done.stderr
    simple = ("--method", "nearest", "--steps", 1)
    assert run("adapt", SMALL, *BASIC, *simple, "-o", "out").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        (("adapt_nets:odd", *BASIC), "Source(embedder, body, head)"),
        ((SMALL, "--proxy", "more.npy", "--data", "data.npz"), "6"),
        ((SMALL, "--proxy", "proxy.npz", "--data", "more.npy"), "more.npy has no labels"),
        ((SMALL, *BASIC, "--method", "recraftt"), "recraft"),
        ((SMALL, *BASIC, "--task", "words"), "classification"),
        ((SMALL, *BASIC, "--preset", "ecgg"), "ecg"),
        ((SMALL, *BASIC, "--body", "half"), "frozen"),
        ((SMALL, *BASIC, "--metric", "f2"), "metric"),
        ((SMALL, *BASIC, "--minutes", 0), "minutes"),
        ((SMALL, *BASIC, "--shape", "3,5"), "--shape"),
        ((SMALL, *BASIC, "--valid", "proxy.npz"), "validation"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(here, arguments, keyword):
    before = left_in(here)
    done = run("adapt", *arguments, "-o", "out")
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1 and keyword in done.stderr
    assert done.stdout == "" and left_in(here) == before


@pytest.mark.parametrize(
    ("arguments", "spelled"),
    [
        (("--data", "fractions.npz"), "use --task regression, or number the classes."),
        (("--data", "fields.npz"), "use --task multilabel, --task regression or --task dense for these."),
        ((*BASIC[2:], "--task", "regression", "--predictor", "transport"), "use --predictor head or --predictor auto."),
    ],
)
def test_a_refusal_of_the_job_is_spelled_in_options(here, arguments, spelled):
    signals, _ = arrays("data.npz")
    np.savez("fractions.npz", x=signals, y=np.linspace(0, 1, 40))
    np.savez("fields.npz", x=signals, y=signals)
    assert spelled in failed(run("adapt", SMALL, *BASIC[:2], *arguments, "-o", "out"))


def test_an_output_in_the_way_is_refused_before_torch_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom interbasin.cli import app\n"
        "done = CliRunner().invoke(app, sys.argv[1:])\nprint(done.stderr, 'torch' in sys.modules)"
    )
    words = ["adapt", "no.such:network", "--proxy", "p", "--data", "d", "-o", "out"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert "ask for it with --force." in done.stdout and done.stdout.endswith("False\n")


def test_an_outcome_is_not_overwritten_without_force(here):
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    done = run("adapt", SMALL, *BASIC, *QUICK, "-o", "out", "--force")
    assert done.exit_code == 1 and Path("out/mine.txt").read_text() == "mine"


def test_names_of_methods_are_whole_on_a_screen_of_eighty_columns():
    """Figures are never broken there, and once took the room of the names."""
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    titles = ("method", "trial", "held out", "interval", "test", "steps", "s/fit")
    cells = ("linear-probe", "penalty 0.001", "0.03125", "0.00347–0.0278", "0.04167", "150", "123.45")
    print_table(console, titles, [cells], words=(0, 1), whole_figures=True)
    printed = console.file.getvalue()
    assert [cell for cell in cells if cell not in printed] == []
    assert max(map(len, printed.splitlines())) <= 80
