"""Data that are read more than once: what is refused, and what is no fault."""

from __future__ import annotations

import pytest
import torch

from interbasin.errors import DataError
from interbasin.jobs.transport.held_out import Steady


def test_minus_infinity_in_a_mask_is_no_fault() -> None:
    mask = torch.zeros(4, 3).masked_fill(torch.arange(3) > 1, -torch.inf)
    batch = {"x": torch.zeros(4, 3), "attention_mask": mask, "labels": torch.zeros(4)}
    assert [list(part) for part in Steady([batch], "data")] == [["x", "attention_mask"]]
    assert [list(part) for part in Steady([batch], "data", labelled=True)] == [list(batch)]
    with pytest.raises(DataError, match=r"data hold NaN or infinity \(x in batch 0, 6 of 12 numbers\)"):
        list(Steady([{**batch, "x": torch.where(torch.arange(12).reshape(4, 3) < 6, torch.inf, 0.0)}], "data"))
