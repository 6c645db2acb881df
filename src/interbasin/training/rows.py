"""The order of rows in a training: another one in each pass, and the same one whenever the pass is repeated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from interbasin.checks import require_whole
from interbasin.randomness import generator_of


class ShuffledRows:
    """The numbers of rows in random order, cut into batches; to be iterated over as often as needed.

    The order is a function of the seed and the number of the pass. Nothing depends on torch's global state, so a run
    that was interrupted finds the order it had, and several processes see the same one.

    Args:
        count: How many rows there are.
        batch_size: Rows in a batch; the last of a pass may have fewer.
        seed: Where the orders come from.

    Attributes:
        epoch: The number of the next pass, counted from 0. Each pass adds one; `train` sets it.

    Raises:
        DataError: unless all three are whole numbers, the first two of at least 1.

    Example:
        >>> rows = ShuffledRows(5, 2, seed=0)
        >>> first, second = list(rows), list(rows)
        >>> [len(batch) for batch in first], sorted(torch.cat(first).tolist())
        ([2, 2, 1], [0, 1, 2, 3, 4])
    """

    def __init__(self, count: int, batch_size: int, seed: int = 0) -> None:
        self.count = require_whole("count", count, least=1)
        self.batch_size = require_whole("batch_size", batch_size, least=1)
        generator_of(seed)
        self.seed = int(seed)
        self.epoch = 0

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        # Neighbouring seeds and passes give unrelated orders.
        mixed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0]) >> 1
        order = torch.randperm(self.count, generator=generator_of(mixed))
        return iter(torch.split(order, self.batch_size))
