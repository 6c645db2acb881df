"""Misuses of adapt, in Python and as a command: sources, data, labels and options that do not fit."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.misuses.table import misuses, the, wrong_commands
from torch import Tensor, nn

import interbasin as ib
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError, WiringError
from interbasin.jobs.adapt import load_adapted

MODEL = "tests.misuses.factories:source_with_inputs"
DIVIDED = "Source(embedder, body, head)"  # how a source is given in parts


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@the.keeps
def source_of_adapt() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@the.keeps
def proxy_of_adapt() -> tuple[Tensor, Tensor]:
    return torch.randn(30, 4), torch.arange(30) % 3


@the.keeps
def target_of_adapt() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 1, 6), torch.arange(20) % 2


def adapt(**changes: Any) -> object:
    asked: dict[str, Any] = {"method": "linear-probe", "steps": 1, "align_steps": 1, **changes}
    for name in ("source", "proxy"):
        asked.setdefault(name, getattr(the, f"{name}_of_adapt"))
    asked.setdefault("train", the.target_of_adapt)
    return ib.adapt(**asked)


def train(inputs: object = None, labels: object = None, **changes: Any) -> object:
    """An adaptation to other inputs, or to other labels."""
    own = the.target_of_adapt
    return adapt(train=(own[0] if inputs is None else inputs, own[1] if labels is None else labels), **changes)


def spoil(values: Tensor, row: int, value: float = math.nan) -> Tensor:
    values = values.clone()
    values.reshape(len(values), -1)[row, 0] = value
    return values


def spoiled(row: int = 3) -> Tensor:
    return spoil(draw(20, 1, 6), row)


def labels(count: int = 20, classes: int = 2) -> Tensor:
    return torch.arange(count) % classes


NAMES = np.array(["saw", "sine"])[np.arange(20) % 2]


class Named:
    """A data set whose labels are names."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> tuple[Tensor, str]:
        return draw(20, 1, 6)[place], str(NAMES[place])


def huge() -> Tensor:
    numbers = labels(30)
    numbers[7] = 10**12
    return numbers


class TokenBody(nn.Module):
    """A body that takes so many tokens and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(2, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] != 2:
            raise ValueError(f"two tokens are expected, found {tokens.shape[1]}")
        return tokens + self.positions


class TokenEmbedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Linear(2, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.cut(inputs.unflatten(1, (2, 2)))  # type: ignore[no-any-return]


class ManyTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.token.expand(len(inputs), 5, 8)


class OneToken(ManyTokens):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.token.expand(len(inputs), 1, 8)


def with_tokens(embedder: nn.Module) -> object:
    return adapt(source=ib.Source(TokenEmbedder(), TokenBody(), nn.Linear(8, 3)), embedder=embedder)


def compiled() -> ib.Source:
    with warnings.catch_warnings():  # torch.jit is to go
        warnings.simplefilter("ignore")
        return ib.Source(nn.Linear(4, 8), torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 3))


class Detached(nn.Sequential):
    """Layers through which no gradient comes back."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).detach()  # type: ignore[no-any-return]


