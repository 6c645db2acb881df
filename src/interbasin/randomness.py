"""Where randomness comes from: a seed that the caller gave, and never torch's global state."""

from __future__ import annotations

import torch

from interbasin.checks import require_whole


def generator_of(seed: object) -> torch.Generator:
    """A generator that starts at ``seed``.

    Raises:
        DataError: unless the seed is a whole number from 0 to 2**63 - 1.
    """
    return torch.Generator().manual_seed(require_whole("seed", seed, 0, 2**63 - 1))
