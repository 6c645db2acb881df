"""The average of any number of networks, also called a soup."""

from __future__ import annotations

from interbasin.jobs.merge.operands import Combine, Operands, WeightedSum
from interbasin.jobs.merge.recipe import Recipe

__all__ = ["average"]


def average(tensor: Operands, recipe: Recipe) -> Combine:
    r""":math:`\sum_i w_i m_i` with weights that sum to one: the uniform soup, or a weighted one [wortsman:22]."""
    mean = WeightedSum(recipe.weights)
    return lambda parts: mean(parts.models)
