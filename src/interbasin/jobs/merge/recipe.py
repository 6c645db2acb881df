"""What was asked of a merge, with nothing left open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interbasin.errors import DataError
from interbasin.text import plural

__all__ = ["Recipe", "checked_density", "checked_number", "checked_weights"]


@dataclass(frozen=True)
class Recipe:
    """A method and its numbers; those that it does not take are left as they are here.

    Attributes:
        method: Its name.
        weights: One a model.
        t: Where between two models.
        density: The share of an update that is kept.
        scale: What updates are multiplied with before they are added to the base.
    """

    method: str
    weights: tuple[float, ...] = ()
    t: float = 0.5
    density: float = 0.5
    scale: float = 1.0


def checked_number(value: object, what: str) -> float:
    """``value`` as a number.

    Raises:
        DataError: if it is none, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{what} of a merge is a number, found {value!r}; give one such as 0.5.")
    return float(value)


def checked_density(value: object) -> float:
    """``value`` as the share of an update that is kept.

    Raises:
        DataError: if it is none.
    """
    density = checked_number(value, "density")
    if not 0 < density <= 1:
        raise DataError(
            f"density is the share of every update that is kept, above 0 and at most 1, found {density:g}; try 0.5."
        )
    return density


def checked_weights(values: Any, count: int, method: str, *, positive: bool, sum_to_one: bool) -> tuple[float, ...]:
    """A weight a model.

    Args:
        values: What was given; None for equal weights.
        count: How many models there are.
        method: How the messages call the method.
        positive: Whether no weight may be negative.
        sum_to_one: Whether they are divided by their sum.

    Raises:
        DataError: if they do not fit.
    """
    if values is None:
        values = [1.0] * count
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DataError(f"weights is a list with a number a model, found {values!r}; give {count} numbers.")
    weights = [checked_number(value, "A weight") for value in values]
    told = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != count:
        raise DataError(
            f"{method} takes a weight a model, and was given {plural(count, 'model')} and "
            f"{plural(len(weights), 'weight')} ({told}); the base has none."
        )
    if positive and min(weights) < 0:
        raise DataError(f"{method} takes weights of zero or more, found {told}; leave out what should not count.")
    try:
        total = math.fsum(weights)
    except OverflowError:
        raise DataError(f"The weights of {method} add up to more than a number holds ({told}); divide them.") from None
    if positive and not total > 0:
        raise DataError(f"{method} needs a weight above zero, found {told}; leave weights out for equal ones.")
    if sum_to_one:
        if not total > 0:
            raise DataError(
                f"{method} divides its weights by their sum, which is {total:g} ({told}); give weights with a sum "
                "above zero."
            )
        weights = [weight / total for weight in weights]
    return tuple(weights)
