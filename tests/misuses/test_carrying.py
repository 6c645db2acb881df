"""Misuses of carrying: tensors that are not the network's, norms that cannot be folded, ends without a way between."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from tests.misuses.table import misuses, public, the
from tests.misuses.things import make_mlp, semi, tied_square, uneven_halves, untied_square
from torch import Tensor, nn

import interbasin as ib
from interbasin import carry, fold_norms, wire
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity
from interbasin.wiring.account import Carried


def carry_one(name: object, tensor: object) -> dict[str, Tensor]:
    return carry({name: tensor}, the.alignment)


def mix(tensor: object) -> dict[str, Tensor]:
    return carry({"0.weight": tensor}, the.wiring, {"0": semi(8, 8)})


def frozen() -> nn.Module:
    class Frozen(nn.Module):
        def train(self, mode: bool = True) -> Frozen:
            if mode:
                raise RuntimeError("frozen for good")
            return self

    network = make_mlp()
    network[0].extra = Frozen()
    return network


def with_one_more() -> nn.Module:
    network = make_mlp()
    network.extra = nn.Linear(3, 3)
    return network


@misuses(
    ("a list of tensors", lambda: carry([torch.zeros(3)], the.alignment), WiringError, "list"),
    ("a file of tensors", lambda: carry("weights.safetensors", the.alignment), WiringError, "str"),
    ("nothing to carry", lambda: carry(None, the.alignment), WiringError, "NoneType"),
    ("maps for an alignment", lambda: carry(the.mlp, {"0": Identity(8)}), WiringError, "dict"),
    ("a share that there is not", lambda: Carried({}, ()).share("skiped"), UnknownNameError, "skipped"),
    ("a map for an alignment", lambda: carry(the.mlp, Identity(8)), WiringError, "Identity"),
    ("no alignment", lambda: carry(the.mlp, None), WiringError, "NoneType"),
    (
        "an alignment and maps beside it",
        lambda: carry(the.mlp, the.alignment, {"0": Identity(8)}),
        WiringError,
        "beside",
    ),
    ("a list of maps beside a wiring", lambda: carry(the.mlp, the.wiring, [1]), WiringError, "list"),
    ("a network of another width", lambda: carry(the.wider_mlp, the.alignment), ShapeError, "0.weight"),
    ("a network with other names", lambda: carry(nn.Linear(4, 8), the.alignment), UnknownNameError, "weight"),
    ("a network with one layer more", lambda: carry(with_one_more(), the.alignment), UnknownNameError, "extra.weight"),
    (
        "a network with ties that were not wired",
        lambda: carry(tied_square(), wire(untied_square(), the.batch).sample()),
        WiringError,
        "one tensor",
    ),
    (
        "a network without the ties that were wired",
        lambda: carry(untied_square(), wire(tied_square(), the.batch).sample()),
        WiringError,
        "two tensors",
    ),
    ("a network that cannot go to training and back", lambda: carry(frozen(), the.alignment), WiringError, "frozen"),
    (
        "a network through a map onto another width",
        lambda: carry(the.mlp, the.wiring, {"0": semi(10, 8)}),
        ShapeError,
        "0.weight",
    ),
    ("a network whose input moves", lambda: carry(the.mlp, the.wiring, {"input": semi(4, 4)}), WiringError, "input"),
    ("a network whose output moves", lambda: carry(the.mlp, the.wiring, {"output": semi(3, 3)}), WiringError, "output"),
    (
        "tensors beside different widths",
        lambda: carry(dict(the.halves.state_dict()), uneven_halves()),
        ShapeError,
        "width",
    ),
    ("a tensor with a misspelt name", lambda: carry_one("0.weigth", torch.zeros(8, 4)), UnknownNameError, "0.weight"),
    ("a tensor named by a number", lambda: carry_one(3, torch.zeros(8, 4)), DataError, "key 3"),
    ("a tensor of another shape", lambda: carry_one("0.weight", torch.zeros(8, 5)), ShapeError, "(8, 5)"),
    ("a tensor that is none", lambda: carry_one("0.weight", 3), DataError, "int"),
    ("an array for a tensor", lambda: carry_one("0.weight", np.zeros((8, 4))), DataError, "ndarray"),
    ("nothing for a tensor", lambda: carry_one("0.weight", None), DataError, "NoneType"),
    ("a tensor without numbers", lambda: carry_one("0.weight", torch.zeros(8, 4, device="meta")), DataError, "meta"),
    ("a sparse tensor", lambda: carry_one("0.weight", torch.zeros(8, 4).to_sparse()), DataError, "to_dense"),
    ("eight-bit floats", lambda: carry_one("0.weight", torch.zeros(8, 4).to(torch.float8_e4m3fn)), DataError, "float8"),
    (
        "half-precision numbers that a turn makes too large",
        lambda: mix(torch.full((8, 4), 6e4).half()),
        DataError,
        "65504",
    ),
    ("whole numbers through coefficients", lambda: mix(torch.zeros(8, 4).long()), DataError, "int64"),
    (
        "a factor of a layer that is not there",
        lambda: carry_one("9.lora_A.weight", torch.zeros(2, 4)),
        UnknownNameError,
        "9.lora_A",
    ),
    ("a factor of another width", lambda: carry_one("0.lora_A.weight", torch.zeros(2, 5)), ShapeError, "(2, 5)"),
    ("a factor that is a vector", lambda: carry_one("0.lora_A.weight", torch.zeros(4)), ShapeError, "0.lora_A.weight"),
    (
        "factors of different ranks",
        lambda: carry({"0.lora_A.weight": torch.zeros(2, 4), "0.lora_B.weight": torch.zeros(8, 3)}, the.alignment),
        ShapeError,
        "rank 3",
    ),
    (
        "a factor of a grouped layer",
        lambda: carry({"1.lora_A.weight": torch.zeros(2, 3, 3, 3)}, wire(the.grouped, the.images).sample()),
        WiringError,
        "whole update",
    ),
    (
        "a factor of a layer with different halves",
        lambda: carry({"fused.lora_A.weight": torch.zeros(2, 6)}, wire(the.halves, the.batch).sample()),
        WiringError,
        "whole update",
    ),
    (
        "the magnitudes of a DoRA",
        lambda: carry_one("base_model.model.0.lora_magnitude_vector", torch.zeros(8)),
        WiringError,
        "DoRA",
    ),
    ("an adapter that is no LoRA", lambda: carry_one("base_model.model.0.ia3_l", torch.zeros(8)), WiringError, "LoRA"),
)
def test_what_cannot_be_carried_is_refused(misuse):
    misuse.check()


@misuses(
    ("a network without norms", lambda: fold_norms(the.mlp, the.batch), WiringError, "norm"),
    ("a network that is folded already", lambda: fold_norms(the.folded, the.batch), WiringError, "norm"),
    ("nothing to fold", lambda: fold_norms(None, the.batch), WiringError, "NoneType"),
    ("a network with NaN to fold", lambda: fold_norms(broken_prenorm(), the.batch), WiringError, "up.weight"),
    ("folding without inputs", lambda: fold_norms(the.prenorm, None), WiringError, "NoneType"),
    ("folding with other inputs", lambda: fold_norms(the.prenorm, torch.ones(2, 5)), WiringError, "inputs"),
    (
        "a post-norm network",
        lambda: fold_norms(nn.TransformerEncoderLayer(4, 2, 8).eval(), the.tokens),
        WiringError,
        "post-norm",
    ),
    ("a stream that is also read bare", lambda: fold_norms(the.bare, the.batch), WiringError, "head.weight"),
    ("a gain that is read elsewhere", lambda: fold_norms(the.reading, the.batch), WiringError, "norm"),
    ("a layer that takes no bias", lambda: fold_norms(the.bypassing, the.batch), WiringError, "up.weight"),
    ("a convolution that has no bias", lambda: fold_norms(the.convolving, the.batch), WiringError, "up.weight"),
    ("saving a folded network with an adapter", lambda: public.save_folded(adapted(), "out"), WiringError, "adapter"),
    ("the folding of a network that is not folded", lambda: public.folding_of(the.mlp), WiringError, "fold_norms"),
    ("saving a network that is not folded", lambda: public.save_folded(the.mlp, "out"), WiringError, "fold_norms"),
    (
        "saving a folded network as a file",
        lambda: public.save_folded(the.folded, "out.safetensors"),
        FileError,
        ".safetensors",
    ),
    (
        "a tokenizer from a folder that is not there",
        lambda: public.save_folded(the.folded, "out", like="nowhere"),
        FileError,
        "nowhere",
    ),
    (
        "saving a folded network over a folder",
        lambda: public.save_folded(the.folded, the.someones_folder),
        FileError,
        "force",
    ),
)
def test_what_cannot_be_folded_is_refused(misuse):
    misuse.check()


def broken_prenorm() -> nn.Module:
    network = copy.deepcopy(the.prenorm)
    with torch.no_grad():
        network.up.weight[0, 0] = math.nan
    return network


def adapted() -> nn.Module:
    network = copy.deepcopy(the.folded)
    network.peft_config = {}
    return network


def opposite() -> nn.Module:
    other = copy.deepcopy(the.mlp)
    other.load_state_dict({name: -tensor for name, tensor in the.mlp.state_dict().items()})
    return other


def with_gelu() -> nn.Module:
    return nn.Sequential(*(nn.GELU() if isinstance(layer, nn.ReLU) else layer for layer in the.other_mlp))


def interpolate(t: object = 0.5, path: str = "lerp", *, a: object = None, b: object = None) -> nn.Module:
    return ib.interpolate(the.mlp if a is None else a, the.other_mlp if b is None else b, t, path)


@misuses(
    ("an unknown path", lambda: interpolate(path="arc"), UnknownNameError, "slerp"),
    ("a point that is NaN", lambda: interpolate(math.nan), DataError, "nan"),
    ("a point at infinity", lambda: interpolate(math.inf), DataError, "inf"),
    ("a point in words", lambda: interpolate("0.5"), DataError, "'0.5'"),
    ("no point", lambda: interpolate(None), DataError, "None"),
    ("a point that is true", lambda: interpolate(True), DataError, "True"),
    ("a point far from both networks", lambda: interpolate(10**30), DataError, "-1000 to 1000"),
    ("a point beyond all floats", lambda: interpolate(10**400), DataError, "-1000 to 1000"),
    ("the middle of opposite networks", lambda: interpolate(path="slerp", b=opposite()), DataError, "opposite ways"),
    ("networks with other activations", lambda: interpolate(b=with_gelu()), WiringError, "GELU"),
    ("networks of other widths", lambda: interpolate(b=the.wider_mlp), ShapeError, "0.weight"),
    ("networks of other depths", lambda: interpolate(b=the.deeper_mlp), WiringError, "4.bias"),
    ("networks without the biases", lambda: interpolate(b=the.mlp_without_biases), WiringError, "0.bias"),
    ("a mapping for a network", lambda: interpolate(b={}), WiringError, "dict"),
    ("a name for a network", lambda: interpolate(a="a"), WiringError, "str"),
    ("a network with NaN", lambda: interpolate(b=the.broken_mlp), DataError, "2.weight"),
    ("resetting on no data", lambda: public.reset_batch_norm(the.normed, []), DataError, "no batch"),
    ("resetting on one row", lambda: public.reset_batch_norm(the.normed, [the.batch[:1]]), DataError, "'1'"),
    ("resetting on NaN", lambda: public.reset_batch_norm(the.normed, [the.batch * math.nan]), DataError, "'1'"),
    ("resetting on other rows", lambda: public.reset_batch_norm(the.normed, [torch.ones(5, 7)]), DataError, "(5, 7)"),
    ("resetting a name", lambda: public.reset_batch_norm("model", [the.batch]), WiringError, "str"),
    ("repairing on data that end", lambda: repair(data=iter([the.batch])), DataError, "more than once"),
    ("repairing on no data", lambda: repair(data=[]), DataError, "no batch"),
    ("repairing a name", lambda: public.repair("model", the.mlp, the.mlp, 0.5, [the.batch]), WiringError, "str"),
    ("repairing at NaN", lambda: repair(t=math.nan), DataError, "nan"),
    ("repairing at true", lambda: repair(t=True), DataError, "True"),
    ("repairing on NaN", lambda: repair(data=[the.batch * math.nan]), DataError, "'0'"),
    ("repairing between a network without layers", lambda: repair(b=nn.Sequential()), WiringError, "'0'"),
    ("repairing between networks of other widths", lambda: repair(b=the.wider_mlp), ShapeError, "'0'"),
)
def test_what_has_no_way_between_is_refused(misuse):
    misuse.check()


def repair(*, b: nn.Module | None = None, t: object = 0.5, data: object = None) -> nn.Module:
    ends = the.mlp, the.other_mlp if b is None else b
    return public.repair(the.mlp, *ends, t, [the.batch] if data is None else data)
