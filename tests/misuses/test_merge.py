"""Misuses of ``ib.merge``: networks of several kinds, options that a method does not take, numbers that do not add."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from tests.misuses.table import misuses, public, the
from tests.test_storage import TOO_LONG
from torch import nn

import interbasin as ib
from interbasin.checkpoints import write_checkpoint
from interbasin.errors import CheckpointError, DataError, FileError, ShapeError, UnknownNameError, WiringError

FACTORIES = "tests.misuses.factories"


def tensors(layers: int = 2, **changes: Any) -> dict[str, Any]:
    made = {"embed.weight": torch.ones(4, 3), "norm.weight": torch.ones(3)}
    made |= {f"layers.{layer}.weight": torch.ones(3, 3) for layer in range(layers)}
    made |= {name.replace("_", "."): value for name, value in changes.items()}
    return {name: value for name, value in made.items() if value is not None}


def merge(models: Any = None, method: Any = "average", **options: Any) -> object:
    return ib.merge([tensors(), tensors()] if models is None else models, method, **options)


def with_gelu() -> nn.Module:
    return nn.Sequential(*(nn.GELU() if isinstance(layer, nn.ReLU) else layer for layer in the.other_mlp))


def with_base(method: str = "ties", **options: Any) -> object:
    return merge(None, method, base=tensors(), **options)


@misuses(
    ("no models", lambda: merge([]), DataError, "no models"),
    ("a mapping for the models", lambda: merge(tensors()), DataError, "dict"),
    ("a name for the models", lambda: merge("a"), DataError, "str"),
    ("nothing for the models", lambda: ib.merge(None), DataError, "NoneType"),
    ("a number among the models", lambda: merge([tensors(), 3]), DataError, "int"),
    ("a name among tensors", lambda: merge([tensors(), "folder"]), DataError, "output="),
    ("a network among tensors", lambda: merge([the.mlp, tensors()]), DataError, "Sequential"),
    ("names without an output", lambda: merge(["a", "b"]), DataError, "output="),
    ("tensors with an output", lambda: merge(output="out"), DataError, "dict"),
    ("networks with an output", lambda: merge([the.mlp, the.other_mlp], output="out"), DataError, "Sequential"),
    *(
        (f"the method {name!r}", lambda name=name: merge(None, name), UnknownNameError, "average")
        for name in ("tie", "", None, 3)
    ),
    ("three ends of a line", lambda: merge([tensors()] * 3, "lerp"), DataError, "average"),
    ("one end of an arc", lambda: merge([tensors()], "slerp"), DataError, "slerp"),
    (
        "the middle of opposite tensors",
        lambda: merge([tensors(), tensors(norm_weight=-torch.ones(3))], "slerp"),
        DataError,
        "norm.weight points opposite ways",
    ),
    ("networks with other activations", lambda: merge([the.mlp, with_gelu()]), WiringError, "GELU"),
    ("fewer weights than models", lambda: merge(weights=[1]), DataError, "1 weight"),
    ("a weight of NaN", lambda: merge(weights=[1, math.nan]), DataError, "nan"),
    ("a weight of infinity", lambda: merge(weights=[1, math.inf]), DataError, "inf"),
    ("a weight that is true", lambda: merge(weights=[1, True]), DataError, "True"),
    ("weights whose sum is zero", lambda: merge(weights=[1, -1]), DataError, "sum"),
    ("weights whose sum overflows", lambda: merge(weights=[1e308, 1e308]), DataError, "1e+308"),
    ("weights in words", lambda: merge(weights="11"), DataError, "'11'"),
    ("one number for the weights", lambda: merge(weights=1), DataError, "weights"),
    ("weights of ties below zero", lambda: with_base(weights=[1, -1]), DataError, "ties"),
    ("weights of ties of zero", lambda: with_base(weights=[0, 0]), DataError, "ties"),
    ("a density of zero", lambda: with_base(density=0), DataError, "density"),
    ("a density above one", lambda: with_base(density=1.5), DataError, "density"),
    ("a density of NaN", lambda: with_base(density=math.nan), DataError, "density"),
    ("an infinite scale", lambda: with_base(scale=math.inf), DataError, "scale"),
    ("a point in words", lambda: merge(None, "lerp", t="half"), DataError, "'half'"),
    ("a point far from both models", lambda: merge(None, "lerp", t=10**30), DataError, "-1000 to 1000"),
    ("ties without a base", lambda: merge(None, "ties"), DataError, "base="),
    ("task arithmetic without a base", lambda: merge(None, "task-arithmetic"), DataError, "base="),
    ("an average with a base", lambda: with_base("average"), DataError, "base"),
    ("an average at a point", lambda: merge(t=0.5), DataError, "lerp"),
    ("a line with weights", lambda: merge(None, "lerp", weights=[1, 1]), DataError, "weights"),
    ("an arc with a density", lambda: merge(None, "slerp", density=0.5), DataError, "density"),
    ("an unknown dtype", lambda: merge(dtype="int8"), UnknownNameError, "bfloat16"),
    ("a dtype for modules", lambda: merge([the.mlp, the.other_mlp], dtype="float32"), DataError, ".to(dtype)"),
    ("an option that there is none", lambda: merge(densty=0.5), TypeError, "densty"),
    (
        "alignment without inputs",
        lambda: merge([the.mlp, the.other_mlp], align="permutation-weights"),
        DataError,
        "inputs=",
    ),
    ("alignment of tensors", lambda: merge(align="permutation-weights", inputs=the.batch), DataError, "align="),
    (
        "alignment with a base",
        lambda: merge([the.mlp], "task-arithmetic", base=the.mlp, align="permutation-weights", inputs=the.batch),
        DataError,
        "align=",
    ),
    (
        "alignment by activations",
        lambda: merge([the.mlp, the.other_mlp], align="procrustes-activations", inputs=the.batch),
        DataError,
        "weights",
    ),
    (
        "alignment by an unknown method",
        lambda: merge([the.mlp, the.other_mlp], align="telepathy", inputs=the.batch),
        UnknownNameError,
        "permutation-weights",
    ),
    (
        "resetting networks without statistics",
        lambda: merge([the.mlp, the.other_mlp], reset=[the.batch]),
        DataError,
        "reset=",
    ),
    ("resetting tensors", lambda: merge(reset=[the.batch]), DataError, "reset="),
    (
        "resetting on data that end",
        lambda: merge([the.normed, the.other_normed], reset=iter([the.batch])),
        DataError,
        "more than once",
    ),
    ("resetting on no data", lambda: merge([the.normed, the.other_normed], reset=[]), DataError, "no batch"),
)
def test_a_merge_that_is_asked_for_wrongly_is_refused(misuse):
    misuse.check()


def codes() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    network[0].weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.int8), requires_grad=False)
    return network


def large(value: float, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([value], dtype=dtype)}


def one_folded() -> list[Path]:
    """Two folders of networks, of which the first says that it is folded."""
    folders = [Path(tempfile.mkdtemp()) / name for name in ("one", "two")]
    for folder in folders:
        write_checkpoint(folder, {"x": torch.ones(2)})
    (folders[0] / "folding_config.json").write_text("{}", "utf-8")
    return folders


@misuses(
    ("a folded network and one that is not", lambda: merge(one_folded(), output="out"), WiringError, "rebasin --fold"),
    ("networks of other widths", lambda: merge([the.mlp, the.wider_mlp]), ShapeError, "0.weight"),
    ("networks of other depths", lambda: merge([tensors(), tensors(layers=5)]), WiringError, "deeper"),
    (
        "networks of which one lacks a tensor",
        lambda: merge([tensors(), tensors(norm_weight=None)]),
        WiringError,
        "norm.weight",
    ),
    (
        "a base that lacks a tensor",
        lambda: merge(None, "ties", base=tensors(norm_weight=None)),
        WiringError,
        "norm.weight",
    ),
    (
        "networks of other architectures",
        lambda: merge([tensors(), dict(the.mlp.state_dict())]),
        WiringError,
        "architecture",
    ),
    (
        "networks of other ties",
        lambda: merge([{"a": the.x, "b": the.x}, {"a": the.x, "b": the.y}]),
        WiringError,
        "tied",
    ),
    (
        "a network with NaN",
        lambda: merge([tensors(), tensors(norm_weight=torch.tensor([1, math.nan, 1]))]),
        DataError,
        "norm.weight",
    ),
    (
        "a network with infinity",
        lambda: merge([tensors(), tensors(norm_weight=torch.tensor([1, math.inf, 1]))]),
        DataError,
        "norm.weight",
    ),
    (
        "numbers too large for float16",
        lambda: merge([large(6e4, torch.float16)], "task-arithmetic", base=large(-6e4, torch.float16), weights=[2]),
        DataError,
        "float16",
    ),
    (
        "numbers too large for float32",
        lambda: merge([large(3e38, torch.float32)] * 2, "task-arithmetic", base=large(0, torch.float32)),
        DataError,
        "float32",
    ),
    (
        "a LoRA among tensors",
        lambda: merge([tensors(), tensors() | {"q.lora_A.default.weight": torch.ones(2, 3)}]),
        DataError,
        "LoRA",
    ),
    ("a quantised network", lambda: merge([the.mlp, codes()]), WiringError, "0.weight"),
    (
        "eight-bit floats",
        lambda: merge([{"x": torch.zeros(3).to(torch.float8_e4m3fn)}] * 2),
        DataError,
        "float8_e4m3fn",
    ),
    ("sparse tensors", lambda: merge([{"x": torch.eye(2).to_sparse()}] * 2), DataError, "sparse"),
    ("tensors without numbers", lambda: merge([{"x": torch.ones(2, device="meta")}] * 2), DataError, "meta"),
    ("numbers and counts", lambda: merge([{"x": torch.ones(2)}, {"x": torch.ones(2).long()}]), DataError, "int64"),
    ("something that is no tensor", lambda: merge([{"x": 3}]), DataError, "int"),
)
def test_networks_that_do_not_add_up_are_refused(misuse):
    misuse.check()


def folder(values: dict[str, Any] | None = None, **config: Any) -> Any:
    config = {"model_type": "tiny", "architectures": ["Tiny"], **config}
    return the.files({"config.json": config, "model.safetensors": tensors() if values is None else values})


def on_disk(*models: Any, output: Any = "out", **options: Any) -> object:
    return ib.merge(list(models), output=output, **options)


@misuses(
    ("a model that is not there", lambda: on_disk(folder(), "missing"), CheckpointError, "missing"),
    ("a model without weights", lambda: on_disk(folder(), the.someones_folder), CheckpointError, "notes.md"),
    ("folders of other architectures", lambda: on_disk(folder(), folder(model_type="small")), WiringError, "small"),
    (
        "folders of other widths",
        lambda: on_disk(folder(), folder(tensors(norm_weight=torch.ones(4)))),
        ShapeError,
        "norm.weight",
    ),
    ("folders of other depths", lambda: on_disk(folder(), folder(tensors(layers=4))), WiringError, "deeper"),
    (
        "a folder that lacks a tensor",
        lambda: on_disk(folder(), folder(tensors(norm_weight=None))),
        WiringError,
        "norm.weight",
    ),
    (
        "folders of other ties",
        lambda: on_disk(the.file("a.pt", {"a": the.x, "b": the.x}), the.file("b.pt", {"a": the.x, "b": the.y})),
        WiringError,
        "tied",
    ),
    (
        "a quantised folder",
        lambda: on_disk(folder(), folder(quantization_config={"quant_method": "gptq"})),
        CheckpointError,
        "GPTQ",
    ),
    (
        "a folder with NaN",
        lambda: on_disk(folder(), folder(tensors(norm_weight=torch.full((3,), math.nan)))),
        DataError,
        "norm.weight",
    ),
    (
        "an adapter for a network",
        lambda: on_disk(
            the.files(
                {
                    "adapter_config.json": {"peft_type": "LORA"},
                    "adapter_model.safetensors": {"q.lora_A.weight": torch.ones(2, 3)},
                }
            ),
            folder(),
        ),
        CheckpointError,
        "merge_and_unload",
    ),
    (
        "a dtype that no file holds",
        lambda: on_disk(*[the.file("x.pt", {"x": torch.zeros(2, dtype=torch.complex128)})] * 2),
        DataError,
        "complex128",
    ),
    (
        "an output over someone's folder",
        lambda: on_disk(folder(), folder(), output=the.someones_folder, force=True),
        FileError,
        "not write",
    ),
    ("an output over an input", lambda: over_an_input(), FileError, "choose another name"),
    (
        "an output below a file",
        lambda: on_disk(folder(), folder(), output=the.letter / "out"),
        FileError,
        "not a folder",
    ),
    ("an output whose name is too long", lambda: on_disk(folder(), folder(), output=TOO_LONG), FileError, "long"),
    ("an output named by a number", lambda: on_disk(folder(), folder(), output=3), FileError, "int"),
    ("shards of no bytes", lambda: on_disk(folder(), folder(), max_shard_bytes=0), DataError, "max_shard_bytes"),
    (
        "alignment of checkpoints that are open",
        lambda: on_disk(*[public.open_checkpoint(the.weights)] * 2, align="permutation-weights"),
        DataError,
        "MODEL",
    ),
    (
        "alignment of weights without a network",
        lambda: on_disk(str(the.weights), str(the.weights), align="permutation-weights"),
        CheckpointError,
        "timm:NAME@",
    ),
    (
        "resetting a MODEL without statistics",
        lambda: on_disk(*[f"{FACTORIES}:mlp@{the.weights}"] * 2, reset=[the.batch]),
        DataError,
        "reset=",
    ),
    (
        "resetting a checkpoint that is open",
        lambda: on_disk(*[public.open_checkpoint(the.weights)] * 2, reset=[the.batch]),
        DataError,
        "MODEL",
    ),
)
def test_a_merge_on_disk_that_cannot_be_is_refused(misuse):
    misuse.check()


def over_an_input() -> object:
    where = folder()
    return on_disk(where, folder(), output=where, force=True)
