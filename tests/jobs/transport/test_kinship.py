"""What two networks have in common beyond what the same inputs give to any two."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.transport.small import ready, task_of
from tests.jobs.transport.test_judge import batches, task
from torch import Tensor, nn

from interbasin.jobs.transport.kinship import kinship


def test_kinship_does_not_look_at_padding() -> None:
    given = task()
    values = [kinship(given, batches(filler, seed=9)) for filler in (0.0, 50.0)]
    assert values[0] == values[1]


class Placed(nn.Module):
    """Tokens with a table of positions that is much larger than what they say, and a layer behind."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(99)
        self.positions = nn.Parameter(nn.functional.pad(4 * torch.randn(8, 8, generator=generator), (0, width - 8)))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem, self.up, self.down = nn.Linear(4, width), nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) + self.positions
        return x + self.down(torch.relu(self.up(x)))


def placed(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(256, 8, 4, generator=generator, dtype=torch.float64).split(32))


@pytest.mark.slow
def test_networks_that_have_only_positions_in_common_are_not_akin() -> None:
    networks = [ready(Placed(width, seed)) for width, seed in ((8, 0), (10, 1), (8, 0))]
    strangers = task_of(networks[0], networks[1], placed(0), outputs="own")
    assert kinship(strangers, placed(9)).value < 0.1
    itself = task_of(networks[0], networks[2], placed(0), outputs="own")
    assert kinship(itself, placed(9)).value == pytest.approx(1)
