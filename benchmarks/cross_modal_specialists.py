"""Specialists beside the cross-modal methods: small networks made for fields, and MiniRocket for time series.

All have some tens of thousands of parameters, and see the same labelled samples as every method.

- ``fno``: a Fourier neural operator [li:21]: layers that act on the lowest waves of a field, with a pointwise path;
- ``unet``: an encoder and a decoder of convolutions over three scales; fields of the equations in one
  dimension are periodic, and so is its padding there;
- ``pinn``: what a physics-informed network is where initial fields change from sample to sample: a
  DeepONet, that is, the inner product of a network of the initial field and one of place and time, trained on the field
  at the last time, on the initial field at the first, and on the equation's residual at random places and times
  between. It exists where the residual is known here: advection, Burgers, reaction-diffusion in one dimension;
- ``minirocket``: PyPI's `aeon`, in an environment of its own (`benchmarks/peers/minirocket.txt`).

Networks are trained by AdamW in one cycle, 16 samples at a time, for as many steps as the networks of the methods, and
for ten times as many (``fno-10x``; of two rates instead of three). The rate, and the weight of the residual, are chosen
by the error on a fifth of the labelled samples; then the network is trained on all of them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from cross_modal_targets import Target
from interbasin.datasets.equations import EQUATIONS
from peers import peer_python

BATCH = 16
RATES = (1e-3, 3e-3, 1e-2)
RESIDUAL_WEIGHTS = (1e-3, 1e-1)
HELD = 0.2  # of the labelled samples, for the choice
LONGER, LONG = 10, 1000  # times as many steps; steps from which on fewer rates are tried
PLACES = 64  # at which an equation's residual is taken

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


# ---------------------------------------------------------------------- Fourier neural operator


class SpectralLayer(nn.Module):
    """A linear map of the lowest waves of a field, and a pointwise one of the field."""

    def __init__(self, width: int, modes: int, axes: int) -> None:
        super().__init__()
        self.modes, self.axes = modes, axes
        corners = 2 ** (axes - 1)  # waves of either sign along all axes but the last
        self.weight = nn.Parameter(torch.randn(corners, width, width, *[modes] * axes, 2) / width)
        self.pointwise = nn.Conv1d(width, width, 1)

    def forward(self, field: Tensor) -> Tensor:
        places = field.shape[2:]
        waves = torch.fft.rfftn(field, dim=tuple(range(2, field.ndim)), norm="forward")
        changed = torch.zeros_like(waves)
        for weight, corner in zip(torch.view_as_complex(self.weight), self._corners(), strict=True):
            changed[corner] = torch.einsum("nc...,cd...->nd...", waves[corner], weight)
        out = torch.fft.irfftn(changed, s=places, dim=tuple(range(2, field.ndim)), norm="forward")
        return out + self.pointwise(field.flatten(2)).view_as(field)

    def _corners(self) -> list[tuple[Any, ...]]:
        low, high, whole = slice(0, self.modes), slice(-self.modes, None), slice(None)
        return [(whole, whole, low)] if self.axes == 1 else [(whole, whole, low, low), (whole, whole, high, low)]


class FourierOperator(nn.Module):
    """Fields -> fields; places are channels of the input as well."""

    def __init__(self, axes: int, width: int, modes: int, depth: int = 4) -> None:
        super().__init__()
        self.axes = axes
        self.lift = nn.Linear(1 + axes, width)
        self.layers = nn.ModuleList(SpectralLayer(width, modes, axes) for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, field: Tensor) -> Tensor:
        axes = [torch.linspace(0, 1, size, device=field.device) for size in field.shape[2:]]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(field), *[-1] * (self.axes + 1))
        state = self.lift(torch.cat([field, places], 1).movedim(1, -1)).movedim(-1, 1)
        for index, layer in enumerate(self.layers):
            state = layer(state)
            state = F.gelu(state) if index < len(self.layers) - 1 else state
        out: Tensor = self.out(state.movedim(1, -1)).movedim(-1, 1)
        return out


# ---------------------------------------------------------------------- U-Net


class UNet(nn.Module):
    """Two convolutions on each of three scales, down and up again, with what was there on the way down."""

    def __init__(self, axes: int, width: int) -> None:
        super().__init__()
        self.axes = axes
        convolution: Any = nn.Conv1d if axes == 1 else nn.Conv2d
        make = partial(convolution, kernel_size=3, padding=1, padding_mode="circular" if axes == 1 else "zeros")

        def pair(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(make(before, after), nn.GELU(), make(after, after), nn.GELU())

        self.down = nn.ModuleList([pair(1, width), pair(width, 2 * width), pair(2 * width, 2 * width)])
        self.up = nn.ModuleList([pair(4 * width, width), pair(2 * width, width)])
        self.last = convolution(width, 1, 1)

    def forward(self, field: Tensor) -> Tensor:
        pool, mode = (F.avg_pool1d, "linear") if self.axes == 1 else (F.avg_pool2d, "bilinear")
        kept = []
        for depth, block in enumerate(self.down):
            field = block(field if depth == 0 else pool(field, 2))
            kept.append(field)
        for block, beside in zip(self.up, reversed(kept[:-1]), strict=True):
            field = block(torch.cat([F.interpolate(field, beside.shape[2:], mode=mode), beside], 1))
        out: Tensor = self.last(field)
        return out


# ---------------------------------------------------------------------- DeepONet with the equation's residual


class PhysicsNetwork(nn.Module):
    """The field at any place and time, from the initial field at the points of the data.

    Args:
        points: Of the initial field.
        width: Of hidden layers, and number of the products that are summed.
        waves: Of place, that the network of place and time sees: all it says is periodic.
    """

    def __init__(self, points: int, width: int = 64, waves: int = 8) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Linear(points, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.trunk = nn.Sequential(
            nn.Linear(2 * waves + 1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)
        )
        self.bias = nn.Parameter(torch.zeros(()))
        self.register_buffer("numbers", 2 * math.pi * torch.arange(1, waves + 1))

    def basis(self, place: Tensor, moment: Tensor) -> Tensor:
        angles = place[:, None] * self.numbers
        out: Tensor = self.trunk(torch.cat([angles.sin(), angles.cos(), moment[:, None]], 1))
        return out

    def at(self, field: Tensor, basis: Tensor) -> Tensor:
        """Values, or derivatives where ``basis`` holds those."""
        return self.branch(field.flatten(1)) @ basis.mT / math.sqrt(basis.shape[1])

    def forward(self, field: Tensor) -> Tensor:
        return self.at_moment(field, 1.0)

    def at_moment(self, field: Tensor, moment: float) -> Tensor:
        places = torch.arange(field.shape[-1]) / field.shape[-1]
        basis = self.basis(places, torch.full_like(places, moment))
        return (self.at(field, basis) + self.bias)[:, None]


def residual(network: PhysicsNetwork, field: Tensor, target: Target, generator: torch.Generator) -> Tensor:
    """What is left of the equation at random places and times, in deviations of the output; time runs from 0 to 1."""
    place, moment = torch.rand(2, PLACES, generator=generator)
    ones, zeros = torch.ones(PLACES), torch.zeros(PLACES)
    values, by_time = jvp(network.basis, (place, moment), (zeros, ones))

    def slope(place: Tensor) -> Tensor:
        return jvp(network.basis, (place, moment), (ones, zeros))[1]

    by_place, curvature = jvp(slope, (place,), (ones,))
    mean, deviation = target.scales[1]
    u = mean + deviation * (network.at(field, values) + network.bias)
    u_t, u_x, u_xx = (deviation * network.at(field, basis) for basis in (by_time, by_place, curvature))
    numbers = EQUATIONS[target.name].numbers
    if target.name == "advection":
        rate = -numbers["speed"] * u_x
    elif target.name == "burgers":
        rate = numbers["viscosity"] / math.pi * u_xx - u * u_x
    else:
        rate = numbers["diffusion"] * u_xx + numbers["growth"] * u * (1 - u)
    return (u_t - numbers["time"] * rate) / deviation


def physics_loss(target: Target, weight: float, seed: int) -> Loss:
    generator = torch.Generator().manual_seed(seed)
    (mean_in, deviation_in), (mean_out, deviation_out) = target.scales

    def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(network, PhysicsNetwork)
        first = (mean_in + deviation_in * x - mean_out) / deviation_out  # the initial field, as outputs are scaled
        start = F.mse_loss(network.at_moment(x, 0.0), first)
        remainder = residual(network, x, target, generator).square().mean()
        return F.mse_loss(network(x), y) + start + weight * remainder

    return loss


# ---------------------------------------------------------------------- training and choosing


def plain_loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(network(x), y)


def build(name: str, target: Target, seed: int) -> nn.Module:
    """A network for the fields of a target."""
    axes = target.train[0].ndim - 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "fno":
            modes = min(12, target.train[0].shape[-1] // 2) if axes == 1 else 5
            return FourierOperator(axes, 24 if axes == 1 else 12, modes)
        if name == "unet":
            return UNet(axes, 24 if axes == 1 else 16)
        return PhysicsNetwork(target.train[0].shape[-1])


def fit(network: nn.Module, x: Tensor, y: Tensor, loss: Loss, *, steps: int, rate: float, seed: int) -> nn.Module:
    """The network, trained in place: whole passes over the samples in new orders, until there were so many steps."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    waiting: list[Tensor] = []
    for _ in range(steps):
        waiting = waiting or list(torch.randperm(len(x), generator=generator).split(BATCH))
        rows = waiting.pop()
        optimiser.zero_grad()
        loss(network, x[rows], y[rows]).backward()
        optimiser.step()
        schedule.step()
    return network


