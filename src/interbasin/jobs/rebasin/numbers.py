"""Numbers that a user gives to re-basin."""

from __future__ import annotations

import math

from interbasin.errors import DataError

__all__ = ["require_counts", "require_sizes"]


def require_counts(**counts: object) -> None:
    """Refuse what is no whole number, or too small a one, by its name.

    Raises:
        DataError: if there is such.
    """
    for name, value in counts.items():
        least = 0 if name in ("finetune", "points") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"{name} is a whole number of at least {least}, found {value!r}.")


def require_sizes(**sizes: object) -> None:
    """Refuse what is no finite number of at least zero, by its name.

    Raises:
        DataError: if there is such.
    """
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
            raise DataError(f"{name} is a number of at least 0, found {value!r}; leave it out for the default.")
