"""Misuses of transport, in Python and as a command: networks, fine-tunes, data and options that do not fit."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.misuses.table import misuses, the, wrong_commands
from tests.misuses.things import make_mlp
from tests.records import seal_document
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError, WiringError
from interbasin.jobs.transport import PreparedTransport, plan_transport, train_on, transport_on_disk
from interbasin.jobs.transport.journal import Journal
from interbasin.storage.journal import holding_folder

FACTORIES = "tests.misuses.factories"
MODEL, WIDER = (f"{FACTORIES}:{name}_with_inputs" for name in ("mlp", "wider"))


def inputs(count: int = 32, value: float | None = None) -> torch.Tensor:
    drawn = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    if value is not None:
        drawn[3, 1] = value
    return drawn


def transport(**changes: Any) -> object:
    asked: dict[str, Any] = {
        "source": the.mlp,
        "tuned": {"2.bias": torch.ones(3)},
        "target": the.wider_mlp,
        "data": inputs(),
        "method": "theseus",
    }
    return ib.transport(**(asked | changes))


def plan(**changes: Any) -> object:
    return plan_transport(the.mlp, {"2.bias": torch.ones(3)}, the.wider_mlp, inputs(), **changes)


def on_disk(**changes: Any) -> object:
    asked: dict[str, Any] = {"tuned": {"2.bias": torch.ones(3)}, "folder": "out"} | changes
    return transport_on_disk(the.mlp, asked.pop("tuned"), the.wider_mlp, inputs(), **asked)


def prepare(**changes: Any) -> object:
    return ib.prepare_transport(the.mlp, the.wider_mlp, inputs(), **changes)


def probe(weight: Any = None, bias: Any = None, space: str = "0", target: str | None = None) -> object:
    prepared = ib.prepare_transport(the.mlp, the.wider_mlp, inputs())
    return ib.carry_probe(torch.ones(2, 8) if weight is None else weight, bias, prepared, space, target)


def finetune(**changes: Any) -> object:
    labelled = [(inputs(), torch.zeros(32, dtype=torch.long))]
    return ib.finetune(the.mlp, labelled, **({"steps": 2} | changes))


def load_prepared(**changes: Any) -> object:
    ib.prepare_transport(the.mlp, the.wider_mlp, inputs()).save("prepared", force=True)
    place = Path("prepared/prepared.json")
    seal_document(place, json.loads(place.read_text()) | changes)
    try:
        return PreparedTransport.load("prepared", the.mlp, the.wider_mlp)
    finally:
        shutil.rmtree("prepared")


def train(labelled: Any) -> object:
    return train_on(the.mlp, the.mlp, labelled, labelled, steps=2)


def in_another_runs_state() -> object:
    with holding_folder(Journal.at("state").folder):
        return transport(state="state")


class Once:
    """Batches that are gone when they were read."""

    def __init__(self) -> None:
        self.batches = iter([inputs()])

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.batches


class Gain(nn.Module):
    """A network without layers that PEFT can put factors beside."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * x


def quantised() -> nn.Module:
    network = make_mlp()
    network[0].weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.int8), requires_grad=False)
    return network


def with_nan() -> nn.Module:
    network = copy.deepcopy(the.mlp)
    with torch.no_grad():
        network[0].weight[1, 1] = math.nan
    return network


