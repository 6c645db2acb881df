r"""How far a map carries the source from the target, and how alike two spaces are, from their moments alone.

With :math:`M` the matrix, :math:`\sum \|M x - y\|^2 = \operatorname{tr}(M G_x M^\top) - 2 \operatorname{tr}(M^\top C) +
\operatorname{tr}(G_y)`. As a difference of sums it cannot show less than about 1e-16 of the target's energy (a relative
residual of 1e-8).

All similarities take centred moments. None depends on the order of the units; all but `mean_cosine` are unchanged by
rotations of either space, and the CCA family by every invertible linear map.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError
from interbasin.maps import Affine, Map, Permutation, SignedPermutation
from interbasin.maps.base import require_map
from interbasin.statistics.moments import PairedMoments


def check_widths(moments: PairedMoments, map: Map) -> None:
    """Refuse what is not a map, or is one between spaces of other widths than the statistics'."""
    require_map(map, "What carries the source")
    if (map.source_width, map.target_width) != (moments.source_width, moments.target_width):
        raise ShapeError(f"{map!r} does not fit statistics of {moments.target_width} <- {moments.source_width}.")


def carried_energy(moments: PairedMoments, map: Map, *, centered: bool = True) -> float:
    r""":math:`\sum \|M x\|^2` for the linear part of a map; NaN where that needs a Gram matrix that was not kept."""
    squares = moments.squares_source(centered=centered)
    if isinstance(map, Affine):
        map = map.linear
    if map.is_isometric and map.rank == map.source_width:
        return float(squares.sum())
    if isinstance(map, Permutation | SignedPermutation):
        return float(squares[map.index[map.index >= 0].to(squares.device)].sum())
    if not moments.has_grams:
        return math.nan
    matrix = map.matrix.to(squares)
    return float(((matrix @ moments.gram_source(centered=centered)) * matrix).sum())


def residual_energy(moments: PairedMoments, map: Map, *, centered: bool) -> float:
    r""":math:`\sum \|m(x) - y\|^2`; with ``centered`` about the means, where an offset plays no part.

    NaN where it needs a Gram matrix that was not kept (a map onto a narrower space, or any that is not an isometry).
    """
    check_widths(moments, map)
    cross = moments.cross()
    matrix = map.matrix.to(cross)
    energy = float(moments.squares_target().sum())
    spread = carried_energy(moments, map) - 2 * float((matrix * cross).sum()) + energy
    if math.isnan(spread):
        return math.nan
    spread = max(0.0, spread)
    if centered:
        return spread
    # Rows about the means, and the means themselves, are orthogonal: the raw residual is the sum of both parts.
    missed = moments.mean_source @ matrix.mT - moments.mean_target.to(matrix)
    if isinstance(map, Affine):
        missed = missed + map.offset.to(missed)
    return spread + moments.count * float(torch.linalg.vector_norm(missed)) ** 2


# ---------------------------------------------------------------------- similarities


def linear_cka(moments: PairedMoments) -> float:
    r"""Linear centred kernel alignment, between 0 and 1 [kornblith:19].

    :math:`\|C\|_F^2 / (\|G_x\|_F \|G_y\|_F)`. With fewer rows than units it is biased upwards, as the plain estimator
    is.
    """
    grams = moments.gram_source(), moments.gram_target()
    # In units of their largest entries: squares of entries stay within range whatever the data's scale.
    units = [float(gram.abs().max()) for gram in grams]
    _require_spread(min(units))
    x, y = (torch.linalg.matrix_norm(gram / unit) for gram, unit in zip(grams, units, strict=True))
    cross = moments.cross() / math.sqrt(units[0]) / math.sqrt(units[1])
    return float(torch.linalg.matrix_norm(cross).square() / (x * y))


def mean_cosine(moments: PairedMoments, map: Map | None = None) -> float:
    r"""The cosine between paired rows about their means, averaged with the rows' energies as weights; between -1 and 1.

    :math:`\sum \langle m(x), y\rangle / \sqrt{\sum \|m(x)\|^2 \sum \|y\|^2}`: the plain mean of cosines where all rows
    have the same norm. Moments do not hold the norms of single rows, so the plain mean of unequal rows is not to be had
    from them.

    Args:
        moments: Without ``map``, of two spaces of equal widths.
        map: Carries the source first.
    """
    if map is None:
        if moments.source_width != moments.target_width:
            widths = f"{moments.source_width} and {moments.target_width}"
            raise ShapeError(f"The cosine of paired rows needs equal widths, got {widths}; pass a map between them.")
        inner = float(torch.diagonal(moments.cross()).sum())
        energy = float(moments.squares_source().sum())
    else:
        check_widths(moments, map)
        inner = float((map.matrix.to(moments.cross()) * moments.cross()).sum())
        energy = carried_energy(moments, map)
        if math.isnan(energy):
            moments.gram_source()  # raises, and says what to do
    _require_spread(energy)
    _require_spread(target := float(moments.squares_target().sum()))
    return max(-1.0, min(1.0, inner / math.sqrt(energy) / math.sqrt(target)))


