"""A small training with everything that a checkpoint has to hold: dropout, batch norm, a schedule, a best look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from interbasin.training import Checkpoint, ShuffledRows, Training, train

COUNT = 22


def rows_and_labels() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(COUNT, 3, generator=generator)
    return inputs, inputs.sum(-1, keepdim=True).sin()


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 1))


@dataclass
class Fit:
    """One training of the network; ``stop_at`` is the batch, counted over all, at which it breaks off."""

    loader: str = "rows"
    options: dict[str, Any] = field(default_factory=dict)
    stop_at: int | None = None
    stop: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.model = network()
        self.kept: dict[str, Tensor] = {}
        self.seen = 0

    def run(self, checkpoint: Checkpoint | None = None) -> Training:
        inputs, labels = rows_and_labels()
        data: Any = ShuffledRows(COUNT, 5, seed=3)
        if self.loader == "loader":
            data = DataLoader(TensorDataset(inputs, labels), batch_size=5, shuffle=True)
        elif self.loader == "list":
            data = list(zip(torch.split(inputs, 5), torch.split(labels, 5), strict=True))

        def loss(batch: Any, index: int) -> Tensor:
            if self.seen == self.stop_at:
                if self.stop is not None:
                    self.stop()
                raise KeyboardInterrupt
            self.seen += 1
            x, y = (inputs[batch], labels[batch]) if self.loader == "rows" else batch
            return nn.functional.mse_loss(self.model(x), y)

        def evaluate() -> float:
            self.model.eval()
            with torch.no_grad():
                score = float((self.model(inputs) - labels).square().mean())
            self.model.train()
            return score + float(torch.rand(()))  # a look may draw, too

        def keep() -> None:
            self.kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

        options = {"rate": 0.02, "seed": 7, "evaluate": evaluate, "keep": keep, "bar": 3.0} | self.options
        return train(
            self.model.parameters(), data, loss, buffers=self.model.buffers(), checkpoint=checkpoint, **options
        )


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
