"""Networks of a factory, weights that fit or do not, and the inputs that the user gives."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.strategies import same
from tests.test_storage import case, refused

from interbasin.checkpoints import write_checkpoint
from interbasin.errors import CheckpointError, DataError, FileError, UnknownNameError
from interbasin.models import LoadedModel, load_model

SOURCE = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.head(self.embed(x))

def plain():
    return nn.Linear(3, 2)

def with_inputs():
    return nn.Linear(3, 2), torch.ones(4, 3)

def tied():
    return Tied()

def broken():
    raise ValueError("no luck today")

def leaving():
    raise SystemExit("enough")

def on_meta():
    with torch.device("meta"):
        return nn.Linear(3, 2)

def lazy():
    return nn.LazyLinear(2)

class Own(nn.Linear):
    def _load_from_state_dict(self, *arguments):
        raise KeyError("not so")

def own():
    return Own(3, 2)

class Forgetful(nn.Linear):
    def eval(self):
        super().eval()

def forgetful():
    return Forgetful(3, 2)

def evaluated():
    return nn.Linear(3, 2).eval()

def nothing():
    return None

def needs(argument):
    return nn.Linear(1, 1)

NUMBER = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a module of networks in it, of a name that no other test has imported."""
    monkeypatch.chdir(tmp_path)
    name = f"networks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SOURCE, "utf-8")
    yield name
    sys.modules.pop(name, None)


def test_a_factory_in_the_current_folder_makes_the_network(here):
    before = list(sys.path)
    loaded = load_model(f"{here}:plain")
    assert isinstance(loaded, LoadedModel) and isinstance(loaded.model, torch.nn.Linear) and not loaded.model.training
    assert loaded.inputs is None and loaded.checkpoint is None and loaded.family == "Linear"
    assert loaded.text == f"{here}:plain" and sys.path == before


def test_random_weights_follow_the_seed_and_leave_torchs_own_alone(here):
    state = torch.random.get_rng_state()
    one, other = load_model(f"{here}:plain", seed=1), load_model(f"{here}:plain", seed=1)
    assert torch.equal(one.model.weight, other.model.weight)
    assert not torch.equal(one.model.weight, load_model(f"{here}:plain", seed=2).model.weight)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_factory_may_bring_its_inputs(here):
    loaded = load_model(f"{here}:with_inputs")
    assert torch.equal(loaded.require_inputs(), torch.ones(4, 3))


def test_weights_are_put_in_with_their_dtype(here, tmp_path):
    state = {"weight": torch.randn(2, 3).bfloat16(), "bias": torch.randn(2).bfloat16()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "w.pt")
    write_checkpoint(tmp_path / "folder", state)
    for weights in ("w.safetensors", "w.pt", "folder"):
        loaded = load_model(f"{here}:with_inputs@{weights}")
        assert all(same(value, state[name]) for name, value in loaded.model.state_dict().items())
        assert loaded.checkpoint is not None and loaded.checkpoint.path == Path(weights)


def test_tied_weights_need_to_be_there_once_and_stay_tied(here, tmp_path):
    table = torch.randn(5, 3).half()
    running = {"norm.weight": torch.ones(3), "norm.bias": torch.ones(3)}
    running |= {"norm.running_mean": torch.ones(3), "norm.running_var": torch.ones(3)}
    for name in ("embed.weight", "head.weight"):
        save_file({name: table, **running}, tmp_path / f"{name}.safetensors")
        model = load_model(f"{here}:tied@{name}.safetensors").model
        assert model.head.weight is model.embed.weight and same(model.head.weight.detach(), table)
        assert model.norm.num_batches_tracked == 0  # which old files lack


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        case(
            "another shape",
            {"weight": torch.ones(3, 3), "bias": torch.ones(2)},
            CheckpointError,
            "weight has shape (3, 3)",
            "and (2, 3) in the network of",
        ),
        case("a missing tensor", {"weight": torch.ones(2, 3)}, CheckpointError, "lacks 1 tensor of", "bias"),
        case(
            "other names",
            {"w": torch.ones(2, 3), "b": torch.ones(2)},
            CheckpointError,
            "lacks 2 tensors",
            "(and has b, w, which it does not know)",
        ),
        case(
            "a tensor too many",
            {"weight": torch.ones(2, 3), "bias": torch.ones(2), "extra": torch.ones(1)},
            CheckpointError,
            "has 1 tensor that the network of",
            "extra",
            "strict=False",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(state, error, words, here, tmp_path):
    save_file(state, tmp_path / "w.safetensors")
    refused(lambda: load_model(f"{here}:plain@w.safetensors"), error, ("w.safetensors", *words))


def test_tensors_without_use_can_be_left_aside_but_missing_ones_cannot(here, tmp_path):
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2), "extra": torch.ones(1)}
    save_file(state, tmp_path / "w.safetensors")
    assert load_model(f"{here}:plain@w.safetensors", strict=False).unused == ("extra",)
    del state["bias"]
    save_file(state, tmp_path / "w.safetensors")
    refused(lambda: load_model(f"{here}:plain@w.safetensors", strict=False), CheckpointError, ("lacks 1 tensor",))


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        case("no such function", "plane", UnknownNameError, "factory in", "'plane'", "plain"),
        case("not a function", "NUMBER", UnknownNameError, "'NUMBER'"),
        case("one that fails", "broken", DataError, "failed (ValueError: no luck today)", "by itself"),
        case("one that needs arguments", "needs", DataError, "called without arguments and failed (TypeError"),
        case("one that returns nothing", "nothing", DataError, "returned a NoneType"),
    ],
)
def test_a_factory_that_makes_no_network_is_named(factory, error, words, here):
    refused(lambda: load_model(f"{here}:{factory}"), error, (here, *words) if error is DataError else words)


