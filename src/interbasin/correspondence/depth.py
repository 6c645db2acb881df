"""Which blocks of two stacks go together along the depth.

Blocks of networks of different depth are spread evenly, or along the path of largest CKA. A *path* is a list of pairs
(source layer, target layer), in which no layer comes before an earlier one's partner and every layer has one. A layer
may have several partners, but then it is the only partner of each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from interbasin.errors import DataError, ShapeError
from interbasin.statistics import LayerwiseMoments

# Where the similarity of two paths is the same to this many digits, the more even one is taken.
TIE = 1e-9


def even_path(source: int, target: int) -> list[tuple[int, int]]:
    """The path that spreads the layers evenly: at equal relative depth.

    Example:
        >>> even_path(2, 5)
        [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4)]
    """
    longer = max(source, target)
    return [
        ((2 * step + 1) * source // (2 * longer), (2 * step + 1) * target // (2 * longer)) for step in range(longer)
    ]


def largest_path(similarity: ArrayLike) -> list[tuple[int, int]]:
    """The path of largest similarity (rows: source layers, columns: target layers), by dynamic programming.

    Every layer of both networks counts once, with the mean similarity to its partners, so neither long paths nor short
    ones are favoured.

    Example:
        >>> largest_path([[0.9, 0.8, 0.1], [0.2, 0.3, 0.7]])
        [(0, 0), (0, 1), (1, 2)]
    """
    table = np.asarray(similarity, dtype=np.float64)
    rows, columns = table.shape
    depths = (np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns
    table = table - TIE * np.abs(depths[0][:, None] - depths[1][None, :])
    down = np.vstack([np.zeros((1, columns)), table.cumsum(axis=0)])  # sums of columns
    right = np.hstack([np.zeros((rows, 1)), table.cumsum(axis=1)])  # sums of rows
    best = np.full((rows + 1, columns + 1), -math.inf)
    best[0, 0] = 0.0
    before: dict[tuple[int, int], tuple[int, int]] = {}
    for row, column in itertools.product(range(1, rows + 1), range(1, columns + 1)):
        # Several rows end here in one column, or several columns in one row; the one partner counts with their mean.
        tall = down[row, column - 1] - down[:row, column - 1]
        tall = best[:row, column - 1] + tall * (1 + 1 / np.arange(row, 0, -1))
        wide = right[row - 1, column] - right[row - 1, :column]
        wide = best[row - 1, :column] + wide * (1 + 1 / np.arange(column, 0, -1))
        high, far = int(tall.argmax()), int(wide.argmax())
        before[row, column] = (high, column - 1) if tall[high] >= wide[far] else (row - 1, far)
        best[row, column] = max(tall[high], wide[far])
    path: list[tuple[int, int]] = []
    end = (rows, columns)
    while end != (0, 0):
        start = before[end]
        path = [*itertools.product(range(start[0], end[0]), range(start[1], end[1])), *path]
        end = start
    return path


class Similarity:
    """The CKA of blocks, by their names: from a matrix with one row per source block, or from layers inside them."""

    def __init__(self, cka: LayerwiseMoments | ArrayLike, blocks: tuple[Sequence[str], Sequence[str]]) -> None:
        self.served = False  # whether any blocks were matched by it
        if isinstance(cka, LayerwiseMoments):
            self._table, self._layers = cka.cka().numpy(), (cka.sources, cka.targets)
            return
        matrix = cka.detach().cpu() if isinstance(cka, torch.Tensor) else cka
        self._table, self._layers = np.asarray(matrix, dtype=np.float64), (tuple(blocks[0]), tuple(blocks[1]))
        expected = len(blocks[0]), len(blocks[1])
        if self._table.shape != expected:
            rows, columns = (", ".join(names) or "(none)" for names in blocks)
            raise ShapeError(
                f"The CKA matrix has shape {self._table.shape}, expected {expected}, with rows {rows} and columns "
                f"{columns}; give one like that, or LayerwiseMoments."
            )
        if not np.isfinite(self._table).all():
            raise DataError(
                "The CKA matrix holds NaN or infinity; give more rows, or leave out layers that are constant."
            )

    def path(self, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
        """The path of largest CKA through two stacks of blocks; an even one where nothing was recorded in them."""
        rows, columns = self._places(0, source), self._places(1, target)
        if not any(rows) or not any(columns):
            return even_path(len(source), len(target))
        for side, names, places in (("source", source, rows), ("target", target, columns)):
            missing = [name for name, own in zip(names, places, strict=True) if not own]
            if missing:
                raise DataError(
                    f"The CKA covers only some blocks of the {side}: nothing was recorded in {', '.join(missing)}; "
                    f"record a layer in each, for example {missing[0] + ':output'!r}."
                )
        self.served = True
        table = [[self._table[np.ix_(own, others)].mean() for others in columns] for own in rows]
        return largest_path(table)

    def _places(self, side: int, blocks: Sequence[str]) -> list[list[int]]:
        """For each block, which rows (or columns) of the table lie in it."""
        layers = [name.partition(":")[0] + "." for name in self._layers[side]]
        return [[place for place, name in enumerate(layers) if name.startswith(block + ".")] for block in blocks]
