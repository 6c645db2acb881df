"""``interbasin rebasin``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import interbasin as ib
from interbasin.cli import app
from interbasin.jobs.rebasin import METHODS
from interbasin.outcome import Outcome

FACTORY = """
import torch
from torch import nn

def small(width=16):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)), torch.rand(2, 64)

def deep():
    net, inputs = small()
    return nn.Sequential(*net[:2], nn.Linear(16, 16), nn.ReLU(), net[2]), inputs
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "rebasin_nets.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("rebasin_nets", None)
    for name in ("a", "b"):
        torch.manual_seed(ord(name))
        network = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        save_file(network.state_dict(), f"{name}.safetensors")
    yield tmp_path
    sys.modules.pop("rebasin_nets", None)


def run(*arguments: str):
    return CliRunner().invoke(app, ["rebasin", *arguments])


A, B = "rebasin_nets:small@a.safetensors", "rebasin_nets:small@b.safetensors"


def test_an_outcome_that_is_itself_a_model(here):
    found = run(A, B, "-o", "out", "--method", "permutation-weights", "--json")
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["metrics"]["distance_after"] < summary["metrics"]["distance_before"]
    outcome = Outcome.load("out")
    outcome.verify()
    aligned = ib.models.load_model("rebasin_nets:small@out").model
    source = ib.models.load_model(A).model
    carried = ib.carry(source, outcome.alignment())
    assert all(torch.equal(one, other) for one, other in zip(aligned.parameters(), carried.parameters(), strict=True))
    inputs = torch.rand(5, 64)
    assert torch.allclose(aligned(inputs), source(inputs), atol=1e-5)


def test_with_data_it_measures_the_way_and_fine_tunes(here):
    found = run(A, B, "-o", "out", "--data", "digits", "--limit", "200", "--points", "3", "--finetune", "1")
    assert found.exit_code == 0, found.output
    assert "approximate" in found.output
    outcome = Outcome.load("out")
    for name in ("barrier", "barrier_original", "barrier_none", "delta_loss_self", "delta_loss_self_finetuned"):
        assert name in outcome.metrics
    assert {"path-loss", "path-accuracy", "alignment-error", "alignment"} <= {one.name for one in outcome.artefacts}
    assert len(outcome.table("path-loss-values")["t"]) == 3


def test_an_earlier_outcome_is_replaced_only_by_force(here):
    assert run(A, B, "-o", "out").exit_code == 0
    again = run(A, B, "-o", "out")
    assert again.exit_code == 1
    assert "--force" in again.output or "force" in again.output
    assert run(A, B, "-o", "out", "--force").exit_code == 0


def test_the_words_to_go_on_with_are_shown_and_work(here):
    found = run(A, B, "-o", "out", "--quiet")
    assert "use the aligned network as the MODEL rebasin_nets:small@out\n" in found.stdout
    assert "written to out: model.safetensors, alignment" in found.stdout
    summary = json.loads(run(A, B, "-o", "again", "--json").stdout)
    assert summary["use"] == {"model": "rebasin_nets:small@again"}
    for model in ("rebasin_nets:small@out", "rebasin_nets:small@again"):
        assert ib.models.load_model(model).checkpoint is not None
    assert not any(line.endswith(" ") for line in found.stdout.split("\n"))


FOLDED = """
import torch
from torch import nn

def network():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(4, 16), body, nn.LayerNorm(16), nn.Linear(16, 3)), torch.rand(2, 5, 4)
"""


