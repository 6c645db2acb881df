"""Argument checks that every room shares: whole numbers, finite numbers, fractions, flags, known names.

Each returns the value in its plain type. The error, by default a `DataError`, names the argument and the value.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

from interbasin.errors import DataError, InterbasinError, UnknownNameError

LONGEST = 80  # characters of a value that a message shows


def require_whole(
    name: str,
    value: object,
    least: int | None = None,
    most: int | None = None,
    *,
    error: type[InterbasinError] = DataError,
) -> int:
    """``value`` as an int between the bounds, both included.

    Example:
        >>> require_whole("steps", 3, least=1)
        3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not _is_within(number, least, most):
        raise error(f"{name} must be a whole number{_describe_bounds(least, most)}, got {_describe_value(value)}.")
    return number


def require_finite(
    name: str,
    value: object,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    error: type[InterbasinError] = DataError,
) -> float:
    """``value`` as a finite float from ``least`` to ``most``, and above and below the other two bounds.

    Example:
        >>> require_finite("rate", 1e-3, least=0)
        0.001
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not _is_within(number, least, most, above, below):
        kind = "a finite number" if isinstance(value, float) and not math.isfinite(value) else "a number"
        bounds = _describe_bounds(least, most, above, below)
        raise error(f"{name} must be {kind}{bounds}, got {_describe_value(value)}.")
    return number


def require_fraction(name: str, value: object, *, zero: bool = True) -> float:
    """``value`` as a float from 0 to 1; ``zero`` says whether 0 itself will do."""
    return require_finite(name, value, 0, 1) if zero else require_finite(name, value, above=0, most=1)


def require_flag(name: str, value: object) -> bool:
    """``value`` as True or False; numbers and text are neither."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # numpy's has another class
        raise DataError(f"{name} must be True or False, got {_describe_value(value)}.")
    return bool(value)


def require_choice(kind: str, value: Any, known: Iterable[str]) -> str:
    """``value``, one of the known names; underscores will do for hyphens.

    Raises:
        UnknownNameError: with the known names, nearest first.

    Example:
        >>> require_choice("path", "slerp", ["lerp", "slerp"])
        'slerp'
    """
    names = list(known)
    for name in (value, value.replace("_", "-") if isinstance(value, str) else value):
        if isinstance(name, str) and name in names:
            return name
    raise UnknownNameError.of(kind, value, names)


def _is_within(
    number: float, least: float | None, most: float | None, above: float | None = None, below: float | None = None
) -> bool:
    return (
        (least is None or number >= least)
        and (most is None or number <= most)
        and (above is None or number > above)
        and (below is None or number < below)
    )


def _describe_bounds(
    least: float | None, most: float | None, above: float | None = None, below: float | None = None
) -> str:
    if least is not None and most is not None:
        return f" from {_describe_bound(least)} to {_describe_bound(most)}"
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    words = " and ".join(f"{name} {_describe_bound(bound)}" for name, bound in bounds.items() if bound is not None)
    return f" of {words}" if words.startswith("at") else f" {words}" if words else ""


def _describe_bound(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _describe_value(value: object) -> str:
    """The value on one short line; of what takes more, as arrays do, the type."""
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text else f"a value of type {type(value).__name__}"
