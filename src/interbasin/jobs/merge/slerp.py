"""SLERP: a point of the arc between two networks, a tensor at a time."""

from __future__ import annotations

import math

import numpy as np

from interbasin.jobs.merge.numbers import stretches
from interbasin.jobs.merge.operands import Combine, Operands, WeightedSum
from interbasin.jobs.merge.recipe import Recipe
from interbasin.networks.arcs import PARALLEL, shares_on_arc

__all__ = ["OPPOSITE", "slerp"]

OPPOSITE = "point opposite ways in the two models, where there is no single arc; the line was taken"


def slerp(tensor: Operands, recipe: Recipe) -> Combine:
    r"""A point of the arc between the directions of the two tensors, each seen as one vector [shoemake:85].

    Where they are all but parallel, or one is zero, the line is taken, from which the arc cannot be told; where they
    are all but opposite too, because then there are many arcs.
    """
    cosine = cosine_between(tensor)
    if cosine < -PARALLEL:
        tensor.remarks.append(OPPOSITE)
    between = WeightedSum(shares_on_arc(cosine, recipe.t))
    return lambda parts: between(parts.models)


def cosine_between(tensor: Operands) -> float:
    """The cosine of the angle between the two tensors; 1 if one is zero."""
    a, b = tensor.models
    in_a = in_b = in_both = 0.0
    for part in stretches(len(tensor)):
        x, y = a.wide(part, np.float64), b.wide(part, np.float64)
        in_a, in_b, in_both = in_a + float(x @ x), in_b + float(y @ y), in_both + float(x @ y)
    lengths = math.sqrt(in_a) * math.sqrt(in_b)
    return in_both / lengths if lengths else 1.0
