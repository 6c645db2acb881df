"""Misuses of ``ib.rebasin`` and ``ib.rebasin_many``: networks that do not match, options out of range, lacking data."""

from __future__ import annotations

import math

import torch
from tests.misuses.table import misuses, the
from tests.misuses.things import Net, make_mlp
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, DivergedError, FileError, ShapeError, UnknownNameError, WiringError


def rebasin(source: object = None, target: object = None, inputs: object = ..., **options: object) -> ib.rebasin:
    source, target = the.mlp if source is None else source, the.other_mlp if target is None else target
    return ib.rebasin(source, target, the.batch if inputs is ... else inputs, **options)


def tied(yes: bool) -> Net:
    network = Net(
        lambda self, x: self.head(self.table(x).relu()), table=nn.Embedding(9, 6), head=nn.Linear(6, 9, False)
    )
    if yes:
        network.head.weight = network.table.weight
    return network.eval()


def adapted() -> nn.Module:
    network = make_mlp()
    network[0].lora_A = nn.Linear(2, 2)
    return network


def wrapped() -> nn.Module:
    network = nn.Module()
    network.base_model = nn.Module()
    network.base_model.model = make_mlp()
    return network


def convolutions(kernel: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, kernel, padding=kernel // 2), nn.ReLU(), nn.Conv2d(6, 2, 1)).eval()


def chain(order: str) -> Net:
    def run(self: Net, x: torch.Tensor) -> torch.Tensor:
        for name in order:
            x = torch.relu(getattr(self, name)(x))
        return self.out(x)

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4), out=nn.Linear(4, 3)).eval()


def with_tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


@misuses(
    ("a wider target", lambda: rebasin(target=the.wider_mlp), ShapeError, "'0'"),
    ("a deeper target", lambda: rebasin(target=the.deeper_mlp), WiringError, "4."),
    ("a deeper source", lambda: rebasin(the.deeper_mlp), WiringError, "4."),
    ("a target with another non-linearity", lambda: rebasin(target=with_tanh()), WiringError, "differently"),
    (
        "a target with other kernels",
        lambda: rebasin(convolutions(1), convolutions(3), torch.ones(2, 3, 4, 4)),
        ShapeError,
        "0.weight",
    ),
    (
        "a target that uses its layers in another order",
        lambda: rebasin(chain("ab"), chain("ba")),
        WiringError,
        "differently",
    ),
    ("a target that is a mapping", lambda: rebasin(target={"w": 1}), WiringError, "dict"),
    ("a source that is a name", lambda: rebasin("model"), WiringError, "str"),
    ("a target without biases", lambda: rebasin(target=the.mlp_without_biases), WiringError, "0.bias"),
    ("a source with NaN", lambda: rebasin(the.broken_mlp), WiringError, "2.weight"),
    ("a target with NaN", lambda: rebasin(target=the.broken_mlp), WiringError, "2.weight"),
    ("a source with ties", lambda: rebasin(tied(True), tied(False), torch.arange(9)[None]), WiringError, "head.weight"),
    ("a target with ties", lambda: rebasin(tied(False), tied(True), torch.arange(9)[None]), WiringError, "head.weight"),
    ("a source with an adapter", lambda: rebasin(adapted()), WiringError, "lora_A"),
    ("a target with an adapter", lambda: rebasin(target=adapted()), WiringError, "lora_A"),
    ("a source that PEFT wraps", lambda: rebasin(wrapped()), WiringError, "base_model"),
    ("a target that PEFT wraps", lambda: rebasin(target=wrapped()), WiringError, "base_model"),
    ("a target that is folded", lambda: rebasin(the.prenorm, the.folded), WiringError, "stay_in_class=False"),
    ("a source that is folded", lambda: rebasin(the.folded, the.prenorm), WiringError, "stay_in_class=False"),
    (
        "networks in training",
        lambda: rebasin(*(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)) for _ in "ab")),
        WiringError,
        "eval()",
    ),
    ("no inputs", lambda: rebasin(inputs=None), DataError, "inputs="),
    ("inputs of another width", lambda: rebasin(inputs=torch.ones(5, 7)), WiringError, "inputs"),
    ("an empty batch", lambda: rebasin(inputs=the.batch[:0]), WiringError, "(0, 4)"),
    ("an unknown method", lambda: rebasin(method="telepathy"), UnknownNameError, "procrustes-weights"),
    ("a method that is nothing", lambda: rebasin(method=None), UnknownNameError, "procrustes-weights"),
    ("an unknown variant", lambda: rebasin(variant="sideways"), UnknownNameError, "coordinate"),
    ("an unknown reach", lambda: rebasin(reach="far"), UnknownNameError, "orthogonal"),
    ("a method of activations without data", lambda: rebasin(method="procrustes-activations"), DataError, "data="),
    ("a method of the loss without data", lambda: rebasin(method="straight-through"), DataError, "data="),
    (
        "a method of the loss without labels",
        lambda: rebasin(method="straight-through", data=[the.batch]),
        DataError,
        "labels",
    ),
    (
        "curves where maps are permutations",
        lambda: rebasin(the.attention, the.attention, the.tokens, method="stiefel"),
        WiringError,
        "Cayley",
    ),
    ("fine-tuning without data", lambda: rebasin(finetune=2), DataError, "labels"),
    ("fine-tuning without labels", lambda: rebasin(finetune=2, data=[the.batch]), DataError, "labels"),
    ("fine-tuning for less than no epoch", lambda: rebasin(finetune=-1), DataError, "finetune"),
    ("fine-tuning for half an epoch", lambda: rebasin(finetune=0.5, data=the.labelled), DataError, "finetune"),
    (
        "fine-tuning that meets NaN",
        lambda: rebasin(finetune=1, data=the.labelled, loss=lambda out, labels: out.sum() * math.nan),
        DivergedError,
        "nan",
    ),
    ("a barrier without data", lambda: rebasin(points=5), DataError, "labels"),
    ("a barrier of one point", lambda: rebasin(points=1, data=the.labelled), DataError, "1 point"),
    ("a barrier of points in words", lambda: rebasin(points="5", data=the.labelled), DataError, "points"),
    ("no sweeps", lambda: rebasin(sweeps=0), DataError, "sweeps"),
    ("restarts that are true", lambda: rebasin(restarts=True), DataError, "restarts"),
    ("a tolerance of NaN", lambda: rebasin(tolerance=math.nan), DataError, "tolerance"),
    ("a tolerance below zero", lambda: rebasin(tolerance=-1.0), DataError, "tolerance"),
    ("an infinite rate", lambda: rebasin(rate=math.inf), DataError, "rate"),
    ("no epochs", lambda: rebasin(method="straight-through", data=the.labelled, epochs=0), DataError, "epochs"),
    ("a seed in words", lambda: rebasin(seed="lucky"), DataError, "seed"),
    ("data without a batch", lambda: rebasin(data=[]), DataError, "no batch"),
    ("data that end", lambda: rebasin(data=iter(the.labelled)), DataError, "more than once"),
    (
        "statistics reset on data that end",
        lambda: rebasin(the.normed, the.other_normed, data=the.labelled, reset=iter(the.labelled)),
        DataError,
        "more than once",
    ),
    ("a loss in words", lambda: rebasin(data=the.labelled, loss="mse"), DataError, "str"),
    ("an option that there is none", lambda: rebasin(sweps=3), TypeError, "sweps"),
    ("a result over someone's folder", lambda: rebasin().save(the.someones_folder, force=True), FileError, "not write"),
    ("a result over an outcome", lambda: rebasin().save(the.saved_outcome), FileError, "force"),
)
def test_a_rebasin_that_cannot_be_made_is_refused(misuse):
    misuse.check()


