"""Maps given by any matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from interbasin.arrays import working_dtype
from interbasin.maps.base import Map, act_densely, dense_matrix


@final
class Linear(Map):
    """Any matrix.

    The inverse is exact where no direction is lost to the precision of the numbers; otherwise, and for a target that is
    narrower than the source, it is the pseudo-inverse.

    Args:
        matrix: Shape ``(target, source)``.

    Example:
        >>> stretch = Linear([[2.0, 0.0], [0.0, 4.0]])
        >>> stretch.inverse().matrix.tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """

    kind = "linear"
    _matrix: Tensor

    def __init__(self, matrix: object) -> None:
        values = dense_matrix(matrix, "The matrix of a Linear map")
        self._set(_matrix=values, target_width=values.shape[0], source_width=values.shape[1])

    @property
    def matrix(self) -> Tensor:
        return self._matrix.clone()

    @property
    def rank(self) -> int:
        return self._inverse_and_rank[1]

    @property
    def is_isometric(self) -> bool:
        return False

    @property
    def dtype(self) -> torch.dtype:
        return self._matrix.dtype

    def inverse(self) -> Linear:
        return Linear(self._inverse_and_rank[0])

    def dual(self) -> Linear:
        return Linear(self._inverse_and_rank[0].mT)

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Linear:
        return Linear(self._matrix.to(device=device, dtype=dtype))

    @cached_property
    def _inverse_and_rank(self) -> tuple[Tensor, int]:
        """The (pseudo-)inverse and the rank, from one SVD that is made when either is first asked for."""
        working = self._matrix.to(working_dtype(self._matrix.dtype))
        left, values, right = torch.linalg.svd(working, full_matrices=False)
        # Numerical rank as numpy and LAPACK draw the line: relative to the largest, scaled by the longer side.
        line = values[0] * max(working.shape) * torch.finfo(working.dtype).eps
        kept = values > line
        weights = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
        inverse = (right.mT * weights) @ left.mT
        return inverse.to(self._matrix.dtype), int(kept.sum())

    def _act(self, x: Tensor) -> Tensor:
        return act_densely(self._matrix, x)

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"matrix": self._matrix}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Linear:
        return cls(tensors["matrix"])
