"""``interbasin transport``: an update and a verdict for what lies on the disk, a dry run, errors of one sentence."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.test_frame import run
from tests.test_storage import left_in
from torch import nn

import interbasin as ib
from interbasin.errors import DataError
from interbasin.evaluate.performance import performance
from interbasin.extras import import_extra
from interbasin.jobs.transport import METHODS, Update
from interbasin.outcome import Outcome

pytestmark = pytest.mark.filterwarnings("ignore")

FACTORY = """
import torch
from torch import nn

def network(width, outputs=5):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, outputs)), torch.rand(2, 8)

def small():
    return network(12)

def wide():
    return network(16)

class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.gain

def other():
    return Gain(), torch.rand(2, 8)

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)) * torch.sigmoid(self.gate(x)))

def gated():
    return Gated(), torch.rand(2, 8)

def twice(outputs):
    return 2 * outputs
"""
A, TUNED, B = "transport_nets:small@a.safetensors", "tuned.safetensors", "transport_nets:wide@b.safetensors"
TASK = ("--data", "task.npz")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, its fine-tune, the base in other coordinates and among more units, and inputs."""
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5))
    tuned = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in base.state_dict().items()}
    # Twelve of the sixteen units are the source's, in another order; the others do nothing.
    order = torch.randperm(12)
    wide = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.zero_()
        wide[0].weight[:12], wide[0].bias[:12] = base[0].weight[order], base[0].bias[order]
        wide[2].weight[:, :12], wide[2].bias[:] = base[2].weight[:, order], base[2].bias
    for name, tensors in (("a", base.state_dict()), ("tuned", tuned), ("b", wide.state_dict())):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors")
    inputs = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    base.load_state_dict(tuned)
    labels = base(torch.from_numpy(inputs)).argmax(1).numpy()
    np.savez(folder / "task.npz", x=inputs, y=labels)
    np.savez(folder / "generic.npz", x=3 * inputs[::-1].copy())
    np.savez(folder / "train.npz", x=inputs[:100], y=labels[:100])
    np.savez(folder / "valid.npz", x=inputs[100:], y=labels[100:])
    other = {
        name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in load_file(folder / "a.safetensors").items()
    }
    save_file(other, folder / "other.safetensors")
    (folder / "transport_nets.py").write_text(FACTORY)
    return folder


