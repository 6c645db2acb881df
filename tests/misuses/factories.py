"""Functions that a MODEL can name: some make a network, the others are misuses."""

from __future__ import annotations

import sys

import torch
from tests.misuses.things import Net, make_mlp
from torch import nn

import interbasin as ib

NUMBER = 3


def mlp() -> nn.Module:
    return make_mlp()


def mlp_with_inputs() -> tuple[nn.Module, torch.Tensor]:
    return make_mlp(), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def wider_with_inputs() -> tuple[nn.Module, torch.Tensor]:
    return make_mlp(hidden=9), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def deeper_with_inputs() -> tuple[nn.Module, torch.Tensor]:
    return make_mlp(layers=2), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def failing() -> nn.Module:
    raise ValueError("no luck today")


def leaving() -> nn.Module:
    raise SystemExit("enough")


def needing(argument: object) -> nn.Module:
    return make_mlp()


def returning_nothing() -> None:
    return None


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return make_mlp()


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))


class Stubborn(nn.Sequential):
    def _load_from_state_dict(self, *arguments: object) -> None:
        raise KeyError("not so")


def stubborn() -> nn.Module:
    return Stubborn(*make_mlp())


def drawing() -> tuple[nn.Module, torch.Tensor]:
    """A network that is random in evaluation, too."""
    return nn.Sequential(nn.Linear(4, 8), AlwaysDropout(), nn.Linear(8, 3)), torch.ones(6, 4)


def branching() -> tuple[nn.Module, torch.Tensor]:
    return Net(lambda self, x: self.fc(x) if x.sum() > 0 else -self.fc(x), fc=nn.Linear(4, 3)), torch.ones(6, 4)


def sick() -> tuple[nn.Module, torch.Tensor]:
    network = make_mlp()
    with torch.no_grad():
        network[2].weight[1, 2] = float("nan")
    return network, torch.ones(6, 4)


def exiting() -> tuple[nn.Module, torch.Tensor]:
    """A network whose forward leaves the program."""
    return Net(lambda self, x: sys.exit("enough"), fc=nn.Linear(4, 3)), torch.ones(6, 4)


class AlwaysDropout(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5)


def coded() -> tuple[nn.Module, torch.Tensor]:
    """A network whose first weight is codes, as after quantisation."""
    network = make_mlp()
    network[0].weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.int8), requires_grad=False)
    return network, torch.randn(6, 4)


def source_with_inputs() -> tuple[ib.Source, torch.Tensor]:
    network = make_mlp()
    body = nn.Sequential(nn.ReLU(), nn.Linear(8, 8))
    return ib.Source(network[0], body, nn.Linear(8, 3)), mlp_with_inputs()[1]  # type: ignore[index]
