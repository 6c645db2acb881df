"""The folder a job leaves: whole or not at all, exact when read again, and suspicious of what others did to it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fresh import Running, Starter
from tests.test_storage import case, full_disk, interrupt, left_in, refused

import interbasin as ib
from interbasin.errors import DataError, FileError
from interbasin.models import load_model
from interbasin.outcome import Outcome, new_outcome, outcome, refuse_outcome_in_the_way
from interbasin.outcome.hashes import files_of
from interbasin.storage import atomic
from interbasin.storage.lock import remove_stale

SVG = "<svg xmlns='http://www.w3.org/2000/svg'/>"


def save(folder: Path, barrier: float = 1.0, force: bool = False) -> Outcome:
    with new_outcome(folder, job="evaluate", request={"points": 25}, seed=3, force=force) as out:
        out.metrics["barrier"] = barrier
        out.table("curve", {"t": [0.0, 0.5, 1.0], "method": ["a", "b", 'a, "b"\n']})
        out.plot("curve plot", SVG)
        out.text("README.md", "What this is.\n")
    return out.outcome


@pytest.fixture
def saved(tmp_path) -> Path:
    return save(tmp_path / "out").folder


FILES = ["README.md", "curve plot.svg", "curve.csv", "outcome.json"]


# ---------------------------------------------------------------------- what is written is what is read


def test_an_outcome_comes_back_as_it_was(saved):
    found = Outcome.load(saved)
    assert left_in(saved) == FILES
    assert (found.job, found.seed, dict(found.request), dict(found.metrics)) == (
        "evaluate",
        3,
        {"points": 25},
        {"barrier": 1.0},
    )
    assert found.table("curve") == {"t": [0.0, 0.5, 1.0], "method": ["a", "b", 'a, "b"\n']}
    assert found.path("README.md").read_text("utf-8") == "What this is.\n"
    assert found.versions["interbasin"] == ib.__version__ and found.versions["torch"] == torch.__version__
    assert set(found.versions) == {"interbasin", "python", "torch", "numpy"}
    assert found.seconds >= 0 and found.started.endswith("+00:00") and not found.notes
    found.verify()


def test_the_json_is_json_for_everyone(tmp_path):
    save(tmp_path / "out", math.nan)
    text = (tmp_path / "out" / "outcome.json").read_text("utf-8")
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert document["format"] == "interbasin.outcome" and document["version"] == 1
    assert document["metrics"] == {"barrier": "NaN"}
    assert document == document | Outcome.load(tmp_path / "out").summary()


@given(
    metrics=st.dictionaries(st.text(min_size=1), st.floats() | st.integers(-(2**53), 2**53)),
    column=st.lists(st.floats()),
    request_=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_numbers_and_requests_are_saved_exactly(tmp_path_factory, metrics, column, request_):
    folder = tmp_path_factory.mktemp("law") / "out"
    with new_outcome(folder, job="law", request={"asked": request_}) as out:
        out.metrics.update(metrics)
        out.table("column", {"value": column})
    found = Outcome.load(folder)
    assert list(found.metrics) == list(metrics)
    # repr tells -0.0 from 0.0 and counts from measured numbers, and takes NaN for NaN
    assert repr(list(found.metrics.values())) == repr(list(metrics.values()))
    assert repr(found.table("column")["value"]) == repr(column)
    assert repr(found.request["asked"]) == repr(request_)
    odd = [name for name, value in metrics.items() if not math.isfinite(value)]
    assert len(found.notes) == bool(odd)


@given(st.lists(st.text(st.characters(blacklist_characters="\r\0", blacklist_categories=["Cs"]))))
def test_text_in_tables_is_saved_exactly(tmp_path_factory, words):
    with new_outcome(tmp_path_factory.mktemp("law") / "out", job="law", request={}) as out:
        out.table("words", {"word": words, 'more, "or\n less': words})
    assert out.outcome.table("words") == {"word": words, 'more, "or\n less': words}


def test_numbers_of_any_library_are_metrics(tmp_path):
    with new_outcome(tmp_path / "out", job="a", request={"lr": np.float32(0.5), "path": Path("x")}) as out:
        out.metrics |= {"a": torch.tensor(0.5), "b": np.float32(0.25), "c": 3, "d": torch.tensor([2.0])}
    assert dict(out.outcome.metrics) == {"a": 0.5, "b": 0.25, "c": 3, "d": 2.0}
    assert dict(out.outcome.request) == {"lr": 0.5, "path": "x"}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))


def test_a_network_and_an_alignment_come_back_exactly(tmp_path):
    model = network()
    alignment = ib.wire(model, torch.randn(4, 3)).sample(seed=0)
    with new_outcome(tmp_path / "out", job="rebasin", request={}) as out:
        out.write_checkpoint(model)
        out.write_checkpoint({"w": torch.ones(2)}, name="second", place="second")
        out.add_alignment(alignment)
        with out.timed("align"):
            pass
    found = out.outcome
    assert found.timings["align"] >= 0
    assert {one.name: one.kind for one in found.artefacts} == {
        "model": "checkpoint",
        "second": "checkpoint",
        "alignment": "alignment",
    }
    assert left_in(tmp_path / "out") == [
        "alignment",
        "alignment/alignment.json",
        "alignment/alignment.safetensors",
        "model.safetensors",
        "outcome.json",
        "second",
        "second/model.safetensors",
    ]
    assert all(torch.equal(found.checkpoint()[name], value) for name, value in model.state_dict().items())
    assert found.checkpoint("second")["w"].tolist() == [1.0, 1.0]
    assert found.alignment().maps == alignment.maps
    found.verify()


def test_the_folder_of_an_outcome_is_a_model_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine_for_outcomes.py").write_text(
        "from torch import nn\ndef small():\n    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))\n",
        "utf-8",
    )
    model = network()
    with new_outcome("out", job="rebasin", request={}) as out:
        out.write_checkpoint(model)
        out.text("README.md", "A card.")
    again = load_model("mine_for_outcomes:small@out").model
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_files_of_the_caller_can_be_registered(tmp_path):
    with new_outcome(tmp_path / "out", job="a", request={}) as out:
        (out.folder / "kept").mkdir()
        (out.folder / "kept" / "one.bin").write_bytes(b"1")
        out.add("kept", "file", "kept")
        refused(lambda: out.add("kept", "file", "kept"), DataError, ("Two artefacts", "'kept'"))
        refused(lambda: out.add("other", "file", "nowhere"), FileError, ("nowhere", "there is nothing"))
        refused(lambda: out.add("other", "file", ".."), FileError, ("there is nothing",))
        refused(lambda: out.add("other", "song", "kept"), DataError, ("'song'", "try 'file'"))
    assert list(out.outcome.artefact("kept").files) == ["kept/one.bin"]


# ---------------------------------------------------------------------- hashes of the inputs


def test_inputs_are_hashed_where_they_are_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.npy").write_bytes(b"abc")
    Path("folder/below").mkdir(parents=True)
    Path("folder/b.txt").write_bytes(b"b")
    Path("folder/below/a.txt").write_bytes(b"a")
    Path("folder/.hidden").write_bytes(b"h")
    inputs = {
        "file": "x.npy",
        "folder": Path("folder"),
        "model": "some.module:make@x.npy",
        "name": "digits",
        "odd": "a\0b",
        "empty": "",
    }
    with new_outcome("out", job="a", request={}, inputs=inputs) as out:
        pass
    found = Outcome.load("out").inputs
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (found["file"].sha256, found["file"].bytes) == (abc, 3)
    assert (found["model"].sha256, found["model"].path) == (abc, "x.npy")
    assert set(found["folder"].files) == {"b.txt", "below/a.txt"} and found["folder"].bytes == 2
    # As a shell tells: cd folder; sha256sum b.txt below/a.txt | sha256sum
    command = ["sh", "-c", "sha256sum b.txt below/a.txt | sha256sum"]
    shell = subprocess.run(command, cwd="folder", capture_output=True, text=True, check=True).stdout
    assert found["folder"].sha256 == shell.split()[0]
    for name in ("name", "odd", "empty"):
        assert found[name].sha256 is None and found[name].given == inputs[name]
    assert out.outcome.timings["hash inputs"] >= 0


def test_a_folder_of_many_files_has_one_hash(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(str(number), "utf-8")
    found = files_of(tmp_path)
    assert found.files == {} and len(found.sha256 or "") == 64
    (tmp_path / "7.txt").write_text("other", "utf-8")
    assert files_of(tmp_path).sha256 != found.sha256


def test_an_input_that_cannot_be_read_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "x.npy").write_bytes(b"abc")

    def unreadable(*arguments: object, **keywords: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hashlib.file_digest", unreadable)

    def write() -> None:
        with new_outcome(tmp_path / "out", job="a", request={}, inputs={"x": tmp_path / "x.npy"}):
            pass

    refused(write, FileError, ("x.npy", "Permission denied"))
    assert left_in(tmp_path) == ["x.npy"]


# ---------------------------------------------------------------------- what is in the way


def test_nothing_is_overwritten_without_force(saved, tmp_path):
    refused(lambda: save(saved, 2.0), FileError, (str(saved), "--force"))
    refused(lambda: refuse_outcome_in_the_way(saved), FileError, ("--force",))
    refuse_outcome_in_the_way(saved, force=True)
    assert Outcome.load(saved).metrics["barrier"] == 1.0
    save(saved, 2.0, force=True)
    assert Outcome.load(saved).metrics["barrier"] == 2.0
    assert left_in(tmp_path) == ["out", *(f"out/{name}" for name in FILES)]


def test_a_report_beside_it_may_be_replaced(saved):
    (saved / "report.html").write_text("<html>", "utf-8")
    save(saved, 2.0, force=True)
    assert left_in(saved) == FILES


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "thesis.tex").write_text("years", "utf-8"),
        lambda folder: (folder / "outcome.json").write_text("{}", "utf-8"),
        lambda folder: (folder / "outcome.json").unlink(),
        lambda folder: (folder / "link").symlink_to("/"),
        lambda folder: ((folder / "below").mkdir(), (folder / "below" / "x").write_text("x", "utf-8")),
    ],
    ids=["another's file", "another's document", "no document", "a link", "another's folder"],
)
def test_force_never_takes_what_is_not_an_outcome(spoil, saved):
    spoil(saved)
    before = left_in(saved)
    refused(lambda: save(saved, 2.0, force=True), FileError, ("did not write",))
    assert left_in(saved) == before


# ---------------------------------------------------------------------- nothing half-written

FAULTS = {
    "a table": lambda patch, fault: patch.setattr("csv.writer", fault),
    "a text": lambda patch, fault: patch.setattr(Path, "write_text", fault),
    "a hash": lambda patch, fault: patch.setattr("hashlib.file_digest", fault),
    "the flush": lambda patch, fault: patch.setattr(os, "fsync", fault),
    "the exchange": lambda patch, fault: patch.setattr(atomic, "_exchange", fault),
    "the permissions": lambda patch, fault: patch.setattr(Path, "chmod", fault),
}


# Where nothing is replaced, nothing is exchanged.
@pytest.mark.parametrize(
    ("step", "there"), [(step, there) for step in FAULTS for there in (True, False) if there or step != "the exchange"]
)
def test_a_full_disk_leaves_what_was_there_before(step, there, tmp_path, monkeypatch):
    if there:
        save(tmp_path / "out")
    before = left_in(tmp_path)
    with monkeypatch.context() as patch:
        FAULTS[step](patch, full_disk)
        refused(lambda: save(tmp_path / "out", 2.0, force=True), FileError, ("No space left on device",))
    assert left_in(tmp_path) == before
    assert not there or Outcome.load(tmp_path / "out").metrics["barrier"] == 1.0


@pytest.mark.parametrize("step", FAULTS)
def test_an_interrupt_leaves_what_was_there_before(step, saved, tmp_path, monkeypatch):
    before = left_in(tmp_path)
    with monkeypatch.context() as patch:
        FAULTS[step](patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(saved, 2.0, force=True)
    assert left_in(tmp_path) == before and Outcome.load(saved).metrics["barrier"] == 1.0


def test_an_error_of_the_job_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), new_outcome(tmp_path / "out", job="a", request={}) as out:
        out.write_checkpoint(network())
        raise ZeroDivisionError
    assert left_in(tmp_path) == []


SLOW = """
import signal, sys, time, torch
from interbasin.outcome import new_outcome

