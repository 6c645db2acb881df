"""Maps given by any matrix, with or without an offset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from interbasin.arrays import as_tensor, working_dtype
from interbasin.errors import ShapeError
from interbasin.maps.base import Map, act_densely, dense_matrix, finite, floating

__all__ = ["Affine", "Linear"]


@final
class Linear(Map):
    """Any matrix.

    The inverse is exact where no direction is lost to the precision of the numbers; otherwise, and for a target that is
    narrower than the source, it is the pseudo-inverse.

    Args:
        matrix: Shape ``(target, source)``.

    Example:
        >>> stretch = Linear([[2.0, 0.0], [0.0, 4.0]])
        >>> stretch.inverse().matrix
        tensor([[0.5000, 0.0000],
                [0.0000, 0.2500]])
    """

    kind = "linear"
    _matrix: Tensor

    def __init__(self, matrix: object) -> None:
        values = dense_matrix(matrix, "the matrix of a Linear map")
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


@final
class Affine(Map):
    """A matrix and an offset: ``m(x) == x @ m.matrix.mT + m.offset``.

    ``dual()`` is that of the linear part: weights that read the space take it, and what the offset does to the biases
    behind them is the business of whoever carries the network.

    Args:
        matrix: Shape ``(target, source)``.
        offset: Shape ``(target,)``.

    Example:
        >>> shift = Affine([[1.0, 0.0], [0.0, 1.0]], [5.0, -1.0])
        >>> shift.inverse()(shift(torch.tensor([1.0, 2.0])))
        tensor([1., 2.])
    """

    kind = "affine"
    _linear: Linear
    _offset: Tensor

    def __init__(self, matrix: object, offset: object) -> None:
        linear = Linear(matrix)
        shift = as_tensor(offset, "the offset of an Affine map")
        if shift.shape != (linear.target_width,):
            raise ShapeError(
                f"An Affine map into a space of width {linear.target_width} needs one offset a unit, "
                f"found shape {tuple(shift.shape)}."
            )
        shift = finite(floating(shift), "the offset of an Affine map")
        self._set(_linear=linear, _offset=shift.to(device=linear._matrix.device, dtype=linear.dtype).clone())
        self._set(target_width=linear.target_width, source_width=linear.source_width)

    @property
    def matrix(self) -> Tensor:
        return self._linear.matrix

    @property
    def offset(self) -> Tensor:
        """What is added after the matrix, shape ``(target,)``."""
        return self._offset.clone()

    @property
    def linear(self) -> Linear:
        """The map without its offset."""
        return self._linear

    @property
    def rank(self) -> int:
        return self._linear.rank

    @property
    def is_isometric(self) -> bool:
        return False

    @property
    def dtype(self) -> torch.dtype:
        return self._linear.dtype

    def inverse(self) -> Affine:
        back = self._linear.inverse()
        return Affine(back.matrix, -back(self._offset))

    def dual(self) -> Linear:
        return self._linear.dual()

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Affine:
        return Affine(self._linear.to(dtype=dtype, device=device).matrix, self._offset.to(device=device, dtype=dtype))

    def _act(self, x: Tensor) -> Tensor:
        working = x.to(working_dtype(x.dtype, self._linear._matrix.dtype)) if x.is_floating_point() else x
        moved = act_densely(self._linear._matrix, working)
        return (moved + self._offset.to(device=moved.device, dtype=moved.dtype)).to(x.dtype)

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"matrix": self._linear._matrix, "offset": self._offset}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Affine:
        return cls(tensors["matrix"], tensors["offset"])
