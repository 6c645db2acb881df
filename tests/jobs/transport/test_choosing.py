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
from interbasin.jobs.transport.choosing import Referee


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
