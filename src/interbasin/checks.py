"""Argument checks that every room shares: whole numbers, finite numbers, fractions, flags, known names.

Each returns the value in its plain type, and raises a `DataError` that names the argument and what was found.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

from interbasin.errors import DataError, UnknownNameError


def require_whole(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an int between the bounds, both included.

    Example:
        >>> require_whole("steps", 3, least=1)
        3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not _within(number, least, most):
        raise DataError(f"{name} must be a whole number{_bounds(least, most)}, got {value!r}.")
    return number


def require_finite(name: str, value: object, least: float | None = None, most: float | None = None) -> float:
    """``value`` as a finite float between the bounds, both included.

    Example:
        >>> require_finite("rate", 1e-3, least=0)
        0.001
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    if not math.isfinite(number) or not _within(number, least, most):
        raise DataError(f"{name} must be a number{_bounds(least, most)}, got {value!r}.")
    return number


def require_fraction(name: str, value: object, *, zero: bool = True) -> float:
    """``value`` as a float from 0 to 1; ``zero`` says whether 0 itself will do."""
    number = require_finite(name, value, 0, 1)
    if number == 0 and not zero:
        raise DataError(f"{name} must be above 0 and at most 1, got {value!r}.")
    return number


def require_flag(name: str, value: object) -> bool:
    """``value`` as True or False; numbers and text are neither."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # numpy's has another class
        raise DataError(f"{name} must be True or False, got {value!r}.")
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


def _within(number: float, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    if least is not None:
        return f" of at least {least:g}"
    return "" if most is None else f" of at most {most:g}"