@misuses(
    ("a tuned model of another shape", lambda: transport(tuned=the.wider_mlp), ShapeError, "0.weight"),
    ("a tuned model that is deeper", lambda: transport(tuned=the.deeper_mlp), ShapeError, "2.weight"),
    ("an update of no tensor", lambda: transport(tuned={"9.bias": torch.ones(3)}), UnknownNameError, "9.bias"),
    ("an update of another shape", lambda: transport(tuned={"2.bias": torch.ones(4)}), ShapeError, "2.bias"),
    ("an update of NaN", lambda: transport(tuned={"2.bias": torch.full((3,), math.nan)}), DataError, "2.bias"),
    ("weights in the place of updates", lambda: transport(tuned=the.mlp.state_dict()), DataError, "parallel"),
    ("a fine-tune that is a number", lambda: transport(tuned=3), DataError, "int"),
    ("no fine-tunes", lambda: transport(tuned=[]), DataError, "empty"),
    ("a source with NaN", lambda: transport(source=with_nan()), DataError, "0.weight of the source"),
    ("a target with NaN", lambda: transport(target=with_nan()), DataError, "0.weight of the target"),
    ("a source of codes", lambda: transport(source=quantised()), WiringError, "source (Sequential) is quantised"),
    ("a target of codes", lambda: transport(target=quantised()), WiringError, "target (Sequential) is quantised"),
    ("a target with nothing in common", lambda: transport(target=nn.Identity().eval()), WiringError, "in common"),
    ("data with NaN", lambda: transport(data=inputs(value=math.nan)), DataError, "NaN"),
    ("data with infinity", lambda: transport(data=inputs(value=math.inf)), DataError, "infinity"),
    ("no data", lambda: transport(data=[]), DataError, "no batch"),
    ("three inputs", lambda: transport(data=inputs(3)), DataError, "four at least"),
    ("a generator of data", lambda: transport(data=(each for each in [inputs()])), DataError, "more than once"),
    ("data of another width", lambda: transport(data=torch.ones(8, 9)), WiringError, "do not fit"),
    ("data that can be read once", lambda: transport(data=Once()), DataError, "Once that can be read once"),
    ("a weight of nothing but generic inputs", lambda: transport(generic_weight=1e200), DataError, "generic_weight"),
    ("a weight of generic inputs without them", lambda: transport(generic_weight=3.0), DataError, "give generic="),
    ("an aim of generic inputs without them", lambda: transport(generic_target="tuned"), DataError, "give generic="),
    ("a loss without labels", lambda: transport(loss=torch.nn.functional.mse_loss), DataError, "validate="),
    ("a scale for a regression", lambda: transport(method="regression", scale="rms"), DataError, "maps of theseus"),
    ("a tensor of methods to compare", lambda: transport(compare=torch.zeros(3)), DataError, "True or a list"),
    ("preparing with an unknown rule", lambda: prepare(unobserved="Drop"), UnknownNameError, "drop"),
    ("preparing about some means", lambda: prepare(centered=5), DataError, "centered"),
    ("preparing with a word for progress", lambda: prepare(progress="x"), DataError, "progress"),
    ("planning about some means", lambda: plan(centered="no"), DataError, "centered"),
    ("a probe with another bias", lambda: probe(bias=torch.zeros(2, 1)), ShapeError, "one number for each output"),
    ("a probe with a bias of NaN", lambda: probe(bias=torch.full((2,), math.nan)), DataError, "NaN"),
    ("a probe with a list for a bias", lambda: probe(bias=[0.0, 0.0]), DataError, "list"),
    ("a probe of whole numbers", lambda: probe(torch.ones(2, 8, dtype=torch.long)), DataError, "torch.int64"),
    ("a probe on meta", lambda: probe(torch.ones(2, 8, device="meta")), DataError, "meta"),
    ("a probe of an unknown partner", lambda: probe(target="zz"), UnknownNameError, "partner of '0'"),
    ("a vector through a path", lambda: ib.carry_vector(torch.ones(8), "prepared", "0"), DataError, "PreparedTrans"),
    ("a prepared variant that is none", lambda: load_prepared(variant="zz"), FileError, "damaged"),
    ("prepared heads that are none", lambda: load_prepared(heads="zz"), FileError, "damaged"),
    ("what was prepared for no network", lambda: load_prepared(networks=[]), FileError, "damaged"),
    ("what was prepared for a word", lambda: load_prepared(networks=["a", "b"]), FileError, "damaged"),
    ("a seed that is a word", lambda: finetune(seed="x"), DataError, "seed"),
    ("training that reports to a number", lambda: finetune(progress=5), DataError, "progress"),
    (
        "training with NaN to validate on",
        lambda: finetune(valid=[(inputs() * math.nan, torch.zeros(32, dtype=torch.long))]),
        DataError,
        "validation data is nan",
    ),
    ("an unknown method", lambda: transport(method="thesus"), UnknownNameError, "theseus"),
    (
        "a direct copy between widths",
        lambda: transport(method="direct", tuned={"2.weight": torch.ones(3, 8)}),
        ShapeError,
        "take theseus or regression",
    ),
    ("an alpha in words", lambda: transport(alpha="half"), DataError, "'half'"),
    ("an unknown merge", lambda: transport(merge="slerp"), UnknownNameError, "ties"),
    ("a density without ties", lambda: transport(density=0.5), DataError, "ties"),
    ("two weights for one fine-tune", lambda: transport(merge_weights=[1, 2]), DataError, "1 and 2"),
    ("a weight that is no list", lambda: transport(merge_weights=3), DataError, "merge_weights"),
    ("a front without generic inputs", lambda: transport(front=True), DataError, "generic="),
    ("a front of words", lambda: transport(front="all", generic=inputs()), DataError, "'all'"),
    ("a front of one number", lambda: transport(front=0.5, generic=inputs()), DataError, "0.5"),
    ("a front of a whole number", lambda: transport(front=3, generic=inputs()), DataError, "found 3"),
    ("a state in a file", lambda: transport(state=the.letter), FileError, "is a file"),
    ("a state that another run has", in_another_runs_state, FileError, "Another process"),
    ("a state in someone's folder", lambda: transport(state=the.someones_folder), FileError, "other things"),
    ("a rank of nothing", lambda: transport(as_lora=0), DataError, "as_lora"),
    ("a LoRA for a target without layers", lambda: transport(target=Gain(), as_lora=2), DataError, "no layer inside"),
    ("an unknown row to compare", lambda: transport(compare=["magic"]), UnknownNameError, "magic"),
    ("a number to compare", lambda: transport(compare=3), DataError, "compare is True or a list"),
    ("a list of numbers to compare", lambda: transport(compare=[3]), UnknownNameError, "3"),
    ("a correspondence that is a number", lambda: transport(correspondence=5), WiringError, "found a int"),
    ("a correspondence of a number", lambda: transport(correspondence={3: "0.weight"}), WiringError, "sends 3"),
    ("a correspondence to a number", lambda: transport(correspondence={"0.weight": 3}), WiringError, "to 3"),
    ("a mask that fails", lambda: transport(mask=lambda batch: 1 / 0), DataError, "mask function"),
    ("a progress that fails", lambda: transport(progress=lambda text: 1 / 0), DataError, "progress was called"),
    ("a plan whose progress is no function", lambda: plan(progress=3), DataError, "progress is a function"),
    ("a plan whose progress fails", lambda: plan(progress=lambda text: 1 / 0), DataError, "progress was called"),
    ("a plan of one weight that is no list", lambda: plan(merge_weights=3), DataError, "merge_weights is a list"),
    ("a transport on disk without a folder", lambda: on_disk(folder=None), DataError, "without a folder"),
    ("a transport on disk over someone's folder", lambda: on_disk(folder=the.someones_folder), FileError, "exists"),
    ("a transport on disk in no memory", lambda: on_disk(memory=0), DataError, "memory"),
    ("a transport on disk in half a byte", lambda: on_disk(memory=0.5), DataError, "memory"),
    ("a transport on disk with an unknown scale", lambda: on_disk(scale="sums"), UnknownNameError, "rms"),
    ("a transport on disk with unknown directions", lambda: on_disk(unobserved="up"), UnknownNameError, "drop"),
    ("a transport on disk whose progress is no function", lambda: on_disk(progress=3), DataError, "progress"),
    ("a transport on disk of NaN", lambda: on_disk(tuned={"2.bias": torch.full((3,), math.nan)}), DataError, "2.bias"),
    ("training on what is measured on", lambda: train(the.labelled), DataError, "is trained on"),
    (
        "a part of the tuned network in the place of updates",
        lambda: transport(tuned={name: each for name, each in the.mlp.state_dict().items() if name != "0.bias"}),
        DataError,
        "parallel",
    ),
    ("a progress that is no function", lambda: transport(progress=3), DataError, "progress"),
    (
        "a plan of two weights for one fine-tune",
        lambda: plan_transport(the.mlp, {"2.bias": torch.ones(3)}, the.wider_mlp, inputs(), merge_weights=[1, 2]),
        DataError,
        "merge_weights",
    ),
    (
        "what was prepared with an unknown merge",
        lambda: ib.prepare_transport(the.mlp, the.wider_mlp, inputs()).apply({"2.bias": torch.ones(3)}, merge="slerp"),
        UnknownNameError,
        "task-arithmetic",
    ),
    (
        "training without steps",
        lambda: train_on(the.mlp, the.mlp, the.labelled, the.labelled, steps=0),
        DataError,
        "steps",
    ),
    ("training without validation", lambda: train_on(the.mlp, the.mlp, the.labelled, None), DataError, "validation"),
)
def test_what_cannot_be_transported_is_refused(misuse):
    misuse.check()