def test_only_a_files_own_functions_are_offered_as_factories(here, tmp_path):
    (tmp_path / "imports_much.py").write_text(
        "from collections import OrderedDict\nfrom torch import nn\n\ndef network():\n    return nn.Linear(1, 1)\n"
    )
    message = refused(lambda: load_model("imports_much:OrderedNetwork"), UnknownNameError, ("try one of: network.",))
    assert "OrderedDict" not in message


def test_a_module_that_is_not_there_is_named(here):
    refused(lambda: load_model("no_such_module:f"), UnknownNameError, ("no module named 'no_such_module'", "spelling"))
    refused(lambda: load_model(f"{here}.deeper:f"), UnknownNameError, (f"no module named '{here}.deeper'",))


def test_a_module_that_fails_is_told_from_one_that_is_not_there(here, tmp_path):
    for text, word in (("import no_such_library", "no_such_library"), ("1 / 0", "ZeroDivisionError")):
        (tmp_path / f"{here}_bad.py").write_text(text, "utf-8")
        refused(lambda: load_model(f"{here}_bad:f"), DataError, (f"{here}_bad:f", "could not be imported", word))


def test_errors_of_ours_pass_through_a_factory(here, tmp_path):
    text = "from interbasin.models import load_model\ndef f():\n    return load_model('./missing').model"
    (tmp_path / f"{here}_ours.py").write_text(text, "utf-8")
    refused(lambda: load_model(f"{here}_ours:f"), CheckpointError, ("'./missing'",))


# Inputs


def test_inputs_come_from_files(here, tmp_path):
    x, ids = torch.randn(4, 3), torch.arange(4)
    np.save("x.npy", x.double().numpy())
    np.savez("x.npz", x=x.numpy(), ids=ids.numpy())
    torch.save((x, ids), "pair.pt")
    torch.save({"x": x, "use_cache": False, "mask": None}, "named.pt")
    save_file({"x": x, "ids": ids}, "x.safetensors")

    def read(name: str) -> object:
        return load_model(f"{here}:with_inputs", inputs=name).inputs

    assert same(read("x.npy"), x)  # in the dtype of the network
    for name in ("x.npz", "x.safetensors"):
        found = read(name)
        assert set(found) == {"x", "ids"} and same(found["x"], x) and same(found["ids"], ids)
    assert isinstance(read("pair.pt"), tuple) and same(read("pair.pt")[1], ids)
    assert read("named.pt")["use_cache"] is False and read("named.pt")["mask"] is None
    assert same(load_model(f"{here}:plain", inputs=Path("x.npy")).require_inputs(), x)


def test_inputs_of_a_shape_follow_the_seed(here):
    one = load_model(f"{here}:plain", input_shape=(4, 3), seed=1).inputs
    assert one.shape == (4, 3) and torch.equal(one, load_model(f"{here}:plain", input_shape=[4, 3], seed=1).inputs)
    assert not torch.equal(one, load_model(f"{here}:plain", input_shape=(4, 3), seed=2).inputs)


def test_inputs_that_are_needed_and_missing_are_asked_for(here):
    words = (f"{here}:plain", "--inputs FILE", "--input-shape")
    refused(load_model(f"{here}:plain").require_inputs, DataError, words)


@pytest.mark.parametrize("shape", [(), (0, 3), (1.5,), ("a",), (-1, 3)])
def test_a_shape_that_is_none_is_refused(shape, here):
    refused(lambda: load_model(f"{here}:plain", input_shape=shape), DataError, ("list of sizes", repr(shape)))


def put(name: str, value: object) -> None:
    if isinstance(value, bytes):
        Path(name).write_bytes(value)
    elif name.endswith(".pt"):
        torch.save(value, name)
    else:
        np.save(name, value, allow_pickle=True)


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        case("no file", ("x.npy", None), FileError, "no such file", ".npy, .npz, .pt or .safetensors"),
        case("another format", ("x.csv", b"1,2"), FileError, "x.csv is none"),
        case("noise", ("x.npz", b"PK\x03\x04 noise"), FileError, "could not be read"),
        case("objects", ("x.npy", np.array([{}], dtype=object)), FileError, "could not be read", "plain numbers"),
        case("no torch file", ("x.pt", b"plain text"), CheckpointError, "as a file of torch.save, but it is something"),
        case("a text", ("x.pt", "hello"), DataError, "What x.pt holds"),
        case("an empty mapping", ("x.pt", {}), DataError, "arrays by name"),
        case("numbers for names", ("x.pt", {0: torch.ones(1)}), DataError, "arrays by name"),
        case("a network", ("x.pt", torch.nn.Linear(1, 1)), CheckpointError, "can run code"),
        case("a list of texts", ("x.pt", ["a"]), DataError, "What x.pt holds"),
    ],
)
def test_inputs_that_cannot_be_used_are_named(file, error, words, here):
    name, value = file
    if value is not None:
        put(name, value)
    refused(lambda: load_model(f"{here}:plain", inputs=name), error, words)


