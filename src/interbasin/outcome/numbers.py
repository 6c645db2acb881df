"""Measured numbers as JSON and back, exactly. JSON has no word for NaN and infinity, so they are written as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, SupportsFloat

from interbasin.errors import DataError

__all__ = ["checked_number", "from_json", "plain", "to_json"]

# As JavaScript and Python both read them: Number("Infinity"), float("Infinity").
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def checked_number(value: object, what: str) -> float:
    """``value`` as a plain number: a number, or a tensor or array that holds one. Counts stay whole numbers.

    Raises:
        DataError: if it is anything else; ``what`` names it.
    """
    # Text would pass for a number ("1.5"), and a truth value for one that was measured.
    if isinstance(value, SupportsFloat) and not isinstance(value, bool | str):
        try:
            number = float(value)
            return int(value) if isinstance(value, Integral) else number
        except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of many, or too large for a float
            pass
    raise DataError(f"{what} is one real number, found {value!r:.80}; leave out what was not measured.")


def to_json(value: float) -> float | str:
    """A number as JSON has it.

    Example:
        >>> to_json(0.5), to_json(float("-inf"))
        (0.5, '-Infinity')
    """
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def from_json(value: object) -> float:
    """The number that `to_json` wrote.

    Raises:
        ValueError: if it did not write this.
    """
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r:.80} is no number")


def plain(value: Any, what: str) -> Any:
    """``value`` in JSON's own types, as it will be read again; paths become text.

    Raises:
        DataError: if it has no such form; ``what`` says where it stands.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise DataError(f"{what} has the key {wrong[0]!r:.80}, and keys are text; name it in words.")
        return {key: plain(one, f"{what}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, f"{what}[{place}]") for place, one in enumerate(value)]
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "__fspath__"):
        return str(value)
    number = checked_number(value, f"{what} (if it is neither text, list nor mapping)")
    if not math.isfinite(number):
        raise DataError(f"{what} is {number}, which JSON cannot hold; give a finite number, or None for no limit.")
    return number
