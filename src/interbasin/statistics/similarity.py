r"""How alike two spaces are, from their moments alone.

All take centred moments. None depends on the order of the units; all but `mean_cosine` are unchanged by rotations of
either space, and the CCA family by every invertible linear map.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError
from interbasin.maps import Map
from interbasin.statistics.moments import PairedMoments
from interbasin.statistics.residual import carried_energy, check_widths, residual_energy


def linear_cka(moments: PairedMoments) -> float:
    r"""Linear centred kernel alignment, between 0 and 1 [kornblith:19].

    :math:`\|C\|_F^2 / (\|G_x\|_F \|G_y\|_F)`. With fewer rows than units it is biased upwards, as the plain estimator
    is.
    """
    x, y = _unit(moments.gram_source()), _unit(moments.gram_target())
    cross = moments.cross() / math.sqrt(_size(moments.gram_source())) / math.sqrt(_size(moments.gram_target()))
    return float(torch.linalg.matrix_norm(cross).square() / (torch.linalg.matrix_norm(x) * torch.linalg.matrix_norm(y)))


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
            raise ShapeError(
                f"The cosine of paired rows needs equal widths, found {moments.source_width} and "
                f"{moments.target_width}; "
                "pass a map that carries the source to the target's width."
            )
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
        raise DataError(f"pwcca weighs by the 'source' or the 'target', found {side!r}.")
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
    found = {"linear_cka": linear_cka(moments)}
    if moments.source_width == moments.target_width:
        found["mean_cosine"] = mean_cosine(moments)
    found["mean_cca"] = mean_cca(moments)
    found["pwcca_source"] = pwcca(moments, "source")
    found["pwcca_target"] = pwcca(moments, "target")
    found["procrustes_distance"] = procrustes_distance(moments)
    return found


def _canonical(moments: PairedMoments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inverse_x, root_x, rank_x = _roots(moments.gram_source(), moments)
    inverse_y, root_y, rank_y = _roots(moments.gram_target(), moments)
    left, values, right = torch.linalg.svd(inverse_y @ moments.cross() @ inverse_x, full_matrices=False)
    kept = min(rank_x, rank_y)
    return values[:kept].clamp(max=1), left[:, :kept], right.mT[:, :kept], root_x, root_y


def _roots(gram: Tensor, moments: PairedMoments) -> tuple[Tensor, Tensor, int]:
    """The symmetric (pseudo-)inverse root and root of a Gram matrix, and its rank."""
    values, vectors = torch.linalg.eigh(gram)
    _require_spread(float(values[-1]))
    kept = values > values[-1] * moments.rank_tolerance(len(values))
    root = torch.where(kept, values, 0).sqrt()
    inverse = torch.where(kept, 1 / torch.where(kept, root, 1), 0)
    return (vectors * inverse) @ vectors.mT, (vectors * root) @ vectors.mT, int(kept.sum())


def _size(gram: Tensor) -> float:
    size = float(gram.abs().max())
    _require_spread(size)
    return size


def _unit(gram: Tensor) -> Tensor:
    """A Gram matrix with its largest entry one: squares of its entries stay within range whatever the data's scale."""
    return gram / _size(gram)


def _require_spread(scale: float) -> None:
    if not scale > 0:
        raise DataError(
            "A similarity needs spaces that vary, found one whose rows are all the same; give more and other rows."
        )