@pytest.fixture
def here(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is left in the folder is looked at
    sys.modules.pop("transport_nets", None)
    yield tmp_path
    sys.modules.pop("transport_nets", None)


def transport(*arguments: object) -> Any:
    return run("transport", *arguments)


def summary_of(*arguments: object) -> dict[str, Any]:
    done = transport(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def test_an_outcome_with_the_update_the_account_and_the_verdict(here):
    found = summary_of(A, TUNED, B, *TASK, "-o", "out", "--method", "theseus", "--model")
    assert found["verdict"]["choice"] == "transport"
    assert found["verdict"]["figures"]["effect_explained"]["low"] > 0.99
    assert found["metrics"]["share_moved"] == pytest.approx(1)
    outcome = Outcome.load("out")
    outcome.verify()
    assert {"update.safetensors", "verdict.txt", "moved.csv", "spaces.csv", "cosines.svg"} <= set(outcome.written())
    assert Path("out/verdict.txt").read_text().startswith("transport\n\nTransport it: theseus")
    assert set(outcome.table("moved")["source"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    # What was written is the network that does as the tuned source does.
    assert found["use"] == {"update": "out/update.safetensors", "model": "transport_nets:wide@out/model"}
    target, new = (ib.models.load_model(name).model for name in (B, found["use"]["model"]))
    again = Update.of(found["use"]["update"], target).added_to(target)
    tuned = ib.models.load_model("transport_nets:small@tuned.safetensors").model
    inputs = torch.from_numpy(np.load("task.npz")["x"])
    for network in (new, again):
        torch.testing.assert_close(network(inputs), tuned(inputs), rtol=1e-4, atol=1e-4)


def test_people_see_what_was_tried_and_the_verdict_last(here):
    done = transport(A, TUNED, B, *TASK, "-o", "out", "--readout", "logits", "--generic", "generic.npz")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert lines[-1].startswith("Transport it: ")
    shown = " ".join(done.stdout.split())
    assert "theseus" in shown and "regression" in shown and "written to out: update.safetensors" in shown
    assert "forgotten" in shown and "of its answers to the generic inputs" in lines[-1]
    assert not any(line.endswith(" ") for line in done.stdout.split("\n"))


def test_a_dry_run_shows_everything_and_writes_nothing(here):
    before = left_in(here)
    done = transport(A, TUNED, B, *TASK, "--dry-run", "-o", "out")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    assert "0.weight 0.weight moved" in shown and "12 of 12" in shown and "12 -> 16" in shown
    assert "time, theseus about" in shown and "memory about" in shown and "time, direct" not in shown
    assert done.stdout.rstrip().endswith("Nothing was written (--dry-run).")
    found = summary_of(A, TUNED, B, *TASK, "--dry-run", "--method", "regression")
    assert found["share_moved"] == pytest.approx(1) and set(found["seconds"]) == {"regression"}
    assert left_in(here) == before


def test_a_lora_of_the_rank_that_was_asked_for(here):
    found = summary_of(A, TUNED, B, *TASK, "-o", "out", "--as-lora", "2")
    assert found["use"] == {"update": "out/adapter"}
    assert json.loads(Path("out/adapter/adapter_config.json").read_text())["r"] == 2
    update = Update.of("out", ib.models.load_model(B).model)
    assert update.rank == 2


def test_do_not_is_an_answer_and_no_error(here):
    done = transport(A, "a.safetensors", B, *TASK, "-o", "out", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"]["choice"] == "do-not"


def test_options_reach_the_job(here):
    options = ("--alpha", "0.5", "--unobserved", "drop", "--uncentered", "--heads", "free", "--depth", "even")
    more = ("--scale", "rms", "--outputs", "shared", "--tokens", "mean", "--limit", "100", "--seed", "3")
    found = summary_of(A, TUNED, B, *TASK, "-o", "out", "--method", "theseus", *options, *more)
    asked = found["request"]
    assert (asked["alpha"], asked["unobserved"], asked["centered"], asked["heads"]) == (0.5, "drop", False, "free")
    assert (asked["scale"], asked["outputs"], asked["tokens"], asked["limit"], asked["seed"]) == (
        *("rms", "shared", "mean"),
        *(100, 3),
    )
    found = summary_of(A, TUNED, B, *TASK, "-o", "labels", "--validate", "task.npz", "--alpha", "auto")
    assert found["metrics"]["accuracy"] > found["metrics"]["accuracy_base"]
    own = ("--readout", "transport_nets:twice", "--generic", "generic.npz", "--generic-target", "tuned")
    found = summary_of(A, TUNED, B, *TASK, "-o", "generic", *own, "--generic-weight", "0.5")
    assert found["request"]["generic_target"] == "tuned" and "forgotten" in found["metrics"]


def test_several_fine_tunes_are_merged(here):
    asked = (A, TUNED, B, *TASK, "--method", "theseus", "--also", "other.safetensors")
    found = summary_of(*asked, "-o", "sum", "--merge-weights", "1,0.5")
    assert found["request"]["merge_weights"] == [1, 0.5] and found["request"]["also"] == ["other.safetensors"]
    assert {"tuned", "also-1"} <= set(found["inputs"])
    parts = [load_file(name) for name in ("a.safetensors", TUNED, "other.safetensors")]
    both = {name: (parts[1][name] - base) + 0.5 * (parts[2][name] - base) for name, base in parts[0].items()}
    source, target = (ib.models.load_model(name).model for name in (A, B))
    inputs = torch.from_numpy(np.load("task.npz")["x"])
    merged = Update.of(both, source).added_to(source)
    new = Update.of("sum", target).added_to(target)
    torch.testing.assert_close(new(inputs), merged(inputs), rtol=1e-4, atol=1e-4)
    ties = summary_of(*asked, "-o", "ties", "--merge", "ties", "--density", "0.3")
    assert (ties["request"]["merge"], ties["request"]["density"]) == ("ties", 0.3)
    assert not torch.equal(
        load_file("ties/update.safetensors")["0.bias"], load_file("sum/update.safetensors")["0.bias"]
    )
    plan = summary_of(*asked, "--dry-run")
    assert plan["share_moved"] + plan["share_kept"] == pytest.approx(1)


def test_in_little_memory_weights_stay_in_their_files_and_nothing_is_judged(here, monkeypatch):
    asked = (A, TUNED, B, *TASK, "--memory", "1kB")
    before = left_in(here)
    done = transport(*asked, "--dry-run")
    shown = " ".join(done.stdout.split())
    assert (
        done.exit_code == 0 and "passes over the data 1" in shown and "memory about" in shown and "time about" in shown
    )
    assert "more than the 0.001 MB that --memory allows" in shown and "there is no verdict" in shown
    assert done.stdout.rstrip().endswith("Nothing was written (--dry-run).")
    plan = summary_of(*asked, "--dry-run")
    assert plan["dry_run"] and plan["passes"] == 1 and plan["memory"] > 0 and plan["seconds"] > 0
    assert left_in(here) == before
    done = transport(*asked, "--model", "--alpha", "0.5", "-o", "out")
    assert done.exit_code == 0, done.output
    assert "1 pass over the data, about" in done.stderr  # before the work
    shown = " ".join(done.stdout.split())
    assert (
        "moved 3 tensors" in shown
        and "kept 1 tensor" in shown
        and "written to out: update.safetensors, model, moved.csv" in shown
    )
    assert "use the new network as the MODEL transport_nets:wide@out/model" in shown
    outcome = Outcome.load("out")
    outcome.verify()
    assert (outcome.request["memory"], outcome.request["alpha"], outcome.request["limit"]) == (1000, 0.5, 2000)
    assert {"source", "tuned", "target", "data"} == set(outcome.inputs) and not Path("out/verdict.txt").exists()
    # The same numbers as in memory.
    found = summary_of(A, TUNED, B, *TASK, "--method", "theseus", "--alpha", "0.5", "-o", "usual")
    for name, tensor in load_file("out/update.safetensors").items():
        torch.testing.assert_close(tensor, load_file(found["use"]["update"])[name], rtol=1e-4, atol=1e-5)
    again = summary_of(*asked, "--also", "other.safetensors", "--merge-weights", "1,0.5", "-o", "out", "--force")
    assert again["verdict"] is None and again["use"] == {"update": "out/update.safetensors"}
    assert again["estimate"]["passes"] == 1 and "also-1" in again["inputs"]

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    before = left_in(here)
    with monkeypatch.context() as patch:
        patch.setattr("interbasin.jobs.transport.theseus.on_disk.Carrier", interrupt)
        done = transport(*asked, "-o", "below/other")
        assert done.exit_code == 130 and "run the same command to go on" in done.stderr
    assert not Path("below/other").exists()
    monkeypatch.setattr("interbasin.jobs.transport.theseus.on_disk.observe", interrupt)  # nothing is recorded again
    assert transport(*asked, "-o", "below/other").exit_code == 0
    assert sorted(path.name for path in Path("below").iterdir()) == ["other"]
    shutil.rmtree("below")
    assert left_in(here) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "regression"), "--method regression"),
        (("--method", "direct", "--variant", "copy"), "--variant copy, --method direct"),
        (("--alpha", "auto"), "--alpha auto"),
        (("--validate", "valid.npz"), "--validate"),
        (("--generic", "generic.npz", "--front"), "--generic, --front"),
        (("--compare", "--as-lora", "2", "--readout", "logits"), "--readout, --as-lora, --compare"),
        (("--then-train", "5", "--train-data", "train.npz", "--validate", "valid.npz"), "--then-train, --train-data"),
    ],
)
def test_what_little_memory_cannot_have_is_refused_in_one_sentence(here, options, words):
    done = transport(A, TUNED, B, *TASK, "-o", "out", "--memory", "1GB", *options)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert done.exit_code == 2 and words in said and "leave" in said and not Path("out").exists()


@pytest.mark.slow
def test_the_front_is_a_table_a_plot_and_json(here):
    asked = (A, TUNED, B, *TASK, "--generic", "generic.npz", "--readout", "logits", "--front-weights", "0.1,3")
    found = summary_of(*asked, "-o", "out")
    weights = [row["generic_weight"] for row in found["front"]]
    assert weights == [None, None, 0.1, 3.0, None] and found["front"][1]["point"] == "tuned source"
    assert {"front.csv", "front.svg"} <= set(Outcome.load("out").written())
    shown = " ".join(transport(*asked, "-o", "again").stdout.split())
    assert "front generic weight explains interval forgotten" in shown and "tuned source -" in shown


@pytest.mark.slow
def test_a_comparison_is_printed_kept_and_written(here, monkeypatch):
    from interbasin.jobs.transport.journal import RowJournal

    asked = (A, TUNED, B, *TASK, "--method", "theseus", "--compare", "--validate", "valid.npz")
    keep, kept = RowJournal.keep, []

    def interrupted(self, method, variant, row):
        keep(self, method, variant, row)
        kept.append((method, variant))
        if len(kept) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RowJournal, "keep", interrupted)
        done = transport(*asked, "-o", "out")
        assert done.exit_code == 130 and "run the same command to go on" in done.stderr
        done = transport(*asked, "-o", "out")  # stdout is no terminal here
    assert done.exit_code == 0, done.output
    assert len(kept) == len(set(kept)) == len(Outcome.load("out").table("compared")["method"])  # none was run twice
    shown = " ".join(done.stdout.split())
    assert "compared needs explains interval accuracy" in shown and "head-ridge data outputs tuned" in shown
    assert "direct could not be tried: A direct copy needs networks of the same tensors" in shown
    table = Outcome.load("out").table("compared")
    place = table["method"].index("direct")
    assert table["effect"][place] != table["effect"][place] and "same tensors" in table["note"][place]
    assert {"norm_ratio", "loss", "accuracy", "seconds"} <= set(table) and "forgotten" not in table
    found = summary_of(*asked, "-o", "again")["compared"]
    assert [row["method"] for row in found] == table["method"]
    numbers = [row["effect"] for row in found if row["effect"] is not None]
    assert numbers == [effect for effect in table["effect"] if effect == effect]


