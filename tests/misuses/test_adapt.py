"""Misuses of adapt, in Python and as a command: sources, data, labels and options that do not fit."""

from __future__ import annotations

import math
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


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def source() -> ib.Source:
    torch.manual_seed(0)
    return ib.Source(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3))


def adapt(**changes: Any) -> object:
    asked: dict[str, Any] = {
        "source": source(),
        "proxy": (draw(30, 4), torch.arange(30) % 3),
        "train": (draw(20, 1, 6), torch.arange(20) % 2),
        "method": "linear-probe",
        "steps": 1,
    }
    return ib.adapt(**(asked | changes))


def spoiled(place: int = 3) -> Tensor:
    inputs = draw(20, 1, 6)
    inputs[place, 0, 2] = math.nan
    return inputs


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


def too_long() -> object:
    return adapt(source=ib.Source(TokenEmbedder(), TokenBody(), nn.Linear(8, 3)), embedder=ManyTokens())


def in_a_strangers_folder() -> object:
    return adapt(state=the.files({"mine.txt": "mine"}))


@misuses(
    ("all labels are alike", lambda: adapt(train=(draw(20, 1, 6), torch.zeros(20).long())), DataError, "two classes"),
    ("a label below zero", lambda: adapt(train=(draw(20, 1, 6), labels() - 1)), DataError, "-1"),
    ("a test label beyond all", lambda: adapt(test=(draw(4, 1, 6), labels(4) + 5)), DataError, "out of range"),
    ("labels with fractions", lambda: adapt(train=(draw(20, 1, 6), draw(20))), DataError, "regression"),
    ("labels that are names", lambda: adapt(train=(draw(20, 1, 6), NAMES)), DataError, "strings ('saw')"),
    ("a list of names", lambda: adapt(train=(draw(20, 1, 6), NAMES.tolist())), DataError, "strings ('saw')"),
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
    ("more labels than inputs", lambda: adapt(train=(draw(20, 1, 6), labels(21))), ShapeError, "21 labels"),
    ("NaN in an input", lambda: adapt(train=(spoiled(), labels())), DataError, "Row 3"),
    ("NaN in a test input", lambda: adapt(test=(spoiled(7), labels())), DataError, "Row 7"),
    ("no sample at all", lambda: adapt(train=(draw(0, 1, 6), labels(0))), DataError, "no samples"),
    ("too few samples", lambda: adapt(train=(draw(6, 1, 6), labels(6))), DataError, "too few"),
    ("test inputs of another shape", lambda: adapt(test=(draw(4, 1, 9), labels(4))), ShapeError, "(1, 9)"),
    ("unlabelled ones of another shape", lambda: adapt(unlabelled=draw(4, 2, 6)), ShapeError, "(2, 6)"),
    ("inputs with four axes", lambda: adapt(train=(draw(20, 1, 2, 2, 2), labels())), ShapeError, "embedder"),
    ("fields of another shape", lambda: adapt(train=(draw(20, 1, 6), labels()), task="dense"), ShapeError, "channels"),
    ("a target that is too long", too_long, ShapeError, "two tokens"),
    ("a proxy without labels", lambda: adapt(proxy=[draw(30, 4)]), DataError, "no labels"),
    ("a proxy with too few labels", lambda: adapt(proxy=(draw(30, 4), labels(29))), ShapeError, "29 labels"),
    ("a proxy with a label below zero", lambda: adapt(proxy=(draw(30, 4), labels(30) - 1)), DataError, "-1"),
    ("a proxy that is one input", lambda: adapt(proxy=(torch.ones(30, 4), labels(30))), DataError, "same features"),
    ("a source that cannot be divided", lambda: adapt(source=nn.Bilinear(2, 2, 2)), WiringError, "Source(embedder"),
    ("a part that is no module", lambda: ib.Source(nn.Linear(2, 2), "body"), DataError, "body"),  # type: ignore[arg-type]
    ("a pool that is none", lambda: ib.Source(nn.Identity(), nn.Identity(), pool="max"), UnknownNameError, "mean"),  # type: ignore[arg-type]
    ("a method that is none", lambda: adapt(method="recraftt"), UnknownNameError, "recraft"),
    ("a method to compare that is none", lambda: adapt(compare=["orcaa"]), UnknownNameError, "orcaa"),
    ("a task that is none", lambda: adapt(task="words"), UnknownNameError, "classification"),
    ("a predictor that is none", lambda: adapt(predictor="tail"), UnknownNameError, "transport"),
    ("a preset that is none", lambda: adapt(preset="ecgg"), UnknownNameError, "ecg"),
    ("a setting that is none", lambda: adapt(stepps=3), DataError, "stepps"),
    ("no step", lambda: adapt(steps=0), DataError, "steps"),
    ("a rate of nothing", lambda: adapt(rate=0.0), DataError, "rate"),
    ("no time", lambda: adapt(minutes=0), DataError, "minutes"),
    ("a state in a stranger's folder", in_a_strangers_folder, FileError, "mine.txt"),
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
