"""LERP: a point of the straight line between two networks."""

from __future__ import annotations

from interbasin.jobs.merge.operands import Combine, Operands, WeightedSum
from interbasin.jobs.merge.recipe import Recipe

__all__ = ["lerp"]


def lerp(tensor: Operands, recipe: Recipe) -> Combine:
    """:math:`(1 - t) a + t b`, the line along which losses are looked at [goodfellow:15]."""
    between = WeightedSum((1 - recipe.t, recipe.t))
    return lambda parts: between(parts.models)