def test_inputs_in_a_folder_or_given_twice_are_refused(here, tmp_path):
    refused(lambda: load_model(f"{here}:plain", inputs=tmp_path), FileError, ("there is a folder",))
    both = {"inputs": "x.npy", "input_shape": (1,)}
    refused(lambda: load_model(f"{here}:plain", **both), DataError, ("given twice",))


def test_a_seed_that_is_none_is_refused(here):
    refused(lambda: load_model(f"{here}:plain", seed=-1), DataError, ("seed",))


def test_a_factory_that_leaves_the_program_does_not(here):
    words = (f"{here}:leaving", "left the program, as sys.exit('enough') does")
    refused(lambda: load_model(f"{here}:leaving"), DataError, words)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\n\ndef f(:\n", ("module_that_is_none.py, line 3 is not Python", "mend it there")),
        ("x = '\0'", ("is not Python", "null bytes")),
        ("import sys\nsys.exit(3)", ("could not be imported", "left the program, as sys.exit(3) does")),
        ("1 / 0", ("could not be imported", "ZeroDivisionError: division by zero")),
        ("import missing_package_of_ours", ("could not be imported", "No module named 'missing_package_of_ours'")),
        ("from interbasin import rebasinn", ("could not be imported", "ImportError")),
    ],
    ids=["syntax", "null", "exit", "error", "missing", "name"],
)
def test_a_module_that_cannot_be_imported_says_why(here, tmp_path, source, words):
    (tmp_path / "module_that_is_none.py").write_text(source, "utf-8")
    refused(lambda: load_model("module_that_is_none:f"), DataError, ("module_that_is_none:f was to be made", *words))


def test_what_was_made_in_training_mode_is_known(here):
    assert load_model(f"{here}:plain").was_training and not load_model(f"{here}:evaluated").was_training
    assert not load_model(f"{here}:plain").model.training
    assert load_model(f"{here}:forgetful").model is not None


@pytest.mark.parametrize(
    ("factory", "dtype", "words"),
    [
        ("on_meta", torch.float32, ("is on the meta device, where no weights can be loaded",)),
        ("lazy", torch.float32, ("has no shape yet (it is lazy)", "call the network once")),
        ("own", torch.float32, ("could not be loaded into the network of", "KeyError: 'not so'")),
        ("plain", torch.int64, ("is of torch.int64", "and of torch.float32", "not weights, or quantised")),
    ],
    ids=["meta", "lazy", "own", "whole numbers"],
)
def test_weights_that_would_not_be_loaded_are_refused(here, factory, dtype, words):
    save_file({"weight": torch.ones(2, 3, dtype=dtype), "bias": torch.ones(2, dtype=dtype)}, "w.safetensors")
    refused(lambda: load_model(f"{here}:{factory}@w.safetensors"), CheckpointError, words)


@pytest.mark.parametrize("base", ["gpt2", "", 3])
def test_a_base_is_for_adapters(here, base):
    refused(lambda: load_model(f"{here}:plain", base=base), DataError, ("--base", "is no folder with an adapter"))


@pytest.mark.parametrize("shape", [(99_999_999_999, 6), (10**30,), (2**40, 2**40)])
def test_inputs_that_no_machine_holds_are_refused(here, shape):
    words = (f"of shape {shape} do not fit into memory", "smaller")
    refused(lambda: load_model(f"{here}:plain", input_shape=shape), DataError, words)


@pytest.mark.parametrize("shape", [3, "3,4", (True, 3), np.array([2, 3]), (2, None), ()], ids=str)
def test_a_shape_is_a_list_of_sizes(here, shape):
    refused(lambda: load_model(f"{here}:plain", input_shape=shape), DataError, ("is a list of sizes, batch first",))


def test_inputs_are_the_name_of_a_file(here):
    refused(lambda: load_model(f"{here}:plain", inputs=torch.ones(2, 3)), DataError, ("found a Tensor", "save them"))
    refused(lambda: load_model(f"{here}:plain", inputs="x" * 300), FileError, ("cannot be looked at", "too long"))


def test_inputs_given_twice_are_refused_before_anything_is_loaded(here):
    refused(
        lambda: load_model(f"{here}:broken", inputs="x.npy", input_shape=(2, 3)),
        DataError,
        ("given twice", "one of them"),
    )


def test_a_path_names_a_network_as_text_does(here, tmp_path):
    assert load_model(Path(f"{here}:plain")).text == f"{here}:plain"