signal.signal(signal.SIGINT, signal.default_int_handler)  # which programs in the background inherit as ignored
with new_outcome(sys.argv[1], job="slow", request={}, force=True) as out:
    out.metrics["barrier"] = 2.0
    out.write_checkpoint({"w": torch.ones(1000)})
    print("half", flush=True)
    time.sleep(60)
"""


def start(starter: Starter, folder: Path) -> Running:
    process = starter.start(SLOW, folder.parent, folder)
    process.wait_for("half")
    return process


def stop(process: Running, how: signal.Signals) -> None:
    process.kill(how)
    process.wait(timeout=60)


@pytest.mark.slow
def test_a_process_that_is_interrupted_leaves_what_was_there_before(saved, tmp_path, starter):
    stop(start(starter, saved), signal.SIGINT)
    assert left_in(tmp_path) == ["out", *(f"out/{name}" for name in FILES)]
    assert Outcome.load(saved).metrics["barrier"] == 1.0


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_what_was_there_before_and_the_next_one_tidies_up(saved, tmp_path, starter):
    stop(start(starter, saved), signal.SIGKILL)
    assert Outcome.load(saved).metrics["barrier"] == 1.0
    save(tmp_path / "other")
    assert [name for name in left_in(tmp_path) if name.startswith(".")] == []


@pytest.mark.slow
def test_what_is_being_filled_is_not_tidied_away(saved, tmp_path, starter):
    process = start(starter, tmp_path / "slow")
    try:
        assert remove_stale(tmp_path) == 0
        save(tmp_path / "other")
        (temporary,) = tmp_path.glob(".interbasin-*")
        assert (temporary / "model.safetensors").exists()
    finally:
        stop(process, signal.SIGKILL)
    assert remove_stale(tmp_path) == 1 and remove_stale(tmp_path / "nowhere") == 0


@pytest.mark.slow
def test_a_disk_that_is_really_full_leaves_nothing(tmp_path, starter):
    """A limit on the size of files is as hard as a full disk, and needs no disk to fill."""
    script = """
        import resource, signal, sys, torch
        from interbasin.errors import InterbasinError
        from interbasin.outcome import new_outcome
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            with new_outcome(sys.argv[1], job="a", request={}) as out:
                out.table("t", {"x": [0.1] * 1000})
                out.write_checkpoint({"w": torch.ones(100_000)})
        except InterbasinError as error:
            print(type(error).__name__, error)
    """
    done = starter.run(textwrap.dedent(script), tmp_path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("FileError", "CheckpointError")) and "room on the disk" in done.stdout
    assert left_in(tmp_path) == []


def test_two_writers_leave_one_whole_outcome(tmp_path):
    with new_outcome(tmp_path / "out", job="first", request={}) as out:
        out.metrics["a"] = 1.0
        save(tmp_path / "out", 2.0, force=True)
        time.sleep(0.01)
        with pytest.raises(FileError):
            refuse_outcome_in_the_way(tmp_path / "out")
        (tmp_path / "out" / "outcome.json").unlink()
        (tmp_path / "out" / "curve.csv").unlink()
        (tmp_path / "out" / "curve plot.svg").unlink()
        (tmp_path / "out" / "README.md").unlink()
    assert Outcome.load(tmp_path / "out").job == "first"


# ---------------------------------------------------------------------- damaged


def edit(key: str, change: Callable[[dict], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        path = folder / "outcome.json"
        document = json.loads(path.read_text("utf-8"))
        change(document[key] if key else document)
        path.write_text(json.dumps(document), "utf-8")

    return damage


def with_value(key: str, value: object) -> Callable[[Path], object]:
    return edit("", lambda document: document.update({key: value}))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        case("metrics in words", edit("metrics", lambda m: m.update(x="many")), FileError, "'many' is no number"),
        case("a true metric", edit("metrics", lambda m: m.update(x=True)), FileError, "True is no number"),
        case("a list of metrics", with_value("metrics", []), FileError, "metrics should be a mapping"),
        case("notes in a word", with_value("notes", "x"), FileError, "notes should be a list"),
        case("a job of 3", with_value("job", 3), FileError, "job should be text"),
        case("a seed in words", with_value("seed", "3"), FileError, "seed should be a whole number"),
        case("a strange kind", edit("artefacts", lambda a: a[0].update(kind="x")), FileError, "unknown kind 'x'"),
        case(
            "a path that leads out",
            edit("artefacts", lambda a: a[0].update(path="../../etc")),
            FileError,
            "leads out of the folder",
        ),
        case(
            "a file that leads out",
            edit("artefacts", lambda a: a[0]["files"].update({"/etc/passwd": {"bytes": 1, "sha256": ""}})),
            FileError,
            "leads out of the folder",
        ),
        case("a digest of text", edit("artefacts", lambda a: a[0]["files"].update({"x": "y"})), FileError, "mapping"),
    ],
)
def test_a_damaged_outcome_is_named(damage, error, words, saved):
    damage(saved)
    refused(lambda: Outcome.load(saved), error, (str(saved), *words))


@pytest.mark.parametrize(
    "text",
    ["t,method\n0.0,a\n0.5,b\n1.0,c,d\n", "x,method\n0.0,a\n", "", "t,method\nzero,a\n", '"'],
)
def test_a_table_that_was_changed_is_named(text, saved):
    found = Outcome.load(saved)
    (saved / "curve.csv").write_text(text, "utf-8")
    refused(lambda: found.table("curve"), FileError, ("curve.csv", "damaged"))


def test_a_folder_without_a_document_is_not_ours(tmp_path):
    assert not outcome.is_our_outcome(tmp_path)
