"""How many pairs are enough: the best method again, fitted on fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FitError
from interbasin.evaluate.retrieval import Interval
from interbasin.jobs.translate.auditing.figures import Yardstick
from interbasin.jobs.translate.auditing.searches import translated_search
from interbasin.jobs.translate.auditing.unseen import Unseen
from interbasin.jobs.translate.translator import Translator

__all__ = ["Curve", "counts_of", "learning_curve"]

REPEATS = 3
FIRST, STEP = 100, 10**0.5


@dataclass(frozen=True)
class Curve:
    """What fewer pairs bring.

    Attributes:
        method, measure: Of what.
        pairs: How many the method was fitted on.
        values: What it then reached; the mean over several draws of so many pairs.
        losses: What it lacks of what all pairs bring.
        enough: The fewest pairs of the curve that are shown to lack no more than the margin, which the interval of
            their loss decides; None if no fewer than all are.
        rising: Whether the last step still brought more than the margin.
    """

    method: str
    measure: str
    pairs: tuple[int, ...]
    values: tuple[Interval, ...]
    losses: tuple[Interval, ...]
    enough: int | None
    rising: bool

    def columns(self) -> dict[str, list[float | str]]:
        """As a table."""
        return {
            "pairs": list(self.pairs),
            "value": [one.value for one in self.values],
            "low": [one.low for one in self.values],
            "high": [one.high for one in self.values],
            "loss": [one.value for one in self.losses],
            "loss_low": [one.low for one in self.losses],
            "loss_high": [one.high for one in self.losses],
        }


def counts_of(given: Sequence[int] | None, pairs: int) -> list[int]:
    """The numbers of pairs to try, smaller than all: by default 100, 316, 1,000, ...

    Raises:
        DataError: if one is no number of pairs.
    """
    if given is not None:
        wrong = [one for one in given if one < 2]
        if wrong:
            raise DataError(f"A learning curve is over numbers of pairs, at least 2, found {wrong[0]}.")
        return sorted({int(one) for one in given if one < pairs})
    steps = [round(FIRST * STEP**place) for place in range(20)]
    return [one for one in steps if one <= 0.7 * pairs]


def learning_curve(
    yardstick: Yardstick,
    name: str,
    method: Translator,
    counts: Sequence[int],
    with_all: NDArray[np.float64],
    margin: float,
    seed: int,
    progress: Callable[[float], object] | None = None,
) -> Curve | None:
    """The curve of a method; None if there is nothing to try, or nothing to measure by.

    Args:
        yardstick: What to measure by.
        name, method: The method.
        counts: Numbers of pairs.
        with_all: What all pairs bring, a number a query.
        margin: How much may be lacking.
        seed: Of which pairs are drawn.
        progress: Told what share is done.
    """
    measure, material, bootstrap = yardstick.primary, yardstick.material, yardstick.bootstrap
    if measure is None or bootstrap is None or not counts:
        return None
    draws = np.random.default_rng(seed)
    translators: dict[Any, Unseen] = {}
    for count in counts:
        for repeat in range(REPEATS):
            rows = draws.choice(len(material.old_pairs), count, replace=False)
            where = {int(row): place for place, row in enumerate(rows)}
            places = {row: where[pair] for row, pair in material.places.items() if pair in where}
            try:
                translators[count, repeat] = Unseen(
                    method, material.old_pairs[rows], material.new_pairs[rows], places, seed
                )
            except FitError:  # too few for this method: the curve begins later
                break
    columns, tried = [], []
    found = translated_search(material, translators, progress)
    for count in counts:
        of_this = [yardstick.measures(found[key])[measure] for key in found if key[0] == count]
        if of_this:
            tried.append(count)
            columns.append(np.mean(of_this, axis=0))
    tried.append(len(material.old_pairs))
    columns.append(with_all)
    values = bootstrap.intervals(np.stack(columns, 1))
    losses = bootstrap.intervals(np.stack([with_all - one for one in columns], 1))
    enough = next((count for count, loss in zip(tried[:-1], losses[:-1], strict=True) if loss.high <= margin), None)
    rising = len(tried) > 1 and losses[-2].low > 0 and losses[-2].value > margin
    return Curve(name, measure, tuple(tried), tuple(values), tuple(losses), enough, rising)
