"""Copies of networks."""

from __future__ import annotations

import pytest
from torch import nn

from interbasin.errors import WiringError
from interbasin.wiring.trace.copying import copy_for_evaluation


def test_a_copy_is_evaluated_and_not_the_network():
    model = nn.Sequential(nn.Dropout(0.5))
    copy = copy_for_evaluation(model)
    assert copy is not model and not copy.training and model.training and model[0].training
    with pytest.raises(WiringError, match="Asked to evaluate a str"):
        copy_for_evaluation("model")
