r"""Statistics of two spaces -> the map that carries an update from one into the other.

With :math:`H_A, H_B` the activations of the two base networks on the same inputs, Theseus [rinaldi:26] takes
:math:`T = \mathrm{polar}(H_A^\top H_B)`, which is `carry` with ``M = T.mT``. A space is recorded once, however many
modules read it, and behind its non-linearity: before it, activations are linear in what the layer reads, so that
their rank is at most that width, and the rest of the map would stay arbitrary for any number of samples.

The other rules are the seed's ablations: least squares for each space alone (``linear``), and the coupled least squares
of its equation 28 (``pinv``), where both sides are multiplied by :math:`(H_B^\top H_B)^\dagger H_B^\top H_A`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interbasin.fit.polar import polar
from interbasin.maps import Linear, Map, Orthogonal
from interbasin.statistics import PairedMoments

Unobserved = Literal["complete", "drop"]
# The ridge of the regularised rules, as a share of the mean eigenvalue of the Gram matrix.
RIDGE = 1e-2
SEED = 1932  # of the partners of directions in which there were no activations


@dataclass(frozen=True, eq=False)
class SpaceMap:
    """The map of a pair of spaces, and how far the activations support it.

    Attributes:
        map: For axes that write the space.
        reads: For axes that read it, where that is not the dual of ``map``.
        observed: The same map without the directions in which there were no activations; None if there were in all.
        rank: In how many directions there were activations, of ``full``.
        scale: The factor beside the isometry.
        why: How it was found, as a clause.
    """

    map: Map
    rank: int
    full: int
    why: str
    reads: Map | None = None
    observed: Map | None = None
    scale: float = 1.0

    @property
    def observed_map(self) -> Map:
        """The map without the directions in which there were no activations."""
        return self.map if self.observed is None else self.observed

    @property
    def unscaled_map(self) -> Map:
        """The isometry beside the factor, of a space without heads."""
        if self.scale == 1.0:
            return self.map
        return Orthogonal._trusted(
            self.map.matrix / self.scale, self.full if self.map is not self.observed else self.rank
        )


@dataclass(frozen=True)
class SecondMoments:
    """Second moments of the activations in two spaces, or in a block of each: what a rule makes a map of.

    Attributes:
        cross: Products of the target's units with the source's, summed over rows: ``(target, source)``.
        squares: Sums of squares of every unit, of source and target.
        grams: Gram matrices of source and target, for the rules that need them.
        tolerance: The share of the largest value below which a direction is round-off.
        rank_bound: The largest rank that the number of rows allows.
    """

    cross: Tensor
    squares: tuple[Tensor, Tensor]
    grams: tuple[Tensor, Tensor] | None
    tolerance: float
    rank_bound: int

    @classmethod
    def of(cls, moments: PairedMoments, *, centered: bool) -> SecondMoments:
        cross = moments.cross(centered=centered)
        squares = moments.squares_source(centered=centered), moments.squares_target(centered=centered)
        grams = None
        if moments.has_grams:
            grams = moments.gram_source(centered=centered), moments.gram_target(centered=centered)
        tolerance = moments.rank_tolerance(max(cross.shape))
        return cls(cross, squares, grams, tolerance, moments.rank_bound(centered=centered))

    @classmethod
    def pool(cls, parts: Sequence[SecondMoments]) -> SecondMoments:
        """The moments of one pair of spaces from several places.

        All places count alike: each has its own means, and is divided by its own size. The sum then has the mean size.
        """
        if len(parts) == 1:
            return parts[0]
        sizes = [part.sizes for part in parts]
        inverses = [[1 / size if size else 0.0 for size in both] for both in sizes]
        mean_energies = [sum(both[side] ** 2 for both in sizes) / len(parts) for side in (0, 1)]
        weights = [(a * math.sqrt(mean_energies[0]), b * math.sqrt(mean_energies[1])) for a, b in inverses]
        return cls(
            _sum(part.cross * (a * b) for part, (a, b) in zip(parts, weights, strict=True)),
            (
                _sum(part.squares[0] * a * a for part, (a, _) in zip(parts, weights, strict=True)),
                _sum(part.squares[1] * b * b for part, (_, b) in zip(parts, weights, strict=True)),
            ),
            None
            if any(part.grams is None for part in parts)
            else (
                _sum(part.grams[0] * a * a for part, (a, _) in zip(parts, weights, strict=True) if part.grams),
                _sum(part.grams[1] * b * b for part, (_, b) in zip(parts, weights, strict=True) if part.grams),
            ),
            max(part.tolerance for part in parts),
            sum(part.rank_bound for part in parts),
        )

    def block(self, rows: slice, columns: slice) -> SecondMoments:
        """The moments of one block of the target (rows) and one of the source (columns)."""
        return SecondMoments(
            self.cross[rows, columns],
            (self.squares[0][columns], self.squares[1][rows]),
            None if self.grams is None else (self.grams[0][columns, columns], self.grams[1][rows, rows]),
            self.tolerance,
            self.rank_bound,
        )

    @property
    def sizes(self) -> tuple[float, float]:
        """The root of the sum of squares, of source and target."""
        return math.sqrt(float(self.squares[0].sum())), math.sqrt(float(self.squares[1].sum()))

    @property
    def rms_ratio(self) -> float:
        """How much larger the target's activations are, per row, than the source's."""
        source, target = self.sizes
        return target / source if source > 0 and target > 0 else 1.0

    def gram(self, side: int) -> Tensor:
        assert self.grams is not None
        return self.grams[side]


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    return sum(others, first)


# Second moments -> the matrix for axes that write, the one for axes that read (None: the dual of the first), the rank.
Rule = Callable[[SecondMoments], tuple[Tensor, Tensor | None, int]]


def procrustes(second_moments: SecondMoments) -> tuple[Tensor, Tensor | None, int]:
    """The isometry of largest correlation: the seed's rule. Its ``ortho`` is, as printed, the same map."""
    decomposition = polar(second_moments.cross, rank_tolerance=second_moments.tolerance)
    return decomposition.factor, None, min(int(decomposition.rank), second_moments.rank_bound)


