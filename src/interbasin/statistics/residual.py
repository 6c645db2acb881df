r"""How far a map carries the source from the target, from the moments alone.

With :math:`M` the matrix, :math:`\sum \|M x - y\|^2 = \operatorname{tr}(M G_x M^\top) - 2 \operatorname{tr}(M^\top C) +
\operatorname{tr}(G_y)`. As a difference of sums it cannot show less than about 1e-16 of the target's energy (a relative
residual of 1e-8).
"""

from __future__ import annotations

import math

import torch

from interbasin.errors import ShapeError
from interbasin.maps import Affine, Map, Permutation, SignedPermutation
from interbasin.maps.base import require_map
from interbasin.statistics.moments import PairedMoments


def check_widths(moments: PairedMoments, map: Map) -> None:
    """Refuse what is not a map, or is one between spaces of other widths than the statistics'."""
    require_map(map, "What carries the source")
    if (map.source_width, map.target_width) != (moments.source_width, moments.target_width):
        raise ShapeError(
            f"{map!r} does not fit statistics of {moments.target_width} <- {moments.source_width}; "
            "use a map fitted between the same two spaces."
        )


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
