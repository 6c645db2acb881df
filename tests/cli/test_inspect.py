"""``interbasin inspect``: tables and JSON of small networks, and one sentence for those that cannot be shown."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import save_file
from tests.cli.test_frame import failed, run, run_apart
from tests.test_storage import left_in

from interbasin.cli.inspected import LARGEST_CHANGE
from interbasin.extras import import_extra
from interbasin.models import load_model
from interbasin.wiring import Wiring

SOURCE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Network(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.stem = nn.Linear(5, 12)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

class Branching(Network):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

class Strange(Network):
    def forward(self, x):
        return self.head(torch.linalg.pinv(self.stem(x)).mT)

class Idle(Network):
    def __init__(self):
        super().__init__()
        self.spare = nn.ParameterList(torch.zeros(2) for _ in range(7))

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.ModuleDict({"inner": Network()})

    def forward(self, x):
        return self.stack["inner"](x)

def made(kind=Network, dtype=torch.float32):
    torch.manual_seed(0)
    return kind().to(dtype), torch.randn(6, 5, dtype=dtype)

def network(): return made()
def without_inputs(): return made()[0]
def branching(): return made(Branching)
def strange(): return made(Strange)
def idle(): return made(Idle)
def deep(): return made(Deep)
def half(): return made(dtype=torch.bfloat16)
def double(): return made(dtype=torch.float64)

class Chatty(Network):
    def forward(self, x):
        print("forward!")
        return super().forward(x)

def chatty():
    print("made!")
    return made(Chatty)

def evaluated(): return made()[0].eval(), made()[1]
def still(): return nn.Linear(5, 3), torch.randn(6, 5)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The name of a module of networks in the current folder, which no other test has imported."""
    monkeypatch.chdir(tmp_path)
    name = f"networks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SOURCE, "utf-8")
    yield name
    sys.modules.pop(name, None)


