"""What was given as the fine-tune, as one update: that of one network, or what those of several come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from interbasin.checks import require_choice, require_finite, require_fraction
from interbasin.errors import DataError
from interbasin.jobs.transport.updates.ties import spread
from interbasin.jobs.transport.updates.update import Update

MERGES = ("task-arithmetic", "ties")
DENSITY = 0.5


def weights_of_merge(weights: Any) -> list[float] | None:
    """The weights of fine-tunes that are merged, as plain numbers; None if there are none.

    Raises:
        DataError: if they are no list, tuple, or tensor or array of one axis, or one of them is not finite.

    Example:
        >>> weights_of_merge((1, 0.5))
        [1.0, 0.5]
    """
    if weights is None:
        return None
    if isinstance(weights, Tensor | np.ndarray) and weights.ndim == 1:
        weights = weights.tolist()
    if not isinstance(weights, list | tuple):
        found = weights if isinstance(weights, int | float | str) else f"a {type(weights).__name__}"
        raise DataError(f"merge_weights is a list with a number for each fine-tune, found {found!s}; give a list.")
    return [require_finite("a weight in merge_weights", weight) for weight in weights]


def read_fine_tune(
    tuned: Any,
    source: nn.Module,
    *,
    merge: str = MERGES[0],
    weights: Sequence[float] | None = None,
    density: float | None = None,
) -> Update:
    """The update of a fine-tune of ``source``, or of several that are merged.

    Args:
        tuned: What `Update.of` takes, or a list of such.
        source: The base of all of them.
        merge: ``"task-arithmetic"``, the weighted sum, or ``"ties"`` [yadav:23].
        weights: One for each; 1 by default.
        density: For ``"ties"``: the share of every update that is kept, in each tensor by itself; 0.5 by default.

    Raises:
        UnknownNameError, DataError: for a merge that does not exist, or weights or a density that do not fit.

    Example:
        >>> import torch
        >>> net = nn.Linear(2, 2)
        >>> two = [{"bias": torch.tensor([1.0, 0.0])}, {"bias": torch.tensor([0.0, 1.0])}]
        >>> read_fine_tune(two, net, weights=[1, 3]).tensor("bias")
        tensor([1., 3.])
    """
    require_choice("merge", merge, MERGES)
    if density is not None:
        if merge != "ties":
            raise DataError(f"density= belongs to merge='ties', and merge is {merge!r}; leave it out, or take ties.")
        require_fraction("density", density, zero=False)
    fine_tunes = list(tuned) if isinstance(tuned, list | tuple) else [tuned]
    if not fine_tunes:
        raise DataError("The list of fine-tunes is empty; give one at least.")
    weights = weights_of_merge(weights)
    if weights is not None and len(weights) != len(fine_tunes):
        raise DataError(
            f"Fine-tunes are merged with a weight for each, found {len(fine_tunes)} and {len(weights)} in "
            "merge_weights=; give one for each."
        )
    updates = [Update.of(each, source) for each in fine_tunes]
    if len(updates) == 1 and weights is None and merge != "ties":
        return updates[0]
    ties_density = (DENSITY if density is None else density) if merge == "ties" else None
    return Update.combined(spread(updates, source), weights, density=ties_density)
