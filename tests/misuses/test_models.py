"""Misuses of MODELs and checkpoints: names of no network, weights that do not fit, tensors that no file holds."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import torch
from tests.misuses.table import misuses, public, the
from tests.test_storage import TOO_LONG
from torch import nn

from interbasin.errors import CheckpointError, DataError, FileError, UnknownNameError

FACTORIES = "tests.misuses.factories"
A, B = torch.arange(4.0), torch.ones(2, 3)
INDEX = "model.safetensors.index.json"
SHARDS = {"1.safetensors": {"a": A}, "2.safetensors": {"b": B}}


def load(name: str = "mlp", **options: object) -> object:
    return public.load_model(f"{FACTORIES}:{name}", **options)


def load_weights(changes: dict[str, torch.Tensor | None], name: str = "mlp", **options: object) -> object:
    state = {key: value for key, value in {**MLP, **changes}.items() if value is not None}
    return load(f"{name}@{the.file('w.safetensors', state)}", **options)


MLP = {
    "0.weight": torch.ones(8, 4),
    "0.bias": torch.ones(8),
    "2.weight": torch.ones(3, 8),
    "2.bias": torch.ones(3),
}


def load_module(source: str) -> object:
    """A MODEL in a module of the current folder, which goes away again."""
    Path("made_here.py").write_text(source, "utf-8")
    try:
        return public.load_model("made_here:f")
    finally:
        Path("made_here.py").unlink()
        shutil.rmtree("__pycache__", ignore_errors=True)


@misuses(
    ("a model without a name", lambda: public.load_model(""), CheckpointError, "empty"),
    ("a model named by a number", lambda: public.load_model(3), CheckpointError, "int"),
    ("nothing for a model", lambda: public.load_model(None), CheckpointError, "NoneType"),
    ("a network for a model", lambda: public.load_model(the.mlp), CheckpointError, "Sequential"),
    *(
        (f"a model called {text!r}", lambda text=text: public.load_model(text), CheckpointError, repr(text))
        for text in ("a/b/c", "./missing", "missing folder", "a:b:c", "my-networks:small", "../x")
    ),
    ("a model of a user who is not there", lambda: public.load_model("~no-such-user/model"), CheckpointError, "home"),
    ("a model whose name is too long", lambda: public.load_model(TOO_LONG), CheckpointError, "too long"),
    ("weights without a network", lambda: public.load_model(str(the.weights)), CheckpointError, "timm:NAME@"),
    ("an @ without weights", lambda: load("mlp@"), CheckpointError, "@"),
    ("weights that are not there", lambda: load("mlp@missing.safetensors"), CheckpointError, "missing.safetensors"),
    ("weights of a user who is not there", lambda: load("mlp@~no-such-user/w.pt"), CheckpointError, "home"),
    ("a module that is not there", lambda: public.load_model("no_such_module:f"), UnknownNameError, "no_such_module"),
    (
        "a module below one that is there",
        lambda: public.load_model(f"{FACTORIES}.deeper:f"),
        UnknownNameError,
        "deeper",
    ),
    ("a factory that is not there", lambda: load("mpl"), UnknownNameError, "mlp"),
    ("a factory that is a number", lambda: load("NUMBER"), UnknownNameError, "'NUMBER'"),
    ("a factory that fails", lambda: load("failing"), DataError, "no luck today"),
    ("a factory that leaves the program", lambda: load("leaving"), DataError, "enough"),
    ("a factory that needs arguments", lambda: load("needing"), DataError, "argument"),
    ("a factory that returns nothing", lambda: load("returning_nothing"), DataError, "NoneType"),
    ("a module that is no Python", lambda: load_module("def f(:\n"), DataError, "line 1"),
    ("a module that leaves the program", lambda: load_module("import sys\nsys.exit(3)"), DataError, "sys.exit(3)"),
    ("a module that fails", lambda: load_module("1 / 0"), DataError, "ZeroDivisionError"),
    ("a module that lacks a package", lambda: load_module("import missing_package"), DataError, "missing_package"),
    ("a module with null bytes", lambda: load_module("x = '\0'"), DataError, "null"),
    (
        "a module that imports a name of ours that is none",
        lambda: load_module("from interbasin import rebasinn"),
        DataError,
        "rebasinn",
    ),
    ("a base for what is no adapter", lambda: load(base="gpt2"), DataError, "--base"),
    ("a base without a name", lambda: load(base=""), DataError, "--base"),
    ("a base that is a number", lambda: load(base=3), DataError, "--base"),
    ("a seed below zero", lambda: load(seed=-1), DataError, "seed"),
    ("weights of another shape", lambda: load_weights({"0.weight": B}), CheckpointError, "0.weight"),
    ("weights without a tensor", lambda: load_weights({"0.bias": None}), CheckpointError, "0.bias"),
    (
        "weights without a tensor, not strictly",
        lambda: load_weights({"0.bias": None}, strict=False),
        CheckpointError,
        "0.bias",
    ),
    ("weights with other names", lambda: load_weights({"0.bias": None, "b": A}), CheckpointError, "(and has b"),
    ("weights with a tensor too many", lambda: load_weights({"extra": A}), CheckpointError, "strict=False"),
    (
        "weights that are whole numbers",
        lambda: load_weights({"0.bias": torch.ones(8).long()}),
        CheckpointError,
        "int64",
    ),
    ("weights for a network without numbers", lambda: load_weights({}, "on_meta"), CheckpointError, "meta"),
    ("weights for a lazy network", lambda: load_weights({}, "lazy"), CheckpointError, "no shape"),
    ("weights that a network does not take", lambda: load_weights({}, "stubborn"), CheckpointError, "not so"),
    ("inputs that are needed", lambda: load().require_inputs(), DataError, "--input-shape"),
    ("inputs given twice", lambda: load(inputs="x.npy", input_shape=(1, 4)), DataError, "twice"),
    ("inputs that are a tensor", lambda: load(inputs=the.batch), DataError, "Tensor"),
    ("inputs in a folder", lambda: load(inputs=the.someones_folder), FileError, "folder"),
    ("inputs that are not there", lambda: load(inputs="x.npy"), FileError, "x.npy"),
    ("inputs in a name that is too long", lambda: load(inputs=TOO_LONG), FileError, "too long"),
    ("inputs in another format", lambda: load(inputs=the.file("x.csv", "1,2")), FileError, "x.csv"),
    ("inputs that are noise", lambda: load(inputs=the.file("x.npz", b"PK\x03\x04 noise")), FileError, "x.npz"),
    ("inputs that are objects", lambda: load(inputs=the.file("x.npy", np.array([{}]))), FileError, "x.npy"),
    ("inputs that are a text file", lambda: load(inputs=the.file("x.pt", "plain text")), CheckpointError, "x.pt"),
    ("inputs that are a network", lambda: load(inputs=the.file("x.pt", nn.Linear(1, 1))), CheckpointError, "run code"),
    ("inputs that are an empty mapping", lambda: load(inputs=the.file("x.pt", {})), DataError, "by name"),
    ("inputs by number", lambda: load(inputs=the.file("x.pt", {0: A})), DataError, "by name"),
    ("inputs that are a list of text", lambda: load(inputs=the.file("x.pt", ["a"])), DataError, "x.pt"),
    *(
        (f"inputs of the shape {shape!r}", lambda shape=shape: load(input_shape=shape), DataError, "shape")
        for shape in [
            (),
            (0, 3),
            (1.5,),
            ("a",),
            (-1, 3),
            3,
            "3,4",
            (True, 3),
            (2, None),
            np.array([2, 3]),
            (99_999_999_999, 6),
            (10**30,),
            (2**40, 2**40),
        ]
    ),
)
def test_what_means_no_network_is_refused(misuse):
    misuse.check()


def edited_gpt2(**changes: object) -> str:
    """A folder of GPT-2 with another configuration."""
    config = json.loads((the.gpt2 / "config.json").read_text("utf-8")) | changes
    weights = (the.gpt2 / "model.safetensors").read_bytes()
    return str(the.files({"config.json": config, "model.safetensors": weights}))


def adapter(**changes: object) -> Path:
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], **changes}
    return the.files(
        {
            "adapter_config.json": settings,
            "adapter_model.safetensors": {"base_model.model.q.lora_A.weight": torch.ones(4, 6)},
        }
    )


@misuses(
    (
        "a folder without a configuration",
        lambda: public.load_model(str(the.files({"model.safetensors": {"a": A}}))),
        CheckpointError,
        "config.json",
    ),
    (
        "an architecture that transformers has not",
        lambda: public.load_model(edited_gpt2(architectures=["NoSuchModel"])),
        CheckpointError,
        "NoSuchModel",
    ),
    (
        "an architecture that is no network",
        lambda: public.load_model(edited_gpt2(architectures=["pipeline"])),
        CheckpointError,
        "pipeline",
    ),
    ("a configuration of another network", lambda: public.load_model(edited_gpt2(n_layer=2)), CheckpointError, "lacks"),
    ("a configuration of another width", lambda: public.load_model(edited_gpt2(n_embd=16)), CheckpointError, "shape"),
    (
        "a configuration that cannot be built",
        lambda: public.load_model(edited_gpt2(n_head=3)),
        CheckpointError,
        "from_pretrained",
    ),
    (
        "code that comes with a folder",
        lambda: public.load_model(edited_gpt2(architectures=["Own"], auto_map={"AutoModel": "own.Own"})),
        CheckpointError,
        "trust_remote_code",
    ),
    ("an adapter that does not say of what", lambda: public.load_model(str(adapter())), CheckpointError, "--base"),
    (
        "an adapter of a network that is not here",
        lambda: public.load_model(str(adapter(base_model_name_or_path="./nowhere"))),
        CheckpointError,
        "./nowhere",
    ),
    (
        "an adapter that does not fit its base",
        lambda: public.load_model(str(adapter(base_model_name_or_path=str(the.gpt2)))),
        CheckpointError,
        "adapter",
    ),
    ("an adapter that is its own base", lambda: public.load_model(adapter_of_itself()), CheckpointError, "itself"),
    (
        "an adapter of parts that are not there",
        lambda: public.load_model(str(adapter(base_model_name_or_path=str(the.gpt2), target_modules=["nowhere"]))),
        CheckpointError,
        "nowhere",
    ),
    ("a model that is not in the cache", lambda: public.load_model("someone/large"), CheckpointError, "hf download"),
    ("an architecture that timm has not", lambda: public.load_model("timm:resnet81"), UnknownNameError, "resnet18"),
    ("no architecture of timm", lambda: public.load_model("timm:"), UnknownNameError, "timm"),
    (
        "weights of another network for timm",
        lambda: public.load_model(f"timm:resnet18@{the.weights}"),
        CheckpointError,
        "lacks",
    ),
)
def test_what_transformers_and_timm_cannot_build_is_refused(misuse):
    misuse.check()


def adapter_of_itself() -> str:
    folder = the.files({"adapter_model.safetensors": {"q.lora_A.weight": torch.ones(4, 6)}})
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(folder)}
    return str(the.changed(folder, "adapter_config.json", settings))


def torchscript() -> bytes:
    memory = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), memory)
    return memory.getvalue()


def open_file(name: str, content: object) -> object:
    return public.open_checkpoint(the.file(name, content))


def open_folder(**changes: object) -> object:
    """Two shards and an index, with other files in their place."""
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    files = {INDEX: index, **SHARDS, **{name.replace("_", "."): content for name, content in changes.items()}}
    return public.open_checkpoint(the.files({name: content for name, content in files.items() if content is not None}))


def open_index(weight_map: object) -> object:
    return public.open_checkpoint(the.files({INDEX: {"weight_map": weight_map}, **SHARDS}))


def header(text: bytes, numbers: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + numbers


class Settings:
    """Something that only Python can load."""


@misuses(
    ("a checkpoint that is not there", lambda: public.open_checkpoint("missing"), CheckpointError, "missing"),
    ("a checkpoint without a name", lambda: public.open_checkpoint(""), CheckpointError, "empty"),
    ("a checkpoint named by a number", lambda: public.open_checkpoint(3), CheckpointError, "int"),
    ("a checkpoint named by bytes", lambda: public.open_checkpoint(b"m"), CheckpointError, "bytes"),
    ("a checkpoint whose name is too long", lambda: public.open_checkpoint(TOO_LONG), CheckpointError, TOO_LONG),
    ("a folder without weights", lambda: public.open_checkpoint(the.someones_folder), CheckpointError, "notes.md"),
    (
        "a folder of TensorFlow",
        lambda: public.open_checkpoint(the.files({"tf_model.h5": b"x"})),
        CheckpointError,
        "TensorFlow",
    ),
    (
        "a folder of Flax",
        lambda: public.open_checkpoint(the.files({"flax_model.msgpack": b"x"})),
        CheckpointError,
        "Flax",
    ),
    (
        "a folder of llama.cpp",
        lambda: public.open_checkpoint(the.files({"m.q4.gguf": b"GGUF"})),
        CheckpointError,
        "GGUF",
    ),
    (
        "a damaged configuration",
        lambda: public.open_checkpoint(the.files({"config.json": "{"})),
        CheckpointError,
        "config.json",
    ),
    ("an adapter that is none", lambda: public.open_checkpoint(adapter(peft_type=None)), CheckpointError, "peft_type"),
    ("an adapter with a rank in words", lambda: public.open_checkpoint(adapter(r="four")), CheckpointError, "'four'"),
    ("a missing shard", lambda: open_folder(**{"2_safetensors": None}), CheckpointError, "2.safetensors"),
    ("shards without an index", lambda: open_folder(**{INDEX: None}), CheckpointError, INDEX),
    (
        "a tensor in another shard",
        lambda: open_index({"a": "2.safetensors", "b": "2.safetensors"}),
        CheckpointError,
        "holds a",
    ),
    (
        "a tensor in no shard",
        lambda: open_index({"a": "1.safetensors", "c": "2.safetensors"}),
        CheckpointError,
        "holds c",
    ),
    (
        "a tensor that the index does not list",
        lambda: open_folder(**{"1_safetensors": {"a": A, "x": A.clone()}}),
        CheckpointError,
        "holds x",
    ),
    ("a tensor in two shards", lambda: open_folder(**{"2_safetensors": {"b": B, "a": A}}), CheckpointError, "a twice"),
    ("an index out of its folder", lambda: open_index({"a": "../o.safetensors"}), CheckpointError, "../o.safetensors"),
    ("an index with an absolute path", lambda: open_index({"a": "/etc/o.safetensors"}), CheckpointError, "/etc/o"),
    ("an index that is a list", lambda: open_index(["a"]), CheckpointError, "weight_map"),
    ("half an index", lambda: open_folder(**{INDEX: '{"we'}), CheckpointError, "JSON"),
    ("a part of a folder", lambda: public.open_checkpoint(the.gpt2, part="ema"), CheckpointError, "part="),
    (
        "a quantised configuration",
        lambda: public.load_model(edited_gpt2(quantization_config={"quant_method": "gptq"})),
        CheckpointError,
        "GPTQ",
    ),
    (
        "tensors of GPTQ",
        lambda: open_file("w.safetensors", {f"q.{n}": A.clone() for n in ("qweight", "qzeros", "scales", "g_idx")}),
        CheckpointError,
        "GPTQ",
    ),
    (
        "tensors of bitsandbytes",
        lambda: open_file("w.safetensors", {"q.weight": A, "q.SCB": A.clone()}),
        CheckpointError,
        "bitsandbytes",
    ),
    ("tensors of HQQ", lambda: open_file("w.safetensors", {"q.W_q": A, "q.meta": A.clone()}), CheckpointError, "HQQ"),
    ("a file of llama.cpp", lambda: open_file("m.bin", b"GGUF" + bytes(32)), CheckpointError, "GGUF"),
    ("an empty file", lambda: open_file("w.safetensors", b""), CheckpointError, "empty"),
    (
        "a pointer of Git LFS",
        lambda: open_file("w.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        CheckpointError,
        "LFS",
    ),
    ("a web page", lambda: open_file("w.safetensors", "<!DOCTYPE html><html>"), CheckpointError, "HTML"),
    (
        "a file of torch with another name",
        lambda: open_file("w.safetensors", b"PK\x03\x04" + bytes(40)),
        CheckpointError,
        "zip",
    ),
    ("half a header", lambda: open_file("w.safetensors", header(b"{")), CheckpointError, "JSON"),
    (
        "a header that is cut off",
        lambda: open_file("w.safetensors", (99).to_bytes(8, "little") + b"{"),
        CheckpointError,
        "cut short",
    ),
    (
        "numbers that are cut off",
        lambda: open_file("w.safetensors", header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}')),
        CheckpointError,
        "cut short",
    ),
    (
        "a dtype of the future",
        lambda: open_file("w.safetensors", header(b'{"a":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}}', bytes(8))),
        CheckpointError,
        "Q9",
    ),
    ("a text for a file of torch", lambda: open_file("w.bin", "hello, world, this is text"), CheckpointError, "w.bin"),
    ("a plain pickle", lambda: open_file("w.bin", pickle.dumps({"a": 1})), CheckpointError, "w.bin"),
    ("an archive of numpy", lambda: open_file("w.npz", {"a": np.zeros(3)}), CheckpointError, "w.npz"),
    ("a whole network", lambda: open_file("w.pt", nn.Linear(2, 2)), CheckpointError, "state_dict()"),
    ("a TorchScript program", lambda: open_file("w.pt", torchscript()), CheckpointError, "TorchScript"),
    (
        "an object beside the weights",
        lambda: open_file("w.pt", {"state_dict": {"a": A}, "config": Settings()}),
        CheckpointError,
        "run code",
    ),
    ("a tensor for a state dict", lambda: open_file("w.pt", A), CheckpointError, "Tensor"),
    ("a list for a state dict", lambda: open_file("w.pt", [A]), CheckpointError, "list"),
    ("an empty state dict", lambda: open_file("w.pt", {}), CheckpointError, "nothing"),
    ("a state dict without tensors", lambda: open_file("w.pt", {"lr": 0.1}), CheckpointError, "lr"),
    (
        "two state dicts",
        lambda: open_file("w.pt", {"generator": {"a": A}, "critic": {"a": A}}),
        CheckpointError,
        "part=",
    ),
    (
        "a part that is not there",
        lambda: public.open_checkpoint(the.file("w.pt", {"model": {"a": A}}), part="ema"),
        UnknownNameError,
        "model",
    ),
    ("a sparse tensor in a file", lambda: open_file("w.pt", {"a": A.to_sparse()}), CheckpointError, "to_dense"),
    ("a tensor without numbers in a file", lambda: open_file("w.pt", {"a": A.to("meta")}), CheckpointError, "meta"),
    (
        "a tensor that is not in the file",
        lambda: public.open_checkpoint(the.weights)["0.weigth"],
        UnknownNameError,
        "0.weight",
    ),
    ("a tensor by its number", lambda: public.open_checkpoint(the.weights)[3], UnknownNameError, "3"),
)
def test_what_is_no_checkpoint_is_refused(misuse):
    misuse.check()


def write(tensors: object, path: object = "out", **options: object) -> object:
    return public.write_checkpoint(path, tensors, **options)


@misuses(
    ("a list for a tensor", lambda: write({"a": [1.0]}), DataError, "list"),
    ("a sparse tensor", lambda: write({"a": A.to_sparse()}), DataError, "to_dense"),
    ("complex doubles", lambda: write({"a": A.to(torch.complex128)}), DataError, "complex128"),
    ("a tensor without numbers", lambda: write({"a": A.to("meta")}), DataError, "meta"),
    ("a tensor named by a number", lambda: write({1: A}), DataError, "found 1"),
    ("a tensor without a name", lambda: write({"": A}), DataError, "''"),
    ("a tensor with a reserved name", lambda: write({"__metadata__": A}), DataError, "__metadata__"),
    ("a tensor named by half a character", lambda: write({"\ud800": A}), DataError, "UTF-8"),
    ("two tensors of one name", lambda: write([("a", A), ("a", A)]), DataError, "'a'"),
    ("triples for pairs", lambda: write([("a", A, A)]), DataError, "tuple"),
    ("a network for its tensors", lambda: write(the.mlp), DataError, "state_dict()"),
    ("one tensor for all", lambda: write(A), DataError, "Tensor"),
    ("a name for tensors", lambda: write("weights"), DataError, "str"),
    ("nothing for tensors", lambda: write(None), DataError, "NoneType"),
    ("shards of no bytes", lambda: write({}, max_shard_bytes=0), DataError, "max_shard_bytes"),
    ("shards of a text", lambda: write({}, max_shard_bytes="5GB"), DataError, "max_shard_bytes"),
    ("notes that are numbers", lambda: write({}, metadata={"a": 1}), DataError, "text"),
    ("notes that are a list", lambda: write({}, metadata=[("a", "b")]), DataError, "list"),
    ("notes of a name that is taken", lambda: write({}, metadata={"interbasin": "x"}), DataError, "interbasin"),
    ("a base for what is no adapter", lambda: write({"a": A}, base="new"), DataError, "base="),
    ("a likeness that is not there", lambda: write({"a": A}, like="missing"), CheckpointError, "missing"),
    ("a likeness named by a number", lambda: write({"a": A}, like=3), CheckpointError, "like="),
    ("a checkpoint over a file", lambda: write({"a": A}, the.weights), FileError, "force"),
    ("a checkpoint over a file of someone's", lambda: write({"a": A}, the.weights, force=True), FileError, "not write"),
    ("a checkpoint over a folder of someone's", lambda: write({"a": A}, the.gpt2, force=True), FileError, "not write"),
    ("a checkpoint below a file", lambda: write({"a": A}, the.letter / "out"), FileError, "not a folder"),
    ("a checkpoint into a name that is too long", lambda: write({"a": A}, TOO_LONG), FileError, "long"),
    ("a checkpoint into nothing", lambda: write({"a": A}, None), FileError, "NoneType"),
)
def test_what_no_checkpoint_can_hold_is_refused(misuse):
    misuse.check()