def told(*arguments) -> dict:
    done = run("inspect", *arguments, "--json", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def row(shown: str, first: str) -> list[str]:
    """The cells of the line that starts with ``first``."""
    return next(line.split() for line in shown.splitlines() if line.split()[:1] == [first])


# What is shown


def test_json_holds_all_of_it(nets):
    found = told(f"{nets}:network")
    assert list(found) == [
        "model",
        "parameters",
        "share_moved",
        "coverage",
        "check",
        "check_dtype",
        "spaces",
        "fixed",
        "unknown_operators",
        "unused_tensors",
        "tied_tensors",
        "seed",
        "seconds",
    ]
    assert found["model"] == {
        "name": f"{nets}:network",
        "class": "Network",
        "family": "Network",
        "dtype": "float32",
        "inputs": "6 x 5",
        "weights": None,
    }
    assert found["parameters"] == 5 * 12 + 12 + 4 * (2 * 12 * 20 + 32) + 12 * 3 + 3
    assert found["coverage"] == 1.0 and 0 <= found["check"] < 1e-5 and found["check_dtype"] == "float32"
    assert found["share_moved"] == pytest.approx(1 - 3 / found["parameters"])  # the bias of the output does not
    assert {name: (one["width"], one["group"]) for name, one in found["spaces"].items()} == {
        "stem": (12, "invertible"),
        "input": (5, "fixed"),
        **{f"blocks.{place}.up": (20, "permutation") for place in range(4)},
        "output": (3, "fixed"),
    }
    assert found["spaces"]["stem"]["reads"] == [
        *(f"blocks.{place}.up.weight[1]" for place in range(4)),
        "head.weight[1]",
    ]
    assert found["unknown_operators"] == {} and found["unused_tensors"] == [] and found["tied_tensors"] == {}
    assert set(found["seconds"]) == {"load", "wire", "check"} and found["seed"] == 0


def test_json_tells_what_is_fixed_and_why(nets):
    (one, other) = told(f"{nets}:network")["fixed"]
    assert one == {
        "kind": "input",
        "why": "it meets the network's input",
        "lowers_coverage": False,
        "axes": ["stem.weight[1]"],
        "spaces": ["input"],
        "parameters": 60,
    }
    assert (other["kind"], other["axes"], other["parameters"]) == ("output", ["head.weight[0]", "head.bias[0]"], 39)


def test_people_see_what_it_is_and_a_line_for_layers_that_repeat(nets):
    done = run("inspect", f"{nets}:network")
    assert done.exit_code == 0, done.stderr
    shown = done.stdout
    assert "Network, 2,159 parameters in float32" in shown and row(shown, "inputs") == ["inputs", "6", "x", "5"]
    assert "7, of which 5 can move" in shown
    assert row(shown, "coverage")[1] == "100.0%" and row(shown, "moved")[1] == "99.9%"
    assert "largest relative change of the outputs under random exact maps, in float32" in shown
    assert row(shown, "stem") == ["stem", "1", "12", "invertible", "of", "12", "10/5/0", "96.2%"]
    repeated = row(shown, "blocks.{0..3}.up")
    assert repeated[1:] == ["4", "20", "permutation", "of", "20", "2/1/0", "92.6%"]
    assert "it meets the network's input" in shown and "stem.weight[1]" in shown and "head.weight[0], ..." in shown
    assert "load" in done.stderr and "check" in done.stderr


def test_all_lists_every_space_with_its_reason(nets):
    shown = run("inspect", f"{nets}:network", "--all").stdout
    for place in range(4):
        assert f"(aten.relu in blocks.{place})" in shown or f"blocks.{place}.up" in shown
        assert row(shown, f"blocks.{place}.up")[1:5] == ["20", "permutation", "of", "20"]
    assert row(shown, "output")[1:3] == ["3", "fixed"] and "the network's output lies along it" in shown


def test_names_are_whole_where_nobody_watches(nets):
    shown = run("inspect", f"{nets}:network", "--all").stdout
    assert max(map(len, shown.splitlines())) > 100 and "…" not in shown


def test_names_are_broken_at_dots_on_a_narrow_screen(nets, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(
        "interbasin.cli.output._console", lambda stderr: Console(width=60, force_terminal=not stderr, no_color=True)
    )
    done = run("inspect", f"{nets}:deep", "--no-check")
    assert done.exit_code == 0, done.stderr
    starts = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    place = starts.index("stack.inner.blocks.")
    assert starts[place + 1] == "{0..3}.up" and "stack.inner.stem" in starts


def test_a_check_a_space_at_a_time(nets):
    found = told(f"{nets}:network", "--each")
    assert set(found["checks"]) == {"stem", *(f"blocks.{place}.up" for place in range(4))}
    assert all(0 <= change < 1e-5 for change in found["checks"].values())
    shown = run("inspect", f"{nets}:network", "--each", "--all").stdout
    assert "check" in next(line for line in shown.splitlines() if line.split()[:1] == ["space"])
    assert row(shown, "input")[:6] == ["input", "5", "fixed", "0/1/0", "2.8%", "-"]


def test_without_the_check_nothing_is_carried(nets, monkeypatch):
    monkeypatch.setattr(Wiring, "check", lambda *arguments, **keywords: pytest.fail("checked"))
    found = told(f"{nets}:network", "--no-check")
    assert found["check"] is None and set(found["seconds"]) == {"load", "wire"}
    assert "not made (--no-check)" in run("inspect", f"{nets}:network", "--no-check").stdout


def test_the_seed_is_that_of_the_check(nets):
    changes = {told(f"{nets}:network", "--seed", seed)["check"] for seed in (1, 2, 3)}
    assert len(changes) > 1 and told(f"{nets}:network", "--seed", 2)["check"] in changes


def test_tensors_are_shown_in_the_notation(nets):
    found = told(f"{nets}:network", "--tensors")
    assert found["tensors"]["blocks.2.up.weight"] == "blocks.2.up <- stem" and len(found["tensors"]) == 20
    lines = run("inspect", f"{nets}:network", "--tensors").stdout.splitlines()
    assert any(line.split() == ["blocks.2.up.weight", "blocks.2.up", "<-", "stem"] for line in lines)


def test_half_precision_is_checked_in_single(nets):
    found = told(f"{nets}:half")
    assert (found["model"]["dtype"], found["check_dtype"]) == ("bfloat16", "float32") and found["check"] < 1e-5
    assert told(f"{nets}:double")["check"] < 1e-13


def test_unused_tensors_are_named(nets):
    assert told(f"{nets}:idle")["unused_tensors"] == [f"spare.{place}" for place in range(7)]
    few, all_ = (run("inspect", f"{nets}:idle", *flags).stdout for flags in ((), ("--all",)))
    assert "7 tensors that the call did not touch: spare.0, spare.1, " in few and "and 2 more (--all)." in few
    assert "spare.6." in all_


def test_operators_without_a_rule_are_named_and_what_to_do(nets):
    found = told(f"{nets}:strange")
    assert len(found["unknown_operators"]) == 1 and "pinv" in next(iter(found["unknown_operators"]))
    assert found["fixed"][0]["kind"] == "unknown" and found["fixed"][0]["lowers_coverage"]
    assert found["coverage"] < 1
    done = run("inspect", f"{nets}:strange")
    assert "Operators without a rule" in done.stdout and "linalg_pinv" in done.stdout
    assert "'Add an operator' in CONTRIBUTING.md" in done.stderr


def test_a_check_that_is_too_large_is_called_a_bug(nets, monkeypatch):
    for change, spoken in ((2 * LARGEST_CHANGE["float32"], True), (LARGEST_CHANGE["float32"] / 2, False)):
        monkeypatch.setattr(Wiring, "check", lambda *arguments, change=change, **keywords: change)
        done = run("inspect", f"{nets}:network")
        assert done.exit_code == 0 and ("a bug worth reporting" in done.stderr) is spoken
    monkeypatch.setattr(Wiring, "check", lambda *arguments, **keywords: float("nan"))
    assert told(f"{nets}:network")["check"] is None
    assert "a bug worth reporting" in run("inspect", f"{nets}:network").stderr


def test_what_the_network_prints_is_not_in_the_result(nets):
    for flags in ((), ("--each",)):
        done = run("inspect", f"{nets}:chatty", "--json", "--quiet", *flags)
        assert json.loads(done.stdout)["model"]["class"] == "Chatty"
        assert "made!" in done.stderr and "forward!" in done.stderr
    shown = run("inspect", f"{nets}:chatty", "--quiet")
    assert "!" not in shown.stdout and "made!" in shown.stderr


def test_a_network_in_training_mode_is_told_of(nets):
    words = "in training mode; it is shown in evaluation mode"
    assert words in run("inspect", f"{nets}:network", "--no-check").stderr
    assert words not in run("inspect", f"{nets}:evaluated", "--no-check").stderr


def test_a_check_of_nothing_says_so(nets):
    found = told(f"{nets}:still")
    assert found["check"] is None and found["share_moved"] == 0
    done = run("inspect", f"{nets}:still")
    assert "says nothing, for nothing can move" in done.stdout and "2, of which 0 can move" in done.stdout
    assert "bug" not in done.stderr


# Networks from elsewhere


@pytest.mark.slow
def test_a_folder_of_transformers_brings_its_inputs(tmp_path):
    transformers = import_extra("transformers", "A network of transformers", "hf")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=40)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    found = told(tmp_path / "llama")
    assert (found["model"]["family"], found["model"]["class"]) == ("llama", "LlamaForCausalLM")
    assert found["coverage"] > 0.9 and found["check"] < 1e-5 and found["model"]["weights"] == str(tmp_path / "llama")
    shown = run("inspect", tmp_path / "llama").stdout
    assert row(shown, "model.layers.{0..2}.mlp.gate_proj")[1:3] == ["3", "24"]


def test_an_architecture_of_timm_is_drawn_at_random():
    found = told("timm:test_vit", "--no-check")
    assert found["model"]["class"] == "VisionTransformer" and found["coverage"] > 0.9


def test_inputs_are_read_or_drawn(nets, tmp_path):
    save_file({"x": torch.ones(2, 5)}, tmp_path / "inputs.safetensors")
    assert told(f"{nets}:without_inputs", "--inputs", "inputs.safetensors")["model"]["inputs"] == "x 2 x 5"
    assert told(f"{nets}:without_inputs", "--input-shape", "3,5")["model"]["inputs"] == "3 x 5"


def test_weights_that_have_no_use_are_left_aside_when_asked(nets, tmp_path):
    weights = load_model(f"{nets}:network").model.state_dict()
    save_file({**weights, "more": torch.ones(2)}, tmp_path / "w.safetensors")
    asked = f"{nets}:network@w.safetensors"
    assert "1 tensor that the network" in failed(run("inspect", asked))
    done = run("inspect", asked, "--no-strict")
    assert done.exit_code == 0 and "no use for 1 tensor of the weights" in done.stderr
    assert told(asked, "--no-strict")["model"]["weights"] == "w.safetensors"


# What is written


def test_the_wiring_is_saved_and_not_overwritten_unasked(nets, tmp_path):
    found = told(f"{nets}:network", "-o", tmp_path / "out")
    assert found["output"] == str(tmp_path / "out") and left_in(tmp_path / "out") == [
        "wiring.json",
        "wiring.safetensors",
    ]
    assert Wiring.load(tmp_path / "out").to_json()["spaces"] == found["spaces"]
    assert "nothing is overwritten unasked" in failed(run("inspect", f"{nets}:network", "-o", tmp_path / "out"))
    done = run("inspect", f"{nets}:idle", "-o", tmp_path / "out", "--force")
    assert done.exit_code == 0 and "written to" in done.stdout
    assert len(Wiring.load(tmp_path / "out").unused) == 7


def test_what_is_in_the_way_is_said_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "a file of that name exists" in failed(run("inspect", "no.such:network", "-o", tmp_path / "file"))


# What cannot be shown


@pytest.mark.slow
def test_torch_adds_nothing_to_the_sentence(nets, tmp_path):
    assert "cannot be traced" in failed(run_apart("inspect", f"{nets}:branching", cwd=tmp_path))
