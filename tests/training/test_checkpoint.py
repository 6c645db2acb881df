"""A training that was broken off goes on to the same bits; and nothing goes on from what is not its own."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.profiles import at_most
from tests.records import seal_document
from tests.test_storage import refused
from tests.training.examples import Fit, assert_same

from interbasin.errors import DataError, FileError
from interbasin.storage.records import write_record
from interbasin.training import Checkpoint, train

ROOT = Path(__file__).parents[2]
LENGTHS = [
    {"epochs": 4, "patience": 2},
    {"steps": 13, "every": 4, "schedule": "one-cycle", "optimiser": "adamw"},
    {"epochs": 3, "accumulate": 2, "schedule": "cosine", "optimiser": "sgd"},
    {"steps": 9, "accumulate": 3, "every": 2, "patience": 2},
]


def check_that_it_goes_on(folder: Path, loader: str, options: dict[str, Any], stops: list[int], steps: int) -> None:
    """Break off at each of the batches ``stops``, and compare the end with that of a run that nobody broke off."""
    whole = Fit(loader, options)
    wanted = whole.run()
    for stop_at in stops:
        part = Fit(loader, options, stop_at=stop_at)
        torch.rand(stop_at)  # whatever the global state is by then
        with contextlib.suppress(KeyboardInterrupt):
            part.run(Checkpoint(folder, "a run", steps=steps))
    last = Fit(loader, options)
    training = last.run(Checkpoint(folder, "a run", steps=steps))
    assert training == wanted and wanted.scores
    assert_same(last.model.state_dict(), whole.model.state_dict())
    assert_same(last.kept, whole.kept)
    assert training.resumed_from > 0 or max(stops) <= steps * options.get("accumulate", 1)


@at_most(8)
@given(
    loader=st.sampled_from(["rows", "loader", "list"]),
    options=st.sampled_from(LENGTHS),
    stops=st.lists(st.integers(0, 14), min_size=1, max_size=2),
    steps=st.integers(1, 4),
)
def test_a_run_that_is_broken_off_anywhere_ends_with_the_same_bits(loader, options, stops, steps):
    with tempfile.TemporaryDirectory() as folder:
        check_that_it_goes_on(Path(folder) / "checkpoint", loader, options, stops, steps)


KILLED = """
import os, signal, sys
from tests.training.examples import Fit
from interbasin.training import Checkpoint