@pytest.mark.slow
def test_folded_networks_are_two_models(here, monkeypatch):
    (here / "folded_by_rebasin.py").write_text(FOLDED)
    monkeypatch.setitem(sys.modules, "folded_by_rebasin", None)
    del sys.modules["folded_by_rebasin"]
    found = run("folded_by_rebasin:network", "folded_by_rebasin:network", "-o", "out", "--fold", "--json")
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["use"] == {
        "model": "folded_by_rebasin:network@out/model",
        "target": "folded_by_rebasin:network@out/target",
    }
    assert summary["request"]["stay_in_class"] is False and "fold" not in summary["request"]
    for model in summary["use"].values():
        ib.models.load_model(model)
    mixed = run(summary["use"]["model"], "folded_by_rebasin:network", "-o", "mixed")
    assert mixed.exit_code == 1 and "fold both with --fold." in mixed.stderr
    assert run(summary["use"]["model"], "folded_by_rebasin:network", "-o", "mixed", "--fold").exit_code == 0


def test_the_help_lists_every_method_with_its_variants():
    shown = " ".join(run("--help").output.split()).replace("half- way", "half-way")
    for method in METHODS.values():
        needs = f"; needs {', '.join(method.needs)}" if method.needs else ""
        assert f"- {method.name} ({', '.join(method.variants)}{needs}): {method.summary}." in shown
    assert "on train, and all is measured on test" in shown


def test_remarks_are_in_the_words_of_the_command(here):
    for name in ("c", "d"):
        network = ib.models.load_model("rebasin_nets:deep", seed=ord(name)).model
        save_file(network.state_dict(), f"{name}.safetensors")
    deep = [f"rebasin_nets:deep@{name}.safetensors" for name in ("c", "d")]
    found = run(*deep, "-o", "out", "--sweeps", "1")
    assert "after sweep 1; more (--sweeps) may match closer" in found.stderr and "sweeps=" not in found.stderr
    data = ("--data", "digits", "--limit", "64", "--points", "0")
    found = run(A, B, "-o", "st", "--method", "straight-through", "--epochs", "1", *data)
    assert found.exit_code == 0, found.output
    assert Outcome.load("st").request["epochs"] == 1
    assert "epochs=" not in found.stderr


def test_inputs_that_are_not_known_are_asked_for_in_options(here):
    (here / "bare_nets.py").write_text("from torch import nn\n\ndef small():\n    return nn.Linear(3, 2)\n")
    found = run("bare_nets:small", "bare_nets:small", "-o", "out")
    assert found.exit_code == 1 and "--input-shape" in found.stderr and "inputs=" not in found.stderr


def test_statistics_are_reset_as_asked(here):
    (here / "normed_nets.py").write_text(
        "import torch\nfrom torch import nn\n\ndef small():\n"
        "    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), torch.rand(2, 64)\n"
    )
    asked = ("normed_nets:small", "normed_nets:small", "--data", "digits", "--limit", "200", "--points", "3")
    by_default, few, none = (
        run(*asked, "-o", f"out{place}", *options)
        for place, options in enumerate([(), ("--reset", "2"), ("--reset", "0")])
    )
    assert "on 200 samples of the data that maps were found with" in by_default.stderr
    assert "on 128 samples;" in few.stderr
    assert "interpolated like weights" in none.stderr
    assert [Outcome.load(f"out{place}").request["reset"] for place in range(3)] == [True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["procrustes-weights", "straight-through"])
def test_the_same_command_writes_the_same_bytes_in_every_process(here, method):
    words = ["rebasin", A, B, "--data", "digits", "--limit", "60", "--finetune", "1"]
    for seed in (1, 2):  # of the hashes of text, which sets are in the order of; every process has its own in Rust
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-m", "interbasin", *words, "--method", method, "-o", f"out{seed}", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
    first, *others = (here / f"out{seed}" for seed in (1, 2))
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert {"model.safetensors", "alignment/alignment.json", "alignment/alignment.safetensors"} <= set(map(str, files))
    for other in others:
        assert sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file()) == files
        differing = [str(path) for path in files if (first / path).read_bytes() != (other / path).read_bytes()]
        assert differing == ["outcome.json"]  # which says when it began and how long it took
    summaries = [json.loads((folder / "outcome.json").read_text()) for folder in (first, *others)]
    for summary in summaries:
        del summary["started"], summary["seconds"], summary["timings"], summary["request"]["output"]
    assert summaries[0] == summaries[1]
