"""Files of torch.save: weights come out, whatever a training program saved around them; nothing is executed."""

from __future__ import annotations

import argparse
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.strategies import same
from tests.test_storage import refused

from interbasin.checkpoints import open_checkpoint
from interbasin.errors import CheckpointError, UnknownNameError

W = torch.arange(6.0).reshape(2, 3)
STATE = OrderedDict({"a.weight": W, "a.bias": torch.ones(2, dtype=torch.float16)})


def saved(folder: Path, value: object, name: str = "weights.pt", **options: object) -> Path:
    torch.save(value, folder / name, **options)
    return folder / name


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read_exactly(zipped, tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, STATE, _use_new_zipfile_serialization=zipped))
    assert checkpoint.kind == "torch" and checkpoint.names == ("a.weight", "a.bias") and checkpoint.part is None
    assert checkpoint.dtype("a.bias") == torch.float16 and checkpoint.shape("a.weight") == (2, 3)
    assert all(same(checkpoint[name], STATE[name]) for name in STATE)


def test_a_tensor_that_was_read_is_ones_own_and_holds_no_more_than_itself(tmp_path):
    big = torch.randn(100, 100)
    checkpoint = open_checkpoint(saved(tmp_path, {"row": big[3], "turned": big[:2].mT, "p": torch.nn.Parameter(W)}))
    row = checkpoint["row"]
    assert row.untyped_storage().nbytes() == 400 and same(row, big[3])
    row.zero_()
    assert same(checkpoint["row"], big[3]) and same(checkpoint["turned"], big[:2].mT)
    assert type(checkpoint["p"]) is torch.Tensor and not checkpoint["p"].requires_grad


def test_tied_tensors_are_known_to_be_one(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {"embed": W, "head": W, "part": W[1:], "empty": W[2:], "void": W[2:]}))
    assert dict(checkpoint.ties) == {"head": "embed"}
    assert checkpoint.numel == 6 + 3 and len(checkpoint) == 5 and checkpoint.shape("head") == (2, 3)
    tensors = checkpoint.state_dict()
    assert tensors["head"] is tensors["embed"] and same(checkpoint["head"], W)


@pytest.mark.parametrize("part", ["state_dict", "model", "model_state_dict", "state_dict_ema", "net"])
def test_the_weights_inside_a_training_checkpoint_are_found(part, tmp_path):
    value = {"epoch": 3, part: STATE, "optimizer": {"state": {0: {"momentum": W}}, "param_groups": []}, "args": None}
    checkpoint = open_checkpoint(saved(tmp_path, value))
    assert set(checkpoint) == set(STATE) and checkpoint.part == part


def test_a_checkpoint_of_timm_with_its_command_line_is_read(tmp_path):
    value = {"arch": "resnet18", "state_dict": STATE, "args": argparse.Namespace(lr=0.1), "metric": 0.7}
    assert set(open_checkpoint(saved(tmp_path, value, "model_best.pth.tar"))) == set(STATE)


def test_averaged_weights_come_first_and_others_can_be_asked_for(tmp_path):
    path = saved(tmp_path, {"state_dict": {"w": W}, "state_dict_ema": {"w": W + 1}})
    assert same(open_checkpoint(path)["w"], W + 1)
    assert same(open_checkpoint(path, part="state_dict")["w"], W)
    refused(lambda: open_checkpoint(path, part="model"), UnknownNameError, ("'model'", "state_dict_ema"))


def test_a_single_state_dict_under_any_name_is_found_and_several_are_not_guessed(tmp_path):
    assert open_checkpoint(saved(tmp_path, {"encoder": STATE, "step": 3})).part == "encoder"
    path = saved(tmp_path, {"generator": STATE, "critic": STATE})
    refused(lambda: open_checkpoint(path), CheckpointError, ("generator, critic", "part="))
    assert open_checkpoint(path, part="critic").part == "critic"


def test_what_is_no_tensor_beside_tensors_is_left_out_and_told(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {"w": W, "epoch": 3, "_extra_state": None}))
    assert checkpoint.names == ("w",) and checkpoint.left_out == ("epoch", "_extra_state")


@pytest.mark.parametrize(
    ("names", "expected", "prefix"),
    [
        (("module.a", "module.b"), ("a", "b"), "module."),
        (("_orig_mod.module.a",), ("a",), "_orig_mod.module."),
        (("module.a", "b"), ("module.a", "b"), ""),
        (("module.",), ("module.",), ""),
        (("modules.a",), ("modules.a",), ""),
    ],
)
def test_the_prefix_of_a_wrapper_is_taken_off_only_if_all_names_have_it(names, expected, prefix, tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {name: torch.ones(1) * i for i, name in enumerate(names)}))
    assert checkpoint.names == expected and checkpoint.prefix == prefix


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