Fit("loader", {"epochs": 4}, stop_at=int(sys.argv[2]), stop=lambda: os.kill(os.getpid(), signal.SIGKILL)).run(
    Checkpoint(sys.argv[1], "a run", steps=2)
)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path, starter):
    for stop_at in ("7", "8"):  # in the second pass, and again in the third: 6 and 8 more steps are kept
        process = starter.run(KILLED, ROOT, tmp_path / "c", stop_at)
        assert process.returncode == -signal.SIGKILL
    whole, last = Fit("loader", {"epochs": 4}), Fit("loader", {"epochs": 4})
    wanted, training = whole.run(), last.run(Checkpoint(tmp_path / "c", "a run", steps=2))
    assert training == wanted and training.resumed_from == 14
    assert_same(last.model.state_dict(), whole.model.state_dict())
    assert_same(last.kept, whole.kept)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_run_that_ends_while_it_is_written_goes_on_from_what_was_written_before(tmp_path, monkeypatch):
    writes = []

    def write_half(folder, *arguments):
        writes.append(folder)
        if len(writes) < 3:
            return write_record(folder, *arguments)
        (folder / "training.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("interbasin.training.checkpoint.write_record", write_half)
    with pytest.raises(KeyboardInterrupt):
        Fit(options={"epochs": 3}).run(Checkpoint(tmp_path / "c", "a run", steps=2))
    monkeypatch.undo()
    whole, last = Fit(options={"epochs": 3}), Fit(options={"epochs": 3})
    wanted, training = whole.run(), last.run(Checkpoint(tmp_path / "c", "a run", steps=2))
    assert training == wanted and training.resumed_from == 4
    assert_same(last.model.state_dict(), whole.model.state_dict())


# ---------------------------------------------------------------------- what is at the end


def test_a_run_that_is_done_is_not_repeated_and_brings_its_best_weights(tmp_path):
    first, second = (Fit(options={"epochs": 3, "patience": 1}) for _ in range(2))
    wanted = first.run(Checkpoint(tmp_path / "c"))
    training = second.run(Checkpoint(tmp_path / "c"))
    assert training == wanted and second.seen == 0 and training.resumed_from == training.steps > 0
    assert training.seconds >= wanted.seconds * 0.5 > 0
    assert_same(second.model.state_dict(), first.model.state_dict())
    assert_same(second.kept, first.kept)


def test_a_checkpoint_can_be_removed_and_then_nothing_is_left(tmp_path):
    checkpoint = Checkpoint(tmp_path / "deep" / "c", steps=1)
    Fit(options={"epochs": 1}).run(checkpoint)
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == ["training.json", "training.safetensors"]
    checkpoint.remove()
    checkpoint.remove()
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_folder_with_something_else_is_not_removed(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", "utf-8")
    refused(Checkpoint(tmp_path).remove, FileError, ("holds other files", "remove it yourself"))
    assert (tmp_path / "thesis.txt").exists()


def test_writing_is_due_after_so_many_steps_or_seconds(tmp_path):
    by_steps = Checkpoint(tmp_path, steps=3)
    by_steps.start(5)
    assert [by_steps.is_due(step) for step in (6, 7, 8)] == [False, False, True]
    assert Checkpoint(tmp_path, seconds=0).is_due(0) and Checkpoint(tmp_path, seconds=0, steps=9).is_due(0)
    assert Checkpoint(tmp_path).seconds == 60 and not Checkpoint(tmp_path).is_due(1000)


# ---------------------------------------------------------------------- what is refused


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that was broken off, and a function that reads its bytes."""
    with contextlib.suppress(KeyboardInterrupt):
        Fit(options={"epochs": 3}, stop_at=4).run(Checkpoint(tmp_path / "c", "a run", steps=1))
    return tmp_path / "c", lambda: {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}


@pytest.mark.parametrize(
    ("fingerprint", "options", "words"),
    [
        ("another", {"epochs": 3}, ("is of another run", "its fingerprint is 'a run', and this one's 'another'")),
        ("a run", {"epochs": 4}, ("begun with epochs = 3, and now it is 4", "remove that folder")),
        ("a run", {"epochs": 3, "rate": 0.5}, ("begun with rates = [0.02], and now it is [0.5]",)),
        ("a run", {"epochs": 3, "seed": 8}, ("begun with seed = 7",)),
        ("a run", {"epochs": 3, "optimiser": "sgd"}, ("begun with optimiser = 'adam'",)),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_stays(begun, fingerprint, options, words):
    folder, contents = begun
    before = contents()
    other = Fit(options=options)
    start = {name: tensor.clone() for name, tensor in other.model.state_dict().items()}
    refused(lambda: other.run(Checkpoint(folder, fingerprint, steps=1)), FileError, words)
    assert contents() == before and other.seen == 0
    assert_same(other.model.state_dict(), start)


def spoil_numbers(folder: Path) -> None:
    whole = bytearray((folder / "training.safetensors").read_bytes())
    whole[-1] ^= 1
    (folder / "training.safetensors").write_bytes(whole)


def leave_out(name: str) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        document = json.loads((folder / "training.json").read_text("utf-8"))
        del document[name]
        seal_document(folder / "training.json", document)

    return rewrite


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "training.json").write_text("{", "utf-8"), ("cannot be used", "cut off")),
        (lambda folder: (folder / "training.safetensors").write_bytes(b"short"), ("cannot be used", "cut off")),
        (lambda folder: (folder / "training.safetensors").unlink(), ("cannot be used", "is missing")),
        (lambda folder: (folder / "training.json").unlink(), ("cannot be used", "training.json is missing")),
        (spoil_numbers, ("cannot be used", "numbers are not those that were saved")),
        (leave_out("request"), ("cannot be used", "does not say what it was begun with")),
        (leave_out("position"), ("cannot be used", "KeyError: 'position'")),
        (leave_out("groups"), ("cannot be used", "KeyError: 'groups'")),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_stays(begun, damage, words):
    folder, contents = begun
    damage(folder)
    before = contents()
    fit = Fit(options={"epochs": 3})
    refused(lambda: fit.run(Checkpoint(folder, "a run", steps=1)), FileError, (*words, "to start anew"))
    assert contents() == before and fit.seen == 0


def test_a_folder_with_something_else_is_not_written_to(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", "utf-8")
    fit = Fit(options={"epochs": 1})
    refused(lambda: fit.run(Checkpoint(tmp_path)), FileError, ("cannot be used", "training.json is missing"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"] and fit.seen == 0


def test_data_that_have_shrunk_are_refused(tmp_path):
    def fit(data, stop_at):
        weight = torch.zeros(1, requires_grad=True)

        def loss(batch, index):
            if index == stop_at:
                raise KeyboardInterrupt
            return (weight - batch).square().sum()

        train([weight], data, loss, epochs=2, rate=0.1, checkpoint=Checkpoint(tmp_path / "c", steps=1))

    with pytest.raises(KeyboardInterrupt):
        fit([torch.ones(1)] * 5, 3)
    refused(lambda: fit([torch.ones(1)] * 2, None), DataError, ("has seen 3 batches of epoch 1", "the same data"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Checkpoint(""), ("name is empty",)),
        (lambda: Checkpoint("c", b"run"), ("fingerprint must be text", "bytes")),
        (lambda: Checkpoint("c", seconds=-1.0), ("seconds must be", "-1.0")),
        (lambda: Checkpoint("c", steps=0), ("steps must be a whole number", "0")),
        (lambda: Fit(options={"epochs": 1}).run(Checkpoint(__file__)), ("cannot be used", "it is a file")),
    ],
)
def test_what_can_be_no_checkpoint_is_refused(make, words):
    refused(make, (DataError, FileError), words)


def test_data_that_can_be_read_once_have_no_checkpoint(tmp_path):
    weight, checkpoint = torch.zeros(1, requires_grad=True), Checkpoint(tmp_path / "c")

    def fit():
        train([weight], iter([1.0]), lambda batch, _: weight.sum(), epochs=1, rate=0.1, checkpoint=checkpoint)

    refused(fit, DataError, ("A training with a checkpoint reads the data more than once",))
