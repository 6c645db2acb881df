"""Networks to merge, and the methods of merging written as naively as their papers do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

DOUBLE = torch.float64


def tensors(seed: int, dtype: torch.dtype = torch.float32, layers: int = 2, width: int = 12) -> dict[str, Tensor]:
    """The tensors of a small network."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    found = {"embed.weight": drawn(20, width), "norm.weight": drawn(width)}
    for layer in range(layers):
        found |= {f"layers.{layer}.up.weight": drawn(3 * width, width), f"layers.{layer}.down.weight": drawn(width, 5)}
    return found


def saved(folder: Path, values: Mapping[str, Tensor], **configuration: object) -> Path:
    """A folder such as transformers saves."""
    folder.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in values.items()}, folder / "model.safetensors")
    settings = {"model_type": "tiny", "hidden_size": 12, "torch_dtype": "float32", **configuration}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


class Tied(nn.Module):
    """A table that is used at both ends, a counter, and something that is no tensor."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight
        self.seed = seed

    def get_extra_state(self) -> dict[str, int]:
        return {"seed": self.seed}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seed = state["seed"]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(x)))


# ---------------------------------------------------------------------- the methods, entry by entry, in float64


def naive_lerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    return (1 - t) * a.to(DOUBLE) + t * b.to(DOUBLE)


def naive_slerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    a, b = a.to(DOUBLE), b.to(DOUBLE)
    cosine = float((a * b).sum() / a.norm() / b.norm())
    angle = math.acos(cosine)
    return (math.sin((1 - t) * angle) * a + math.sin(t * angle) * b) / math.sin(angle)


def naive_average(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return sum(weight * model.to(DOUBLE) for weight, model in zip(weights, models, strict=True)) / sum(weights)


def naive_task_arithmetic(base: Tensor, models: Sequence[Tensor], weights: Sequence[float], scale: float) -> Tensor:
    base = base.to(DOUBLE)
    return base + scale * sum(weight * (model.to(DOUBLE) - base) for weight, model in zip(weights, models, strict=True))


def naive_ties(
    base: Tensor, models: Sequence[Tensor], weights: Sequence[float], density: float, scale: float
) -> Tensor:
    flat = base.to(DOUBLE).flatten()
    updates = []
    for model in models:
        # In float32, so that what is equally large is what the merge finds equally large.
        update = (model.float() - base.float()).flatten().to(DOUBLE)
        count = max(1, int(density * len(update)))
        # Sorted by size, and of equals the first: what comes behind the count is trimmed.
        order = sorted(range(len(update)), key=lambda i: (-abs(float(update[i])), i))
        update[order[count:]] = 0
        updates.append([float(entry) for entry in update])
    merged = []
    for place in range(len(flat)):
        mass = sum(weight * update[place] for weight, update in zip(weights, updates, strict=True))
        sign = 1 if mass >= 0 else -1
        agreeing = [(weight, update[place]) for weight, update in zip(weights, updates, strict=True)]
        agreeing = [(weight, entry) for weight, entry in agreeing if entry * sign > 0]
        total = sum(weight for weight, _ in agreeing)
        merged.append(sum(weight * entry for weight, entry in agreeing) / total if total else 0.0)
    return (flat + scale * torch.tensor(merged, dtype=DOUBLE)).reshape(base.shape)
