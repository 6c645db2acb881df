"""Procrustes on weights, plainly: every orthogonal map starts at the identity and is set, in turn, to the best one for
all tensors that it touches, the others as they stand, by an SVD in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reference.usual_weight_matching import Pair


def procrustes(pairs: Sequence[Pair], sizes: Mapping[str, int], sweeps: int) -> dict[str, Tensor]:
    found = {name: torch.eye(size, dtype=torch.float64) for name, size in sizes.items()}
    for _ in range(sweeps):
        for name, size in sizes.items():
            cross = torch.zeros(size, size, dtype=torch.float64)
            for pair in pairs:
                for axis, space in enumerate(pair.spaces):
                    if space == name:
                        source = turned(pair, found, but=axis).movedim(axis, 0).reshape(size, -1)
                        cross += pair.target.double().movedim(axis, 0).reshape(size, -1) @ source.mT
            left, _, right = torch.linalg.svd(cross)
            found[name] = left @ right
    return found


def turned(pair: Pair, found: Mapping[str, Tensor], but: int | None = None) -> Tensor:
    tensor = pair.source.double()
    for axis, space in enumerate(pair.spaces):
        if axis != but and space in found:
            tensor = torch.tensordot(found[space], tensor, ([1], [axis])).movedim(0, axis)
    return tensor
