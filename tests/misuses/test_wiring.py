"""Misuses of wirings: networks that cannot be traced, maps that fit no space, tensors that are not the network's."""

from __future__ import annotations

import math
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.misuses.table import misuses, the
from tests.misuses.things import Net, make_mlp, semi, tied_square, uneven_halves, untied_square
from torch import Tensor, nn

import interbasin as ib
from interbasin import Alignment, Wiring, wire
from interbasin.errors import DataError, FileError, MapError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Affine, Blocks, Identity, Orthogonal, Permutation


def between(run: Callable[[Tensor], Any]) -> Net:
    """A network of two layers that does something to the hidden units."""
    return Net(lambda self, x: self.out(run(self.first(x))), first=nn.Linear(4, 8), out=nn.Linear(8, 3)).eval()


def returning(what: Callable[[Tensor], Any]) -> Net:
    return Net(lambda self, x: what(self.first(x)), first=nn.Linear(4, 8)).eval()


def in_training(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))


def branching(hidden: Tensor) -> Tensor:
    return hidden if hidden.sum() > 0 else -hidden


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return make_mlp()


def overlapping() -> nn.Module:
    network, memory = make_mlp(), torch.randn(100)
    network[0].weight = nn.Parameter(memory[:32].view(8, 4))
    network[2].weight = nn.Parameter(memory[16:40].view(3, 8))
    return network


def quantised() -> nn.Module:
    layer = type("Linear", (nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), layer(8, 3)).eval()


def without_state() -> nn.Module:
    def fail(*_: object) -> None:
        raise RuntimeError("not today")

    network = make_mlp()
    network.register_state_dict_post_hook(fail)
    return network


def locked() -> nn.Module:
    network = make_mlp()
    network.lock = threading.Lock()
    return network


def overwriting(hidden: Tensor) -> Tensor:
    F.dropout(hidden, 0.5, False).copy_(hidden.flip(-1))
    return hidden


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval())


def check_by_default_on_meta() -> float:
    torch.set_default_device("meta")
    try:
        return the.wiring.check(the.mlp, the.batch)
    finally:
        torch.set_default_device(None)


