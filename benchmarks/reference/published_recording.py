"""Recording as it was published with the transport of task vectors (arXiv:2602.12952), written anew and vectorised.

Every module that holds parameters has its input and its output hooked, in both networks. What the hooks see is kept
until both networks have seen the batch. Then each pair of equal names is brought to float64 and the products and sums
are added to those of the batches before: nothing is kept from batch to batch, as there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Sums:
    """Uncentred sums of one pair of activations, rows of the source by columns of the target."""

    cross: Tensor
    source: Tensor
    target: Tensor
    count: int

    def centred(self) -> Tensor:
        """The cross-product about the means, ``(target, source)``."""
        return (self.cross - torch.outer(self.source, self.target) / self.count).mT


class Hooks:
    """What goes into and comes out of every module with parameters of its own, since the last `clear`."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[str, Tensor] = {}
        self.handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        ]

    def _hook(self, name: str) -> Any:
        def hear(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self.seen[f"{name}:input"] = inputs[0].detach()
            self.seen[f"{name}:output"] = output.detach()

        return hear

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def rows(activation: Tensor) -> Tensor:
    """Tokens as rows; channels of images are the width."""
    if activation.ndim == 4:
        activation = activation.permute(0, 2, 3, 1)
    return activation.reshape(-1, activation.shape[-1])


@torch.inference_mode()
def record(source: nn.Module, target: nn.Module, batches: Iterable[Tensor]) -> dict[str, Sums]:
    """The sums of every module's input and output, by name."""
    hooks = Hooks(source), Hooks(target)
    found: dict[str, Sums] = {}
    try:
        for batch in batches:
            source(batch)
            target(batch)
            for name in hooks[0].seen.keys() & hooks[1].seen.keys():
                x, y = (rows(hook.seen[name]).to(torch.float64) for hook in hooks)
                if name not in found:
                    found[name] = Sums(x.mT @ y, x.sum(0), y.sum(0), len(x))
                else:
                    sums = found[name]
                    sums.cross += x.mT @ y
                    sums.source += x.sum(0)
                    sums.target += y.sum(0)
                    sums.count += len(x)
            for hook in hooks:
                hook.seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return found
