"""The methods of merging by name, and what was asked of one.

A new method is a function and a row in the table. The function gets one tensor of all networks and its options, and
returns a function that merges a chunk of that tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interbasin.checks import require_finite
from interbasin.errors import DataError
from interbasin.jobs.merge.kernel import Array, Chunk, Combine, Operands, WeightedSum, slices
from interbasin.jobs.merge.ties import ties
from interbasin.methods import Method, MethodTable
from interbasin.paths import FARTHEST, PARALLEL, require_point, shares_on_arc
from interbasin.text import plural

ROW = 512  # numbers
OPPOSITE = "point opposite ways in the two models, where there is no single arc; the line was taken"


# ---------------------------------------------------------------------- the methods that take few lines


def lerp(tensor: Operands, *, t: float) -> Combine:
    """:math:`(1 - t) a + t b`, the line along which losses are looked at [goodfellow:15]."""
    return average(tensor, weights=(1 - t, t))


def slerp(tensor: Operands, *, t: float) -> Combine:
    """A point of the arc between the directions of the two tensors, or of the line: see `interbasin.paths`."""
    cosine, lengths = _compare(tensor)
    shares = shares_on_arc(cosine, t)
    if cosine < -PARALLEL:
        require_point(tensor.name, cosine, *shares, lengths)
        tensor.notes.append(OPPOSITE)
    return average(tensor, weights=shares)


def average(tensor: Operands, *, weights: Sequence[float]) -> Combine:
    r""":math:`\sum_i w_i m_i` with weights that sum to one: the uniform soup, or a weighted one [wortsman:22]."""
    mean = WeightedSum(weights)
    return lambda chunk: mean(chunk.models)


def task_arithmetic(tensor: Operands, *, weights: Sequence[float], scale: float) -> Combine:
    r""":math:`b + \lambda \sum_i w_i (m_i - b)`, with :math:`\lambda` the scale [ilharco:23]."""
    total = WeightedSum([scale * weight for weight in weights])

    def combine(chunk: Chunk) -> Array:
        merged = total([*chunk.updates()])
        merged += chunk.base
        return merged

    return combine


def _compare(tensor: Operands) -> tuple[float, tuple[float, float]]:
    """The cosine of the angle between the two tensors, which is 1 if one is zero, and their lengths."""
    a, b = tensor.models
    in_a = in_b = in_both = 0.0
    for part in slices(tensor.length):
        x, y = a.wide(part, tensor.precision), b.wide(part, tensor.precision)
        in_a, in_b, in_both = in_a + _dot(x, x), in_b + _dot(y, y), in_both + _dot(x, y)
    lengths = math.sqrt(in_a), math.sqrt(in_b)
    both = lengths[0] * lengths[1]
    return (in_both / both if both else 1.0), lengths


def _dot(x: Array, y: Array) -> float:
    """The sum of products: short rows in the numbers' own precision, which loses nothing there, their sums in float64.

    Widening every number would take longer than all the rest.
    """
    whole = len(x) - len(x) % ROW
    rows = np.matmul(x[:whole].reshape(-1, 1, ROW), y[:whole].reshape(-1, ROW, 1))
    return float(rows.sum(dtype=np.float64)) + float(x[whole:].astype(np.float64) @ y[whole:].astype(np.float64))


# ---------------------------------------------------------------------- the table

# Traits for the model card: `title` in words, `formula` (m are the models, b is the base) and `paper`. Traits for the
# check of a request: `pair` (two models and no more), `positive` (no negative weights) and `normalised` (weights are
# divided by their sum).
METHODS: MethodTable[Callable[..., Combine]] = MethodTable(
    "method of merging",
    [
        Method(
            "lerp",
            "goodfellow:15",
            "the line between two models",
            lerp,
            options={"t": 0.5},
            traits={
                "title": "linear interpolation (LERP)",
                "formula": "(1 - t) m1 + t m2",
                "paper": "Goodfellow, Vinyals and Saxe, Qualitatively Characterizing Neural Network Optimization "
                "Problems, 2015",
                "pair": True,
            },
        ),
        Method(
            "slerp",
            "shoemake:85",
            "the arc between the directions of two models, tensor by tensor",
            slerp,
            options={"t": 0.5},
            traits={
                "title": "spherical interpolation (SLERP), tensor by tensor",
                "formula": "sin((1 - t) a) / sin(a) m1 + sin(t a) / sin(a) m2, with a the angle between the two "
                "tensors",
                "paper": "Shoemake, Animating Rotation with Quaternion Curves, 1985",
                "pair": True,
            },
        ),
        Method(
            "average",
            "wortsman:22",
            "the weighted average of any number of models (model soup)",
            average,
            options={"weights": None},
            traits={
                "title": "weighted average (model soup)",
                "formula": "sum of w m, with weights that sum to one",
                "paper": "Wortsman et al., Model Soups: Averaging Weights of Multiple Fine-tuned Models Improves "
                "Accuracy without Increasing Inference Time, 2022",
                "normalised": True,
            },
        ),
        Method(
            "task-arithmetic",
            "ilharco:23",
            "the base plus the weighted sum of what each model changed in it",
            task_arithmetic,
            needs=frozenset({"base"}),
            options={"weights": None, "scale": 1.0},
            traits={
                "title": "task arithmetic",
                "formula": "b + scale * sum of w (m - b)",
                "paper": "Ilharco et al., Editing Models with Task Arithmetic, 2023",
            },
        ),
        Method(
            "ties",
            "yadav:23",
            "the base plus the mean of the largest changes that agree in sign, tensor by tensor",
            ties,
            needs=frozenset({"base"}),
            options={"weights": None, "density": 0.5, "scale": 1.0},
            traits={
                "title": "TIES (trim, elect sign, disjoint mean), tensor by tensor",
                "formula": "b + scale * mean of those w (m - b), trimmed to density, that have the elected sign",
                "paper": "Yadav et al., TIES-Merging: Resolving Interference When Merging Models, 2023",
                "positive": True,
            },
        ),
    ],
)


# ---------------------------------------------------------------------- what was asked


@dataclass(frozen=True)
class Recipe:
    """What was asked of a merge, with nothing left open.

    Attributes:
        method: How to merge.
        options: Its options, defaults filled in: ``weights`` (one per model), ``t`` (where between two models),
            ``density`` (the share of an update that is kept), ``scale`` (what updates are multiplied with).
        has_base: Whether the last of the networks is the one that the models were made from.
    """

    method: Method[Callable[..., Combine]]
    options: Mapping[str, Any]
    has_base: bool = False

    @property
    def nearer_model(self) -> int:
        """Which model to take a tensor from that holds no real numbers: the first, or the nearer end of a path."""
        return int(self.options.get("t", 0) >= 0.5)


def resolve(name: str, count: int, *, base: bool, **given: Any) -> Recipe:
    """The recipe for so many models, defaults filled in.

    Args:
        name: Of the method.
        count: How many models there are, the base not among them.
        base: Whether there is one.
        given: ``weights``, ``t``, ``density`` and ``scale``; None is not given.

    Raises:
        UnknownNameError: if there is no such method.
        DataError: if the models, the base or the options do not fit it.
    """
    method = METHODS[name]
    METHODS.require_options(method.name, given)
    if method.traits.get("pair") and count != 2:
        raise DataError(f"{method.name} goes from one model to another, got {count}; use average for any number.")
    if ("base" in method.needs) != base:
        raise DataError(
            f"{method.name} adds up what the models learned since their base, and no base was given; say which network "
            "they were all fine-tuned from (base=)."
            if not base
            else f"{method.name} takes no base; leave it out, or use task-arithmetic or ties."
        )
    options = dict(method.options)
    if "weights" in options:
        options["weights"] = _resolve_weights(given.get("weights"), count, method)
    if given.get("t") is not None:
        options["t"] = require_finite("t", given["t"], -FARTHEST, FARTHEST)
    if given.get("density") is not None:
        options["density"] = require_finite("density", given["density"], above=0, most=1)
    if given.get("scale") is not None:
        options["scale"] = require_finite("scale", given["scale"])
    return Recipe(method, options, base)


def _resolve_weights(weights: Any, count: int, method: Method[Any]) -> tuple[float, ...]:
    """One weight per model; equal ones, if none were given."""
    normalised, positive = method.traits.get("normalised"), method.traits.get("positive")
    if weights is None:
        return (1 / count if normalised else 1.0,) * count
    if isinstance(weights, str) or not isinstance(weights, Sequence):
        raise DataError(f"weights must be a list with one number per model, got {weights!r}.")
    weights = [require_finite("A weight", weight) for weight in weights]
    shown = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != count:
        raise DataError(
            f"{method.name} takes one weight per model, and was given {plural(count, 'model')} and "
            f"{plural(len(weights), 'weight')} ({shown}); the base has none."
        )
    if positive and min(weights) < 0:
        raise DataError(f"{method.name} takes weights of zero or more, got {shown}.")
    try:
        total = math.fsum(weights)
    except OverflowError:
        raise DataError(f"The weights of {method.name} add up to more than a number holds ({shown}).") from None
    if (normalised or positive) and not total > 0:
        raise DataError(f"The weights of {method.name} need a sum above zero, got {total:g} ({shown}).")
    return tuple(weight / total for weight in weights) if normalised else tuple(weights)