@misuses(
    ("a function for a network", lambda: wire(make_mlp, the.batch), WiringError, "function"),
    ("a list for a network", lambda: wire([the.mlp], the.batch), WiringError, "list"),
    ("a name for a network", lambda: wire("timm:resnet18", the.batch), WiringError, "str"),
    ("nothing for a network", lambda: wire(None, the.batch), WiringError, "NoneType"),
    ("no inputs", lambda: wire(the.mlp, None), WiringError, "NoneType"),
    ("a number for inputs", lambda: wire(the.mlp, 3), WiringError, "int"),
    ("text for inputs", lambda: wire(the.mlp, "text"), WiringError, "str"),
    ("no second argument", lambda: wire(the.mlp), TypeError, "inputs"),
    ("a mapping of inputs by number", lambda: wire(the.mlp, {3: the.batch}), WiringError, "key 3"),
    ("inputs by a name that forward has not", lambda: wire(the.mlp, {"y": the.batch}), WiringError, "'y'"),
    ("two arguments for one", lambda: wire(the.mlp, (the.batch, the.batch)), WiringError, "inputs"),
    ("inputs of another width", lambda: wire(the.mlp, torch.ones(5, 7)), WiringError, "Sequential"),
    ("a vector for a batch of images", lambda: wire(the.grouped, the.batch), WiringError, "inputs"),
    ("an empty batch", lambda: wire(the.mlp, the.batch[:0]), WiringError, "(0, 4)"),
    ("an empty batch by name", lambda: wire(the.mlp, {"input": the.batch[:0]}), WiringError, "(0, 4)"),
    ("inputs without tokens", lambda: wire(the.mlp, torch.ones(3, 0, 4)), WiringError, "(3, 0, 4)"),
    ("whole numbers for a linear layer", lambda: wire(the.mlp, the.batch.long()), WiringError, "int64"),
    ("float64 for float32 weights", lambda: wire(the.mlp, the.batch.double()), WiringError, "float64"),
    (
        "floats for a table of words",
        lambda: wire(nn.Sequential(nn.Embedding(5, 4)).eval(), the.batch),
        WiringError,
        "inputs",
    ),
    ("an array for a batch", lambda: wire(the.mlp, the.batch.numpy()), WiringError, "ndarray"),
    ("dropout in training", lambda: wire(in_training(nn.Dropout(0.1)), the.batch), WiringError, "eval()"),
    ("batch norm in training", lambda: wire(in_training(nn.BatchNorm1d(8)), the.batch), WiringError, "eval()"),
    (
        "attention with dropout in training",
        lambda: wire(nn.TransformerEncoderLayer(4, 2, 8), the.tokens),
        WiringError,
        "eval()",
    ),
    ("RReLU in training", lambda: wire(in_training(nn.RReLU()), the.batch), WiringError, "eval()"),
    ("a lazy module", lambda: wire(nn.Sequential(nn.LazyLinear(8)).eval(), the.batch), WiringError, "0.weight"),
    ("a meta network and real inputs", lambda: wire(on_meta(), the.batch), WiringError, "meta"),
    ("tensors that overlap", lambda: wire(overlapping(), the.batch), WiringError, "2.weight"),
    ("a quantised network", lambda: wire(quantised(), the.batch), WiringError, "bitsandbytes"),
    ("a network that does not tell its state", lambda: wire(without_state(), the.batch), WiringError, "not today"),
    ("a network that cannot be copied", lambda: wire(locked(), the.batch), WiringError, "lock"),
    ("a branch on values", lambda: wire(between(branching), the.batch), WiringError, "hidden.sum()"),
    ("sizes that depend on values", lambda: wire(between(lambda h: h[h[:, 0] > 0]), the.batch), WiringError, "values"),
    ("a forward that fails", lambda: wire(between(lambda h: h + h.missing), the.batch), WiringError, "missing"),
    (
        "numbers that are drawn",
        lambda: wire(between(lambda h: h + torch.randn_like(h)), the.batch),
        WiringError,
        "random",
    ),
    ("dropout that is always on", lambda: wire(between(lambda h: F.dropout(h, 0.5)), the.batch), WiringError, "random"),
    ("a write into shared memory", lambda: wire(between(overwriting), the.batch), WiringError, "clone()"),
    ("a TorchScript module", lambda: wire(scripted(), the.batch), WiringError, "TorchScript"),
    (
        "an object for an output",
        lambda: wire(returning(lambda h: types.SimpleNamespace(h=h)), the.batch),
        WiringError,
        "SimpleNamespace",
    ),
    ("a set among the outputs", lambda: wire(returning(lambda h: (h, {h})), the.batch), WiringError, "output[1]"),
    ("an empty tuple for an output", lambda: wire(returning(lambda h: ()), the.batch), WiringError, "tensor"),
    ("a mapping of nothing", lambda: wire(returning(lambda h: {"answer": None}), the.batch), WiringError, "tensor"),
    ("a set of outputs", lambda: wire(returning(lambda h: {h}), the.batch), WiringError, "set"),
    (
        "a generator of outputs",
        lambda: wire(returning(lambda h: (part for part in [h])), the.batch),
        WiringError,
        "generator",
    ),
    ("a function for an output", lambda: wire(returning(lambda h: lambda: h), the.batch), WiringError, "function"),
    ("no output", lambda: wire(returning(lambda h: None), the.batch), WiringError, "Net"),
    ("a number for an output", lambda: wire(returning(lambda h: 3), the.batch), WiringError, "tensor"),
    ("a sparse output", lambda: wire(returning(lambda h: h.to_sparse()), the.batch), WiringError, "to_dense"),
)
def test_what_cannot_be_wired_is_refused(misuse):
    misuse.check()


def undefined() -> Net:
    return between(lambda h: torch.log(-h.abs() - 1))


