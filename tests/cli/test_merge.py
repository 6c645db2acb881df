"""``interbasin merge``: what people and programs are shown, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from tests.cli.test_frame import failed, run, run_apart
from tests.jobs.merge.networks import saved, tensors

from interbasin.checkpoints import open_checkpoint
from interbasin.cli.merge import DTYPES
from interbasin.cli.methods import names
from interbasin.jobs.merge import methods
from interbasin.jobs.merge.merge import DTYPES as KNOWN_DTYPES
from interbasin.models import load_model


@pytest.fixture(name="folders")
def three_folders(tmp_path):
    return [saved(tmp_path / name, tensors(seed)) for seed, name in enumerate(("base", "one", "two"))]


def test_the_names_in_the_help_are_those_of_the_table():
    assert tuple(methods.METHODS) == names("merge") and KNOWN_DTYPES == DTYPES


def test_help_does_not_wait_for_numpy():
    shown = run_apart("merge", "--help")
    assert shown.returncode == 0 and "--density" in shown.stdout


def test_people_see_what_was_merged_and_where_it_is(folders, tmp_path):
    done = run("merge", *folders[1:], "-o", tmp_path / "out", "--method", "lerp", "--t", "0")
    assert done.exit_code == 0, done.stderr
    assert "lerp" in done.stdout and "1,236" in done.stdout and "out" in done.stdout
    found = open_checkpoint(tmp_path / "out")
    assert torch.equal(found["norm.weight"], tensors(1)["norm.weight"])


def test_programs_get_json_and_nothing_else(folders, tmp_path):
    base, *models = folders
    options = ("--method", "ties", "--base", base, "--weights", "1,0.5", "--density", "0.2", "--scale", "2")
    done = run_apart("merge", *models, "-o", tmp_path / "out", *options, "--json")
    assert done.returncode == 0 and done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["method"], found["metrics"]["tensors"], found["output"]) == ("ties", 6, str(tmp_path / "out"))
    request = found["request"]
    assert (request["weights"], request["density"], request["scale"]) == ([1.0, 0.5], 0.2, 2.0)


def test_shards_and_dtype_can_be_chosen(folders, tmp_path):
    done = run("merge", *folders, "-o", tmp_path / "out", "--shard", "2e-6", "--dtype", "float16")
    assert done.exit_code == 0, done.stderr
    found = open_checkpoint(tmp_path / "out")
    assert found.kind == "sharded" and found.dtype("norm.weight") == torch.float16


def test_remarks_go_to_stderr(tmp_path):
    values = tensors(0)
    one = saved(tmp_path / "one", values)
    two = saved(tmp_path / "two", {name: -value for name, value in values.items()})
    done = run("merge", one, two, "-o", tmp_path / "out", "--method", "slerp", "--t", "0.3")
    assert done.exit_code == 0 and "opposite ways" in done.stderr and "opposite" not in done.stdout
    quiet = run("merge", one, two, "-o", tmp_path / "again", "--method", "slerp", "--t", "0.3", "--quiet")
    assert quiet.exit_code == 0 and quiet.stderr == ""


def test_nothing_is_overwritten_unasked(folders, tmp_path):
    run("merge", *folders, "-o", tmp_path / "out")
    assert "--force" in failed(run("merge", *folders, "-o", tmp_path / "out"))
    assert run("merge", *folders, "-o", tmp_path / "out", "--force").exit_code == 0


def test_statistics_are_reset_on_data_and_the_words_to_go_on_with_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "merged_nets.py").write_text(
        "import torch\nfrom torch import nn\n\ndef normed():\n"
        "    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), torch.rand(2, 64)\n"
    )
    for seed in (0, 1):
        torch.manual_seed(seed)
        network = load_model("merged_nets:normed", seed=seed).model
        network.train()(torch.rand(20, 64))
        save_file(network.state_dict(), f"{seed}.safetensors")
    models = [f"merged_nets:normed@{seed}.safetensors" for seed in (0, 1)]
    plain = run("merge", *models, "-o", "plain")
    assert "merged like weights" in plain.stderr and "with --data DATA --reset 20" in plain.stderr
    assert "merged_nets:normed@plain" in plain.stdout and "in 1 file)" in plain.stdout
    done = run("merge", *models, "-o", "reset", "--data", "digits", "--reset", 3, "--batch-size", 50)
    assert done.exit_code == 0, done.stderr
    assert "150 samples" in done.stdout and "merged like weights" not in done.stderr
    one, other = (open_checkpoint(name) for name in ("plain", "reset"))
    assert torch.equal(one["0.weight"], other["0.weight"])
    assert not torch.allclose(one["1.running_mean"], other["1.running_mean"])
    for options in (("--data", "digits"), ("--reset", 3)):
        alone = run("merge", *models, "-o", "alone", *options)
        assert alone.exit_code == 2 and "go together" in alone.stderr


def test_a_merge_on_disk_does_not_wait_for_torch(folders, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "interbasin", "merge", *map(str, folders)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out")], capture_output=True, text=True, check=True, timeout=120
    )
    assert str(tmp_path / "out") in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "interbasin.jobs.merge.on_disk" in imported and "torch" not in imported


def test_a_missing_base_is_asked_for_once(folders, tmp_path):
    done = run("merge", *folders, "-o", tmp_path / "out", "--method", "ties")
    assert "all fine-tuned from (--base)." in " ".join(done.stderr.split())