def run_network(name: str, target: Target, steps: int, seed: int) -> dict[str, Any]:
    """The errors of a specialist network, and how it was chosen."""
    started = time.process_time()
    x, y = target.train
    held = max(1, round(HELD * len(x)))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    fitted_rows, judged = order[held:], order[:held]
    rates = RATES if steps < LONG else RATES[1:]
    weights = RESIDUAL_WEIGHTS if name == "pinn" else (0.0,)
    errors: dict[tuple[float, float], float] = {}

    def train_on(rows: Tensor, rate: float, weight: float) -> nn.Module:
        loss = physics_loss(target, weight, seed) if name == "pinn" else plain_loss
        return fit(build(name, target, seed), x[rows], y[rows], loss, steps=steps, rate=rate, seed=seed)

    for rate in rates:
        for weight in weights:
            errors[rate, weight] = error_of(train_on(fitted_rows, rate, weight), target, x[judged], y[judged])
    # What is not finite is worse than all else.
    rate, weight = min(errors, key=lambda key: errors[key] if math.isfinite(errors[key]) else math.inf)
    network = train_on(order, rate, weight)
    return {
        "error_valid": errors[rate, weight],
        "error_test": error_of(network, target, *target.test),
        "rate": rate,
        **({"residual_weight": weight} if name == "pinn" else {}),
        "trials": len(errors),
        "steps": steps,
        "parameters": sum(tensor.numel() for tensor in network.parameters()),
        "seconds": {"all": time.process_time() - started},
    }


