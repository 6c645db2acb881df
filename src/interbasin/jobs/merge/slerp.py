"""SLERP: a point of the arc between two networks, a tensor at a time."""

from __future__ import annotations

import math

import numpy as np

from interbasin.jobs.merge.numbers import Array, stretches
from interbasin.jobs.merge.operands import Combine, Operands, WeightedSum
from interbasin.jobs.merge.recipe import Recipe
from interbasin.networks.arcs import PARALLEL, shares_on_arc

__all__ = ["OPPOSITE", "slerp"]

ROW = 512  # numbers
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
        x, y = a.wide(part, tensor.precision), b.wide(part, tensor.precision)
        in_a, in_b, in_both = in_a + _dot(x, x), in_b + _dot(y, y), in_both + _dot(x, y)
    lengths = math.sqrt(in_a) * math.sqrt(in_b)
    return in_both / lengths if lengths else 1.0


def _dot(x: Array, y: Array) -> float:
    """The sum of products: short rows in the numbers' own precision, which loses nothing there, their sums in float64.

    Widening every number would take longer than all the rest.
    """
    whole = len(x) - len(x) % ROW
    rows = np.matmul(x[:whole].reshape(-1, 1, ROW), y[:whole].reshape(-1, ROW, 1))
    return float(rows.sum(dtype=np.float64)) + float(x[whole:].astype(np.float64) @ y[whole:].astype(np.float64))