def reseeding() -> Net:
    def run(hidden: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed()
        return hidden * torch.randn(8, generator=generator)

    return between(run)


def check(network: nn.Module, inputs: Tensor | None = None, **options: object) -> float:
    inputs = the.batch if inputs is None else inputs
    return wire(network, inputs).check(network, inputs, **options)


@misuses(
    ("a check of nothing", lambda: the.wiring.check(None, the.batch), WiringError, "NoneType"),
    ("a check without inputs", lambda: the.wiring.check(the.mlp, None), WiringError, "NoneType"),
    ("a check with other inputs", lambda: the.wiring.check(the.mlp, torch.ones(5, 7)), WiringError, "inputs"),
    ("a check of a deeper network", lambda: the.wiring.check(the.deeper_mlp, the.batch), WiringError, "4.weight"),
    ("a check of a wider network", lambda: the.wiring.check(the.wider_mlp, the.batch), ShapeError, "0.weight"),
    (
        "a check of a network with other ties",
        lambda: wire(untied_square(), the.batch).check(tied_square(), the.batch),
        WiringError,
        "2.weight",
    ),
    (
        "a check of a network without the ties",
        lambda: wire(tied_square(), the.batch).check(untied_square(), the.batch),
        WiringError,
        "2.weight",
    ),
    ("a check on an empty batch", lambda: the.wiring.check(the.mlp, the.batch[:0]), DataError, "empty"),
    ("a check on NaN", lambda: the.wiring.check(the.mlp, the.batch * math.nan), DataError, "NaN"),
    ("a check of weights with NaN", lambda: check(the.broken_mlp), WiringError, "2.weight"),
    ("a check of a network without numbers", lambda: the.wiring.check(on_meta(), the.batch), WiringError, "meta"),
    ("a check where nothing is computed", check_by_default_on_meta, WiringError, "set_default_device"),
    ("a check of outputs that are NaN", lambda: check(undefined()), DataError, "NaN"),
    ("a check of a network that draws numbers", lambda: check(reseeding()), WiringError, "disagree"),
    (
        "a check of another alignment",
        lambda: the.wiring.check(the.mlp, the.batch, alignment=the.attention_wiring.sample()),
        WiringError,
        "another wiring",
    ),
    ("a check with a seed in words", lambda: the.wiring.check(the.mlp, the.batch, seed="lucky"), DataError, "seed"),
    ("a sample with a seed below zero", lambda: the.wiring.sample(seed=-1), DataError, "seed"),
    ("a sample of a space that is not there", lambda: the.wiring.sample(spaces=["hidden"]), UnknownNameError, "hidden"),
    ("a sample of one name", lambda: the.wiring.sample(spaces="0"), WiringError, "list"),
    ("an alignment of no wiring", lambda: Alignment(None, {}), WiringError, "NoneType"),
    ("an alignment of a network", lambda: Alignment(the.mlp, {}), WiringError, "Sequential"),
    ("a list of maps", lambda: Alignment(the.wiring, [Identity(8)]), WiringError, "list"),
    ("no maps", lambda: Alignment(the.wiring, None), WiringError, "NoneType"),
    (
        "a map of a space that is not there",
        lambda: Alignment(the.wiring, {"hidden": Identity(8)}),
        UnknownNameError,
        "hidden",
    ),
    ("a map of another width", lambda: Alignment(the.wiring, {"0": Permutation([0, 1])}), ShapeError, "'0'"),
    ("a matrix for a map", lambda: Alignment(the.wiring, {"0": torch.eye(8)}), MapError, "Tensor"),
    ("an affine map", lambda: Alignment(the.wiring, {"0": Affine(np.eye(8), np.ones(8))}), MapError, "linear"),
    ("one map for all heads", lambda: heads(Permutation(range(8))), MapError, "Blocks"),
    ("heads in another order", lambda: heads(Blocks([Identity(4), Identity(4)], order=[1, 0])), MapError, "order"),
    (
        "alignments that do not meet",
        lambda: the.alignment @ Alignment(the.wiring, {"0": semi(10, 8)}),
        ShapeError,
        "'0'",
    ),
    (
        "alignments of different networks",
        lambda: the.attention_wiring.sample() @ the.alignment,
        UnknownNameError,
        "embed",
    ),
    ("an alignment after a number", lambda: the.alignment @ 3, TypeError, "@"),
    ("the way back from heads that were mixed", lambda: mixed_heads().inverse(), MapError, "places"),
    ("the way back from fewer heads", lambda: fewer_heads().inverse(), MapError, "blocks"),
    (
        "the way back from uneven heads",
        lambda: heads(Blocks([semi(6, 4), semi(5, 4)])).inverse(),
        MapError,
        "same width",
    ),
    ("the way back from uneven halves", lambda: uneven_halves().inverse(), ShapeError, "width"),
)
def test_what_no_wiring_can_do_is_refused(misuse):
    misuse.check()


def heads(map: ib.maps.Map) -> Alignment:
    wiring = the.attention_wiring
    return Alignment(wiring, {next(name for name, space in wiring.spaces.items() if space.blocks == 2): map})


def _of_heads() -> str:
    return next(name for name in the.attention_wiring.spaces if name.endswith(".heads"))


def mixed_heads() -> Alignment:
    turn = Orthogonal([[0.6, -0.8], [0.8, 0.6]])
    return Alignment(the.attention_wiring, {**the.attention_wiring.sample().maps, _of_heads(): turn})


def fewer_heads() -> Alignment:
    return Alignment(the.attention_wiring, {_of_heads(): Permutation([0], source_width=2)})


@misuses(
    ("a wiring from a folder that is not there", lambda: Wiring.load("nowhere"), FileError, "nowhere"),
    ("a wiring from an alignment", lambda: Wiring.load(the.saved_alignment), FileError, "wiring"),
    ("an alignment from a wiring", lambda: Alignment.load(the.saved_wiring), FileError, "alignment"),
    ("a wiring from nothing", lambda: Wiring.load(None), FileError, "NoneType"),
    ("an alignment from nothing", lambda: Alignment.load(None), FileError, "NoneType"),
    ("a wiring over a saved one", lambda: the.wiring.save(the.saved_wiring), FileError, "force"),
    ("an alignment over a saved one", lambda: the.alignment.save(the.saved_alignment), FileError, "force"),
    ("a wiring into nothing", lambda: the.wiring.save(None), FileError, "NoneType"),
    (
        "an alignment over someone's folder",
        lambda: the.alignment.save(the.someones_folder, force=True),
        FileError,
        "not write",
    ),
)
def test_a_folder_that_cannot_be_is_refused(misuse):
    misuse.check()