@pytest.mark.slow
def test_training_goes_on_from_the_transport_beside_a_cold_start(here):
    asked = (A, TUNED, B, *TASK, "--method", "theseus", "--validate", "valid.npz")
    train = ("--then-train", "20", "--train-data", "train.npz", "--rate", "0.001")
    found = summary_of(*asked, *train, "-o", "out")
    start = found["warm_start"]
    assert start["steps"][0] == 0 and start["steps"][-1] == 20 and len(start["warm"]["loss"]) == len(start["steps"])
    assert start["reached"] == 0 and start["warm"]["loss"][0] < start["cold"]["loss"][-1]
    assert found["metrics"]["loss_warm"] == start["warm"]["loss"][-1]
    outcome = Outcome.load("out")
    outcome.verify()
    assert {"warm-start.csv", "warm-start.svg"} <= set(outcome.written())
    assert outcome.table("warm-start")["loss_cold"] == start["cold"]["loss"]
    trained = ib.models.load_model(found["use"]["trained"]).model
    pairs = [(torch.from_numpy(np.load("valid.npz")["x"]), torch.from_numpy(np.load("valid.npz")["y"]))]
    loss = performance(trained, pairs).loss
    assert loss == pytest.approx(found["metrics"]["loss_warm"], rel=1e-5)
    done = transport(*asked, *train, "-o", "again")
    shown = " ".join(done.stdout.split())
    assert "the warm start has reached it at step 0." in shown and "use the trained network as the MODEL" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--then-train", "5"), "--train-data"),
        (("--then-train", "5", "--train-data", "train.npz"), "--validate"),
        (("--then-train", "5", "--train-data", "valid.npz", "--validate", "valid.npz"), "those of --validate"),
        (("--train-data", "train.npz"), "--then-train"),
        (("--then-train", "0"), "--then-train"),
        (("--rate", "0.1"), "is for --then-train STEPS"),
        (("--then-train", "5", "--train-data", "train.npz", "--validate", "valid.npz", "--rate", "0"), "above 0"),
        (("--merge-weights", "one"), "1,0.5"),
        (("--front-weights", "low"), "0.1,1,10"),
        (("--memory", "much"), "takes a size, as 8GB"),
        (("--memory", "0GB"), "takes a size, as 8GB"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(here, options, words):
    done = transport(A, TUNED, B, *TASK, "-o", "out", *options)
    assert done.exit_code == 2 and words in " ".join(done.stderr.split()) and not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--generic-weight", "3"), "--generic"),
        (("--generic-target", "tuned"), "--generic"),
        (("--scale", "rms", "--method", "regression"), "maps of theseus"),
    ],
)
def test_options_that_would_change_nothing_are_refused_in_words_of_the_shell(here, options, words):
    done = transport(A, TUNED, B, *TASK, "-o", "out", *options)
    assert done.exit_code == 1 and words in done.stderr and "generic=" not in done.stderr, done.stderr
    assert not Path("out").exists()