def many(networks: object = None, *arguments: object, **options: object) -> object:
    networks = [the.mlp, the.other_mlp] if networks is None else networks
    return ib.rebasin_many(networks, the.batch, *arguments, **options)


@misuses(
    ("one network", lambda: many([the.mlp]), DataError, "found 1"),
    ("no networks", lambda: many([]), DataError, "found 0"),
    ("networks not in a list", lambda: many(the.mlp), DataError, "Sequential"),
    ("a mapping among networks", lambda: many([the.mlp, {}]), WiringError, "dict"),
    ("networks of other widths", lambda: many([the.mlp, the.wider_mlp]), ShapeError, "'0'"),
    ("networks of other depths", lambda: many([the.mlp, the.deeper_mlp]), WiringError, "4."),
    *(
        (
            f"the reference {reference!r}",
            lambda reference=reference: many(reference=reference),
            DataError,
            repr(reference),
        )
        for reference in (2, -1, True, "first")
    ),
    ("no rounds", lambda: many(rounds=0), DataError, "rounds"),
    ("no sweeps", lambda: many(sweeps=0), DataError, "sweeps"),
    ("a tolerance of NaN", lambda: many(tolerance=math.nan), DataError, "tolerance"),
    ("a seed in words", lambda: many(seed="lucky"), DataError, "seed"),
    ("an unknown method", lambda: many(None, "telepathy"), UnknownNameError, "procrustes-weights"),
    ("no inputs", lambda: ib.rebasin_many([the.mlp, the.other_mlp], None), WiringError, "NoneType"),
)
def test_common_coordinates_that_cannot_be_are_refused(misuse):
    misuse.check()
