r"""Ridge regression of a layer from streamed sums: only Gram matrices are kept, however many rows there are.

For rows :math:`x` that the layer reads and :math:`y` that it should write,

.. math:: \min_{W, b} \sum_i w_i \|W x_i + b - y_i\|^2 + \lambda \|W - W_0\|_F^2 ,

with :math:`\lambda` by generalised cross-validation [golub:79], which needs the eigenvalues of the Gram matrix alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from interbasin.checkpoints.lora import Factors

# Ridges that are tried, relative to the mean eigenvalue of the Gram matrix.
LADDER: tuple[float, ...] = tuple(10.0**power for power in torch.arange(-8, 3.01, 0.5).tolist())


@dataclass
class Sums:
    """Weighted sums over the rows x that a layer reads and y that it should write; means are taken out at the end.

    Attributes:
        count: The sum of the weights.
        rows: How many rows were added.
        x, y: Sums of the rows.
        xx, xy: Sums of their products, ``(in, in)`` and ``(in, out)``.
        yy: Sums of squares, of each output.
    """

    count: float = 0.0
    rows: int = 0
    x: Tensor = field(default_factory=lambda: torch.zeros(0))
    y: Tensor = field(default_factory=lambda: torch.zeros(0))
    xx: Tensor = field(default_factory=lambda: torch.zeros(0))
    xy: Tensor = field(default_factory=lambda: torch.zeros(0))
    yy: Tensor = field(default_factory=lambda: torch.zeros(0))

    def add(self, x: Tensor, y: Tensor, weight: float = 1.0) -> None:
        """Add rows that belong together, ``(rows, in)`` and ``(rows, out)``."""
        x, y = x.double(), y.double()
        if not self.rows:
            self.x, self.y = x.new_zeros(x.shape[1]), y.new_zeros(y.shape[1])
            self.xx, self.xy = x.new_zeros(x.shape[1], x.shape[1]), x.new_zeros(x.shape[1], y.shape[1])
            self.yy = y.new_zeros(y.shape[1])
        self.count += weight * len(x)
        self.rows += len(x)
        self.x += weight * x.sum(0)
        self.y += weight * y.sum(0)
        self.xx.addmm_(x.mT, x, alpha=weight)
        self.xy.addmm_(x.mT, y, alpha=weight)
        self.yy += weight * y.square().sum(0)

    def plus(self, other: Sums, weight: float = 1.0) -> Sums:
        """The sums over the rows of both, those of ``other`` with a weight."""
        if not other.rows:
            return self
        return Sums(
            self.count + weight * other.count,
            self.rows + other.rows,
            self.x + weight * other.x,
            self.y + weight * other.y,
            self.xx + weight * other.xx,
            self.xy + weight * other.xy,
            self.yy + weight * other.yy,
        )

    def partial_out(self, width: int) -> Sums:
        """The sums of the first ``width`` inputs and of the outputs, less what the other inputs explain of both.

        A layer that is fitted to these is the layer that would be fitted together with the other inputs, which a table
        of offsets has; fitted one after the other, the two come to something else.
        """
        first, others = slice(0, width), slice(width, len(self.x))
        inverse = torch.linalg.pinv(self.xx[others, others], hermitian=True)
        onto_x, onto_y = inverse @ self.xx[others, first], inverse @ self.xy[others]
        rank = int(torch.linalg.matrix_rank(self.xx[others, others], hermitian=True))
        return Sums(
            self.count,
            max(self.rows - rank, 1),
            torch.zeros_like(self.x[first]),
            torch.zeros_like(self.y),
            self.xx[first, first] - self.xx[first, others] @ onto_x,
            self.xy[first] - self.xx[first, others] @ onto_y,
            (self.yy - (self.xy[others] * onto_y).sum(0)).clamp(min=0),
        )

    def solve(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        ridge: float | None = None,
        caution: float = 1.0,
    ) -> Solution:
        """The layer that comes nearest, shrunk towards ``weight`` (out, in).

        Args:
            weight: What the layer is shrunk towards.
            bias: Of the layer; None for one that has none, which is then fitted without means.
            ridge: Relative to the mean eigenvalue; None: by generalised cross-validation.
            caution: What degrees of freedom are multiplied with there: more than 1 makes for larger ridges [kim:04].
        """
        prior = weight.double()
        if bias is None:
            mean_x, mean_y = torch.zeros_like(self.x), torch.zeros_like(self.y)
        else:
            mean_x, mean_y = self.x / self.count, self.y / self.count
        gram = self.xx - self.count * torch.outer(mean_x, mean_x)
        cross = self.xy - self.count * torch.outer(mean_x, mean_y)
        energy = self.yy - self.count * mean_y.square()
        values, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
        values = values.clamp(min=0)
        # What the prior leaves to be explained, in the directions of the rows.
        prior_onto = vectors.mT @ prior.mT
        cross_onto = vectors.mT @ cross
        residual = cross_onto - values[:, None] * prior_onto
        residual_energy = energy - 2 * (prior_onto * cross_onto).sum(0) + (values[:, None] * prior_onto.square()).sum(0)
        total = float(residual_energy.clamp(min=0).sum())
        scale = float(values.mean()) or 1.0
        if ridge is None:
            rows = self.rows - int(bias is not None)
            tolerance = max(len(values), self.rows) * torch.finfo(values.dtype).eps
            ridge = _choose_ridge(values, residual.square().sum(1), total, rows, scale, tolerance, caution)
        shrunk = values + ridge * scale
        fitted = prior + (vectors @ (residual / shrunk[:, None])).mT
        explained = (residual.square().sum(1) * (values + 2 * ridge * scale) / shrunk.square()).sum()
        offset = None if bias is None else mean_y - fitted @ mean_x
        return Solution(fitted, offset, ridge, 1 - max(total - float(explained), 0.0) / (float(energy.sum()) or 1.0))


def _choose_ridge(
    values: Tensor, squares: Tensor, total: float, rows: int, scale: float, tolerance: float, caution: float
) -> float:
    """The relative ridge of the smallest error by generalised cross-validation.

    Args:
        values: Eigenvalues of the Gram matrix.
        squares: Of the cross-products that are to be explained, in the direction of each eigenvector.
        total: The sum of squares that is to be explained.
        rows: How many there are, less one where means were taken out.
        scale: What ridges are relative to.
        tolerance: The share of the largest eigenvalue below which one is round-off.
        caution: What degrees of freedom are multiplied with.
    """
    # What no weight can explain, and what a ridge leaves, each as a sum of squares: where the rows are fewer than
    # the inputs both the error and the freedom that is left vanish with the ridge, and differences would be noise.
    is_observed = values > values.max() * tolerance
    energies = torch.where(is_observed, squares / torch.where(is_observed, values, 1), 0)
    spare_rows = max(rows - int(is_observed.sum()), 0)
    unexplained = max(total - float(energies.sum()), 0.0) if spare_rows else 0.0

    def score(relative: float) -> float:
        shrinkage = torch.where(is_observed, relative * scale / (values + relative * scale), 0)
        error = unexplained + float((energies * shrinkage.square()).sum())
        penalty = (caution - 1) * float(is_observed.sum() - shrinkage.sum())
        freedom = spare_rows + float(shrinkage.sum()) - penalty
        if penalty and freedom <= 0:
            return math.inf
        return error / freedom**2 if is_observed.any() else 0.0

    return min(LADDER[::-1] if caution > 1 else LADDER, key=score)


@dataclass(frozen=True)
class Solution:
    """A fitted layer, the relative ridge that was taken, and the share of the target's variance that it explains."""

    weight: Tensor
    bias: Tensor | None
    ridge: float
    explained: float


def reduce_rank(change: Tensor, sums: Sums, rank: int) -> Factors:
    """The factors of that rank whose outputs come nearest to those of a change of weight (out, in).

    Reduced-rank regression [izenman:75]: the leading directions of the outputs that the change makes on the rows.
    """
    mean = sums.x / sums.count
    gram = sums.xx - sums.count * torch.outer(mean, mean)
    outputs = change @ gram @ change.mT
    values, vectors = torch.linalg.eigh((outputs + outputs.mT) / 2)
    leading = vectors[:, -min(rank, len(values)) :]
    total = float(values.clamp(min=0).sum())
    lost = float(values.clamp(min=0)[: len(values) - leading.shape[1]].sum()) / total if total else 0.0
    return Factors(leading.mT @ change, leading.contiguous(), math.sqrt(lost))
