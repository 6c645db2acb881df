"""LERP: a point of the straight line between two networks."""

from __future__ import annotations

from interbasin.jobs.merge.operands import Combine, Operands, weighted_sum
from interbasin.jobs.merge.recipe import Recipe

__all__ = ["lerp"]


def lerp(tensor: Operands, recipe: Recipe) -> Combine:
    """:math:`(1 - t) a + t b`, the line along which losses are looked at [goodfellow:15]."""
    shares = (1 - recipe.t, recipe.t)
    return lambda parts: weighted_sum(parts.models, shares)