def data(count: int = 32, value: float | None = None, labels: bool = False) -> Any:
    drawn = {"x": inputs(count, value).numpy()}
    return the.file("task.npz", drawn | ({"y": np.zeros(count, np.int64)} if labels else {}))


def weights(width: int = 8, value: float | None = None) -> Any:
    tensors = {name: tensor.clone() for name, tensor in make_mlp(hidden=width).state_dict().items()}
    if value is not None:
        tensors["0.weight"][0, 0] = value
    return the.file("tuned.safetensors", tensors)


def command(*words: Any, source: Any = MODEL, tuned: Any = None, target: Any = WIDER, task: Any = None) -> list[Any]:
    task = data() if task is None else task
    return ["transport", source, tuned or weights(), target, "--data", task, "-o", "out", *words]


def train_by_another_path(task: Any) -> list[Any]:
    return command(
        "--then-train", 2, "--train-data", task.parent / "." / ".." / task.parent.name / task.name, "--validate", task
    )


def with_weights(model: str, **changes: Any) -> str:
    return f"{model}@{weights(**changes)}"


@wrong_commands(
    ("a transport of nothing", lambda: ["transport"], 2, "SOURCE"),
    ("a transport without data", lambda: ["transport", MODEL, "tuned", WIDER, "-o", "out"], 2, "--data"),
    ("a fine-tune of another shape", lambda: command(tuned=weights(9)), 1, "0.weight"),
    ("a fine-tune with NaN", lambda: command(tuned=weights(value=math.nan)), 1, "0.weight"),
    ("a fine-tune that is nowhere", lambda: command(tuned="./nowhere"), 1, "nowhere"),
    ("a source with NaN", lambda: command(source=with_weights(MODEL, value=math.nan)), 1, "0.weight of the source"),
    (
        "a target with infinity",
        lambda: command(target=with_weights(WIDER, width=9, value=math.inf)),
        1,
        "0.weight of the target",
    ),
    ("a quantised source", lambda: command(source=f"{FACTORIES}:coded"), 1, "source (Sequential) is quantised"),
    ("a quantised target", lambda: command(target=f"{FACTORIES}:coded"), 1, "target (Sequential) is quantised"),
    ("a task with NaN", lambda: command(task=data(value=math.nan)), 1, "NaN"),
    ("a task of no rows", lambda: command(task=data(0)), 1, "no rows"),
    ("a task of three rows", lambda: command(task=data(3)), 1, "four at least"),
    ("an unknown method of transport", lambda: command("--method", "thesus"), 1, "theseus"),
    ("a front without generic data", lambda: command("--front"), 1, "--generic"),
    ("a front over zero", lambda: command("--front-weights", "0,1", "--generic", data()), 1, "weight of the front"),
    ("an unknown merge of fine-tunes", lambda: command("--merge", "slerp"), 1, "task-arithmetic"),
    ("a density of a sum", lambda: command("--density", 0.5), 1, "--merge ties"),
    ("too many weights", lambda: command("--merge-weights", "1,2"), 1, "--merge-weights"),
    (
        "another fine-tune of another base",
        lambda: command("--also", the.file("wide.safetensors", dict(make_mlp(hidden=9).state_dict()))),
        1,
        "0.weight",
    ),
    (
        "training on data without labels",
        lambda: command("--then-train", 2, "--train-data", data(), "--validate", data(labels=True)),
        1,
        "no labels to train on",
    ),
    (
        "a rate below zero",
        lambda: command(
            *("--then-train", 2, "--train-data", data(labels=True), "--validate", data(labels=True), "--rate", -1)
        ),
        2,
        "--rate",
    ),
    (
        "training on what is measured on by another path",
        lambda: train_by_another_path(data(labels=True)),
        2,
        "--train-data",
    ),
    (
        "a regression in little memory",
        lambda: command("--memory", "1GB", "--method", "regression"),
        2,
        "leave that out",
    ),
    ("a comparison in little memory", lambda: command("--memory", "1GB", "--compare"), 2, "--compare"),
    ("a memory in words", lambda: command("--memory", "plenty"), 2, "takes a size"),
    ("a transport over someone's folder", lambda: [*command(), "-o", the.someones_folder, "--force"], 1, "not write"),
)
def test_what_the_command_cannot_transport_is_refused(misuse):
    misuse.check()
