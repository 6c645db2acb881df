"""The methods of merging: what each is called, what it takes and computes, and where it comes from.

A new one is a function and a line in the table: it is given one tensor of all networks and its options, and returns
what to do with every chunk of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.merge.kernel import Array, Chunk, Combine, Operands, WeightedSum, slices
from interbasin.jobs.merge.ties import ties
from interbasin.paths import PARALLEL, shares_on_arc
from interbasin.text import plural

DEFAULTS = {"t": 0.5, "density": 0.5, "scale": 1.0}
ROW = 512  # numbers
OPPOSITE = "point opposite ways in the two models, where there is no single arc; the line was taken"


# ---------------------------------------------------------------------- the methods that take few lines


def lerp(tensor: Operands, *, t: float) -> Combine:
    """:math:`(1 - t) a + t b`, the line along which losses are looked at [goodfellow:15]."""
    return average(tensor, weights=(1 - t, t))


def slerp(tensor: Operands, *, t: float) -> Combine:
    r"""A point of the arc between the directions of the two tensors, each seen as one vector [shoemake:85].

    Where they are all but parallel, or one is zero, the line is taken, from which the arc cannot be told; where they
    are all but opposite too, because then there are many arcs.
    """
    cosine = _cosine_between(tensor)
    if cosine < -PARALLEL:
        tensor.notes.append(OPPOSITE)
    return average(tensor, weights=shares_on_arc(cosine, t))


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


def _cosine_between(tensor: Operands) -> float:
    """The cosine of the angle between the two tensors; 1 if one is zero."""
    a, b = tensor.models
    in_a = in_b = in_both = 0.0
    for part in slices(tensor.length):
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


# ---------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Method:
    """A way to merge.

    Attributes:
        name: What it is called here and on the command line.
        title: In words, for the model card.
        formula: What is calculated, for the model card; ``m`` are the models and ``b`` is the base.
        reference: The key of the paper in docs/references.bib.
        paper: The paper for people.
        function: One tensor of all networks, and the options -> what to do with every chunk of it.
        options: The names of the options that it has.
        needs_base: Whether it needs the network that the models were made from.
        takes_two: Whether it takes two models and no more.
        positive: Whether weights may not be negative.
        sum_to_one: Whether weights are divided by their sum.
    """

    name: str
    title: str
    formula: str
    reference: str
    paper: str
    function: Callable[..., Combine]
    options: tuple[str, ...]
    needs_base: bool = False
    takes_two: bool = False
    positive: bool = False
    sum_to_one: bool = False


METHODS = {
    method.name: method
    for method in (
        Method(
            "lerp",
            "linear interpolation (LERP)",
            "(1 - t) m1 + t m2",
            "goodfellow:15",
            "Goodfellow, Vinyals and Saxe, Qualitatively Characterizing Neural Network Optimization Problems, 2015",
            lerp,
            ("t",),
            takes_two=True,
        ),
        Method(
            "slerp",
            "spherical interpolation (SLERP), tensor by tensor",
            "sin((1 - t) a) / sin(a) m1 + sin(t a) / sin(a) m2, with a the angle between the two tensors",
            "shoemake:85",
            "Shoemake, Animating Rotation with Quaternion Curves, 1985",
            slerp,
            ("t",),
            takes_two=True,
        ),
        Method(
            "average",
            "weighted average (model soup)",
            "sum of w m, with weights that sum to one",
            "wortsman:22",
            "Wortsman et al., Model Soups: Averaging Weights of Multiple Fine-tuned Models Improves Accuracy without "
            "Increasing Inference Time, 2022",
            average,
            ("weights",),
            sum_to_one=True,
        ),
        Method(
            "task-arithmetic",
            "task arithmetic",
            "b + scale * sum of w (m - b)",
            "ilharco:23",
            "Ilharco et al., Editing Models with Task Arithmetic, 2023",
            task_arithmetic,
            ("weights", "scale"),
            needs_base=True,
        ),
        Method(
            "ties",
            "TIES (trim, elect sign, disjoint mean), tensor by tensor",
            "b + scale * mean of those w (m - b), trimmed to density, that have the elected sign",
            "yadav:23",
            "Yadav et al., TIES-Merging: Resolving Interference When Merging Models, 2023",
            ties,
            ("weights", "density", "scale"),
            needs_base=True,
            positive=True,
        ),
    )
}


def find_method(name: object) -> Method:
    """The method of that name; underscores will do for hyphens.

    Raises:
        UnknownNameError: if there is none.
    """
    method = METHODS.get(name.replace("_", "-")) if isinstance(name, str) else None
    if method is None:
        raise UnknownNameError.of("method of merging", name, METHODS)
    return method


# ---------------------------------------------------------------------- what was asked


@dataclass(frozen=True)
class Recipe:
    """What was asked of a merge, with nothing left open.

    Attributes:
        method: How to merge.
        options: Its options, defaults filled in: ``weights`` (one per model), ``t`` (where between two models),
            ``density`` (the share of an update that is kept), ``scale`` (what updates are multiplied with).
    """

    method: Method
    options: Mapping[str, Any]

    @property
    def nearer_model(self) -> int:
        """Which model to take a tensor from that holds no real numbers: the first, or the nearer end of a path."""
        return int(self.options.get("t", 0) >= 0.5)


def resolve(name: object, count: int, *, base: bool, **given: Any) -> Recipe:
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
    method = find_method(name)
    foreign = [option for option, value in given.items() if value is not None and option not in method.options]
    if foreign:
        own = ", ".join(sorted(method.options))
        fits = ", ".join(other.name for other in METHODS.values() if foreign[0] in other.options)
        raise DataError(
            f"{method.name} was given {foreign[0]}, which it has no use for (it takes {own}); leave it out, or use a "
            f"method that takes it: {fits}."
        )
    if method.takes_two and count != 2:
        raise DataError(
            f"{method.name} goes from one model to another, and was given {count}; give two, or use average for any "
            "number."
        )
    if method.needs_base != base:
        raise DataError(
            f"{method.name} adds up what the models learned since their base, and no base was given; say which network "
            "they were all fine-tuned from (base=)."
            if method.needs_base
            else f"{method.name} has no use for a base, and one was given; leave it out, or use task-arithmetic or "
            "ties."
        )
    options: dict[str, Any] = {}
    for option in method.options:
        if option == "weights":
            options[option] = _resolve_weights(given.get(option), count, method)
        else:
            value = given.get(option)
            options[option] = DEFAULTS[option] if value is None else _require_number(value, option)
    if not 0 < options.get("density", 1) <= 1:
        raise DataError(
            "density is the share of every update that is kept, above 0 and at most 1, found "
            f"{options['density']:g}; try 0.5."
        )
    return Recipe(method, options)


def _require_number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{what} of a merge is a number, found {value!r}; give one such as 0.5.")
    return float(value)


def _resolve_weights(values: Any, count: int, method: Method) -> tuple[float, ...]:
    """One weight per model; equal ones, if none were given."""
    if values is None:
        values = [1.0] * count
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DataError(f"weights is a list with one number per model, found {values!r}; give {count} numbers.")
    weights = [_require_number(value, "A weight") for value in values]
    shown = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != count:
        raise DataError(
            f"{method.name} takes one weight per model, and was given {plural(count, 'model')} and "
            f"{plural(len(weights), 'weight')} ({shown}); the base has none."
        )
    if method.positive and min(weights) < 0:
        raise DataError(f"{method.name} takes weights of zero or more, found {shown}; leave out what should not count.")
    try:
        total = math.fsum(weights)
    except OverflowError:
        raise DataError(
            f"The weights of {method.name} add up to more than a number holds ({shown}); divide them."
        ) from None
    if method.positive and not total > 0:
        raise DataError(f"{method.name} needs a weight above zero, found {shown}; leave weights out for equal ones.")
    if method.sum_to_one:
        if not total > 0:
            raise DataError(
                f"{method.name} divides its weights by their sum, which is {total:g} ({shown}); give weights with a "
                "sum above zero."
            )
        weights = [weight / total for weight in weights]
    return tuple(weights)
