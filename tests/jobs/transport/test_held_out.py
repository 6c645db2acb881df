"""Data that are read more than once: what is refused, and what is no fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from interbasin.errors import DataError
from interbasin.jobs.transport.held_out import Steady


def test_minus_infinity_in_a_mask_is_no_fault() -> None:
    mask = torch.zeros(4, 3).masked_fill(torch.arange(3) > 1, -torch.inf)
    batch = {"x": torch.zeros(4, 3), "attention_mask": mask, "labels": torch.zeros(4)}
    assert [list(part) for part in Steady([batch], "data")] == [["x", "attention_mask"]]
    assert [list(part) for part in Steady([batch], "data", labelled=True)] == [list(batch)]
    with pytest.raises(DataError, match=r"data hold NaN or infinity \(x in batch 0, 6 of 12 numbers\)"):
        list(Steady([{**batch, "x": torch.where(torch.arange(12).reshape(4, 3) < 6, torch.inf, 0.0)}], "data"))


@pytest.mark.parametrize("later", [1, 4])
def test_data_of_another_length_each_time_are_refused(later: int) -> None:
    class Changing:
        reads = 0

        def __iter__(self) -> Iterator[Tensor]:
            self.reads += 1
            return iter([torch.full((2, 3), float(number)) for number in range(3 if self.reads < 3 else later)])

    data = Steady(Changing(), "data")
    assert len(list(data)) == len(list(data)) == 3
    with pytest.raises(DataError, match=rf"The data had 3 batches when they were read before, and {later} now"):
        list(data)


def test_reading_the_first_batch_only_is_no_change() -> None:
    data = Steady([torch.zeros(2, 3), torch.ones(2, 3)], "data")
    for _ in range(2):
        next(iter(data))
        assert len(list(data)) == 2