class Sum(nn.Module):
    """A body that has one answer for all inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sum(0, keepdim=True)


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(8))


def with_parts(**parts: nn.Module) -> ib.Source:
    own = the.source_of_adapt
    return ib.Source(**{"embedder": own[:2], "body": own[2:4], "head": own[4]} | parts)


def hooked() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.ReLU())


def parametrised() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU())


def mask(values: Tensor) -> Any:
    """A masked array with its first number masked."""
    array = np.ma.array(values.numpy())
    array[0] = np.ma.masked
    return array


def in_a_strangers_folder() -> object:
    return adapt(state=the.files({"mine.txt": "mine"}))


@misuses(
    ("all labels are alike", lambda: train(labels=torch.zeros(20).long()), DataError, "at least two classes"),
    ("all labels are one number", lambda: train(labels=torch.ones(20)), DataError, "at least two classes"),
    ("a label below zero", lambda: train(labels=labels() - 1), DataError, "-1"),
    ("one label below zero", lambda: train(labels=spoil(torch.arange(20), 3, -1)), DataError, "row 3"),
    ("a test label beyond all", lambda: adapt(test=(draw(4, 1, 6), labels(4) + 5)), DataError, "out of range"),
    ("some test labels beyond all", lambda: adapt(test=(draw(20, 1, 6), torch.arange(20))), DataError, "row 2"),
    ("labels with fractions", lambda: train(labels=draw(20)), DataError, "regression"),
    ("a label for each sample", lambda: train(draw(40, 1, 6), torch.arange(40)), DataError, "regression"),
    ("a number for labels", lambda: train(labels=torch.tensor(1)), ShapeError, "a single number"),
    ("a number for inputs", lambda: train(torch.tensor(1.0)), ShapeError, "a single number"),
    ("a number for labels of the proxy", lambda: adapt(proxy=(draw(30, 4), torch.tensor(1))), ShapeError, "number"),
    ("two batches that are mappings", lambda: adapt(proxy=[{"x": draw(9, 4)}] * 2), DataError, "no labels"),
    ("a number for classes", lambda: adapt(classes=3), DataError, "a list of strings"),
    ("a compiled body", lambda: adapt(source=compiled()), WiringError, "torch.jit"),
    ("labels that are years", lambda: train(labels=torch.arange(20) + 2000), DataError, "2019"),
    ("labels that are names", lambda: train(labels=NAMES), DataError, "strings ('saw')"),
    ("a list of names", lambda: train(labels=NAMES.tolist()), DataError, "strings ('saw')"),
    ("batches with names", lambda: adapt(train=[(draw(20, 1, 6), NAMES.tolist())]), DataError, "from 0 on"),
    ("samples with names", lambda: adapt(train=Named()), DataError, "Labels of the training data are whole numbers"),
    ("test labels that are names", lambda: adapt(test=(draw(20, 1, 6), NAMES)), DataError, "the test data"),
    ("proxy labels that are names", lambda: adapt(proxy=(draw(20, 4), NAMES)), DataError, "Labels of the proxy are"),
    ("a proxy in batches with names", lambda: adapt(proxy=[(draw(20, 4), NAMES)]), DataError, "strings"),
    ("a proxy label beyond all", lambda: adapt(proxy=(draw(30, 4), huge())), DataError, "Label 1000000000000 in row 7"),
    ("a proxy label that is a year", lambda: adapt(proxy=(draw(30, 4), labels(30) + 2020)), DataError, "30 samples"),
    ("too few names of classes", lambda: adapt(classes=["a"]), DataError, "labels go up to 1"),
    ("one string for names", lambda: adapt(classes="ab"), DataError, "found 'ab'"),
    ("names that are numbers", lambda: adapt(classes=[0, 1]), DataError, "found [0, 1]"),
    ("a name twice", lambda: adapt(classes=["a", "a"]), DataError, "Two classes are called 'a'"),
    ("names of numbers", lambda: adapt(classes=["a", "b"], task="regression"), DataError, "the task is regression"),
    ("more labels than inputs", lambda: train(labels=labels(21)), ShapeError, "21 labels"),
    ("no training data", lambda: adapt(train=None), DataError, "NoneType"),
    ("training data without labels", lambda: adapt(train=draw(20, 1, 6)), DataError, "no labels"),
    ("NaN in an input", lambda: train(spoiled()), DataError, "Row 3 of the inputs of the training data"),
    ("NaN in a test input", lambda: adapt(test=(spoiled(7), labels())), DataError, "Row 7"),
    (
        "NaN in labels",
        lambda: train(labels=spoil(torch.rand(20), 2), task="regression"),
        DataError,
        "Row 2 of the labels",
    ),
    ("1e300 in an input", lambda: train(spoil(draw(20, 1, 6).double(), 5, 1e300)), DataError, "1e+300, and float32"),
    (
        "a row of large numbers",
        lambda: train(spoil(draw(20, 1, 6), 5, 3e38)),
        DataError,
        "Row 5 of the inputs of the tr",
    ),
    ("large numbers in the test", lambda: adapt(test=(spoil(draw(20, 1, 6), 7, 3e38), labels())), DataError, "Row 7"),
    ("features that mean nothing", lambda: adapt(test=(spoil(draw(20, 1, 6), 7, 1e15), labels())), DataError, "Row 7"),
    (
        "large unlabelled inputs",
        lambda: adapt(unlabelled=spoil(draw(5, 1, 6), 2, 1e15)),
        DataError,
        "Row 2 of the inpu",
    ),
    (
        "1e300 in the proxy",
        lambda: adapt(proxy=(spoil(draw(30, 4).double(), 4, 1e300), labels(30))),
        DataError,
        "float32",
    ),
    ("masked inputs", lambda: train(mask(draw(20, 1, 6))), DataError, "the training data are plain arrays"),
    ("masked labels", lambda: train(draw(20, 1, 6).numpy(), mask(labels())), DataError, ".filled(value)"),
    ("a masked batch", lambda: adapt(train=[(mask(draw(20, 1, 6)), labels().numpy())]), DataError, "a masked array"),
    ("masked test inputs", lambda: adapt(test=(mask(draw(20, 1, 6)), labels().numpy())), DataError, "the test data"),
    ("a masked proxy", lambda: adapt(proxy=(mask(draw(30, 4)), labels(30).numpy())), DataError, "the proxy are plain"),
    ("masked labels of the proxy", lambda: adapt(proxy=(draw(30, 4), mask(labels(30)))), DataError, "a masked array"),
    ("no sample at all", lambda: train(draw(0, 1, 6), labels(0)), DataError, "no samples"),
    ("six samples", lambda: train(draw(6, 1, 6), labels(6)), DataError, "too few"),
    ("nine samples", lambda: train(draw(9, 1, 6), labels(9)), DataError, "9 labelled samples"),
    ("one validation sample", lambda: adapt(valid=(draw(1, 1, 6), labels(1))), DataError, "at least 2"),
    ("test inputs of another shape", lambda: adapt(test=(draw(4, 1, 9), labels(4))), ShapeError, "(1, 9)"),
    ("unlabelled ones of other channels", lambda: adapt(unlabelled=draw(4, 2, 6)), ShapeError, "(2, 6)"),
    ("unlabelled ones of another length", lambda: adapt(unlabelled=draw(5, 1, 9)), ShapeError, "(1, 9)"),
    ("inputs of no axes", lambda: train(draw(20)), ShapeError, "(samples, 1)"),
    ("inputs with four axes", lambda: train(draw(20, 1, 2, 2, 2)), ShapeError, "(1, 2, 2, 2); an embedder"),
    ("inputs without a scale", lambda: train(1e20 * draw(20, 1, 6)), DataError, "spread"),
    ("fields of another shape", lambda: train(task="dense"), ShapeError, "channels"),
    ("a target that is too long", lambda: with_tokens(ManyTokens()), ShapeError, "two tokens"),
    ("a target that should be shorter", lambda: with_tokens(ManyTokens()), ShapeError, "(2, 8): give shorter inputs"),
    ("a target that is too short", lambda: with_tokens(OneToken()), ShapeError, "(2, 8): give longer inputs"),
    (
        "an embedder that feeds no body",
        lambda: adapt(embedder=nn.Sequential(nn.Flatten(), nn.Linear(6, 9))),
        ShapeError,
        "embedder",
    ),
    ("an embedder that learns nothing", lambda: adapt(embedder=nn.Flatten()), DataError, "no parameters"),
    ("no proxy", lambda: adapt(proxy=None), DataError, "NoneType"),
    ("a proxy without labels", lambda: adapt(proxy=draw(30, 4)), DataError, "no labels"),
    ("batches of a proxy without labels", lambda: adapt(proxy=[draw(30, 4)]), DataError, "no labels"),
    ("a proxy with too few labels", lambda: adapt(proxy=(draw(30, 4), labels(29))), ShapeError, "29 labels"),
    ("a proxy with a label below zero", lambda: adapt(proxy=(draw(30, 4), labels(30) - 1)), DataError, "-1"),
    ("a proxy that is one input", lambda: adapt(proxy=(torch.ones(30, 4), labels(30))), DataError, "same features"),
    ("a proxy of another modality", lambda: adapt(proxy=(draw(30, 3), labels(30))), DataError, "(30, 3)"),
    ("NaN in the proxy", lambda: adapt(proxy=(spoil(draw(30, 4), 4), labels(30))), DataError, "Row 4"),
    ("a source that cannot be divided", lambda: adapt(source=nn.Bilinear(2, 2, 2)), WiringError, DIVIDED),
    ("a layer for a source", lambda: adapt(source=nn.Linear(4, 3)), WiringError, DIVIDED),
    ("a name for a source", lambda: adapt(source="bert"), WiringError, DIVIDED),
    (
        "a body of another width",
        lambda: adapt(source=with_parts(body=nn.Linear(7, 8))),
        WiringError,
        "puts out (30, 8)",
    ),
    ("a head of another width", lambda: adapt(source=with_parts(head=nn.Linear(9, 3))), ShapeError, "reads 9 numbers"),
    ("a body that adds inputs up", lambda: adapt(source=with_parts(body=Sum())), WiringError, "keeps the first axis"),
    (
        "a body without a gradient",
        lambda: adapt(source=with_parts(body=Detached(nn.Linear(8, 8)))),
        WiringError,
        "The body puts out a tensor without a gradient",
    ),
    (
        "an embedder without a gradient",
        lambda: adapt(embedder=Detached(nn.Flatten(), nn.Linear(6, 8))),
        WiringError,
        "The embedder puts out a tensor without a gradient",
    ),
    ("a body with a hook", lambda: adapt(source=with_parts(body=hooked())), WiringError, "parametrizations"),
    (
        "a LoRA on weights that are computed",
        lambda: adapt(source=with_parts(body=parametrised()), body="lora"),
        WiringError,
        "remove_parametrizations",
    ),
    (
        "a lazy body",
        lambda: adapt(source=with_parts(body=nn.LazyLinear(8))),
        WiringError,
        "a LazyLinear that has seen no",
    ),
    ("a lazy head", lambda: adapt(source=with_parts(head=nn.LazyLinear(3))), WiringError, "call the model once"),
    ("a lazy embedder", lambda: adapt(embedder=Lazy()), WiringError, "The embedder has a LazyLinear (1)"),
    ("a part that is no module", lambda: ib.Source(nn.Linear(2, 2), "body"), DataError, "body"),  # type: ignore[arg-type]
    ("a pool that is none", lambda: ib.Source(nn.Identity(), nn.Identity(), pool="max"), UnknownNameError, "mean"),  # type: ignore[arg-type]
    ("a method that is none", lambda: adapt(method="recraftt"), UnknownNameError, "recraft"),
    ("a method to compare that is none", lambda: adapt(compare=["orcaa"]), UnknownNameError, "orcaa"),
    ("a task that is none", lambda: adapt(task="words"), UnknownNameError, "classification"),
    ("a metric of another task", lambda: adapt(metric="nrmse"), UnknownNameError, "auroc"),
    ("a predictor that is none", lambda: adapt(predictor="tail"), UnknownNameError, "transport"),
    (
        "classes carried over to numbers",
        lambda: train(labels=draw(20), task="regression", predictor="transport"),
        DataError,
        "head",
    ),
    ("a preset that is none", lambda: adapt(preset="ecgg"), UnknownNameError, "ecg"),
    ("a preset with half its name", lambda: adapt(preset="burgers"), UnknownNameError, "pde-burgers"),
    ("a setting that is none", lambda: adapt(stepps=3), DataError, "stepps"),
    ("no step", lambda: adapt(steps=0), DataError, "steps"),
    ("a rate of nothing", lambda: adapt(rate=0.0), DataError, "rate"),
    ("no time", lambda: adapt(minutes=0), DataError, "minutes"),
    ("a seed in words", lambda: adapt(seed="lucky"), DataError, "seed"),
    ("progress in words", lambda: adapt(progress="loud"), DataError, "progress"),
    ("steps told to a word", lambda: adapt(on_step="loud"), DataError, "on_step is a function of a step's number"),
    (
        "steps told to what fails",
        lambda: adapt(method="naive", on_step=lambda *step: 1 / 0),
        DataError,
        "on_step was called",
    ),
    ("no patience at all", lambda: adapt(patience=0), DataError, "patience"),
    ("patience without validation data", lambda: adapt(patience=2), DataError, "give valid=, or leave patience= out"),
    ("more steps for labels than there are", lambda: adapt(distortion_steps=2), DataError, "distortion_steps"),
    ("a loss of the head that is none", lambda: adapt(head_loss="labls"), UnknownNameError, "labels"),
    ("a state in a stranger's folder", in_a_strangers_folder, FileError, "mine.txt"),
    ("a state over someone's folder", lambda: adapt(state=the.someones_folder), FileError, "other things"),
    ("a state over a file", lambda: adapt(state=the.letter), FileError, "which is a file"),
    ("a folder without an adaptation", lambda: load_adapted(the.files({"a.txt": "a"})), FileError, "adaptation.json"),
)
def test_adapt_refuses(misuse):
    misuse.check()


def data(**changes: Any) -> Path:
    arrays = {"x": draw(20, 1, 6).numpy(), "y": labels().numpy()} | changes
    return the.file("data.npz", arrays)


def proxy() -> Path:
    return the.file("proxy.npz", {"x": draw(30, 4).numpy(), "y": (torch.arange(30) % 3).numpy()})


def command(*more: object, target: Path | None = None, model: str = MODEL) -> list[object]:
    return ["adapt", model, "--proxy", proxy(), "--data", target or data(), "-o", "out", *more]


@wrong_commands(
    ("no output", lambda: ["adapt", MODEL, "--proxy", "a", "--data", "b"], 2, "--output"),
    ("no proxy", lambda: ["adapt", MODEL, "--data", "b", "-o", "out"], 2, "--proxy"),
    ("a shape in words", lambda: command("--shape", "one"), 2, "1,96"),
    ("a shape that does not fit", lambda: command("--shape", "5"), 1, "--shape"),
    ("an unknown method", lambda: command("--method", "recraftt"), 1, "recraft"),
    ("an unknown body", lambda: command("--body", "half"), 1, "frozen"),
    ("data that are not there", lambda: command(target=Path("nowhere.npz")), 1, "nowhere.npz"),
    ("data with NaN", lambda: command(target=data(x=spoiled().numpy())), 1, "sample 3"),
    ("data of one class", lambda: command(target=data(y=np.zeros(20, int))), 1, "two classes"),
    ("data without labels", lambda: command(target=the.file("data.npy", draw(20, 1, 6).numpy())), 1, "no labels"),
    ("data that are text", lambda: command(target=the.letter), 1, "letter"),
)
def test_the_command_refuses(misuse):
    misuse.check()
