r"""Ridge regression whose strength is chosen by leaving each pair out in turn, from one decomposition.

With :math:`X = U S V^\top` centred, what is predicted for a row that was left out follows from the fit on all:
:math:`e_i / (1 - h_i)`, :math:`h_i = 1/n + \sum_j u_{ij}^2 s_j^2 / (s_j^2 + \lambda)` (Allen's PRESS).
"""

from __future__ import annotations

import torch
from torch import Tensor

from interbasin.randomness import generator_of

__all__ = ["ridge_by_leave_one_out"]

STRENGTHS: tuple[float, ...] = tuple(10 ** (-8 + step / 3) for step in range(31))
# Rows and columns of the target that are enough to tell one strength from another.
_ROWS, _COLUMNS = 2048, 256


def ridge_by_leave_one_out(x: Tensor, y: Tensor, strength: float | None, seed: int) -> tuple[Tensor, float, int]:
    """The matrix ``(target, source)`` for centred rows, the strength, and the rank of the source.

    Args:
        x, y: Centred rows, float64.
        strength: Relative to the mean squared singular value; None to have it chosen.
        seed: Of the rows and columns that are looked at for that.
    """
    values, vectors = torch.linalg.eigh(x.mT @ x)
    kept = values > values[-1].clamp(min=0) * max(x.shape) * torch.finfo(x.dtype).eps
    if not bool(kept.any()):
        return x.new_zeros(y.shape[1], x.shape[1]), 0.0 if strength is None else strength, 0
    values, vectors = values[kept], vectors[:, kept]
    mean = float(values.mean())
    cross = vectors.mT @ (x.mT @ y)  # V^T X^T Y = S U^T Y
    if strength is None:
        strength = _chosen(x, y, values, vectors, cross, mean, seed)
    return ((vectors / (values + strength * mean)) @ cross).mT.contiguous(), strength, len(values)


def _chosen(x: Tensor, y: Tensor, values: Tensor, vectors: Tensor, cross: Tensor, mean: float, seed: int) -> float:
    generator = generator_of(seed)
    rows = torch.randperm(len(x), generator=generator)[:_ROWS]
    columns = torch.randperm(y.shape[1], generator=generator)[:_COLUMNS]
    along, target, cross = x[rows] @ vectors, y[rows][:, columns], cross[:, columns]
    errors = []
    for strength in STRENGTHS:
        weights = 1 / (values + strength * mean)
        leverage = 1 / len(x) + (along.square() * weights).sum(1)
        residual = target - along @ (weights[:, None] * cross)
        errors.append(float((residual / (1 - leverage).clamp(min=1e-9)[:, None]).square().mean()))
    return STRENGTHS[min(range(len(errors)), key=errors.__getitem__)]