def error_of(network: nn.Module, target: Target, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return target.error_of(network(x), y)


def run_minirocket(target: Target, seed: int) -> dict[str, Any]:
    python = peer_python("minirocket", shares_versions=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        (x, y), (x_test, y_test) = target.train, target.test
        np.savez(path, x=x.double(), y=y, x_test=x_test.double(), y_test=y_test)
        script = Path(__file__).parent / "peers" / "run_minirocket.py"
        words = [str(python), str(script), str(path), str(seed)]
        run = subprocess.run(words, capture_output=True, text=True, check=True)
    answer = json.loads(run.stdout.splitlines()[-1])
    return {"error_valid": None, "error_test": answer["error"], "seconds": {"all": answer["seconds"]}}


def specialists_of(target: Target) -> list[str]:
    """Names of the rows that there are for a target."""
    if target.name.startswith("ecg"):
        return ["minirocket"]
    if target.task != "dense":
        return []
    names = ["fno", "unet", *(["pinn"] if target.name in ("advection", "burgers", "reaction-diffusion") else [])]
    return [*names, *(f"{name}-{LONGER}x" for name in names)]


def run_specialist(name: str, target: Target, steps: int, seed: int) -> dict[str, Any]:
    """A row of the table."""
    if name == "minirocket":
        return run_minirocket(target, seed)
    longer = name.endswith(f"-{LONGER}x")
    return run_network(name.removesuffix(f"-{LONGER}x"), target, LONGER * steps if longer else steps, seed)
