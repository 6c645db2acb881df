"""The transport of task vectors as it was published (arXiv:2602.12952), written anew and vectorised.

Every module that holds parameters has its input and its output hooked, in both networks, and what the hooks see is held
as float64 (`published_recording` drops it after each batch, as appendix D of the paper says; the published code took
6.0 GB on one batch, which is this). Then algorithm 1, for the weight of every linear layer, and for queries, keys
and values apart where one weight holds them: centred cross-covariances of both sides, a thin singular value
decomposition of each, and ``T_out^T tau T_in``. Whatever has no matrix (gains, positions, convolutions) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Held:
    """What goes into and comes out of every module with parameters of its own, all batches, in float64."""

    model: nn.Module
    seen: dict[str, list[Tensor]] = field(default_factory=dict)

    @torch.inference_mode()
    def run(self, batches: Iterable[Tensor]) -> dict[str, list[Tensor]]:
        handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in self.model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        ]
        try:
            for batch in batches:
                self.model(batch)
        finally:
            for handle in handles:
                handle.remove()
        return self.seen

    def _hook(self, name: str) -> Any:
        def hear(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            for side, tensor in (("input", inputs[0]), ("output", output)):
                self.seen.setdefault(f"{name}:{side}", []).append(rows(tensor.detach()).to(torch.float64))

        return hear


def rows(activation: Tensor) -> Tensor:
    """Tokens as rows; channels of images are the width."""
    if activation.ndim == 4:
        activation = activation.permute(0, 2, 3, 1)
    return activation.reshape(-1, activation.shape[-1])


def segments(name: str, module: nn.Module) -> Iterator[tuple[str, slice]]:
    """The matrices in a weight: three in a fused one of queries, keys and values."""
    width = module.out_features if isinstance(module, nn.Linear) else 0
    parts = 3 if name.endswith("qkv") else 1
    for number in range(parts):
        yield f"{name}[{number}]", slice(number * width // parts, (number + 1) * width // parts)


def cross(source: list[Tensor], target: list[Tensor], ours: slice, theirs: slice) -> Tensor:
    """The centred cross-covariance, source by target."""
    total, sums, count = None, [0.0, 0.0], 0
    for x, y in zip(source, target, strict=True):
        x, y = x[:, ours], y[:, theirs]
        product = x.mT @ y
        total = product if total is None else total + product
        sums = [sums[0] + x.sum(0), sums[1] + y.sum(0)]
        count += len(x)
    assert total is not None
    return total - torch.outer(sums[0], sums[1]) / count  # type: ignore[arg-type]


def isometry(covariance: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(covariance, full_matrices=False)
    return left @ right


@dataclass
class Carried:
    """The update, and the objective ``tr(T^T C)`` of both sides of every matrix."""

    update: dict[str, Tensor]
    objectives: dict[str, float]


def transport(source: nn.Module, target: nn.Module, update: Mapping[str, Tensor], batches: Iterable[Tensor]) -> Carried:
    """The update for the target, by the name of its weight or bias."""
    batches = list(batches)
    activations = Held(source).run(batches), Held(target).run(batches)
    others = dict(target.named_modules())
    found: dict[str, Tensor] = {}
    objectives: dict[str, float] = {}
    for name, module in source.named_modules():
        if not isinstance(module, nn.Linear) or f"{name}.weight" not in update:
            continue
        weights, biases = [], []
        pairs = zip(segments(name, module), segments(name, others[name]), strict=True)
        for (label, ours), (_, theirs) in pairs:
            maps = []
            for side in ("input", "output"):
                whole = slice(None)
                columns = (whole, whole) if side == "input" else (ours, theirs)
                covariance = cross(*(held[f"{name}:{side}"] for held in activations), *columns)
                maps.append(isometry(covariance))
                objectives[f"{label}:{side}"] = float((maps[-1] * covariance).sum())
            weights.append(maps[1].mT @ update[f"{name}.weight"][ours].double() @ maps[0])
            if f"{name}.bias" in update:
                biases.append(update[f"{name}.bias"][ours].double() @ maps[1])
        found[f"{name}.weight"] = torch.cat(weights).float()
        if biases:
            found[f"{name}.bias"] = torch.cat(biases).float()
    return Carried(found, objectives)
