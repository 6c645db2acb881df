"""Misuses of ``ib.adapt``: sources that cannot be divided, proxies that say nothing, targets that are no task."""

from __future__ import annotations

import math

import torch
from tests.misuses.table import misuses, the
from torch import Tensor, nn

import interbasin as ib
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError, WiringError


@the.keeps
def source_of_adapt() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3))


@the.keeps
def proxy_of_adapt() -> tuple[Tensor, Tensor]:
    return torch.randn(30, 6), torch.arange(30) % 3


@the.keeps
def target_of_adapt() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 1, 8), torch.arange(20) % 2


def adapt(source: object = None, proxy: object = ..., train: object = ..., **options: object) -> object:
    source = the.source_of_adapt if source is None else source
    proxy = the.proxy_of_adapt if proxy is ... else proxy
    train = the.target_of_adapt if train is ... else train
    return ib.adapt(source, proxy, train, **{"steps": 1, "align_steps": 1, **options})


def target(inputs: object = ..., labels: object = ...) -> tuple[object, object]:
    own = the.target_of_adapt
    return own[0] if inputs is ... else inputs, own[1] if labels is ... else labels


def spoilt(values: Tensor, row: int, value: float) -> Tensor:
    values = values.clone()
    values.reshape(len(values), -1)[row, 0] = value
    return values


@misuses(
    ("a layer for a source", lambda: adapt(nn.Linear(6, 3)), WiringError, "Source(embedder, body, head)"),
    ("a name for a source", lambda: adapt("bert"), WiringError, "Source(embedder, body, head)"),
    ("a proxy without labels", lambda: adapt(proxy=the.proxy_of_adapt[0]), DataError, "no labels"),
    ("no proxy", lambda: adapt(proxy=None), DataError, "NoneType"),
    (
        "NaN in the proxy",
        lambda: adapt(proxy=(spoilt(the.proxy_of_adapt[0], 4, math.nan), the.proxy_of_adapt[1])),
        DataError,
        "Row 4",
    ),
    (
        "a proxy of another modality",
        lambda: adapt(proxy=(the.proxy_of_adapt[0][:, :4], the.proxy_of_adapt[1])),
        DataError,
        "(30, 4)",
    ),
    ("no training data", lambda: adapt(train=None), DataError, "NoneType"),
    ("training data without labels", lambda: adapt(train=the.target_of_adapt[0]), DataError, "no labels"),
    ("a target of one class", lambda: adapt(train=target(labels=torch.ones(20))), DataError, "at least two classes"),
    ("a label below zero", lambda: adapt(train=target(labels=spoilt(torch.arange(20), 3, -1))), DataError, "row 3"),
    ("classes between classes", lambda: adapt(train=target(labels=torch.rand(20))), DataError, "regression"),
    ("years for classes", lambda: adapt(train=target(labels=torch.arange(20) + 2000)), DataError, "2019"),
    (
        "NaN in the target",
        lambda: adapt(train=target(spoilt(the.target_of_adapt[0], 7, math.nan))),
        DataError,
        "Row 7 of the inputs of the training data",
    ),
    (
        "NaN in labels",
        lambda: adapt(train=target(labels=spoilt(torch.rand(20), 2, math.nan)), task="regression"),
        DataError,
        "Row 2 of the labels",
    ),
    ("nine samples", lambda: adapt(train=tuple(part[:9] for part in target())), DataError, "9 labelled samples"),
    ("inputs of no axes", lambda: adapt(train=target(torch.rand(20))), ShapeError, "(samples, 1)"),
    ("inputs of five axes", lambda: adapt(train=target(torch.rand(20, 1, 2, 2, 2))), ShapeError, "(1, 2, 2, 2)"),
    ("inputs without a scale", lambda: adapt(train=target(1e20 * the.target_of_adapt[0])), DataError, "spread"),
    ("a task that there is none", lambda: adapt(task="ranking"), UnknownNameError, "regression"),
    ("a metric of another task", lambda: adapt(metric="nrmse"), UnknownNameError, "auroc"),
    ("a method that there is none", lambda: adapt(method="recaft"), UnknownNameError, "recraft"),
    ("a preset that there is none", lambda: adapt(preset="burgers"), UnknownNameError, "pde-burgers"),
    ("an option that there is none", lambda: adapt(stepz=3), DataError, "stepz"),
    ("no minutes", lambda: adapt(minutes=0), DataError, "minutes"),
    ("a seed in words", lambda: adapt(seed="lucky"), DataError, "seed"),
    ("progress in words", lambda: adapt(progress="loud"), DataError, "progress"),
    ("test labels out of range", lambda: adapt(test=target(labels=torch.arange(20))), DataError, "row 2"),
    ("test inputs of another length", lambda: adapt(test=target(torch.rand(20, 1, 9))), ShapeError, "(1, 9)"),
    ("one validation sample", lambda: adapt(valid=tuple(part[:1] for part in target())), DataError, "at least 2"),
    ("unlabelled inputs of another length", lambda: adapt(unlabelled=torch.rand(5, 1, 9)), ShapeError, "(1, 9)"),
    (
        "an embedder that feeds no body",
        lambda: adapt(embedder=nn.Sequential(nn.Flatten(), nn.Linear(8, 9))),
        ShapeError,
        "embedder",
    ),
    ("an embedder that learns nothing", lambda: adapt(embedder=nn.Flatten()), DataError, "no parameters"),
    (
        "classes carried over to numbers",
        lambda: adapt(train=target(labels=torch.rand(20)), task="regression", predictor="transport"),
        DataError,
        "head",
    ),
    ("a state over someone's folder", lambda: adapt(state=the.someones_folder), FileError, "other things"),
    ("a state over a file", lambda: adapt(state=the.letter), FileError, "which is a file"),
)
def test_an_adaptation_that_cannot_be_made_is_refused(misuse):
    misuse.check()
