"""Tiny sources and targets, and what every method is given for them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interbasin.jobs.adapt import Source, source_head
from interbasin.jobs.adapt.embedders import TokenEmbedder
from interbasin.jobs.adapt.samples import Samples
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.setup import Setup, prepare_setup
from interbasin.jobs.adapt.source import Fittings
from interbasin.jobs.adapt.task import TargetTask
from interbasin.outcome import Stopwatch

QUICK: dict[str, Any] = {"steps": 2, "align_steps": 2}


@pytest.fixture
def one_recalibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight of the penalty instead of many, where a test is not about it."""
    monkeypatch.setattr(source_head, "WEIGHTS", (1e-2,))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_mlp(*, norm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(10)] if norm else []
        layers = [nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), *middle, nn.ReLU(), nn.Linear(10, 3)]
        model = nn.Sequential(*layers)
        if norm:
            model(3 * torch.randn(64, 6) + 1)  # statistics that are not those of a new one
    return model.eval()


def make_token_source(length: int = 8) -> Source:
    """A source of signals, whose body takes one token for every four points."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        return Source(TokenEmbedder((1, length), length // 4, 6, Fittings()), body, nn.Linear(6, 3))


def make_proxy(count: int = 40) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 3
    return draw(count, 6) + 2 * torch.nn.functional.one_hot(labels, 6), labels


def make_target(count: int = 30, kind: str = "classification") -> tuple[Tensor, Tensor]:
    """Signals of eight points, with labels of a kind that depend on them."""
    inputs = draw(count, 1, 8, seed=1)
    labels = {
        "classification": (inputs[:, 0, 0] > 0).long() + (inputs[:, 0, 1] > 0.5),
        "multilabel": (inputs[:, 0, :3] > 0).float(),
        "regression": inputs[:, 0, :2] + 1,
        "dense": inputs.flip(2) + 1,
    }
    return inputs, labels[kind]


def make_setup(
    source: Source | nn.Module | None = None,
    kind: str = "classification",
    *,
    proxy: Any = None,
    target: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Setup:
    """What methods are given, for a tiny source and target."""
    source = make_mlp() if source is None else source
    inputs, labels = make_target(kind=kind) if target is None else target
    task = TargetTask.of(kind, labels, seed=seed)
    return prepare_setup(
        source if isinstance(source, Source) else Source.of(source),
        make_proxy() if proxy is None else proxy,
        task,
        Samples(inputs, task.require(labels, "the data")),
        unlabelled=None,
        settings=Settings(**{**QUICK, **settings}),
        embedder=None,
        seed=seed,
        watch=Stopwatch(),
    )


def bits(module: nn.Module) -> dict[str, Tensor]:
    """All tensors of a module, as they are now."""
    return copy.deepcopy(module.state_dict())


def same_bits(module: nn.Module, before: dict[str, Tensor]) -> bool:
    now = module.state_dict()
    return list(now) == list(before) and all(torch.equal(now[name], before[name]) for name in now)
