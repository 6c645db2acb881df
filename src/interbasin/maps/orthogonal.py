"""Maps that keep lengths: rotations, reflections, isometric embeddings, and partial ones that drop directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from interbasin.arrays import copy_row_major, working_dtype
from interbasin.errors import MapError
from interbasin.maps.base import Map, act_densely, dense_matrix

# How far Q Q^T Q may be from Q, relative to Q in the Frobenius norm. Wide enough for a factor that was computed in one
# precision and stored in it, and far below what a matrix that is not orthogonal shows.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@final
class Orthogonal(Map):
    r"""A matrix whose singular values are all one, or one and zero.

    Square: :math:`Q^\top Q = I`. For unequal widths semi-orthogonal: orthonormal columns when the target is wider,
    orthonormal rows when it is narrower. When a fit dropped directions that it did not observe, a partial isometry
    (:math:`Q Q^\top Q = Q`) of a smaller rank. In every case the pseudo-inverse is the transpose and the dual the map
    itself.

    Args:
        matrix: Shape ``(target, source)``.

    Raises:
        MapError: if the matrix is not a partial isometry to the precision of its dtype.

    Example:
        >>> quarter_turn = Orthogonal([[0.0, -1.0], [1.0, 0.0]])
        >>> quarter_turn(torch.tensor([1.0, 0.0]))
        tensor([0., 1.])
    """

    kind = "orthogonal"
    _matrix: Tensor
    _rank: int

    def __init__(self, matrix: object) -> None:
        values = dense_matrix(matrix, "The matrix of an Orthogonal map")
        self._set(_matrix=values, _rank=_rank_of_partial_isometry(values, TOLERANCE[values.dtype]))
        self._set(target_width=values.shape[0], source_width=values.shape[1])

    @property
    def matrix(self) -> Tensor:
        return self._matrix.clone()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def is_isometric(self) -> bool:
        return True

    @property
    def dtype(self) -> torch.dtype:
        return self._matrix.dtype

    def inverse(self) -> Orthogonal:
        return Orthogonal._trusted(self._matrix.mT, self._rank)

    def dual(self) -> Orthogonal:
        return self

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Orthogonal:
        return Orthogonal._trusted(self._matrix.to(device=device, dtype=dtype), self._rank)

    def _act(self, x: Tensor) -> Tensor:
        return act_densely(self._matrix, x)

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"rank": self._rank}, {"matrix": self._matrix}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Orthogonal:
        # A float32 map that was widened to float64 is as exact as float32: this check is for damage, not for digits.
        values = dense_matrix(tensors["matrix"], "The matrix of an Orthogonal map")
        rank = _rank_of_partial_isometry(values, max(TOLERANCE.values()))
        if rank != document["rank"]:
            raise MapError(f"An Orthogonal map says it has rank {document['rank']!r}, but its matrix has rank {rank}.")
        return cls._trusted(values, rank)

    @classmethod
    def _trusted(cls, matrix: Tensor, rank: int) -> Orthogonal:
        """Without the check, for matrices that are isometries by construction."""
        map = cls.__new__(cls)
        map._set(_matrix=copy_row_major(matrix), _rank=rank, target_width=len(matrix), source_width=matrix.shape[1])
        return map


def _rank_of_partial_isometry(matrix: Tensor, tolerance: float) -> int:
    working = matrix.to(working_dtype(matrix.dtype))
    narrow = working if working.shape[0] <= working.shape[1] else working.mT
    norm = float(torch.linalg.vector_norm(narrow))
    gap = float(torch.linalg.vector_norm(narrow @ narrow.mT @ narrow - narrow)) / norm if norm > 0 else 0.0
    # The squared Frobenius norm of a partial isometry is its rank.
    rank = round(norm**2) if math.isfinite(norm**2) else 0
    if not gap <= tolerance or (rank == 0) != (norm == 0):
        raise MapError(
            f"An Orthogonal map needs orthonormal rows or columns: Q Q^T Q differs from Q by {gap:.1e} of its norm, "
            f"more than {tolerance:.0e} ({matrix.dtype}); use Linear, or interbasin.fit.polar for the nearest such map."
        )
    return rank
