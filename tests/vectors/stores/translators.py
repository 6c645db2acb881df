"""Translators that stand in for fitted ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Plain:
    """A random linear map."""

    def __init__(self, source_width: int, target_width: int, *, seed: int = 0, carries_norms: bool = True) -> None:
        self.source_width, self.target_width, self.carries_norms = source_width, target_width, carries_norms
        self.matrix = np.random.default_rng(seed).standard_normal((source_width, target_width))

    def transform(self, x: NDArray[Any]) -> NDArray[Any]:
        assert x.dtype in (np.float32, np.float64) and x.flags.writeable and x.shape[1] == self.source_width
        # Row by row, so that no batch size changes a bit.
        return np.einsum("ij,jk->ik", x, self.matrix.astype(x.dtype))


class Normed(Plain):
    """One that scales every row to length one first, and so is not linear."""

    def transform(self, x: NDArray[Any]) -> NDArray[Any]:
        return super().transform(x / np.linalg.norm(x, axis=1, keepdims=True))


def vectors(rows: int, width: int, dtype: str = "float32", seed: int = 1) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(dtype)


def translated(translator: Plain, x: NDArray[Any]) -> NDArray[Any]:
    """What is expected: all at once, in the precision that is kept."""
    return translator.transform(x.astype(np.float32) if x.dtype == np.float16 else x.copy()).astype(x.dtype)
