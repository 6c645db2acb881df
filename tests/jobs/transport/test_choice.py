"""What methods are chosen by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from interbasin import transport
from interbasin.errors import DataError
from interbasin.jobs.transport import choice
from interbasin.jobs.transport.choice import Candidate, Referee
from interbasin.jobs.transport.judge import relative_gain


def judge(value: float, weight: float = 1.0) -> Any:
    task = SimpleNamespace(options=SimpleNamespace(generic_weight=weight))
    return SimpleNamespace(task=task, losses=lambda model: np.full(4, value))


def test_what_is_forgotten_counts_with_its_weight():
    assert Referee(judge(0.5)).score(nn.Identity()) == 0.5
    assert Referee(judge(0.5, weight=2.0), keeping=judge(0.25)).score(nn.Identity()) == 1.0


def test_a_fault_of_the_data_is_said_once_and_not_for_every_method():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(DataError, match=r"^No input is left to judge by"):
        transport(net, {"2.weight": torch.ones(2, 8)}, net, torch.randn(3, 4))


def test_a_handful_of_held_out_inputs_is_remarked_on():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    asked = (net, {"2.weight": torch.ones(2, 8)}, net)
    few, many = (transport(*asked, torch.randn(count, 4), method="direct") for count in (8, 160))
    assert any(note.startswith("Only 2 inputs could be held out") for note in few.notes)
    assert not any("held out" in note for note in many.notes)


# ---------------------------------------------------------------------- a copy, and something better


class Answers(nn.Module):
    """A network that is judged by numbers."""

    def __init__(self, task: float, forgets: float = 0.0, labels: float = 0.0) -> None:
        super().__init__()
        self.task, self.forgets, self.labels = task, forgets, labels


def candidate_of(method: str, model: Answers, referee: Any) -> Candidate:
    losses = referee.judge.losses(model)
    effect = relative_gain(referee.judge.before, losses)
    return Candidate(method, "", 1.0, None, effect, losses, referee.score(model))  # type: ignore[arg-type]


def chosen(monkeypatch: pytest.MonkeyPatch, models: dict[str, Answers], **referee: Any) -> str:
    """What is chosen where methods make these models, of a target at a distance of 1."""
    options = SimpleNamespace(generic_weight=1.0, seed=0)
    target = Answers(1.0, 0.0, 1.0)
    task: Any = SimpleNamespace(
        options=options, bases=SimpleNamespace(target=target, shares_outputs=True), readout=None, update={}
    )

    def losses_of(name: str) -> Any:
        return SimpleNamespace(
            task=task, before=np.ones(200), losses=lambda model: np.full(200, float(getattr(model, name)))
        )

    if referee.pop("keeps", False):
        referee["keeping"] = losses_of("forgets")
    judged = Referee(losses_of("task"), **referee)
    monkeypatch.setattr(choice, "METHODS", {name: SimpleNamespace(name=name) for name in models})
    monkeypatch.setattr(choice, "_same_shapes", lambda task: True)
    monkeypatch.setattr(choice, "alphas_for", lambda *rest: (1.0,))
    monkeypatch.setattr(choice, "performance", lambda model, *rest: SimpleNamespace(loss=model.labels))
    monkeypatch.setattr(
        choice, "try_method", lambda task, referee, name, *rest: candidate_of(name, models[name], referee)
    )
    for method in choice.METHODS.values():
        method.variant, method.function = (lambda given: ""), None  # type: ignore[attr-defined]
    return choice.choose(task, judged, None)[0].method


def test_a_copy_that_is_as_good_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, {"regression": Answers(0.10), "direct": Answers(0.11)}) == "direct"
    assert chosen(monkeypatch, {"regression": Answers(0.10), "direct": Answers(0.13)}) == "regression"


def test_a_copy_that_forgets_more_is_not_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"regression": Answers(0.10, forgets=0.0), "direct": Answers(0.10, forgets=0.5)}
    assert chosen(monkeypatch, models, keeps=True) == "regression"
    assert chosen(monkeypatch, models) == "direct"


def test_with_labels_a_copy_has_to_be_as_good_by_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"regression": Answers(0.10, labels=0.2), "direct": Answers(0.10, labels=0.6)}
    assert chosen(monkeypatch, models, validate=[1]) == "regression"
    models = {"regression": Answers(0.10, labels=0.2), "direct": Answers(0.40, labels=0.2)}
    assert chosen(monkeypatch, models, validate=[1]) == "direct"
