"""A translation as plain arrays and four steps: centre, perhaps to length 1, one matrix, perhaps to a fixed length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from interbasin.jobs.translate.sides import AT_THE_MEAN
from interbasin.jobs.translate.translator import Translator

__all__ = ["Steps"]

LEAST = 1e-30  # a length to divide by


@dataclass(frozen=True, eq=False)
class Steps:
    """``y = M u + b``, where ``u`` is ``x`` about a mean and perhaps of length 1; then perhaps ``y`` of a fixed length.

    Attributes:
        mean: Subtracted first.
        matrix: M, (target, source); scales of single dimensions are in it.
        scale: What dimensions are divided by before the length is taken; ones where it is not.
        offset: b.
        floor: Rows nearer to the mean than this are at it; negative where rows keep their length.
        length: Of every row in the end; negative where rows keep theirs.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]
    floor: float
    length: float

    @classmethod
    def of(cls, translator: Translator) -> Steps:
        """The steps of a fitted translator."""
        check_is_fitted(translator)
        if translator.chosen_ == "relative":  # cosines with anchors: no way back from them
            side, matrix = translator.encoder_.side_, translator.encoder_.anchors_.double().numpy()
            ones = np.ones(side.width)
            return cls(side.mean.numpy(), ones, matrix, np.zeros(len(matrix)), AT_THE_MEAN * side.norm, -1.0)
        translation = translator.translation_
        source, target = translation.source, translation.target
        matrix = translation.map.matrix.double().numpy()
        factor = np.ones(len(matrix)) if target.deviation is None else target.deviation.numpy().copy()
        if target.unit:
            factor = factor * target.norm
        by_direction = source.unit and not translation.lengths
        if source.unit and translation.lengths:  # all rows are divided by one length, and not each by its own
            factor = factor / source.norm
        return cls(
            mean=source.mean.numpy(),
            scale=np.ones(source.width) if source.deviation is None else source.deviation.numpy(),
            matrix=factor[:, None] * matrix,
            offset=target.mean.numpy(),
            floor=AT_THE_MEAN * source.norm if by_direction else -1.0,
            length=-1.0 if target.length is None else target.length,
        )

    @property
    def widths(self) -> tuple[int, int]:
        return self.matrix.shape[1], self.matrix.shape[0]

    def __call__(self, x: Any) -> NDArray[Any]:
        """Rows of the source in the target's space, in double precision."""
        u = (np.asarray(x, dtype=np.float64) - self.mean) / self.scale
        if self.floor >= 0:
            norm = np.linalg.norm(u, axis=-1, keepdims=True)
            u = np.where(norm > self.floor, u / np.maximum(norm, LEAST), 0)
        y = u @ self.matrix.T + self.offset
        if self.length >= 0:
            y = y * (self.length / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), LEAST))
        return np.asarray(y)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, as it is written to a file."""
        return {name: np.asarray(value) for name, value in vars(self).items()}
