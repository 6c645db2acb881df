"""How near networks are judged to be: padding does not count, whatever the measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.jobs.transport.small import ready, task_of, tuned
from torch import Tensor, nn

from interbasin.jobs.transport.judge import Judge
from interbasin.jobs.transport.task import Options


class Masked(nn.Module):
    """A residual block on each token alone; which tokens are padding is said, and makes no difference to others."""

    def __init__(self, width: int, seed: int, step: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem, self.head = nn.Linear(4, width), nn.Linear(width, 3)
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 12), nn.Linear(12, width)
        self.step = step

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.stem(x[:, :: self.step])
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def batches(filler: float, seed: int = 0) -> list[dict[str, Tensor]]:
    """Sixteen inputs each, whose last tokens are padding: two of the first half, four of the others."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(16, 8, dtype=torch.long)
    mask[:8, -2:] = 0
    mask[8:, -4:] = 0
    parts = []
    for _ in range(3):
        x = torch.randn(16, 8, 4, generator=generator, dtype=torch.float64)
        parts.append({"x": torch.where(mask[..., None] == 1, x, filler), "attention_mask": mask})
    return parts


def task(**options: Any) -> Any:
    networks = ready(Masked(8, 0)), ready(Masked(10, 1))
    return task_of(*networks, batches(0.0), outputs=options.pop("outputs", "own"), options=Options(**options))


@pytest.mark.parametrize("outputs", ["own", "shared"])
def test_padding_is_not_judged(outputs: str) -> None:
    given = task(outputs=outputs)
    changed = tuned(given.bases.target)
    losses = [Judge(given, batches(filler, seed=9)).losses(changed) for filler in (0.0, 50.0)]
    assert losses[0].shape == (48,)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    every = replace(given, options=replace(given.options, mask=False))
    counted = [Judge(every, batches(filler, seed=9)).losses(changed) for filler in (0.0, 50.0)]
    assert not np.allclose(*counted, rtol=0.1)


def test_the_measure_in_the_last_space_is_a_mean_over_the_tokens_that_count() -> None:
    given = task()
    changed, held = tuned(given.bases.target), batches(0.0, seed=9)[:1]
    whole = Judge(given, held).losses(changed)
    cut = [{name: value[row : row + 1, :length] for name, value in held[0].items()} for row, length in ((0, 6), (8, 4))]
    alone = Judge(given, cut).losses(changed)
    np.testing.assert_allclose(whole[[0, 8]], alone, rtol=1e-9)


class Inside(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return self.body(x, attention_mask)


def test_padding_is_left_out_of_the_means_of_networks_with_other_tokens() -> None:
    networks = ready(Masked(8, 0)), ready(Inside(Masked(10, 1, step=2)))

    def mask(inputs: Any) -> dict[str, Tensor]:
        whole = inputs["attention_mask"]
        return {"body": whole[:, ::2], **dict.fromkeys(("stem", "norm", "up", "down", "head"), whole)}

    given = task_of(*networks, batches(0.0), outputs="own", options=Options(tokens="mean", mask=mask))
    losses = [Judge(given, batches(filler, seed=9)).losses(networks[1]) for filler in (0.0, 50.0)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
