"""Where randomness comes from: a seed that the caller gave, and never torch's global state."""

from __future__ import annotations

import operator

import torch

from interbasin.errors import DataError


def generator_of(seed: object) -> torch.Generator:
    """A generator that starts at ``seed``.

    Raises:
        DataError: unless the seed is a whole number from 0 to 2**63 - 1.
    """
    try:
        number = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise DataError(f"A seed is a whole number from 0 to 2**63 - 1, got {seed!r}; try 0.")
    return torch.Generator().manual_seed(number)