def test_a_training_that_fails_keeps_the_transport(here):
    asked = (A, TUNED, B, *TASK, "--method", "regression", "--readout", "logits", "--validate", "valid.npz")
    train = ("--then-train", "4", "--train-data", "train.npz")
    done = transport(*asked, *train, "--rate", "1e30", "-o", "below/out")
    assert done.exit_code == 1 and "run the same command to go on" in done.stderr and "loss" in done.stderr
    assert not Path("below/out").exists() and len(list(Path("below").iterdir())) == 1
    assert transport(*asked, *train, "-o", "below/out").exit_code == 0
    assert [path.name for path in Path("below").iterdir()] == ["out"]


def files_in(folder: str) -> dict[str, bytes]:
    """What an outcome holds, but for the document with the times."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if name != "outcome.json"}


def test_an_interrupted_command_goes_on_to_the_same_bytes(here, monkeypatch):
    asked = (A, TUNED, B, *TASK, "--method", "regression", "--generic", "generic.npz", "--model")
    assert transport(*asked, "-o", "whole").exit_code == 0
    before = left_in(here)
    from interbasin.jobs.transport.journal import StageJournal

    keep, count = StageJournal.keep, 0

    def interrupted(self, *arguments):
        nonlocal count
        keep(self, *arguments)
        count += 1
        if count == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StageJournal, "keep", interrupted)
        done = transport(*asked, "-o", "below/out")
    assert done.exit_code == 130 and "is kept beside OUTPUT: run the same command to go on" in done.stderr
    assert not Path("below/out").exists()
    # What stands beside it is taken up: the two stages are not fitted again.
    kept = []
    with monkeypatch.context() as patch:
        patch.setattr(
            StageJournal, "keep", lambda self, number, *rest: (kept.append(number), keep(self, number, *rest))
        )
        assert transport(*asked, "-o", "below/out").exit_code == 0
    assert count == 2 and len(kept) < 4
    assert files_in("below/out") == files_in("whole")
    shutil.rmtree("below")
    assert left_in(here) == before


def interrupted_after_a_stage(asked, monkeypatch) -> None:
    """Interrupt a command when it has kept the first stage of a regression."""
    from interbasin.jobs.transport.journal import StageJournal

    keep = StageJournal.keep

    def interrupted(self, *arguments):
        keep(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StageJournal, "keep", interrupted)
        assert transport(*asked).exit_code == 130


def kept_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob(".interbasin-*/*/*/**/*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "words"),
    [(("--alpha", "1000"), "alpha must be"), (("--generic-target", "kept"), "kept"), (("--as-lora", "900"), None)],
)
def test_a_mistyped_option_leaves_what_an_earlier_run_kept(here, monkeypatch, mistake, words):
    before = left_in(here)
    asked = (A, TUNED, B, *TASK, "--method", "regression", "-o", "below/out")
    interrupted_after_a_stage(asked, monkeypatch)
    kept = kept_in(here / "below")
    assert [name for name in kept if "stage-" in name]
    with monkeypatch.context() as patch:
        if words is None:  # one that is noticed late, when the run has kept something itself
            words = "too late"
            patch.setattr("interbasin.jobs.transport.job.measure_spaces", refuse)
        done = transport(*asked, *mistake)
    assert done.exit_code == 1 and words in done.stderr
    assert kept_in(here / "below") == kept
    assert transport(*asked).exit_code == 0
    assert [path.name for path in (here / "below").iterdir()] == ["out"]
    shutil.rmtree("below")
    assert left_in(here) == before


def refuse(*arguments, **keywords):
    raise DataError("That comes too late.")


def test_a_second_run_of_the_same_command_says_that_another_is_writing(here, monkeypatch):
    from interbasin.jobs.transport.result import Transport

    asked = (A, TUNED, B, *TASK, "--method", "theseus", "-o", "out")
    save, others = Transport.save, []

    def save_beside_another(self, *arguments, **keywords):
        if not others:
            others.append(None)
            others[0] = transport(*asked)
        return save(self, *arguments, **keywords)

    before = left_in(here)
    monkeypatch.setattr(Transport, "save", save_beside_another)
    assert transport(*asked).exit_code == 0
    assert others[0].exit_code == 1 and "Another process is writing out at this moment; wait for it" in others[0].stderr
    shutil.rmtree("out")
    assert left_in(here) == before


def test_an_interrupt_before_anything_was_done_leaves_nothing(here, monkeypatch):
    before = left_in(here)

    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("interbasin.jobs.transport.job.relate", interrupt)
        done = transport(A, TUNED, B, *TASK, "-o", "below/out")
    assert done.exit_code == 130 and "nothing half-written" in done.stderr
    with monkeypatch.context() as patch:
        patch.setattr("interbasin.jobs.transport.warm_start.train", interrupt)
        train = ("--then-train", "5", "--train-data", "train.npz", "--validate", "valid.npz")
        done = transport(A, TUNED, B, *TASK, *train, "-o", "out")
    assert done.exit_code == 130 and not Path("out").exists()
    # The transport itself is kept, so that training can be tried again at once.
    assert [path for path in here.iterdir() if path.name.startswith(".interbasin-")]
    assert transport(A, TUNED, B, *TASK, *train, "-o", "out").exit_code == 0
    shutil.rmtree("out")
    assert left_in(here) == before


def test_a_full_disk_leaves_no_output_and_keeps_what_was_done(here, monkeypatch):
    import errno

    def full(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("interbasin.jobs.transport.result.bar_chart", full)
        done = transport(A, TUNED, B, *TASK, "-o", "out")
    assert done.exit_code == 1 and "No space left on device" in done.stderr and "run the same command" in done.stderr
    assert done.stderr.count("\n") == 1 and not Path("out").exists()
    assert transport(A, TUNED, B, *TASK, "-o", "out").exit_code == 0


def test_an_earlier_outcome_is_replaced_only_by_force(here):
    asked = (A, TUNED, B, *TASK, "-o", "out", "--method", "theseus")
    assert transport(*asked).exit_code == 0
    again = transport(*asked)
    assert again.exit_code == 1 and "--force" in again.stderr
    assert transport(*asked, "--force").exit_code == 0


def broken() -> None:
    """Files that cannot be used."""
    tensors = load_file(TUNED)
    tensors["0.weight"][0, 0] = float("nan")
    save_file(tensors, "nan.safetensors")
    inputs = np.load("task.npz")["x"].copy()
    np.savez("none.npz", x=inputs[:0])
    np.savez("few.npz", x=inputs[:3])
    inputs[7] = np.nan
    np.savez("nan.npz", x=inputs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((A, "b.safetensors", B, *TASK), "a fine-tune has the shapes of the network that it began with"),
        ((A, "nan.safetensors", B, *TASK), "The update of 0.weight is not finite"),
        ((A, "gone.safetensors", B, *TASK), "gone.safetensors"),
        ((A, TUNED, B, "--data", "none.npz"), "has no rows"),
        ((A, TUNED, B, "--data", "few.npz"), "too few were given to hold some out"),
        ((A, TUNED, B, "--data", "nan.npz"), "There is NaN in nan.npz, sample 7"),
        ((A, TUNED, "transport_nets:other", *TASK), "The two networks have nothing in common"),
        ((A, TUNED, B, *TASK, "--method", "direct"), "take theseus or regression"),
        ((A, TUNED, B, *TASK, "--method", "magic"), "try one of"),
        ((A, TUNED, B, *TASK, "--tokens", "magic"), "There is no token mode named 'magic'"),
        ((A, TUNED, B, *TASK, "--readout", "transport_nets:thrice"), "named 'thrice'; try one of: twice"),
        ((A, TUNED, B, *TASK, "--readout", "nowhere:twice"), "There is no module named 'nowhere'"),
        ((A, TUNED, B, *TASK, "--readout", "twice"), "package.module:function"),
        ((A, TUNED, B, *TASK, "--validate", "generic.npz"), "has no labels"),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(here, arguments, words):
    broken()
    before = left_in(here)
    done = transport(*arguments, "-o", "out")
    assert done.exit_code == 1 and done.stdout == ""
    assert words in done.stderr and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert left_in(here) == before


def test_too_few_samples_say_how_many_directions_were_never_observed(here):
    broken()
    np.savez("some.npz", x=np.load("task.npz")["x"][:8])
    done = transport(A, TUNED, B, "--data", "some.npz", "--method", "theseus", "-o", "out")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    # Six of the inputs are not held out, and show five directions about their mean; all eight show seven.
    assert "some directions were never observed (in '0' 7 of 12)" in shown and "--unobserved drop" in shown
    assert "Only 2 inputs could be held out" in shown
    assert "7 of 12" in " ".join(transport(A, TUNED, B, "--data", "some.npz", "--dry-run").stdout.split())


def test_a_layer_of_the_target_without_counterpart_is_named(here):
    for words in (("-o", "out"), ("--dry-run",)):
        done = transport(A, TUNED, "transport_nets:gated", *TASK, "--method", "theseus", *words)
        assert done.exit_code == 0, done.output
        assert "There is no counterpart in the source for gate.weight, gate.bias of the target" in done.stdout


def test_what_is_no_number_and_what_is_missing_is_a_usage_error(here):
    assert transport(A, TUNED, B, *TASK, "-o", "out", "--alpha", "much").exit_code == 2
    done = transport(A, TUNED, B, *TASK)
    assert done.exit_code == 2 and "--dry-run" in done.stderr


def test_the_help_lists_every_method():
    shown = " ".join(run("transport", "--help").output.split())
    for method in METHODS.values():
        assert f"- {method.name} ({', '.join(method.variants)}" in shown


def test_the_comparison_is_a_table_and_what_could_not_be_tried_is_told_below(capsys):
    from rich.console import Console

    from interbasin.cli.transported import show_compared, without_nan
    from interbasin.jobs.transport.result import ComparedRow

    tried = ComparedRow("head-ridge", ("data", "tuned"), 0.5, 0.4, 0.6, None, 1.0, forgotten=0.25)
    failed = ComparedRow("direct", (), float("nan"), float("nan"), float("nan"), None, 0.0, note="shapes differ.")
    show_compared(Console(width=200), (tried, failed))
    shown = " ".join(capsys.readouterr().out.split())
    assert "head-ridge data tuned 0.5 [0.400, 0.600] 0.25" in shown and "nan" not in shown
    assert "direct could not be tried: shapes differ." in shown
    assert without_nan({"effect": float("nan"), "low": 0.5, "method": "x"}) == {
        "effect": None,
        "low": 0.5,
        "method": "x",
    }


# ---------------------------------------------------------------------- language models and their LoRAs


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small language models with one tokenizer, and a LoRA of the first."""
    transformers = import_extra("transformers", "This test", "hf")
    peft = import_extra("peft", "This test", "hf")
    folder = tmp_path_factory.mktemp("language")
    for name, width in (("old", 16), ("new", 24)):
        torch.manual_seed(width)
        config = transformers.LlamaConfig(
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=8,
            max_position_embeddings=16,
            eos_token_id=0,
        )
        network = transformers.LlamaForCausalLM(config)
        network.save_pretrained(folder / name)
        save_tokenizer(folder / name, "abcdef")
        if name == "old":
            settings = peft.LoraConfig(r=2, target_modules=["v_proj", "down_proj"], init_lora_weights=False)
            peft.get_peft_model(network, settings).save_pretrained(folder / "lora")
    words = np.random.default_rng(0).choice(list("abcdef"), size=(64, 6))
    (folder / "task.txt").write_text("\n".join(" ".join(line) for line in words))
    return folder