def canonical_correlations(moments: PairedMoments) -> Tensor:
    r"""The canonical correlations, falling: singular values of :math:`G_y^{-1/2} C G_x^{-1/2}` [hotelling:36].

    Directions in which a space has no variance (to the precision of the products) are left out.
    """
    return _canonical(moments)[0]


def mean_cca(moments: PairedMoments) -> float:
    """The mean canonical correlation, between 0 and 1 [raghu:17]."""
    return float(canonical_correlations(moments).mean())


def pwcca(moments: PairedMoments, side: Literal["source", "target"] = "source") -> float:
    r"""Projection-weighted CCA: canonical correlations weighted by a side's activity in them [morcos:18].

    The weight of canonical variate :math:`h_i` is :math:`\sum_j |\langle h_i, z_j\rangle|` over the units :math:`z_j`
    of ``side``.
    """
    if side not in ("source", "target"):
        raise DataError(f"side must be 'source' or 'target', got {side!r}.")
    correlations, left, right, root_x, root_y = _canonical(moments)
    # h = X G_x^{-1/2} v, so <h, x_j> over all units is G_x^{1/2} v.
    projections = root_x @ right if side == "source" else root_y @ left
    weights = projections.abs().sum(dim=0)
    return float((weights * correlations).sum() / weights.sum())


def procrustes_distance(moments: PairedMoments) -> float:
    r"""The distance left after the best rotation, both spaces scaled to unit norm; 0 to sqrt(2) [williams:21].

    :math:`\min_Q \|\hat X Q^\top - \hat Y\|_F = \sqrt{2 - 2 \|\hat C\|_*}`, with zeros appended to the narrower space.
    A metric.
    """
    source, target = float(moments.squares_source().sum()), float(moments.squares_target().sum())
    _require_spread(min(source, target))
    nuclear = float(torch.linalg.svdvals(moments.cross() / math.sqrt(source) / math.sqrt(target)).sum())
    return math.sqrt(max(0.0, 2 - 2 * nuclear))


def explained_variance(moments: PairedMoments, map: Map) -> float:
    """The share of the target's variance that the carried source explains: 1 is all, below 0 worse than the mean."""
    residual = residual_energy(moments, map, centered=True)
    if math.isnan(residual):
        moments.gram_source()  # raises, and says what to do
    energy = float(moments.squares_target().sum())
    _require_spread(energy)
    return 1 - residual / energy


def similarities(moments: PairedMoments) -> dict[str, float]:
    """Every similarity by name; the cosine only where the widths are equal."""
    cosine = {"mean_cosine": mean_cosine(moments)} if moments.source_width == moments.target_width else {}
    return {
        "linear_cka": linear_cka(moments),
        **cosine,
        "mean_cca": mean_cca(moments),
        "pwcca_source": pwcca(moments, "source"),
        "pwcca_target": pwcca(moments, "target"),
        "procrustes_distance": procrustes_distance(moments),
    }


def _canonical(moments: PairedMoments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inverse_x, root_x, rank_x = matrix_powers(moments.gram_source(), 0.5, moments)
    inverse_y, root_y, rank_y = matrix_powers(moments.gram_target(), 0.5, moments)
    kept = min(rank_x, rank_y)
    _require_spread(kept)
    left, values, right = torch.linalg.svd(inverse_y @ moments.cross() @ inverse_x, full_matrices=False)
    return values[:kept].clamp(max=1), left[:, :kept], right.mT[:, :kept], root_x, root_y


def matrix_powers(gram: Tensor, power: float, moments: PairedMoments, ridge: float = 0.0) -> tuple[Tensor, Tensor, int]:
    """``gram ** -power`` and ``gram ** power`` on the directions that vary, and how many those are.

    ``ridge`` is added to the eigenvalues, relative to their mean.
    """
    values, vectors = torch.linalg.eigh(gram)
    kept = values > values[-1].clamp(min=0) * moments.rank_tolerance(len(values))
    lifted = torch.where(kept, values + ridge * float(values.clamp(min=0).mean()), 1)
    down, up = (torch.where(kept, lifted**exponent, 0) for exponent in (-power, power))
    return (vectors * down) @ vectors.mT, (vectors * up) @ vectors.mT, int(kept.sum())


def _require_spread(scale: float) -> None:
    if not scale > 0:
        raise DataError("A similarity needs spaces that vary, got one whose rows are all the same; give more rows.")
