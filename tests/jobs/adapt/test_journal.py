"""A run that is kept in a folder: what is done is not done again, and other things are left alone."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.jobs.adapt.examples import QUICK, draw, make_mlp, make_proxy, make_target, one_recalibration  # noqa: F401

import interbasin as ib
from interbasin.errors import FileError
from interbasin.jobs.adapt import validation

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_recalibration")]


def run(state: Path | None = None, **options):
    options = {"method": "linear-probe", "test": make_target(12), **QUICK, **options}
    proxy, train = options.pop("proxy", make_proxy()), options.pop("train", make_target())
    return ib.adapt(make_mlp(), proxy, train, state=state, **options)


def figures(result):
    rows = [{**dataclasses.asdict(row), "seconds": None} for row in result.table]
    return rows, dict(result.metrics), str(result.verdict), result.method, result.trial, result.notes


def same(result, other) -> bool:
    inputs = draw(5, 1, 8, seed=9)
    return figures(result) == figures(other) and torch.equal(result.model(inputs), other.model(inputs))


@pytest.fixture
def fits(monkeypatch):
    """How often each method is fitted; one may be made to fail."""
    counts: Counter[str] = Counter()
    original = validation.fit

    def fit(setup, name, rows, trial):
        if counts["limit"] and sum(counts.values()) - counts["limit"] >= counts["limit"]:
            raise KeyboardInterrupt
        counts[name] += 1
        return original(setup, name, rows, trial)

    monkeypatch.setattr(validation, "fit", fit)
    return counts


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_was_stopped_goes_on_to_the_same_result(tmp_path, fits):
    whole = run()
    all_fits = dict(fits)
    fits.clear()
    fits["limit"] = 33  # in the middle of the folds of one method
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "state")
    done = Counter({name: count for name, count in fits.items() if name != "limit"})
    assert sum(done.values()) == 33
    fits.clear()
    assert same(run(tmp_path / "state"), whole)
    assert dict(fits + done) == all_fits  # nothing is fitted twice
    fits.clear()
    assert same(run(tmp_path / "state"), whole) and not fits


@pytest.mark.slow
def test_a_damaged_answer_is_made_again(tmp_path, fits):
    state = tmp_path / "state"
    whole = run(state)
    first, second, third, fourth, fifth = sorted(state.glob("answer-*"))[:5]
    (first / "answer.safetensors").write_bytes(b"nonsense")
    (second / "answer.json").write_text("{")
    (third / "answer.json").unlink()
    for folder, name, value in ((fourth, "steps", 99), (fifth, "seal", None)):
        document = json.loads((folder / "answer.json").read_text())
        (folder / "answer.json").write_text(json.dumps(document | {name: value}))
    fits.clear()
    assert same(run(state), whole) and sum(fits.values()) == 5


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"seed": 1}, id="a seed"),
        pytest.param({"steps": 3}, id="a setting", marks=pytest.mark.slow),
        pytest.param({"train": make_target(31)}, id="training data", marks=pytest.mark.slow),
        pytest.param({"test": make_target(13)}, id="test data", marks=pytest.mark.slow),
        pytest.param({"unlabelled": draw(4, 1, 8)}, id="unlabelled data", marks=pytest.mark.slow),
        pytest.param({"proxy": (make_proxy()[0], make_proxy()[1].roll(1))}, id="labels of the proxy"),
    ],
)
def test_the_state_of_another_run_is_refused_and_stays_as_it_is(tmp_path, options):
    run(tmp_path / "state", minutes=1e-6)
    before = contents(tmp_path)
    with pytest.raises(FileError, match=r"holds the state of another run.*or another folder"):
        run(tmp_path / "state", **options)
    assert contents(tmp_path) == before


def test_a_place_that_holds_other_things_is_refused_and_stays_as_it_is(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match=r"holds other things \(thesis.txt\)"):
        run(tmp_path)
    with pytest.raises(FileError, match="which is a file"):
        run(tmp_path / "thesis.txt")
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


@pytest.mark.slow
def test_more_training_data_are_not_taken_for_validation_data(tmp_path, fits):
    inputs, labels = make_target(40)
    apart = {"train": (inputs[:30], labels[:30]), "valid": (inputs[30:], labels[30:])}
    options = {"compare": ["nearest"], "steps": 1}
    expected = run(train=(inputs, labels), **options)
    run(tmp_path / "state", **apart, **options)
    assert same(run(tmp_path / "state", train=(inputs, labels), **options), expected)


def test_places_that_cannot_be_are_refused_before_any_work(tmp_path, fits):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("years of work")
    for place, words in (("link", "leads nowhere"), ("a\0b", "cannot be"), ("file/below", "cannot be|written")):
        with pytest.raises(FileError, match=words):
            run(tmp_path / place)
    assert not fits and sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
