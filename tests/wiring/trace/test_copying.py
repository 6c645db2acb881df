"""Copies of networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from interbasin.errors import WiringError
from interbasin.wiring.trace.copying import copy_for_evaluation, remember_buffers


def test_a_copy_is_evaluated_and_not_the_network():
    model = nn.Sequential(nn.Dropout(0.5))
    copy = copy_for_evaluation(model)
    assert copy is not model and not copy.training and model.training and model[0].training
    with pytest.raises(WiringError, match="Asked to evaluate a str"):
        copy_for_evaluation("model")


@pytest.mark.filterwarnings("ignore")
def test_buffers_are_put_back_whatever_they_are():
    holder = nn.Module()
    buffers = {
        "plain": torch.zeros(2),
        "whole": torch.zeros(2, dtype=torch.int64),
        "spread": torch.zeros(1).expand(3),
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.zeros(2, device="meta"),
        "nothing": None,
    }
    for name, buffer in buffers.items():
        holder.register_buffer(name, buffer)
    with torch.inference_mode():
        holder.register_buffer("inferred", torch.zeros(2))
    restore = remember_buffers(holder)
    with torch.inference_mode():
        holder.plain += 1
        holder.inferred += 1
        holder.whole, holder.sparse = holder.whole + 1, 2 * holder.sparse
    restore()
    assert all(holder._buffers[name] is buffer for name, buffer in buffers.items())
    assert not any(bool(holder._buffers[name].any()) for name in ("plain", "whole", "spread", "inferred"))