class Settings:
    pass


class Trap:
    """Would say so if it were ever executed."""

    def __reduce__(self):
        return (pytest.fail, ("the file was executed",))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(
            Network(),
            ("a whole network", "Network", "can run code", "torch.load('weights.pt', weights_only=False).state_dict()"),
            id="a network",
        ),
        pytest.param(torch.nn.Linear(2, 2), ("a whole network", "torch.nn.modules.linear.Linear"), id="one of torch"),
        pytest.param({"model": Network()}, ("a whole network",), id="a network inside"),
        pytest.param(
            {"state_dict": dict(STATE), "config": Settings()},
            ("beside the weights", "Settings", "can run code", "weights_only=False)['state_dict']"),
            id="an object beside the weights",
        ),
        pytest.param({"w": W, "trap": Trap()}, ("can run code",), id="a trap"),
        pytest.param(W, ("holds a Tensor", "expected a state dict"), id="a tensor"),
        pytest.param([W], ("holds a list",), id="a list"),
        pytest.param({}, ("holds no tensors by name, but nothing at all",), id="nothing"),
        pytest.param({"lr": 0.1, "epoch": 3}, ("holds no tensors by name, but lr, epoch",), id="no tensors"),
        pytest.param({0: W}, ("holds no tensors by name",), id="numbers for names"),
        pytest.param({"w": W.to_sparse()}, ("w in", "is sparse", "to_dense"), id="sparse"),
        pytest.param({"w": torch.empty(2, device="meta")}, ("no numbers",), id="meta"),
    ],
)
def test_what_is_not_a_state_dict_is_refused_with_why_and_what_to_do(value, words, tmp_path):
    path = saved(tmp_path, value)
    refused(lambda: open_checkpoint(path), CheckpointError, (str(path), *words))


@pytest.mark.filterwarnings("ignore")  # torch itself is giving them up
def test_tensors_that_torch_quantised_are_refused_by_name(tmp_path):
    path = saved(tmp_path, {"w": torch.quantize_per_tensor(W, 0.1, 0, torch.qint8)})
    refused(lambda: open_checkpoint(path), CheckpointError, ("w in", "quantised by torch", "dequantize"))


def test_a_torchscript_program_is_refused_with_how_to_convert_it(tmp_path):
    path = tmp_path / "program.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), path)
    refused(
        lambda: open_checkpoint(path), CheckpointError, ("TorchScript", "torch.jit.load('program.pt').state_dict()")
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", ("is empty",), id="empty"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1", ("Git LFS pointer",), id="lfs"),
        pytest.param(b"hello, world, this is text", ("neither a safetensors file nor", "begins with"), id="text"),
        pytest.param(pickle.dumps({"a": 1}), ("could not be read",), id="a plain pickle"),
        pytest.param(b"\x80\x02}q\x00.", ("could not be read",), id="an old pickle"),
    ],
)
def test_a_file_that_is_something_else_is_named(content, words, tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    refused(lambda: open_checkpoint(path), CheckpointError, (str(path), *words))


def test_an_archive_of_numpy_is_not_taken_for_one_of_torch(tmp_path):
    np.savez(tmp_path / "arrays.npz", a=np.zeros(3))
    refused(lambda: open_checkpoint(tmp_path / "arrays.npz"), CheckpointError, ("could not be read",))


def test_a_file_cut_off_anywhere_is_noticed_when_it_is_opened(tmp_path):
    path = saved(tmp_path, STATE)
    whole = path.read_bytes()
    for kept in (*range(0, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:kept])
        refused(lambda: open_checkpoint(path), CheckpointError, (str(path),))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_an_error_of_ours_or_leaves_tensors_that_can_be_read(damage):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder), STATE)
        content = bytearray(path.read_bytes())
        for place, byte in damage:
            content[place % len(content)] = byte
        path.write_bytes(content)
        try:
            checkpoint = open_checkpoint(path)
            for name in checkpoint:
                assert tuple(checkpoint[name].shape) == checkpoint.shape(name)
        except (CheckpointError, UnknownNameError):
            pass


def test_a_file_that_changed_after_it_was_opened_is_not_read(tmp_path):
    path = saved(tmp_path, STATE)
    checkpoint = open_checkpoint(path)
    saved(tmp_path, {"other": torch.zeros(1000)})
    refused(lambda: checkpoint["a.weight"], CheckpointError, ("has changed since it was opened",))