def linear(second_moments: SecondMoments, *, ridge: float = 0.0) -> tuple[Tensor, Tensor | None, int]:
    """The least-squares map, with its dual for read axes: exact where the spaces differ by an invertible map."""
    matrix, rank = _divide(second_moments.cross, second_moments.gram(0), second_moments.tolerance, ridge)
    return matrix, None, rank


def linear_transposed(second_moments: SecondMoments, *, ridge: float = 0.0) -> tuple[Tensor, Tensor | None, int]:
    """The least-squares map on both sides, as the seed's ``linear`` has it (its equation 30)."""
    matrix, _, rank = linear(second_moments, ridge=ridge)
    return matrix, matrix, rank


def linear_orthogonal(second_moments: SecondMoments) -> tuple[Tensor, Tensor | None, int]:
    """The isometry nearest to the least-squares map."""
    matrix, _, rank = linear(second_moments)
    return polar(matrix).factor, None, rank


def pinv(second_moments: SecondMoments, *, ridge: float = 0.0) -> tuple[Tensor, Tensor | None, int]:
    """The coupled least squares of the seed's equation 28."""
    matrix, rank = _divide(second_moments.cross.mT, second_moments.gram(1), second_moments.tolerance, ridge)
    return matrix.mT, matrix.mT, rank


def pinv_orthogonal(second_moments: SecondMoments) -> tuple[Tensor, Tensor | None, int]:
    """The isometry nearest to the map of the coupled least squares."""
    matrix, _, rank = pinv(second_moments)
    return polar(matrix).factor, None, rank


def _divide(cross: Tensor, gram: Tensor, tolerance: float, ridge: float) -> tuple[Tensor, int]:
    """``cross @ gram^-1`` over the directions in which there are activations, and the number of these."""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > values[-1].clamp(min=0) * tolerance
    shrunk = values + ridge * float(values.clamp(min=0).mean())
    weights = torch.where(kept, 1 / torch.where(kept, shrunk, 1), 0)
    return ((cross @ vectors) * weights) @ vectors.mT, int(kept.sum())


@dataclass(frozen=True)
class MapFitter:
    """Fits maps to second moments, by a rule.

    Attributes:
        rule: What makes a matrix of the moments.
        unobserved: What becomes of directions in which there are no activations: a partner, or zero.
        scale: Whether maps are multiplied by the ratio of the activations' sizes.
    """

    rule: Rule
    unobserved: Unobserved
    scale: bool

    def fit(self, second_moments: SecondMoments) -> SpaceMap:
        matrix, reads, rank = self.rule(second_moments)
        full = min(matrix.shape)
        # Least squares has the size of activations in it already.
        factor = second_moments.rms_ratio if self.scale and self.rule in _ISOMETRIC else 1.0
        observed = None
        if rank < full and self.rule is procrustes:
            partial, matrix = _complete(matrix, second_moments.cross, rank)
            observed = _as_map(partial, factor, rank)
        whole = observed if observed is not None and self.unobserved == "drop" else None
        if whole is None:
            whole = _as_map(matrix, factor, full) if self.rule in _ISOMETRIC else Linear(matrix * factor)
        # The factor multiplies both sides: divided out of what reads a space, it would be gone again.
        read = Linear(reads * factor) if reads is not None else whole if factor != 1.0 else None
        return SpaceMap(whole, rank, full, "by what both networks show there", read, observed, factor)


_ISOMETRIC = (procrustes, linear_orthogonal, pinv_orthogonal)


def _complete(factor: Tensor, cross: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The isometry on the ``rank`` strongest directions alone, and the whole one that it is completed to.

    In `polar` the partners of the other directions hang on round-off. Here they are what an arbitrary but fixed matrix
    leaves of itself between the directions that have no partner yet, so that the same data give the same map, however
    they are cut into batches.
    """
    tall = factor.shape[0] >= factor.shape[1]
    if not tall:
        partial, whole = _complete(factor.mT, cross.mT, rank)
        return partial.mT, whole.mT
    # The symmetric factor of the polar decomposition has the singular values for its eigenvalues.
    product = factor.mT @ cross
    basis: Tensor = torch.linalg.eigh(product + product.mT).eigenvectors
    unseen, kept = basis[:, : len(basis) - rank], basis[:, len(basis) - rank :]
    partners = factor @ kept
    partial = partners @ kept.mT
    free = _draw_fixed_matrix(factor) @ unseen
    free -= partners @ (partners.mT @ free)
    return partial, torch.addmm(partial, polar(free).factor, unseen.mT)


def _draw_fixed_matrix(like: Tensor) -> Tensor:
    """A matrix of this shape that is always the same: noise, and the mean of all units, which goes to the mean."""
    noise = torch.randn(like.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    return (noise / math.sqrt(like.numel()) + 1 / math.sqrt(like.numel())).to(like)


def _as_map(matrix: Tensor, factor: float, rank: int) -> Map:
    return Orthogonal._trusted(matrix, rank) if factor == 1.0 else Linear(matrix * factor)