def save_tokenizer(folder: Path, letters: str) -> None:
    transformers = import_extra("transformers", "This test", "hf")
    tokenizers = import_extra("tokenizers", "This test", "hf")
    table = {word: number for number, word in enumerate(("<end>", "<unk>", *letters))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    made.save_pretrained(folder)


@pytest.fixture
def texts(language: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(language, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_adapter_goes_in_and_an_adapter_that_peft_loads_comes_out(texts):
    peft = import_extra("peft", "This test", "hf")
    asked = ("old", "lora", "new", "--data", "task.txt", "--method", "theseus")
    found = summary_of(*asked, "-o", "out", "--model")
    assert found["use"] == {"update": "out/adapter", "model": "out/model"}
    target = ib.models.load_model("new")
    tokens = torch.tensor([[2, 3, 4, 5, 6]])
    wanted = ib.models.load_model("out/model").model(tokens).logits
    loaded = peft.PeftModel.from_pretrained(target.model, "out/adapter").eval()
    torch.testing.assert_close(loaded(tokens).logits, wanted, rtol=1e-4, atol=1e-5)
    assert loaded.peft_config["default"].r == 2
    assert Path("out/model/tokenizer.json").exists() and Path("out/model/config.json").exists()
    # The adapter says whose it is, so that it is a MODEL itself.
    torch.testing.assert_close(ib.models.load_model("out/adapter").model(tokens).logits, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_tuned_network_is_not_loaded_for_its_adapter(texts, monkeypatch):
    # The base that the adapter names is gone: what SOURCE names is all that is needed.
    Path("old").rename("moved")
    found = summary_of("moved", "lora", "new", "--data", "task.txt", "--method", "theseus", "-o", "out")
    assert found["use"]["update"] == "out/adapter"


@pytest.mark.slow
def test_an_adapter_stays_one_in_little_memory(texts):
    asked = ("old", "lora", "new", "--data", "task.txt", "--memory", "10MB")
    found = summary_of(*asked, "-o", "out", "--model")
    assert found["use"] == {"update": "out/adapter", "model": "out/model"}
    tokens = torch.tensor([[2, 3, 4, 5, 6]])
    wanted = ib.models.load_model("out/model").model(tokens).logits
    torch.testing.assert_close(ib.models.load_model("out/adapter").model(tokens).logits, wanted, rtol=1e-4, atol=1e-5)
    usual = summary_of(*asked[:-2], "--method", "theseus", "-o", "usual", "--model")
    torch.testing.assert_close(
        ib.models.load_model(usual["use"]["model"]).model(tokens).logits, wanted, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_dense_update_of_a_lora_is_remarked_on(texts):
    done = transport("old", "lora", "new", "--data", "task.txt", "--method", "regression", "-o", "out")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "The fine-tune is a LoRA of rank 2 on 2 tensors; the update is dense, of" in said
    assert "--as-lora gives a LoRA, and --method theseus keeps the rank" in said
    found = summary_of(
        "old", "lora", "new", "--data", "task.txt", "--method", "regression", "--as-lora", "3", "-o", "low"
    )
    (note,) = [note for note in found["notes"] if "fits every layer" in note]
    held = json.loads(Path("low/adapter/adapter_config.json").read_text())
    assert "and this adapter one of rank 3 on" in note and held["r"] == 3 and len(held["target_modules"]) > 2
    kept = summary_of("old", "lora", "new", "--data", "task.txt", "--method", "theseus", "-o", "kept")
    assert not [note for note in kept["notes"] if "LoRA of rank" in note]


def test_an_adapter_of_another_base_and_another_tokenizer_are_refused(texts):
    before = left_in(texts)
    done = transport("new", "lora", "old", "--data", "task.txt", "-o", "out")
    assert done.exit_code == 1 and "is it the adapter of this network?" in done.stderr
    assert left_in(texts) == before
    save_tokenizer(texts / "new", "abcdeg")
    done = transport("old", "lora", "new", "--data", "task.txt", "-o", "out")
    assert done.exit_code == 1 and "another vocabulary" in done.stderr and not Path("out").exists()


@pytest.mark.slow
def test_an_adapter_that_does_nothing_is_said_to_do_nothing(texts):
    tensors = load_file("lora/adapter_model.safetensors")
    zero = {name: tensor * (0 if "lora_B" in name else 1) for name, tensor in tensors.items()}
    save_file(zero, "lora/adapter_model.safetensors")
    found = summary_of("old", "lora", "new", "--data", "task.txt", "-o", "out")
    assert found["verdict"]["choice"] == "do-not" and "does nothing" in found["verdict"]["text"]
    moved = {"self_attn.v_proj": "mixer.x", "mlp.down_proj": "y"}
    elsewhere = {name.replace(old, moved[old]): zero[name] for name in zero for old in moved if old in name}
    save_file(elsewhere, "lora/adapter_model.safetensors")
    before = left_in(texts)
    done = transport("old", "lora", "new", "--data", "task.txt", "-o", "other")
    assert done.exit_code == 1 and "it would do nothing" in done.stderr and done.stderr.count("\n") == 1
    assert left_in(texts) == before
