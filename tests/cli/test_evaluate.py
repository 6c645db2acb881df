"""``interbasin evaluate``: two networks and data in, a folder out, or one sentence and no folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.test_frame import failed, run
from tests.test_storage import left_in

import interbasin as ib
from interbasin.extras import import_extra
from interbasin.models import load_model
from interbasin.outcome import Outcome, new_outcome

NETWORKS = """
import torch
from torch import nn

def small():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 10))
    return network, torch.zeros(2, 8, 8)

def bare():
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))

def normed():
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)), torch.zeros(2, 5)
"""
SMALL = "networks_for_evaluate:small"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("networks_for_evaluate.py").write_text(NETWORKS, "utf-8")
    for seed, name in enumerate("ab"):
        save_file(load_model(SMALL, seed=seed).model.state_dict(), f"{name}.safetensors")
    np.savez("five.npz", x=np.random.default_rng(0).normal(size=(40, 5)), y=np.arange(40) % 3)
    return tmp_path


A, B = f"{SMALL}@a.safetensors", f"{SMALL}@b.safetensors"
QUICK = ("--points", 3, "--quiet")


def test_the_figures_are_printed_and_written(folder):
    done = run("evaluate", A, B, "--data", "digits", "-o", "out", *QUICK)
    assert done.exit_code == 0, done.stderr
    outcome = Outcome.load("out")
    for word in ("digits (test): 360 samples", "barrier", "relative_distance", "written to out", "space"):
        assert word in done.stdout
    assert done.stderr == "" and f"{outcome.metrics['barrier']:.4g}" in done.stdout
    assert outcome.job == "evaluate" and outcome.request["points"] == 3 and outcome.request["data"] == "digits"
    assert outcome.inputs["a"].sha256 and outcome.inputs["data"].sha256 is None
    assert {"barrier", "barrier_accuracy", "accuracy_a", "distance", "alignment_error.1"} <= set(outcome.metrics)
    assert {"loss.svg", "cka.svg", "path.csv", "outcome.json"} <= set(left_in(Path("out")))


def test_the_figures_are_those_of_the_library():
    done = run(
        "evaluate", A, B, "--data", "digits", "--path", "slerp", "--split", "train", "-o", "out", "--json", *QUICK
    )
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    a, b = (load_model(one) for one in (A, B))
    data = ib.datasets.open_data("digits", like=a.inputs)
    expected = ib.evaluate.barrier(a.model, b.model, data, points=3, path="slerp")
    assert printed["metrics"]["barrier"] == pytest.approx(float(expected))
    assert printed["output"] == "out" and printed == printed | Outcome.load("out").summary()


def test_an_aligned_network_is_measured_against_its_original():
    b = load_model(B)
    alignment = ib.wire(b.model, b.inputs).sample(seed=2)
    save_file(ib.carry(b.model, alignment.inverse()).state_dict(), "turned.safetensors")
    with new_outcome("aligned", job="rebasin", request={}) as out:
        out.write_checkpoint(b.model)
        out.add_alignment(alignment)
    common = ("--original", f"{SMALL}@turned.safetensors", "--data", "digits", *QUICK, "--limit", 50)
    done = run("evaluate", f"{SMALL}@aligned", B, "--alignment", "aligned", *common, "-o", "out")
    assert done.exit_code == 0, done.stderr
    metrics = Outcome.load("out").metrics
    assert abs(metrics["barrier_original"]) < 1e-5 and metrics["alignment_error_relative.1"] < 1e-5
    assert "cosine before" in done.stdout and "digits (test): 50 samples" in done.stdout
    done = run("evaluate", f"{SMALL}@aligned", B, "--alignment", "aligned/alignment", *common, "-o", "again")
    assert done.exit_code == 0 and Outcome.load("again").metrics == metrics


def test_cycle_consistency_is_measured_by_a_method_of_rebasin():
    done = run("evaluate", A, B, "--data", "digits", "--cycle", "permutation-weights", "-o", "out", *QUICK)
    assert done.exit_code == 0, done.stderr
    assert {"cycle_frne", "cycle_loss", "cycle_error.1"} <= set(Outcome.load("out").metrics)
    assert "cycle error" in done.stdout


def test_a_network_without_example_inputs_takes_those_of_the_data():
    bare = "networks_for_evaluate:bare"
    done = run("evaluate", bare, bare, "--data", "five.npz", "-o", "out", *QUICK)
    assert done.exit_code == 0, done.stderr
    assert Outcome.load("out").metrics["distance"] == 0
    done = run("evaluate", bare, bare, "--data", "five.npz", "--input-shape", "1,5", "-o", "shaped", *QUICK)
    assert done.exit_code == 0, done.stderr


def test_batch_norms_are_reset_on_request():
    normed = "networks_for_evaluate:normed"
    done = run("evaluate", normed, normed, "--data", "five.npz", "--points", 3, "-o", "out")
    assert done.exit_code == 0 and "interpolated like weights" in done.stderr and "--reset" in done.stderr
    done = run("evaluate", normed, normed, "--data", "five.npz", "--points", 3, "--reset", 2, "-o", "reset")
    assert done.exit_code == 0 and "interpolated like weights" not in done.stderr
    assert "between the ends, on 40 samples; the ends keep their own" in done.stderr
    outcome = Outcome.load("reset")
    assert outcome.request["reset"] == 2 and "estimated anew" in outcome.notes[0]


def test_images_are_normalised_as_asked():
    np.savez("images.npz", x=np.full((4, 8, 8), 255, dtype=np.uint8), y=np.arange(4))
    figures = [
        run("evaluate", A, B, "--data", "images.npz", "-o", f"out{place}", "--json", *QUICK, *options)
        for place, options in enumerate([("--mean", "0.5", "--std", "0.5"), (), ("--no-scale",)])
    ]
    losses = [json.loads(one.stdout)["metrics"]["loss_a"] for one in figures]
    assert losses[0] == losses[1] != losses[2]  # (1 - .5) / .5 is 1 again


def test_nothing_is_overwritten_without_force():
    assert run("evaluate", A, B, "--data", "digits", "-o", "out", *QUICK).exit_code == 0
    before = (Path("out") / "outcome.json").read_bytes()
    assert "--force" in failed(run("evaluate", A, B, "--data", "digits", "-o", "out", *QUICK))
    assert (Path("out") / "outcome.json").read_bytes() == before
    assert run("evaluate", A, B, "--data", "digits", "-o", "out", "--force", "--points", 4, "--quiet").exit_code == 0
    assert Outcome.load("out").request["points"] == 4


def test_a_language_model_is_measured_on_text(tmp_path):
    transformers = import_extra("transformers", "A language model", "hf")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4}, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    settings = transformers.GPT2Config(vocab_size=5, n_positions=16, n_embd=8, n_layer=1, n_head=2, eos_token_id=0)
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        transformers.GPT2LMHeadModel(settings).save_pretrained(name)
        tokenizer.save_pretrained(name)
    Path("t.txt").write_text("a b c a\nb c\nc a b\n" * 3, "utf-8")
    done = run("evaluate", "one", "two", "--data", "t.txt", "-o", "out", *QUICK)
    assert done.exit_code == 0, done.stderr
    assert {"barrier", "accuracy_a", "distance"} <= set(Outcome.load("out").metrics)
