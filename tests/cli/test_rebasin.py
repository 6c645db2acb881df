"""``interbasin rebasin``."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import interbasin as ib
from interbasin.cli import app
from interbasin.outcome import Outcome

FACTORY = """
import torch
from torch import nn

def small(width=16):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)), torch.rand(2, 64)

def wide():
    return small(20)

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
    aligned = ib.networks.load_model("rebasin_nets:small@out").model
    source = ib.networks.load_model(A).model
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((A, B, "--method", "telepathy"), "telepathy"),
        ((A, B, "--variant", "sideways"), "sideways"),
        ((A, B, "--method", "procrustes-activations"), "pass --data,"),
        ((A, B, "--reach", "far"), "reach"),
        ((A, "rebasin_nets:wide"), "transport"),
        ((A, "rebasin_nets:deep"), "architecture and depth"),
        ((A, "rebasin_nets:small@missing.safetensors"), "missing.safetensors"),
        ((A, B, "--mean", "one"), "--mean"),
    ],
)
def test_bad_requests_write_nothing(here, arguments, words):
    before = sorted(here.rglob("*.json"))
    found = run(*arguments, "-o", "out")
    assert found.exit_code in (1, 2)
    assert words in found.output.replace("\n", " ")
    assert not (here / "out").exists()
    assert sorted(here.rglob("*.json")) == before


def test_an_earlier_outcome_is_replaced_only_by_force(here):
    assert run(A, B, "-o", "out").exit_code == 0
    again = run(A, B, "-o", "out")
    assert again.exit_code == 1
    assert "--force" in again.output or "force" in again.output
    assert run(A, B, "-o", "out", "--force").exit_code == 0
