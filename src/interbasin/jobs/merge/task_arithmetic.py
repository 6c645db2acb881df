"""Task arithmetic: what fine-tuning added to a base, added up."""

from __future__ import annotations

from interbasin.jobs.merge.numbers import Array
from interbasin.jobs.merge.operands import Combine, Operands, Parts, WeightedSum
from interbasin.jobs.merge.recipe import Recipe

__all__ = ["task_arithmetic"]


def task_arithmetic(tensor: Operands, recipe: Recipe) -> Combine:
    r""":math:`b + \lambda \sum_i w_i (m_i - b)`, with :math:`\lambda` the scale [ilharco:23]."""
    total = WeightedSum([recipe.scale * weight for weight in recipe.weights])

    def combine(parts: Parts) -> Array:
        assert parts.base is not None
        found = total([model - parts.base for model in parts.models])
        found += parts.base
        return found

    return combine
